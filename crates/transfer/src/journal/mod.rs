//! The journal's file: where it is, who may write it, and the thread that does.
//!
//! What is in it, and what is believed of it: [`schedule::journal`], docs/journal.md.

mod flush;
mod log;
#[cfg(test)]
mod log_tests;
mod place;
mod syncs;

pub(crate) use flush::{Devices, SyncBatch};
pub(crate) use log::Log;
pub(crate) use place::{Found, Place, boot_here};
