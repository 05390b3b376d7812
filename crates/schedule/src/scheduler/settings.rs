use std::collections::BTreeSet;

use super::LaneId;
use crate::JobId;

/// Attributes that are being set. A directory's go before those of the one above it, which may
/// take the right to enter it away: all of them follow each other on one lane, whose server
/// takes one request after the other.
#[derive(Debug, Default)]
pub(super) struct Settings {
    lane: LaneId,
    jobs: BTreeSet<JobId>,
}

impl Settings {
    pub(super) fn begin(&mut self, job: JobId, lane: LaneId) {
        self.lane = lane;
        self.jobs.insert(job);
    }

    /// It was answered, or its lane was lost.
    pub(super) fn end(&mut self, job: JobId) {
        self.jobs.remove(&job);
    }

    /// The lane that has those under way, behind which others have to go.
    pub(super) fn lane(&self) -> Option<LaneId> {
        (!self.jobs.is_empty()).then_some(self.lane)
    }
}
