//! The journal of a copy, from which an interrupted copy resumes.
//!
//! An append-only file of checksummed records (docs/journal.md). [`Writer`] encodes [`Record`]s as
//! bytes; [`Replayer`] decodes the bytes of an earlier run to a [`State`]: finished files, unfinished
//! files with the ranges known to be good, and possible leftover temporaries. The caller owns the
//! file, the clock and the lock.

mod checksum;
mod format;
mod record;
mod state;

pub use format::{HEADER, Replay, Replayer, UnusableJournal, Writer, replay};
pub use record::{LONGEST, MOST_RANGES, Record, SourceId};
pub use state::{CompletedFile, Entry, ExistingFile, State};
