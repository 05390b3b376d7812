//! Verifies that the rebuilt file equals the source: the basis file may have changed between its
//! sums and its copy, the source between its sums and the sent data, and a server may be wrong.

use std::collections::{BTreeMap, VecDeque};

use sftp::Reply;
use sftp::blocks::{BlockSumKind, StrongSum};

use super::closing::DeltaCloseStage;
use super::files::DeltaUploadFiles;
use super::{
    DeltaAbort, DeltaFileVersions, DeltaRebuild, DeltaUploadContext, LaneContext, RequestPurpose,
};
use crate::delta::ASKED;

/// Comparison of the rebuilt file with the source, which begins while data move.
#[derive(Debug, Default)]
pub(super) struct RebuildVerifier {
    /// Block sums of the source, by segment offset.
    own: BTreeMap<u64, Vec<StrongSum>>,
    /// Segments that are complete.
    ready: VecDeque<u64>,
    /// Bytes whose sums were requested.
    asked: u64,
    in_flight: usize,
}

impl RebuildVerifier {
    /// Takes the block sums of the source's segment at `offset`.
    pub(super) fn own(&mut self, offset: u64, sums: Vec<StrongSum>) {
        self.own.insert(offset, sums);
    }

    /// Takes segments that are complete.
    pub(super) fn filled(&mut self, segments: Vec<u64>) {
        self.ready.extend(segments);
    }

    /// Requests the sums of a complete segment of the temporary; false if there is none.
    pub(super) fn ask_ready(
        &mut self,
        job: &mut DeltaUploadContext,
        core: &mut LaneContext,
        rebuild: &DeltaRebuild,
        files: &DeltaUploadFiles,
    ) -> bool {
        let Some(handle) = files.new_handle() else {
            return false;
        };
        if self.in_flight >= ASKED {
            return false;
        }
        let Some(offset) = self.ready.pop_front() else {
            return false;
        };
        let range = (offset, rebuild.segment_end(offset) - offset);
        self.asked += range.1;
        self.in_flight += 1;
        let (requests, handle) = (&mut job.requests, handle.as_bytes());
        rebuild.ask_sums(requests, core, handle, range, BlockSumKind::Strong);
        true
    }

    /// Handles the sums of a segment.
    pub(super) fn on_sums(
        &mut self,
        rebuild: &DeltaRebuild,
        (offset, len): (u64, u64),
        reply: &Reply,
    ) -> Option<DeltaAbort> {
        self.in_flight = self.in_flight.saturating_sub(1);
        let own = self.own.remove(&offset).unwrap_or_default();
        let same = match reply {
            Reply::Sums(sums) if rebuild.is_whole(sums, BlockSumKind::Strong, len) => {
                let (there, _) = sums.as_chunks::<16>();
                there == own
            }
            _ => false,
        };
        (!same).then_some(DeltaAbort::FullCopy)
    }
}

/// Stage in which all data have left, and the rest of the rebuilt file is compared.
#[derive(Debug)]
pub(super) struct DeltaVerifyStage {
    plan: DeltaFileVersions,
    files: DeltaUploadFiles,
    verify: RebuildVerifier,
}

impl DeltaVerifyStage {
    pub(super) fn new(
        plan: DeltaFileVersions,
        files: DeltaUploadFiles,
        verify: RebuildVerifier,
    ) -> Self {
        Self {
            plan,
            files,
            verify,
        }
    }

    /// Requests the sums of a complete segment; false if there is none.
    pub(super) fn ask_ready(
        &mut self,
        job: &mut DeltaUploadContext,
        core: &mut LaneContext,
    ) -> bool {
        let rebuild = &self.plan.rebuild;
        self.verify.ask_ready(job, core, rebuild, &self.files)
    }

    /// Returns true if the sums of the whole file were requested.
    pub(super) fn has_asked_all(&self) -> bool {
        self.verify.asked >= self.plan.rebuild.size
    }

    /// Returns true if all sums have come.
    pub(super) fn is_over(&self) -> bool {
        self.has_asked_all() && self.verify.in_flight == 0
    }

    /// Handles the answer to a request.
    pub(super) fn on_reply(&mut self, what: RequestPurpose, reply: &Reply) -> Option<DeltaAbort> {
        match what {
            RequestPurpose::Sums {
                offset,
                len,
                rebuilt: true,
            } => self
                .verify
                .on_sums(&self.plan.rebuild, (offset, len), reply),
            _ => None,
        }
    }

    /// Sends CLOSE after the last request for sums.
    pub(super) fn close(
        self,
        job: &mut DeltaUploadContext,
        core: &mut LaneContext,
    ) -> DeltaCloseStage {
        DeltaCloseStage::begin(job, core, self.plan, self.files, self.verify)
    }

    pub(super) fn files(&self) -> &DeltaUploadFiles {
        &self.files
    }

    pub(super) fn into_files(self) -> DeltaUploadFiles {
        self.files
    }
}
