//! Delays the rename of a file until no lost lane can still write it. Requests of a lost lane may
//! be executed after the rename, through a handle of the same file, and would overwrite changes
//! that others have made to it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::file::{SplitFile, SplitStage};
use super::lanes::LaneState;
use super::{LaneId, Scheduler};
use crate::JobId;

/// Delay of the rename for a server that does not report the end of a channel: its processes have
/// long received the data that arrived by then, unless the path delayed them.
const LONGEST: Duration = Duration::from_secs(4);
/// Upper bound of the delay if data in flight take longer than [`LONGEST`] at their recent rate.
const DRAINS: Duration = Duration::from_secs(40);
/// Silence after which a lane no longer counts as moving.
const OF_LATE: Duration = Duration::from_secs(1);

/// Delay, in addition to a few round trips, if the connection was cut locally: the server has only
/// the data that had arrived.
const CUT: Duration = Duration::from_millis(250);
const CUT_TRIPS: u32 = 3;

/// Lost lanes that had a part of a file and may still write it.
#[derive(Debug, Default)]
pub(super) struct WriteFence {
    lanes: BTreeMap<LaneId, Instant>,
}

impl WriteFence {
    pub(super) fn lost(&mut self, lane: LaneId, until: Instant) {
        self.lanes.insert(lane, until);
    }

    /// Returns true if no lost lane can write the file any more.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.lanes.values().all(|until| *until <= now)
    }

    fn until(&self) -> Option<Instant> {
        self.lanes.values().max().copied()
    }
}

impl Scheduler {
    /// Records that the server has reported the end of the lane's channel, as sshd does when the
    /// SFTP server on it has exited: no more of its requests are executed. Call it before
    /// [`Scheduler::lane_lost`] if known by then, otherwise as soon as it is known.
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

    /// Sets `SchedulerOptions::cuts`: the owner can cut connections and report it by
    /// [`Scheduler::lane_is_cut`].
    pub fn set_cuts(&mut self, cuts: bool) {
        self.options.cuts = cuts;
    }

    /// Records that the lane's connection was cut locally, together with its unsent data. Call it
    /// before [`Scheduler::lane_lost`] if the lane has just ended.
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

    /// Returns the time until which requests of a lost lane may still be executed.
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

    /// Returns the time of the next delayed rename.
    pub(super) fn next_name(&self) -> Option<Instant> {
        let waiting = self.files.values().filter(|f| f.waits_for_name());
        waiting.filter_map(|f| f.late.until()).min()
    }
}

impl SplitFile {
    fn waits_for_name(&self) -> bool {
        self.stage == SplitStage::Moving && self.running.is_empty() && self.is_complete()
    }
}
