//! File operations of scp's old protocol, and the messages about their errors.

use bytes::Bytes;
use sftp::{Attrs, MetadataFlags, Request, RequestId, Response, StatusCode, Told};
use wire::Pool;

use crate::Export;
use crate::error::RequestError;
use crate::sftp::Allowance;
use crate::sftp::Session;
use crate::sftp::{AnswerChunk, AnswerQueue};

/// Injected errors for tests.
#[cfg(test)]
pub(super) type Fails = fn(&Request<'_>) -> Option<rustix::io::Errno>;

/// The SFTP session that carries out file operations, and the output to the client.
pub(super) struct Files<'e> {
    pub(super) session: Session<'e>,
    /// Answer to the current request.
    asked: AnswerQueue,
    /// Output to the client.
    pub(super) out: AnswerQueue,
    /// An operation failed, so the exit status is not 0.
    pub(super) failed: bool,
    /// Simulates file systems that the tests do not have.
    #[cfg(test)]
    pub(super) fails: Option<Fails>,
}

/// Result of a request.
pub(super) enum FileResult {
    Nothing,
    Handle(Vec<u8>),
    Names(Vec<Vec<u8>>),
    Attrs(Attrs),
    Body(Vec<u8>),
}

impl<'e> Files<'e> {
    pub(super) fn new(pool: Pool, slot: usize, export: &'e Export, handles: Allowance) -> Self {
        let mut session = Session::new(export, handles);
        // Report which files have several names.
        session.tell(Told::LINKS);
        Self {
            session,
            asked: AnswerQueue::new(pool.clone(), slot),
            out: AnswerQueue::new(pool, slot),
            failed: false,
            #[cfg(test)]
            fails: None,
        }
    }

    /// Carries out a request. `data` holds the part of a WRITE that is not in `request`.
    pub(super) fn ask(
        &mut self,
        request: Request<'_>,
        data: &[Bytes],
    ) -> Result<FileResult, RequestError> {
        #[cfg(test)]
        if let Some(errno) = self.fails.and_then(|fails| fails(&request)) {
            return Err(errno.into());
        }
        self.session
            .answer(RequestId(0), request, data, &mut self.asked);
        let mut got = Err(RequestError::bad_message("there was no answer"));
        let Ok(()) = self.asked.take(|answer| {
            if let AnswerChunk::Bytes(bytes) = answer {
                got = read_answer(bytes);
            }
            Ok::<_, std::convert::Infallible>(())
        });
        got
    }

    pub(super) fn done(&mut self, request: Request<'_>) -> Result<(), RequestError> {
        self.ask(request, &[]).map(|_| ())
    }

    pub(super) fn handle(&mut self, request: Request<'_>) -> Result<Vec<u8>, RequestError> {
        match self.ask(request, &[])? {
            FileResult::Handle(handle) => Ok(handle),
            _ => Err(RequestError::bad_message("there was no handle")),
        }
    }

    pub(super) fn attrs(&mut self, request: Request<'_>) -> Result<Attrs, RequestError> {
        match self.ask(request, &[])? {
            FileResult::Attrs(attrs) => Ok(attrs),
            _ => Err(RequestError::bad_message("there were no attributes")),
        }
    }

    /// Extended attributes and access control lists, as get-xattrs@longhaul returns them; empty if
    /// there are none or they cannot be read.
    pub(super) fn beyond(&mut self, path: &[u8]) -> Vec<u8> {
        let flags = MetadataFlags::XATTRS.with(MetadataFlags::ACLS, true);
        match self.ask(Request::GetXattrs { path, flags }, &[]) {
            Ok(FileResult::Body(body)) => body,
            _ => Vec::new(),
        }
    }

    /// Names in the answer to `request`; empty at the end of a directory.
    pub(super) fn names(&mut self, request: Request<'_>) -> Result<Vec<Vec<u8>>, RequestError> {
        match self.ask(request, &[]) {
            Ok(FileResult::Names(names)) => Ok(names),
            Ok(_) => Err(RequestError::bad_message("there were no names")),
            Err(refused) if refused.code == StatusCode::EOF => Ok(Vec::new()),
            Err(refused) => Err(refused),
        }
    }

    pub(super) fn is_dir(&mut self, path: &[u8]) -> bool {
        self.attrs(Request::Stat { path })
            .is_ok_and(|attrs| attrs.is_dir())
    }

    pub(super) fn acknowledge(&mut self) {
        self.out.bytes().push(0);
    }

    /// Reports an error to the client's user.
    pub(super) fn complain(&mut self, of: &[u8], why: &str) {
        self.failed = true;
        let out = self.out.bytes();
        out.extend_from_slice(b"\x01scp: ");
        // The message ends at its first newline.
        out.extend(
            of.iter()
                .map(|byte| if *byte == b'\n' { b'?' } else { *byte }),
        );
        out.extend_from_slice(format!(": {why}\n").as_bytes());
    }
}

fn read_answer(bytes: &[u8]) -> Result<FileResult, RequestError> {
    let body = bytes.get(4..).unwrap_or_default();
    let (_, response) = Response::decode(body)
        .map_err(|_| RequestError::bad_message("an answer makes no sense"))?;
    match response {
        Response::Status { code, .. } if code == StatusCode::OK => Ok(FileResult::Nothing),
        Response::Status { code, text } => {
            let words = String::from_utf8_lossy(text.message).into_owned();
            Err(RequestError::new(code, words))
        }
        Response::Handle { handle } => Ok(FileResult::Handle(handle.to_vec())),
        Response::Name { names } => {
            let names = names.0.iter().map(|entry| entry.filename.to_vec());
            Ok(FileResult::Names(names.collect()))
        }
        Response::Attrs { attrs } => Ok(FileResult::Attrs(attrs)),
        Response::ExtendedReply { body } => Ok(FileResult::Body(body.0.to_vec())),
        _ => Ok(FileResult::Nothing),
    }
}
