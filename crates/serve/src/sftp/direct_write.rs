//! Tracks WRITE data that go to their file as they arrive, without being copied to memory.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use rustix::io::Errno;
use sftp::Request;

/// Data bytes of a WRITE from which the next one is expected to be as large.
const LARGE: u64 = 128 << 10;

/// Number of other requests allowed between two large WRITEs: one file or range is closed and
/// another opened.
const BETWEEN: u8 = 6;

/// Predicts from the last requests that more WRITEs with at least 128 KiB of data follow: until six
/// requests of another kind, or one smaller WRITE.
#[derive(Debug, Default)]
pub(super) struct LargeWritePredictor {
    /// Number of requests after which large WRITEs are no longer expected.
    left: u8,
}

impl LargeWritePredictor {
    /// True if one of the last requests was a WRITE with much data.
    pub(super) fn are_expected(&self) -> bool {
        self.left > 0
    }

    /// Counts a request's data: the bytes in it, those beside it, and those that went directly to
    /// the file.
    pub(super) fn note(&mut self, request: &Request<'_>, beside: &[Bytes], placed: u64) {
        self.left = match request {
            Request::Write { data, .. } => {
                let beside = beside.iter().map(Bytes::len).sum::<usize>();
                let all = (data.len() + beside) as u64 + placed;
                if all >= LARGE { BETWEEN } else { 0 }
            }
            _ => self.left.saturating_sub(1),
        };
    }
}

/// Target of the data of an arriving WRITE.
pub(crate) struct WriteTarget {
    file: Arc<File>,
    offset: u64,
    left: usize,
}

impl WriteTarget {
    pub(super) fn new(file: Arc<File>, offset: u64, left: usize) -> Self {
        Self { file, offset, left }
    }

    /// Number of data bytes still to come.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// The file, and the offset for the next byte.
    pub(crate) fn into_place(self) -> (Arc<File>, u64) {
        (self.file, self.offset)
    }
}

/// Progress of a WRITE whose data go directly to the file.
#[derive(Debug, Default)]
pub(super) struct DirectWriteProgress {
    bytes: u64,
    /// First error; the rest of the WRITE is discarded.
    failed: Option<Errno>,
}

impl DirectWriteProgress {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Offset of the next data of a WRITE to `offset`; `None` once the file has failed.
    pub(super) fn next_offset(&self, offset: u64) -> Option<u64> {
        match self.failed {
            Some(_) => None,
            None => offset.checked_add(self.bytes),
        }
    }

    /// Adds `n` bytes that are on their way to the file, or the error of an earlier write.
    pub(super) fn add(&mut self, n: usize, done: Result<(), Errno>) {
        self.bytes += n as u64;
        if let Err(failed) = done {
            self.failed.get_or_insert(failed);
        }
    }

    /// Number of bytes that have gone to the file, unless it has failed.
    pub(super) fn finish(self) -> Result<u64, Errno> {
        self.failed.map_or(Ok(self.bytes), Err)
    }
}

#[cfg(test)]
#[path = "direct_write_tests.rs"]
mod tests;
