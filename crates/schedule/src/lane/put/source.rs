use std::collections::BTreeMap;

use wire::PayloadBlock;

use super::{JobRequests, LaneContext};
use crate::{Attributes, DiskRequest, SourceFileMeta};

/// The source of an upload as the disk side reads it.
#[derive(Debug, Default)]
pub(super) struct UploadSource {
    meta: SourceFileMeta,
    /// The disk side holds it open.
    open: bool,
    next_read: u64,
    end: Option<u64>,
    /// Length of each read without an answer, by offset.
    reads: BTreeMap<u64, u64>,
    /// Data read out of order, for a server that may accept data only in order, with their
    /// decompressed size.
    held: BTreeMap<u64, (PayloadBlock, Option<u64>)>,
}

impl UploadSource {
    /// Creates a source of which the first `read` bytes, of one piece, were read; all if not
    /// `open`.
    pub(super) fn opened(meta: SourceFileMeta, read: u64, open: bool) -> Self {
        Self {
            meta,
            open,
            next_read: read,
            end: (!open).then_some(read),
            ..Self::default()
        }
    }

    /// Creates a source of which another job has read everything, up to `end`.
    pub(super) fn complete(attributes: Attributes, end: u64) -> Self {
        let meta = SourceFileMeta {
            attributes,
            stream: false,
        };
        Self::opened(meta, end, false)
    }

    pub(super) fn meta(&self) -> &SourceFileMeta {
        &self.meta
    }

    pub(super) fn size(&self) -> u64 {
        self.meta.attributes.size.unwrap_or(0)
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Returns the first offset that was not asked for.
    pub(super) fn next_read(&self) -> u64 {
        self.next_read
    }

    /// Returns the end of the source, or of the part, once it is known.
    pub(super) fn end(&self) -> Option<u64> {
        self.end
    }

    /// Records that the source, or the part, ends at `end` at the latest.
    pub(super) fn ends(&mut self, end: u64) {
        self.end = Some(self.end.map_or(end, |known| known.min(end)));
    }

    /// Goes on reading at `offset`; returns the first skipped offset. The part may end there.
    pub(super) fn skip_to(&mut self, offset: u64, limit: Option<u64>) -> u64 {
        let from = std::mem::replace(&mut self.next_read, offset);
        if limit == Some(offset) {
            self.end = limit;
        }
        from
    }

    /// Returns true if no read is in progress.
    pub(super) fn is_idle(&self) -> bool {
        self.reads.is_empty()
    }

    /// Counts a read.
    pub(super) fn asked(&mut self, core: &mut LaneContext, offset: u64, len: u64) {
        self.reads.insert(offset, len);
        core.begin_reading(len);
    }

    /// Ends the read at `offset`; returns its length.
    pub(super) fn answered(&mut self, core: &mut LaneContext, offset: u64) -> Option<u64> {
        let asked = self.reads.remove(&offset)?;
        core.end_reading(asked);
        Some(asked)
    }

    /// Holds data back until everything before them was written.
    pub(super) fn hold(
        &mut self,
        core: &mut LaneContext,
        offset: u64,
        block: PayloadBlock,
        packed: Option<u64>,
    ) {
        core.begin_reading(block.len() as u64);
        self.held.insert(offset, (block, packed));
    }

    /// Returns held data that start at `next` or before.
    pub(super) fn next_held(
        &mut self,
        core: &mut LaneContext,
        next: u64,
    ) -> Option<(u64, PayloadBlock, Option<u64>)> {
        let entry = self.held.first_entry().filter(|held| *held.key() <= next)?;
        let (offset, (block, packed)) = entry.remove_entry();
        core.end_reading(block.len() as u64);
        Some((offset, block, packed))
    }

    /// Drops data that are held back.
    pub(super) fn drop_held(&mut self, core: &mut LaneContext) {
        for (block, _) in std::mem::take(&mut self.held).into_values() {
            core.end_reading(block.len() as u64);
        }
    }

    /// Forgets reads that have failed.
    pub(super) fn forget(&mut self, core: &mut LaneContext) {
        self.drop_held(core);
        let asked: u64 = self.reads.values().sum();
        core.end_reading(asked);
        self.reads.clear();
    }

    /// Makes the disk side close the source.
    pub(super) fn close(&mut self, requests: &mut JobRequests, core: &mut LaneContext) {
        if std::mem::take(&mut self.open) {
            let job = requests.job();
            requests.ask_disk(core, DiskRequest::CloseSource { job });
        }
    }
}
