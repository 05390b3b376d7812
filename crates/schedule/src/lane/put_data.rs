//! Moves the data of an upload from the source to the open file.

use sftp::{Attrs, OpenFlags, Request, temp_name};
use wire::Block;

use super::core::{LaneContext, RequestTag};
use super::put::{FIRST, Put, UploadPart, UploadTarget};
use crate::{DiskRequest, LaneEvent};

impl Put {
    /// Sends OPEN when the job's turn has come.
    pub(super) fn open(&mut self, core: &mut LaneContext) {
        let a = &self.attempt;
        if self.given_up() || a.opening || a.opened || a.first.is_none() {
            return;
        }
        let (path, flags) = match self.target {
            _ if self.probing => (self.path.clone(), OpenFlags::WRITE),
            _ if matches!(self.part, UploadPart::Range { .. } | UploadPart::Sync) => {
                (self.path.clone(), OpenFlags::WRITE)
            }
            _ if matches!(self.part, UploadPart::Finish { .. }) => {
                let temp = self.attempt.temp.clone();
                (temp.unwrap_or_default(), OpenFlags::WRITE)
            }
            UploadTarget::Direct(flags) => (self.path.clone(), flags),
            _ => {
                let place = self.options.temporary_place(&self.path);
                let temp = match &self.options.keep {
                    Some(keep) => keep.temporary(&place, self.tries),
                    None => temp_name(&place, &mut *core.config.random),
                };
                self.attempt.temp = Some(temp.clone());
                let last = match self.unexclusive || core.refusals.exclusive {
                    true => OpenFlags::TRUNC,
                    false => OpenFlags::EXCL,
                };
                (temp, OpenFlags::WRITE | OpenFlags::CREAT | last)
            }
        };
        // As scp sends it (sftp-client.c, sftp_upload): the server's umask applies.
        let mode = self.mode_to_open_with(core);
        self.attempt.mode = mode;
        self.release_prefetch(core);
        self.attempt.opening = true;
        self.attempt.handle = core.opens(self.id);
        let open = Request::Open {
            path: &path,
            flags,
            attrs: Attrs::with_permissions(mode),
        };
        self.send(core, RequestTag::Open, &open);
        match self.probing {
            true => self.close(core),
            false => self.begin(core),
        }
    }

    /// Writes the first block once the handle is known or predicted.
    pub(super) fn begin(&mut self, core: &mut LaneContext) {
        if self.attempt.handle.is_none() {
            return;
        }
        if let Some(first) = self.attempt.first.take() {
            let packed = self.attempt.packed.take();
            self.write(core, 0, first, packed);
        }
        if self.attempt.end.is_none() {
            core.stream(self.id);
        }
        self.finish_data(core);
    }

    /// Requests the next piece of the source; false if nothing can be requested now.
    pub(super) fn stream(&mut self, core: &mut LaneContext) -> bool {
        if self.given_up() {
            return false;
        }
        let limit = self.limit();
        let range = matches!(self.part, UploadPart::Range { .. });
        let a = &mut self.attempt;
        if a.handle.is_none() || a.end.is_some() {
            return false;
        }
        // While OPEN may still be refused (the target may be a directory, or a directory may be
        // missing), data behind it could be in vain and would have to drain before anything else
        // can leave: 4 MiB of them kept a lossy path busy for half a minute. The first round trip
        // takes no more than this anyway.
        let risky = a.opening && !core.opens_succeed && !range;
        if risky && a.next_read > 0 {
            return false;
        }
        let size = a.meta.attributes.size.unwrap_or(0);
        // Beyond the size from fstat, and in files that are not regular, one read at a time finds
        // out if there is more.
        if !a.reads.is_empty() && (a.meta.stream || a.next_read > size) {
            return false;
        }
        let offset = a.next_read;
        let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(offset));
        let most = if risky { FIRST as u64 } else { u64::MAX };
        let len = u64::from(core.server.write).min(left).min(most);
        let packs = core.packs(len.min(size.saturating_sub(offset)));
        let len = match packs {
            true => len,
            false => core.longer(offset, len, left.min(most)),
        };
        a.next_read += len;
        if left == len {
            a.end = limit;
        }
        self.ask(core, offset, len, packs);
        true
    }

    /// Requests the missing rest of a piece.
    fn read(&mut self, core: &mut LaneContext, offset: u64, len: u64) {
        let size = self.attempt.meta.attributes.size.unwrap_or(0);
        let short = len <= core.server.write.into();
        let packs = short && core.packs(len.min(size.saturating_sub(offset)));
        self.ask(core, offset, len, packs);
    }

    fn ask(&mut self, core: &mut LaneContext, offset: u64, len: u64, packs: bool) {
        let Some(handle) = &self.attempt.handle else {
            return;
        };
        let handle = handle.as_bytes().len();
        let block = match packs {
            true => core.block_to_pack(handle, len as usize),
            false => core.block(handle, len as usize),
        };
        self.attempt.reads.insert(offset, len);
        core.reading += len;
        let (job, len) = (self.id, len as usize);
        let request = match packs {
            true => DiskRequest::ReadPacked {
                job,
                offset,
                len,
                block,
            },
            false => DiskRequest::Read {
                job,
                offset,
                len,
                block,
            },
        };
        self.ask_disk(core, request);
    }

    /// Returns true if holes may be skipped: unwritten parts of a new regular file read as zeros.
    pub(super) fn may_skip(&self, core: &LaneContext) -> bool {
        let new = match self.target {
            UploadTarget::Direct(flags) => flags.contains(OpenFlags::TRUNC),
            UploadTarget::Unknown | UploadTarget::New | UploadTarget::Existing(_) => true,
        };
        // A server may accept data only in order, as object stores do.
        self.options.sparse && new && core.server.in_order
    }

    /// Handles a hole of `len` bytes at `offset` of the source.
    pub(super) fn on_hole(&mut self, core: &mut LaneContext, offset: u64, len: u64) {
        let Some(asked) = self.attempt.reads.remove(&offset) else {
            return;
        };
        core.reading = core.reading.saturating_sub(asked);
        if self.given_up() {
            return;
        }
        let behind = offset.saturating_add(len);
        self.skip(core, offset, asked.min(len));
        if behind < offset + asked {
            self.read(core, behind, offset + asked - behind);
        }
        let limit = self.limit();
        let to = behind.min(limit.unwrap_or(u64::MAX));
        let a = &mut self.attempt;
        if to > a.next_read && a.end.is_none() {
            let from = std::mem::replace(&mut a.next_read, to);
            if limit == Some(to) {
                a.end = limit;
            }
            self.skip(core, from, to - from);
        }
        if self.attempt.end.is_none() {
            core.stream(self.id);
        }
        self.finish_data(core);
    }

    fn skip(&mut self, core: &mut LaneContext, offset: u64, len: u64) {
        self.attempt.skipped = true;
        if self.is_piece() {
            core.event(LaneEvent::Written(self.id, offset, len));
        }
        self.progress(core, len);
    }

    /// Sends a WRITE; `packed` is the decompressed size of `block`, if it is compressed.
    fn write(&mut self, core: &mut LaneContext, offset: u64, block: Block, packed: Option<u64>) {
        let Some(handle) = self.attempt.handle.clone() else {
            return;
        };
        if block.is_empty() {
            return;
        }
        let len = packed.unwrap_or(block.len() as u64);
        self.attempt.written_to = self.attempt.written_to.max(offset + len);
        self.attempt.next_write = offset + len;
        self.attempt.writes += 1;
        self.pending += 1;
        match packed {
            Some(len) => core.send_write_packed(self.id, &handle, offset, len, block),
            None => core.send_write(self.id, &handle, offset, block),
        }
    }

    /// Sends attributes, fsync and CLOSE once all data have left.
    pub(super) fn finish_data(&mut self, core: &mut LaneContext) {
        let Some(end) = self.attempt.end else { return };
        let Some(handle) = self.attempt.handle.clone() else {
            return;
        };
        if !self.attempt.reads.is_empty() || self.attempt.closing || self.given_up() {
            return;
        }
        // Data beyond the end of a file that shrank.
        self.drop_held(core);
        let attrs = self.final_attrs(core, end);
        // pkg/sftp handles several requests at a time, and a WRITE that is executed after the times
        // are set changes them again. OpenSSH handles requests in order.
        let in_order = core.server.in_order;
        let sets = !attrs.is_empty() || !self.options.beyond.is_empty();
        if !in_order && self.attempt.writes > 0 && (sets || self.options.fsync) {
            return;
        }
        let handle = handle.as_bytes();
        self.set_metadata(core, handle, attrs);
        self.ask_owner(core, handle);
        let syncs = self.sets_attributes() || matches!(self.part, UploadPart::Sync);
        if self.options.fsync && core.server.fsync && syncs {
            self.send(core, RequestTag::Sync, &Request::Fsync { handle });
        }
        if matches!(self.part, UploadPart::Sync) {
            self.send(core, RequestTag::Fstat, &Request::Fstat { handle });
        }
        self.close(core);
        self.tell_end(core, end);
        // For a file in parts, only the scheduler knows its end.
        if matches!(self.part, UploadPart::Whole { .. }) {
            self.warn_if_shrunk(core, end);
        }
    }

    pub(super) fn warn_if_shrunk(&self, core: &mut LaneContext, end: u64) {
        let meta = &self.attempt.meta;
        if end < meta.attributes.size.unwrap_or(0) && !meta.stream {
            self.warn(core, "the file was truncated while it was read");
        }
    }

    fn final_attrs(&self, core: &LaneContext, end: u64) -> Attrs {
        if !self.sets_attributes() {
            return Attrs::default();
        }
        let source = self.attempt.meta.attributes;
        let cut = match &self.part {
            UploadPart::Finish { cut, .. } => *cut,
            // A hole at the end lies behind all written data.
            _ => (self.attempt.written_to > end || self.attempt.skipped).then_some(end),
        };
        let mut attrs = Attrs {
            // Bytes read beyond the end before the file shrank must not stay.
            size: cut,
            ..Attrs::default()
        };
        if self.options.preserve {
            attrs.permissions = source.mode.map(|m| self.options.kept_mode(m));
            attrs.times = source.times;
            attrs.nanoseconds = source.nanoseconds;
        } else if let UploadTarget::Existing(was) = self.target {
            attrs.permissions = was.mode.filter(|_| !core.refusals.attributes);
        }
        attrs
    }

    /// Sends CLOSE and releases the source.
    pub(super) fn close(&mut self, core: &mut LaneContext) {
        let handle = self.attempt.handle.clone();
        if let (Some(handle), false) = (handle, self.attempt.closing) {
            self.attempt.closing = true;
            let handle = handle.as_bytes();
            self.send(core, RequestTag::Close, &Request::Close { handle });
            core.closes(self.id);
        }
        self.close_source(core);
    }

    pub(super) fn close_source(&mut self, core: &mut LaneContext) {
        if std::mem::take(&mut self.attempt.source_open) {
            self.ask_disk(core, DiskRequest::CloseSource { job: self.id });
        }
    }

    pub(super) fn on_read(
        &mut self,
        core: &mut LaneContext,
        offset: u64,
        block: Block,
        packed: Option<u64>,
    ) {
        let Some(asked) = self.attempt.reads.remove(&offset) else {
            return;
        };
        let len = packed.unwrap_or(block.len() as u64);
        core.reading = core.reading.saturating_sub(asked);
        if self.given_up() {
            return;
        }
        let end = offset + len;
        let size = self.attempt.meta.attributes.size.unwrap_or(0);
        if len < asked && len > 0 && end < size {
            // A hole follows, or the source has shrunk.
            self.read(core, end, asked - len);
        } else if len < asked {
            self.attempt.end = Some(self.attempt.end.map_or(end, |e| e.min(end)));
        }
        if self.attempt.end.is_none_or(|e| offset < e) {
            self.write_in_turn(core, offset, block, packed);
        }
        if self.attempt.end.is_none() {
            core.stream(self.id);
        }
        self.finish_data(core);
    }

    /// Sends a WRITE, or holds it back until all data before it were written: an unknown server may
    /// accept data only in order, and several threads read the source.
    fn write_in_turn(
        &mut self,
        core: &mut LaneContext,
        offset: u64,
        block: Block,
        packed: Option<u64>,
    ) {
        if core.server.in_order || block.is_empty() {
            return self.write(core, offset, block, packed);
        }
        core.reading += block.len() as u64;
        self.attempt.held.insert(offset, (block, packed));
        while let Some(entry) = self.attempt.held.first_entry()
            && *entry.key() <= self.attempt.next_write
        {
            let (offset, (block, packed)) = entry.remove_entry();
            core.reading = core.reading.saturating_sub(block.len() as u64);
            self.write(core, offset, block, packed);
        }
    }

    fn drop_held(&mut self, core: &mut LaneContext) {
        for (block, _) in std::mem::take(&mut self.attempt.held).into_values() {
            core.reading = core.reading.saturating_sub(block.len() as u64);
        }
    }

    /// Forgets reads that have failed.
    pub(super) fn forget_reads(&mut self, core: &mut LaneContext) {
        self.drop_held(core);
        let asked: u64 = self.attempt.reads.values().sum();
        core.reading = core.reading.saturating_sub(asked);
        self.attempt.reads.clear();
    }
}
