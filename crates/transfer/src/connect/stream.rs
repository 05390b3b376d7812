//! The byte stream beneath a connection: TCP, or a socket pair to a ProxyCommand or an outer
//! connection.

use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use ssh::SealedQueue;

use super::proxy_process::ProxyProcess;

/// A connected byte stream, non-blocking.
#[derive(Debug)]
pub enum ConnectedStream {
    /// A TCP connection to the host.
    Tcp(TcpStream),
    /// A socket pair to a ProxyCommand, which ends together with the stream.
    Command(UnixStream, ProxyProcess),
    /// A socket pair to a thread that carries the stream through another connection (ProxyJump), or
    /// a passed socket (ProxyUseFdpass).
    Jump(UnixStream, Option<JumpStreamThread>),
}

/// Thread that carries a stream through a connection to a jump host.
#[derive(Debug)]
pub struct JumpStreamThread {
    /// The carrying thread.
    thread: JoinHandle<()>,
    /// The reason for a refused connection, from the jump host.
    refused: Arc<OnceLock<String>>,
}

impl JumpStreamThread {
    /// The running `thread`, which sets `refused` if the jump host refuses the connection.
    pub(super) fn new(thread: JoinHandle<()>, refused: Arc<OnceLock<String>>) -> Self {
        Self { thread, refused }
    }
}

impl ConnectedStream {
    /// Makes reads and writes non-blocking.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(s) => s.set_nonblocking(true),
            Self::Command(s, _) | Self::Jump(s, _) => s.set_nonblocking(true),
        }
    }

    /// Registers for reading and writing, edge-triggered.
    pub fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        let fd = self.as_fd().as_raw_fd();
        registry.register(
            &mut SourceFd(&fd),
            token,
            Interest::READABLE | Interest::WRITABLE,
        )
    }

    /// Ends the registration.
    pub fn deregister(&self, registry: &Registry) -> io::Result<()> {
        registry.deregister(&mut SourceFd(&self.as_fd().as_raw_fd()))
    }

    /// Writes the front of the queue, and of a login's messages at most `most` bytes; returns the
    /// number of bytes. With `pages`, over TCP, file contents are sent from their page-cache pages.
    /// A stream that another process carries is copied.
    pub fn write(
        &self,
        queue: &SealedQueue,
        pages: bool,
        most: Option<usize>,
    ) -> io::Result<usize> {
        match (self, most) {
            (_, Some(most)) => sys::write_parts(self, queue.front(most)),
            (Self::Tcp(s), None) if pages => sys::send_parts(s, queue.parts()),
            _ => sys::write_parts(self, queue.parts()),
        }
    }

    /// Returns the reason for the end of the stream if the carrier knows more than the socket. May
    /// block for half a second.
    pub fn why_ended(&self) -> Option<String> {
        match self {
            Self::Jump(_, Some(carried)) => carried.refused.get().cloned(),
            Self::Command(_, process) => Some(process.why_ended()),
            _ => None,
        }
    }

    /// Returns the peer's address of a TCP connection.
    pub fn address(&self) -> Option<String> {
        match self {
            Self::Tcp(s) => s.peer_addr().ok().map(|a| a.to_string()),
            _ => None,
        }
    }

    /// Returns the local and the peer's IP address of a TCP connection.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        match self {
            Self::Tcp(s) => Some((s.local_addr().ok()?.ip(), s.peer_addr().ok()?.ip())),
            _ => None,
        }
    }

    /// True if a TCP connection ends on this machine. A forwarded port looks the same.
    pub fn is_one_machine(&self) -> bool {
        match self {
            Self::Tcp(s) => sys::is_one_machine(s),
            _ => false,
        }
    }

    /// Announces to the worker threads that this connection will carry data.
    pub fn expect_data(&self) {
        if let Self::Tcp(s) = self {
            sys::HelperThreads::shared().expect(s);
        }
    }

    /// Selects a congestion control that tolerates random loss (BBR); false if it is unavailable.
    pub fn bear_losses(&self) -> bool {
        match self {
            Self::Tcp(s) => sys::set_congestion_control(s, "bbr"),
            _ => false,
        }
    }

    /// Turns delayed acknowledgements off for the next segments; the kernel turns them on again by
    /// itself. sshd writes its login answers in pieces, and Nagle's algorithm holds each piece
    /// until the one before is acknowledged, which costs 40 ms with a delayed acknowledgement.
    pub fn acknowledge_at_once(&self) {
        #[cfg(target_os = "linux")]
        if let Self::Tcp(s) = self {
            // Failure only costs time.
            let _ = rustix::net::sockopt::set_tcp_quickack(s, true);
        }
    }

    /// True if [`ConnectedStream::cut`] discards unsent data; false for carried streams, whose
    /// carrier still sends.
    pub fn cuts(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// Makes a drop discard unsent data and reset the connection (SO_LINGER with zero time: RST).
    pub fn cut(&self) {
        if let Self::Tcp(s) = self {
            // On failure the data arrive late, which the checksums of the file would show.
            let _ = socket2::SockRef::from(s).set_linger(Some(std::time::Duration::ZERO));
        }
    }

    /// Returns TCP_INFO of a TCP connection; `None` for proxy commands and jump hosts.
    pub fn tcp_info(&self) -> Option<sys::TcpInfo> {
        match self {
            Self::Tcp(s) => sys::tcp_info(s),
            _ => None,
        }
    }
}

impl AsFd for ConnectedStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(s) => s.as_fd(),
            Self::Command(s, _) | Self::Jump(s, _) => s.as_fd(),
        }
    }
}

impl Drop for ConnectedStream {
    fn drop(&mut self) {
        match self {
            Self::Tcp(_) => {}
            Self::Command(stream, child) => {
                // Closes the command's input and kills it, as ssh does.
                let _ = stream.shutdown(std::net::Shutdown::Both);
                child.kill();
                let _ = child.wait();
            }
            Self::Jump(stream, carried) => {
                let _ = stream.shutdown(std::net::Shutdown::Both);
                if let Some(carried) = carried.take() {
                    let _ = carried.thread.join();
                }
            }
        }
    }
}
