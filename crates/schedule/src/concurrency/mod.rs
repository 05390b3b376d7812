//! How many connections and channels a transfer should have.

mod choose;
mod evidence;
mod figures;
mod learned;
mod limiter;
mod losses;
mod many;
mod trial;
mod verdict;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::figures::{CounterDeltas, IntervalFigures};
use self::trial::Trial;
use crate::{ConnectionId, LaneId};

pub use choose::USUAL_RATE;
pub use evidence::{ConnectionSample, Direction, Evidence, LaneSample, TcpSample};
pub use learned::Learned;
pub use limiter::{Limiter, LimiterEvidence};
pub use many::begins_with;
pub use trial::TrialResult;
pub use verdict::LimiterLog;

/// What a [`ConcurrencyController`] goes by beside the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConcurrencyConfig {
    /// Which way the bytes go.
    pub direction: Direction,
    /// The user fixed the number of connections.
    pub connections: Option<u32>,
    /// The user fixed the number of channels on each.
    pub channels: Option<u32>,
    /// Never more connections than this.
    pub most_connections: u32,
    /// The same where packets are lost at random, so that each brings its share and no more.
    pub most_lossy: u32,
    /// Never more channels on one: OpenSSH's MaxSessions is 10.
    pub most_channels: u32,
    /// Each login costs the user a touch, a code or a password: one connection only.
    pub interactive: bool,
    /// Processors of this machine.
    pub processors: u32,
    /// The far end is this machine as well: what a connection takes of the processors, it takes twice.
    pub one_machine: bool,
    /// What a TCP buffer of this end may grow to: the last figure of `net.ipv4.tcp_wmem` (up) or
    /// `tcp_rmem` (down).
    pub buffer: Option<u64>,
    /// Bytes a second that the user allows.
    pub limit: Option<u64>,
    /// It yields to other traffic, and that is what throttles it.
    pub background: bool,
    /// What an earlier run learned, and how many seconds since 1970 it is now.
    pub learned: Option<(Learned, u64)>,
}

impl ConcurrencyConfig {
    /// The defaults.
    pub fn new(direction: Direction) -> Self {
        Self {
            direction,
            connections: None,
            channels: None,
            most_connections: 16,
            most_lossy: 32,
            most_channels: 10,
            interactive: false,
            processors: 2,
            one_machine: false,
            buffer: None,
            limit: None,
            background: false,
            learned: None,
        }
    }
}

/// What is to be done about lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConcurrencyChange {
    /// Open one more connection, with one lane. Answer with [`ConcurrencyController::connection_opened`] or
    /// [`ConcurrencyController::refused`].
    AddConnection,
    /// Open one more lane on this connection. [`ConcurrencyController::refused`] if the server does not.
    AddChannel(ConnectionId),
    /// Give this connection no more work, and close it when it has none.
    RetireConnection(ConnectionId),
    /// The same for a lane.
    RetireLane(LaneId),
}

/// Why there is no more of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The connection was closed or reset before the login: MaxStartups, a penalty, a firewall.
    Connection,
    /// The login was refused.
    Login,
    /// The channel was refused: MaxSessions.
    Channel(ConnectionId),
}

/// Decides from evidence how many connections and channels there should be.
///
/// Pure, and asked about every [`ConcurrencyController::interval`]: it begins with the one connection there is,
/// adds where something other than the path holds the transfer back, looks whether that paid, and
/// gives back what did not. In doubt about the evidence, the goodput decides.
#[derive(Debug)]
pub struct ConcurrencyController {
    config: ConcurrencyConfig,
    measure: CounterDeltas,
    began: Option<Instant>,
    next: Option<Instant>,
    /// Work of the last intervals, the latest first.
    rates: Vec<f64>,
    figures: IntervalFigures,
    /// Looks since the path's queue was seen to fill.
    since_queue: u32,
    /// The same since packets were lost.
    since_loss: u32,
    trial: Option<Trial>,
    /// Connections asked for and not answered, with when.
    opening: Vec<Instant>,
    /// How many may be opening: doubles when all of a batch came, one after a refusal.
    at_once: u32,
    opened: u32,
    refusals: u32,
    /// No connection before this.
    not_before: Option<Instant>,
    no_connections: bool,
    /// A channel was refused: so many a connection has, and gets no more.
    channels_refused: Option<u32>,
    /// How many there shall be without trying, and channels on each.
    planned: (u32, u32),
    /// The round trip that this was planned for.
    planned_for: Duration,
    backoff: Duration,
    /// No trial before this.
    rest_until: Option<Instant>,
    /// The last trial showed that more brings nothing.
    sated: bool,
    /// Work a second there was with the channels that were given back last.
    gave_back: Option<f64>,
    /// The last trial brought its share.
    bold: bool,
    best: f64,
    counts: (u32, u32),
    /// The rate that the user set held data back for most of the last interval.
    throttled: bool,
    /// What the last trial brought.
    tried: Option<TrialResult>,
    channels: BTreeMap<ConnectionId, u32>,
    /// Bytes on their way through the session, announced before they were there.
    expected: u64,
    /// [`Evidence::start_up`] at the last look, and [`Evidence::starting`].
    start_up: Duration,
    starting: u32,
    /// Bytes a second in the last intervals, the latest first.
    goodput: Vec<f64>,
}

/// Logins that may be under way when nothing is known of the server: MaxStartups drops from ten
/// on, and others may be logging in as well.
const AT_ONCE: u32 = 6;
const MOST_AT_ONCE: u32 = 8;
/// Refusals after which no connection is tried again.
const MOST_REFUSALS: u32 = 2;
/// Intervals whose mean rate is worth knowing the next time.
const LEARNS_FROM: usize = 32;
const REFUSAL_REST: Duration = Duration::from_secs(3);
const BACKOFF: Duration = Duration::from_secs(8);

impl ConcurrencyController {
    /// Nothing is known but the settings.
    pub fn new(config: ConcurrencyConfig) -> Self {
        Self {
            config,
            measure: CounterDeltas::default(),
            began: None,
            next: None,
            rates: Vec::new(),
            figures: IntervalFigures::default(),
            since_queue: u32::MAX,
            since_loss: u32::MAX,
            trial: None,
            opening: Vec::new(),
            at_once: AT_ONCE,
            opened: 0,
            refusals: 0,
            not_before: None,
            no_connections: config.interactive,
            channels_refused: None,
            planned: (1, 1),
            planned_for: Duration::ZERO,
            backoff: BACKOFF,
            rest_until: None,
            sated: false,
            gave_back: None,
            bold: false,
            best: 0.0,
            counts: (1, 1),
            throttled: false,
            tried: None,
            channels: BTreeMap::new(),
            expected: 0,
            start_up: Duration::ZERO,
            starting: 0,
            goodput: Vec::new(),
        }
    }

    /// How often to call [`ConcurrencyController::sample`]: two round trips, a tenth of a second at least.
    pub fn interval(&self) -> Duration {
        let rtt = self.trip();
        (2 * rtt).clamp(Duration::from_millis(100), Duration::from_millis(1200))
    }

    /// When that is next; `None` is at once.
    pub fn next_sample(&self) -> Option<Instant> {
        self.next
    }

    /// Whether there was a look.
    pub fn has_sampled(&self) -> bool {
        self.began.is_some()
    }

    /// Looks at the evidence; the first time when the first connection is authenticated.
    pub fn sample(&mut self, evidence: &Evidence) -> Vec<ConcurrencyChange> {
        let now = evidence.now;
        let figures = self.measure.take(self.config.direction, evidence);
        self.next = Some(now + self.interval());
        (self.start_up, self.starting) = (evidence.start_up, evidence.starting);
        self.count(evidence);
        let Some(figures) = figures else {
            self.began.get_or_insert(now);
            self.plan(evidence);
            self.plan_for_many();
            return self.carry_out(evidence);
        };
        if self.trip() > self.planned_for.max(choose::LONG) * 3 {
            // It was not known to be long.
            self.plan(evidence);
        }
        self.figures = figures;
        self.since_queue = match figures.queueing() {
            true => 0,
            false => self.since_queue.saturating_add(1),
        };
        self.since_loss = match figures.lossy() || figures.bears_losses() {
            true => 0,
            false => self.since_loss.saturating_add(1),
        };
        self.rates.insert(0, figures.work);
        self.rates.truncate(16);
        self.goodput.insert(0, figures.shown.rate);
        self.goodput.truncate(LEARNS_FROM);
        self.best = self.best.max(figures.work);
        self.plan_for_many();
        if self.config.channels.is_none() && self.outgrows_window(evidence) {
            let doubled = (self.counts.1 * 2).min(self.windows_of_buffer());
            self.planned.1 = self.planned.1.max(doubled).max(2);
        }
        if self.is_missed() {
            self.sated = false;
            self.rest_until = None;
        }
        let mut changes = self.carry_out(evidence);
        if changes.is_empty() {
            changes = match self.trial.take() {
                Some(trial) => self.judge(trial, evidence),
                None => self.choose(evidence),
            };
        }
        changes
    }

    /// A connection that was asked for is authenticated, and has its first channel: what was planned
    /// and had to wait for that.
    #[must_use]
    pub fn connection_opened(&mut self, now: Instant, id: ConnectionId) -> Vec<ConcurrencyChange> {
        self.opening.pop();
        self.opened += 1;
        self.counts.0 += 1;
        if self.opening.is_empty() && self.refusals == 0 {
            self.at_once = MOST_AT_ONCE;
        }
        if let Some(trial) = &mut self.trial {
            trial.began = now;
        }
        let mut changes = Vec::new();
        if self.trial.is_none() {
            self.connect_as_planned(now, self.counts.0, &mut changes);
        }
        // At the next look its slow start would have met the first one's window.
        let channels = match self.start_up > choose::SLOW_START_UP {
            true => 1,
            false => self.wanted_channels(),
        };
        changes.extend((1..channels).map(|_| ConcurrencyChange::AddChannel(id)));
        changes
    }

    /// Something that was asked for will not be.
    pub fn refused(&mut self, now: Instant, refusal: Refusal) {
        match refusal {
            Refusal::Channel(connection) => {
                // The refused ones were counted with the others at the last look.
                let counted = self.channels.entry(connection).or_insert(2);
                *counted = counted.saturating_sub(1).max(1);
                let had = *counted;
                let least = self.channels_refused.map_or(had, |n| n.min(had));
                self.channels_refused = Some(least.max(1));
                if let Some(trial) = &mut self.trial {
                    trial.refused(connection);
                }
            }
            Refusal::Connection => {
                self.opening.pop();
                self.at_once = 1;
                // Of those that were on their way with one that was refused, no more is learned.
                if self.not_before.is_some_and(|at| now < at) {
                    return;
                }
                self.refusals += 1;
                self.not_before = Some(now + REFUSAL_REST * self.refusals);
                self.no_connections |= self.refusals >= MOST_REFUSALS;
            }
            // Another try would be a penalty, or the user's account locked.
            Refusal::Login => {
                self.opening.pop();
                self.refusals += 1;
                self.no_connections = true;
            }
        }
    }

    /// Whether the rate that the user set held data back for most of the time since the last
    /// look. To be told before [`ConcurrencyController::sample`].
    pub fn set_throttled(&mut self, throttled: bool) {
        self.throttled = throttled;
    }

    /// The last addition is on trial.
    pub fn is_trying(&self) -> bool {
        self.trial.is_some()
    }

    /// What the last addition that was judged has brought.
    pub fn tried(&self) -> Option<TrialResult> {
        self.tried
    }

    /// What is worth knowing the next time, at `now` seconds since 1970.
    pub fn learned(&self, now: u64) -> Option<Learned> {
        let rtt = self.measure.trip()?;
        let (mut connections, mut channels) = self.counts;
        // Of what was added last nothing is known yet.
        if let Some(trial) = &self.trial {
            connections = connections.min(trial.had()).max(1);
            if trial.adds_channels() {
                channels = channels.min(self.planned.1).max(1);
            }
        }
        let over = self.rates.len() >= 3;
        over.then(|| Learned {
            direction: self.config.direction,
            connections,
            channels,
            rate: self.usual_rate() as u64,
            rtt_us: u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX),
            at: now,
        })
    }

    /// Bytes a second in the later half of what is kept, behind slow start, and without the last
    /// interval, in which little may have been left.
    fn usual_rate(&self) -> f64 {
        let half = self.goodput.len() / 2 + 1;
        let late = self.goodput.get(1..half).unwrap_or_default();
        late.iter().sum::<f64>() / late.len().max(1) as f64
    }

    fn trip(&self) -> Duration {
        self.measure.trip().unwrap_or_default()
    }

    fn count(&mut self, evidence: &Evidence) {
        self.channels.clear();
        for lane in &evidence.lanes {
            *self.channels.entry(lane.lane.connection).or_default() += 1;
        }
        let connections = evidence.connections.len() as u32;
        let most = self.channels.values().copied().max().unwrap_or(1);
        self.counts = (connections.max(1), most.max(1));
    }
}
