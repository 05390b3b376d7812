//! The journal of a copy, from which an interrupted copy resumes.
//!
//! An append-only file of checksummed records (docs/journal.md). [`JournalEncoder`] encodes
//! [`JournalRecord`]s as bytes; [`JournalReplayer`] decodes the bytes of an earlier run to a
//! [`JournalState`]: finished files, unfinished files with the ranges known to be good, and
//! possible leftover temporaries. The caller owns the file, the clock and the lock.

mod checksum;
mod format;
mod record;
mod state;

pub(crate) use checksum::crc32c;
pub use format::{
    HEADER, JournalEncoder, JournalReadError, JournalReplay, JournalReplayer, replay,
};
pub use record::{JournalRecord, LONGEST, MOST_RANGES, SourceFileStamp};
pub use state::{CompletedFile, ExistingFile, JournalEntry, JournalState};
