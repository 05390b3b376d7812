//! Selects the SFTP server for the lanes: the stock one, or a longhaul that a command starts at the
//! far end.
//!
//! If nothing is known about the host, lanes start on the stock server and the longhaul is probed
//! on a channel beside it; lanes move there when it answers. If one answered in an earlier session,
//! lanes start there. On any failure the stock server continues. docs/design/0008-both-ends.md.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use schedule::RemotePath;
use schedule::{ConnectionId, Job, JobId, JobKind, LaneError, LaneEvent, LaneId};
use sftp::{LonghaulMarkerError, MARKER_PROTOCOL, MarkerLine, RemoteBinaryAbsence, ServerInfo};
use tracing::{debug, info};

use super::connection::SessionConnection;
use super::dispatcher::Dispatcher;
use super::lane::{ChannelServer, LaneOnChannel, LaneRole};
use super::remote_commands::PROBE;
use super::server_facts::SessionServerFacts;
use super::stalls::{AnswerWait, Waiter};
use super::{
    ConnectionOpener, InitialServerFacts, LinkChannelId, LonghaulProbeResult,
    RemoteLonghaulKnowledge,
};
use crate::report::{FarEndServerReport, ServerMode};

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
/// Name of the probe, for notices.
const START: &str = "the request to start longhaul there";

/// State of the search for a longhaul at the far end.
#[derive(Debug)]
enum RemoteLonghaulState {
    /// The server has not identified itself yet.
    New,
    /// The stock server is used, for this reason.
    Stock(String),
    /// The SSH server itself is longhaul.
    Server,
    /// A longhaul may be probed; at once if the user insists.
    Unknown { insists: bool },
    /// A longhaul is being probed.
    Probing,
    /// Lanes started on a longhaul because the user says that there is one.
    UserAsserted,
    /// A longhaul answered in an earlier session.
    Expected(ServerInfo),
    /// A longhaul has answered in this session.
    Serves(ServerInfo),
}

/// Selects the SFTP server for the lanes: the stock one, or a longhaul that a command starts at the
/// far end.
pub(super) struct SftpServerSelector {
    probe: RemoteLonghaulState,
    /// Lanes to the longhaul that have not answered yet and that the scheduler does not know.
    asked: Vec<ProbedLane>,
    /// Software version of the longhaul.
    software: Option<String>,
    /// Directory at which paths begin on the stock server's lanes.
    stock_starts: Option<Vec<u8>>,
    /// Version and extensions of the stock server.
    stock: Option<ServerInfo>,
    /// True if the outcome is less than expected, which is reported to the user.
    less: bool,
    /// A longhaul was probed in this run.
    was_asked: bool,
    /// Learns which server further connections should use.
    connection_source: Option<Arc<dyn ConnectionOpener>>,
    /// Facts that the session's handle reads.
    facts: Arc<SessionServerFacts>,
}

/// Lane to the longhaul that has not answered yet.
struct ProbedLane {
    on: LaneOnChannel,
    /// Lane that it will replace.
    replaces: Option<LaneId>,
    /// Directory at which paths begin there; asked once.
    starts: Option<Vec<u8>>,
    since: Instant,
}

/// A connection whose server refused another channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChannelRefusingConnection(pub ConnectionId);

/// Reason for which a lane that asks for a longhaul at the far end is given up.
struct LonghaulProbeFailure {
    why: String,
    /// The result to remember, after which the host is not probed again soon.
    result: Option<LonghaulProbeResult>,
}

/// Returns the error of a lane whose output is not a longhaul's greeting.
pub(super) fn not_ours(what: LonghaulMarkerError) -> LaneError {
    let text = match what {
        LonghaulMarkerError::PlainSftp => {
            "the server runs its own SFTP server for every command (ForceCommand?)"
        }
        LonghaulMarkerError::TooMuch => {
            "the host printed other output instead of starting \
            longhaul: check ForceCommand and the shell's start-up files"
        }
    };
    LaneError::NoLonghaul(text.to_owned())
}

/// Checks that the greeting is one that this version understands.
///
/// # Errors
///
/// The reason why no longhaul can be used: there is none, or it has another version.
pub(super) fn check(greeting: &MarkerLine) -> Result<(), LaneError> {
    match greeting {
        MarkerLine::Absent { sent, .. } => {
            let text = match sent {
                RemoteBinaryAbsence::NoneSent => "longhaul is not installed there",
                RemoteBinaryAbsence::Gone => {
                    "the installed longhaul is missing or not executable: run longhaul bootstrap \
                     again"
                }
                RemoteBinaryAbsence::Altered => {
                    "the installed longhaul was altered (its checksum differs) and is not \
                     started: run longhaul bootstrap again"
                }
            };
            Err(LaneError::NoLonghaul(text.to_owned()))
        }
        MarkerLine::Serves { protocol, .. } if *protocol == MARKER_PROTOCOL => Ok(()),
        MarkerLine::Serves { protocol, software } => {
            let older = *protocol < MARKER_PROTOCOL;
            let end = if older {
                "the remote host"
            } else {
                "this machine"
            };
            Err(LaneError::GivenUp(format!(
                "the remote longhaul ({software}) uses another protocol version: upgrade longhaul \
                 on {end}"
            )))
        }
    }
}

/// Returns the result to remember for a lane that ended before it had answered. A lane that ends
/// without output may have been late, or its connection lost.
fn probe_result(error: &LaneError) -> LonghaulProbeResult {
    match error {
        LaneError::Closed(_) | LaneError::GivenUp(_) | LaneError::Stalled => {
            LonghaulProbeResult::Unusable
        }
        _ => LonghaulProbeResult::Absent,
    }
}

impl SftpServerSelector {
    /// `connection_source` is told which server handles the lanes; the session handle reads
    /// `facts`.
    pub(super) fn new(
        connection_source: Option<Arc<dyn ConnectionOpener>>,
        facts: Arc<SessionServerFacts>,
    ) -> Self {
        Self {
            probe: RemoteLonghaulState::New,
            asked: Vec::new(),
            software: None,
            stock_starts: None,
            stock: None,
            less: false,
            was_asked: false,
            connection_source,
            facts,
        }
    }

    /// True if new lanes go to the longhaul.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self.probe, RemoteLonghaulState::UserAsserted) || self.announced().is_some()
    }

    /// Version and extensions of the longhaul, if new lanes go to it.
    pub(super) fn announced(&self) -> Option<&ServerInfo> {
        match &self.probe {
            RemoteLonghaulState::Expected(info) | RemoteLonghaulState::Serves(info) => Some(info),
            _ => None,
        }
    }

    /// True if the longhaul has answered in this session.
    pub(super) fn answered(&self) -> bool {
        matches!(self.probe, RemoteLonghaulState::Serves(_))
    }

    /// True if the longhaul answered in an earlier session and not yet in this one.
    pub(super) fn is_expected(&self) -> bool {
        matches!(self.probe, RemoteLonghaulState::Expected(_))
    }

    /// True if the longhaul was probed in this run.
    pub(super) fn was_asked(&self) -> bool {
        self.was_asked
    }

    /// Version and extensions that a new lane to `server` expects. Later lanes reuse the server's
    /// extensions as the first lane received them, so their requests need not wait for the answer.
    pub(super) fn remembered(
        &self,
        peer: &InitialServerFacts,
        server: ChannelServer,
    ) -> Option<ServerInfo> {
        let heard = self.stock.as_ref();
        let heard = heard.filter(|info| peer.openssh || info.is_ours());
        match server {
            ChannelServer::Command => self.announced().cloned(),
            ChannelServer::Stock => peer.remembered.clone().or_else(|| heard.cloned()),
        }
    }

    /// True if a lane on the connection has not answered yet.
    pub(super) fn any_on(&self, connection: ConnectionId) -> bool {
        let on = |asked: &ProbedLane| asked.on.connection() == connection;
        self.asked.iter().any(on)
    }

    /// Wait for the longhaul that is probed. `heard` is a time until which the server answered
    /// something else.
    pub(super) fn wait(&self, heard: Instant) -> Option<AnswerWait> {
        let asked = self.asked.first()?;
        let waiter = Waiter::Command(asked.on.connection(), PROBE);
        let since = asked.since.max(heard);
        Some(AnswerWait::of_command(waiter, START, since))
    }

    /// Sum of the revisions of lanes that have not answered yet.
    pub(super) fn revision(&self) -> u64 {
        let asked = self.asked.iter().map(|asked| asked.on.lane().revision());
        asked.fold(0, u64::wrapping_add)
    }

    /// Resets the state when the connection starts over without predictions.
    pub(super) fn begin_again(&mut self) {
        if !matches!(
            self.probe,
            RemoteLonghaulState::Stock(_) | RemoteLonghaulState::Server
        ) {
            self.probe = RemoteLonghaulState::Unknown { insists: false };
        }
        self.asked.clear();
        self.stock_starts = None;
    }

    /// Notes the directory at which paths begin on the stock server's lanes.
    pub(super) fn note_starts(&mut self, path: Vec<u8>) {
        self.stock_starts = Some(path);
    }

    /// Describes the far end at the end of the session.
    pub(super) fn account(&self) -> FarEndServerReport {
        let too_little = "the copy was too small to look for longhaul on the host";
        let (depth, reason) = match &self.probe {
            RemoteLonghaulState::Serves(_) => (ServerMode::Exec, None),
            RemoteLonghaulState::Server => (ServerMode::Server, None),
            RemoteLonghaulState::Stock(why) => (ServerMode::Stock, Some(why.as_str())),
            RemoteLonghaulState::New => (ServerMode::Stock, None),
            RemoteLonghaulState::Unknown { .. } => (ServerMode::Stock, Some(too_little)),
            RemoteLonghaulState::Probing
            | RemoteLonghaulState::UserAsserted
            | RemoteLonghaulState::Expected(_) => (
                ServerMode::Stock,
                Some("the copy ended before longhaul on the host answered"),
            ),
        };
        FarEndServerReport {
            depth,
            software: self.software.clone().filter(|_| depth != ServerMode::Stock),
            reason: reason.map(str::to_owned),
            less: self.less && depth == ServerMode::Stock,
            ..FarEndServerReport::default()
        }
    }

    /// Takes over the first connection's knowledge about a longhaul.
    pub(super) fn learn(&mut self, known: Option<RemoteLonghaulKnowledge>) {
        let (RemoteLonghaulState::New, Some(known)) = (&self.probe, known) else {
            return;
        };
        self.probe = match known {
            RemoteLonghaulKnowledge::Never(why) => RemoteLonghaulState::Stock(why.to_owned()),
            RemoteLonghaulKnowledge::Server => RemoteLonghaulState::Server,
            RemoteLonghaulKnowledge::Unknown { insists } => {
                self.less = insists;
                RemoteLonghaulState::Unknown { insists }
            }
            RemoteLonghaulKnowledge::UserAsserted => {
                self.less = true;
                self.was_asked = true;
                RemoteLonghaulState::UserAsserted
            }
            RemoteLonghaulKnowledge::SeenBefore(info) => RemoteLonghaulState::Expected(info),
        };
    }

    /// Probes for a longhaul beside a working lane. `left` returns the bytes still to move: with
    /// little work the copy ends before an answer would arrive.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        to: &mut Dispatcher,
        left: impl FnOnce(&Dispatcher) -> u64,
    ) {
        let RemoteLonghaulState::Unknown { insists } = self.probe else {
            return;
        };
        let Some(lane) = to.lanes().working().map(LaneOnChannel::id) else {
            return;
        };
        let stats = to.scheduler().stats();
        let enough = insists || stats.jobs >= JOBS || stats.moved.max(left(to)) >= BYTES;
        // A direct connection already leads to it.
        if !enough || to.connections().is_direct(lane.connection) {
            return;
        }
        if !self.ask_beside(now, to, lane) {
            self.probe =
                RemoteLonghaulState::Stock("cannot run a command over this connection".to_owned());
            return;
        }
        self.probe = RemoteLonghaulState::Probing;
        self.was_asked = true;
        let question = starts();
        to.ask_lane(now, lane, question.clone());
        if let Some(asked) = self.asked.last_mut() {
            asked.on.lane_mut().push(now, question);
        }
        self.send(to);
    }

    /// Opens a lane to the longhaul that replaces `lane` once it has answered.
    fn ask_beside(&mut self, now: Instant, to: &mut Dispatcher, lane: LaneId) -> bool {
        let role = to
            .lanes()
            .get(lane)
            .map_or(LaneRole::Data, LaneOnChannel::role);
        let on = to.new_lane(now, lane.connection, role, ChannelServer::Command, self);
        let asked = on.map(|on| ProbedLane {
            on,
            replaces: Some(lane),
            starts: None,
            since: now,
        });
        let opened = asked.is_some();
        self.asked.extend(asked);
        opened
    }

    /// Sends the output of lanes that have not answered yet, and gives up late ones.
    pub(super) fn drain(
        &mut self,
        now: Instant,
        to: &mut Dispatcher,
    ) -> Vec<ChannelRefusingConnection> {
        let late = |a: &ProbedLane| now.saturating_duration_since(a.since) > PATIENCE;
        let mut refused = Vec::new();
        while let Some(at) = self.asked.iter().position(late) {
            let late = LonghaulProbeFailure {
                why: "longhaul at the far end took too long to answer".to_owned(),
                result: Some(LonghaulProbeResult::Unusable),
            };
            refused.extend(self.give_up(to, at, late));
        }
        self.send(to);
        refused
    }

    fn send(&mut self, to: &mut Dispatcher) {
        for asked in &mut self.asked {
            let channel = asked.on.channel();
            let connection = asked.on.connection();
            let Some(on) = to.connections_mut().get_mut(connection) else {
                continue;
            };
            while let Some(output) = asked.on.lane_mut().poll_output() {
                on.link_mut().send(channel, output);
            }
        }
    }

    fn asked_on(&self, connection: ConnectionId, channel: LinkChannelId) -> Option<usize> {
        let is = |a: &ProbedLane| a.on.connection() == connection && a.on.channel() == channel;
        self.asked.iter().position(is)
    }

    /// Handles data on the channel of a lane that has not answered yet. Returns `None` for any
    /// other channel.
    pub(super) fn heard_on_asked(
        &mut self,
        now: Instant,
        to: &mut Dispatcher,
        (connection, channel): (ConnectionId, LinkChannelId),
        bytes: &Bytes,
    ) -> Option<Vec<ChannelRefusingConnection>> {
        let at = self.asked_on(connection, channel)?;
        let asked = self.asked.get_mut(at)?;
        match asked.on.hear(now, bytes.clone()) {
            Ok(Some(MarkerLine::Serves { software, .. })) => self.software = Some(software),
            Ok(_) => {}
            Err(error) => {
                let broken = LonghaulProbeFailure {
                    why: in_words(&error),
                    result: Some(probe_result(&error)),
                };
                return Some(self.give_up(to, at, broken).into_iter().collect());
            }
        }
        while let Some(event) = asked.on.lane_mut().poll_event() {
            match event {
                LaneEvent::Path(STARTS, path) => asked.starts = Some(path),
                LaneEvent::Failed(..) => asked.starts = Some(Vec::new()),
                _ => {}
            }
        }
        Some(self.take_over(now, to))
    }

    /// Turns lanes that have answered into working lanes.
    pub(super) fn take_over(
        &mut self,
        now: Instant,
        to: &mut Dispatcher,
    ) -> Vec<ChannelRefusingConnection> {
        let mut refused = Vec::new();
        while let Some(at) = self.ready_to_take_over() {
            let first = matches!(self.probe, RemoteLonghaulState::Probing);
            let elsewhere = self.begins_elsewhere(at).filter(|_| first);
            if let Some(why) = elsewhere {
                let elsewhere = LonghaulProbeFailure {
                    why,
                    result: Some(LonghaulProbeResult::Unusable),
                };
                refused.extend(self.give_up(to, at, elsewhere));
                continue;
            }
            let ProbedLane { on, replaces, .. } = self.asked.remove(at);
            let info = on.lane().server_info().cloned().unwrap_or_default();
            to.add_lane(now, on);
            if let Some(replaced) = replaces {
                to.retire_lane(replaced);
            }
            if first {
                self.serves(to, info);
                self.move_lanes(now, to);
            }
        }
        refused
    }

    fn ready_to_take_over(&self) -> Option<usize> {
        let first = matches!(self.probe, RemoteLonghaulState::Probing);
        let known = |a: &ProbedLane| !first || a.starts.is_some() && self.stock_starts.is_some();
        let ready = |a: &ProbedLane| a.on.lane().server_info().is_some() && known(a);
        self.asked.iter().position(ready)
    }

    /// Reason against a longhaul on which paths begin at another directory than on the stock
    /// server.
    fn begins_elsewhere(&self, at: usize) -> Option<String> {
        let asked = self.asked.get(at)?;
        let shown =
            |path: &Option<Vec<u8>>| sftp::printable(path.as_deref().unwrap_or_default(), 200);
        (asked.starts != self.stock_starts).then(|| {
            format!(
                "relative paths start at {} with longhaul, but at {} with the server's own SFTP \
                 server",
                shown(&asked.starts),
                shown(&self.stock_starts),
            )
        })
    }

    /// Replaces the other stock lanes too.
    fn move_lanes(&mut self, now: Instant, to: &mut Dispatcher) {
        let stays = to.lanes().iter();
        let stays = stays.filter(|on| !on.is_served() && !on.is_retiring());
        let stock: Vec<LaneId> = stays.map(LaneOnChannel::id).collect();
        for id in stock {
            self.ask_beside(now, to, id);
        }
        self.send(to);
    }

    /// Notes that the longhaul has answered with this version and these extensions.
    fn serves(&mut self, to: &mut Dispatcher, info: ServerInfo) {
        let software = self.software.clone().unwrap_or_default();
        info!("the remote host runs longhaul {software}: using it for new channels");
        let seen = LonghaulProbeResult::Serves {
            software,
            info: info.clone(),
        };
        see(to, &seen);
        self.facts.note_ours(&info);
        self.probe = RemoteLonghaulState::Serves(info);
        self.note_serving(true);
    }

    /// True once, as soon as it is known which server handles the lanes.
    pub(super) fn settles(&self) -> bool {
        if self.facts.is_settled() {
            return false;
        }
        let stays = matches!(
            self.probe,
            RemoteLonghaulState::Stock(_)
                | RemoteLonghaulState::Server
                | RemoteLonghaulState::Unknown { insists: false }
        );
        // Stock lanes that are about to be replaced still get jobs until then.
        let moved = self.facts.ours().is_some() && self.asked.is_empty();
        let settles = moved || stays && self.facts.first().is_some();
        if settles {
            self.facts.settle();
        }
        settles
    }

    /// Tells the connection source which server the first lane of further connections should use.
    fn note_serving(&self, ours: bool) {
        if let Some(connection_source) = &self.connection_source {
            connection_source.note_serving(ours);
        }
    }

    /// Falls back to the stock server.
    fn fails(&mut self, to: &mut Dispatcher, gave_up: LonghaulProbeFailure) {
        let expected = self.is_ours();
        let LonghaulProbeFailure { why, result } = gave_up;
        info!("using the server's own SFTP server: {why}");
        self.less |= expected;
        self.note_serving(false);
        self.probe = RemoteLonghaulState::Stock(why);
        if let Some(result) = result {
            see(to, &result);
        }
    }

    /// Gives up a lane that will not answer. Returns its connection if only this channel was one
    /// too many.
    fn give_up(
        &mut self,
        to: &mut Dispatcher,
        at: usize,
        gave_up: LonghaulProbeFailure,
    ) -> Option<ChannelRefusingConnection> {
        let ProbedLane { on, .. } = self.asked.remove(at);
        debug!("cannot open a channel to longhaul there: {}", gave_up.why);
        close_channel(to, &on);
        to.note_change();
        match self.probe {
            RemoteLonghaulState::Probing => {
                self.fails(to, gave_up);
                None
            }
            _ => Some(ChannelRefusingConnection(on.connection())),
        }
    }

    /// Handles the end or refusal of the channel of a lane that has not answered yet; does nothing
    /// for any other channel. A refusal says nothing about a longhaul.
    pub(super) fn on_probe_channel_closed(
        &mut self,
        to: &mut Dispatcher,
        (connection, channel): (ConnectionId, LinkChannelId),
        why: String,
        refused: bool,
    ) -> Option<ChannelRefusingConnection> {
        let at = self.asked_on(connection, channel)?;
        let closed = LonghaulProbeFailure {
            why,
            result: (!refused).then_some(LonghaulProbeResult::Absent),
        };
        self.give_up(to, at, closed)
    }

    /// Drops the unanswered lanes of a lost connection. The server may have closed it because of
    /// the probe.
    pub(super) fn connection_lost(&mut self, to: &mut Dispatcher, connection: ConnectionId) {
        let before = self.asked.len();
        self.asked.retain(|a| a.on.connection() != connection);
        if self.asked.len() < before && matches!(self.probe, RemoteLonghaulState::Probing) {
            let lost = LonghaulProbeFailure {
                why: "the connection was lost".to_owned(),
                result: Some(LonghaulProbeResult::Unusable),
            };
            self.fails(to, lost);
        }
    }

    /// Handles the answer on a lane that already works.
    pub(super) fn heard(
        &mut self,
        to: &mut Dispatcher,
        lane: LaneId,
        greeting: Option<MarkerLine>,
    ) {
        if let Some(MarkerLine::Serves { software, .. }) = greeting {
            self.software = Some(software);
        }
        let on = to.lanes().get(lane);
        let direct = to.connections().is_direct(lane.connection);
        let Some((served, info)) =
            on.and_then(|on| Some((on.is_served(), on.lane().server_info()?)))
        else {
            return;
        };
        let hoped = matches!(
            self.probe,
            RemoteLonghaulState::UserAsserted | RemoteLonghaulState::Expected(_)
        );
        if direct {
            // Facts about a direct server must not be remembered as the stock server's.
            self.facts.note_ours(info);
        } else if served && hoped {
            let info = info.clone();
            self.serves(to, info);
        } else if !served && self.stock.is_none() {
            let info = info.clone();
            self.stock_answers(to, info);
        }
    }

    /// Takes the stock server's first answer.
    fn stock_answers(&mut self, to: &mut Dispatcher, info: ServerInfo) {
        if let Some(on) = to.connections_mut().first_mut() {
            on.link_mut().server_seen(&info);
        }
        self.facts.note(&info);
        let ours = info.is_ours();
        self.stock = Some(info);
        if ours
            && matches!(
                self.probe,
                RemoteLonghaulState::Unknown { .. } | RemoteLonghaulState::Probing
            )
        {
            // The server's own SFTP server is already longhaul.
            self.probe = RemoteLonghaulState::Server;
            for asked in std::mem::take(&mut self.asked) {
                close_channel(to, &asked.on);
            }
        }
    }

    /// Handles the end of a lane to the longhaul. Returns true if the stock server takes over.
    pub(super) fn lane_ended(
        &mut self,
        to: &mut Dispatcher,
        lane: LaneId,
        error: &LaneError,
    ) -> bool {
        let greeted = to.lanes().get(lane).is_some_and(|on| !on.awaits_greeting());
        match error {
            // The announced extensions or the handles differ from the prediction, so the next lane
            // asks without it.
            LaneError::Misprediction(_) if greeted => return false,
            _ if !greeted && self.answered() => return false,
            // This channel may have been one too many. Another one tells if a longhaul is there.
            LaneError::Closed(_)
            | LaneError::GivenUp(_)
            | LaneError::NoLonghaul(_)
            | LaneError::Stalled
                if !greeted && awaits_another(to, lane) =>
            {
                return false;
            }
            _ => {}
        }
        if self.is_ours() {
            let why = match greeted {
                true => format!("longhaul at the remote host ended ({})", in_words(error)),
                false => in_words(error),
            };
            let ended = LonghaulProbeFailure {
                why,
                result: (!greeted).then(|| probe_result(error)),
            };
            self.fails(to, ended);
        }
        true
    }

    /// Time at which an unanswered lane is given up.
    pub(super) fn poll_timeout(&self, of: &Dispatcher) -> Option<Instant> {
        let lanes = of.lanes().iter().filter_map(|on| greeting_due(of, on));
        let asked = self.asked.iter().map(|a| a.since + PATIENCE);
        lanes.chain(asked).min()
    }

    /// Returns an unanswered lane to the longhaul that holds up all work for too long. `open` means
    /// that the login is complete, so that the time for the greeting runs.
    pub(super) fn late_lane(
        &mut self,
        now: Instant,
        to: &mut Dispatcher,
        open: bool,
    ) -> Option<(LaneId, LaneError)> {
        let awaits = LaneOnChannel::awaits_greeting;
        if !to.lanes().iter().any(awaits) {
            return None;
        }
        if open {
            for on in to.lanes_mut().iter_mut() {
                on.expect_greeting(now);
            }
        }
        let late = |on: &&LaneOnChannel| greeting_due(to, on).is_some_and(|at| at <= now);
        let lane = to.lanes().iter().find(late)?.id();
        // The shell may be slow: probe again beside working lanes.
        if matches!(self.probe, RemoteLonghaulState::UserAsserted) {
            self.probe = RemoteLonghaulState::Unknown { insists: true };
        }
        let why = "longhaul at the far end took too long to answer".to_owned();
        Some((lane, LaneError::GivenUp(why)))
    }
}

/// Time at which the greeting on a lane is late.
fn greeting_due(of: &Dispatcher, on: &LaneOnChannel) -> Option<Instant> {
    let since = on.greeting_awaited()?;
    let rtt = of.connections().get(on.connection())?.round_trip();
    Some(since + HURRY + ROUND_TRIPS * rtt)
}

/// True if another lane waits for the greeting of a longhaul.
fn awaits_another(of: &Dispatcher, lane: LaneId) -> bool {
    let mut lanes = of.lanes().iter();
    lanes.any(|on| on.id() != lane && on.awaits_greeting())
}

fn see(to: &mut Dispatcher, seen: &LonghaulProbeResult) {
    if let Some(on) = to.connections_mut().first_mut() {
        on.link_mut().far_seen(seen);
    }
}

fn close_channel(to: &mut Dispatcher, lane: &LaneOnChannel) {
    let channel = lane.channel();
    let close = |on: &mut SessionConnection| on.link_mut().close_channel(channel);
    to.connections_mut().get_mut(lane.connection()).map(close);
}

/// Error text without the mention of a channel.
fn in_words(error: &LaneError) -> String {
    match error {
        LaneError::Closed(why) | LaneError::GivenUp(why) | LaneError::NoLonghaul(why) => {
            why.clone()
        }
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
