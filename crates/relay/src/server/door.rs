//! The thread that lets connections in: it accepts, checks who comes, and hands them to the worker
//! that has the fewest.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{Domain, SockAddr, Socket, Type};
use sys::Tuning;

use super::crowd::Crowd;
use super::running::Running;
use super::{Crew, StartError};
use crate::address::{Host, Place};
use crate::network::is_allowed;
use crate::settings::Relay;
use crate::worker::connection::Client;
use crate::worker::inbox::{Arrival, Inbox, Message};

const WAKE: Token = Token(usize::MAX);
/// As many as the kernel lets wait (net.core.somaxconn cuts it).
const BACKLOG: i32 = 4096;
/// So many are let in before another entrance is looked at.
const AT_ONCE: usize = 256;
/// When the process has no descriptor left for a connection, it looks again after so long.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// What the door is told.
#[derive(Debug)]
pub(super) enum Order {
    /// Close.
    Drain,
}

/// Where it is told.
#[derive(Debug)]
pub(super) struct Orders {
    orders: Mutex<Vec<Order>>,
    waker: Waker,
}

impl Orders {
    pub(super) fn give(&self, order: Order) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.push(order);
        // A door that is closed needs no waking.
        let _ = self.waker.wake();
    }
}

/// The thread that lets connections in.
pub(super) struct Door {
    poll: Poll,
    orders: Arc<Orders>,
    crew: Crew,
    crowds: Vec<Crowd>,
    entrances: Vec<Listener>,
    /// Whoever is turned away again and again is told of once a second.
    complaints: Complaints,
}

struct Listener {
    socket: Socket,
    at: At,
    running: Arc<Running>,
    crowd: Crowd,
    ready: bool,
}

enum At {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Default)]
struct Complaints {
    last: Option<Instant>,
    unsaid: u64,
}

impl Door {
    /// Listens at all entrances.
    pub(super) fn open(
        relays: Vec<Relay>,
        workers: Vec<Arc<Inbox>>,
    ) -> Result<(Self, Arc<Orders>), StartError> {
        let poll = Poll::new()?;
        let orders = Arc::new(Orders {
            orders: Mutex::default(),
            waker: Waker::new(poll.registry(), WAKE)?,
        });
        let crowds = workers.iter().map(|_| Crowd::default()).collect();
        let mut door = Self {
            poll,
            orders: Arc::clone(&orders),
            crew: Crew(workers),
            crowds,
            entrances: Vec::new(),
            complaints: Complaints::default(),
        };
        for relay in relays {
            let place = relay.entrance.place.to_string();
            let wrong = |e: io::Error| StartError(format!("{place} cannot be listened at: {e}"));
            door.add(relay).map_err(wrong)?;
        }
        let all: Vec<SocketAddr> = door
            .entrances
            .iter()
            .filter_map(|l| l.at.address())
            .collect();
        for listener in &door.entrances {
            listener.running.set_listening(&all);
        }
        Ok((door, orders))
    }

    fn add(&mut self, relay: Relay) -> io::Result<()> {
        let running = Arc::new(Running::new(relay));
        let crowd = Crowd::default();
        for (socket, at) in listen(&running.relay)? {
            socket.set_nonblocking(true)?;
            let token = Token(self.entrances.len());
            let fd = socket.as_raw_fd();
            self.poll
                .registry()
                .register(&mut SourceFd(&fd), token, Interest::READABLE)?;
            self.entrances.push(Listener {
                socket,
                at,
                running: Arc::clone(&running),
                crowd: crowd.clone(),
                ready: false,
            });
        }
        Ok(())
    }

    /// Where connections come in.
    pub(super) fn listening(&self) -> Vec<String> {
        let told = self.entrances.iter().map(|listener| match &listener.at {
            At::Tcp(address) => address.to_string(),
            At::Unix(path) => format!("unix:{}", path.display()),
        });
        told.collect()
    }

    /// Until it is told to close.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(64);
        loop {
            let busy = self.entrances.iter().any(|listener| listener.ready);
            let timeout = busy.then_some(Duration::ZERO);
            if let Err(e) = self.poll.poll(&mut events, timeout)
                && e.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!("nobody is let in any more: {e}");
                break;
            }
            for event in &events {
                if let Some(listener) = self.entrances.get_mut(event.token().0) {
                    listener.ready = true;
                }
            }
            let orders = std::mem::take(
                &mut *self
                    .orders
                    .orders
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner),
            );
            if orders.iter().any(|order| matches!(order, Order::Drain)) {
                break;
            }
            for nth in 0..self.entrances.len() {
                self.accept(nth);
            }
        }
        self.close();
    }

    fn close(self) {
        drop(self.poll);
        for listener in self.entrances {
            if let At::Unix(path) = &listener.at {
                // Somebody else may have taken it away.
                let _ = std::fs::remove_file(path);
            }
        }
        let there: usize = self.crowds.iter().map(Crowd::len).sum();
        tracing::info!("nobody is let in any more, {there} connections are served to the end");
        for inbox in &self.crew.0 {
            inbox.put(Message::Drain);
        }
    }

    /// Lets in those who wait at one entrance.
    fn accept(&mut self, nth: usize) {
        for _ in 0..AT_ONCE {
            let Some(listener) = self
                .entrances
                .get_mut(nth)
                .filter(|listener| listener.ready)
            else {
                return;
            };
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match acceptfrom_with(&listener.socket, flags) {
                Ok((socket, from)) => {
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                    self.admit(nth, socket, from);
                }
                Err(Errno::AGAIN) => listener.ready = false,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    self.complaints
                        .tell(None, "no descriptor or memory is left for a connection");
                    std::thread::sleep(EXHAUSTED);
                    return;
                }
                // Errors of one connection, which is gone then (accept(2)).
                Err(
                    Errno::INTR
                    | Errno::CONNABORTED
                    | Errno::PROTO
                    | Errno::PERM
                    | Errno::NETDOWN
                    | Errno::HOSTUNREACH
                    | Errno::NETUNREACH
                    | Errno::HOSTDOWN
                    | Errno::OPNOTSUPP,
                ) => {}
                Err(e) => {
                    self.complaints.tell(None, &format!("accept: {e}"));
                    listener.ready = false;
                }
            }
        }
    }

    /// Hands somebody to a worker, or closes the door: the socket is reset as it is dropped.
    fn admit(&mut self, nth: usize, socket: OwnedFd, from: Option<SocketAddr>) {
        let Some(listener) = self.entrances.get(nth) else {
            return;
        };
        let relay = &listener.running.relay;
        let ip: Option<IpAddr> = from.map(|from| from.ip().to_canonical());
        if let Some(ip) = ip
            && !relay.allow.is_empty()
            && !is_allowed(&relay.allow, ip)
        {
            self.complaints
                .tell(from, "turned away: --allow has no such address");
            return;
        }
        let guest = match listener.crowd.enter(ip, &relay.limits) {
            Ok(guest) => guest,
            Err(why) => {
                self.complaints.tell(from, &format!("turned away: {why}"));
                return;
            }
        };
        if from.is_some() {
            relay.tuning.connected(&socket);
        }
        let Some((nth, crowd)) = self
            .crowds
            .iter()
            .enumerate()
            .min_by_key(|(_, crowd)| crowd.len())
        else {
            return;
        };
        let place = crowd.enter(
            None,
            &crate::settings::Limits {
                connections: usize::MAX,
                ..relay.limits
            },
        );
        let Ok(place) = place else {
            return;
        };
        let arrival = Arrival {
            relay: Arc::clone(&listener.running),
            client: from.map_or(Client::Unix, Client::Tcp),
            input: socket,
            output: None,
            guest: guest.with(place),
        };
        if let Some(inbox) = self.crew.0.get(nth) {
            inbox.put(Message::Arrived(Box::new(arrival)));
        }
    }
}

impl At {
    fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl Complaints {
    fn tell(&mut self, from: Option<SocketAddr>, why: &str) {
        let now = Instant::now();
        if self
            .last
            .is_some_and(|last| now < last + Duration::from_secs(1))
        {
            self.unsaid += 1;
            return;
        }
        self.last = Some(now);
        let client = from.map_or_else(|| "unix".to_owned(), |from| from.to_string());
        match std::mem::take(&mut self.unsaid) {
            0 => tracing::warn!(%client, "{why}"),
            unsaid => tracing::warn!(%client, unsaid, "{why}"),
        }
    }
}

/// The sockets of an entrance.
fn listen(relay: &Relay) -> io::Result<Vec<(Socket, At)>> {
    let (addresses, several) = match &relay.entrance.place {
        Place::Streams => return Err(io::Error::other("standard streams are one connection")),
        Place::Unix(path) => return Ok(vec![(listen_unix(path)?, At::Unix(path.clone()))]),
        Place::Tcp {
            host: Host::Name(name),
            port,
        } => {
            let found = (name.as_str(), *port).to_socket_addrs()?;
            (found.collect::<Vec<_>>(), false)
        }
        place => (place.addresses().unwrap_or_default(), true),
    };
    let tuning = Tuning {
        buffers: match relay.sockopts.no_sizes() {
            true => relay.tuning.buffers,
            false => relay.sockopts.for_all().client,
        },
        fastopen: relay.fastopen,
        bind: None,
        interface: None,
        ..relay.tuning.clone()
    };
    let mut sockets: Vec<(Socket, At)> = Vec::new();
    let mut port = None;
    for mut address in addresses {
        // The system chooses one port for both families.
        if let (0, Some(port)) = (address.port(), port) {
            address.set_port(port);
        }
        match listen_tcp(&tuning, address, relay.sockopts.share) {
            Ok((socket, at)) => {
                port = Some(at.port());
                sockets.push((socket, At::Tcp(at)));
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

fn listen_tcp(tuning: &Tuning, at: SocketAddr, share: bool) -> io::Result<(Socket, SocketAddr)> {
    let socket = tuning.listener(at, share, BACKLOG)?;
    // What is accepted has it too: a byte out of band is a byte in its place.
    socket.set_out_of_band_inline(true)?;
    let at = socket.local_addr()?.as_socket().unwrap_or(at);
    Ok((socket, at))
}

/// In place of a socket that nobody listens at.
fn listen_unix(path: &Path) -> io::Result<Socket> {
    use std::os::unix::fs::FileTypeExt as _;
    let is_socket = |m: std::fs::Metadata| m.file_type().is_socket();
    let stale = std::fs::symlink_metadata(path).is_ok_and(is_socket)
        && std::os::unix::net::UnixStream::connect(path).is_err();
    if stale {
        std::fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}
