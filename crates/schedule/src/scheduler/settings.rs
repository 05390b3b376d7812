use std::collections::BTreeSet;

use super::LaneId;
use crate::JobId;

/// Attributes that are being set. A directory's attributes are set before those of its parent,
/// which may revoke the right to enter it. All of these requests therefore go to one lane, whose
/// server handles requests in order.
#[derive(Debug, Default)]
pub(super) struct PendingAttributeChanges {
    lane: LaneId,
    jobs: BTreeSet<JobId>,
}

impl PendingAttributeChanges {
    pub(super) fn begin(&mut self, job: JobId, lane: LaneId) {
        self.lane = lane;
        self.jobs.insert(job);
    }

    /// Forgets a job that was answered or whose lane was lost.
    pub(super) fn end(&mut self, job: JobId) {
        self.jobs.remove(&job);
    }

    /// Returns the lane that has requests in flight; further ones must follow on it.
    pub(super) fn lane(&self) -> Option<LaneId> {
        (!self.jobs.is_empty()).then_some(self.lane)
    }
}
