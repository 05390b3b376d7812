//! Old files that a lane moved aside before it was lost, so that the new file could get the name.
//! The lane's requests may still be executed, and must not move the new file instead.

use std::collections::BTreeMap;
use std::time::Instant;

use super::LaneId;
use super::queues::QueuedJob;
use crate::{JobId, RemotePath};

/// Old files under temporary names, and work that waits until requests of lost lanes can no longer
/// be executed.
#[derive(Debug, Default)]
pub(super) struct MovedAsideFiles {
    /// Name to which the old file of a job is moved, on a lane that works.
    now: BTreeMap<JobId, RemotePath>,
    /// Names to remove once the job is done.
    lost: BTreeMap<JobId, Vec<RemotePath>>,
    waiting: Vec<FencedWork>,
}

/// Work that waits until `until`, when no request of the lost lane can be executed any more.
#[derive(Debug)]
struct FencedWork {
    lane: LaneId,
    until: Instant,
    work: DeferredWork,
}

/// Work that requests of a lost lane could disturb.
#[derive(Debug)]
enum DeferredWork {
    /// A job to queue again.
    Queue(Box<QueuedJob>),
    /// A cut file whose temporary is to be looked up.
    Check(JobId),
}

impl MovedAsideFiles {
    /// Records that a lane moved the old file of `id` to `path`; an empty path means moved back or
    /// removed.
    pub(super) fn told(&mut self, id: JobId, path: &[u8]) {
        match path.is_empty() {
            true => self.now.remove(&id),
            false => self.now.insert(id, RemotePath(path.to_vec())),
        };
    }

    /// Forgets the job of a working lane when it ends.
    pub(super) fn over(&mut self, id: JobId) {
        self.now.remove(&id);
    }

    /// Records the loss of the lane of `id`; true if its old file may have been moved aside.
    pub(super) fn lose(&mut self, id: JobId) -> bool {
        let Some(path) = self.now.remove(&id) else {
            return false;
        };
        self.lost.entry(id).or_default().push(path);
        true
    }

    /// Schedules the removal of a lost lane's temporary for the end of job `id`, if its old file
    /// may be aside; false otherwise.
    pub(super) fn keeps(&mut self, id: JobId, path: &RemotePath) -> bool {
        let Some(lost) = self.lost.get_mut(&id) else {
            return false;
        };
        lost.push(path.clone());
        true
    }

    pub(super) fn until(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.until).min()
    }

    /// Shortens the waits for a lane whose connection was cut: its requests are over by `until`.
    pub(super) fn cut(&mut self, lane: LaneId, until: Instant) {
        for waiting in self.waiting.iter_mut().filter(|w| w.lane == lane) {
            waiting.until = waiting.until.min(until);
        }
    }

    /// Removes the jobs that wait to be queued and returns their ids.
    pub(super) fn drain(&mut self) -> Vec<JobId> {
        let queued = |w: &mut FencedWork| matches!(w.work, DeferredWork::Queue(_));
        let drained = self.waiting.extract_if(.., queued);
        let ids = drained.filter_map(|waiting| match waiting.work {
            DeferredWork::Queue(queued) => Some(queued.id()),
            DeferredWork::Check(_) => None,
        });
        ids.collect()
    }

    /// Queues a job again once the lost lane cannot affect it any more, at `until`.
    pub(super) fn queue_later(&mut self, lane: LaneId, until: Instant, queued: QueuedJob) {
        let work = DeferredWork::Queue(Box::new(queued));
        self.waiting.push(FencedWork { lane, until, work });
    }

    /// Looks for the temporary of a cut file at `until`.
    pub(super) fn check_later(&mut self, lane: LaneId, until: Instant, file: JobId) {
        let work = DeferredWork::Check(file);
        self.waiting.push(FencedWork { lane, until, work });
    }

    /// Takes the work that no lost lane can affect any more: jobs to queue and files to check.
    pub(super) fn due(&mut self, now: Instant) -> (Vec<QueuedJob>, Vec<JobId>) {
        let (mut queued, mut files) = (Vec::new(), Vec::new());
        for waiting in self.waiting.extract_if(.., |w| w.until <= now) {
            match waiting.work {
                DeferredWork::Queue(job) => queued.push(*job),
                DeferredWork::Check(file) => files.push(file),
            }
        }
        (queued, files)
    }

    /// Takes the old files that lost lanes left behind for a job that ends.
    pub(super) fn take_lost(&mut self, id: JobId) -> Vec<RemotePath> {
        self.lost.remove(&id).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_job_waits_only_if_its_old_file_was_moved_aside() {
        let now = testkit::sftp_model::epoch();
        let lane = LaneId::default();
        let mut asides = MovedAsideFiles::default();
        asides.told(JobId(1), b"aside");
        asides.told(JobId(2), b"aside");
        asides.told(JobId(2), b"");
        assert!(asides.lose(JobId(1)) && !asides.lose(JobId(2)));
        let temp = RemotePath(b"temp".to_vec());
        assert!(asides.keeps(JobId(1), &temp) && !asides.keeps(JobId(2), &temp));
        assert_eq!(asides.take_lost(JobId(1)).len(), 2);
        asides.check_later(lane, now + Duration::from_secs(4), JobId(1));
        asides.cut(lane, now + Duration::from_secs(1));
        assert!(asides.due(now).1.is_empty());
        assert_eq!(asides.due(now + Duration::from_secs(1)).1, [JobId(1)]);
    }
}
