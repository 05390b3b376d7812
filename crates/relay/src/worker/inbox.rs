//! Inbox of a worker: messages from other threads.

use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use mio::Waker;
use pair::FrameDecoder;

use super::connection::ClientAddress;
use super::resolve::ResolveResult;
use crate::pump::Leg;
use crate::server::RunningRelay;
use crate::server::connection_limiter::ConnectionPermit;
use crate::status::{ByteCounters, ConnectionStatus};

/// Event from the acceptor, the resolver, another worker or the status monitor. `slot` and `serial`
/// name a connection of the receiving worker; a message to one that has ended is ignored.
#[derive(Debug)]
pub(crate) enum WorkerMessage {
    /// New connection.
    Accepted(Box<AcceptedConnection>),
    /// Result of a DNS lookup.
    Resolved {
        slot: usize,
        serial: u64,
        answer: ResolveResult,
    },
    /// Further stripe of a pair, with what was received on it.
    Joined {
        slot: usize,
        serial: u64,
        leg: Box<Leg>,
        begun: FrameDecoder,
        permit: Option<ConnectionPermit>,
    },
    /// Exit after the last connection has ended.
    Drain,
    /// Reset all remaining connections.
    CutOff,
    /// Request for the state of connections.
    StatusRequested(StatusRequest),
}

/// Request for the state of connections; an answer that is no longer wanted is dropped.
#[derive(Debug)]
pub(crate) enum StatusRequest {
    /// Byte counters of all connections.
    ByteCounters(Sender<Vec<ByteCounters>>),
    /// Full status of these connections.
    Connections(Arc<BTreeSet<u64>>, Sender<Vec<ConnectionStatus>>),
}

/// Place of a connection: its worker's inbox, its slot there, and its serial number, which tells it
/// from a later connection in the slot.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionHandle {
    inbox: Arc<WorkerInbox>,
    slot: usize,
    serial: u64,
}

impl ConnectionHandle {
    pub(crate) fn new(inbox: &Arc<WorkerInbox>, slot: usize, serial: u64) -> Self {
        let inbox = Arc::clone(inbox);
        Self {
            inbox,
            slot,
            serial,
        }
    }

    /// Passes the answer to a DNS lookup on to the connection.
    pub(crate) fn resolved(&self, answer: ResolveResult) {
        self.inbox.put(WorkerMessage::Resolved {
            slot: self.slot,
            serial: self.serial,
            answer,
        });
    }

    /// Passes a further stripe on to the pair of the connection, with what was received on it.
    pub(crate) fn join(&self, leg: Leg, begun: FrameDecoder, permit: Option<ConnectionPermit>) {
        self.inbox.put(WorkerMessage::Joined {
            slot: self.slot,
            serial: self.serial,
            leg: Box::new(leg),
            begun,
            permit,
        });
    }
}

/// Client's connection that passed the limits, on its way from the acceptor to the worker with the
/// fewest connections.
#[derive(Debug)]
pub(crate) struct AcceptedConnection {
    pub(crate) relay: Arc<RunningRelay>,
    pub(crate) client: ClientAddress,
    /// Input descriptor; the output is separate for standard streams only.
    pub(crate) input: OwnedFd,
    pub(crate) output: Option<OwnedFd>,
    pub(crate) permit: ConnectionPermit,
}

/// Queue of messages to one worker thread, with the waker that interrupts its poll. It is
/// unbounded, since the acceptor limits the connections.
pub(crate) struct WorkerInbox {
    messages: Mutex<Vec<WorkerMessage>>,
    waker: Waker,
}

impl fmt::Debug for WorkerInbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkerInbox")
    }
}

impl WorkerInbox {
    pub(crate) fn new(waker: Waker) -> Self {
        Self {
            messages: Mutex::default(),
            waker,
        }
    }

    /// Queues a message, and wakes the worker if the inbox was empty.
    pub(crate) fn put(&self, message: WorkerMessage) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.push(message);
        let first = messages.len() == 1;
        drop(messages);
        if first {
            // A worker that has ended needs no wake-up.
            let _ = self.waker.wake();
        }
    }

    /// Takes all messages.
    pub(crate) fn take(&self) -> Vec<WorkerMessage> {
        std::mem::take(&mut *self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
