//! What a copy writes down so that it can go on after whatever interrupted it.
//!
//! An append-only file of checksummed records (docs/journal.md). [`Writer`] turns [`Record`]s into
//! bytes; [`replay`] turns the bytes of an earlier run into a [`State`]: what is done, what is
//! half done and how much of that is proven, and which temporaries lie about. Whoever owns file,
//! clock and lock calls them.

mod checksum;
mod format;
mod record;
mod state;

pub use format::{HEADER, Replay, UnusableJournal, Writer, replay};
pub use record::{LONGEST, MOST_RANGES, Record, SourceId};
pub use state::{Done, Entry, ExistingFile, State};
