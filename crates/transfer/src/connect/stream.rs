//! The socket beneath a connection: TCP, or a socketpair to a ProxyCommand or an outer
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
pub enum Stream {
    /// Straight to the host.
    Tcp(TcpStream),
    /// To the child (ProxyCommand), which is ended with it.
    Command(UnixStream, ProxyProcess),
    /// To a thread that carries it through another connection (ProxyJump), or to whoever passed
    /// the socket.
    Jump(UnixStream, Option<Carried>),
}

/// A connection that another one carries.
#[derive(Debug)]
pub struct Carried {
    /// Who carries it.
    pub(super) thread: JoinHandle<()>,
    /// Why there is none, in the words of the host that leads there.
    pub(super) refused: Arc<OnceLock<String>>,
}

impl Stream {
    /// Makes reads and writes return instead of wait.
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

    /// Writes what it takes of what is in front; to a peer that does not read them either, files as the pages that they
    /// have. Who carries a stream through another reads it.
    pub fn write(&self, queue: &SealedQueue, pages: bool) -> io::Result<usize> {
        match self {
            Self::Tcp(s) if pages => sys::send_parts(s, queue.parts()),
            _ => sys::write_parts(self, queue.parts()),
        }
    }

    /// Says why it has ended, where whoever carries it knows more than that. It may take half a
    /// second.
    pub fn why_ended(&self) -> Option<String> {
        match self {
            Self::Jump(_, Some(carried)) => carried.refused.get().cloned(),
            Self::Command(_, process) => Some(process.why_ended()),
            _ => None,
        }
    }

    /// Where a TCP connection leads to.
    pub fn address(&self) -> Option<String> {
        match self {
            Self::Tcp(s) => s.peer_addr().ok().map(|a| a.to_string()),
            _ => None,
        }
    }

    /// This end's address and the other one's, of a TCP connection.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        match self {
            Self::Tcp(s) => Some((s.local_addr().ok()?.ip(), s.peer_addr().ok()?.ip())),
            _ => None,
        }
    }

    /// Whether a TCP connection leads to this machine itself. A forwarded port looks like it.
    pub fn is_one_machine(&self) -> bool {
        match self {
            Self::Tcp(s) => sys::is_one_machine(s),
            _ => false,
        }
    }

    /// Has it known that data will come or go over it.
    pub fn expect_data(&self) {
        if let Self::Tcp(s) = self {
            sys::Workers::shared().expect(s);
        }
    }

    /// Asks for a congestion control that does not take each loss for congestion; false where
    /// that is not to be had.
    pub fn bear_losses(&self) -> bool {
        match self {
            Self::Tcp(s) => sys::set_congestion_control(s, "bbr"),
            _ => false,
        }
    }

    /// Has the next segments acknowledged as they come; the kernel goes back to waiting by itself.
    /// sshd writes its answers to a login piece by piece, and Nagle's algorithm there holds each
    /// piece until the one before is acknowledged, which a delayed acknowledgement makes 40 ms more.
    pub fn acknowledge_at_once(&self) {
        #[cfg(target_os = "linux")]
        if let Self::Tcp(s) = self {
            // Without it all is only slower.
            let _ = rustix::net::sockopt::set_tcp_quickack(s, true);
        }
    }

    /// Whether [`Stream::cut`] holds anything back: not where the stream is carried by somebody
    /// else, who goes on sending.
    pub fn cuts(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// Has what was written and not sent yet thrown away when it is dropped, and the peer told at
    /// once (a linger time of zero: RST).
    pub fn cut(&self) {
        if let Self::Tcp(s) = self {
            // Without it what was written arrives late, which the sums of the file would show.
            let _ = socket2::SockRef::from(s).set_linger(Some(std::time::Duration::ZERO));
        }
    }

    /// What the kernel says of a TCP connection; of what lies behind a command or another
    /// connection it knows nothing.
    pub fn tcp_info(&self) -> Option<sys::TcpInfo> {
        match self {
            Self::Tcp(s) => sys::tcp_info(s),
            _ => None,
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(s) => s.as_fd(),
            Self::Command(s, _) | Self::Jump(s, _) => s.as_fd(),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        match self {
            Self::Tcp(_) => {}
            Self::Command(stream, child) => {
                // Its input ends, and it should too; ssh kills its ProxyCommand likewise.
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
