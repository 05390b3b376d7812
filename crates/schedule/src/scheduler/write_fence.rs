//! What lost lanes have sent of a file may be carried out after the file has its name, and write
//! into what somebody has changed meanwhile: the handle is of the same file. So the name waits.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::file::{SplitFile, Stage};
use super::lanes::LaneState;
use super::{LaneId, Scheduler};
use crate::JobId;

/// How long the name waits for a server that does not say that a channel has ended: its processes
/// have long had what arrived by then, unless the path held it back.
const LONGEST: Duration = Duration::from_secs(4);
/// The same where what was sent takes longer than that, as fast as it moved of late.
const DRAINS: Duration = Duration::from_secs(40);
/// A lane that was silent for longer is not taken to move.
const OF_LATE: Duration = Duration::from_secs(1);

/// The same where the connection was cut at this end, beyond a few round trips: the server has only
/// what had arrived.
const CUT: Duration = Duration::from_millis(250);
const CUT_TRIPS: u32 = 3;

/// Lanes that were lost with a part of a file and may still write it.
#[derive(Debug, Default)]
pub(super) struct WriteFence {
    lanes: BTreeMap<LaneId, Instant>,
}

impl WriteFence {
    pub(super) fn lost(&mut self, lane: LaneId, until: Instant) {
        self.lanes.insert(lane, until);
    }

    /// Nothing can come any more.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.lanes.values().all(|until| *until <= now)
    }

    fn until(&self) -> Option<Instant> {
        self.lanes.values().max().copied()
    }
}

impl Scheduler {
    /// The server has said that the lane's channel is at its end (sshd does when the SFTP server on
    /// it has exited): nothing more of what was sent there is carried out. To be called before
    /// [`Scheduler::lane_lost`] where that is known by then, and else as soon as it is.
    pub fn lane_is_over(&mut self, now: Instant, lane: LaneId) {
        self.at(now);
        if let Some(state) = self.lanes.by_id.get_mut(&lane) {
            state.over = true;
        }
        for file in self.files.values_mut() {
            file.late.lanes.remove(&lane);
        }
        self.strays.over(now, lane);
        self.asides.cut(lane, now);
        self.name_what_waited();
        self.remove_strays();
        self.go_on_behind_lost();
    }

    /// Whether [`Scheduler::lane_is_cut`] is to be had for the lanes there are.
    pub fn set_cuts(&mut self, cuts: bool) {
        self.options.cuts = cuts;
    }

    /// The lane's connection was cut at this end, with what had not left yet. To be called before
    /// [`Scheduler::lane_lost`] where the lane has just ended.
    pub fn lane_is_cut(&mut self, now: Instant, lane: LaneId) {
        self.at(now);
        let until = now + self.late_when_cut();
        if let Some(state) = self.lanes.by_id.get_mut(&lane) {
            state.cut = true;
        }
        for file in self.files.values_mut() {
            if let Some(at) = file.late.lanes.get_mut(&lane) {
                *at = until.min(*at);
            }
        }
        self.strays.cut(lane, until);
        self.asides.cut(lane, until);
    }

    /// Until when what a lost lane has sent may still be carried out.
    pub(super) fn late_until(&self, lane: &LaneState) -> Instant {
        let moves = self.now.saturating_duration_since(lane.heard) < OF_LATE;
        let wait = match lane.drains(self.now) {
            _ if lane.over => Duration::ZERO,
            _ if lane.cut => self.late_when_cut(),
            Some(drains) if moves => drains.clamp(LONGEST, DRAINS),
            _ => LONGEST,
        };
        self.now + wait
    }

    fn late_when_cut(&self) -> Duration {
        CUT + self.lanes.least_latency * CUT_TRIPS
    }

    pub(super) fn name_what_waited(&mut self) {
        let now = self.now;
        let waits = |(_, f): &(&JobId, &SplitFile)| f.waits_for_name() && f.late.is_over(now);
        let ids: Vec<JobId> = self.files.iter().filter(waits).map(|(id, _)| *id).collect();
        for id in ids {
            self.go_on(id);
        }
    }

    /// When a name waits no longer.
    pub(super) fn next_name(&self) -> Option<Instant> {
        let waiting = self.files.values().filter(|f| f.waits_for_name());
        waiting.filter_map(|f| f.late.until()).min()
    }
}

impl SplitFile {
    fn waits_for_name(&self) -> bool {
        self.stage == Stage::Moving && self.running.is_empty() && self.is_complete()
    }
}
