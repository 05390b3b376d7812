use std::collections::{BTreeMap, BTreeSet};

use schedule::{DiskReply, JobId, LaneId};

/// Disk requests in flight, with their requester: a lane or the scheduler.
#[derive(Debug, Default)]
pub(super) struct PendingDiskOps {
    jobs: BTreeMap<JobId, (u32, Option<LaneId>)>,
    lanes: BTreeMap<LaneId, u32>,
    relayed: BTreeSet<JobId>,
}

impl PendingDiskOps {
    /// Counts a request for `job` by `lane`, or by the scheduler if `None`.
    pub(super) fn asked(&mut self, job: JobId, lane: Option<LaneId>) {
        let job = self.jobs.entry(job).or_insert((0, lane));
        *job = (job.0 + 1, lane);
        if let Some(lane) = lane {
            *self.lanes.entry(lane).or_default() += 1;
        }
    }

    /// Counts a reply and returns the requester; `None` if there was no such request.
    pub(super) fn replied(&mut self, reply: &DiskReply) -> Option<Option<LaneId>> {
        let job = reply.job();
        let (owed, lane) = self.jobs.get_mut(&job)?;
        let lane = *lane;
        *owed -= 1;
        if *owed == 0 {
            self.jobs.remove(&job);
        }
        if let Some(lane) = lane
            && let Some(owed) = self.lanes.get_mut(&lane)
        {
            *owed -= 1;
            if *owed == 0 {
                self.lanes.remove(&lane);
            }
        }
        Some(lane)
    }

    /// True if all disk requests of the lane were answered.
    pub(super) fn is_quit(&self, lane: LaneId) -> bool {
        !self.lanes.contains_key(&lane)
    }

    /// Marks a job whose local file is a relay.
    pub(super) fn set_relayed(&mut self, id: JobId) {
        self.relayed.insert(id);
    }

    /// Ends a job. Returns true if its relay must be released.
    pub(super) fn ended(&mut self, id: JobId) -> bool {
        self.relayed.remove(&id)
    }
}

#[cfg(test)]
mod tests {
    use schedule::ConnectionId;

    use super::*;

    const LANE: LaneId = LaneId {
        connection: ConnectionId(0),
        channel: 2,
    };

    fn released(job: u64) -> DiskReply {
        DiskReply::Released { job: JobId(job) }
    }

    #[test]
    fn a_lane_is_quit_when_all_its_requests_were_answered() {
        let mut pending = PendingDiskOps::default();
        assert!(pending.is_quit(LANE));
        pending.asked(JobId(1), Some(LANE));
        pending.asked(JobId(2), Some(LANE));
        assert_eq!(pending.replied(&released(1)), Some(Some(LANE)));
        assert!(!pending.is_quit(LANE));
        assert_eq!(pending.replied(&released(2)), Some(Some(LANE)));
        assert!(pending.is_quit(LANE));
        assert_eq!(pending.replied(&released(2)), None, "nothing was asked");
    }

    #[test]
    fn a_reply_goes_to_whoever_asked_last_for_the_job() {
        let mut pending = PendingDiskOps::default();
        pending.asked(JobId(1), None);
        assert_eq!(pending.replied(&released(1)), Some(None));
        pending.set_relayed(JobId(1));
        assert!(pending.ended(JobId(1)));
        assert!(!pending.ended(JobId(1)), "a relay is released once");
    }
}
