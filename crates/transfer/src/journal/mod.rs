//! The journal's file: its location, its permissions, and the thread that writes it.
//!
//! The format and the rules for trusting it: [`schedule::journal`], docs/journal.md.

mod file;
mod flush;
mod log;
#[cfg(test)]
mod log_tests;
mod place;
mod store;
mod syncs;

pub(crate) use file::JournalFile;
pub(crate) use flush::FileDevices;
pub(crate) use place::boot_here;
pub(crate) use store::{EarlierRun, JournalStore, JournalWriter};
