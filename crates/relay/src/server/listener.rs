//! Listening sockets: newly opened, inherited from another process, or opened beside an existing
//! one.

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
use sys::SocketTuning;

use super::RelayStartError;
use super::connection_limiter::ConnectionLimiter;
use super::running::RunningRelay;
use crate::address::{HostSpec, RelayEndpoint};
use crate::settings::{RedirectKind, RelaySettings};

/// Backlog of listen(2); net.core.somaxconn limits it.
const BACKLOG: i32 = 4096;

/// Listening socket that the acceptor polls, with the relay that its connections belong to. A relay
/// has one for each of its addresses.
pub(super) struct RelayListener {
    pub(super) socket: Socket,
    pub(super) at: ListenAddress,
    pub(super) running: Arc<RunningRelay>,
    pub(super) limiter: ConnectionLimiter,
    pub(super) ready: bool,
    /// Index of the socket among this process's sockets at the same address, in the kernel's order.
    pub(super) nth: u32,
    /// Time at which the socket is closed after another one has replaced it.
    pub(super) retires: Option<Instant>,
}

/// Listening socket that one process hands to another.
#[derive(Debug)]
pub struct HandedOverListener {
    /// Socket in the listening state.
    pub socket: OwnedFd,
    /// Remaining time until the socket is closed, if another one has replaced it.
    pub retires_in: Option<Duration>,
}

/// Listening socket that belongs to no relay yet.
pub(super) struct UnassignedListener {
    socket: Socket,
    at: ListenAddress,
    retires: Option<Instant>,
}

impl UnassignedListener {
    fn new(socket: Socket, at: ListenAddress) -> Self {
        Self {
            socket,
            at,
            retires: None,
        }
    }
}

/// Bound address of a listening socket, by which inherited sockets are matched with relays and
/// reloads find unchanged ones.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum ListenAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl ListenAddress {
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// Reads the address of an inherited socket.
    fn of(socket: &OwnedFd) -> io::Result<Self> {
        let socket = SockRef::from(socket);
        let name = socket.local_addr()?;
        let path = name.as_pathname().map(Path::to_path_buf);
        let at = name.as_socket().map(Self::Tcp);
        at.or_else(|| path.map(Self::Unix)).ok_or_else(|| {
            io::Error::other("an inherited socket is neither TCP nor a UNIX socket with a path: correct its .socket unit")
        })
    }
}

impl std::fmt::Display for ListenAddress {
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

impl RelayListener {
    pub(super) fn new(opened: UnassignedListener, running: &Arc<RunningRelay>) -> Self {
        Self {
            socket: opened.socket,
            at: opened.at,
            running: Arc::clone(running),
            limiter: ConnectionLimiter::default(),
            ready: false,
            nth: 0,
            retires: opened.retires,
        }
    }

    /// Registers the socket for events.
    pub(super) fn register(&self, registry: &Registry, slot: usize) -> io::Result<()> {
        self.socket.set_nonblocking(true)?;
        let fd = self.socket.as_raw_fd();
        registry.register(&mut SourceFd(&fd), Token(slot), Interest::READABLE)
    }

    pub(super) fn unregister(&self, registry: &Registry) {
        // Errors do not matter: the socket is closed next.
        let _ = registry.deregister(&mut SourceFd(&self.socket.as_raw_fd()));
    }

    /// Closes the socket, and removes the path of a UNIX socket.
    pub(super) fn close(self) {
        if let ListenAddress::Unix(path) = &self.at {
            // The path may have been removed already.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Listening sockets inherited from the process that started this one, or from a predecessor.
#[derive(Default)]
pub(super) struct InheritedListeners(Vec<UnassignedListener>);

impl InheritedListeners {
    pub(super) fn new(sockets: Vec<HandedOverListener>) -> Result<Self, RelayStartError> {
        let now = Instant::now();
        let named = sockets.into_iter().map(|handed| {
            let wrong =
                |e: io::Error| RelayStartError(format!("cannot use an inherited socket: {e}"));
            match rustix::net::sockopt::socket_acceptconn(&handed.socket) {
                Ok(true) => Ok(UnassignedListener {
                    at: ListenAddress::of(&handed.socket).map_err(wrong)?,
                    socket: handed.socket.into(),
                    retires: handed.retires_in.map(|left| now + left),
                }),
                _ => Err(wrong(io::Error::other("the socket does not listen"))),
            }
        });
        named.collect::<Result<_, _>>().map(Self)
    }

    /// Returns the address of a socket that no relay has taken.
    pub(super) fn left(&self) -> Option<&ListenAddress> {
        self.0.first().map(|opened| &opened.at)
    }

    /// Takes the sockets at these addresses.
    fn take(&mut self, places: &[ListenAddress]) -> Vec<UnassignedListener> {
        let all = std::mem::take(&mut self.0).into_iter();
        let (taken, left) = all.partition(|opened| places.contains(&opened.at));
        self.0 = left;
        taken
    }
}

/// Returns the socket options of a listener, which accepted sockets inherit.
pub(super) fn tuning(relay: &RelaySettings) -> SocketTuning {
    SocketTuning {
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

/// Returns the listening sockets of a relay: inherited ones if they match, otherwise new ones.
pub(super) fn listen(
    running: &RunningRelay,
    inherited: &mut InheritedListeners,
) -> Result<Vec<UnassignedListener>, RelayStartError> {
    let place = &running.relay.entrance.place;
    sockets(&running.relay, inherited).map_err(|e| RelayStartError::listening(place, &e))
}

fn sockets(
    relay: &RelaySettings,
    inherited: &mut InheritedListeners,
) -> io::Result<Vec<UnassignedListener>> {
    let tuning = tuning(relay);
    let (addresses, several) = match &relay.entrance.place {
        RelayEndpoint::Streams => {
            return Err(io::Error::other(
                "standard input and output (-) carry only one connection",
            ));
        }
        RelayEndpoint::Unix(path) => {
            let at = ListenAddress::Unix(path.clone());
            let taken = inherited.take(std::slice::from_ref(&at)).pop();
            if let Some(taken) = taken {
                return Ok(vec![taken]);
            }
            let socket = sys::listen_unix(path, BACKLOG)?;
            return Ok(vec![UnassignedListener::new(socket, at)]);
        }
        RelayEndpoint::Tcp {
            host: HostSpec::Name(name),
            port,
        } => {
            let found = (name.as_str(), *port).to_socket_addrs()?;
            (found.collect::<Vec<_>>(), false)
        }
        place => (place.addresses().unwrap_or_default(), true),
    };
    let places: Vec<ListenAddress> = addresses.iter().copied().map(ListenAddress::Tcp).collect();
    let taken = inherited.take(&places);
    if !taken.is_empty() {
        return taken
            .into_iter()
            .map(|opened| adopt(&tuning, opened))
            .collect();
    }
    let mut sockets: Vec<UnassignedListener> = Vec::new();
    let mut port = None;
    for mut address in addresses {
        // The kernel chooses the port for the first family; the second one uses the same port.
        if let (0, Some(port)) = (address.port(), port) {
            address.set_port(port);
        }
        match listen_tcp(&tuning, address, relay.sockopts.share) {
            Ok((socket, at)) => {
                port = Some(at.port());
                sockets.push(UnassignedListener::new(socket, ListenAddress::Tcp(at)));
            }
            // On a machine without IPv6, the IPv4 socket is enough.
            Err(e) if several && !sockets.is_empty() && is_missing(&e) => {}
            Err(e) => return Err(e),
        }
    }
    match sockets.is_empty() {
        true => Err(io::Error::other(
            "the name has no address: check it in DNS or /etc/hosts",
        )),
        false => Ok(sockets),
    }
}

fn is_missing(e: &io::Error) -> bool {
    let errno = Errno::from_io_error(e);
    matches!(errno, Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT))
}

/// Delivers urgent data in line (SO_OOBINLINE); accepted sockets inherit the option. Multipath TCP
/// has neither urgent data nor this option, so that errors are ignored.
fn in_line(socket: &Socket) {
    let _ = socket.set_out_of_band_inline(true);
}

fn listen_tcp(
    tuning: &SocketTuning,
    at: SocketAddr,
    share: bool,
) -> io::Result<(Socket, SocketAddr)> {
    let socket = tuning.listener(at, share, BACKLOG)?;
    in_line(&socket);
    let at = socket.local_addr()?.as_socket().unwrap_or(at);
    Ok((socket, at))
}

fn adopt(tuning: &SocketTuning, opened: UnassignedListener) -> io::Result<UnassignedListener> {
    if let Some(address) = opened.at.address() {
        tuning.adopt(&opened.socket, address)?;
        in_line(&opened.socket);
    }
    Ok(opened)
}

/// Opens a second socket at the address of a listener, for options that cannot be changed on a
/// listening socket.
pub(super) fn beside(
    old: &RelayListener,
    at: SocketAddr,
    relay: &RelaySettings,
) -> io::Result<UnassignedListener> {
    // SO_REUSEPORT must be set on both sockets when the second is bound; afterwards it is cleared
    // again to keep other processes out. Retiring sockets keep it, since the kernel checks all
    // sockets at an address.
    old.socket.set_reuse_port(true)?;
    let opened = listen_tcp(&tuning(relay), at, true);
    if opened.is_err() {
        old.socket
            .set_reuse_port(old.running.relay.sockopts.share)?;
    }
    let (socket, at) = opened?;
    socket.set_reuse_port(relay.sockopts.share)?;
    Ok(UnassignedListener::new(socket, ListenAddress::Tcp(at)))
}
