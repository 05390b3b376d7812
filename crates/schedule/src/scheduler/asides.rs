//! Old files that a lane moved aside before it was lost, so that the new file could get the name.
//! The lane's requests may still be executed, and must not move the new file instead.

use std::collections::BTreeMap;
use std::time::Instant;

use super::lanes::LaneState;
use super::{Assigned, LaneId, Queued, Scheduler};
use crate::{JobId, JobKind, LaneEvent, RemotePath};

/// Old files under temporary names, and work that waits until requests of lost lanes can no longer
/// be executed.
#[derive(Debug, Default)]
pub(super) struct MovedAsideFiles {
    /// Name to which the old file of a job is moved, on a lane that works.
    now: BTreeMap<JobId, RemotePath>,
    /// Names to remove once the job is done.
    lost: BTreeMap<JobId, Vec<RemotePath>>,
    waiting: Vec<WaitsForLane>,
}

#[derive(Debug)]
struct WaitsForLane {
    lane: LaneId,
    until: Instant,
    work: DeferredWork,
}

#[derive(Debug)]
enum DeferredWork {
    /// A job to queue again.
    Queue(Box<Queued>),
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
    fn lose(&mut self, id: JobId) -> bool {
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
        let queued = |w: &mut WaitsForLane| matches!(w.work, DeferredWork::Queue(_));
        let drained = self.waiting.extract_if(.., queued);
        let ids = drained.filter_map(|waiting| match waiting.work {
            DeferredWork::Queue(queued) => Some(queued.job.id),
            DeferredWork::Check(_) => None,
        });
        ids.collect()
    }
}

impl Scheduler {
    /// Queues a job of a lost lane again: at once, or later if the lane may have moved its old file
    /// aside.
    pub(super) fn queue_lost(&mut self, lane: (LaneId, &LaneState), queued: Queued) {
        match self.asides.lose(queued.job.id) {
            true => self.wait_for(lane, DeferredWork::Queue(Box::new(queued))),
            false => self.queue(queued, true),
        }
    }

    /// Looks for the temporary of a file that a lost lane was to rename: at once, or later if the
    /// lane may have moved its old file aside.
    pub(super) fn check_lost(&mut self, lane: (LaneId, &LaneState), id: JobId) {
        match self.asides.lose(id) {
            true => self.wait_for(lane, DeferredWork::Check(id)),
            false => self.check(id),
        }
    }

    fn wait_for(&mut self, (lane, state): (LaneId, &LaneState), work: DeferredWork) {
        let until = self.late_until(state);
        self.asides.waiting.push(WaitsForLane { lane, until, work });
        self.go_on_behind_lost();
    }

    /// Resumes work that no lost lane can affect any more.
    pub(super) fn go_on_behind_lost(&mut self) {
        let now = self.now;
        let due = self.asides.waiting.extract_if(.., |w| w.until <= now);
        let due: Vec<WaitsForLane> = due.collect();
        for waiting in due {
            match waiting.work {
                DeferredWork::Queue(queued) => self.queue(*queued, true),
                DeferredWork::Check(id) => self.check(id),
            }
        }
    }

    fn check(&mut self, id: JobId) {
        // If the rename has happened, making room for it again would move the new file itself
        // aside.
        if let Some(path) = self.files.get(&id).and_then(|file| file.temporary()) {
            let follow = false;
            let own = self.own_id();
            let look = JobKind::Stat { path, follow };
            self.urgent.push_back((own, look, Assigned::Check(id)));
        }
    }

    /// Removes old files that lost lanes left behind, before the job is reported as done.
    pub(super) fn clear_asides(&mut self, event: &LaneEvent) {
        if !event.is_last() {
            return;
        }
        let lost = self.asides.lost.remove(&event.job());
        if let (LaneEvent::Done(id), Some(paths)) = (event, lost) {
            for path in paths {
                self.clear(*id, path);
            }
        }
    }
}
