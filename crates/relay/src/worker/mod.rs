//! Worker thread with an event loop that moves the bytes of its connections.

pub(crate) mod connection;
pub(crate) mod dial;
mod enter;
pub(crate) mod inbox;
pub(crate) mod resolve;
mod timers;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token, Waker};
use slab::Slab;

use crate::pump::{FlowTurnResult, PageBuffer, PipePool, SCRATCH, WorkerResources};
use crate::server::figures::ConnectionOutcome;
use connection::{ConnectionContext, ConnectionEndReason, RelayedConnection, TOKENS};
use dial::ATTEMPTS;
use inbox::{AcceptedConnection, StatusRequest, WorkerInbox, WorkerMessage};
use resolve::Resolver;
use timers::ConnectionTimers;

/// Token of the waker, which no connection has.
const WAKE: Token = Token(usize::MAX);

/// Serial number of the next connection, across all workers.
static SERIAL: AtomicU64 = AtomicU64::new(1);

/// Worker thread with an event loop.
struct Worker {
    poll: Poll,
    inbox: Arc<WorkerInbox>,
    resolver: Resolver,
    connections: Slab<Box<RelayedConnection>>,
    /// Run queue: connections that have more to do than one turn.
    queue: VecDeque<usize>,
    timers: ConnectionTimers,
    means: WorkerResources,
    draining: bool,
}

/// Starts a worker.
///
/// # Errors
/// Returns an error if the system has no thread or no file descriptors left.
pub(crate) fn start(resolver: &Resolver) -> io::Result<(Arc<WorkerInbox>, JoinHandle<()>)> {
    const { assert!(ATTEMPTS + 4 <= TOKENS) };
    let poll = Poll::new()?;
    let waker = Waker::new(poll.registry(), WAKE)?;
    let inbox = Arc::new(WorkerInbox::new(waker));
    let worker = Worker {
        poll,
        inbox: Arc::clone(&inbox),
        resolver: resolver.clone(),
        connections: Slab::new(),
        queue: VecDeque::new(),
        timers: ConnectionTimers::default(),
        means: WorkerResources {
            scratch: PageBuffer::new(SCRATCH),
            pipes: PipePool::default(),
            now: Instant::now(),
        },
        draining: false,
    };
    let thread = thread::Builder::new().name("relay".to_owned());
    let thread = thread.spawn(move || worker.run())?;
    Ok((inbox, thread))
}

impl Worker {
    fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        while !self.draining || !self.connections.is_empty() {
            let timeout = match self.queue.is_empty() {
                false => Some(Duration::ZERO),
                true => self
                    .timers
                    .next()
                    .map(|at| at.saturating_duration_since(Instant::now())),
            };
            if let Err(e) = self.poll.poll(&mut events, timeout)
                && e.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(
                    "internal error: a worker thread failed and its connections were reset: {e}"
                );
                return;
            }
            self.means.now = Instant::now();
            for event in &events {
                if event.token() == WAKE {
                    continue;
                }
                let (slot, which) = (event.token().0 / TOKENS, event.token().0 % TOKENS);
                if let Some(connection) = self.connections.get_mut(slot) {
                    connection.told(which, event);
                    self.enqueue(slot);
                }
            }
            // New connections are added only after the events, so that none gets an event of an
            // earlier connection in the same slot.
            self.read_inbox();
            while let Some(slot) = self.timers.due(self.means.now) {
                if let Some(connection) = self.connections.get_mut(slot) {
                    connection.wake = None;
                    self.enqueue(slot);
                }
            }
            for _ in 0..self.queue.len() {
                if let Some(slot) = self.queue.pop_front() {
                    self.turn(slot);
                }
            }
        }
    }

    fn enqueue(&mut self, slot: usize) {
        if let Some(connection) = self.connections.get_mut(slot)
            && !std::mem::replace(&mut connection.queued, true)
        {
            self.queue.push_back(slot);
        }
    }

    fn read_inbox(&mut self) {
        for message in self.inbox.take() {
            match message {
                WorkerMessage::Accepted(arrival) => self.arrived(*arrival),
                WorkerMessage::Resolved {
                    slot,
                    serial,
                    answer,
                } => self.tell(slot, serial, |connection, around| {
                    connection.resolved(&answer, around);
                }),
                WorkerMessage::Joined {
                    slot,
                    serial,
                    leg,
                    begun,
                    permit,
                } => self.tell(slot, serial, |connection, around| {
                    // A stripe that cannot be used is reset; the peer relay opens another.
                    let _ = connection.add_leg(*leg, begun, permit, around);
                }),
                WorkerMessage::Drain => self.draining = true,
                WorkerMessage::CutOff => {
                    let all: Vec<usize> = self.connections.iter().map(|(slot, _)| slot).collect();
                    for slot in all {
                        let wake = self.connections.get(slot).and_then(|c| c.wake);
                        self.end(slot, wake, ConnectionEndReason::CutOff);
                    }
                }
                WorkerMessage::StatusRequested(question) => self.answer(question),
            }
        }
    }

    /// Passes something to a connection, if the slot still has the one with this serial number.
    fn tell(
        &mut self,
        slot: usize,
        serial: u64,
        told: impl FnOnce(&mut RelayedConnection, &ConnectionContext<'_>),
    ) {
        let around = ConnectionContext::new(
            self.poll.registry(),
            &self.inbox,
            &self.resolver,
            &mut self.means,
            slot,
        );
        let connection = self.connections.get_mut(slot);
        if let Some(connection) = connection.filter(|c| c.serial() == serial) {
            told(connection, &around);
            self.enqueue(slot);
        }
    }

    fn answer(&self, question: StatusRequest) {
        let all = self.connections.iter().map(|(_, connection)| connection);
        // A send error means that the requester no longer waits.
        match question {
            StatusRequest::ByteCounters(to) => drop(to.send(all.map(|c| c.moved()).collect())),
            StatusRequest::Connections(which, to) => {
                let asked = all.filter(|c| which.contains(&c.serial()));
                drop(to.send(asked.map(|c| c.status(self.means.now)).collect()));
            }
        }
    }

    fn arrived(&mut self, arrival: AcceptedConnection) {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let entry = self.connections.vacant_entry();
        let slot = entry.key();
        let around = ConnectionContext::new(
            self.poll.registry(),
            &self.inbox,
            &self.resolver,
            &mut self.means,
            slot,
        );
        let client = arrival.client;
        match RelayedConnection::new(arrival, serial, &around) {
            Ok(connection) => {
                entry.insert(Box::new(connection));
                self.enqueue(slot);
            }
            Err(e) => tracing::warn!(%client, "refused: {e}"),
        }
    }

    fn turn(&mut self, slot: usize) {
        let Some(connection) = self.connections.get_mut(slot) else {
            return;
        };
        connection.queued = false;
        let old = connection.wake;
        let mut around = ConnectionContext::new(
            self.poll.registry(),
            &self.inbox,
            &self.resolver,
            &mut self.means,
            slot,
        );
        match connection.turn(&mut around) {
            Ok(turn) => {
                if connection.wake != old {
                    self.timers.set(slot, old, connection.wake);
                }
                if turn == FlowTurnResult::More {
                    self.enqueue(slot);
                }
            }
            Err(end) => self.end(slot, old, end),
        }
    }

    /// Ends a connection. A leg that was not closed in order is reset when it is dropped.
    fn end(&mut self, slot: usize, wake: Option<Instant>, end: ConnectionEndReason) {
        self.timers.set(slot, wake, None);
        let mut connection = self.connections.remove(slot);
        match end {
            ConnectionEndReason::Joins(joins) => {
                let (place, begun) = *joins;
                connection
                    .guest_of()
                    .figures
                    .ended(ConnectionOutcome::Joined);
                connection.join(&place, begun, self.poll.registry());
            }
            end => {
                connection.learn();
                connection.cut_off(&end);
                connection.leave();
                connection.tell(&end, self.means.now);
                connection.guest_of().count(&end);
            }
        }
    }
}
