//! Acceptor thread: accepts connections, checks limits and the client's address, and hands each
//! connection to the worker with the fewest. It also carries out orders to the relays as a whole,
//! such as reload and drain.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token, Waker};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use slab::Slab;

use super::connection_limiter::ConnectionLimiter;
use super::listener::{HandedOverListener, InheritedListeners, RelayListener, listen};
use super::running::{ListenAddresses, RunningRelay};
use super::{RelayStartError, RunningRelays, WorkerThreads, health};
use crate::network::is_allowed;
use crate::settings::RelaySettings;
use crate::worker::connection::ClientAddress;
use crate::worker::inbox::{AcceptedConnection, WorkerInbox, WorkerMessage};

const WAKE: Token = Token(usize::MAX);
/// Connections accepted at one listener before the next one gets its turn.
const AT_ONCE: usize = 256;
/// Delay after the process has run out of file descriptors.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Request of another thread to the acceptor thread, which carries it out between two accepts.
/// Results go back through the channel in the order.
#[derive(Debug)]
pub(super) enum AcceptorCommand {
    /// Stop accepting. If a successor listens at the same sockets, UNIX socket paths are kept.
    Drain { succeeded: bool },
    /// Replace the running relays with these; all of them or none.
    Replace(Vec<RelaySettings>, Sender<Result<(), RelayStartError>>),
    /// Send copies of the listening sockets, for another process to accept at.
    Share(Sender<io::Result<Vec<HandedOverListener>>>),
}

/// Queue of orders for the acceptor thread, with the waker that interrupts its poll. Orders given
/// after the thread has stopped are dropped.
#[derive(Debug)]
pub(super) struct AcceptorHandle {
    /// Pending orders; `None` once the acceptor has stopped.
    orders: Mutex<Option<Vec<AcceptorCommand>>>,
    waker: Waker,
}

impl AcceptorHandle {
    /// Queues an order. A stopped acceptor drops it, which the sender sees as a closed channel.
    pub(super) fn give(&self, order: AcceptorCommand) {
        if let Some(orders) = &mut *self.lock() {
            orders.push(order);
        }
        // A stopped acceptor needs no wake-up.
        let _ = self.waker.wake();
    }

    fn take(&self) -> Vec<AcceptorCommand> {
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<AcceptorCommand>>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State of the acceptor thread: the listeners, and for each worker its inbox and its number of
/// connections.
pub(super) struct Acceptor {
    pub(super) poll: Poll,
    orders: Arc<AcceptorHandle>,
    workers: WorkerThreads,
    limiters: Vec<ConnectionLimiter>,
    pub(super) listeners: Slab<RelayListener>,
    pub(super) listening: ListenAddresses,
    pub(super) running_relays: RunningRelays,
    /// Limits the log of rejected clients to one line per second.
    errors: RejectionLogThrottle,
}

/// Logs at most one rejected client per second, and adds to the next line how many were left out.
#[derive(Default)]
struct RejectionLogThrottle {
    last: Option<Instant>,
    unsaid: u64,
}

impl Acceptor {
    /// Opens the sockets of all relays, or uses inherited ones where they match.
    pub(super) fn open(
        relays: Vec<RelaySettings>,
        workers: Vec<Arc<WorkerInbox>>,
        inherited: &mut InheritedListeners,
    ) -> Result<(Self, Arc<AcceptorHandle>, RunningRelays), RelayStartError> {
        let poll = Poll::new()?;
        let orders = Arc::new(AcceptorHandle {
            orders: Mutex::new(Some(Vec::new())),
            waker: Waker::new(poll.registry(), WAKE)?,
        });
        let limiters = workers
            .iter()
            .map(|_| ConnectionLimiter::default())
            .collect();
        let mut acceptor = Self {
            poll,
            orders: Arc::clone(&orders),
            workers: WorkerThreads(workers),
            limiters,
            listeners: Slab::new(),
            listening: ListenAddresses::default(),
            running_relays: RunningRelays::default(),
            errors: RejectionLogThrottle::default(),
        };
        for relay in relays {
            let running = Arc::new(RunningRelay::new(relay, acceptor.listening.clone()));
            for socket in listen(&running, inherited)? {
                acceptor.add(RelayListener::new(socket, &running))?;
            }
            acceptor.share_limiter(&running);
        }
        acceptor.publish_running();
        let running_relays = RunningRelays::clone(&acceptor.running_relays);
        Ok((acceptor, orders, running_relays))
    }

    /// Registers a listener for events, and returns its slot.
    pub(super) fn add(&mut self, mut listener: RelayListener) -> io::Result<usize> {
        let slot = self.listeners.vacant_key();
        let all = self.listeners.iter();
        listener.nth = all.filter(|(_, other)| other.at == listener.at).count() as u32;
        listener.register(self.poll.registry(), slot)?;
        Ok(self.listeners.insert(listener))
    }

    /// Makes all listeners of a relay share one connection limit.
    pub(super) fn share_limiter(&mut self, running: &Arc<RunningRelay>) {
        let own = |listener: &&mut RelayListener| Arc::ptr_eq(&listener.running, running);
        let mut all = self.listeners.iter_mut().map(|(_, l)| l).filter(own);
        if let Some(first) = all.next() {
            let limiter = first.limiter.clone();
            all.for_each(|listener| listener.limiter = limiter.clone());
        }
    }

    /// Publishes the current relays and their addresses to the other threads.
    pub(super) fn publish_running(&self) {
        let all = self.listeners.iter().map(|(_, listener)| listener);
        let addresses = all.clone().filter_map(|listener| listener.at.address());
        self.listening.set(addresses.collect());
        let mut relays: Vec<Arc<RunningRelay>> = Vec::new();
        for listener in all {
            if !relays.iter().any(|r| Arc::ptr_eq(r, &listener.running)) {
                relays.push(Arc::clone(&listener.running));
            }
        }
        *self
            .running_relays
            .write()
            .unwrap_or_else(PoisonError::into_inner) = relays;
    }

    /// Returns the addresses of all listeners that are not retiring.
    pub(super) fn listening(&self) -> Vec<String> {
        let all = self.listeners.iter().map(|(_, listener)| listener);
        let stay = all.filter(|listener| listener.retires.is_none());
        stay.map(|listener| listener.at.to_string()).collect()
    }

    /// Runs until the order to drain.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(64);
        loop {
            let timeout = self.timeout();
            if let Err(e) = self.poll.poll(&mut events, timeout)
                && e.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(
                    "cannot accept connections: {e}; the listening sockets were closed: restart \
                     the relay"
                );
                return self.close(false);
            }
            for event in &events {
                if let Some(listener) = self.listeners.get_mut(event.token().0) {
                    listener.ready = true;
                }
            }
            for order in self.orders.take() {
                match order {
                    AcceptorCommand::Drain { succeeded } => return self.close(succeeded),
                    // A send error means that the requester no longer waits.
                    AcceptorCommand::Replace(relays, told) => drop(told.send(self.replace(relays))),
                    AcceptorCommand::Share(told) => drop(told.send(self.sockets())),
                }
            }
            let slots: Vec<usize> = self.listeners.iter().map(|(slot, _)| slot).collect();
            for slot in slots {
                self.accept(slot);
            }
            self.close_retired();
            self.look_after_targets();
        }
    }

    /// Copies the listening sockets, in the kernel's order of those that share an address.
    pub(super) fn sockets(&self) -> io::Result<Vec<HandedOverListener>> {
        let now = Instant::now();
        let mut all: Vec<&RelayListener> = self.listeners.iter().map(|(_, l)| l).collect();
        all.sort_by_key(|listener| listener.nth);
        let copies = all.into_iter().map(|listener| {
            Ok(HandedOverListener {
                socket: listener.socket.try_clone()?.into(),
                retires_in: listener.retires.map(|at| at.saturating_duration_since(now)),
            })
        });
        copies.collect()
    }

    /// Returns the time until the next timer, or `None` if there is none.
    fn timeout(&self) -> Option<Duration> {
        if self.listeners.iter().any(|(_, listener)| listener.ready) {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let all = self.listeners.iter();
        let times = all.flat_map(|(_, l)| [l.running.health.next_check(now), l.retires]);
        Some(times.flatten().min()?.saturating_duration_since(now))
    }

    fn look_after_targets(&self) {
        let now = Instant::now();
        for (_, listener) in &self.listeners {
            if listener.running.health.is_due(now) {
                let running = Arc::clone(&listener.running);
                let thread = thread::Builder::new().name("health".to_owned());
                // A failed thread start is not fatal: the next health check is due after the next
                // interval.
                let _ = thread.spawn(move || health::check(&running));
            }
        }
    }

    fn close(self, succeeded: bool) {
        *self.orders.lock() = None;
        drop(self.poll);
        for (_, listener) in self.listeners {
            if !succeeded {
                listener.close();
            }
        }
        let there: usize = self.limiters.iter().map(ConnectionLimiter::len).sum();
        tracing::info!("shutting down: no new connections; open ones to finish: {there}");
        for inbox in &self.workers.0 {
            inbox.put(WorkerMessage::Drain);
        }
    }

    /// Accepts the connections that wait at one listener.
    pub(super) fn accept(&mut self, slot: usize) {
        for _ in 0..AT_ONCE {
            let Some(listener) = self.listeners.get_mut(slot).filter(|l| l.ready) else {
                return;
            };
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match acceptfrom_with(&listener.socket, flags) {
                Ok((socket, from)) => {
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                    self.admit(slot, socket, from);
                }
                Err(Errno::AGAIN) => listener.ready = false,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    self.errors.tell(
                        None,
                        "cannot accept connections: out of file descriptors or memory; trying \
                         again",
                    );
                    thread::sleep(EXHAUSTED);
                    return;
                }
                // Errors that concern a single connection, which is already gone (accept(2)).
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
                    self.errors.tell(None, &format!("accept: {e}"));
                    listener.ready = false;
                }
            }
        }
    }

    /// Hands a connection to a worker, or rejects it: dropping the socket resets the connection.
    fn admit(&mut self, slot: usize, socket: OwnedFd, from: Option<SocketAddr>) {
        let Some(listener) = self.listeners.get(slot) else {
            return;
        };
        let relay = &listener.running.relay;
        let ip: Option<IpAddr> = from.map(|from| from.ip().to_canonical());
        if let Some(ip) = ip
            && !relay.allow.is_empty()
            && !is_allowed(&relay.allow, ip)
        {
            listener.running.figures.turned_away();
            self.errors
                .tell(from, "refused: the address is not in --allow");
            return;
        }
        let permit = match listener.limiter.enter(ip, &relay.limits) {
            Ok(permit) => permit,
            Err(why) => {
                listener.running.figures.turned_away();
                self.errors.tell(from, &format!("refused: {why}"));
                return;
            }
        };
        if from.is_some() {
            relay.tuning.connected(&socket);
        }
        let Some((nth, limiter)) = self
            .limiters
            .iter()
            .enumerate()
            .min_by_key(|(_, limiter)| limiter.len())
        else {
            return;
        };
        let place = limiter.enter(
            None,
            &crate::settings::RelayLimits {
                connections: usize::MAX,
                ..relay.limits
            },
        );
        let Ok(place) = place else {
            return;
        };
        listener.running.figures.accepted();
        let arrival = AcceptedConnection {
            relay: Arc::clone(&listener.running),
            client: from.map_or(ClientAddress::Unix, ClientAddress::Tcp),
            input: socket,
            output: None,
            permit: permit.with(place),
        };
        if let Some(inbox) = self.workers.0.get(nth) {
            inbox.put(WorkerMessage::Accepted(Box::new(arrival)));
        }
    }
}

impl RejectionLogThrottle {
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
