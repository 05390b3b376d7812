//! Running relays: one thread accepts connections, and worker threads move their bytes.

mod acceptor;
pub(crate) mod connection_limiter;
pub(crate) mod figures;
mod health;
mod listener;
pub(crate) mod pairs;
mod reload;
pub(crate) mod running;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, RwLock, mpsc};
use std::thread::JoinHandle;

use sys::ListenAddressKind;

use crate::address::RelayEndpoint;
use crate::settings::RelaySettings;
use crate::status::StatusMonitor;
use crate::worker::connection::ClientAddress;
use crate::worker::inbox::{AcceptedConnection, WorkerInbox, WorkerMessage};
use crate::worker::resolve::Resolver;
use acceptor::{Acceptor, AcceptorCommand};
pub(crate) use health::TargetHealth;
pub use listener::HandedOverListener;
use listener::InheritedListeners;
use running::ListenAddresses;
pub(crate) use running::RunningRelay;

/// List of the running relays.
pub(crate) type RunningRelays = Arc<RwLock<Vec<Arc<RunningRelay>>>>;

/// Acceptor thread and worker threads of all relays of this process, from start until the last
/// connection has ended.
#[derive(Debug)]
pub struct RelayServer {
    acceptor: JoinHandle<()>,
    workers: Vec<JoinHandle<()>>,
    handle: RelayControl,
    listening: Vec<String>,
}

/// Remote control of running relays; can be cloned and used from any thread.
#[derive(Clone, Debug)]
pub struct RelayControl {
    orders: Arc<acceptor::AcceptorHandle>,
    workers: Vec<Arc<WorkerInbox>>,
    running_relays: RunningRelays,
}

/// Listening sockets that were inherited from another process.
#[derive(Debug)]
pub enum InheritedSockets {
    /// Passed by the process that started this one; each must belong to a relay.
    ByStarter(Vec<OwnedFd>),
    /// Passed by a previous relay process, which may have had relays that no longer exist.
    ByPredecessor(Vec<HandedOverListener>),
}

/// Reason why relays cannot start, with the listening address concerned.
#[derive(Debug)]
pub struct RelayStartError(String);

impl fmt::Display for RelayStartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RelayStartError {}

impl RelayStartError {
    /// The relay cannot listen at this place.
    fn listening(place: &RelayEndpoint, e: &io::Error) -> Self {
        let kind = match place {
            RelayEndpoint::Unix(_) => ListenAddressKind::Path,
            RelayEndpoint::Tcp { .. } | RelayEndpoint::Streams => ListenAddressKind::Port,
        };
        let why = sys::listen_words(kind, e);
        Self(format!("cannot listen on {place}: {why}"))
    }
}

impl From<io::Error> for RelayStartError {
    fn from(e: io::Error) -> Self {
        Self(format!("cannot start the relay: {e}"))
    }
}

impl RelayServer {
    /// Starts accepting connections, at inherited sockets where they match, and moves bytes on
    /// `workers` threads.
    ///
    /// # Errors
    /// Returns an error if an address cannot be listened at, if an inherited socket belongs to no
    /// relay, or if a thread cannot be started.
    pub fn start(
        relays: Vec<RelaySettings>,
        workers: usize,
        handed_on: InheritedSockets,
    ) -> Result<Self, RelayStartError> {
        let (sockets, all) = match handed_on {
            InheritedSockets::ByStarter(sockets) => {
                let stay = |socket| HandedOverListener {
                    socket,
                    retires_in: None,
                };
                (sockets.into_iter().map(stay).collect(), true)
            }
            InheritedSockets::ByPredecessor(sockets) => (sockets, false),
        };
        let mut inherited = InheritedListeners::new(sockets)?;
        let resolver = Resolver::default();
        let mut inboxes = Vec::new();
        let mut threads = Vec::new();
        for _ in 0..workers.max(1) {
            let (inbox, thread) = crate::worker::start(&resolver)?;
            inboxes.push(inbox);
            threads.push(thread);
        }
        let (acceptor, orders, running_relays) =
            Acceptor::open(relays, inboxes.clone(), &mut inherited)?;
        if let (Some(at), true) = (inherited.left(), all) {
            let why = format!(
                "no relay is configured for the inherited socket on {at}: configure one that \
                 listens there, or remove the socket from the .socket unit"
            );
            return Err(RelayStartError(why));
        }
        let listening = acceptor.listening();
        let acceptor = std::thread::Builder::new()
            .name("acceptor".to_owned())
            .spawn(move || acceptor.run())?;
        Ok(Self {
            acceptor,
            workers: threads,
            handle: RelayControl {
                orders,
                workers: inboxes,
                running_relays,
            },
            listening,
        })
    }

    /// Returns the addresses that are listened at, with the port that the kernel chose for port 0.
    pub fn listening(&self) -> &[String] {
        &self.listening
    }

    /// Returns a handle that controls the relays.
    pub fn handle(&self) -> RelayControl {
        self.handle.clone()
    }

    /// Waits until a shutdown was requested and the last connection has ended.
    pub fn wait(self) {
        // A panic of the thread was already reported.
        let _ = self.acceptor.join();
        for worker in self.workers {
            let _ = worker.join();
        }
    }
}

impl RelayControl {
    /// Stops accepting connections; existing ones run to their end.
    pub fn drain(&self) {
        self.orders
            .give(AcceptorCommand::Drain { succeeded: false });
    }

    /// Stops accepting connections, and keeps the paths of UNIX sockets for a successor that
    /// listens at the same sockets.
    pub fn drain_for_successor(&self) {
        self.orders.give(AcceptorCommand::Drain { succeeded: true });
    }

    /// Resets all remaining connections.
    pub fn cut_off(&self) {
        for inbox in &self.workers {
            inbox.put(WorkerMessage::CutOff);
        }
    }

    /// Replaces the running relays: with all of these, or with none if one of them cannot run.
    /// Existing connections continue with their old settings.
    ///
    /// # Errors
    /// Returns an error if an address cannot be listened at, or if the relays are shutting down;
    /// nothing has changed then.
    pub fn replace(&self, relays: Vec<RelaySettings>) -> Result<(), RelayStartError> {
        let (told, hears) = mpsc::channel();
        self.orders.give(AcceptorCommand::Replace(relays, told));
        hears.recv().unwrap_or_else(|_| Err(closed()))
    }

    /// Copies the listening sockets, for another process to accept at.
    ///
    /// # Errors
    /// Returns an error if there are no file descriptors left, or if the relays are shutting down.
    pub fn sockets(&self) -> Result<Vec<HandedOverListener>, RelayStartError> {
        let (told, hears) = mpsc::channel();
        self.orders.give(AcceptorCommand::Share(told));
        Ok(hears.recv().map_err(|_| closed())??)
    }

    /// Starts to collect statistics of relays and connections.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn watch(&self) -> io::Result<StatusMonitor> {
        StatusMonitor::start(self.workers.clone(), Arc::clone(&self.running_relays))
    }
}

fn closed() -> RelayStartError {
    RelayStartError("shutting down: no new connections, finishing existing ones".to_owned())
}

/// Returns the running relays.
pub(crate) fn snapshot(of: &RunningRelays) -> Vec<Arc<RunningRelay>> {
    of.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Relays one connection between standard streams and a target until it ends.
///
/// # Errors
/// Returns an error if the streams cannot be used, if the connection fails, or if a thread cannot
/// be started.
pub fn streams(
    relay: RelaySettings,
    input: OwnedFd,
    output: OwnedFd,
) -> Result<(), RelayStartError> {
    debug_assert_eq!(relay.entrance.place, RelayEndpoint::Streams);
    let (inbox, thread) = crate::worker::start(&Resolver::default())?;
    let limits = relay.limits;
    let running = Arc::new(RunningRelay::new(relay, ListenAddresses::default()));
    let permit = connection_limiter::ConnectionLimiter::default().enter(None, &limits);
    let permit = permit.map_err(|why| RelayStartError(why.to_owned()))?;
    let arrival = AcceptedConnection {
        relay: Arc::clone(&running),
        client: ClientAddress::Streams,
        input,
        output: Some(output),
        permit,
    };
    inbox.put(WorkerMessage::Accepted(Box::new(arrival)));
    inbox.put(WorkerMessage::Drain);
    // A panic of the thread was already reported.
    let _ = thread.join();
    match running.failure() {
        None => Ok(()),
        Some(why) => Err(RelayStartError(why)),
    }
}

/// Worker threads, by their inboxes.
#[derive(Debug)]
struct WorkerThreads(Vec<Arc<WorkerInbox>>);
