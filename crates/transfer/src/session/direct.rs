//! Direct connections, which need no login at the host's SSH server. A command that runs on a
//! channel of the first connection starts their server. On a short path the lanes move to the first
//! direct connection; on a long path direct connections are added to the existing ones.

use std::sync::Arc;
use std::time::{Duration, Instant};

use schedule::{ConnectionId, USUAL_RATE};
use sftp::Output;
use tracing::info;

use super::connections::Connection;
use super::driver::SessionLoop;
use super::exec::{CONTROL, RemoteCommandEvent};
use super::{ChannelId, Command, DirectConnect, NoMoreConnections};
use crate::report::{FarEnd, FarEndDepth};

/// Time in which the command must start the direct server, in addition to `ROUND_TRIPS`. With
/// `insists`, data waits for it.
const PATIENCE: Duration = Duration::from_secs(5);
const ROUND_TRIPS: u32 = 4;
/// Interval of the keepalive messages on the control channel. Network address translation drops
/// idle connections.
const LIFE_SIGN: Duration = Duration::from_secs(30);

/// Bytes below which a copy is over before a direct connection would be ready.
const WORTH: u64 = 16 << 20;

/// Round trips after which a direct connection has repaid its cost: six for the request and the
/// login, plus a slow start on a path that other connections already fill.
const USEFUL_AFTER: f64 = 20.0;
/// Round trip from which a connection's slow start takes noticeable time.
const LONG: Duration = Duration::from_millis(4);

/// Sends a message to the far end of the control channel.
pub type ControlMessage = Box<dyn Fn(Vec<u8>) + Send + Sync>;

/// Result of a message from the direct server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Nothing to do yet.
    Nothing,
    /// The server listens; connections can be made from now on.
    Listens,
    /// No direct connection is possible, with the reason.
    Failed(String),
}

/// State of the direct connections of a session.
#[derive(Default)]
pub(super) enum DirectState {
    /// Nothing was started yet.
    #[default]
    New,
    /// Direct connections are not available for this session.
    Off,
    /// The direct server was requested and must answer by this time.
    Asked(Running, Instant),
    /// The direct server listens, and the first connection is being made.
    Connecting(Running),
    /// A direct connection exists or existed. Holds the time of the next keepalive, and true if the
    /// lanes have left the connections of the SSH server.
    Open(Running, Instant, bool),
    /// Direct connections failed for this reason; true if data was waiting for them.
    Failed(String, bool),
}

#[derive(Clone)]
pub(super) struct Running {
    with: Arc<dyn DirectConnect>,
    connection: ConnectionId,
    channel: ChannelId,
}

impl DirectState {
    /// True while data waits for the result.
    pub(super) fn holds(&self) -> bool {
        match self {
            Self::Asked(on, _) | Self::Connecting(on) => on.with.insists(),
            _ => false,
        }
    }

    fn running(&self) -> Option<&Running> {
        match self {
            Self::Asked(on, _) | Self::Connecting(on) | Self::Open(on, ..) => Some(on),
            Self::New | Self::Off | Self::Failed(..) => None,
        }
    }

    /// Writes the outcome to `far` at the end of the session. `several` means that more than one
    /// connection was open.
    pub(super) fn account(&self, far: &mut FarEnd, several: bool) {
        match self {
            Self::New if several && far.depth == FarEndDepth::Exec => {
                let why = "not straight to it: further logins had begun when that could be";
                far.reason = Some(why.to_owned());
            }
            Self::Open(on, ..) => {
                far.depth = FarEndDepth::Direct;
                far.software = on.with.software();
                far.reason = None;
            }
            Self::Failed(why, insisted) if far.depth != FarEndDepth::Stock || *insisted => {
                far.less = true;
                far.reason = Some(why.clone());
            }
            _ => {}
        }
    }

    /// True if direct connections have replaced those of the SSH server.
    fn has_left(&self) -> bool {
        matches!(self, Self::Open(_, _, true))
    }

    /// True if a direct connection exists or existed.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open(..))
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Asked(_, at) | Self::Open(_, at, _) => Some(*at),
            _ => None,
        }
    }
}

impl SessionLoop {
    /// Starts direct connections once the first connection is open, then sends keepalives and
    /// watches the deadline.
    pub(super) fn go_straight(&mut self, now: Instant) {
        match &self.straight {
            DirectState::New => self.begin_straight(now),
            DirectState::Asked(_, until) if *until <= now => {
                self.straight_failed("the far end does not answer");
            }
            DirectState::Open(on, at, left) if *at <= now => {
                let (on, left) = (on.clone(), *left);
                self.say_straight(&on, on.with.life_sign());
                self.straight = DirectState::Open(on, now + LIFE_SIGN, left);
            }
            _ => {}
        }
        self.reach_out_for_wanted(now);
    }

    fn begin_straight(&mut self, now: Instant) {
        let reach = self.options.reach.as_ref();
        let Some(with) = reach.and_then(|r| r.straight()) else {
            self.straight = DirectState::Off;
            return;
        };
        // Unless the user insists, wait for a longhaul to answer first and copy meanwhile.
        if !(with.insists() || self.far.answered() && self.is_worth_straight()) {
            return;
        }
        let mut usable = self.connections.iter_mut();
        let Some(on) = usable.find(|on| on.link.peer().is_some() && !on.retiring) else {
            return;
        };
        let (orders, bell) = (self.ends.orders.clone(), self.ends.bell.clone());
        let outlet = Box::new(move |bytes| {
            // After the end of the session there is no receiver.
            let _ = orders.send(Command::Straight(bytes));
            bell.ring();
        });
        let Some((command, greeting)) = with.begin(outlet) else {
            self.straight = DirectState::Off;
            return;
        };
        let connection = on.id;
        let rtt = round_trip(on);
        let Some(channel) = on.link.open_exec(&command) else {
            let why = "there is no way to run a command";
            with.over(why);
            self.straight = DirectState::Failed(why.to_owned(), with.insists());
            return;
        };
        on.link.send(channel, Output::Bytes(greeting));
        self.execs.begin(CONTROL, connection, channel);
        let until = now + PATIENCE + rtt * ROUND_TRIPS;
        let on = Running {
            with,
            connection,
            channel,
        };
        self.straight = DirectState::Asked(on, until);
        self.turns.stir();
    }

    /// True if starting direct connections pays without a request by the user.
    ///
    /// Many small files benefit more from several connections at once: a further login starts a
    /// round trip sooner than the far end answers, and its answer may queue behind data. For
    /// 100,000 files over 114 ms, waiting cost 0.4 to 0.9 s of 6 s, and giving up logins for it
    /// cost more. For a download with packet loss direct connections do pay, because the remote
    /// longhaul sets a loss-tolerant congestion control and sshd does not.
    fn is_worth_straight(&self) -> bool {
        let alone = self.connections.len() == 1 && self.reaching == 0;
        let soon = alone && !self.growing.may_begin_with_several();
        let left = self.left().max(self.growing.foreseen());
        let loses = self.growing.loses_on_the_way_down();
        let rtts = self.connections.iter().map(round_trip);
        let lasts = lasts_for_straight(left, self.growing.known_rate(), rtts.max());
        left >= WORTH && (soon && lasts || loses)
    }

    /// True if the next connection will probably be a direct one.
    fn awaits_straight(&self) -> bool {
        match &self.straight {
            DirectState::Asked(..) | DirectState::Connecting(_) => true,
            DirectState::New => {
                let possible = || {
                    let reach = self.options.reach.as_ref();
                    reach.is_some_and(|r| r.straight().is_some())
                };
                self.far.is_expected() && self.is_worth_straight() && possible()
            }
            _ => false,
        }
    }

    /// Requests a further connection, or defers it while a direct one is expected.
    pub(super) fn want_connection(&mut self, now: Instant) {
        match self.awaits_straight() {
            true => self.wanted += 1,
            false => self.reach_out(now),
        }
    }

    /// Opens the deferred connections once it is known if they will be direct.
    fn reach_out_for_wanted(&mut self, now: Instant) {
        if self.wanted == 0 || self.awaits_straight() {
            return;
        }
        let wanted = std::mem::take(&mut self.wanted);
        // After the lanes moved to the first direct connection, the controller started over and
        // decides the number again.
        if !self.straight.has_left() {
            (0..wanted).for_each(|_| self.reach_out(now));
        }
    }

    /// Sends bytes to the direct server's control channel.
    pub(super) fn straight_says(&mut self, bytes: Vec<u8>) {
        if let Some(on) = self.straight.running().cloned() {
            self.say_straight(&on, bytes);
        }
    }

    fn say_straight(&mut self, to: &Running, bytes: Vec<u8>) {
        if let Some(on) = self.connection(to.connection) {
            on.link.send(to.channel, Output::Bytes(bytes));
            self.turns.stir();
        }
    }

    /// Handles output and end of the command that runs the direct server.
    pub(super) fn straight_heard(&mut self, now: Instant, event: RemoteCommandEvent) {
        let Some(on) = self.straight.running().cloned() else {
            return;
        };
        match event {
            RemoteCommandEvent::Output(bytes) => {
                let rtt = self.connection(on.connection).map(|on| round_trip(on));
                match on.with.heard(&bytes, rtt.unwrap_or_default()) {
                    Heard::Nothing => {}
                    Heard::Listens => {
                        self.straight = DirectState::Connecting(on);
                        self.reach_out(now);
                    }
                    Heard::Failed(why) => self.straight_failed(&why),
                }
            }
            RemoteCommandEvent::Over(how) => {
                let answered = !matches!(self.straight, DirectState::Asked(..));
                let why = match how {
                    Err(why) => why,
                    Ok(_) if answered => "what was started at the far end has ended".to_owned(),
                    Ok(_) => "no longhaul could be started at the far end: neither one on the PATH nor one \
                              that longhaul bootstrap has sent"
                        .to_owned(),
                };
                self.straight_failed(&why);
            }
        }
    }

    /// Gives up direct connections; existing connections continue.
    fn straight_failed(&mut self, why: &str) {
        let Some(on) = self.straight.running().cloned() else {
            return;
        };
        on.with.over(why);
        info!("no direct connection: {why}");
        self.straight = DirectState::Failed(why.to_owned(), on.with.insists());
        self.execs.forget(CONTROL);
        if let Some(control) = self.connection(on.connection) {
            control.link.close_channel(on.channel);
        }
        self.turns.stir();
    }

    /// True for an SSH login that completes after the lanes moved to direct connections, which
    /// makes it superfluous.
    pub(super) fn is_late(&self, id: ConnectionId) -> bool {
        let straight = |on: &Connection| on.id == id && on.straight;
        let open =
            matches!(&self.straight, DirectState::Open(on, _, true) if on.with.failed().is_none());
        open && !self.connections.iter().any(straight)
    }

    /// Handles the early loss of a direct connection. If none is left, its login may have been
    /// refused while lanes were already open on it, so direct connections count as failed.
    pub(super) fn straight_broken(&mut self, why: &str) {
        if !self.connections.iter().any(|on| on.straight) {
            self.straight_failed(why);
        } else if let Some(on) = self.straight.running() {
            on.with.over(why);
        }
    }

    /// Handles the result of the first direct connection attempt.
    pub(super) fn straight_joined(
        &mut self,
        now: Instant,
        joined: &Result<ConnectionId, NoMoreConnections>,
    ) {
        let DirectState::Connecting(on) = &self.straight else {
            return;
        };
        let on = on.clone();
        match joined {
            Ok(id) if self.connection(*id).is_some_and(|on| on.straight) => {
                info!("data go over a direct connection");
                let leaves = self.leaves_stock(&on);
                self.straight = DirectState::Open(on, now + LIFE_SIGN, leaves);
                match leaves {
                    true => self.leave_stock(),
                    // This connection counts as one of the deferred ones.
                    false => self.wanted = self.wanted.saturating_sub(1),
                }
            }
            // This login at the SSH server was requested before the direct server listened.
            Ok(_) => {}
            Err(_) => {
                if let Some(why) = on.with.failed() {
                    self.straight_failed(&why);
                }
            }
        }
    }

    /// True if lanes move to the first direct connection as soon as it is open. On a long path they
    /// stay on the existing connections too, because a slow start takes ten round trips in which
    /// full-speed lanes would be idle: 30 MB over 60 ms took 2.2 s instead of 1.7 s. A download
    /// with packet loss moves in any case, because only the remote longhaul sets a loss-tolerant
    /// congestion control.
    fn leaves_stock(&mut self, to: &Running) -> bool {
        let rtt = self.connection(to.connection).map(|on| round_trip(on));
        to.with.insists()
            || rtt.is_none_or(|rtt| rtt < LONG)
            || self.growing.loses_on_the_way_down()
    }

    /// Retires all lanes on connections of the SSH server.
    fn leave_stock(&mut self) {
        let straight = |on: &&Connection| on.straight;
        let ids: Vec<_> = self
            .connections
            .iter()
            .filter(straight)
            .map(|on| on.id)
            .collect();
        for on in &mut self.lanes {
            if !ids.contains(&on.id.connection) && !on.retiring {
                on.retiring = true;
                self.spread.retire(on.id);
            }
        }
        // The measurements describe the old connections.
        self.growing.begin_again();
        self.turns.stir();
    }

    /// Usable connections in order of preference, direct ones first.
    pub(super) fn preferred(&self, may: impl Fn(&Connection) -> bool) -> Vec<ConnectionId> {
        let all = self.connections.iter().filter(|on| may(on));
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|on| !on.straight);
        all.into_iter().map(|on| on.id).collect()
    }

    /// True for a direct connection.
    pub(super) fn goes_straight(&self, id: ConnectionId) -> bool {
        self.connections.iter().any(|on| on.id == id && on.straight)
    }

    /// True if the control channel of the direct server runs on this connection.
    pub(super) fn controls(&self, id: ConnectionId) -> bool {
        let running = self.straight.running();
        running.is_some_and(|running| running.connection == id)
    }

    /// True if this connection carries the control channel and no lanes.
    pub(super) fn only_controls(&self, on: &Connection) -> bool {
        self.controls(on.id) && !self.lanes.iter().any(|lane| lane.id.connection == on.id)
    }

    /// Resets the state after all connections were lost.
    pub(super) fn straight_lost(&mut self) {
        if let Some(on) = self.straight.running() {
            on.with.lost();
            self.execs.forget(CONTROL);
            self.straight = DirectState::New;
        }
    }
}

/// True if moving `bytes` takes longer than a direct connection needs to repay its cost. `rate` is
/// the known rate of the path in bytes per second, if any.
pub(crate) fn lasts_for_straight(bytes: u64, rate: Option<u64>, rtt: Option<Duration>) -> bool {
    let rate = rate.map_or(USUAL_RATE, |rate| rate.max(1) as f64);
    let takes = rtt.unwrap_or_default().as_secs_f64() * USEFUL_AFTER;
    bytes as f64 / rate > takes
}

fn round_trip(on: &Connection) -> Duration {
    on.link.sample().tcp.map_or(Duration::ZERO, |tcp| tcp.rtt)
}
