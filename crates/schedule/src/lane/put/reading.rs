use wire::PayloadBlock;

use super::queued::UploadQueuedStage;
use super::source::UploadSource;
use super::{LaneContext, UploadState};
use crate::{DiskReply, LaneEvent, SourceFileMeta};

/// First stage: the disk side opens the source, and reads its first bytes if the job sends the
/// whole file. The source counts as prefetched.
#[derive(Debug)]
pub(super) struct SourceReadStage {
    /// Minimum number of bytes from which the first block is compressed.
    packs: Option<u64>,
}

impl SourceReadStage {
    pub(super) fn new(packs: Option<u64>) -> Self {
        Self { packs }
    }

    /// Handles the reply of the disk side, after which the job waits for its turn.
    pub(super) fn on_disk(
        self,
        up: &mut UploadState,
        core: &mut LaneContext,
        reply: DiskReply,
    ) -> Result<UploadQueuedStage, Self> {
        match reply {
            DiskReply::Opened {
                meta,
                first,
                packed,
                eof,
                ..
            } => {
                let source = self.opened(up, core, meta, (&first, packed), eof);
                let mut queued = UploadQueuedStage::prefetched(source, first, packed);
                queued.wait_to_open(up, core, eof);
                Ok(queued)
            }
            DiskReply::Joined { .. } => {
                let (attributes, offset) = up.part.piece().unwrap_or_default();
                let meta = SourceFileMeta {
                    attributes,
                    stream: false,
                };
                let source = UploadSource::opened(meta, offset, true);
                let mut queued =
                    UploadQueuedStage::prefetched(source, PayloadBlock::default(), None);
                queued.queue_open(up, core);
                Ok(queued)
            }
            _ => Err(self),
        }
    }

    /// Takes over what the disk side has found out.
    pub(super) fn opened(
        &self,
        up: &UploadState,
        core: &mut LaneContext,
        meta: SourceFileMeta,
        (first, packed): (&PayloadBlock, Option<u64>),
        eof: bool,
    ) -> UploadSource {
        let len = first.len() as u64;
        let read = packed.unwrap_or(len);
        match self.packs {
            Some(_) if !eof => core.packing_mut().packed(read, len),
            Some(least) if read >= least => core.packing_mut().packed_file(read, len),
            _ => {}
        }
        // A file that came in one piece is of one version.
        if up.part.is_whole() && !eof && !meta.stream {
            core.event(LaneEvent::Attributes(up.job(), meta.attributes));
        }
        UploadSource::opened(meta, read, !eof)
    }
}
