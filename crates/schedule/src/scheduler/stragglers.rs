//! Lanes that are slower than the others, or have stopped: what they have is done elsewhere.

use std::time::{Duration, Instant};

use super::file::{SplitFile, Stage};
use super::lanes::LaneState;
use super::{Assigned, LaneId, Order, Scheduler};
use crate::{JobId, JobKind};

/// How often to compare lanes while one of them has nothing to do.
const COMPARE: Duration = Duration::from_millis(50);
/// How long a lane may be silent while others are heard.
const SILENT: Duration = Duration::from_secs(30);
/// The same where the server was asked to make data durable, which takes its time.
const SYNCING: Duration = Duration::from_secs(300);
/// The same while a whole file waits for its name: a lane that looked idle may have stopped long
/// ago, and was given that.
const NAMING: Duration = Duration::from_secs(15);
/// The same while a whole file waits for its temporary.
const CREATING: Duration = Duration::from_secs(8);
/// The same where all others have done what there was, and wait.
const LAST: Duration = Duration::from_secs(8);
/// How often to look for lanes that are silent.
const LOOK: Duration = Duration::from_secs(1);
/// How long a part that nobody needs may take to end, when its file waits for nothing else.
const LOSER: Duration = Duration::from_secs(1);
/// The same where every byte is there and nothing else is to be done: of 1 GiB over 1 % loss a
/// connection that had fallen behind kept the copy from its end for two seconds of seventeen.
const LAST_LOSER: Duration = Duration::from_millis(250);
/// The same where the server carries out what was sent in any case: the name waits for that, with
/// the lane closed or open.
const SENT: Duration = Duration::from_secs(4);
/// In units of what a lane's requests take.
const LATENCIES: u32 = 20;

impl Scheduler {
    /// Gives idle lanes what others will not have done soon; true if there is something to give.
    pub(super) fn overtake(&mut self) -> bool {
        let nothing = self.waits_for_nothing();
        if !nothing
            || !self.options.overtake
            || self
                .files
                .values()
                .any(|f| f.claimable() || f.stage == Stage::Opening)
        {
            return false;
        }
        let Some(fast) = self.lanes.best(self.now, LaneState::has_room) else {
            return false;
        };
        let usual = self.lanes.usual_rate(self.now);
        let Some(fast) = self.lanes.by_id.get(&fast) else {
            return false;
        };
        // They share it: of a lane with 1.7 MB at 0.15 MB/s a single other of that rate saves
        // nothing, and thirty of them do.
        let idle = self.lanes.by_id.values().filter(|l| l.has_room()).count() as u64;
        let unit = self.options.unit.max(1);
        let mut worst: Option<(Duration, JobId, JobId, LaneId)> = None;
        for (id, file) in &self.files {
            if file.stage != Stage::Moving
                || !file.seekable
                || file.one_handle
                || (file.is_put() && file.temp.is_none())
            {
                continue;
            }
            for (part, running) in &file.running {
                if running.overtaken || running.abandoned {
                    continue;
                }
                let Some(slow) = self.lanes.by_id.get(&running.lane) else {
                    continue;
                };
                let len = running.to.min(file.size()).saturating_sub(running.from);
                let theirs = slow.takes(self.now, 0, usual);
                // The whole of it again, twice over for the estimate, and what is on its way to
                // the loser must drain before the file gets its name.
                let drains = match slow.rate(self.now) {
                    Some(_) => slow.report.latency,
                    None => Duration::ZERO,
                };
                let share = (len / idle.max(1)).max(unit.min(len));
                let again = fast.takes(self.now, share, usual).saturating_mul(2);
                let ours = again.saturating_add(drains + COMPARE);
                if theirs > ours && worst.as_ref().is_none_or(|(most, ..)| theirs > *most) {
                    worst = Some((theirs, *id, *part, running.lane));
                }
            }
        }
        let Some((_, id, part, lane)) = worst else {
            return false;
        };
        if let Some(slow) = self.lanes.by_id.get_mut(&lane) {
            slow.overtaken.insert(part);
        }
        let Some(file) = self.files.get_mut(&id) else {
            return false;
        };
        let Some(running) = file.running.get_mut(&part) else {
            return false;
        };
        running.overtaken = true;
        let (from, to) = (running.from, running.to.min(file.end.unwrap_or(u64::MAX)));
        file.put_back(from, to);
        self.stats.overtaken += 1;
        file.claimable()
    }

    pub(super) fn next_look(&self) -> Option<Instant> {
        let working = self.lanes.by_id.values().filter(|l| !l.jobs.is_empty());
        working.clone().next()?;
        let losers = self
            .files
            .values()
            .any(|f| f.stage == Stage::Naming || f.is_complete());
        let soon = losers || self.lanes.by_id.values().any(LaneState::is_free);
        // Not from what happened last: a lane may be silent while others never are.
        Some(self.looked + if soon { COMPARE } else { LOOK })
    }

    pub(super) fn look_for_stalls(&mut self) {
        let ids: Vec<LaneId> = self.lanes.by_id.keys().copied().collect();
        for id in ids {
            if self.has_stalled(id)
                && let Some(lane) = self.lanes.by_id.get_mut(&id)
            {
                lane.closing = true;
                self.orders.push_back(Order::Close(id));
            }
        }
    }

    fn has_stalled(&mut self, id: LaneId) -> bool {
        let now = self.now;
        let Some(lane) = self.lanes.by_id.get(&id) else {
            return false;
        };
        let losing = self.is_losing(lane);
        // All others have done what there was.
        let nothing = self.waits_for_nothing();
        let last = nothing && self.lanes.by_id.values().any(LaneState::is_free);
        let may_lose = self.patience_with_loser(lane, last);
        let may_be_silent = match self.patience(lane) {
            SILENT if last => LAST,
            patience => patience,
        };
        let may_be_silent = may_be_silent.max(lane.report.latency.saturating_mul(LATENCIES));
        // Without another lane that works there is nothing better.
        let others = self.lanes.by_id.iter().any(|(other, l)| {
            *other != id && l.is_open() && (l.jobs.is_empty() || l.heard > lane.heard)
        });
        let Some(lane) = self.lanes.by_id.get_mut(&id) else {
            return false;
        };
        lane.losing_since = losing.then(|| lane.losing_since.unwrap_or(now));
        let lost = lane.losing_since.unwrap_or(now);
        let open = !lane.closing && !lane.jobs.is_empty() && others;
        open && (now.saturating_duration_since(lost) > may_lose
            || now.saturating_duration_since(lane.heard) > may_be_silent)
    }

    /// It has parts that nobody needs, and nothing that is not sooner done elsewhere.
    fn is_losing(&self, lane: &LaneState) -> bool {
        lane.jobs.keys().any(|job| self.is_lost_cause(*job))
            && lane
                .jobs
                .keys()
                .all(|job| self.is_lost_cause(*job) || self.is_movable(*job))
    }

    /// How long a lane that is losing may take to end; `last` says that nothing else is to be done.
    fn patience_with_loser(&self, lane: &LaneState, last: bool) -> Duration {
        let least = self.lanes.least_latency.saturating_mul(LATENCIES);
        let mut jobs = lane.jobs.keys();
        if !self.options.cuts && jobs.clone().any(|job| self.is_part_of_put(*job)) {
            return SENT.max(least);
        }
        match last && jobs.all(|job| self.is_movable(*job) || self.is_of_whole(*job)) {
            true => LAST_LOSER,
            false => LOSER.max(least / 2),
        }
    }

    /// How long a lane may be silent.
    fn patience(&self, lane: &LaneState) -> Duration {
        let mut patience = SILENT;
        for job in lane.jobs.keys() {
            match self.assigned.get(job) {
                Some((_, Assigned::Finish(file))) => {
                    let file = self.files.get(file);
                    if file.is_none_or(|f| f.options().fsync || f.sync_before_name()) {
                        return SYNCING;
                    }
                    patience = NAMING;
                }
                Some((_, Assigned::Whole(queued))) => {
                    let kind = &queued.job.kind;
                    let syncs = matches!(kind, JobKind::Put { options, .. } if options.fsync);
                    // A cold disk takes long for what is asked at once.
                    let sums = matches!(kind, JobKind::Sum { .. });
                    if syncs || sums || super::events::rebuilds(kind) {
                        return SYNCING;
                    }
                }
                // The whole file waits for its name.
                Some((_, Assigned::Part(file))) => {
                    let file = self.files.get(file);
                    if file.is_some_and(|f| f.is_put() && f.temp.is_none()) {
                        patience = CREATING;
                    }
                }
                _ => {}
            }
        }
        patience
    }

    fn is_part_of_put(&self, job: JobId) -> bool {
        self.file_of_part(job).is_some_and(SplitFile::is_put)
    }

    fn file_of_part(&self, job: JobId) -> Option<&SplitFile> {
        match self.assigned.get(&job) {
            Some((_, Assigned::Part(file))) => self.files.get(file),
            _ => None,
        }
    }

    /// A small thing that another lane can do as well, from its beginning.
    fn is_movable(&self, job: JobId) -> bool {
        match self.assigned.get(&job) {
            Some((_, Assigned::Sync(_))) => true,
            Some((_, Assigned::Whole(queued))) => {
                let small = queued
                    .hint
                    .size
                    .is_none_or(|size| size < self.options.least);
                small && !queued.hint.relayed && queued.losses == 0
            }
            _ => false,
        }
    }

    /// A part of a file whose bytes are all there.
    fn is_of_whole(&self, job: JobId) -> bool {
        self.file_of_part(job).is_some_and(SplitFile::is_complete)
    }

    /// A part whose file waits for nothing but its end.
    fn is_lost_cause(&self, job: JobId) -> bool {
        let running = self.file_of_part(job).and_then(|f| f.running.get(&job));
        running.is_some_and(|r| r.abandoned)
    }
}
