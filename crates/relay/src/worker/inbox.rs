//! What other threads tell a worker.

use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use mio::Waker;
use pair::Parser;

use super::connection::Client;
use super::resolve::Answer;
use crate::pump::Leg;
use crate::server::Running;
use crate::server::connection_limiter::ConnectionPermit;
use crate::status::{ConnectionStatus, Moved};

/// What a worker is told.
#[derive(Debug)]
pub(crate) enum Message {
    /// Somebody has come.
    Arrived(Box<Accepted>),
    /// A name was looked up.
    Resolved {
        slot: usize,
        serial: u64,
        answer: Answer,
    },
    /// One more leg of a pair has come, and this on it.
    Joined {
        slot: usize,
        serial: u64,
        leg: Box<Leg>,
        begun: Parser,
        guest: Option<ConnectionPermit>,
    },
    /// End when the last connection has.
    Drain,
    /// Reset those who are still there.
    CutOff,
    /// Somebody wants to know how connections are.
    Asked(Question),
}

/// What is asked about connections; an answer that nobody waits for any more is dropped.
#[derive(Debug)]
pub(crate) enum Question {
    /// What each has moved.
    Moved(Sender<Vec<Moved>>),
    /// All about these.
    About(Arc<BTreeSet<u64>>, Sender<Vec<ConnectionStatus>>),
}

/// Somebody who has come.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) relay: Arc<Running>,
    pub(crate) client: Client,
    /// Two for standard streams.
    pub(crate) input: OwnedFd,
    pub(crate) output: Option<OwnedFd>,
    pub(crate) guest: ConnectionPermit,
}

/// Where it is put.
pub(crate) struct Inbox {
    messages: Mutex<Vec<Message>>,
    waker: Waker,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inbox")
    }
}

impl Inbox {
    pub(crate) fn new(waker: Waker) -> Self {
        Self {
            messages: Mutex::default(),
            waker,
        }
    }

    /// Puts it there, and wakes the worker unless somebody did already.
    pub(crate) fn put(&self, message: Message) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.push(message);
        let first = messages.len() == 1;
        drop(messages);
        if first {
            // A worker that is gone needs no waking.
            let _ = self.waker.wake();
        }
    }

    /// All that is there.
    pub(crate) fn take(&self) -> Vec<Message> {
        std::mem::take(&mut *self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
