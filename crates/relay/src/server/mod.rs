//! What runs: a thread that lets connections in, and workers that move their bytes.

pub(crate) mod crowd;
mod door;
mod health;
pub(crate) mod pairs;
mod running;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::address::Place;
use crate::settings::Relay;
use crate::worker::connection::Client;
use crate::worker::inbox::{Arrival, Inbox, Message};
use crate::worker::resolve::Resolver;
use door::{Door, Order};
pub(crate) use running::Running;

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
pub struct Handle(Arc<door::Orders>);

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
    /// Lets connections in from now on, and moves their bytes on so many threads.
    ///
    /// # Errors
    /// An entrance cannot be listened at, or the system has no thread for us.
    pub fn start(relays: Vec<Relay>, workers: usize) -> Result<Self, StartError> {
        let resolver = Resolver::default();
        let mut inboxes = Vec::new();
        let mut threads = Vec::new();
        for _ in 0..workers.max(1) {
            let (inbox, thread) = crate::worker::start(&resolver)?;
            inboxes.push(inbox);
            threads.push(thread);
        }
        let (door, orders) = Door::open(relays, inboxes)?;
        let listening = door.listening();
        let door = std::thread::Builder::new()
            .name("door".to_owned())
            .spawn(move || door.run())?;
        Ok(Self {
            door,
            workers: threads,
            handle: Handle(orders),
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
        self.0.give(Order::Drain);
    }
}

/// Relays one connection between standard streams and a target, until it ends.
///
/// # Errors
/// The streams cannot be used, or the system has no thread for us.
pub fn streams(relay: Relay, input: OwnedFd, output: OwnedFd) -> Result<(), StartError> {
    debug_assert_eq!(relay.entrance.place, Place::Streams);
    let (inbox, thread) = crate::worker::start(&Resolver::default())?;
    let limits = relay.limits;
    let running = Arc::new(Running::new(relay));
    let guest = crowd::Crowd::default().enter(None, &limits);
    let guest = guest.map_err(|why| StartError(why.to_owned()))?;
    let arrival = Arrival {
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
struct Crew(Vec<Arc<Inbox>>);
