//! Signals as readable descriptors: threads are out of question around namespaces.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::low_level::pipe;

/// Becomes readable when its signal has come.
#[derive(Debug)]
pub(crate) struct SignalFd {
    pub(crate) signal: i32,
    socket: UnixStream,
}

impl SignalFd {
    /// Watches a signal; `None` if this process was started with it ignored, as by nohup, and
    /// its children are to have it so too.
    pub(crate) fn new(signal: i32) -> io::Result<Option<Self>> {
        if sys::ignored_signals() & (1 << (signal - 1)) != 0 {
            return Ok(None);
        }
        let (socket, write) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        pipe::register(signal, write)?;
        Ok(Some(Self { signal, socket }))
    }

    /// Whether it has come since the last call.
    pub(crate) fn came(&self) -> bool {
        let mut bytes = [0; 64];
        matches!(io::Read::read(&mut &self.socket, &mut bytes), Ok(1..))
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
