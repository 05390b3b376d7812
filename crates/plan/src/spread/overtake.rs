//! Lanes that are slower than the others, or have stopped: what they have is done elsewhere.

use std::time::{Duration, Instant};

use super::file::Stage;
use super::lanes::LaneState;
use super::{Assigned, LaneId, Order, Spread};
use crate::{JobId, JobKind};

/// How often to compare lanes while one of them has nothing to do.
const COMPARE: Duration = Duration::from_millis(50);
/// How long a lane may be silent while others are heard.
const SILENT: Duration = Duration::from_secs(30);
/// The same where the server was asked to make data durable, which takes its time.
const SYNCING: Duration = Duration::from_secs(300);
/// Silent for so long, a lane is looked at closely.
const OTHERS: Duration = Duration::from_secs(5);
/// How long a part that nobody needs may take to end.
const LOSER: Duration = Duration::from_secs(2);
/// In units of what a lane's requests take.
const LATENCIES: u32 = 20;

impl Spread {
    /// Gives idle lanes what others will not have done soon; true if there is something to give.
    pub(super) fn overtake(&mut self) -> bool {
        let nothing = self.waiting.is_empty() && self.large.is_empty();
        if !nothing
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
        let mut worst: Option<(Duration, JobId, JobId, LaneId)> = None;
        for (id, file) in &self.files {
            if file.stage != Stage::Moving
                || !file.seekable
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
                // The whole of it again, and twice over for the estimate.
                let ours = 2 * fast.takes(self.now, len, usual) + COMPARE;
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
        let idle = |l: &LaneState| l.is_open() && !l.listing && l.jobs.is_empty();
        let losers = self
            .files
            .values()
            .any(|f| f.stage == Stage::Naming || f.is_complete());
        let soon = losers || self.lanes.by_id.values().any(idle);
        Some(self.now + if soon { COMPARE } else { OTHERS / 5 })
    }

    pub(super) fn look_for_stalls(&mut self) {
        let heard = self.lanes.by_id.values().map(|l| l.heard).max();
        let mut close = Vec::new();
        for (id, lane) in &self.lanes.by_id {
            if lane.closing || lane.jobs.is_empty() {
                continue;
            }
            let silent = self.now.saturating_duration_since(lane.heard);
            let latency = lane.report.latency.saturating_mul(LATENCIES);
            let patience = match self.is_syncing(lane) {
                true => SYNCING,
                false => SILENT,
            };
            // Without another lane that works there is nothing better.
            let others = self.lanes.by_id.iter().any(|(other, l)| {
                let works = l.jobs.is_empty() || Some(l.heard) == heard;
                other != id && l.is_open() && works && l.heard >= lane.heard
            });
            let only_losers = lane.jobs.keys().all(|job| self.is_lost_cause(*job));
            let patience = match only_losers {
                true => LOSER,
                false => patience,
            };
            if others && silent > patience.max(latency) {
                close.push(*id);
            }
        }
        for id in close {
            if let Some(lane) = self.lanes.by_id.get_mut(&id) {
                lane.closing = true;
                self.orders.push_back(Order::Close(id));
            }
        }
    }

    /// A part whose file waits for nothing but its end.
    fn is_lost_cause(&self, job: JobId) -> bool {
        let Some((_, Assigned::Part(file))) = self.assigned.get(&job) else {
            return false;
        };
        let file = self.files.get(file);
        file.and_then(|f| f.running.get(&job))
            .is_some_and(|r| r.abandoned)
    }

    fn is_syncing(&self, lane: &LaneState) -> bool {
        lane.jobs.keys().any(|job| match self.assigned.get(job) {
            Some((_, Assigned::Finish(_))) => true,
            Some((_, Assigned::Whole(queued))) => {
                matches!(&queued.job.kind, JobKind::Put { options, .. } if options.fsync)
            }
            _ => false,
        })
    }
}
