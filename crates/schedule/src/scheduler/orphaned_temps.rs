//! Temporaries of lost lanes. Requests of a lost lane may be executed after its end, so a temporary
//! may appear after its removal; of 1,500 small files eight had a temporary left beside them.
//! Temporaries are removed only when no more requests of the lane can be executed, and a job is
//! done only when all of its temporaries are gone.

use std::collections::BTreeMap;
use std::time::Instant;

use super::lanes::LaneState;
use super::{Assigned, LaneId, Scheduler};
use crate::{JobId, JobKind, LaneEvent, RemotePath};

/// Temporaries that lost lanes may have left.
#[derive(Debug, Default)]
pub(super) struct OrphanedTemps {
    waiting: Vec<OrphanedTemp>,
    /// Number of temporaries per job that are not known to be gone.
    of: BTreeMap<JobId, u32>,
    /// Last event of each job, withheld until its temporaries are gone.
    held: BTreeMap<JobId, LaneEvent>,
}

#[derive(Debug)]
struct OrphanedTemp {
    of: JobId,
    path: RemotePath,
    lane: LaneId,
    until: Instant,
}

impl OrphanedTemps {
    fn count(&mut self, of: JobId) {
        *self.of.entry(of).or_default() += 1;
    }

    pub(super) fn until(&self) -> Option<Instant> {
        self.waiting.iter().map(|stray| stray.until).min()
    }

    /// Shortens the waits for a lane whose connection was cut: its requests are over by `until`.
    pub(super) fn cut(&mut self, lane: LaneId, until: Instant) {
        let of = |stray: &&mut OrphanedTemp| stray.lane == lane;
        for stray in self.waiting.iter_mut().filter(of) {
            stray.until = stray.until.min(until);
        }
    }

    /// Ends the waits for a lane of which no more requests can be executed.
    pub(super) fn over(&mut self, now: Instant, lane: LaneId) {
        self.cut(lane, now);
    }

    /// Withholds the last event of a job with pending removals; returns any other event.
    pub(super) fn hold(&mut self, event: LaneEvent) -> Option<LaneEvent> {
        if !event.is_last() || !self.of.contains_key(&event.job()) {
            return Some(event);
        }
        self.held.insert(event.job(), event);
        None
    }

    /// Gives up when no lane is left: returns the remaining temporaries and the withheld events.
    pub(super) fn give_up(&mut self) -> (BTreeMap<JobId, RemotePath>, Vec<LaneEvent>) {
        let left = self.waiting.drain(..).map(|stray| (stray.of, stray.path));
        let left = left.collect();
        self.of.clear();
        (left, std::mem::take(&mut self.held).into_values().collect())
    }
}

impl Scheduler {
    /// Records that the lost `lane` may have created `path` for the job `of`.
    pub(super) fn strayed(&mut self, lane: LaneId, state: &LaneState, of: JobId, path: RemotePath) {
        self.strays.count(of);
        let until = self.late_until(state);
        self.strays.waiting.push(OrphanedTemp {
            of,
            path,
            lane,
            until,
        });
        self.remove_strays();
    }

    /// Removes temporaries that no lost lane can create any more.
    pub(super) fn remove_strays(&mut self) {
        let now = self.now;
        let due = self.strays.waiting.extract_if(.., |s| s.until <= now);
        let due: Vec<OrphanedTemp> = due.collect();
        for stray in due {
            self.remove(stray.of, stray.path);
        }
    }

    /// Removes a file of the job before the job is reported as done.
    pub(super) fn clear(&mut self, of: JobId, path: RemotePath) {
        self.strays.count(of);
        self.remove(of, path);
    }

    pub(super) fn remove(&mut self, of: JobId, path: RemotePath) {
        let id = self.own_id();
        let kind = JobKind::Remove { path: path.clone() };
        self.urgent
            .push_back((id, kind, Assigned::Remove(of, path)));
    }

    /// Records that one temporary of the job is gone or never existed.
    pub(super) fn on_removed(&mut self, of: JobId) {
        if let Some(left) = self.strays.of.get_mut(&of) {
            *left -= 1;
            if *left > 0 {
                return;
            }
            self.strays.of.remove(&of);
        }
        if let Some(event) = self.strays.held.remove(&of) {
            self.tell(event);
        }
    }
}
