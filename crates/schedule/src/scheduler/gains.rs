//! Progress that is new: bytes that are moved again do not count.

use std::collections::BTreeMap;

use crate::{JobId, LaneEvent};

/// Bytes that the end of a job counts for, in addition to those that it moved.
const JOB: u64 = 16 << 10;

/// Bytes that receivers confirmed for the first time, and [`JOB`] for the end of each job.
#[derive(Debug, Default)]
pub(super) struct ConfirmedBytes {
    total: u64,
    /// Unfinished jobs that have made progress.
    jobs: BTreeMap<JobId, JobProgress>,
}

/// Bytes that a job has done: since its last start, and at most in any attempt.
#[derive(Debug, Default)]
struct JobProgress {
    /// Since it was last started over.
    now: u64,
    /// Most that any attempt has reached.
    most: u64,
}

impl ConfirmedBytes {
    /// Bytes gained so far.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Takes an event of a pushed job.
    pub(super) fn take(&mut self, event: &LaneEvent) {
        match event {
            LaneEvent::Progress(id, bytes) => {
                let job = self.jobs.entry(*id).or_default();
                job.now = job.now.saturating_add(*bytes);
                self.total += job.now.saturating_sub(job.most);
                job.most = job.most.max(job.now);
            }
            event if event.is_last() => {
                self.jobs.remove(&event.job());
                self.total += JOB;
            }
            _ => {}
        }
    }

    /// Notes that a job starts over.
    pub(super) fn restarted(&mut self, id: JobId) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.now = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_moved_again_are_no_gain() {
        let mut gains = ConfirmedBytes::default();
        let job = JobId(1);
        for _ in 0..5 {
            gains.take(&LaneEvent::Progress(job, 300));
            gains.take(&LaneEvent::Progress(job, 700));
            gains.restarted(job);
        }
        assert_eq!(gains.total(), 1000);
        gains.take(&LaneEvent::Progress(job, 1100));
        gains.take(&LaneEvent::Done(job));
        assert_eq!(gains.total(), 1100 + JOB);
        assert!(gains.jobs.is_empty());
    }
}
