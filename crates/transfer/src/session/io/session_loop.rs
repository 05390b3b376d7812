use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use mio::event::Event;
use mio::{Events, Poll, Token};
use schedule::{ConnectionId, DiskReply, DiskRequest, JobId};

use super::LoopWaker;
use super::machine::this_machine;
use crate::disk::{DiskThreadPool, OpenDirectoryCache};
use crate::session::command::SessionCommand;
use crate::session::core::{ConnectCommand, SessionCore};
use crate::session::direct::{ControlSender, ControlSenderFactory};
use crate::session::disk::{DiskExecutor, LocalStandIn};
use crate::session::next_turn::NextTurnTime;
use crate::session::server_facts::SessionServerFacts;
use crate::session::{
    ConnectionOpener, FurtherConnectionError, Link, SessionEvent, SessionOptions, SessionSummary,
};

pub(super) const WAKER: Token = Token(0);
/// Number of mio tokens reserved for each link.
const TOKENS: usize = 64;

/// Result of a thread that connects.
type ConnectResult = Result<Box<dyn Link>, FurtherConnectionError>;

/// Input of the session loop from other threads: commands, and results of opening connections.
#[expect(clippy::large_enum_variant, reason = "nearly all of them are jobs")]
pub(super) enum SessionLoopInput {
    Command(SessionCommand),
    /// Result of opening a further connection.
    ConnectionOpened(ConnectResult),
    /// Result of connecting again after all connections were lost or fell silent.
    Reconnected(ConnectResult),
}

/// Message queues between the loop's thread and the `Session` handle: the ends that the loop uses.
pub(super) struct LoopMessageQueues {
    pub received: Receiver<SessionLoopInput>,
    /// Sender for threads that open connections for the loop.
    pub orders: Sender<SessionLoopInput>,
    pub events: Sender<SessionEvent>,
    pub waker: Arc<LoopWaker>,
}

/// Event loop of a session: waits for sockets, the disk pool and the session handle, and passes
/// their events to [`SessionCore`], which decides.
pub(super) struct SessionLoop {
    core: SessionCore,
    poll: Poll,
    channels: LoopMessageQueues,
    connection_source: Option<Arc<dyn ConnectionOpener>>,
}

impl DiskExecutor for DiskThreadPool {
    fn submit(&mut self, request: DiskRequest) {
        Self::submit(self, request);
    }

    fn submit_inline(&mut self, request: DiskRequest) -> Option<DiskReply> {
        match self.at_once(request) {
            Ok(reply) => reply,
            Err(request) => {
                Self::submit(self, request);
                None
            }
        }
    }

    fn poll_reply(&mut self) -> Option<DiskReply> {
        Self::poll_reply(self)
    }

    fn holds(&self) -> bool {
        Self::holds(self)
    }

    fn flush(&mut self) {
        Self::flush(self);
    }

    fn bind(&mut self, job: JobId, file: LocalStandIn) {
        match file {
            LocalStandIn::Relay(relay) => Self::bind(self, job, relay),
            LocalStandIn::Check(check) => self.bind_check(job, check),
        }
    }

    fn release(&mut self, job: JobId) {
        Self::release(self, job);
    }
}

impl SessionLoop {
    pub(super) fn new(
        poll: Poll,
        options: SessionOptions,
        channels: LoopMessageQueues,
        (facts, directories): (Arc<SessionServerFacts>, Arc<OpenDirectoryCache>),
        mut link: Box<dyn Link>,
    ) -> io::Result<Self> {
        let now = Instant::now();
        let waker = Arc::clone(&channels.waker);
        let threads = options.disk_threads.max(1);
        let ledger = options.ledger.clone();
        let disk = DiskThreadPool::new(threads, ledger, directories, move || waker.wake())?;
        let connection_source = options.connection_source.clone();
        let with: (Box<dyn DiskExecutor>, ControlSenderFactory) =
            (Box::new(disk), outlet(&channels));
        let mut core = SessionCore::new(now, options, this_machine(), with, facts);
        link.register(poll.registry(), first_token(core.next_connection()))?;
        core.begin(now, link);
        Ok(Self {
            core,
            poll,
            channels,
            connection_source,
        })
    }

    pub(super) fn run(mut self) -> SessionSummary {
        let mut events = Events::with_capacity(64);
        let mut due = NextTurnTime::Now;
        while !self.core.is_over() {
            let timeout = due.timeout(Instant::now());
            if let Err(e) = self.wait(&mut events, timeout)
                && e.kind() != io::ErrorKind::Interrupted
            {
                let why = format!("this machine cannot poll its connections: {e}");
                self.core.lose(Instant::now(), why);
                break;
            }
            let now = Instant::now();
            self.core.woken(now, !events.is_empty());
            for event in &events {
                self.ready(event);
            }
            self.take_orders(now);
            if !self.core.is_over() {
                self.core.turn(now, self.channels.events.len());
            }
            self.carry_out(now);
            due = self.core.due(Instant::now());
            if let Some(nap) = self.core.nap().filter(|_| due != NextTurnTime::Now) {
                std::thread::sleep(nap);
            }
        }
        self.tell();
        self.core.finish()
    }

    /// Waits for events. Before blocking, submits the disk requests that were held back for
    /// batching.
    fn wait(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        if timeout != Some(Duration::ZERO) && self.core.holds_disk() {
            self.poll.poll(events, Some(Duration::ZERO))?;
            if !events.is_empty() {
                return Ok(());
            }
            self.core.flush_disk();
        }
        self.poll.poll(events, timeout)
    }

    fn ready(&mut self, event: &Event) {
        let token = event.token();
        let Some(connection) = connection_of(token) else {
            return;
        };
        let readable = event.is_readable() || event.is_read_closed() || event.is_error();
        let writable = event.is_writable() || event.is_write_closed();
        if let Some(link) = self.core.link_mut(connection) {
            link.ready(token, readable, writable);
        }
    }

    /// Takes the orders of the handle and the results of threads that connect.
    fn take_orders(&mut self, now: Instant) {
        // Reset before reading the queue, so that later input wakes the loop again.
        self.channels.waker.answer();
        while !self.core.is_over() {
            let order = match self.channels.received.try_recv() {
                Ok(order) => order,
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => SessionLoopInput::Command(SessionCommand::End),
            };
            match order {
                SessionLoopInput::Command(command) => self.core.handle_command(now, command),
                SessionLoopInput::ConnectionOpened(link) => {
                    let link = self.registered(link);
                    self.core.joined(now, link);
                }
                SessionLoopInput::Reconnected(link) => {
                    let link = self.registered(link);
                    self.core.rejoined(now, link);
                }
            }
        }
    }

    /// Registers the link of a new connection.
    fn registered(&self, link: ConnectResult) -> ConnectResult {
        let mut link = link?;
        let first = first_token(self.core.next_connection());
        match link.register(self.poll.registry(), first) {
            Ok(()) => Ok(link),
            Err(e) => Err(FurtherConnectionError::Connection(e.to_string())),
        }
    }

    /// Passes on the results of a turn: events to the handle, and orders to connect to threads.
    fn carry_out(&mut self, now: Instant) {
        while let Some(order) = self.core.poll_order() {
            if let Err(e) = self.connect(order) {
                let failed = Err(FurtherConnectionError::Connection(e.to_string()));
                match order {
                    ConnectCommand::OpenFurther { .. } => self.core.joined(now, failed),
                    ConnectCommand::Reconnect => self.core.rejoined(now, failed),
                }
            }
        }
        self.tell();
    }

    fn tell(&mut self) {
        while let Some(event) = self.core.poll_event() {
            // The receiver is gone while the handle is being dropped.
            let _ = self.channels.events.send(event);
        }
    }

    /// Connects on a new thread.
    fn connect(&self, order: ConnectCommand) -> io::Result<()> {
        let Some(connection_source) = self.connection_source.clone() else {
            return Ok(());
        };
        let (orders, waker) = (self.channels.orders.clone(), self.channels.waker.clone());
        let thread = std::thread::Builder::new().name("connect".to_owned());
        thread.spawn(move || {
            let result = match order {
                ConnectCommand::OpenFurther { brief } => {
                    SessionLoopInput::ConnectionOpened(connection_source.another(brief))
                }
                ConnectCommand::Reconnect => {
                    SessionLoopInput::Reconnected(connection_source.reconnect())
                }
            };
            // After the end of the session the send fails and the link is dropped.
            let _ = orders.send(result);
            waker.wake();
        })?;
        Ok(())
    }
}

/// Returns the way in which the source of direct connections sends messages.
fn outlet(channels: &LoopMessageQueues) -> ControlSenderFactory {
    let (orders, waker) = (channels.orders.clone(), channels.waker.clone());
    Arc::new(move || {
        let (orders, waker) = (orders.clone(), waker.clone());
        let send: ControlSender = Box::new(move |bytes| {
            // After the end of the session there is no receiver.
            let _ = orders.send(SessionLoopInput::Command(SessionCommand::Control(bytes)));
            waker.wake();
        });
        send
    })
}

/// First mio token of a connection; each connection has `TOKENS` of them.
fn first_token(connection: ConnectionId) -> Token {
    Token(1 + connection.0 as usize * TOKENS)
}

/// Connection that a token belongs to.
fn connection_of(token: Token) -> Option<ConnectionId> {
    let number = token.0.checked_sub(1)? / TOKENS;
    u32::try_from(number).ok().map(ConnectionId)
}
