//! Moves the data of an upload from the source to the open file.

use sftp::{Attrs, Reply};
use wire::PayloadBlock;

use super::closing::UploadCloseStage;
use super::ending::UploadAttemptAbort;
use super::new_file::WrittenFileInfo;
use super::owner::ask_owner;
use super::part::UploadPart;
use super::source::UploadSource;
use super::target::ReplacedAttributes;
use super::{FIRST, LaneContext, UploadState};
use crate::lane::remote_file::RemoteFile;
use crate::lane::request_purpose::RequestPurpose;
use crate::lane::server::ServerCapabilities;
use crate::{DiskReply, DiskRequest, LaneEvent};
use sftp::Request;

/// Stage in which the file is open, or OPEN was sent, and data move.
#[derive(Debug)]
pub(super) struct UploadSendStage {
    remote: RemoteFile,
    new: WrittenFileInfo,
    source: UploadSource,
    /// First block, until the handle is known, and its size before compression if it is
    /// compressed.
    first: Option<(PayloadBlock, Option<u64>)>,
    /// WRITEs without an answer.
    writes: usize,
    /// First offset that was not written yet.
    next_write: u64,
    written_to: u64,
    /// Holes were skipped.
    skipped: bool,
}

impl UploadSendStage {
    pub(super) fn new(
        remote: RemoteFile,
        new: WrittenFileInfo,
        source: UploadSource,
        first: (PayloadBlock, Option<u64>),
    ) -> Self {
        // The first block has been read already, but not written.
        let read = first.1.unwrap_or(first.0.len() as u64);
        Self {
            next_write: source.next_read().saturating_sub(read),
            remote,
            new,
            source,
            first: Some(first),
            writes: 0,
            written_to: 0,
            skipped: false,
        }
    }

    /// Writes the first block once the handle is known or predicted; false before.
    pub(super) fn begin(&mut self, up: &mut UploadState, core: &mut LaneContext) -> bool {
        if self.remote.handle().is_none() {
            return false;
        }
        if let Some((first, packed)) = self.first.take() {
            self.write(up, core, 0, first, packed);
        }
        if self.source.end().is_none() {
            core.stream(up.job());
        }
        true
    }

    /// Requests the next piece of the source; false if nothing can be requested now.
    pub(super) fn stream(&mut self, up: &mut UploadState, core: &mut LaneContext) -> bool {
        let limit = up.part.limit();
        let source = &self.source;
        if self.remote.handle().is_none() || source.end().is_some() {
            return false;
        }
        let offset = source.next_read();
        // While OPEN may still be refused (the target may be a directory, or a directory may be
        // missing), data behind it could be in vain and would have to drain before anything else
        // can leave: 4 MiB of them kept a lossy path busy for half a minute. The first round trip
        // takes no more than this anyway.
        let risky = self.remote.is_opening() && !core.opens_succeed() && !up.part.is_range();
        if risky && offset > 0 {
            return false;
        }
        // Beyond the size from fstat, and in files that are not regular, one read at a time finds
        // out if there is more.
        if !source.is_idle() && (source.meta().stream || offset > source.size()) {
            return false;
        }
        let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(offset));
        let most = if risky { FIRST as u64 } else { u64::MAX };
        let len = u64::from(core.server().write_length()).min(left).min(most);
        let packs = core.packs(len.min(source.size().saturating_sub(offset)));
        let len = match packs {
            true => len,
            false => core.longer(offset, len, left.min(most)),
        };
        self.source.skip_to(offset + len, limit);
        self.ask(up, core, offset, len, packs);
        true
    }

    /// Requests the missing rest of a piece.
    fn read(&mut self, up: &mut UploadState, core: &mut LaneContext, offset: u64, len: u64) {
        let short = len <= core.server().write_length().into();
        let size = self.source.size();
        let packs = short && core.packs(len.min(size.saturating_sub(offset)));
        self.ask(up, core, offset, len, packs);
    }

    fn ask(
        &mut self,
        up: &mut UploadState,
        core: &mut LaneContext,
        offset: u64,
        len: u64,
        packs: bool,
    ) {
        let Some(handle) = self.remote.handle() else {
            return;
        };
        let handle = handle.as_bytes().len();
        let block = match packs {
            true => core.block_to_pack(handle, len as usize),
            false => core.block(handle, len as usize),
        };
        self.source.asked(core, offset, len);
        let (job, len) = (up.job(), len as usize);
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
        up.requests.ask_disk(core, request);
    }

    /// Handles a reply of the disk side; true if all data may have left.
    pub(super) fn on_disk(
        &mut self,
        up: &mut UploadState,
        core: &mut LaneContext,
        reply: DiskReply,
    ) -> bool {
        match reply {
            DiskReply::Read { offset, block, .. } => self.on_read(up, core, offset, block, None),
            DiskReply::Packed {
                offset,
                len,
                smaller,
                block,
                ..
            } => {
                let became = if smaller { block.len() as u64 } else { len };
                core.packing_mut().packed(len, became);
                self.on_read(up, core, offset, block, smaller.then_some(len))
            }
            DiskReply::Hole { offset, len, .. } => self.on_hole(up, core, offset, len),
            _ => false,
        }
    }

    fn on_read(
        &mut self,
        up: &mut UploadState,
        core: &mut LaneContext,
        offset: u64,
        block: PayloadBlock,
        packed: Option<u64>,
    ) -> bool {
        let Some(asked) = self.source.answered(core, offset) else {
            return false;
        };
        let len = packed.unwrap_or(block.len() as u64);
        let end = offset + len;
        if len < asked && len > 0 && end < self.source.size() {
            // A hole follows, or the source has shrunk.
            self.read(up, core, end, asked - len);
        } else if len < asked {
            self.source.ends(end);
        }
        if self.source.end().is_none_or(|e| offset < e) {
            self.write_in_turn(up, core, offset, block, packed);
        }
        if self.source.end().is_none() {
            core.stream(up.job());
        }
        true
    }

    /// Handles a hole of `len` bytes at `offset` of the source.
    fn on_hole(
        &mut self,
        up: &mut UploadState,
        core: &mut LaneContext,
        offset: u64,
        len: u64,
    ) -> bool {
        let Some(asked) = self.source.answered(core, offset) else {
            return false;
        };
        let behind = offset.saturating_add(len);
        self.skip(up, core, offset, asked.min(len));
        if behind < offset + asked {
            self.read(up, core, behind, offset + asked - behind);
        }
        let limit = up.part.limit();
        let to = behind.min(limit.unwrap_or(u64::MAX));
        if to > self.source.next_read() && self.source.end().is_none() {
            let from = self.source.skip_to(to, limit);
            self.skip(up, core, from, to - from);
        }
        if self.source.end().is_none() {
            core.stream(up.job());
        }
        true
    }

    fn skip(&mut self, up: &mut UploadState, core: &mut LaneContext, offset: u64, len: u64) {
        self.skipped = true;
        if up.part.is_piece() {
            core.event(LaneEvent::Written(up.job(), offset, len));
        }
        up.confirm(core, len);
    }

    /// Sends a WRITE, or holds it back until all data before it were written: an unknown server may
    /// accept data only in order, and several threads read the source.
    fn write_in_turn(
        &mut self,
        up: &mut UploadState,
        core: &mut LaneContext,
        offset: u64,
        block: PayloadBlock,
        packed: Option<u64>,
    ) {
        if core.in_order() || block.is_empty() {
            return self.write(up, core, offset, block, packed);
        }
        self.source.hold(core, offset, block, packed);
        while let Some((offset, block, packed)) = self.source.next_held(core, self.next_write) {
            self.write(up, core, offset, block, packed);
        }
    }

    /// Sends a WRITE; `packed` is the decompressed size of `block`, if it is compressed.
    fn write(
        &mut self,
        up: &mut UploadState,
        core: &mut LaneContext,
        offset: u64,
        block: PayloadBlock,
        packed: Option<u64>,
    ) {
        let Some(handle) = self.remote.handle().filter(|_| !block.is_empty()) else {
            return;
        };
        let len = packed.unwrap_or(block.len() as u64);
        self.written_to = self.written_to.max(offset + len);
        self.next_write = offset + len;
        self.writes += 1;
        up.requests.count();
        let job = up.job();
        core.pipeline_mut()
            .write(job, handle, offset, block, packed);
    }

    /// Handles the answer to a request; the flag tells that no WRITE is in flight any more.
    pub(super) fn on_reply(
        &mut self,
        up: &mut UploadState,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: &Reply,
    ) -> (Option<UploadAttemptAbort>, bool) {
        let RequestPurpose::Write { offset, len } = what else {
            return (None, false);
        };
        self.writes = self.writes.saturating_sub(1);
        let ending = up.write_answered(core, (offset, len), reply);
        (ending, self.writes == 0)
    }

    /// Returns true if all data have left, and what follows may be sent as well.
    pub(super) fn is_sent(&mut self, up: &UploadState, core: &mut LaneContext) -> bool {
        let Some(end) = self.source.end() else {
            return false;
        };
        if self.remote.handle().is_none() || !self.source.is_idle() {
            return false;
        }
        // Data beyond the end of a file that shrank.
        self.source.drop_held(core);
        // pkg/sftp handles several requests at a time, and a WRITE that is executed after the times
        // are set changes them again. OpenSSH handles requests in order.
        let sets = !self.final_attrs(up, core, end).is_empty() || !up.options.beyond.is_empty();
        core.in_order() || self.writes == 0 || !(sets || up.options.fsync)
    }

    /// Sends attributes, fsync and CLOSE.
    pub(super) fn close(
        mut self,
        up: &mut UploadState,
        core: &mut LaneContext,
    ) -> UploadCloseStage {
        let end = self.source.end().unwrap_or(0);
        if let Some(handle) = self.remote.handle().cloned() {
            let handle = handle.as_bytes();
            let attrs = self.final_attrs(up, core, end);
            self.new.set_metadata(up, core, handle, attrs);
            ask_owner(up, core, handle);
            let syncs = up.part.sets_attributes() || up.part.is_sync();
            if up.options.fsync && core.can(ServerCapabilities::FSYNC) && syncs {
                let request = Request::Fsync { handle };
                up.requests.send(core, RequestPurpose::Sync, &request);
            }
            if up.part.is_sync() {
                let request = Request::Fstat { handle };
                up.requests.send(core, RequestPurpose::Fstat, &request);
            }
        }
        self.remote.close(&mut up.requests, core);
        self.source.close(&mut up.requests, core);
        // Other jobs read on from where this part ends.
        if up.part.is_piece() && up.part.limit().is_none_or(|limit| end < limit) {
            core.event(LaneEvent::Ended(up.job(), end));
        }
        // For a file in parts, only the scheduler knows its end.
        if up.part.is_whole() {
            up.warn_if_shrunk(core, &self.source, end);
        }
        UploadCloseStage::new(self.remote, self.new, self.writes)
    }

    fn final_attrs(&self, up: &UploadState, core: &LaneContext, end: u64) -> Attrs {
        if !up.part.sets_attributes() {
            return Attrs::default();
        }
        let source = self.source.meta().attributes;
        let cut = match &up.part {
            UploadPart::Finish { cut, .. } => *cut,
            // A hole at the end lies behind all written data.
            _ => (self.written_to > end || self.skipped).then_some(end),
        };
        let mut attrs = Attrs {
            // Bytes read beyond the end before the file shrank must not stay.
            size: cut,
            ..Attrs::default()
        };
        if up.options.preserve {
            attrs.permissions = source.mode.map(|m| up.options.kept_mode(m));
            attrs.times = source.times;
            attrs.nanoseconds = source.nanoseconds;
        } else if let Some(was) = up.target.replaced() {
            attrs.permissions =
                ReplacedAttributes::mode(was).filter(|_| !core.refusals().attributes);
        }
        attrs
    }

    /// Reports the temporary to other jobs once it exists.
    pub(super) fn announce(&mut self, up: &mut UploadState, core: &mut LaneContext) {
        if self.remote.is_open() {
            self.new.announce(up, core);
        }
    }

    /// Returns true if the end of the source, or of the part, is known.
    pub(super) fn has_end(&self) -> bool {
        self.source.end().is_some()
    }

    pub(super) fn holds_source(&self) -> bool {
        self.source.is_open()
    }

    pub(super) fn remote_mut(&mut self) -> &mut RemoteFile {
        &mut self.remote
    }

    pub(super) fn new_file(&self) -> &WrittenFileInfo {
        &self.new
    }

    pub(super) fn new_file_mut(&mut self) -> &mut WrittenFileInfo {
        &mut self.new
    }

    /// Gives the attempt up: returns what must be cleaned up.
    pub(super) fn give_up(self) -> (RemoteFile, WrittenFileInfo, UploadSource) {
        (self.remote, self.new, self.source)
    }
}
