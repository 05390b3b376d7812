//! Selects the SFTP server for the lanes: the stock one, or a longhaul that a command starts at the
//! far end.
//!
//! If nothing is known about the host, lanes start on the stock server and the longhaul is probed
//! on a channel beside it; lanes move there when it answers. If one answered in an earlier session,
//! lanes start there. On any failure the stock server continues. docs/design/0008-both-ends.md.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use schedule::RemotePath;
use schedule::{ConnectionId, Job, JobId, JobKind, LaneError, LaneEvent, LaneId, LaneReport};
use sftp::{Greeting, MARKER_PROTOCOL, MarkerError, RemoteBinaryState, ServerInfo};
use tracing::{debug, info};

use super::driver::SessionLoop;
use super::lanes::LaneOnChannel;
use super::{ChannelId, ProbeResult, RemoteKnowledge, SessionEvent};
use crate::report::{FarEnd, FarEndDepth};

/// Job id of the session's own REALPATH request for the directory at which relative paths begin.
/// Ids of the copy count from 0, those of the scheduler from 2^63.
pub(super) const STARTS: JobId = JobId(1 << 62);

/// Jobs and bytes below which a copy ends before an answer would arrive.
const JOBS: usize = 3;
const BYTES: u64 = 256 << 10;
/// Time in which the remote longhaul must answer while other lanes work.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time in which the remote longhaul must answer while all work waits for it, in addition to
/// `ROUND_TRIPS`. A login shell takes over two seconds on a busy machine.
const HURRY: Duration = Duration::from_secs(5);
const ROUND_TRIPS: u32 = 4;

/// State of the longhaul at the far end.
#[derive(Debug)]
enum State {
    /// The server has not identified itself yet.
    New,
    /// The stock server is used, for this reason.
    Stock(String),
    /// The SSH server itself is longhaul.
    Server,
    /// A longhaul may be probed; at once if true (the user insists).
    Unknown(bool),
    /// A longhaul is being probed.
    Asking,
    /// Lanes started on a longhaul because the user says that there is one.
    Hoped,
    /// A longhaul answered in an earlier session.
    Expected(ServerInfo),
    /// A longhaul has answered in this session.
    Serves(ServerInfo),
}

/// Knowledge of the session about the longhaul at the far end.
#[derive(Debug)]
pub(super) struct RemoteServer {
    state: State,
    asked: Vec<ProbedLane>,
    /// Software version of the longhaul.
    software: Option<String>,
    /// Directory at which paths begin on the stock server's lanes.
    stock_starts: Option<Vec<u8>>,
    /// Version and extensions of the stock server.
    stock: Option<ServerInfo>,
    /// The outcome fell short of the expectation, which the user is told.
    less: bool,
    /// A longhaul was probed in this run.
    was_asked: bool,
}

/// Lane to the longhaul that has not answered yet and that the scheduler does not know.
struct ProbedLane {
    on: LaneOnChannel,
    /// Lane that it will replace.
    replaces: Option<LaneId>,
    /// Directory at which paths begin there; asked once.
    starts: Option<Vec<u8>>,
    since: Instant,
}

impl std::fmt::Debug for ProbedLane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asked")
            .field("lane", &self.on.id)
            .field("replaces", &self.replaces)
            .finish_non_exhaustive()
    }
}

impl Default for RemoteServer {
    fn default() -> Self {
        Self {
            state: State::New,
            asked: Vec::new(),
            software: None,
            stock_starts: None,
            stock: None,
            less: false,
            was_asked: false,
        }
    }
}

impl RemoteServer {
    /// True if new lanes go to the longhaul.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self.state, State::Hoped) || self.announced().is_some()
    }

    /// Version and extensions of the longhaul, if new lanes go to it.
    pub(super) fn announced(&self) -> Option<&ServerInfo> {
        match &self.state {
            State::Expected(info) | State::Serves(info) => Some(info),
            _ => None,
        }
    }

    /// True if the longhaul has answered in this session.
    pub(super) fn answered(&self) -> bool {
        matches!(self.state, State::Serves(_))
    }

    /// True if the longhaul answered in an earlier session and not yet in this one.
    pub(super) fn is_expected(&self) -> bool {
        matches!(self.state, State::Expected(_))
    }

    /// True if the longhaul was probed in this run.
    pub(super) fn was_asked(&self) -> bool {
        self.was_asked
    }

    /// Version and extensions of the stock server.
    pub(super) fn stock(&self) -> Option<&ServerInfo> {
        self.stock.as_ref()
    }

    pub(super) fn any_on(&self, connection: ConnectionId) -> bool {
        self.asked.iter().any(|a| a.on.id.connection == connection)
    }

    /// Lanes to the longhaul that have not answered yet.
    pub(super) fn asked_lanes(&self) -> impl Iterator<Item = &LaneOnChannel> {
        self.asked.iter().map(|asked| &asked.on)
    }

    fn asked_on(&self, connection: ConnectionId, channel: ChannelId) -> Option<usize> {
        let is = |a: &ProbedLane| a.on.id.connection == connection && a.on.channel == channel;
        self.asked.iter().position(is)
    }

    /// Resets the state when the connection starts over without predictions.
    pub(super) fn begin_again(&mut self) {
        if !matches!(self.state, State::Stock(_) | State::Server) {
            self.state = State::Unknown(false);
        }
        self.asked.clear();
        self.stock_starts = None;
    }

    /// Notes a lane's answer to the question at which directory paths begin.
    pub(super) fn note_starts(&mut self, event: LaneEvent) {
        if let LaneEvent::Path(_, path) = event {
            self.stock_starts = Some(path);
        }
    }

    /// Describes the far end at the end of the session.
    pub(super) fn account(&self) -> FarEnd {
        let too_little = "too little was copied to ask for a longhaul there";
        let (depth, reason) = match &self.state {
            State::Serves(_) => (FarEndDepth::Exec, None),
            State::Server => (FarEndDepth::Server, None),
            State::Stock(why) => (FarEndDepth::Stock, Some(why.as_str())),
            State::New => (FarEndDepth::Stock, None),
            State::Unknown(_) => (FarEndDepth::Stock, Some(too_little)),
            State::Asking | State::Hoped | State::Expected(_) => (
                FarEndDepth::Stock,
                Some("it was over before a longhaul there could answer"),
            ),
        };
        FarEnd {
            depth,
            software: self
                .software
                .clone()
                .filter(|_| depth != FarEndDepth::Stock),
            reason: reason.map(str::to_owned),
            less: self.less && depth == FarEndDepth::Stock,
            ..FarEnd::default()
        }
    }
}

/// Error text for output that is not a longhaul's greeting.
pub(super) fn not_ours(what: MarkerError) -> String {
    match what {
        MarkerError::PlainSftp => "the server runs its own SFTP server whatever is asked for",
        MarkerError::TooMuch => "what the command there prints is no longhaul's",
    }
    .to_owned()
}

/// Checks that the greeting is one that this version understands.
///
/// # Errors
///
/// One sentence that says why the longhaul cannot be used.
pub(super) fn check(greeting: &Greeting) -> Result<(), String> {
    match greeting {
        Greeting::Absent { sent, .. } => Err(match sent {
            RemoteBinaryState::NoneSent => "there is no longhaul at the far end",
            RemoteBinaryState::Gone => {
                "the longhaul that was sent there is gone or not executable: run longhaul bootstrap \
                 again"
            }
            RemoteBinaryState::Altered => {
                "the longhaul that was sent there was altered (its checksum differs) and is not \
                 started: run longhaul bootstrap again"
            }
        }
        .to_owned()),
        Greeting::Serves { protocol, .. } if *protocol == MARKER_PROTOCOL => Ok(()),
        Greeting::Serves { protocol, software } => {
            let older = *protocol < MARKER_PROTOCOL;
            let end = if older { "the far end" } else { "this end" };
            Err(format!(
                "the longhaul there ({software}) speaks another protocol: upgrade {end}"
            ))
        }
    }
}

impl SessionLoop {
    /// Takes over the first connection's knowledge about a longhaul.
    pub(super) fn learn_far(&mut self) {
        if !matches!(self.far.state, State::New) {
            return;
        }
        let first = self.connections.first();
        let Some(known) = first.and_then(|on| on.link.peer()).map(|peer| peer.far) else {
            return;
        };
        self.far.state = match known {
            RemoteKnowledge::Never(why) => State::Stock(why.to_owned()),
            RemoteKnowledge::Server => State::Server,
            RemoteKnowledge::Unknown { insists } => {
                self.far.less = insists;
                State::Unknown(insists)
            }
            RemoteKnowledge::Hoped => {
                self.far.less = true;
                self.far.was_asked = true;
                State::Hoped
            }
            RemoteKnowledge::Serves(info) => State::Expected(info),
        };
    }

    /// Probes for a longhaul beside a working lane if there is enough work.
    pub(super) fn ask_far(&mut self, now: Instant) {
        let State::Unknown(insists) = self.far.state else {
            return;
        };
        let enough = || {
            let stats = self.spread.stats();
            stats.jobs >= JOBS || stats.moved.max(self.left()) >= BYTES
        };
        let Some(at) = self.lanes.iter().position(|on| !on.listing && !on.retiring) else {
            return;
        };
        // A direct connection already leads to it.
        let straight = self.straight.is_open() || self.goes_straight(self.lanes[at].id.connection);
        if self.over || straight || !(insists || enough()) {
            return;
        }
        let connection = self.lanes[at].id.connection;
        let replaces = self.lanes[at].id;
        if !self.ask_on(now, connection, Some(replaces)) {
            self.far.state = State::Stock("there is no way to run a command".to_owned());
            return;
        }
        self.far.state = State::Asking;
        self.far.was_asked = true;
        let question = starts();
        self.lanes[at].lane.push(now, question.clone());
        if let Some(asked) = self.far.asked.last_mut() {
            asked.on.lane.push(now, question);
        }
        self.drain_asked(now);
    }

    /// Opens a lane to the longhaul that replaces another lane once it has answered.
    fn ask_on(&mut self, now: Instant, on: ConnectionId, replaces: Option<LaneId>) -> bool {
        let listing = replaces
            .and_then(|id| self.lane_at(id))
            .is_some_and(|at| self.lanes[at].listing);
        let Some(on) = self.new_lane(now, on, self.predict && !listing, listing, true) else {
            return false;
        };
        self.far.asked.push(ProbedLane {
            on,
            replaces,
            starts: None,
            since: now,
        });
        true
    }

    /// Sends the output of lanes that have not answered yet, and gives up late ones.
    pub(super) fn drain_asked(&mut self, now: Instant) {
        let late = |a: &ProbedLane| now.saturating_duration_since(a.since) > PATIENCE;
        while let Some(at) = self.far.asked.iter().position(late) {
            self.asked_gone(now, at, "it took too long to answer".to_owned(), true);
        }
        for asked in &mut self.far.asked {
            let of = asked.on.id.connection;
            let Some(on) = self.connections.iter_mut().find(|c| c.id == of) else {
                continue;
            };
            while let Some(output) = asked.on.lane.poll_output() {
                on.link.send(asked.on.channel, output);
            }
        }
    }

    /// Handles data on the channel of a lane that has not answered yet. Returns false for any other
    /// channel.
    pub(super) fn asked_said(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        channel: ChannelId,
        bytes: &Bytes,
    ) -> bool {
        let Some(at) = self.far.asked_on(connection, channel) else {
            return false;
        };
        let asked = &mut self.far.asked[at];
        match asked.on.hear(now, bytes.clone()) {
            Ok(Some(Greeting::Serves { software, .. })) => self.far.software = Some(software),
            Ok(_) => {}
            Err(error) => {
                self.asked_gone(now, at, in_words(&error), true);
                return true;
            }
        }
        let asked = &mut self.far.asked[at];
        while let Some(event) = asked.on.lane.poll_event() {
            match event {
                LaneEvent::Path(STARTS, path) => asked.starts = Some(path),
                LaneEvent::Failed(..) => asked.starts = Some(Vec::new()),
                _ => {}
            }
        }
        self.take_over(now);
        true
    }

    /// Turns lanes that have answered into working lanes.
    pub(super) fn take_over(&mut self, now: Instant) {
        while let Some(at) = self.ready_to_take_over() {
            let first = matches!(self.far.state, State::Asking);
            let asked = &self.far.asked[at];
            if first && asked.starts != self.far.stock_starts {
                let shown = |path: &Option<Vec<u8>>| {
                    sftp::printable(path.as_deref().unwrap_or_default(), 200)
                };
                let why = format!(
                    "paths begin at {} there, and at {} on the server's own SFTP server",
                    shown(&asked.starts),
                    shown(&self.far.stock_starts),
                );
                self.asked_gone(now, at, why, true);
                continue;
            }
            let ProbedLane { on, replaces, .. } = self.far.asked.remove(at);
            let info = on.lane.server_info().cloned().unwrap_or_default();
            let report = LaneReport::of(&on.lane);
            self.spread.lane_opened(now, on.id, on.listing, report);
            self.lanes.push(on);
            self.turns.stir();
            if let Some(at) = replaces.and_then(|id| self.lane_at(id)) {
                self.lanes[at].retiring = true;
                self.spread.retire(self.lanes[at].id);
            }
            if first {
                self.far_serves(info);
                self.move_lanes(now);
            }
        }
    }

    fn ready_to_take_over(&self) -> Option<usize> {
        let first = matches!(self.far.state, State::Asking);
        let known =
            |a: &ProbedLane| !first || a.starts.is_some() && self.far.stock_starts.is_some();
        let ready = |a: &ProbedLane| a.on.lane.server_info().is_some() && known(a);
        self.far.asked.iter().position(ready)
    }

    /// Replaces the other stock lanes too.
    fn move_lanes(&mut self, now: Instant) {
        let stays = self.lanes.iter().filter(|on| !on.served && !on.retiring);
        let stock: Vec<LaneId> = stays.map(|on| on.id).collect();
        for id in stock {
            self.ask_on(now, id.connection, Some(id));
        }
        self.drain_asked(now);
    }

    /// Notes that the longhaul has answered with this version and these extensions.
    fn far_serves(&mut self, info: ServerInfo) {
        let software = self.far.software.clone().unwrap_or_default();
        info!("the far end runs longhaul {software}: lanes go there");
        self.see_far(&ProbeResult::Serves {
            software,
            info: info.clone(),
        });
        let _ = self.ends.server.set(info.clone());
        let _ = self.ends.far.ours.set(info.clone());
        self.far.state = State::Serves(info);
        self.note_serving(true);
    }

    /// Sends [`SessionEvent::Settled`] once, as soon as it is known which server handles the lanes.
    pub(super) fn tell_settled(&self) {
        let far = &self.ends.far;
        if far.settled.load(Ordering::Relaxed) {
            return;
        }
        let state = &self.far.state;
        let stays = matches!(
            state,
            State::Stock(_) | State::Server | State::Unknown(false)
        );
        // Stock lanes that are about to be replaced still get jobs until then.
        let moved = far.ours.get().is_some() && self.far.asked.is_empty();
        if moved || stays && self.ends.server.get().is_some() {
            far.settled.store(true, Ordering::Release);
            let _ = self.ends.events.send(SessionEvent::Settled);
        }
    }

    /// Tells the connection source which server the first lane of further connections should use.
    fn note_serving(&self, ours: bool) {
        if let Some(reach) = &self.options.reach {
            reach.note_serving(ours);
        }
    }

    fn see_far(&mut self, seen: &ProbeResult) {
        if let Some(on) = self.connections.first_mut() {
            on.link.far_seen(seen);
        }
    }

    /// Falls back to the stock server.
    fn far_fails(&mut self, why: String, absent: bool) {
        let expected = self.far.is_ours();
        info!("the server's own SFTP server is used: {why}");
        self.far.less |= expected;
        self.note_serving(false);
        self.far.state = State::Stock(why);
        if absent {
            self.see_far(&ProbeResult::Absent);
        }
    }

    /// Gives up a lane that will not answer. `absent` is remembered, so that the host is not probed
    /// again soon.
    fn asked_gone(&mut self, now: Instant, at: usize, why: String, absent: bool) {
        let ProbedLane { on, .. } = self.far.asked.remove(at);
        debug!("no lane to a longhaul there: {why}");
        if let Some(of) = self.connection(on.id.connection) {
            of.link.close_channel(on.channel);
        }
        self.turns.stir();
        if matches!(self.far.state, State::Asking) {
            self.far_fails(why, absent);
        } else {
            self.note_channel_refused(now, on.id.connection);
        }
    }

    /// Handles the end or refusal of the channel of a lane that has not answered yet. Returns false
    /// for any other channel.
    pub(super) fn asked_closed(
        &mut self,
        now: Instant,
        (connection, channel): (ConnectionId, ChannelId),
        why: &str,
        refused: bool,
    ) -> bool {
        let Some(at) = self.far.asked_on(connection, channel) else {
            return false;
        };
        self.asked_gone(now, at, why.to_owned(), !refused);
        true
    }

    /// Drops the unanswered lanes of a lost connection. The server may have closed it because of
    /// the probe.
    pub(super) fn asked_lost(&mut self, connection: ConnectionId) {
        let before = self.far.asked.len();
        self.far.asked.retain(|a| a.on.id.connection != connection);
        if self.far.asked.len() < before && matches!(self.far.state, State::Asking) {
            self.far_fails("the connection was lost meanwhile".to_owned(), true);
        }
    }

    /// Handles the answer on a lane that already works.
    pub(super) fn far_heard(&mut self, at: usize, greeting: Option<Greeting>) {
        if let Some(Greeting::Serves { software, .. }) = greeting {
            self.far.software = Some(software);
        }
        let on = &self.lanes[at];
        let info = on.lane.server_info();
        if self.goes_straight(on.id.connection) {
            // Facts about a direct server must not be remembered as the stock server's.
            if let Some(info) = info {
                let _ = self.ends.server.set(info.clone());
                let _ = self.ends.far.ours.set(info.clone());
            }
            return;
        }
        match (on.served, info) {
            (true, Some(info)) if matches!(self.far.state, State::Hoped | State::Expected(_)) => {
                let info = info.clone();
                self.far_serves(info);
            }
            (false, Some(info)) if self.far.stock.is_none() => {
                let info = info.clone();
                let ours = info.is_ours();
                self.far.stock = Some(info.clone());
                if let Some(on) = self.connections.first_mut() {
                    on.link.server_seen(&info);
                }
                let _ = self.ends.server.set(info);
                if ours && matches!(self.far.state, State::Unknown(_) | State::Asking) {
                    // The server's own SFTP server is already longhaul.
                    self.far.state = State::Server;
                    while !self.far.asked.is_empty() {
                        self.drop_asked(0);
                    }
                }
            }
            _ => {}
        }
    }

    fn drop_asked(&mut self, at: usize) {
        let ProbedLane { on, .. } = self.far.asked.remove(at);
        if let Some(of) = self.connection(on.id.connection) {
            of.link.close_channel(on.channel);
        }
    }

    /// Handles the end of a lane to the longhaul. Returns true if the stock server takes over.
    pub(super) fn served_ended(&mut self, at: usize, error: &LaneError) -> bool {
        let on = &self.lanes[at];
        let greeted = on.preamble.is_none();
        let works = matches!(self.far.state, State::Serves(_));
        match error {
            // The announced extensions or the handles differ from the prediction, so the next lane
            // asks without it.
            LaneError::Surprise(_) if greeted => return false,
            _ if !greeted && works => return false,
            _ => {}
        }
        if self.far.is_ours() {
            let why = match greeted {
                true => format!("the longhaul there ended ({})", in_words(error)),
                false => in_words(error),
            };
            self.far_fails(why, !greeted);
        }
        true
    }

    /// Time at which an unanswered lane is given up.
    pub(super) fn far_deadline(&self) -> Option<Instant> {
        let lanes = self.lanes.iter().filter_map(|on| self.hurries(on));
        let asked = self.far.asked.iter().map(|a| a.since + PATIENCE);
        lanes.chain(asked).min()
    }

    fn hurries(&self, on: &LaneOnChannel) -> Option<Instant> {
        let since = on.awaited.filter(|_| on.preamble.is_some())?;
        let of = on.id.connection;
        let link = self.connections.iter().find(|c| c.id == of)?;
        let rtt = link.link.sample().tcp.map_or(Duration::ZERO, |tcp| tcp.rtt);
        Some(since + HURRY + ROUND_TRIPS * rtt)
    }

    /// Gives up unanswered lanes to the longhaul that hold up all work.
    pub(super) fn hurry_far(&mut self, now: Instant) {
        if !self.lanes.iter().any(|on| on.preamble.is_some()) {
            return;
        }
        let open = self.options.reach.as_ref().is_none_or(|r| r.is_open());
        for on in self
            .lanes
            .iter_mut()
            .filter(|on| on.preamble.is_some() && open)
        {
            on.awaited.get_or_insert(now);
        }
        let late = |on: &LaneOnChannel| self.hurries(on).is_some_and(|at| at <= now);
        if let Some(at) = self.lanes.iter().position(late) {
            // The shell may be slow: probe again beside working lanes.
            if matches!(self.far.state, State::Hoped) {
                self.far.state = State::Unknown(true);
            }
            let why = "it took too long to answer".to_owned();
            self.lane_ended(now, at, LaneError::Closed(why));
        }
    }
}

/// Error text without the mention of a channel.
fn in_words(error: &LaneError) -> String {
    match error {
        LaneError::Closed(why) => why.clone(),
        error => error.to_string(),
    }
}

fn starts() -> Job {
    Job {
        id: STARTS,
        kind: JobKind::RealPath {
            path: RemotePath(b".".to_vec()),
        },
    }
}
