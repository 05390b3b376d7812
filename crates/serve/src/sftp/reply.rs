use rustix::fs::Stat;
use rustix::io::Errno;
use sftp::{Attrs, NameEntry, Names, RequestId, Response, StatusCode, StatusText, Told};
use wire::{Field, PayloadBlock, RemainingBytes};

use super::answers::{AnswerQueue, DATA_HEADER};
use super::attributes::attributes;
use super::pooled_requests::{BlockingOutcome, BlockingRequestId, FinishedRequest};
use super::request_error::RequestError;

/// The answer to one request. If nothing is added, it becomes a STATUS of success.
pub(super) struct ReplyBuilder<'o> {
    id: RequestId,
    out: &'o mut AnswerQueue,
    start: usize,
    later: bool,
}

impl<'o> ReplyBuilder<'o> {
    /// Creates the reply to request `id`, behind the answers in `out`.
    pub(super) fn new(id: RequestId, out: &'o mut AnswerQueue) -> Self {
        let start = out.len();
        let later = false;
        Self {
            id,
            out,
            start,
            later,
        }
    }

    /// Leaves the answer to a later reply with the same ID, unless the request fails now.
    pub(super) fn later(&mut self) -> RequestId {
        self.later = true;
        self.id
    }

    /// Finishes the answer with the result of the request.
    pub(super) fn end(self, done: Result<(), RequestError>) {
        if done.is_ok() && (self.later || self.out.len() > self.start) {
            return;
        }
        let before = self.start - (self.out.len() - self.out.bytes().len());
        self.out.bytes().truncate(before);
        encode_status(self.id, &done, self.out.bytes());
    }

    /// Reserves the answer's place for a result of the blocking pool, of about `len` bytes.
    pub(super) fn awaits(&mut self, ticket: BlockingRequestId, len: usize) {
        self.out.await_one(ticket, self.id, len);
    }

    /// Answers HANDLE.
    pub(super) fn handle(&mut self, handle: &[u8]) {
        Response::Handle { handle }.encode(self.id, self.out.bytes());
    }

    /// Answers DATA, which `read` appends; for short data, because they are copied once more.
    pub(super) fn data<E>(
        &mut self,
        read: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        Response::encode_data(self.id, self.out.bytes(), read)
    }

    /// Allocates a block for DATA of up to `len` bytes.
    pub(super) fn block(&self, len: usize) -> PayloadBlock {
        self.out.block(len)
    }

    /// Answers DATA, of which `read` bytes are in `block`.
    pub(super) fn long_data(&mut self, mut block: PayloadBlock, read: usize) {
        head(self.id, &mut block, read);
        self.out.push(block);
    }

    /// Answers a STATUS of success with a warning, if there is one.
    pub(super) fn warning(&mut self, warning: Option<String>) {
        if let Some(text) = warning {
            let (code, message) = (StatusCode::OK, text.as_bytes());
            let text = StatusText { message };
            Response::Status { code, text }.encode(self.id, self.out.bytes());
        }
    }

    /// Answers get-file: `read` appends the data and returns true if they are complete.
    pub(super) fn file<E>(
        &mut self,
        attrs: &Attrs,
        read: impl FnOnce(&mut Vec<u8>) -> Result<bool, E>,
    ) -> Result<(), E> {
        Response::encode_file(self.id, attrs, self.out.bytes(), read)
    }

    /// Answers get-file-zstd for a file whose `len` bytes were compressed to `data`.
    pub(super) fn packed_file(&mut self, attrs: &Attrs, len: u32, data: &[u8]) {
        Response::encode_packed_file(self.id, attrs, len, data, self.out.bytes());
    }

    /// Appends an ATTRS answer.
    pub(super) fn attributes(&mut self, stat: &Stat, told: Told) {
        let attrs = attributes(stat, told);
        Response::Attrs { attrs }.encode(self.id, self.out.bytes());
    }

    /// Answers NAME with these entries.
    pub(super) fn names(&mut self, names: Names<'_>) {
        Response::Name { names }.encode(self.id, self.out.bytes());
    }

    /// Answers NAME with a single path.
    pub(super) fn path(&mut self, path: &[u8]) {
        self.names(Names(vec![NameEntry {
            filename: path,
            longname: path,
            attrs: Attrs::default(),
        }]));
    }

    /// Answers EXTENDED_REPLY.
    pub(super) fn extended<'f>(&mut self, body: &impl Field<'f>) {
        let mut bytes = Vec::new();
        body.write(&mut bytes);
        let body = RemainingBytes(&bytes);
        Response::ExtendedReply { body }.encode(self.id, self.out.bytes());
    }
}

/// Result of a request on the blocking pool, with its file handle.
pub(super) enum BlockingPoolResult {
    Read(Vec<u8>, Result<usize, Errno>),
    Synced(Vec<u8>, Result<(), Errno>),
    /// Result of copy-data, with a disk error if there was one.
    Copied(Vec<u8>, Option<Errno>),
}

/// Fills in the answer of a finished pool request and returns its result.
pub(super) fn settle(
    out: &mut AnswerQueue,
    arrived: FinishedRequest,
) -> Option<BlockingPoolResult> {
    let mut settled = None;
    let (ticket, outcome) = arrived.into_parts();
    out.settle(ticket, |id, bytes| {
        let done = match outcome {
            BlockingOutcome::Read(handle, mut block, read) => {
                settled = Some(BlockingPoolResult::Read(handle, read));
                match read {
                    Ok(0) => Err(RequestError::EndOfFile),
                    Ok(read) => {
                        head(id, &mut block, read);
                        return Some(block);
                    }
                    Err(e) => Err(e.into()),
                }
            }
            BlockingOutcome::Synced(handle, done) => {
                settled = Some(BlockingPoolResult::Synced(handle, done));
                done.map_err(RequestError::from)
            }
            BlockingOutcome::Copied(handle, done) => {
                let disk = done.as_ref().err().and_then(RequestError::of_disk);
                settled = Some(BlockingPoolResult::Copied(handle, disk));
                done
            }
            BlockingOutcome::Lost => Err(Errno::IO.into()),
        };
        encode_status(id, &done, bytes);
        None
    });
    settled
}

/// Puts the header of DATA before the data that were read.
fn head(id: RequestId, block: &mut PayloadBlock, read: usize) {
    block.truncate(read);
    let mut header = Vec::with_capacity(DATA_HEADER);
    Response::encode_data_header(id, read, &mut header);
    block.prepend(&header);
}

fn encode_status(id: RequestId, done: &Result<(), RequestError>, out: &mut Vec<u8>) {
    let (code, text) = match done {
        Ok(()) => (StatusCode::OK, "Success".into()),
        Err(refused) => (refused.code(), refused.text()),
    };
    let message = text.as_bytes();
    let text = StatusText { message };
    Response::Status { code, text }.encode(id, out);
}
