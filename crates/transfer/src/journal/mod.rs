//! The journal's file: its location, its permissions, and the thread that writes it.
//!
//! The format and the rules for trusting it: [`schedule::journal`], docs/journal.md.

mod flush;
mod log;
#[cfg(test)]
mod log_tests;
mod place;
mod syncs;

pub(crate) use flush::{Devices, SyncBatch};
pub(crate) use log::Log;
pub(crate) use place::{JournalLocation, JournalSearch, boot_here, read_journal};
