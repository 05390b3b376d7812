use rustix::fs::Stat;
use sftp::{Attrs, NameEntry, Names, RequestId, Response, StatusCode, StatusText};
use wire::{Field, Rest};

use crate::attributes::attributes;
use crate::error::Refused;

/// Where the answer to a request goes. What nobody says anything in is a success that has nothing
/// else to tell.
pub(crate) struct Reply<'o> {
    id: RequestId,
    out: &'o mut Vec<u8>,
    start: usize,
}

impl<'o> Reply<'o> {
    /// To request `id`, behind what is in `out`.
    pub(crate) fn new(id: RequestId, out: &'o mut Vec<u8>) -> Self {
        let start = out.len();
        Self { id, out, start }
    }

    /// Ends the answer as the request has ended.
    pub(crate) fn end(self, done: Result<(), Refused>) {
        let (code, words) = match &done {
            Ok(()) if self.out.len() > self.start => return,
            Ok(()) => (StatusCode::OK, "Success"),
            Err(refused) => (refused.code, &*refused.words),
        };
        self.out.truncate(self.start);
        let message = words.as_bytes();
        let text = StatusText { message };
        Response::Status { code, text }.encode(self.id, self.out);
    }

    /// HANDLE.
    pub(crate) fn handle(&mut self, handle: &[u8]) {
        Response::Handle { handle }.encode(self.id, self.out);
    }

    /// DATA, which `read` appends: they stay where they are read to.
    pub(crate) fn data<E>(
        &mut self,
        read: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        Response::encode_data(self.id, self.out, read)
    }

    /// ATTRS.
    pub(crate) fn attributes(&mut self, stat: &Stat) {
        let attrs = attributes(stat);
        Response::Attrs { attrs }.encode(self.id, self.out);
    }

    /// NAME with these entries.
    pub(crate) fn names(&mut self, names: Names<'_>) {
        Response::Name { names }.encode(self.id, self.out);
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
        Response::ExtendedReply { body }.encode(self.id, self.out);
    }
}
