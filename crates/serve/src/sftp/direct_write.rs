//! Tracks WRITE data that go to their file as they arrive, without being copied to memory.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use sftp::Request;

use crate::Server;
use crate::sftp::handles::OpenHandle;

/// Data bytes of a WRITE from which the next one is expected to be as large.
const LARGE: u64 = 128 << 10;

/// Number of other requests allowed between two large WRITEs: one file or range is closed and
/// another opened.
const BETWEEN: u8 = 6;

/// Tracks whether large WRITEs are coming.
#[derive(Debug, Default)]
pub(crate) struct LargeWrites {
    /// Number of requests after which large WRITEs are no longer expected.
    left: u8,
}

/// Target of the data of an arriving WRITE.
pub(crate) struct WriteTarget {
    pub(crate) file: Arc<File>,
    pub(crate) offset: u64,
    /// Bytes still to come.
    pub(crate) left: usize,
}

/// Progress of a WRITE whose data go directly to the file.
#[derive(Debug, Default)]
pub(crate) struct PlacedBytes {
    pub(crate) bytes: u64,
    /// First error; the rest of the WRITE is discarded.
    pub(crate) failed: Option<Errno>,
}

impl Server<'_> {
    /// True if one of the last requests was a WRITE with much data.
    pub(crate) fn takes_large(&self) -> bool {
        self.large.left > 0
    }

    /// Counts a request's data: the bytes in it, those beside it, and those that went directly to
    /// the file.
    pub(crate) fn note_length(&mut self, request: &Request<'_>, beside: &[Bytes]) {
        self.large.left = match request {
            Request::Write { data, .. } => {
                let beside = beside.iter().map(Bytes::len).sum::<usize>();
                let all = (data.len() + beside) as u64 + self.session.placed.bytes;
                if all >= LARGE { BETWEEN } else { 0 }
            }
            _ => self.large.left.saturating_sub(1),
        };
    }

    /// True if the next bytes are data of a WRITE that has begun.
    pub(crate) fn is_within(&self) -> bool {
        self.splitter.arriving().is_some()
    }

    /// Target of the next data, if they may go there directly: they belong to a WRITE to a file,
    /// none of them are in memory, and nothing has to be carried out before.
    pub(crate) fn place(&mut self) -> Option<WriteTarget> {
        let begins = self.session.placed.bytes == 0;
        let waits = self.held.is_some() || self.session.placed.failed.is_some();
        if waits || !self.session.unsynced.is_empty() {
            return None;
        }
        let (request, left) = self.splitter.arriving()?;
        if left == 0 || !self.session.lets(&request) || !self.session.export.access.allows(&request)
        {
            return None;
        }
        let Request::Write { handle, offset, .. } = request else {
            return None;
        };
        let OpenHandle::File { file, append, .. } = self.session.handles.get_mut(handle).ok()?
        else {
            return None;
        };
        let regular =
            |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if *append || (begins && !fstat(&**file).is_ok_and(regular)) {
            return None;
        }
        Some(WriteTarget {
            file: Arc::clone(file),
            offset: offset.checked_add(self.session.placed.bytes)?,
            left,
        })
    }

    /// Records that `n` more bytes are on their way to the file, or that an earlier write failed.
    pub(crate) fn placed(&mut self, n: usize, done: Result<(), Errno>) {
        self.splitter.skip(n);
        self.session.placed.bytes += n as u64;
        if let Err(failed) = done {
            self.session.placed.failed.get_or_insert(failed);
        }
    }
}

#[cfg(test)]
#[path = "direct_write_tests.rs"]
mod tests;
