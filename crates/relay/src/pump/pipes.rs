//! Pipes that bytes are spliced through, kept for the next that needs one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

use super::leg::retry;

/// A pipe of a smaller size costs more calls than a copy does.
const SMALLEST: usize = 64 << 10;
/// What is asked for: pipe-max-size of an ordinary user.
const SIZE: usize = 1 << 20;
/// So many are kept by each worker.
const KEPT: usize = 32;

/// An empty pipe.
#[derive(Debug)]
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

/// Those of one worker that nobody uses.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    empty: Vec<Pipe>,
    /// The kernel has no more to give: pipe-user-pages-soft makes new ones of one or two pages.
    exhausted: bool,
}

impl Pipe {
    pub(crate) fn reader(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }

    pub(crate) fn writer(&self) -> BorrowedFd<'_> {
        self.write.as_fd()
    }

    /// Ends it, and hands out the bytes that were in it.
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

impl Pipes {
    /// An empty one; `None` where there is none worth having.
    pub(crate) fn take(&mut self) -> Option<Pipe> {
        if let Some(pipe) = self.empty.pop() {
            return Some(pipe);
        }
        if self.exhausted {
            return None;
        }
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (read, write) = pipe_with(flags).ok()?;
        // Best effort: what came of it is read back.
        let _ = fcntl_setpipe_size(&write, SIZE);
        let size = fcntl_getpipe_size(&write).unwrap_or(0);
        self.exhausted = size < SMALLEST;
        (!self.exhausted).then_some(Pipe { read, write })
    }

    /// Keeps one for the next. It must be empty: whoever got it with bytes in it would pass on what
    /// is somebody else's.
    pub(crate) fn give_back(&mut self, pipe: Pipe) {
        self.exhausted = false;
        if self.empty.len() < KEPT {
            self.empty.push(pipe);
        }
    }
}
