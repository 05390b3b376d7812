//! The sessions of a copy, and the events that they have sent.

use std::collections::VecDeque;
use std::rc::Rc;

use super::HostId;
use super::environment::{ConnectedSession, NextEventResult, RemoteSession};
use super::local_file_ops::LocalFileOps;
use crate::report::EscapedName;
use crate::session::SessionEvent;

/// Events taken from one session before the other gets its turn.
const BATCH: usize = 1024;

/// One of the two ends of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopySide {
    Source,
    Target,
}

/// Session with a remote end.
pub(super) struct RemoteSide {
    session: Box<dyn RemoteSession>,
    /// Number of the session in a [`super::wait_conditions::WaitConditions`].
    number: usize,
    /// Files of this machine, as the session's jobs resolve them.
    local: Rc<dyn LocalFileOps>,
    host: HostId,
    name: String,
    /// Name of the account that logged in, if known.
    login: Option<String>,
    is_lost: bool,
}

impl RemoteSide {
    pub(super) fn new(connected: ConnectedSession, host: HostId, name: String) -> Self {
        let ConnectedSession {
            remote,
            number,
            local,
            login,
        } = connected;
        Self {
            session: remote,
            number,
            local,
            host,
            name,
            login,
            is_lost: false,
        }
    }

    pub(super) fn session(&self) -> &dyn RemoteSession {
        &*self.session
    }

    /// The session and its name.
    pub(super) fn into_session(self) -> (Box<dyn RemoteSession>, String) {
        (self.session, self.name)
    }

    /// Number of the session in a [`super::wait_conditions::WaitConditions`].
    pub(super) fn number(&self) -> usize {
        self.number
    }

    pub(super) fn host(&self) -> HostId {
        self.host
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Name of the account that logged in, if known.
    pub(super) fn login(&self) -> Option<&str> {
        self.login.as_deref()
    }

    /// True if the session still takes jobs.
    pub(super) fn is_open(&self) -> bool {
        !self.is_lost
    }
}

/// Sessions of both ends, of which a local end has none.
pub(super) struct EndpointSessions {
    source: Option<RemoteSide>,
    target: Option<RemoteSide>,
    /// Files of this machine, if no session resolves the target's paths.
    own_files: Rc<dyn LocalFileOps>,
    /// Events taken from the sessions and not handled yet; `None` is the unexpected end of a
    /// session. They are handled one by one from this queue, so that a query during which events
    /// are handled continues with the next one.
    inbox: VecDeque<(CopySide, Option<SessionEvent>)>,
}

impl EndpointSessions {
    pub(super) fn new(own_files: Rc<dyn LocalFileOps>) -> Self {
        Self {
            source: None,
            target: None,
            own_files,
            inbox: VecDeque::new(),
        }
    }

    pub(super) fn get(&self, end: CopySide) -> Option<&RemoteSide> {
        match end {
            CopySide::Source => self.source.as_ref(),
            CopySide::Target => self.target.as_ref(),
        }
    }

    fn of(&mut self, end: CopySide) -> &mut Option<RemoteSide> {
        match end {
            CopySide::Source => &mut self.source,
            CopySide::Target => &mut self.target,
        }
    }

    /// True if the end is at a remote host.
    pub(super) fn is_remote(&self, end: CopySide) -> bool {
        self.get(end).is_some()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &RemoteSide> {
        [&self.source, &self.target].into_iter().flatten()
    }

    /// Sessions that still take jobs.
    pub(super) fn open(&self) -> impl Iterator<Item = &RemoteSide> {
        self.iter().filter(|side| side.is_open())
    }

    pub(super) fn set(&mut self, end: CopySide, side: Option<RemoteSide>) {
        *self.of(end) = side;
    }

    /// Takes a session that another source uses later, with its events.
    pub(super) fn take(&mut self, end: CopySide) -> Option<RemoteSide> {
        self.of(end).take()
    }

    /// Takes a session that ends, and drops its events.
    pub(super) fn end(&mut self, end: CopySide) -> Option<RemoteSide> {
        let side = self.take(end)?;
        self.inbox.retain(|(of, _)| *of != end);
        Some(side)
    }

    /// Notes that a session is lost. Returns its name.
    pub(super) fn lose(&mut self, end: CopySide) -> Option<&str> {
        let side = self.of(end).as_mut()?;
        side.is_lost = true;
        Some(&side.name)
    }

    /// Files of this machine, as jobs of the copy resolve them.
    pub(super) fn local(&self) -> Rc<dyn LocalFileOps> {
        let local = self.source.as_ref().map(|side| &side.local);
        Rc::clone(local.unwrap_or(&self.own_files))
    }

    /// Formats a path as `host:path`, or as the path alone if it is local.
    pub(super) fn shown(&self, end: CopySide, path: &[u8]) -> EscapedName {
        match self.get(end) {
            Some(side) => EscapedName([side.name.as_bytes(), b":", path].concat()),
            None => EscapedName(path.to_vec()),
        }
    }

    /// Appends an event that a caller has taken from a session.
    pub(super) fn push_event(&mut self, end: CopySide, event: SessionEvent) {
        self.inbox.push_back((end, Some(event)));
    }

    pub(super) fn next_event(&mut self) -> Option<(CopySide, Option<SessionEvent>)> {
        self.inbox.pop_front()
    }

    /// Appends new events of the sessions to the queue. Returns true if any are queued.
    pub(super) fn take_events(&mut self) -> bool {
        for (end, side) in [
            (CopySide::Source, &self.source),
            (CopySide::Target, &self.target),
        ] {
            let Some(side) = side.as_ref().filter(|side| side.is_open()) else {
                continue;
            };
            for _ in 0..BATCH {
                match side.session.next_event() {
                    NextEventResult::Event(event) => self.inbox.push_back((end, Some(event))),
                    NextEventResult::Pending => break,
                    NextEventResult::Ended => {
                        self.inbox.push_back((end, None));
                        break;
                    }
                }
            }
        }
        !self.inbox.is_empty()
    }
}
