//! File operations of scp's old protocol, and the messages about their errors.

use std::fmt;
use std::io::IoSliceMut;

use bytes::Bytes;
use rustix::io::Errno;
use sftp::{Attrs, MetadataFlags, Request, RequestId, Response, StatusCode, Told};
use wire::PacketPool;

use crate::sftp::OpenFileLimit;
use crate::sftp::SftpSession;
use crate::sftp::{AnswerChunk, AnswerQueue, RequestError};
use crate::{ExportedTree, TransferCounters};

/// Injected errors for tests.
#[cfg(test)]
pub(super) type InjectedFailure = fn(&Request<'_>) -> Option<Errno>;

/// The SFTP session that carries out file operations, and the output to the client.
pub(super) struct ScpFileOps<'e> {
    session: SftpSession<'e>,
    /// Answer to the current request.
    asked: AnswerQueue,
    /// Output to the client.
    out: AnswerQueue,
    /// An operation failed, so the exit status is not 0.
    failed: bool,
    /// Simulates file systems that the tests do not have.
    #[cfg(test)]
    pub(super) fails: Option<InjectedFailure>,
}

/// Reason why one file of an scp transfer failed. Its text is sent to the client behind scp's error
/// byte, and other files go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileError {
    /// A request failed with this status.
    Status(StatusCode, String),
    /// The answer to a request is of another kind, or cannot be read.
    Answer(&'static str),
    /// scp's old protocol, or this server's part of it, cannot transfer this.
    Unsuitable(UnsuitableReason),
    /// The file is complete, but its mode or times could not be set.
    NoAttributes(Box<Self>),
    /// The file could not be written in place; this temporary has all of it.
    KeptAs(Box<Self>, String),
}

/// Reason why something is not transferred with scp's old protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnsuitableReason {
    LongPath,
    Newline,
    DeepTree,
    NotRegular,
    Directory,
    /// A pattern stands for too many names.
    Pattern,
}

impl FileError {
    /// Code of the status that is the cause, if there is one.
    pub(super) fn code(&self) -> Option<StatusCode> {
        match self {
            Self::Status(code, _) => Some(*code),
            Self::NoAttributes(why) | Self::KeptAs(why, _) => why.code(),
            Self::Answer(_) | Self::Unsuitable(_) => None,
        }
    }

    /// True if a request failed with one of these errors, judged by the code and text of the
    /// answer.
    pub(super) fn is_one_of(&self, errors: &[Errno]) -> bool {
        let mut errors = errors
            .iter()
            .map(|errno| Self::from(RequestError::from(*errno)));
        errors.any(|error| error == *self)
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(_, text) => f.write_str(text),
            Self::Answer(what) => write!(f, "internal error: {what}"),
            Self::Unsuitable(why) => f.write_str(match why {
                UnsuitableReason::LongPath => "the path is too long",
                UnsuitableReason::Newline => {
                    "the old scp protocol cannot carry a name with a newline"
                }
                UnsuitableReason::DeepTree => "the directories are nested too deeply",
                UnsuitableReason::NotRegular => "not a regular file",
                UnsuitableReason::Directory => "Is a directory",
                UnsuitableReason::Pattern => {
                    "the pattern matches too many names: use a narrower one"
                }
            }),
            Self::NoAttributes(why) => write!(f, "copied, but cannot set its mode or times: {why}"),
            Self::KeptAs(why, kept) => write!(f, "{why}; the complete data is in {kept}"),
        }
    }
}

impl From<RequestError> for FileError {
    fn from(refused: RequestError) -> Self {
        Self::Status(refused.code(), refused.text().into_owned())
    }
}

impl From<UnsuitableReason> for FileError {
    fn from(why: UnsuitableReason) -> Self {
        Self::Unsuitable(why)
    }
}

/// Answer of the SFTP session to a request that scp's protocol was translated to, decoded by kind
/// of answer.
pub(super) enum FileResult {
    Nothing,
    Handle(Vec<u8>),
    Names(Vec<Vec<u8>>),
    Attrs(Attrs),
    Body(Vec<u8>),
}

impl<'e> ScpFileOps<'e> {
    pub(super) fn new(
        pool: PacketPool,
        slot: usize,
        export: &'e ExportedTree,
        handles: OpenFileLimit,
    ) -> Self {
        let mut session = SftpSession::new(export, handles);
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
    ) -> Result<FileResult, FileError> {
        #[cfg(test)]
        if let Some(errno) = self.fails.and_then(|fails| fails(&request)) {
            return Err(RequestError::from(errno).into());
        }
        self.session
            .answer(RequestId(0), request, data, &mut self.asked);
        let mut got = Err(FileError::Answer("an SFTP request got no answer"));
        let Ok(()) = self.asked.take(|answer| {
            if let AnswerChunk::Bytes(bytes) = answer {
                got = read_answer(bytes);
            }
            Ok::<_, std::convert::Infallible>(())
        });
        got
    }

    pub(super) fn done(&mut self, request: Request<'_>) -> Result<(), FileError> {
        self.ask(request, &[]).map(|_| ())
    }

    pub(super) fn handle(&mut self, request: Request<'_>) -> Result<Vec<u8>, FileError> {
        match self.ask(request, &[])? {
            FileResult::Handle(handle) => Ok(handle),
            _ => Err(FileError::Answer("an SFTP answer has no handle")),
        }
    }

    pub(super) fn attrs(&mut self, request: Request<'_>) -> Result<Attrs, FileError> {
        match self.ask(request, &[])? {
            FileResult::Attrs(attrs) => Ok(attrs),
            _ => Err(FileError::Answer("an SFTP answer has no attributes")),
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
    pub(super) fn names(&mut self, request: Request<'_>) -> Result<Vec<Vec<u8>>, FileError> {
        match self.ask(request, &[]) {
            Ok(FileResult::Names(names)) => Ok(names),
            Ok(_) => Err(FileError::Answer("an SFTP answer has no names")),
            Err(refused) if refused.code() == Some(StatusCode::EOF) => Ok(Vec::new()),
            Err(refused) => Err(refused),
        }
    }

    pub(super) fn is_dir(&mut self, path: &[u8]) -> bool {
        self.attrs(Request::Stat { path })
            .is_ok_and(|attrs| attrs.is_dir())
    }

    /// Output to the client.
    pub(super) fn out(&mut self) -> &mut AnswerQueue {
        &mut self.out
    }

    /// Bytes of output that wait.
    pub(super) fn waiting(&self) -> usize {
        self.out.len()
    }

    /// Records that an operation failed, here or at the client.
    pub(super) fn fail(&mut self) {
        self.failed = true;
    }

    /// The exit status.
    pub(super) fn status(&self) -> u32 {
        u32::from(self.failed)
    }

    /// Reads an open file into `slices`, up to the end of the file; returns the number of bytes.
    pub(super) fn read_to(
        &mut self,
        handle: &[u8],
        offset: u64,
        slices: &mut [IoSliceMut<'_>],
    ) -> Result<usize, FileError> {
        Ok(self.session.read_to(handle, offset, slices)?)
    }

    /// Closes all handles.
    pub(super) fn close_all(&mut self) {
        self.session.close_all();
    }

    /// True if a file or directory is open.
    pub(super) fn has_open(&self) -> bool {
        self.session.has_open()
    }

    /// Transfer counters so far.
    pub(super) fn moved(&self) -> TransferCounters {
        self.session.moved()
    }

    pub(super) fn acknowledge(&mut self) {
        self.out.bytes().push(0);
    }

    /// Reports an error to the client's user.
    pub(super) fn complain(&mut self, of: &[u8], why: impl fmt::Display) {
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

fn read_answer(bytes: &[u8]) -> Result<FileResult, FileError> {
    let body = bytes.get(4..).unwrap_or_default();
    let (_, response) =
        Response::decode(body).map_err(|_| FileError::Answer("an SFTP answer is malformed"))?;
    match response {
        Response::Status { code, .. } if code == StatusCode::OK => Ok(FileResult::Nothing),
        Response::Status { code, text } => {
            let text = String::from_utf8_lossy(text.message).into_owned();
            Err(FileError::Status(code, text))
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
