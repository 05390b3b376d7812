//! Decides what each SFTP session sends next: turns files and directories into SFTP requests and
//! local file operations.
//!
//! A *lane* is one SFTP session on one channel. The caller puts in [`Job`]s and replies; a lane
//! returns SFTP bytes, [`DiskRequest`]s and [`LaneEvent`]s that report each job's result.
//! [`Scheduler`] assigns the jobs of a session to lanes on several connections,
//! [`ConcurrencyController`] decides how many connections and lanes there are, and [`Background`]
//! limits the rate of a copy that yields to other traffic. Pure: no I/O and no clock; the time is
//! an argument.

mod background;
mod concurrency;
pub mod delta;
mod depth;
mod disk;
mod job;
pub mod journal;
mod lane;
mod local_path;
mod scheduler;

pub use background::{Background, BackgroundAllowance, BackgroundSample};
pub use concurrency::{
    ConcurrencyChange, ConcurrencyConfig, ConcurrencyController, ConnectionSample, Direction,
    LaneSample, LearnedConcurrency, Limiter, LimiterEvidence, LimiterLog, LoginCost, MOST_AT_START,
    Refusal, RunMeasurements, StartModel, TcpSample, TrialResult, USUAL_RATE, begins_with,
};
pub use depth::{DepthLimits, InflightLimit, RequestStamp};
pub use disk::{DiskReply, DiskRequest, Fault, FileMeta, StoredTarget, UNWRITABLE, written_over};
pub use job::{
    Attributes, ByteRange, EntryKind, ExtraMetadata, FileState, Job, JobId, JobKind, Keep, Kept,
    LaneEvent, Left, PutOptions, RemotePath, SYMLINK_IN_THE_WAY, Temp, TempDir, TreeStep, Xattrs,
    directory_of,
};
pub use lane::{
    IMPOSSIBLE_NAMES, Lane, LaneConfig, LaneError, LaneStats, NO_TREES, OldestRequest, PackingMode,
    REPEATED_NAMES, Random, Refusals, TOO_MANY_NAMES, Unfinished, left_out,
};
pub use local_path::LocalPath;
pub use scheduler::{
    ConnectionId, Hint, LaneId, LaneOrder, LaneReport, Scheduler, SchedulerEvent, SchedulerOptions,
    SchedulerStats,
};
pub use sftp::{MetadataFlags, Parts, Told, is_temp_name, tagged_name, temp_name};
