//! Signals as readable descriptors, since threads are not possible around namespaces.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::low_level::pipe;

/// A descriptor that becomes readable when its signal arrives.
#[derive(Debug)]
pub(crate) struct SignalFd {
    pub(crate) signal: i32,
    socket: UnixStream,
}

impl SignalFd {
    /// Watches a signal. `None` if this process inherited it as ignored, as under nohup; its
    /// children should inherit that too.
    pub(crate) fn new(signal: i32) -> io::Result<Option<Self>> {
        if sys::ignored_signals() & (1 << (signal - 1)) != 0 {
            return Ok(None);
        }
        let (socket, write) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        pipe::register(signal, write)?;
        Ok(Some(Self { signal, socket }))
    }

    /// Returns true if the signal has arrived since the last call.
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
