//! Old files that were moved aside for new ones, by lanes that were lost before those had their
//! names: the lane may still carry that out, and what it moves must not be the new file.

use std::collections::BTreeMap;
use std::time::Instant;

use super::lanes::LaneState;
use super::{Assigned, LaneId, Queued, Scheduler};
use crate::{JobId, JobKind, LaneEvent, RemotePath};

/// Old files under temporary names, and work that waits for lost lanes to be over.
#[derive(Debug, Default)]
pub(super) struct Asides {
    /// Name that the old file of a job has, or gets, on a lane that works.
    now: BTreeMap<JobId, RemotePath>,
    /// Names that are to be removed once the job is done.
    lost: BTreeMap<JobId, Vec<RemotePath>>,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    lane: LaneId,
    until: Instant,
    work: Work,
}

#[derive(Debug)]
enum Work {
    /// A job to be queued again.
    Queue(Box<Queued>),
    /// A cut file whose temporary is to be looked for.
    Check(JobId),
}

impl Asides {
    /// A lane tells of the old file of `id`: moved aside, or back or removed where the name is empty.
    pub(super) fn told(&mut self, id: JobId, path: &[u8]) {
        match path.is_empty() {
            true => self.now.remove(&id),
            false => self.now.insert(id, RemotePath(path.to_vec())),
        };
    }

    /// The job of a working lane is over.
    pub(super) fn over(&mut self, id: JobId) {
        self.now.remove(&id);
    }

    /// The lane of `id` was lost; true if the old file of it may have been moved aside.
    fn lose(&mut self, id: JobId) -> bool {
        let Some(path) = self.now.remove(&id) else {
            return false;
        };
        self.lost.entry(id).or_default().push(path);
        true
    }

    /// A lost lane's temporary of `id` stays as long as its old file may be aside.
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

    /// The lane's connection was cut: what there is of it comes until then.
    pub(super) fn cut(&mut self, lane: LaneId, until: Instant) {
        for waiting in self.waiting.iter_mut().filter(|w| w.lane == lane) {
            waiting.until = waiting.until.min(until);
        }
    }

    /// Jobs that wait and will not be done.
    pub(super) fn drain(&mut self) -> Vec<JobId> {
        let queued = |w: &mut Waiting| matches!(w.work, Work::Queue(_));
        let drained = self.waiting.extract_if(.., queued);
        let ids = drained.filter_map(|waiting| match waiting.work {
            Work::Queue(queued) => Some(queued.job.id),
            Work::Check(_) => None,
        });
        ids.collect()
    }
}

impl Scheduler {
    /// Queues a job of a lost lane again; later, where the lane may have moved its old file aside.
    pub(super) fn queue_lost(&mut self, lane: (LaneId, &LaneState), queued: Queued) {
        match self.asides.lose(queued.job.id) {
            true => self.wait_for(lane, Work::Queue(Box::new(queued))),
            false => self.queue(queued, true),
        }
    }

    /// Looks for the temporary of a file that a lost lane was to name, likewise.
    pub(super) fn check_lost(&mut self, lane: (LaneId, &LaneState), id: JobId) {
        match self.asides.lose(id) {
            true => self.wait_for(lane, Work::Check(id)),
            false => self.check(id),
        }
    }

    fn wait_for(&mut self, (lane, state): (LaneId, &LaneState), work: Work) {
        let until = self.late_until(state);
        self.asides.waiting.push(Waiting { lane, until, work });
        self.go_on_behind_lost();
    }

    /// Goes on with what no lost lane can reach any more.
    pub(super) fn go_on_behind_lost(&mut self) {
        let now = self.now;
        let due = self.asides.waiting.extract_if(.., |w| w.until <= now);
        let due: Vec<Waiting> = due.collect();
        for waiting in due {
            match waiting.work {
                Work::Queue(queued) => self.queue(*queued, true),
                Work::Check(id) => self.check(id),
            }
        }
    }

    fn check(&mut self, id: JobId) {
        // Where the new name was made, to make room for it would move the file itself aside.
        if let Some(path) = self.files.get(&id).and_then(|file| file.temporary()) {
            let follow = false;
            let own = self.own_id();
            let look = JobKind::Stat { path, follow };
            self.urgent.push_back((own, look, Assigned::Check(id)));
        }
    }

    /// Before a job is told to be done: removes its old files that lost lanes have left.
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
