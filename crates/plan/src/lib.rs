//! What to send next on which lane: files and directories as requests, turned into SFTP requests
//! and local file operations.
//!
//! A *lane* is an SFTP channel. [`Job`]s go in, sftp bytes and [`DiskRequest`]s come out, replies
//! go back in, [`LaneEvent`]s tell what became of each job. Pure: no I/O, no clock; time is an
//! argument.

mod depth;
mod disk;
mod job;
mod lane;

pub use depth::{Depth, DepthLimits, Stamp};
pub use disk::{DiskReply, DiskRequest, Fault, FileMeta};
pub use job::{
    Attributes, EntryKind, FileState, Job, JobId, JobKind, LaneEvent, PutOptions, RemotePath,
};
pub use lane::{Lane, LaneConfig, LaneError, LaneStats, Random, Unfinished, temp_name};
