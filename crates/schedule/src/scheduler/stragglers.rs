//! Repeats the work of slow or stalled lanes on other lanes.

use std::time::{Duration, Instant};

use super::file::{SplitFile, SplitStage};
use super::lanes::LaneState;
use super::{Assigned, LaneId, LaneOrder, Scheduler};
use crate::{JobId, JobKind};

/// Interval for comparing lanes while one of them is idle.
const COMPARE: Duration = Duration::from_millis(50);
/// Longest silence of a lane while others report events.
const SILENT: Duration = Duration::from_secs(30);
/// Longest silence of a lane whose server was asked to make data durable, which takes time.
const SYNCING: Duration = Duration::from_secs(300);
/// Longest silence while a whole file waits for its rename: a lane that looked idle may have
/// stopped long before it got the rename.
const NAMING: Duration = Duration::from_secs(15);
/// Longest silence while a whole file waits for its temporary.
const CREATING: Duration = Duration::from_secs(8);
/// Longest silence while all other lanes have finished and wait.
const LAST: Duration = Duration::from_secs(8);
/// Interval for looking for silent lanes.
const LOOK: Duration = Duration::from_secs(1);
/// Longest time for ending a needless part that its file alone waits for.
const LOSER: Duration = Duration::from_secs(1);
/// Longest time for ending a needless part when every byte is there and nothing else is left to do:
/// of 1 GiB over 1 % loss, a connection that had fallen behind delayed a copy of 17 s by 2 s.
const LAST_LOSER: Duration = Duration::from_millis(250);
/// Longest time for ending a needless part if the server executes sent requests in any case: the
/// rename waits for them, with the lane closed or open.
const SENT: Duration = Duration::from_secs(4);
/// Shortest patience in multiples of the lowest latency of a request.
const LATENCIES: u32 = 20;

impl Scheduler {
    /// Assigns work of slow lanes to idle lanes as well; true if there is something to assign.
    pub(super) fn overtake(&mut self) -> bool {
        let nothing = self.waits_for_nothing();
        if !nothing
            || !self.options.overtake
            || self
                .files
                .values()
                .any(|f| f.claimable() || f.stage == SplitStage::Opening)
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
        // Idle lanes share the work: if a lane has 1.7 MB left at 0.15 MB/s, one other lane of that
        // rate saves nothing, but thirty do.
        let idle = self.lanes.by_id.values().filter(|l| l.has_room()).count() as u64;
        let unit = self.options.unit.max(1);
        let mut worst: Option<(Duration, JobId, JobId, LaneId)> = None;
        for (id, file) in &self.files {
            if file.stage != SplitStage::Moving
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
                let theirs = slow.ends_after(self.now, usual);
                // The other lane must repeat the whole range (doubled, as the estimate is rough),
                // and data in flight to the slow lane must drain before the rename.
                let drains = match slow.rate(self.now) {
                    Some(_) => slow.report.latency,
                    None => Duration::ZERO,
                };
                let share = (len / idle.max(1)).max(unit.min(len));
                // A lane that has answered nothing yet is as far away as the slow one.
                let far = slow.report.latency.saturating_sub(fast.report.latency);
                let again = fast.takes(self.now, share, usual).saturating_add(far);
                let again = again.saturating_mul(2);
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
            .any(|f| f.stage == SplitStage::Naming || f.is_complete());
        let soon = losers || self.lanes.by_id.values().any(LaneState::is_free);
        // Counted from the last check and not from the last event: one lane may be silent while
        // others never are.
        Some(self.looked + if soon { COMPARE } else { LOOK })
    }

    pub(super) fn look_for_stalls(&mut self) {
        let ids: Vec<LaneId> = self.lanes.by_id.keys().copied().collect();
        for id in ids {
            if self.has_stalled(id)
                && let Some(lane) = self.lanes.by_id.get_mut(&id)
            {
                lane.closing = true;
                self.orders.push_back(LaneOrder::Close(id));
            }
        }
    }

    fn has_stalled(&mut self, id: LaneId) -> bool {
        let now = self.now;
        let Some(lane) = self.lanes.by_id.get(&id) else {
            return false;
        };
        let losing = self.is_losing(lane);
        // All other lanes have finished.
        let nothing = self.waits_for_nothing();
        let last = nothing && self.lanes.by_id.values().any(LaneState::is_free);
        let may_lose = self.patience_with_loser(lane, last);
        let may_be_silent = match self.patience(lane) {
            SILENT if last => LAST,
            patience => patience,
        };
        let may_be_silent = may_be_silent.max(lane.report.latency.saturating_mul(LATENCIES));
        // Without another working lane there is no alternative.
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

    /// Returns true if the lane has needless parts, and otherwise only small jobs that other lanes
    /// can do.
    fn is_losing(&self, lane: &LaneState) -> bool {
        lane.jobs.keys().any(|job| self.is_lost_cause(*job))
            && lane
                .jobs
                .keys()
                .all(|job| self.is_lost_cause(*job) || self.is_movable(*job))
    }

    /// Returns the time that a lane with needless parts gets to end them; `last` means that nothing
    /// else is left to do.
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

    /// Returns the longest permitted silence of a lane.
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
                    // A cold disk takes long for such requests.
                    let sums = matches!(kind, JobKind::Sum { .. });
                    if syncs || sums || super::events::rebuilds(kind) {
                        return SYNCING;
                    }
                }
                // The whole file waits for its temporary's name.
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

    /// Returns true for a small job that another lane can do from its beginning.
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

    /// Returns true for a part of a file whose bytes are all there.
    fn is_of_whole(&self, job: JobId) -> bool {
        self.file_of_part(job).is_some_and(SplitFile::is_complete)
    }

    /// Returns true for an abandoned part, which its file only waits to end.
    fn is_lost_cause(&self, job: JobId) -> bool {
        let running = self.file_of_part(job).and_then(|f| f.running.get(&job));
        running.is_some_and(|r| r.abandoned)
    }
}
