//! Sizes that decide how a copy proceeds.

use crate::disk::MOST_HELD;

/// Sizes that decide how a copy proceeds. A simulation has smaller ones, so that small files take
/// every way through the copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyLimits {
    /// Bytes held of one file between two hosts, at most.
    pub relay_held: u64,
    /// Bytes that a buffer between two hosts may hold beyond the size that the source states, and
    /// that each file counts for as well: 600 files of one stated byte each, and 8 MB in fact, took
    /// 2.3 GB. At least [`schedule::UPLOAD_BEGINS`], or the upload of a file that has grown would
    /// never begin.
    pub relay_slack: u64,
    /// Bytes held of all files between two hosts.
    pub relay_budget: u64,
    /// Bytes below which a copy is sent again rather than recorded in the journal.
    pub journal_bytes: u64,
    /// Number of files below which a copy is sent again rather than recorded in the journal.
    pub journal_files: u64,
}

impl Default for CopyLimits {
    fn default() -> Self {
        Self {
            relay_held: MOST_HELD,
            relay_slack: 512 << 10,
            relay_budget: 256 << 20,
            journal_bytes: 16 << 20,
            journal_files: 256,
        }
    }
}
