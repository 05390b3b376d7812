//! Cuts a tree into shards that several machines copy, and decides which worker may copy a shard.
//! Pure: entries, texts and observations come as data, and decisions leave as data.
//!
//! - [`Assignment`] gives each entry a shard, so that all shards take about as long.
//! - [`Header`] is the text file of a plan: source, target, totals, and the checksum of each shard.
//! - [`Record`] is one step of a shard's file, and [`TreeCheck`] refuses steps that would lead out of
//!   the target.
//! - [`Lease`] is the text file by which a worker holds a shard, numbered by its fencing number.
//! - [`Claimant`] and [`Holder`] are the two sides of the lease protocol.
//!
//! What is read back from a plan's folder is untrusted: every length, count and name is checked.

mod balance;
mod claim;
mod header;
mod lease;
mod record;
mod text;

pub use balance::{Assignment, cost};
pub use claim::{Claim, Claimant, Holder, HolderTurn};
pub use header::{Header, HeaderError, MOST_SHARDS, ShardTotals, Totals};
pub use lease::{Figures, Lease, Place, ShardState};
pub use record::{Attributes, Damage, Record, TreeCheck, decode};
