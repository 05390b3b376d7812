//! Plans of large copies: one walk cuts a tree into shards, many machines copy one shard each, and
//! the last one sets the attributes of the directories (docs/design/0023-shards.md).
//!
//! The decisions are in crate `shard`; here are the files of a plan's folder, and the copy of a
//! shard as a planned copy.

mod attributes;
mod check;
mod copying;
mod entries;
mod folder;
mod holding;
mod place;
mod planning;
mod ranges;
mod records;
mod seal;
mod status;
mod verifying;

use std::fmt;
use std::path::PathBuf;

use crate::report::{CopySummary, EscapedName};

pub use copying::{ShardCopyTask, copy};
pub use folder::PlanFolder;
pub use holding::{LeaseClaimResult, LeaseTerms, LostLeaseCallback, ShardLease, ShardLeaseError};
pub use planning::{PlanCreationSettings, PlanOutcome, SAME_DIRECTORY, TARGET_INSIDE, make};
pub use shard::{MOST_SHARDS, PlanTotals, ShardState, ShardWorkerCounts};
pub use status::{ShardPlanStatus, ShardStateCounts, ShardStatus, SplitFileStatus};
pub use verifying::{PlanVerifyResult, VerifyOptions, verify};

/// Lower bound of the bytes that a channel of a worker has in flight. Schedulers kill and requeue
/// workers, and the next one sends the data in flight again (docs/design/0023-shards.md).
pub const MIN_IN_FLIGHT: u64 = 512 << 10;

/// Reason why a plan cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// A file of the folder cannot be reached; another try may help.
    Io(String),
    /// The plan is damaged, of another version, or not to be trusted; another try does not help.
    Unusable(String),
    /// The plan has fewer shards.
    NoSuchShard(String),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(what) | Self::Unusable(what) | Self::NoSuchShard(what) => f.write_str(what),
        }
    }
}

/// Counts and outcome of the copy of one shard.
#[derive(Clone, Debug)]
pub struct ShardCopyResult {
    /// Result of the copy.
    pub summary: CopySummary,
    /// Outcome of the shard's copy.
    pub end: ShardOutcome,
    /// Files that were at the target already.
    pub unchanged: u64,
    /// The directories of the whole tree have their attributes.
    pub sealed: bool,
}

/// Outcome of a shard's copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardOutcome {
    /// All entries are at the target.
    Done,
    /// Some entries failed.
    Failed,
    /// Entries have changed since the plan was made; the others are at the target.
    Changed(u64),
    /// The temporary of a split file is lost, or the server does not let several shards write one
    /// file; all other entries are at the target. Another try does not help.
    Unwritable,
    /// A signal or a lost connection stopped the worker.
    Stopped,
    /// The worker has lost its lease, for this reason.
    Superseded(String),
    /// The plan cannot be used.
    Unusable(PlanError),
}

/// Path of a plan's folder for messages.
fn shown(path: &std::path::Path) -> EscapedName {
    EscapedName::from(path)
}

/// Makes a path absolute without looking at the file system.
fn absolute(path: &std::path::Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}
