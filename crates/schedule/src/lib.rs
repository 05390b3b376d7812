//! Decides what each SFTP session sends next: turns files and directories into SFTP requests and
//! local file operations.
//!
//! A *lane* is one SFTP session on one channel. The caller puts in [`Job`]s and replies; a lane
//! returns SFTP bytes, [`DiskRequest`]s and [`LaneEvent`]s that report each job's result.
//! [`Scheduler`] assigns the jobs of a session to lanes on several connections,
//! [`ConcurrencyController`] decides how many connections and lanes there are, and
//! [`BackgroundRateControl`] limits the rate of a copy that yields to other traffic. Pure: no I/O
//! and no clock; the time is an argument.

mod attributes;
mod background;
mod byte_ranges;
mod concurrency;
pub mod delta;
mod depth;
mod disk;
mod job;
pub mod journal;
mod lane;
mod lane_event;
mod local_target_path;
mod scheduler;
mod temp_dir;

pub use attributes::{Attributes, EntryKind};
pub use background::{BackgroundAllowance, BackgroundPathSample, BackgroundRateControl};
pub use byte_ranges::ByteRanges;
pub use concurrency::{
    ConcurrencyChange, ConcurrencyConfig, ConcurrencyController, ConnectionSample, CopyTimeModel,
    LaneOpenFailure, LaneSample, LearnedConcurrency, Limiter, LimiterEvidence, LimiterLog,
    LoginCost, MOST_AT_START, RunMeasurements, TcpSample, TransferDirection, TrialResult,
    USUAL_RATE, begins_with,
};
pub use depth::{InflightBounds, InflightLimit, RequestStamp};
pub use disk::{
    DiskReply, DiskRequest, FILE_IN_THE_WAY, FailedTemporary, JobFailure, JobFailureKind,
    SourceFileMeta, StoredTarget, UNWRITABLE, UPLOAD_BEGINS, not_replaced,
};
pub use job::{
    ByteRange, ExistingTargetPolicy, ExtraMetadata, FileCopyOptions, Job, JobId, JobKind, LocalEnd,
    OwnerWrite, PartialFile, ReadOnlyFilePolicy, RemotePath, ResumeData, SHARED_TEMP_LOST,
    SOURCE_CHANGED, SOURCE_GREW, SOURCE_SHRANK, SYMLINK_IN_THE_WAY, SYMLINK_LEADS_NOWHERE,
    SharedTemp, UploadTemp, Xattrs, directory_of,
};
pub use lane::{
    CompressionMode, Lane, LaneConfig, LaneError, LaneStats, NO_TREES, OldestRequest,
    REPEATED_NAMES, RandomFill, RefusedOperations, TOO_MANY_NAMES, UnfinishedWork, left_out,
};
pub use lane_event::{FileCheckpoint, FileCopyState, LaneEvent, TreeWalkStep};
pub use local_target_path::LocalTargetPath;
pub use scheduler::{
    ConnectionId, JobHint, LaneId, LaneOrder, LaneReport, Scheduler, SchedulerEvent,
    SchedulerOptions, SchedulerStats,
};
pub use sftp::{
    ExpectedEntry, LinkLimit, ListedEntry, MetadataFlags, Parts, Told, is_temp_name, tagged_name,
    temp_name,
};
pub use temp_dir::TempDir;
