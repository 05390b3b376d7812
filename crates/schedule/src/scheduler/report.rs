//! Messages between a scheduler and the owner of the lanes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Job, JobId, Lane, LaneEvent, RefusedOperations};

/// Identifies a connection for the duration of a run. The owner of the lanes assigns the number.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ConnectionId(pub u32);

/// Identifies a lane for the duration of a run; never reused.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct LaneId {
    /// Connection of the lane.
    pub connection: ConnectionId,
    /// Number of the lane on its connection.
    pub channel: u32,
}

/// Capacity and abilities of a lane, as reported by its owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LaneReport {
    /// Number of jobs wanted ([`crate::Lane::wants_jobs`]).
    pub wants: usize,
    /// The lane predicts handles ([`crate::Lane::predicts`]).
    pub predicts: bool,
    /// The server handles requests in order ([`crate::Lane::works_in_order`]).
    pub in_order: bool,
    /// One file may be open several times ([`crate::Lane::shares_files`]); `None` while the server
    /// is unknown ([`crate::Lane::is_known`]).
    pub shares_files: Option<bool>,
    /// Operations that the server refuses, as far as the lane knows.
    #[serde(default)]
    pub refusals: RefusedOperations,
    /// Bytes that may be in flight ([`crate::LaneStats::bytes_depth`]).
    pub depth: u64,
    /// Lowest latency of a request; zero while unknown.
    pub latency: Duration,
    /// READ or WRITE requests are unanswered ([`crate::LaneStats::bytes_in_flight`]).
    #[serde(default)]
    pub awaits_data: bool,
}

impl LaneReport {
    /// Returns the report of `lane`.
    pub fn of(lane: &Lane) -> Self {
        let stats = lane.stats();
        Self {
            wants: lane.wants_jobs(),
            predicts: lane.predicts(),
            in_order: lane.works_in_order(),
            shares_files: lane.is_known().then(|| lane.shares_files()),
            refusals: lane.refusals(),
            depth: stats.bytes_depth,
            latency: stats.latency.unwrap_or_default(),
            awaits_data: stats.bytes_in_flight > 0,
        }
    }
}

/// Facts about a job that it does not carry itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobHint {
    /// Size of the source in bytes, from the walk. A file of unknown size is not cut.
    pub size: Option<u64>,
    /// The local file is a relay to another host, or is compared and not stored: one lane moves the
    /// file in order. If the journal has the file, its job fails when that lane is lost, and another
    /// job continues the temporary.
    pub relayed: bool,
}

/// Instruction to the owner of the lanes, from [`crate::Scheduler::poll_order`].
#[allow(
    clippy::large_enum_variant,
    reason = "most of them are jobs that are pushed"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneOrder {
    /// Give the job to the lane ([`crate::Lane::push`]).
    Push(LaneId, Job),
    /// Stop the job ([`crate::Lane::abandon`]); it still ends with an event.
    Abandon(LaneId, JobId),
    /// Close the lane's channel, since it has stalled while others work. Then call
    /// [`crate::Scheduler::lane_lost`], as for every lane that ends.
    Close(LaneId),
}

impl LaneOrder {
    /// Returns the lane that the order is for.
    pub(super) fn lane(&self) -> LaneId {
        match self {
            Self::Push(lane, _) | Self::Abandon(lane, _) | Self::Close(lane) => *lane,
        }
    }
}

/// Event of a job that was pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulerEvent {
    /// Event as a single lane would report it.
    Lane(LaneEvent),
    /// The job starts over; its reported progress is void.
    Restarted(JobId),
}

/// Settings of a [`crate::Scheduler`] about cutting files and about repeating work of slow lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Cut files at all; false if there can only be one lane.
    pub split: bool,
    /// Size in bytes from which files are cut. A cut file costs one or two more round trips.
    pub split_from: u64,
    /// Smallest piece in bytes, used towards the end.
    pub least: u64,
    /// Largest piece in bytes, unless a lane moves more in a tenth of a second.
    pub most: u64,
    /// Unit of piece sizes in bytes: the size of one WRITE.
    pub unit: u64,
    /// Open a file at most once at a time, regardless of the server.
    pub one_handle: bool,
    /// Repeat work of a slow lane on a faster one. False if a rate limit slows the lanes, since
    /// repeated bytes count against it.
    pub overtake: bool,
    /// Cutting the connection of a lane discards data in flight. False behind a jump host or a
    /// command, which pass on the data that they have; set by [`crate::Scheduler::set_cuts`] once
    /// known.
    pub cuts: bool,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self {
            split: true,
            split_from: 8 << 20,
            least: 1 << 20,
            most: 16 << 20,
            unit: 63 * 4096,
            one_handle: false,
            overtake: true,
            cuts: true,
        }
    }
}

/// Counters of a [`crate::Scheduler`]: the unfinished work, and totals since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Unfinished jobs that were pushed.
    pub jobs: usize,
    /// Number of jobs that no lane has.
    pub waiting: usize,
    /// Cut files in progress.
    pub split: usize,
    /// Total number of files that were cut.
    pub cut: u64,
    /// Number of parts that were assigned to a second lane.
    pub overtaken: u64,
    /// Bytes that receivers confirmed, including repeated ones.
    pub moved: u64,
    /// Bytes that receivers confirmed for the first time, and some for each job that has ended.
    pub gained: u64,
    /// Number of finished jobs.
    pub done: u64,
}
