//! Sockets that listen: opened, handed on by somebody else, or opened beside one of ours.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use socket2::{SockRef, Socket};
use sys::Tuning;

use super::StartError;
use super::connection_limiter::ConnectionLimiter;
use super::running::Running;
use crate::address::{Host, Place};
use crate::settings::{RedirectKind, Relay};

/// As many as the kernel lets wait (net.core.somaxconn cuts it).
const BACKLOG: i32 = 4096;

/// One of the sockets of an entrance.
pub(super) struct Listener {
    pub(super) socket: Socket,
    pub(super) at: At,
    pub(super) running: Arc<Running>,
    pub(super) crowd: ConnectionLimiter,
    pub(super) ready: bool,
    /// Which it is of ours that listen at its address, as the kernel counts them.
    pub(super) nth: u32,
    /// Another listens in its place, and it is closed then.
    pub(super) retires: Option<Instant>,
}

/// A socket that listens, handed from one process to another.
#[derive(Debug)]
pub struct ListeningSocket {
    /// It listens.
    pub socket: OwnedFd,
    /// Another listens in its place, and it is closed after so long.
    pub retires_in: Option<Duration>,
}

/// A socket that listens and is no relay's yet.
pub(super) struct Opened {
    socket: Socket,
    at: At,
    retires: Option<Instant>,
}

impl Opened {
    fn new(socket: Socket, at: At) -> Self {
        Self {
            socket,
            at,
            retires: None,
        }
    }
}

/// Where a socket listens.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum At {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl At {
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// Where a socket that was handed on listens.
    fn of(socket: &OwnedFd) -> io::Result<Self> {
        let socket = SockRef::from(socket);
        let name = socket.local_addr()?;
        let path = name.as_pathname().map(Path::to_path_buf);
        let at = name.as_socket().map(Self::Tcp);
        at.or_else(|| path.map(Self::Unix))
            .ok_or_else(|| io::Error::other("it is neither of TCP nor at a path"))
    }
}

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => {
                let path = wire::escape::name(path.as_os_str().as_bytes());
                write!(f, "unix:{path}")
            }
        }
    }
}

impl Listener {
    pub(super) fn new(opened: Opened, running: &Arc<Running>) -> Self {
        Self {
            socket: opened.socket,
            at: opened.at,
            running: Arc::clone(running),
            crowd: ConnectionLimiter::default(),
            ready: false,
            nth: 0,
            retires: opened.retires,
        }
    }

    /// Has it told when somebody comes.
    pub(super) fn register(&self, registry: &Registry, slot: usize) -> io::Result<()> {
        self.socket.set_nonblocking(true)?;
        let fd = self.socket.as_raw_fd();
        registry.register(&mut SourceFd(&fd), Token(slot), Interest::READABLE)
    }

    pub(super) fn unregister(&self, registry: &Registry) {
        // What is closed next is told of no more in any case.
        let _ = registry.deregister(&mut SourceFd(&self.socket.as_raw_fd()));
    }

    /// Nobody is to come here any more: the path of a UNIX socket goes too.
    pub(super) fn close(self) {
        if let At::Unix(path) = &self.at {
            // Somebody else may have taken it away.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Sockets that listen already, handed on by whoever started this process or by a predecessor.
#[derive(Default)]
pub(super) struct Inherited(Vec<Opened>);

impl Inherited {
    pub(super) fn new(sockets: Vec<ListeningSocket>) -> Result<Self, StartError> {
        let now = Instant::now();
        let named = sockets.into_iter().map(|handed| {
            let wrong = |e: io::Error| StartError(format!("a socket that was handed on: {e}"));
            match rustix::net::sockopt::socket_acceptconn(&handed.socket) {
                Ok(true) => Ok(Opened {
                    at: At::of(&handed.socket).map_err(wrong)?,
                    socket: handed.socket.into(),
                    retires: handed.retires_in.map(|left| now + left),
                }),
                _ => Err(wrong(io::Error::other("it does not listen"))),
            }
        });
        named.collect::<Result<_, _>>().map(Self)
    }

    /// One that no relay has taken.
    pub(super) fn left(&self) -> Option<&At> {
        self.0.first().map(|opened| &opened.at)
    }

    /// Those at one of these places.
    fn take(&mut self, places: &[At]) -> Vec<Opened> {
        let all = std::mem::take(&mut self.0).into_iter();
        let (taken, left) = all.partition(|opened| places.contains(&opened.at));
        self.0 = left;
        taken
    }
}

/// What the sockets of an entrance have, which what is accepted there inherits.
pub(super) fn tuning(relay: &Relay) -> Tuning {
    Tuning {
        buffers: match relay.sockopts.no_sizes() {
            true => relay.tuning.buffers,
            false => relay.sockopts.for_all().client,
        },
        fastopen: relay.fastopen,
        transparent: relay.speaks.diverted == Some(RedirectKind::Tproxy),
        bind: None,
        interface: None,
        ..relay.tuning.clone()
    }
}

/// The sockets of an entrance, of those that were handed on if there are any for it.
pub(super) fn listen(
    running: &Running,
    inherited: &mut Inherited,
) -> Result<Vec<Opened>, StartError> {
    let place = &running.relay.entrance.place;
    let wrong = |e: io::Error| StartError(format!("{place} cannot be listened at: {e}"));
    sockets(&running.relay, inherited).map_err(wrong)
}

fn sockets(relay: &Relay, inherited: &mut Inherited) -> io::Result<Vec<Opened>> {
    let tuning = tuning(relay);
    let (addresses, several) = match &relay.entrance.place {
        Place::Streams => return Err(io::Error::other("standard streams are one connection")),
        Place::Unix(path) => {
            let at = At::Unix(path.clone());
            let taken = inherited.take(std::slice::from_ref(&at)).pop();
            if let Some(taken) = taken {
                return Ok(vec![taken]);
            }
            let socket = sys::listen_unix(path, BACKLOG)?;
            return Ok(vec![Opened::new(socket, at)]);
        }
        Place::Tcp {
            host: Host::Name(name),
            port,
        } => {
            let found = (name.as_str(), *port).to_socket_addrs()?;
            (found.collect::<Vec<_>>(), false)
        }
        place => (place.addresses().unwrap_or_default(), true),
    };
    let places: Vec<At> = addresses.iter().copied().map(At::Tcp).collect();
    let taken = inherited.take(&places);
    if !taken.is_empty() {
        return taken
            .into_iter()
            .map(|opened| adopt(&tuning, opened))
            .collect();
    }
    let mut sockets: Vec<Opened> = Vec::new();
    let mut port = None;
    for mut address in addresses {
        // The system chooses one port for both families.
        if let (0, Some(port)) = (address.port(), port) {
            address.set_port(port);
        }
        match listen_tcp(&tuning, address, relay.sockopts.share) {
            Ok((socket, at)) => {
                port = Some(at.port());
                sockets.push(Opened::new(socket, At::Tcp(at)));
            }
            // A machine without IPv6 has IPv4.
            Err(e) if several && !sockets.is_empty() && is_missing(&e) => {}
            Err(e) => return Err(e),
        }
    }
    match sockets.is_empty() {
        true => Err(io::Error::other("the name has no address")),
        false => Ok(sockets),
    }
}

fn is_missing(e: &io::Error) -> bool {
    let errno = Errno::from_io_error(e);
    matches!(errno, Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT))
}

/// A byte out of band is a byte in its place; what is accepted has it too. Multipath TCP has no
/// urgent data, and no option for it.
fn in_line(socket: &Socket) {
    let _ = socket.set_out_of_band_inline(true);
}

fn listen_tcp(tuning: &Tuning, at: SocketAddr, share: bool) -> io::Result<(Socket, SocketAddr)> {
    let socket = tuning.listener(at, share, BACKLOG)?;
    in_line(&socket);
    let at = socket.local_addr()?.as_socket().unwrap_or(at);
    Ok((socket, at))
}

fn adopt(tuning: &Tuning, opened: Opened) -> io::Result<Opened> {
    if let Some(address) = opened.at.address() {
        tuning.adopt(&opened.socket, address)?;
        in_line(&opened.socket);
    }
    Ok(opened)
}

/// A socket at the address of one of ours, for what cannot be changed on that.
pub(super) fn beside(old: &Listener, at: SocketAddr, relay: &Relay) -> io::Result<Opened> {
    // Both need it when the second is bound; nobody else is to come in between afterwards. Those
    // that retire keep it, since the kernel asks all of them.
    old.socket.set_reuse_port(true)?;
    let opened = listen_tcp(&tuning(relay), at, true);
    if opened.is_err() {
        old.socket
            .set_reuse_port(old.running.relay.sockopts.share)?;
    }
    let (socket, at) = opened?;
    socket.set_reuse_port(relay.sockopts.share)?;
    Ok(Opened::new(socket, At::Tcp(at)))
}
