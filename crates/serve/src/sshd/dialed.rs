//! Hands connections that this machine has opened to the thread that accepts connections.

use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, channel as queue};

/// Queue of opened connections, with a pipe that becomes readable when one waits.
#[derive(Debug)]
pub(super) struct DialedConnections {
    streams: Receiver<(TcpStream, SocketAddr)>,
    wake: PipeReader,
}

/// Gives connections that this machine has opened to the accepting thread, and wakes its poll(2).
#[derive(Debug)]
pub(super) struct DialedConnectionSender {
    streams: Sender<(TcpStream, SocketAddr)>,
    wake: PipeWriter,
}

/// Creates the queue.
///
/// # Errors
/// No descriptors are left.
pub(super) fn channel() -> io::Result<(DialedConnections, DialedConnectionSender)> {
    let (read, write) = io::pipe()?;
    rustix::io::ioctl_fionbio(&read, true)?;
    let (sender, streams) = queue();
    let waiting = DialedConnections {
        streams,
        wake: read,
    };
    let sender = DialedConnectionSender {
        streams: sender,
        wake: write,
    };
    Ok((waiting, sender))
}

impl DialedConnectionSender {
    /// Hands a connection over.
    ///
    /// # Errors
    /// The server has ended.
    pub(super) fn hand_over(&self, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.streams.send((stream, peer)).map_err(gone)?;
        (&self.wake).write_all(b"1")
    }

    /// Returns a second sender for the same queue.
    ///
    /// # Errors
    /// No descriptors are left.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            streams: self.streams.clone(),
            wake: self.wake.try_clone()?,
        })
    }
}

impl DialedConnections {
    /// Takes the connections that wait.
    pub(super) fn take(&self) -> Vec<(TcpStream, SocketAddr)> {
        let mut woken = [0; 64];
        // The pipe does not block; one that is empty has an error.
        let _ = (&self.wake).read(&mut woken);
        self.streams.try_iter().collect()
    }
}

impl AsFd for DialedConnections {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
