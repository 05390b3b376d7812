use rustix::fs::Stat;
use rustix::io::Errno;
use sftp::{Attrs, NameEntry, Names, RequestId, Response, StatusCode, StatusText, Told};
use wire::{Block, Field, Rest};

use crate::answers::{Answers, DATA_HEADER};
use crate::attributes::attributes;
use crate::blocking_pool::{Arrived, BlockingTicket, Outcome};
use crate::error::Refused;

/// Where the answer to a request goes. What nobody says anything in is a success that has nothing
/// else to tell.
pub(crate) struct Reply<'o> {
    id: RequestId,
    out: &'o mut Answers,
    start: usize,
    later: bool,
}

impl<'o> Reply<'o> {
    /// To request `id`, behind what is in `out`.
    pub(crate) fn new(id: RequestId, out: &'o mut Answers) -> Self {
        let start = out.len();
        let later = false;
        Self {
            id,
            out,
            start,
            later,
        }
    }

    /// Unless the request has failed, another reply to the same id ends it.
    pub(crate) fn later(&mut self) -> RequestId {
        self.later = true;
        self.id
    }

    /// Ends the answer as the request has ended.
    pub(crate) fn end(self, done: Result<(), Refused>) {
        if done.is_ok() && (self.later || self.out.len() > self.start) {
            return;
        }
        let before = self.start - (self.out.len() - self.out.bytes().len());
        self.out.bytes().truncate(before);
        encode_status(self.id, &done, self.out.bytes());
    }

    /// It comes later, as what came of the request with this number; it has about `len` bytes.
    pub(crate) fn awaits(&mut self, ticket: BlockingTicket, len: usize) {
        self.out.await_one(ticket, self.id, len);
    }

    /// HANDLE.
    pub(crate) fn handle(&mut self, handle: &[u8]) {
        Response::Handle { handle }.encode(self.id, self.out.bytes());
    }

    /// DATA, which `read` appends. Little of it, that is: it is copied once more.
    pub(crate) fn data<E>(
        &mut self,
        read: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        Response::encode_data(self.id, self.out.bytes(), read)
    }

    /// Where DATA of up to `len` bytes leave from.
    pub(crate) fn block(&self, len: usize) -> Block {
        self.out.block(len)
    }

    /// DATA, of which `read` bytes were read to `block`.
    pub(crate) fn long_data(&mut self, mut block: Block, read: usize) {
        head(self.id, &mut block, read);
        self.out.push(block);
    }

    /// STATUS of a success that has something to say.
    pub(crate) fn status(&mut self, code: StatusCode, text: StatusText<'_>) {
        Response::Status { code, text }.encode(self.id, self.out.bytes());
    }

    /// What get-file answers: `read` appends the data, and says whether they are all there is.
    pub(crate) fn file<E>(
        &mut self,
        attrs: &Attrs,
        read: impl FnOnce(&mut Vec<u8>) -> Result<bool, E>,
    ) -> Result<(), E> {
        Response::encode_file(self.id, attrs, self.out.bytes(), read)
    }

    /// What get-file-zstd answers of a file whose `len` bytes were packed to `data`.
    pub(crate) fn packed_file(&mut self, attrs: &Attrs, len: u32, data: &[u8]) {
        Response::encode_packed_file(self.id, attrs, len, data, self.out.bytes());
    }

    /// ATTRS.
    pub(crate) fn attributes(&mut self, stat: &Stat, told: Told) {
        let attrs = attributes(stat, told);
        Response::Attrs { attrs }.encode(self.id, self.out.bytes());
    }

    /// NAME with these entries.
    pub(crate) fn names(&mut self, names: Names<'_>) {
        Response::Name { names }.encode(self.id, self.out.bytes());
    }

    /// NAME with one path and nothing else.
    pub(crate) fn path(&mut self, path: &[u8]) {
        self.names(Names(vec![NameEntry {
            filename: path,
            longname: path,
            attrs: Attrs::default(),
        }]));
    }

    /// EXTENDED_REPLY.
    pub(crate) fn extended<'f>(&mut self, body: &impl Field<'f>) {
        let mut bytes = Vec::new();
        body.write(&mut bytes);
        let body = Rest(&bytes);
        Response::ExtendedReply { body }.encode(self.id, self.out.bytes());
    }
}

/// What was carried out aside, of the file with this handle.
pub(crate) enum Settled {
    Read(Vec<u8>, Result<usize, Errno>),
    Synced(Vec<u8>, Result<(), Errno>),
    /// With what a disk has said.
    Copied(Vec<u8>, Option<Errno>),
}

/// Settles the answer to it; returns what it was.
pub(crate) fn settle(out: &mut Answers, arrived: Arrived) -> Option<Settled> {
    let mut settled = None;
    out.settle(arrived.ticket, |id, bytes| {
        let done = match arrived.outcome {
            Outcome::Read(handle, mut block, read) => {
                settled = Some(Settled::Read(handle, read));
                match read {
                    Ok(0) => Err(Refused::end_of_file()),
                    Ok(read) => {
                        head(id, &mut block, read);
                        return Some(block);
                    }
                    Err(e) => Err(e.into()),
                }
            }
            Outcome::Synced(handle, done) => {
                settled = Some(Settled::Synced(handle, done));
                done.map_err(Refused::from)
            }
            Outcome::Copied(handle, done) => {
                let disk = done.as_ref().err().and_then(|refused| refused.disk);
                settled = Some(Settled::Copied(handle, disk));
                done
            }
            Outcome::Lost => Err(Errno::IO.into()),
        };
        encode_status(id, &done, bytes);
        None
    });
    settled
}

/// Puts the header of DATA before what was read.
fn head(id: RequestId, block: &mut Block, read: usize) {
    block.truncate(read);
    let mut header = Vec::with_capacity(DATA_HEADER);
    Response::encode_data_header(id, read, &mut header);
    block.prepend(&header);
}

fn encode_status(id: RequestId, done: &Result<(), Refused>, out: &mut Vec<u8>) {
    let (code, words) = match done {
        Ok(()) => (StatusCode::OK, "Success"),
        Err(refused) => (refused.code, &*refused.words),
    };
    let message = words.as_bytes();
    let text = StatusText { message };
    Response::Status { code, text }.encode(id, out);
}
