//! Pool of empty pipes for splice(2).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

use super::leg::retry;

/// Minimum size of a usable pipe in bytes; with a smaller one, splicing takes more calls than
/// copying.
const SMALLEST: usize = 64 << 10;
/// Requested size of a pipe in bytes: the default of pipe-max-size for unprivileged users.
const SIZE: usize = 1 << 20;
/// Maximum number of empty pipes in the pool of a worker.
const KEPT: usize = 32;

/// Non-blocking pipe(2) between the two splices of a flow. The flow holds it while bytes are in it;
/// in the [`PipePool`] it is empty.
#[derive(Debug)]
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

/// Pool of unused pipes of one worker.
#[derive(Debug, Default)]
pub(crate) struct PipePool {
    empty: Vec<Pipe>,
    /// The last new pipe was too small: above pipe-user-pages-soft the kernel creates pipes of one
    /// or two pages.
    exhausted: bool,
}

impl Pipe {
    pub(crate) fn reader(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }

    pub(crate) fn writer(&self) -> BorrowedFd<'_> {
        self.write.as_fd()
    }

    /// Consumes the pipe and returns the `held` bytes in it.
    pub(crate) fn emptied(self, held: usize) -> io::Result<Box<[u8]>> {
        let mut bytes = vec![0; held];
        let mut got = 0;
        while let Some(rest) = bytes.get_mut(got..).filter(|rest| !rest.is_empty()) {
            match retry(|| rustix::io::read(&self.read, &mut *rest))? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => got += n,
            }
        }
        Ok(bytes.into())
    }
}

impl PipePool {
    /// Returns an empty pipe, or `None` if the kernel only creates pipes that are too small.
    pub(crate) fn take(&mut self) -> Option<Pipe> {
        if let Some(pipe) = self.empty.pop() {
            return Some(pipe);
        }
        if self.exhausted {
            return None;
        }
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (read, write) = pipe_with(flags).ok()?;
        // Best effort: the resulting size is read back below.
        let _ = fcntl_setpipe_size(&write, SIZE);
        let size = fcntl_getpipe_size(&write).unwrap_or(0);
        self.exhausted = size < SMALLEST;
        (!self.exhausted).then_some(Pipe { read, write })
    }

    /// Returns a pipe to the pool. The pipe must be empty: remaining bytes would be sent to another
    /// connection.
    pub(crate) fn give_back(&mut self, pipe: Pipe) {
        self.exhausted = false;
        if self.empty.len() < KEPT {
            self.empty.push(pipe);
        }
    }
}
