//! Cuts a tree into shards that several machines copy, and decides which worker may copy a shard.
//! Pure: entries, texts and observations come as data, and decisions leave as data.
//!
//! - [`ShardAssignment`] gives each entry a shard, so that all shards take about as long.
//! - [`PlanHeader`] is the text file of a plan: source, target, totals, and the checksum of each
//!   shard.
//! - [`ShardFileRecord`] is one step of a shard's file, and [`ShardStepCheck`] refuses steps that would lead
//!   out of the target.
//! - [`Lease`] is the text file by which a worker holds a shard, numbered by its fencing number.
//! - [`Claimant`] and [`LeaseHolder`] are the two sides of the lease protocol.
//!
//! What is read back from a plan's folder is untrusted: every length, count and name is checked.

mod balance;
mod claim;
mod header;
mod lease;
mod record;
mod shard_range_checker;
mod text;

pub use balance::{EntryShards, ShardAssignment, ShardFileRange, cost};
pub use claim::{ClaimDecision, Claimant, LeaseAction, LeaseHolder};
pub use header::{MOST_SHARDS, PlanHeader, PlanHeaderError, PlanTotals, ShardTotals};
pub use lease::{HolderProcess, Lease, ShardState, ShardWorkerCounts};
pub use record::{
    PlannedAttributes, PlannedRange, ShardFileError, ShardFileRecord, ShardStepCheck, decode,
};
pub use shard_range_checker::PlanRecordFile;
