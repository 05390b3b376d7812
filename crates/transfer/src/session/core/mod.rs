//! The session without sockets, threads and clock: takes input and the time, and returns events,
//! orders for new connections, and the time of its next turn.

mod links;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use schedule::{ConcurrencyChange, ConnectionId, LaneError, LaneStats};

use crate::session::command::SessionCommand;
use crate::session::concurrency::{ConcurrencyDecision, ConcurrencyInputs, MeasuredSession};
use crate::session::direct::{ControlSenderFactory, DirectConnectionInputs, DirectConnections};
use crate::session::disk::DiskExecutor;
use crate::session::dispatcher::{Dispatcher, LearnedLaneFacts};
use crate::session::event_batcher::EventBatcher;
use crate::session::lane::{LaneOnChannel, LaneRole};
use crate::session::listing_pause_control::ListingPauseControl;
use crate::session::losses::LaneLosses;
use crate::session::machine::MachineFunctions;
use crate::session::nap::nap;
use crate::session::next_turn::{LoopDelayInputs, LoopTurnOutcome, NextTurnTime};
use crate::session::pacing::SessionRateLimits;
use crate::session::reconnect::ReconnectPolicy;
use crate::session::remote_commands::RemoteCommands;
use crate::session::reopening::ChannelReopening;
use crate::session::server_facts::SessionServerFacts;
use crate::session::sftp_server_selector::SftpServerSelector;
use crate::session::stalls::{AnswerWait, StallAction, StallDetector};
use crate::session::{Link, SessionEvent, SessionOptions, SessionSummary, explain};

/// Largest number of different stderr lines from remote programs that are shown; each is shown
/// once.
const SAID: usize = 64;
/// Age of a session at which its figures are first shown, and the time until the next ones.
const FIRST_FIGURES: Duration = Duration::from_secs(1);
const FURTHER_FIGURES: Duration = Duration::from_millis(500);

/// Order to the owner of the session, which has the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectCommand {
    /// Open a further connection ([`crate::session::ConnectionOpener::another`]) and report it by
    /// [`SessionCore::joined`].
    OpenFurther { brief: bool },
    /// Connect again ([`crate::session::ConnectionOpener::reconnect`]) and report it by
    /// [`SessionCore::rejoined`].
    Reconnect,
}

/// Progress of the session towards its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionStage {
    Running,
    /// The run is ending: unfinished work is not waited for.
    Leaving,
    Ended,
}

/// Proof that the turn has taken its input. Decisions come after it, so that none is made about a
/// connection that was lost or for a job that has ended.
struct TurnInputTaken(());

/// Proof that every component has decided. Data move after it, so that lanes that were opened in
/// this turn get their first jobs in this turn.
struct TurnDecisionsMade(());

/// Proof that lanes, scheduler and links have exchanged all pending data. Links are flushed after
/// it, so that one write takes the output of all lanes.
struct TurnDataMoved(());

/// Session with a host, without its sockets, threads and clock.
pub(super) struct SessionCore {
    options: SessionOptions,
    dispatcher: Dispatcher,
    remote: SftpServerSelector,
    direct: DirectConnections,
    commands: RemoteCommands,
    concurrency: ConcurrencyInputs,
    pacing: SessionRateLimits,
    reconnect: ReconnectPolicy,
    losses: LaneLosses,
    reopening: ChannelReopening,
    stalls: StallDetector,
    /// Time at which there were jobs last.
    busy: Instant,
    listings: ListingPauseControl,
    events: EventBatcher,
    facts: Arc<SessionServerFacts>,
    orders: VecDeque<ConnectCommand>,
    /// Number of further connections that are being opened.
    reaching: usize,
    /// Lines that remote programs wrote to standard error.
    said: BTreeSet<String>,
    turns: LoopDelayInputs,
    /// Time at which the figures are shown next.
    figures_due: Option<Instant>,
    stage: SessionStage,
}

impl SessionCore {
    pub(super) fn new(
        now: Instant,
        options: SessionOptions,
        machine: MachineFunctions,
        (disk, outlet): (Box<dyn DiskExecutor>, ControlSenderFactory),
        facts: Arc<SessionServerFacts>,
    ) -> Self {
        let connection_source = &options.connection_source;
        Self {
            dispatcher: Dispatcher::new(now, &options, disk, machine.random),
            remote: SftpServerSelector::new(connection_source.clone(), Arc::clone(&facts)),
            direct: DirectConnections::new(connection_source.clone(), outlet),
            commands: RemoteCommands::default(),
            concurrency: ConcurrencyInputs::new(machine),
            pacing: SessionRateLimits::new(options.limit, options.background, now)
                .shared_by(options.shared_limit.as_ref()),
            reconnect: ReconnectPolicy::new(now, machine),
            losses: LaneLosses::default(),
            reopening: ChannelReopening::default(),
            stalls: StallDetector::new(options.patience, options.requests),
            busy: now,
            listings: ListingPauseControl::default(),
            events: EventBatcher::new(now),
            facts,
            orders: VecDeque::new(),
            reaching: 0,
            said: BTreeSet::new(),
            turns: LoopDelayInputs::default(),
            figures_due: None,
            stage: SessionStage::Running,
            options,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.stage == SessionStage::Ended
    }

    /// Id of the connection that is added next.
    pub(super) fn next_connection(&self) -> ConnectionId {
        self.dispatcher.connections().next_id()
    }

    /// Adds the first connection, whose link is registered.
    pub(super) fn begin(&mut self, now: Instant, link: Box<dyn Link>) {
        self.dispatcher.add_connection(now, link);
    }

    /// Returns the next event for the handle.
    pub(super) fn poll_event(&mut self) -> Option<SessionEvent> {
        self.events.poll_event()
    }

    /// Returns the next order for a connection.
    pub(super) fn poll_order(&mut self) -> Option<ConnectCommand> {
        self.orders.pop_front()
    }

    /// Link of a connection, whose descriptors the owner watches.
    pub(super) fn link_mut(&mut self, id: ConnectionId) -> Option<&mut dyn Link> {
        let on = self.dispatcher.connections_mut().get_mut(id);
        on.map(|on| on.link_mut())
    }

    /// Returns true if disk requests are held back to be coalesced.
    pub(super) fn holds_disk(&self) -> bool {
        self.dispatcher.disk().holds()
    }

    /// Starts the disk requests that are held back.
    pub(super) fn flush_disk(&mut self) {
        self.dispatcher.disk_mut().flush();
    }

    /// Notes that the owner has waited; `arrived` means that a descriptor was reported ready.
    pub(super) fn woken(&mut self, now: Instant, arrived: bool) {
        self.turns.woken(now, arrived);
    }

    /// Time for which answers may accumulate before the next turn.
    pub(super) fn nap(&self) -> Option<Duration> {
        let stats = self.dispatcher.lanes().iter().map(|on| on.lane().stats());
        let add = |(bytes, rate), stats: LaneStats| {
            (
                bytes + stats.bytes_in_flight,
                rate + stats.rate.unwrap_or(0.0),
            )
        };
        let (in_flight, rate) = stats.fold((0, 0.0), add);
        nap(in_flight, rate)
    }

    /// Takes an order of the handle.
    pub(super) fn handle_command(&mut self, now: Instant, command: SessionCommand) {
        self.turns.note_input();
        match command {
            SessionCommand::Push(job, hint) => {
                self.concurrency.note(&job);
                let (options, dispatcher) = (&self.options, &mut self.dispatcher);
                let begun = self.direct.has_begun();
                self.concurrency
                    .expect_lanes(now, (&job, hint), options, dispatcher, begun);
                self.dispatcher.scheduler_mut().push(now, job, hint);
            }
            SessionCommand::Bind(id, file) => self.dispatcher.bind(id, file),
            SessionCommand::Exec(order) => self.commands.order(order),
            SessionCommand::Control(bytes) => self.direct.say(&mut self.dispatcher, bytes),
            SessionCommand::Leave(reason) => {
                self.stop_waiting(now, &reason);
                self.dispatcher
                    .scheduler_mut()
                    .cancel_resumable(now, &reason);
                for on in self.dispatcher.lanes_mut().iter_mut() {
                    on.lane_mut().cancel_resumable(now, &reason);
                }
            }
            SessionCommand::Cancel(reason) => {
                self.stop_waiting(now, &reason);
                self.dispatcher.scheduler_mut().cancel(now, &reason);
                for on in self.dispatcher.lanes_mut().iter_mut() {
                    on.lane_mut().cancel(now, &reason);
                }
            }
            SessionCommand::Announce(direction, files, bytes) => {
                self.concurrency.expect(direction, files, bytes);
            }
            SessionCommand::Estimate(direction, files, bytes) => {
                self.concurrency.foresee(direction, files, bytes);
            }
            SessionCommand::HoldLists(hold) => self.listings.ask(hold),
            SessionCommand::HoldRoot(root) => self.dispatcher.hold_root(now, root),
            SessionCommand::End => self.stage = SessionStage::Ended,
        }
    }

    /// Ends the session if there is no connection when the run ends; nothing is cleaned up at the
    /// far end.
    fn stop_waiting(&mut self, now: Instant, reason: &str) {
        if self.stage == SessionStage::Running {
            self.stage = SessionStage::Leaving;
        }
        if self.reconnect.is_lost() {
            self.lose(now, reason.to_owned());
        }
    }

    /// Takes one turn: receives what has arrived, decides, and passes on the results. `unread` is
    /// the number of events that the handle has not read.
    ///
    /// Turns repeat until one is quiet ([`SessionCore::due`]), so the order of the steps decides
    /// how soon work is done and never whether it is done. The order of the phases is in their
    /// types.
    pub(super) fn turn(&mut self, now: Instant, unread: usize) {
        self.pacing.begin_turn();
        let input = self.take_input(now);
        if self.is_over() {
            return;
        }
        let decided = self.decide(now, &input);
        let moved = self.move_data(now, unread, &decided);
        self.flush(now, &moved);
        self.pacing.end_turn(now);
    }

    /// Takes the input of the turn from the disk and the connections.
    fn take_input(&mut self, now: Instant) -> TurnInputTaken {
        if self.dispatcher.take_replies(now) {
            self.turns.note_input();
        }
        // The rate limit may not suffice for all connections, so a different one is served first in
        // each turn.
        let first = self.dispatcher.lanes().first();
        for id in self.dispatcher.connections().ids_from(first) {
            if self.is_over() {
                break;
            }
            self.receive(now, id);
        }
        TurnInputTaken(())
    }

    /// Opens and closes connections, lanes and remote commands as the state requires.
    fn decide(&mut self, now: Instant, _: &TurnInputTaken) -> TurnDecisionsMade {
        self.start_reconnecting(now);
        self.use_direct(now);
        self.open_lanes(now);
        self.use_remote(now);
        for (id, event) in self.commands.carry_out(now, &mut self.dispatcher) {
            self.tell_command(now, id, event);
        }
        let scheduler = self.dispatcher.scheduler_mut();
        if scheduler.poll_timeout().is_some_and(|at| at <= now) {
            scheduler.handle_timeout(now);
        }
        self.look_for_stalls(now);
        self.adapt_concurrency(now);
        TurnDecisionsMade(())
    }

    fn start_reconnecting(&mut self, now: Instant) {
        let awaiting = self.is_awaiting();
        if self.options.connection_source.is_none() {
            return;
        }
        let Some(start) = self.reconnect.start(now, awaiting) else {
            return;
        };
        if let Some(line) = start.line() {
            self.events.tell(now, SessionEvent::Message(line));
        }
        self.orders.push_back(ConnectCommand::Reconnect);
    }

    /// True if answers are due and another connection may deliver them.
    fn is_awaiting(&self) -> bool {
        let connection_source = self.options.connection_source.as_ref();
        let in_flight = |on: &LaneOnChannel| on.lane().stats().bytes_in_flight > 0;
        connection_source.is_some_and(|r| r.is_open())
            && self.pacing.silence_counts()
            && self.dispatcher.scheduler().stats().moved >= self.options.resume_from
            && self.dispatcher.lanes().iter().any(in_flight)
    }

    fn use_direct(&mut self, now: Instant) {
        let (concurrency, reaching) = (&self.concurrency, self.reaching);
        let facts = |of: &Dispatcher| copy_facts(concurrency, of, reaching);
        let (dispatcher, commands) = (&mut self.dispatcher, &mut self.commands);
        let answered = |of: &Dispatcher| self.remote.answered().then(|| facts(of));
        self.direct
            .handle_timeout(now, dispatcher, commands, answered);
        let expected = || self.remote.is_expected().then(|| facts(&self.dispatcher));
        for _ in 0..self.direct.take_deferred(expected) {
            self.reach_out(now);
        }
    }

    /// Opens the first lane when there is work, which a remote command may be as well, and a lane for
    /// listings where one is needed.
    fn open_lanes(&mut self, now: Instant) {
        let idle = self.dispatcher.scheduler().is_idle() && !self.commands.any_waits();
        if idle || self.is_over() || self.direct.holds() {
            return;
        }
        let first = self.dispatcher.connections().first();
        let peer = first.and_then(|on| on.link().peer());
        self.remote.learn(peer.map(|peer| peer.far));
        let slow = self.concurrency.was_slow(&self.options);
        self.dispatcher.set_slow(slow);
        if self.dispatcher.lanes().working().is_none() && !self.reopening.waits(now) {
            self.open_data_lane(now);
        }
        if self.dispatcher.lanes().is_empty() || self.is_over() {
            return;
        }
        let one = self.options.channels == Some(1);
        let alone = self.dispatcher.open_side_lanes(now, one, &self.remote);
        if let Some(lane) = alone {
            let surprise = "the only channel (--channels 1) is needed to list a directory";
            self.lane_ended(now, lane, LaneError::Misprediction(surprise));
        }
    }

    fn open_data_lane(&mut self, now: Instant) {
        let connections = self.dispatcher.connections();
        let mut ids = connections.preferred(|_| true).into_iter();
        let (dispatcher, remote) = (&mut self.dispatcher, &self.remote);
        let open = |id| dispatcher.open_lane(now, id, LaneRole::Data, remote);
        if ids.find_map(open).is_some() {
            return;
        }
        let connections = self.dispatcher.connections();
        if connections.iter().any(|on| on.link().peer().is_some()) {
            let why = self.losses.last().map(LaneError::to_string);
            let none = || "the server opened no SFTP channel on the connection".to_owned();
            self.lose(now, why.unwrap_or_else(none));
        }
    }

    /// Probes for a longhaul at the far end, and gives up one that does not answer in time.
    fn use_remote(&mut self, now: Instant) {
        if self.is_over() {
            return;
        }
        if !self.direct.is_open() {
            let left = |of: &Dispatcher| self.concurrency.left(of);
            self.remote.ask(now, &mut self.dispatcher, left);
        }
        let connection_source = self.options.connection_source.as_ref();
        let open = connection_source.is_none_or(|r| r.is_open());
        let late = self.remote.late_lane(now, &mut self.dispatcher, open);
        if let Some((lane, error)) = late {
            self.lane_ended(now, lane, error);
        }
    }

    /// True if silence of the server is meaningful.
    fn watches_stalls(&self) -> bool {
        !self.pacing.holds_back() && self.stage == SessionStage::Running
    }

    /// Answers that are waited for, after the login: those to lanes, or without jobs those to remote
    /// commands, whose output is not missed before. A copy that needs to know the server has no jobs
    /// while a longhaul is probed.
    fn waits(&self) -> impl Iterator<Item = AnswerWait> {
        let connections = self.dispatcher.connections();
        let idle = self.dispatcher.scheduler().is_idle();
        let wait = move |lane: &LaneOnChannel| {
            let open_since = connections.get(lane.connection())?.open_since()?;
            lane.wait(open_since)
        };
        let of_lanes = self.dispatcher.lanes().iter().filter(move |_| !idle);
        let commands = self.commands.waits(self.busy);
        let of_commands = commands.chain(self.remote.wait(self.busy));
        let of_commands = of_commands.filter(move |_| idle);
        of_lanes.filter_map(wait).chain(of_commands)
    }

    /// Time at which the answers that are waited for must be checked.
    fn next_stall(&self) -> Option<Instant> {
        self.watches_stalls()
            .then(|| self.stalls.poll_timeout(self.waits()))?
    }

    fn look_for_stalls(&mut self, now: Instant) {
        if !self.dispatcher.scheduler().is_idle() {
            self.busy = now;
        }
        if self.next_stall().is_none_or(|at| at > now) {
            return;
        }
        let waits: Vec<_> = self.waits().collect();
        let connections = self.dispatcher.connections();
        let moved = |id| connections.get(id).map_or(0, |on| on.moved());
        for step in self.stalls.look(now, &waits, moved) {
            match step {
                StallAction::Notify(notice) => {
                    self.events.tell(now, SessionEvent::Stalled(notice));
                }
                StallAction::Repeat {
                    lane,
                    most,
                    notice,
                    why,
                } => {
                    self.dispatcher.limit_requests(most);
                    self.events.tell(now, SessionEvent::Stalled(notice));
                    self.lane_ended(now, lane, LaneError::GivenUp(why));
                }
                StallAction::GiveUp(why) => return self.lose(now, why),
            }
        }
    }

    fn adapt_concurrency(&mut self, now: Instant) {
        if self.is_over() {
            return;
        }
        let of = MeasuredSession {
            options: &self.options,
            dispatcher: &mut self.dispatcher,
            direct: &self.direct,
            pacing: &mut self.pacing,
        };
        let ConcurrencyDecision { changes, warning } = self.concurrency.look(now, of);
        if let Some(line) = warning {
            self.events
                .tell(now, SessionEvent::Message(line.to_owned()));
        }
        self.carry_out(now, changes);
        self.show_figures(now);
    }

    /// Passes on the figures so far. A short transfer shows none.
    fn show_figures(&mut self, now: Instant) {
        let Some(live) = &self.options.live else {
            return;
        };
        let due = *self.figures_due.get_or_insert(now + FIRST_FIGURES);
        if now >= due
            && let Some(report) = self.concurrency.account(&self.options)
        {
            self.figures_due = Some(now + FURTHER_FIGURES);
            live(report);
        }
    }

    /// Carries out decisions about the number of connections and channels.
    fn carry_out(&mut self, now: Instant, changes: Vec<ConcurrencyChange>) {
        for change in changes {
            match change {
                ConcurrencyChange::AddConnection => self.want_connection(now),
                ConcurrencyChange::AddChannel(connection) => {
                    let (dispatcher, remote) = (&mut self.dispatcher, &self.remote);
                    let opened = dispatcher.open_lane(now, connection, LaneRole::Data, remote);
                    if opened.is_none() {
                        self.concurrency.note_channel_refused(now, connection);
                    }
                }
                ConcurrencyChange::RetireConnection(id) => self.dispatcher.retire_connection(id),
                ConcurrencyChange::RetireLane(id) => self.dispatcher.retire_lane(id),
            }
        }
    }

    /// Requests a further connection, or defers it while a direct one is expected.
    fn want_connection(&mut self, now: Instant) {
        let facts = || copy_facts(&self.concurrency, &self.dispatcher, self.reaching);
        let expected = || self.remote.is_expected().then(facts);
        if !self.direct.defers(expected) {
            self.reach_out(now);
        }
    }

    /// Assigns jobs to lanes and moves data between lanes, scheduler and links.
    fn move_data(&mut self, now: Instant, unread: usize, _: &TurnDecisionsMade) -> TurnDataMoved {
        self.assign(now);
        self.hold_listings(now, unread);
        self.drain_lanes(now);
        let refused = self.remote.take_over(now, &mut self.dispatcher);
        self.note_refused(now, refused);
        let refused = self.remote.drain(now, &mut self.dispatcher);
        self.note_refused(now, refused);
        if self.remote.settles() {
            self.events.tell(now, SessionEvent::ServerKnown);
        }
        self.assign(now);
        self.close_what_is_free(now);
        TurnDataMoved(())
    }

    /// Carries out the scheduler's orders and forwards its events.
    fn assign(&mut self, now: Instant) {
        // A lane may have started a job already and be able to take more.
        self.dispatcher.report_lanes(now);
        loop {
            let (any, closed) = self.dispatcher.carry_out_orders(now);
            if let Some(lane) = closed {
                self.lane_ended(now, lane, LaneError::Stalled);
            }
            if !any {
                break;
            }
            self.dispatcher.report_lanes(now);
        }
        let timeline = self.options.timeline.as_deref();
        self.dispatcher.forward(now, &mut self.events, timeline);
    }

    /// Pauses listings and the output of commands while the handle is behind.
    fn hold_listings(&mut self, now: Instant, unread: usize) {
        let hold = self.listings.look(now, unread);
        let is_behind = self.listings.is_behind();
        self.commands
            .pause_output(now, &mut self.dispatcher, is_behind);
        for on in self.dispatcher.lanes_mut().iter_mut() {
            on.lane_mut().hold_lists(now, hold);
        }
    }

    /// Moves the output of lanes to links and disk, within the limits of the session.
    fn drain_lanes(&mut self, now: Instant) {
        let pacing = &mut self.pacing;
        self.dispatcher.lanes_mut().rotate(pacing.divides());
        self.dispatcher.pace(now, pacing);
        let news = self.dispatcher.drain(now, pacing);
        self.note_news(news);
    }

    /// Notes what lanes have found out about the server.
    fn note_news(&mut self, news: LearnedLaneFacts) {
        if let Some(path) = news.starts {
            self.remote.note_starts(path);
        }
        if let (Some(all), Some(connection_source)) =
            (news.refusals, &self.options.connection_source)
        {
            connection_source.note_refusals(all);
        }
    }

    /// Writes the output of all links.
    fn flush(&mut self, now: Instant, _: &TurnDataMoved) {
        let mut lost = Vec::new();
        for on in self.dispatcher.connections_mut().iter_mut() {
            match on.link_mut().flush(now) {
                Ok(true) => self.turns.stir(),
                Ok(false) => {}
                Err(e) => lost.push((on.id(), e)),
            }
        }
        for (id, why) in lost {
            self.connection_lost(now, id, why);
        }
        self.dispatcher.note_windows(now);
        self.events.handle_timeout(now);
        if self.options.timeline.is_some() {
            self.dispatcher.record_connections(now);
        }
    }

    /// Decides when the next turn is from the state after this one, which ended at `now`.
    pub(super) fn due(&mut self, now: Instant) -> NextTurnTime {
        let scheduler = self.dispatcher.scheduler();
        let busy = !scheduler.is_idle();
        let sampled = self
            .concurrency
            .poll_timeout(&self.options, &self.dispatcher);
        let next_sample = sampled.filter(|_| busy);
        let links = self.dispatcher.connections().iter();
        let deadlines = [
            self.pacing.poll_timeout(busy),
            scheduler.poll_timeout(),
            self.events.poll_timeout(),
            self.listings.poll_timeout(),
            next_sample,
            self.direct.poll_timeout(),
            self.reconnect.poll_timeout(self.is_awaiting()),
            self.next_stall(),
            self.remote.poll_timeout(&self.dispatcher),
            self.reopening.poll_timeout(now),
        ];
        let deadlines = deadlines.into_iter().flatten();
        let (sum, changes) = self.dispatcher.revision();
        let after = LoopTurnOutcome {
            revision: (sum.wrapping_add(self.remote.revision()), changes),
            more: self.is_over() || self.dispatcher.has_more(),
            busy,
            deadline: links
                .filter_map(|on| on.link().poll_timeout())
                .chain(deadlines)
                .min(),
        };
        self.turns.next(now, after)
    }

    /// Ends the session: stores what was learned, closes the connections and returns the summary.
    pub(super) fn finish(self) -> SessionSummary {
        let (options, mut dispatcher) = (&self.options, self.dispatcher);
        self.concurrency.learn(options, &dispatcher);
        self.concurrency.learn_login_cost(options);
        let mut far = self.remote.account();
        let several = dispatcher.connections().len() > 1;
        self.direct.account(&mut far, several);
        let report = self.concurrency.account(options);
        let explained = explain::FinishedSession {
            options,
            dispatcher: &dispatcher,
            concurrency: &self.concurrency,
            far_info: self.remote.announced(),
            far_measured: self.remote.was_asked() || self.direct.is_open(),
        };
        let summary = SessionSummary {
            decisions: explained.decisions(&far, report.as_ref()),
            report,
            far,
        };
        // In reverse, because closing the first connection ends the direct server that the others
        // lead to.
        dispatcher.lanes_mut().take_all();
        for on in dispatcher.connections_mut().take_all().into_iter().rev() {
            on.into_link().finish();
        }
        summary
    }
}

/// Facts about the copy for direct connections; `reaching` connections are being opened.
fn copy_facts(
    concurrency: &ConcurrencyInputs,
    dispatcher: &Dispatcher,
    reaching: usize,
) -> DirectConnectionInputs {
    let connections = dispatcher.connections();
    let left = concurrency.left(dispatcher);
    DirectConnectionInputs {
        alone: connections.len() == 1 && reaching == 0,
        several: concurrency.may_begin_with_several(),
        left: left.max(concurrency.foreseen()),
        rate: concurrency.known_rate(),
        rtt: connections.iter().map(|on| on.round_trip()).max(),
        loses: concurrency.loses_on_the_way_down(),
    }
}
