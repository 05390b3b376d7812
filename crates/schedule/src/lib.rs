//! What to send next on which lane: files and directories as requests, turned into SFTP requests
//! and local file operations.
//!
//! A *lane* is an SFTP channel. [`Job`]s go in, sftp bytes and [`DiskRequest`]s come out, replies
//! go back in, [`LaneEvent`]s tell what became of each job. [`Scheduler`] divides the jobs of a
//! session over many lanes, on several connections; [`ConcurrencyController`] decides how many there are, and
//! [`Background`] how fast they may be where others go first. Pure: no I/O, no clock; time is an
//! argument.

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

pub use background::{Allowance, Background, BackgroundSample};
pub use concurrency::{
    ConcurrencyChange, ConcurrencyConfig, ConcurrencyController, ConnectionSample, Direction,
    Evidence, LaneSample, Learned, Limiter, LimiterEvidence, LimiterLog, Refusal, TcpSample,
    TrialResult, USUAL_RATE, begins_with,
};
pub use depth::{Depth, DepthLimits, RequestStamp};
pub use disk::{DiskReply, DiskRequest, Fault, FileMeta, StoredTarget, UNWRITABLE, written_over};
pub use job::{
    Attributes, ByteRange, EntryKind, ExtraMetadata, FileState, Job, JobId, JobKind, Keep, Kept,
    LaneEvent, Left, PutOptions, RemotePath, Temp, TreeStep, Xattrs, directory_of,
};
pub use lane::{
    IMPOSSIBLE_NAMES, Lane, LaneConfig, LaneError, LaneStats, NO_TREES, PackingMode,
    REPEATED_NAMES, Random, Refusals, TOO_MANY_NAMES, Unfinished, Waiting, left_out,
};
pub use local_path::LocalPath;
pub use scheduler::{
    ConnectionId, Hint, LaneId, LaneReport, Order, Scheduler, SchedulerEvent, SchedulerOptions,
    SchedulerStats,
};
pub use sftp::{MetadataFlags, Parts, Told, is_temp_name, tagged_name, temp_name};
