//! Data of a WRITE that go to their file as they come, without coming to memory.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use sftp::Request;

use crate::Server;
use crate::handles::Open;

/// Data of a WRITE from which on the next one may be as long.
const LARGE: u64 = 128 << 10;

/// So many other requests may come between two of them: a file, or a part of one, is closed and another opened.
const BETWEEN: u8 = 6;

/// Whether large WRITEs come.
#[derive(Debug, Default)]
pub(crate) struct LargeWrites {
    /// Requests until none is expected any more.
    left: u8,
}

/// Where the data go of a WRITE that is arriving.
pub(crate) struct Place {
    pub(crate) file: Arc<File>,
    pub(crate) offset: u64,
    /// Bytes that are still to come.
    pub(crate) left: usize,
}

/// What of the data of a WRITE has gone to its file.
#[derive(Debug, Default)]
pub(crate) struct PlacedBytes {
    pub(crate) bytes: u64,
    /// Some of it has not, and what follows is not to be written either.
    pub(crate) failed: Option<Errno>,
}

impl Server<'_> {
    /// Whether one of the last requests was a WRITE with much data.
    pub(crate) fn takes_large(&self) -> bool {
        self.large.left > 0
    }

    /// Notes a request with the data that came beside it: what it has in itself counts, and what has gone to its file.
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

    /// Whether data of a WRITE come next of which none are in memory.
    pub(crate) fn is_within(&self) -> bool {
        self.splitter.arriving().is_some()
    }

    /// Where the data go that come next, if that is known and they may go there at once: they are those of a
    /// WRITE to a file, of which none are in memory, and it waits for nothing.
    pub(crate) fn place(&mut self) -> Option<Place> {
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
        let Open::File { file, append, .. } = self.session.handles.get_mut(handle).ok()? else {
            return None;
        };
        let regular =
            |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if *append || (begins && !fstat(&**file).is_ok_and(regular)) {
            return None;
        }
        Some(Place {
            file: Arc::clone(file),
            offset: offset.checked_add(self.session.placed.bytes)?,
            left,
        })
    }

    /// `n` bytes more of them are on their way there, or what was has failed.
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
