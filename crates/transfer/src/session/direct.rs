//! Connections that go beside the server's own logins: what starts their server runs on a channel
//! of the first connection. On a short path lanes move to them once there is one; on a long one they
//! join those that there are.

use std::sync::Arc;
use std::time::{Duration, Instant};

use schedule::{ConnectionId, USUAL_RATE};
use sftp::Output;
use tracing::info;

use super::connections::Connection;
use super::driver::Driver;
use super::exec::{CONTROL, RemoteCommandEvent};
use super::{ChannelId, Command, DirectConnect, NoMoreConnections};
use crate::report::{Depth, FarEnd};

/// How long a shell may take to start what was asked for, on top of round trips: data wait for it
/// where it is insisted on.
const PATIENCE: Duration = Duration::from_secs(5);
const ROUND_TRIPS: u32 = 4;
/// What has nothing to say for so long says that it is there: address translations forget.
const LIFE_SIGN: Duration = Duration::from_secs(30);

/// Less is moved before a connection would be there.
const WORTH: u64 = 16 << 20;

/// Round trips after which a connection that goes straight has brought what it cost: six for the
/// question and its login, and its slow start, in which the path is full of what others send.
const USEFUL_AFTER: f64 = 20.0;
/// A connection's slow start takes no time that anybody sees on a shorter path.
const LONG: Duration = Duration::from_millis(4);

/// A message for the far end of the control channel.
pub type ControlMessage = Box<dyn Fn(Vec<u8>) + Send + Sync>;

/// What came of what the far end has said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Nothing yet.
    Nothing,
    /// Connections can be made from now on.
    Listens,
    /// They cannot, and why.
    Failed(String),
}

/// How it stands.
#[derive(Default)]
pub(super) enum DirectState {
    /// Nothing was begun.
    #[default]
    New,
    /// There is nothing to begin.
    Off,
    /// It was asked for, and is to have answered by then.
    Asked(Running, Instant),
    /// It has answered, and the first connection is on its way.
    Connecting(Running),
    /// There is, or was, a connection. The next life sign is due then. And whether the lanes that
    /// there were have left the connections of the SSH server.
    Open(Running, Instant, bool),
    /// Nothing came of it, for this reason; and whether data have waited for it.
    Failed(String, bool),
}

#[derive(Clone)]
pub(super) struct Running {
    with: Arc<dyn DirectConnect>,
    connection: ConnectionId,
    channel: ChannelId,
}

impl DirectState {
    /// Data wait for what comes of it.
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

    /// What there was, for the end; `several` connections there were.
    pub(super) fn account(&self, far: &mut FarEnd, several: bool) {
        match self {
            Self::New if several && far.depth == Depth::Exec => {
                let why = "not straight to it: further logins had begun when that could be";
                far.reason = Some(why.to_owned());
            }
            Self::Open(on, ..) => {
                far.depth = Depth::Direct;
                far.software = on.with.software();
                far.reason = None;
            }
            Self::Failed(why, insisted) if far.depth != Depth::Stock || *insisted => {
                far.less = true;
                far.reason = Some(why.clone());
            }
            _ => {}
        }
    }

    /// Whether there is one in place of the connections of the SSH server.
    fn has_left(&self) -> bool {
        matches!(self, Self::Open(_, _, true))
    }

    /// Whether there is a connection, or was.
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

impl Driver {
    /// Begins it once the first connection is there, and looks after it.
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
        // Where data do not wait, they go first, to a longhaul that has answered.
        if !(with.insists() || self.far.answered() && self.is_worth_straight()) {
            return;
        }
        let mut usable = self.connections.iter_mut();
        let Some(on) = usable.find(|on| on.link.peer().is_some() && !on.retiring) else {
            return;
        };
        let (orders, bell) = (self.ends.orders.clone(), self.ends.bell.clone());
        let outlet = Box::new(move |bytes| {
            // A session that has ended has nobody to tell.
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

    /// Whether it is worth beginning by itself. Not where many small files are worth several connections at
    /// once: further logins can begin a round trip sooner than the far end answers, whose answer may wait
    /// behind data. Of 100,000 files over 114 ms that was 0.4 to 0.9 s of six, and to leave logins for it cost
    /// more. But where packets of a download are lost the far end's own server bears that, and no sshd does.
    fn is_worth_straight(&self) -> bool {
        let alone = self.connections.len() == 1 && self.reaching == 0;
        let soon = alone && !self.growing.may_begin_with_several();
        let left = self.left().max(self.growing.foreseen());
        let loses = self.growing.loses_on_the_way_down();
        let rtts = self.connections.iter().map(round_trip);
        let lasts = lasts_for_straight(left, self.growing.known_rate(), rtts.max());
        left >= WORTH && (soon && lasts || loses)
    }

    /// Whether a further connection will probably be one of these.
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

    /// A further connection is wanted.
    pub(super) fn want_connection(&mut self, now: Instant) {
        match self.awaits_straight() {
            true => self.wanted += 1,
            false => self.reach_out(now),
        }
    }

    /// Those that had to wait are asked for, once it is known how.
    fn reach_out_for_wanted(&mut self, now: Instant) {
        if self.wanted == 0 || self.awaits_straight() {
            return;
        }
        let wanted = std::mem::take(&mut self.wanted);
        // With the first one that goes straight it was decided anew how many there shall be, where
        // the others were left.
        if !self.straight.has_left() {
            (0..wanted).for_each(|_| self.reach_out(now));
        }
    }

    /// More for the far end.
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

    /// What became of the command.
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

    /// Nothing more comes of it: what there is goes on.
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

    /// A login that was asked for before there was a connection that needs none.
    pub(super) fn is_late(&self, id: ConnectionId) -> bool {
        let straight = |on: &Connection| on.id == id && on.straight;
        let open =
            matches!(&self.straight, DirectState::Open(on, _, true) if on.with.failed().is_none());
        open && !self.connections.iter().any(straight)
    }

    /// One was lost soon. Where it was the only one, its login may have been refused, behind which
    /// lanes were opened already: it is as if there had been none.
    pub(super) fn straight_broken(&mut self, why: &str) {
        if !self.connections.iter().any(|on| on.straight) {
            self.straight_failed(why);
        } else if let Some(on) = self.straight.running() {
            on.with.over(why);
        }
    }

    /// A connection that was asked for has come, or not.
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
                    // It is one of those that were wanted.
                    false => self.wanted = self.wanted.saturating_sub(1),
                }
            }
            // A login that was asked for before.
            Ok(_) => {}
            Err(_) => {
                if let Some(why) = on.with.failed() {
                    self.straight_failed(&why);
                }
            }
        }
    }

    /// Whether lanes move to what goes straight as soon as the first of it is there. On a long path
    /// they stay beside it: its slow start takes ten round trips, in which those that were at full
    /// speed stood idle, and 30 MB over 60 ms took 2.2 s where they take 1.7. But where packets of a
    /// download are lost, only the far end's own server bears that.
    fn leaves_stock(&mut self, to: &Running) -> bool {
        let rtt = self.connection(to.connection).map(|on| round_trip(on));
        to.with.insists()
            || rtt.is_none_or(|rtt| rtt < LONG)
            || self.growing.loses_on_the_way_down()
    }

    /// Lanes on other connections get nothing more.
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
        // What was found out holds for those connections.
        self.growing.begin_again();
        self.turns.stir();
    }

    /// Connections, those first that lanes should be on.
    pub(super) fn preferred(&self, may: impl Fn(&Connection) -> bool) -> Vec<ConnectionId> {
        let all = self.connections.iter().filter(|on| may(on));
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|on| !on.straight);
        all.into_iter().map(|on| on.id).collect()
    }

    /// Whether it goes beside the server's own logins.
    pub(super) fn goes_straight(&self, id: ConnectionId) -> bool {
        self.connections.iter().any(|on| on.id == id && on.straight)
    }

    /// Whether what starts the others runs on it.
    pub(super) fn controls(&self, id: ConnectionId) -> bool {
        let running = self.straight.running();
        running.is_some_and(|running| running.connection == id)
    }

    /// Whether nothing but the control channel is on it.
    pub(super) fn only_controls(&self, on: &Connection) -> bool {
        self.controls(on.id) && !self.lanes.iter().any(|lane| lane.id.connection == on.id)
    }

    /// All connections are gone.
    pub(super) fn straight_lost(&mut self) {
        if let Some(on) = self.straight.running() {
            on.with.lost();
            self.execs.forget(CONTROL);
            self.straight = DirectState::New;
        }
    }
}

/// Whether so many bytes take longer than a connection that goes straight takes to be of use. `rate` is
/// what the path is known to move, if that is known.
pub(crate) fn lasts_for_straight(bytes: u64, rate: Option<u64>, rtt: Option<Duration>) -> bool {
    let rate = rate.map_or(USUAL_RATE, |rate| rate.max(1) as f64);
    let takes = rtt.unwrap_or_default().as_secs_f64() * USEFUL_AFTER;
    bytes as f64 / rate > takes
}

fn round_trip(on: &Connection) -> Duration {
    on.link.sample().tcp.map_or(Duration::ZERO, |tcp| tcp.rtt)
}
