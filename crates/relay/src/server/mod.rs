//! What runs: a thread that lets connections in, and workers that move their bytes.

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

use crate::address::Place;
use crate::settings::Relay;
use crate::status::Watch;
use crate::worker::connection::Client;
use crate::worker::inbox::{Accepted, Inbox, Message};
use crate::worker::resolve::Resolver;
use acceptor::{Acceptor, Order};
pub(crate) use health::Health;
use listener::Inherited;
pub use listener::ListeningSocket;
use running::Listening;
pub(crate) use running::Running;

/// The relays that run now.
pub(crate) type RunningRelays = Arc<RwLock<Vec<Arc<Running>>>>;

/// Relays that run.
#[derive(Debug)]
pub struct Relays {
    door: JoinHandle<()>,
    workers: Vec<JoinHandle<()>>,
    handle: Handle,
    listening: Vec<String>,
}

/// What can be told to relays that run.
#[derive(Clone, Debug)]
pub struct Handle {
    orders: Arc<acceptor::AcceptorHandle>,
    workers: Vec<Arc<Inbox>>,
    roll: RunningRelays,
}

/// Sockets that listen already, for relays to listen at.
#[derive(Debug)]
pub enum InheritedSockets {
    /// By whoever started this process: each is for a relay.
    ByStarter(Vec<OwnedFd>),
    /// By a predecessor, which may have had others.
    ByPredecessor(Vec<ListeningSocket>),
}

/// Why relays do not run, with the entrance that it is about.
#[derive(Debug)]
pub struct StartError(String);

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

impl From<io::Error> for StartError {
    fn from(e: io::Error) -> Self {
        Self(format!("the relay cannot start: {e}"))
    }
}

impl Relays {
    /// Lets connections in from now on, at sockets that were handed on where there are any for an
    /// entrance, and moves their bytes on so many threads.
    ///
    /// # Errors
    /// An entrance cannot be listened at, a socket that was handed on is no relay's, or the system
    /// has no thread for us.
    pub fn start(
        relays: Vec<Relay>,
        workers: usize,
        handed_on: InheritedSockets,
    ) -> Result<Self, StartError> {
        let (sockets, all) = match handed_on {
            InheritedSockets::ByStarter(sockets) => {
                let stay = |socket| ListeningSocket {
                    socket,
                    retires_in: None,
                };
                (sockets.into_iter().map(stay).collect(), true)
            }
            InheritedSockets::ByPredecessor(sockets) => (sockets, false),
        };
        let mut inherited = Inherited::new(sockets)?;
        let resolver = Resolver::default();
        let mut inboxes = Vec::new();
        let mut threads = Vec::new();
        for _ in 0..workers.max(1) {
            let (inbox, thread) = crate::worker::start(&resolver)?;
            inboxes.push(inbox);
            threads.push(thread);
        }
        let (door, orders, roll) = Acceptor::open(relays, inboxes.clone(), &mut inherited)?;
        if let (Some(at), true) = (inherited.left(), all) {
            let why = format!("a socket was handed on that listens at {at}, which no relay does");
            return Err(StartError(why));
        }
        let listening = door.listening();
        let door = std::thread::Builder::new()
            .name("door".to_owned())
            .spawn(move || door.run())?;
        Ok(Self {
            door,
            workers: threads,
            handle: Handle {
                orders,
                workers: inboxes,
                roll,
            },
            listening,
        })
    }

    /// Where connections come in, as addresses: port 0 is a number by now.
    pub fn listening(&self) -> &[String] {
        &self.listening
    }

    /// What can be told to them from elsewhere.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Until they have been told to end and the last connection has.
    pub fn wait(self) {
        // A thread that panicked has said so.
        let _ = self.door.join();
        for worker in self.workers {
            let _ = worker.join();
        }
    }
}

impl Handle {
    /// Nobody is let in any more; whoever is there is served to the end.
    pub fn drain(&self) {
        self.orders.give(Order::Drain { succeeded: false });
    }

    /// The same, where somebody else listens at the same sockets by now.
    pub fn drain_for_successor(&self) {
        self.orders.give(Order::Drain { succeeded: true });
    }

    /// Whoever is still there is reset.
    pub fn cut_off(&self) {
        for inbox in &self.workers {
            inbox.put(Message::CutOff);
        }
    }

    /// Runs these relays in place of those that run: all of them, or none if one of them cannot
    /// be. Who is connected stays so, with what was told before.
    ///
    /// # Errors
    /// An entrance cannot be listened at, or nobody is let in any more: nothing has changed.
    pub fn replace(&self, relays: Vec<Relay>) -> Result<(), StartError> {
        let (told, hears) = mpsc::channel();
        self.orders.give(Order::Replace(relays, told));
        hears.recv().unwrap_or_else(|_| Err(closed()))
    }

    /// The sockets that listen, for somebody else to listen at as well.
    ///
    /// # Errors
    /// There are no descriptors left, or nobody is let in any more.
    pub fn sockets(&self) -> Result<Vec<ListeningSocket>, StartError> {
        let (told, hears) = mpsc::channel();
        self.orders.give(Order::Share(told));
        Ok(hears.recv().map_err(|_| closed())??)
    }

    /// Watches what goes on, from now on.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn watch(&self) -> io::Result<Watch> {
        Watch::start(self.workers.clone(), Arc::clone(&self.roll))
    }
}

fn closed() -> StartError {
    StartError("nobody is let in any more".to_owned())
}

/// The relays that run now.
pub(crate) fn enrolled(roll: &RunningRelays) -> Vec<Arc<Running>> {
    roll.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Relays one connection between standard streams and a target, until it ends.
///
/// # Errors
/// The streams cannot be used, or the system has no thread for us.
pub fn streams(relay: Relay, input: OwnedFd, output: OwnedFd) -> Result<(), StartError> {
    debug_assert_eq!(relay.entrance.place, Place::Streams);
    let (inbox, thread) = crate::worker::start(&Resolver::default())?;
    let limits = relay.limits;
    let running = Arc::new(Running::new(relay, Listening::default()));
    let guest = connection_limiter::ConnectionLimiter::default().enter(None, &limits);
    let guest = guest.map_err(|why| StartError(why.to_owned()))?;
    let arrival = Accepted {
        relay: Arc::clone(&running),
        client: Client::Streams,
        input,
        output: Some(output),
        guest,
    };
    inbox.put(Message::Arrived(Box::new(arrival)));
    inbox.put(Message::Drain);
    // A thread that panicked has said so.
    let _ = thread.join();
    match running.failure() {
        None => Ok(()),
        Some(why) => Err(StartError(why)),
    }
}

/// Those who move the bytes, each with what it has been given.
#[derive(Debug)]
struct WorkerThreads(Vec<Arc<Inbox>>);
