//! Temporaries of lost lanes. What such a lane has sent may be carried out after its end, so that
//! what was not there yet when it was removed appears after all; eight of 1,500 small files had a
//! temporary beside them. So they are removed when nothing more of the lane can come, and a job is
//! not done before all of its own are gone.

use std::collections::BTreeMap;
use std::time::Instant;

use super::lanes::LaneState;
use super::{Assigned, LaneId, Scheduler};
use crate::{JobId, JobKind, LaneEvent, RemotePath};

/// What lost lanes may have left.
#[derive(Debug, Default)]
pub(super) struct OrphanedTemps {
    waiting: Vec<OrphanedTemp>,
    /// How many of a job there are, removed or not yet.
    of: BTreeMap<JobId, u32>,
    /// What is told of jobs when theirs are gone.
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

    /// The lane's connection was cut: what there is of it comes until then.
    pub(super) fn cut(&mut self, lane: LaneId, until: Instant) {
        let of = |stray: &&mut OrphanedTemp| stray.lane == lane;
        for stray in self.waiting.iter_mut().filter(of) {
            stray.until = stray.until.min(until);
        }
    }

    /// Nothing more of the lane comes.
    pub(super) fn over(&mut self, now: Instant, lane: LaneId) {
        self.cut(lane, now);
    }

    /// Keeps `event` for later; gives it back where nothing is in its way.
    pub(super) fn hold(&mut self, event: LaneEvent) -> Option<LaneEvent> {
        if !event.is_last() || !self.of.contains_key(&event.job()) {
            return Some(event);
        }
        self.held.insert(event.job(), event);
        None
    }

    /// There are no lanes any more: what is left where, and what was to be told.
    pub(super) fn give_up(&mut self) -> (BTreeMap<JobId, RemotePath>, Vec<LaneEvent>) {
        let left = self.waiting.drain(..).map(|stray| (stray.of, stray.path));
        let left = left.collect();
        self.of.clear();
        (left, std::mem::take(&mut self.held).into_values().collect())
    }
}

impl Scheduler {
    /// `lane`, which is lost, may have made `path` for the job `of`.
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

    /// Removes those of which nothing more comes.
    pub(super) fn remove_strays(&mut self) {
        let now = self.now;
        let due = self.strays.waiting.extract_if(.., |s| s.until <= now);
        let due: Vec<OrphanedTemp> = due.collect();
        for stray in due {
            self.remove(stray.of, stray.path);
        }
    }

    /// Removes what the job has no use for, before it is done.
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

    /// One of the job's is gone, or was never there.
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
