use std::io::IoSliceMut;

use rustix::fs::Stat;
use sftp::{Attrs, NameEntry, Names, RequestId, Response, StatusCode, StatusText, Told};
use wire::{Field, Rest};

use crate::answers::{Answers, DATA_HEADER};
use crate::attributes::attributes;
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
        let (code, words) = match &done {
            Ok(()) if self.later || self.out.len() > self.start => return,
            Ok(()) => (StatusCode::OK, "Success"),
            Err(refused) => (refused.code, &*refused.words),
        };
        let before = self.start - (self.out.len() - self.out.bytes().len());
        self.out.bytes().truncate(before);
        let message = words.as_bytes();
        let text = StatusText { message };
        Response::Status { code, text }.encode(self.id, self.out.bytes());
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

    /// DATA of up to `len` bytes, which `read` reads to where they leave from; it tells how many
    /// there are.
    pub(crate) fn long_data<E>(
        &mut self,
        len: usize,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let mut block = self.out.block(len);
        let slices = block.grow(len).into_iter();
        let mut slices: Vec<IoSliceMut<'_>> = slices.map(IoSliceMut::new).collect();
        let n = read(&mut slices)?;
        drop(slices);
        block.truncate(n);
        let mut header = Vec::with_capacity(DATA_HEADER);
        Response::encode_data_header(self.id, n, &mut header);
        block.prepend(&header);
        self.out.push(block);
        Ok(())
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
