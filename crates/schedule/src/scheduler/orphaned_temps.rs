//! Temporaries of lost lanes. Requests of a lost lane may be executed after its end, so a temporary
//! may appear after its removal; of 1,500 small files eight had a temporary left beside them.
//! Temporaries are removed only when no more requests of the lane can be executed, and a job is
//! done only when all of its temporaries are gone.

use std::collections::BTreeMap;
use std::time::Instant;

use super::LaneId;
use crate::{JobId, LaneEvent, RemotePath};

/// Temporaries that lost lanes may have left.
#[derive(Debug, Default)]
pub(super) struct OrphanedTemps {
    waiting: Vec<OrphanedTemp>,
    /// Number of temporaries per job that are not known to be gone.
    of: BTreeMap<JobId, u32>,
    /// Last event of each job, withheld until its temporaries are gone.
    held: BTreeMap<JobId, LaneEvent>,
}

/// Temporary of job `of` that requests of the lost lane may still create until `until`.
#[derive(Debug)]
struct OrphanedTemp {
    of: JobId,
    path: RemotePath,
    lane: LaneId,
    until: Instant,
}

impl OrphanedTemps {
    /// Counts a file of the job that is to be removed.
    pub(super) fn count(&mut self, of: JobId) {
        *self.of.entry(of).or_default() += 1;
    }

    /// Adds a temporary that the lost `lane` may create until `until`.
    pub(super) fn add(&mut self, lane: LaneId, until: Instant, of: JobId, path: RemotePath) {
        self.count(of);
        self.waiting.push(OrphanedTemp {
            of,
            path,
            lane,
            until,
        });
    }

    /// Takes the temporaries that no lost lane can create any more.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(JobId, RemotePath)> {
        let due = self.waiting.extract_if(.., |stray| stray.until <= now);
        due.map(|stray| (stray.of, stray.path)).collect()
    }

    /// Records that one temporary of the job is gone or never existed; returns the job's last event
    /// after the last one.
    pub(super) fn removed(&mut self, of: JobId) -> Option<LaneEvent> {
        if let Some(left) = self.of.get_mut(&of) {
            *left -= 1;
            if *left > 0 {
                return None;
            }
            self.of.remove(&of);
        }
        self.held.remove(&of)
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_job_ends_when_its_last_temporary_is_gone() {
        let now = testkit::sftp_model::epoch();
        let later = now + Duration::from_secs(4);
        let (job, lane) = (JobId(1), LaneId::default());
        let path = || RemotePath(b".a.x.longhaul".to_vec());
        let mut temps = OrphanedTemps::default();
        temps.add(lane, later, job, path());
        temps.add(lane, later, job, path());
        assert_eq!(
            temps.hold(LaneEvent::Progress(job, 1)),
            Some(LaneEvent::Progress(job, 1))
        );
        assert_eq!(temps.hold(LaneEvent::Done(job)), None);
        assert!(temps.due(now).is_empty());
        temps.cut(lane, now + Duration::from_secs(1));
        assert_eq!(temps.until(), Some(now + Duration::from_secs(1)));
        assert_eq!(temps.due(later).len(), 2);
        assert_eq!(temps.removed(job), None);
        assert_eq!(temps.removed(job), Some(LaneEvent::Done(job)));
    }
}
