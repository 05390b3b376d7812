use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use mio::{Events, Poll, Token};
use schedule::{
    ConnectionId, LaneError, LaneId, LaneOrder, Refusals, Scheduler, SchedulerEvent,
    SchedulerOptions,
};
use sftp::ServerInfo;

use super::background_pacer::BackgroundPacer;
use super::concurrency::ConcurrencyInputs;
use super::connections::{Connection, TOKENS};
use super::direct::DirectState;
use super::due::{Due, Turns};
use super::event_batcher::EventBatcher;
use super::exec::RemoteCommands;
use super::explain::EndedLanes;
use super::flight::Flying;
use super::lanes::LaneOnChannel;
use super::losses::Ending;
use super::pending_disk_ops::PendingDiskOps;
use super::reconnect::Reconnecting;
use super::remote_server::RemoteServer;
use super::stalls::Stalls;
use super::throttle::RateLimiter;
use super::{
    ChannelId, Command, LinkEvent, LoopWaker, RemoteServerInfo, SessionEvent, SessionOptions,
    SessionSummary,
};
use crate::disk::{DirectoryCache, DiskPool};

/// Reason given when this end closes a stalled lane.
pub(super) const STALLED: &str = "it stood still while others moved";

pub(super) const WAKER: Token = Token(0);

/// Range of a nap that lets answers accumulate; shorter naps are not taken.
const NAP: std::ops::RangeInclusive<Duration> =
    Duration::from_micros(100)..=Duration::from_millis(1);
/// Rate in bytes per second from which naps are limited to `SHORT_NAP`. A rate that naps reduce
/// makes the next nap longer, which held a lane at half its speed for the first 0.2 s.
const FAST: f64 = 1e9;
/// Largest number of different stderr lines from remote programs that are shown; each is shown
/// once.
const SAID: usize = 64;
const SHORT_NAP: Duration = Duration::from_micros(150);
/// Bytes in flight below which answers are processed as they come.
const BULK: u64 = 1 << 20;

/// Events queued for the handle from which listings pause; each event may hold 900 names.
const BACKLOG: usize = 512;
/// Interval at which a paused listing checks the event queue again.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The loop's ends of the channels that it shares with the `Session` handle.
pub(super) struct LoopChannels {
    pub(super) commands: Receiver<Command>,
    /// Sender for threads that open connections for the loop.
    pub(super) orders: Sender<Command>,
    pub(super) events: Sender<SessionEvent>,
    pub(super) bell: Arc<LoopWaker>,
    pub(super) server: Arc<OnceLock<ServerInfo>>,
    pub(super) far: Arc<RemoteServerInfo>,
}

/// The loop of a session. Moves bytes between links and lanes, requests between lanes and disk, and
/// jobs and events between lanes, scheduler and handle. Decisions are made elsewhere.
pub(super) struct SessionLoop {
    pub(super) connections: Vec<Connection>,
    pub(super) poll: Poll,
    pub(super) disk: DiskPool,
    pub(super) lanes: Vec<LaneOnChannel>,
    pub(super) execs: RemoteCommands,
    pub(super) straight: DirectState,
    /// Further connections deferred until it is known if they will be direct.
    pub(super) wanted: usize,
    /// Further connections that are being opened.
    pub(super) reaching: usize,
    pub(super) far: RemoteServer,
    pub(super) spread: Scheduler,
    /// Requests that the stock server was found to refuse.
    pub(super) refusals: Refusals,
    pub(super) growing: ConcurrencyInputs,
    pub(super) owed: PendingDiskOps,
    pub(super) telling: EventBatcher,
    /// Lines that remote programs wrote to standard error.
    said: BTreeSet<String>,
    pub(super) ends: LoopChannels,
    pub(super) ending: Vec<Ending>,
    /// Channels of lanes that this side has closed and the other side has not.
    pub(super) closed: BTreeMap<(ConnectionId, ChannelId), LaneId>,
    pub(super) options: SessionOptions,
    pub(super) predict: bool,
    pub(super) restarts: u32,
    pub(super) throttle: Option<RateLimiter>,
    /// Set for `--background`: the copy yields to other traffic.
    pub(super) yielding: Option<BackgroundPacer>,
    /// Index of the lane that is served first in a rate-limited turn.
    pub(super) first_served: usize,
    /// Something waits for the rate limiter.
    pub(super) throttled: bool,
    /// The bytes in flight of all lanes together are bounded (`MOST_IN_FLIGHT`).
    pub(super) held_to_flight: bool,
    /// Bytes in flight of each lane at the last check; kept to reuse the allocation.
    pub(super) flying: Vec<Flying>,
    /// Error with which the last channel ended.
    pub(super) ended: Option<LaneError>,
    pub(super) over: bool,
    /// Decides when the loop takes its next turn.
    pub(super) turns: Turns,
    pub(super) stalls: Stalls,
    pub(super) next_connection: u32,
    pub(super) reconnecting: Reconnecting,
    /// Time of the last data received.
    pub(super) heard: Instant,
    /// The run is ending: unfinished work is not waited for.
    pub(super) leaving: bool,
    /// The handle asked to pause listings.
    pub(super) lists_held: bool,
    /// Listings pause because too many events are queued; the queue is checked again at this time.
    pub(super) backlog: Option<Instant>,
    /// Totals of the lanes that have ended.
    pub(super) gone: EndedLanes,
}

impl SessionLoop {
    pub(super) fn new(
        poll: Poll,
        options: SessionOptions,
        ends: LoopChannels,
        directories: Arc<DirectoryCache>,
    ) -> io::Result<Self> {
        let now = Instant::now();
        let bell = Arc::clone(&ends.bell);
        let split = options.reach.is_some() || options.channels.is_none_or(|n| n > 1);
        let spread = SchedulerOptions {
            split,
            one_handle: (options.connections, options.channels) == (Some(1), Some(1)),
            overtake: options.limit.is_none() && !options.background,
            ..SchedulerOptions::default()
        };
        Ok(Self {
            connections: Vec::new(),
            poll,
            disk: DiskPool::new(
                options.disk_threads.max(1),
                options.ledger.clone(),
                directories,
                move || bell.ring(),
            )?,
            lanes: Vec::new(),
            execs: RemoteCommands::default(),
            straight: DirectState::default(),
            wanted: 0,
            reaching: 0,
            far: RemoteServer::default(),
            spread: Scheduler::new(spread, now),
            refusals: options
                .reach
                .as_ref()
                .map_or_else(Refusals::default, |reach| reach.refusals()),
            growing: ConcurrencyInputs::default(),
            owed: PendingDiskOps::default(),
            telling: EventBatcher::new(ends.events.clone(), now),
            said: BTreeSet::new(),
            ends,
            ending: Vec::new(),
            closed: BTreeMap::new(),
            predict: options.predict,
            restarts: 0,
            throttle: options.limit.map(|l| RateLimiter::new(l, now)),
            yielding: options.background.then(|| BackgroundPacer::new(now)),
            first_served: 0,
            throttled: false,
            held_to_flight: false,
            flying: Vec::new(),
            ended: None,
            over: false,
            turns: Turns::default(),
            stalls: Stalls::new(options.patience),
            next_connection: 0,
            reconnecting: Reconnecting::default(),
            heard: now,
            leaving: false,
            lists_held: false,
            backlog: None,
            gone: EndedLanes::default(),
            options,
        })
    }

    pub(super) fn run(mut self) -> SessionSummary {
        let mut events = Events::with_capacity(64);
        let mut due = Due::Now;
        while !self.over {
            let timeout = due.timeout(Instant::now());
            if let Err(e) = self.wait(&mut events, timeout)
                && e.kind() != io::ErrorKind::Interrupted
            {
                self.lose(format!("waiting for the connection failed: {e}"));
                break;
            }
            let now = Instant::now();
            self.turns.woken(now, !events.is_empty());
            for event in &events {
                let readable = event.is_readable() || event.is_read_closed() || event.is_error();
                let writable = event.is_writable() || event.is_write_closed();
                let token = event.token();
                if let Some(on) = self.connections.iter_mut().find(|c| c.has_token(token)) {
                    on.link.ready(token, readable, writable);
                }
            }
            self.turn(now);
            due = self.due();
            if let Some(nap) = self.nap().filter(|_| due != Due::Now) {
                std::thread::sleep(nap);
            }
        }
        self.learn();
        self.learn_login_cost();
        let mut far = self.far.account();
        self.straight.account(&mut far, self.connections.len() > 1);
        let report = self.account();
        let account = SessionSummary {
            decisions: self.explain(&far, report.as_ref()),
            report,
            far,
        };
        drop(self.lanes);
        // In reverse, because closing the first connection ends the direct server that the others
        // lead to.
        for on in self.connections.into_iter().rev() {
            on.link.finish();
        }
        account
    }

    /// Waits for events. Before blocking, submits the disk requests that were held back for
    /// batching.
    fn wait(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        if timeout != Some(Duration::ZERO) && self.disk.holds() {
            self.poll.poll(events, Some(Duration::ZERO))?;
            if !events.is_empty() {
                return Ok(());
            }
            self.disk.flush();
        }
        self.poll.poll(events, timeout)
    }

    /// Time for which answers may accumulate before the loop wakes, as a network card coalesces
    /// interrupts.
    ///
    /// sshd answers each 96 KiB with a message of its own, and waking for each cost 57,000 context
    /// switches for 4 GiB, which slow down both ends. A nap lasts at most a fifth of the time that
    /// the data in flight takes, so the other end does not run out of work.
    fn nap(&self) -> Option<Duration> {
        let (mut in_flight, mut rate) = (0, 0.0);
        for on in &self.lanes {
            let stats = on.lane.stats();
            in_flight += stats.bytes_in_flight;
            rate += stats.rate.unwrap_or(0.0);
        }
        if in_flight < BULK || rate <= 0.0 {
            return None;
        }
        let lasts = Duration::try_from_secs_f64(in_flight as f64 / rate).ok()?;
        let most = if rate < FAST { *NAP.end() } else { SHORT_NAP };
        Some((lasts / 5).min(most)).filter(|nap| nap >= NAP.start())
    }

    /// Takes one turn of the loop: receives what has arrived, decides, and passes on the results.
    /// Turns repeat until one is quiet ([`SessionLoop::due`]), so the order of the steps does not
    /// matter.
    fn turn(&mut self, now: Instant) {
        self.throttled = false;
        self.take_input(now);
        if self.over {
            return;
        }
        self.decide(now);
        self.pass_on(now);
        if let Some(throttle) = &mut self.throttle {
            throttle.note(now, self.throttled);
        }
    }

    /// Takes the input of the turn from the handle, the disk and the connections.
    fn take_input(&mut self, now: Instant) {
        // Reset before reading the queues, so that later input wakes the loop again.
        self.ends.bell.answer();
        self.take_commands(now);
        self.take_replies(now);
        if self.receive(now) {
            self.turns.arrived();
        }
    }

    /// Pauses listings while the handle asks for it or has too many unread events.
    fn hold_lists(&mut self, now: Instant) {
        let behind = self.ends.events.len() > BACKLOG;
        self.backlog = behind.then(|| now + LOOK_AGAIN);
        let hold = behind || self.lists_held;
        for on in &mut self.lanes {
            on.lane.hold_lists(now, hold);
        }
    }

    /// Opens and closes connections, lanes and remote commands as the state requires.
    fn decide(&mut self, now: Instant) {
        self.reconnect(now);
        self.go_straight(now);
        self.open_lanes(now);
        self.ask_far(now);
        self.hurry_far(now);
        self.run_execs();
        if self.spread.poll_timeout().is_some_and(|at| at <= now) {
            self.spread.handle_timeout(now);
        }
        self.look_for_stalls(now);
        self.look(now);
    }

    /// Assigns jobs to lanes and moves data between lanes, scheduler and links.
    fn pass_on(&mut self, now: Instant) {
        self.obey(now);
        self.hold_lists(now);
        self.pace(now);
        self.drain_lanes(now);
        self.take_over(now);
        self.drain_asked(now);
        self.tell_settled();
        self.obey(now);
        self.close_what_is_free(now);
        if self.flush(now) {
            self.turns.stir();
        }
        self.telling.handle_timeout(now);
        self.record_connections(now);
    }

    fn next_command(&self) -> Option<Command> {
        match self.ends.commands.try_recv() {
            Ok(command) => Some(command),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Command::End),
        }
    }

    fn take_commands(&mut self, now: Instant) {
        while let Some(command) = self.next_command() {
            self.turns.arrived();
            match command {
                Command::Push(job, hint) => {
                    self.growing.note(&job);
                    self.expect_lanes(now, &job, hint);
                    self.spread.push(now, job, hint);
                }
                Command::Bind(id, relay) => {
                    self.owed.set_relayed(id);
                    self.disk.bind(id, relay);
                }
                Command::Rejoined(link) => self.rejoined(now, link),
                Command::Leave(reason) => {
                    self.leaving = true;
                    self.stop_waiting(&reason);
                    self.spread.leave(now, &reason);
                    for on in &mut self.lanes {
                        on.lane.leave(now, &reason);
                    }
                }
                Command::Check(id, check) => {
                    self.owed.set_relayed(id);
                    self.disk.bind_check(id, check);
                }
                Command::Exec(order) => self.execs.order(order),
                Command::Straight(bytes) => self.straight_says(bytes),
                Command::Cancel(reason) => {
                    self.leaving = true;
                    self.stop_waiting(&reason);
                    self.spread.cancel(now, &reason);
                    for on in &mut self.lanes {
                        on.lane.cancel(now, &reason);
                    }
                }
                Command::Expect(direction, files, bytes) => {
                    self.growing.expect(direction, files, bytes);
                }
                Command::Foresee(direction, files, bytes) => {
                    self.growing.foresee(direction, files, bytes);
                }
                Command::HoldLists(hold) => self.lists_held = hold,
                Command::Joined(link) => self.joined(now, link),
                Command::End => {
                    self.over = true;
                    return;
                }
            }
        }
    }

    fn take_replies(&mut self, now: Instant) {
        while let Some(reply) = self.disk.poll_reply() {
            self.turns.arrived();
            match self.owed.replied(&reply) {
                Some(Some(lane)) => {
                    if let Some(at) = self.lane_at(lane) {
                        self.lanes[at].lane.handle_disk(now, reply);
                    }
                }
                Some(None) => self.spread.handle_disk(now, reply),
                None => {}
            }
        }
        self.recover(now);
    }

    fn receive(&mut self, now: Instant) -> bool {
        let mut ids: Vec<ConnectionId> = self.connections.iter().map(|on| on.id).collect();
        // The rate limit may not suffice for all connections, so a different one is served first in
        // each turn.
        let first = self.first_served % ids.len().max(1);
        ids.rotate_left(first);
        let mut more = false;
        for id in ids {
            if self.over {
                break;
            }
            let spent = self.throttle.as_mut().is_some_and(|t| t.credit(now) == 0);
            self.throttled |= spent;
            let Some(on) = self.connection(id) else {
                continue;
            };
            let mut received = Vec::new();
            let result = match on.link.handle_timeout(now) {
                Ok(()) if spent => Ok(false),
                Ok(()) => on.link.receive(now, &mut received),
                Err(e) => Err(e),
            };
            self.handle_received(now, id, received);
            match result {
                Ok(again) => more |= again,
                Err(e) => self.connection_lost(now, id, e),
            }
        }
        more
    }

    fn handle_received(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        received: Vec<LinkEvent>,
    ) {
        if !received.is_empty() {
            self.turns.arrived();
            self.note_heard(now);
        }
        for event in received {
            match event {
                LinkEvent::Data(channel, bytes) => {
                    if let Some(throttle) = &mut self.throttle {
                        throttle.spend(bytes.len());
                    }
                    let Some(at) = self.lane_on(connection, channel) else {
                        if !self.asked_said(now, connection, channel, &bytes) {
                            self.exec_said(connection, channel, bytes);
                        }
                        continue;
                    };
                    let heard = self.lanes[at].hear(now, bytes);
                    let (greeting, error) = match heard {
                        Ok(greeting) => (greeting, None),
                        Err(error) => (None, Some(error)),
                    };
                    self.far_heard(at, greeting);
                    if let Some(error) = error {
                        self.lane_ended(now, at, error);
                    }
                }
                LinkEvent::Closed(..) | LinkEvent::Refused(..) => {
                    let refused = matches!(event, LinkEvent::Refused(..));
                    let (channel, why) = match event {
                        LinkEvent::Closed(channel, why) => (channel, why),
                        LinkEvent::Refused(channel, why) => (channel, Some(why)),
                        _ => continue,
                    };
                    let why = why.unwrap_or_else(|| "without a reason".to_owned());
                    let Some(at) = self.lane_on(connection, channel) else {
                        self.asked_closed(now, (connection, channel), &why, refused);
                        continue;
                    };
                    self.spread.lane_is_over(now, self.lanes[at].id);
                    self.lanes[at].lane.handle_closed(&why);
                    self.lane_ended(now, at, LaneError::Closed(why));
                }
                LinkEvent::Over(channel) => {
                    if let Some(lane) = self.closed.remove(&(connection, channel)) {
                        self.spread.lane_is_over(now, lane);
                    }
                }
                LinkEvent::Restarted => self.far.begin_again(),
                LinkEvent::Exited(channel, how) => self.exec_over(connection, channel, how),
                // The program behind each channel may print this line; show it once.
                LinkEvent::Says(line) => {
                    if self.said.len() < SAID && self.said.insert(line.clone()) {
                        self.telling.tell(SessionEvent::Says(line));
                    }
                }
            }
        }
    }

    /// Carries out the scheduler's orders and forwards its events.
    pub(super) fn obey(&mut self, now: Instant) {
        // A lane may have started a job already and be able to take more.
        self.report_lanes(now);
        while self.obey_orders(now) {
            self.report_lanes(now);
        }
        while let Some(request) = self.spread.poll_disk() {
            self.owed.asked(request.job(), None);
            self.disk.submit(request);
        }
        while let Some(event) = self.spread.poll_event() {
            match event {
                SchedulerEvent::Lane(event) => {
                    if event.is_last() && self.owed.ended(event.job()) {
                        self.disk.release(event.job());
                    }
                    self.record_state(&event);
                    self.telling.tell(SessionEvent::Lane(event));
                }
                SchedulerEvent::Restarted(id) => self.telling.tell(SessionEvent::Restarted(id)),
            }
        }
    }

    /// Carries out pending orders of the scheduler. Returns true if there were any.
    fn obey_orders(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(order) = self.spread.poll_order() {
            any = true;
            match order {
                LaneOrder::Push(lane, job) => {
                    let Some(at) = self.lane_at(lane) else {
                        continue;
                    };
                    self.lanes[at].give(now, job);
                }
                LaneOrder::Abandon(lane, job) => {
                    if let Some(at) = self.lane_at(lane) {
                        self.lanes[at].lane.abandon(now, job);
                    }
                }
                LaneOrder::Close(lane) => {
                    if let Some(at) = self.lane_at(lane) {
                        let why = LaneError::Closed(STALLED.to_owned());
                        self.lane_ended(now, at, why);
                    }
                }
            }
        }
        any
    }

    fn flush(&mut self, now: Instant) -> bool {
        let mut wrote = false;
        let mut lost = Vec::new();
        for on in &mut self.connections {
            match on.link.flush(now) {
                Ok(some) => wrote |= some,
                Err(e) => lost.push((on.id, e)),
            }
        }
        for (id, why) in lost {
            self.connection_lost(now, id, why);
        }
        self.note_stalls(now);
        wrote
    }
}

/// First mio token of a connection; each connection has `TOKENS` of them.
pub(super) fn first_token(connection: u32) -> Token {
    Token(1 + connection as usize * TOKENS)
}
