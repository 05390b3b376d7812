//! An SSH server for file transfers: it listens, lets the user of this process in with the keys of
//! authorized_keys, and serves nothing but the SFTP subsystem.
//!
//! Each connection has a thread of its own with a blocking loop: how many there may be is bounded,
//! and file systems block anyway.

mod authorized;
mod connection;
mod crowd;
mod expiry;
mod host_key;
mod patterns;
mod session;
mod users;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};
use ssh::key::PrivateKey;
use ssh::transport::Renounced;
use tracing::{info, info_span, warn};

use crate::Export;
use connection::Connection;
use crowd::{Crowd, Place};

pub use host_key::generate;
pub use users::Users;

/// When the process has no descriptor left for a connection, it looks again after so long.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// What is served to whom, and as which host.
#[derive(Debug)]
pub struct Settings {
    /// What whoever has logged in is served.
    pub export: Export,
    /// Who may log in.
    pub users: Users,
    /// What proves that it is this host, one of each type; the preferred first.
    pub host_keys: Vec<Arc<PrivateKey>>,
    /// What clients that were told the same do without once they have logged in.
    pub renounced: Renounced,
    /// Windows follow the round trip and the socket, of which the kernel is asked now and then.
    pub window_poll: bool,
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    settings: Arc<Settings>,
}

/// Ends a [`Server`] when it is dropped: nobody is let in any more, and whoever transfers
/// something is served to the end.
#[derive(Debug)]
pub struct Running(#[allow(dead_code, reason = "its end is seen at the other end")] OwnedFd);

/// Readable, at its end, once the [`Running`] of the same pair is gone.
#[derive(Clone, Debug)]
pub struct Stopping(Arc<OwnedFd>);

/// Both ends of what stops a server.
///
/// # Errors
/// There are no descriptors left.
pub fn stopping() -> io::Result<(Running, Stopping)> {
    let (read, write) = io::pipe()?;
    Ok((Running(write.into()), Stopping(Arc::new(read.into()))))
}

impl Server {
    /// Listens at the first of `addresses` that can be had.
    ///
    /// The process may have as many descriptors from now on as it can ask for without a right to
    /// it: each connection has one, and each file that is open.
    ///
    /// # Errors
    /// The port is taken, or is not this user's to listen at.
    pub fn bind(addresses: &[SocketAddr], settings: Settings) -> io::Result<Self> {
        let listener = TcpListener::bind(addresses)?;
        listener.set_nonblocking(true)?;
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // Without it there is less room, and nothing else is wrong.
        let _ = setrlimit(Resource::Nofile, limit);
        Ok(Self {
            listener,
            settings: Arc::new(settings),
        })
    }

    /// Where it listens: the port that the system chose, where it was to.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stopping`, and then whoever transfers something to the end.
    ///
    /// # Errors
    /// The listening socket has broken.
    pub fn run(self, stopping: &Stopping) -> io::Result<()> {
        let crowd = Crowd::default();
        loop {
            let mut fds = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&*stopping.0, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            if !fds[1].revents().is_empty() {
                break;
            }
            match self.listener.accept() {
                Ok((stream, peer)) => self.welcome(stream, peer, &crowd, stopping),
                Err(e) if is_passing(&e) => {}
                Err(e) if is_exhausted(&e) => {
                    warn!("no connection can be taken now: {e}");
                    thread::sleep(EXHAUSTED);
                }
                Err(e) => return Err(e),
            }
        }
        drop(self.listener);
        info!("nobody is let in any more; what is being transferred is served to the end");
        crowd.wait_until_empty();
        Ok(())
    }

    fn welcome(&self, stream: TcpStream, peer: SocketAddr, crowd: &Crowd, stopping: &Stopping) {
        let place = match crowd.enter(peer.ip()) {
            Ok(place) => place,
            Err(why) => {
                warn!(%peer, "turned away: {why}");
                turn_away(&stream, why);
                return;
            }
        };
        let (settings, stopping) = (Arc::clone(&self.settings), stopping.clone());
        let thread = thread::Builder::new().name("connection".to_owned());
        let started = thread.spawn(move || serve(&settings, stream, peer, place, &stopping));
        if let Err(e) = started {
            warn!(%peer, "turned away: no thread can be started: {e}");
        }
    }
}

fn serve(
    settings: &Settings,
    stream: TcpStream,
    peer: SocketAddr,
    place: Place,
    stopping: &Stopping,
) {
    let _span = info_span!("connection", %peer).entered();
    match Connection::new(settings, stream, peer, place).and_then(|c| c.run(stopping)) {
        Ok(()) => info!("gone"),
        Err(why) => warn!("ended: {why}"),
    }
}

/// RFC 4253 section 4.2: lines before the identification are for people. Whoever does not read it
/// is not waited for.
fn turn_away(stream: &TcpStream, why: &str) {
    let line = format!("{why}\r\n");
    let _ = rustix::net::send(stream, line.as_bytes(), rustix::net::SendFlags::DONTWAIT);
}

/// Errors of one connection, which is gone then (accept(2)).
fn is_passing(e: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        e.kind(),
        Kind::WouldBlock
            | Kind::Interrupted
            | Kind::ConnectionAborted
            | Kind::ConnectionReset
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
    )
}

fn is_exhausted(e: &io::Error) -> bool {
    let errno = Errno::from_io_error(e);
    matches!(
        errno,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}
