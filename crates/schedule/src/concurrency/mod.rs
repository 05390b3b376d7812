//! Decides the number of connections and channels of a transfer.

mod choose;
mod evidence;
mod figures;
mod learned;
mod losses;
mod many;
mod start;
mod trial;
mod verdict;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::figures::{CounterDeltas, IntervalRates};
use self::trial::Trial;
use crate::{ConnectionId, LaneId};

pub use choose::USUAL_RATE;
pub use diagnose::{Limiter, LimiterEvidence};
pub use evidence::{ConnectionSample, Direction, LaneSample, RunMeasurements, TcpSample};
pub use learned::LearnedConcurrency;
pub use many::begins_with;
pub use start::{LoginCost, MOST_AT_START, StartModel};
pub use trial::TrialResult;
pub use verdict::LimiterLog;

/// Settings of a [`ConcurrencyController`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConcurrencyConfig {
    /// Direction of the transfer.
    pub direction: Direction,
    /// Number of connections, if fixed by the user.
    pub connections: Option<u32>,
    /// Number of channels per connection, if fixed by the user.
    pub channels: Option<u32>,
    /// Maximum number of connections.
    pub most_connections: u32,
    /// Maximum number of connections on paths with random loss, where each brings its share only.
    pub most_lossy: u32,
    /// Maximum number of channels per connection: OpenSSH's MaxSessions is 10.
    pub most_channels: u32,
    /// Each login costs the user a touch, a code or a password: open one connection only.
    pub interactive: bool,
    /// Number of processors of this machine.
    pub processors: u32,
    /// The far end is this machine as well, so each connection takes its processor time twice.
    pub one_machine: bool,
    /// Maximum size in bytes of a local TCP buffer: the last figure of `net.ipv4.tcp_wmem` (up) or
    /// `tcp_rmem` (down).
    pub buffer: Option<u64>,
    /// Rate limit of the user in bytes per second.
    pub limit: Option<u64>,
    /// The copy yields to other traffic, which is what throttles it.
    pub background: bool,
    /// Result of an earlier run, and the present time in seconds since 1970.
    pub learned: Option<(LearnedConcurrency, u64)>,
    /// Cost of further logins on this server in earlier runs.
    pub login_cost: LoginCost,
    /// Number of further connections that wait for their login.
    pub preconnected: u32,
}

impl ConcurrencyConfig {
    /// Returns the defaults.
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
            login_cost: LoginCost::default(),
            preconnected: 0,
        }
    }
}

/// Change in the number of connections or lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConcurrencyChange {
    /// Open one more connection with one lane. Report the result by
    /// [`ConcurrencyController::connection_opened`] or [`ConcurrencyController::refused`].
    AddConnection,
    /// Open one more lane on this connection. Report a refusal by
    /// [`ConcurrencyController::refused`].
    AddChannel(ConnectionId),
    /// Give this connection no more work, and close it when it has none.
    RetireConnection(ConnectionId),
    /// Give this lane no more work, and close it when it has none.
    RetireLane(LaneId),
}

/// Reason why a connection or channel was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The connection was closed or reset before the login: MaxStartups, a penalty, a firewall.
    Connection,
    /// The server refused the login.
    Login,
    /// The server refused the channel (MaxSessions).
    Channel(ConnectionId),
}

/// Decides from measurements how many connections and channels there should be.
///
/// Pure; to be called every [`ConcurrencyController::interval`]. The controller starts with the
/// first connection, adds connections or channels if something other than the path limits the
/// transfer, measures whether the addition paid, and closes those that did not. If the evidence is
/// unclear, the goodput decides.
#[derive(Debug)]
pub struct ConcurrencyController {
    config: ConcurrencyConfig,
    measure: CounterDeltas,
    began: Option<Instant>,
    next: Option<Instant>,
    /// Work of the last intervals, latest first.
    rates: Vec<f64>,
    figures: IntervalRates,
    /// Number of samples since the path's queue was seen to fill.
    since_queue: u32,
    /// Number of samples since packets were lost.
    since_loss: u32,
    trial: Option<Trial>,
    /// Request times of connections that are not open yet.
    opening: Vec<Instant>,
    /// Number of connections that may be opening at once: doubles when a whole batch has come, one
    /// after a refusal.
    at_once: u32,
    opened: u32,
    refusals: u32,
    /// Time before which no connection is requested.
    not_before: Option<Instant>,
    no_connections: bool,
    /// Number of channels that a connection has at most, after a refusal.
    channels_refused: Option<u32>,
    /// Planned number of connections, and of channels on each, without a trial.
    planned: (u32, u32),
    /// Round trip for which `planned` was computed.
    planned_for: Duration,
    backoff: Duration,
    /// Time before which no trial starts.
    rest_until: Option<Instant>,
    /// The last trial showed that more brings nothing.
    sated: bool,
    /// Work per second with the channels that were closed last.
    gave_back: Option<f64>,
    /// The last trial brought its share, so the next step may be as large.
    bold: bool,
    best: f64,
    counts: (u32, u32),
    /// The user's rate limit held data back for most of the last interval.
    throttled: bool,
    /// Result of the last trial.
    tried: Option<TrialResult>,
    channels: BTreeMap<ConnectionId, u32>,
    /// Bytes announced for the session in advance.
    expected: u64,
    /// Largest announced number of files, and their bytes.
    announced: (u64, u64),
    /// Time until a further connection carries data, and the connections that start, at the last sample.
    start_up: Duration,
    starting: u32,
    /// Bytes per second of the last intervals, latest first.
    goodput: Vec<f64>,
    /// Refusals of this run.
    login_cost: LoginCost,
}

/// Number of logins that may be in progress at an unknown server: MaxStartups drops from ten on,
/// and others may be logging in as well.
const AT_ONCE: u32 = 6;
const MOST_AT_ONCE: u32 = 8;
/// Number of refusals after which no connection is requested again.
const MOST_REFUSALS: u32 = 2;
/// Number of intervals whose mean rate is remembered for the next run.
const LEARNS_FROM: usize = 32;
const REFUSAL_REST: Duration = Duration::from_secs(3);
const BACKOFF: Duration = Duration::from_secs(8);

impl ConcurrencyController {
    /// Creates a controller that knows only the settings.
    pub fn new(config: ConcurrencyConfig) -> Self {
        Self {
            config,
            measure: CounterDeltas::default(),
            began: None,
            next: None,
            rates: Vec::new(),
            figures: IntervalRates::default(),
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
            announced: (0, 0),
            start_up: Duration::ZERO,
            starting: 0,
            goodput: Vec::new(),
            login_cost: LoginCost::default(),
        }
    }

    /// Returns the interval for [`ConcurrencyController::sample`]: two round trips, 0.1 to 1.2 s.
    pub fn interval(&self) -> Duration {
        let rtt = self.trip();
        (2 * rtt).clamp(Duration::from_millis(100), Duration::from_millis(1200))
    }

    /// Returns the time of the next sample; `None` means at once.
    pub fn next_sample(&self) -> Option<Instant> {
        self.next
    }

    /// Returns true if there has been a sample.
    pub fn has_sampled(&self) -> bool {
        self.began.is_some()
    }

    /// Handles a sample and returns the changes to make; first called when the first connection is
    /// authenticated.
    pub fn sample(&mut self, evidence: &RunMeasurements) -> Vec<ConcurrencyChange> {
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
            // The path was not known to be long at the first sample.
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
        self.plan_start(evidence);
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

    /// Handles the opening of a requested connection with its first channel; returns planned
    /// changes that had to wait for it.
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
        // Waiting until the next sample, slow start would reach the window of the first channel.
        let channels = match self.start_up > choose::SLOW_START_UP {
            true => 1,
            false => self.wanted_channels(),
        };
        changes.extend((1..channels).map(|_| ConcurrencyChange::AddChannel(id)));
        changes
    }

    /// Handles the refusal of a requested connection or channel.
    pub fn refused(&mut self, now: Instant, refusal: Refusal) {
        match refusal {
            Refusal::Channel(connection) => {
                // Refused channels were counted with the others at the last sample.
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
                self.login_cost.refused_connection = true;
                self.opening.pop();
                self.at_once = 1;
                // Further refusals of connections requested together with a refused one say nothing
                // new.
                if self.not_before.is_some_and(|at| now < at) {
                    return;
                }
                self.refusals += 1;
                self.not_before = Some(now + REFUSAL_REST * self.refusals);
                self.no_connections |= self.refusals >= MOST_REFUSALS;
            }
            // Another attempt could lead to a penalty or a locked account.
            Refusal::Login => {
                self.login_cost.refused_login = true;
                self.opening.pop();
                self.refusals += 1;
                self.no_connections = true;
            }
        }
    }

    /// Records if the user's rate limit held data back for most of the time since the last sample.
    /// Call it before [`ConcurrencyController::sample`].
    pub fn set_throttled(&mut self, throttled: bool) {
        self.throttled = throttled;
    }

    /// Returns what further logins cost in this run, to remember for the next.
    pub fn login_cost(&self) -> LoginCost {
        LoginCost {
            start_up_ms: u32::try_from(self.start_up.as_millis()).unwrap_or(u32::MAX),
            ..self.login_cost
        }
    }

    /// Returns true while the last addition is on trial.
    pub fn is_trying(&self) -> bool {
        self.trial.is_some()
    }

    /// Returns the result of the last trial that was judged.
    pub fn tried(&self) -> Option<TrialResult> {
        self.tried
    }

    /// Returns the result to remember for the next run, at `now` seconds since 1970.
    pub fn learned(&self, now: u64) -> Option<LearnedConcurrency> {
        let rtt = self.measure.trip()?;
        let (mut connections, mut channels) = self.counts;
        // The last addition has not been judged yet.
        if let Some(trial) = &self.trial {
            connections = connections.min(trial.had()).max(1);
            if trial.adds_channels() {
                channels = channels.min(self.planned.1).max(1);
            }
        }
        let over = self.rates.len() >= 3;
        over.then(|| LearnedConcurrency {
            direction: self.config.direction,
            connections,
            channels,
            rate: self.usual_rate() as u64,
            rtt_us: u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX),
            at: now,
        })
    }

    /// Returns the mean of the later half of the kept rates in bytes per second, which excludes
    /// slow start, without the last interval, in which little may have been left.
    fn usual_rate(&self) -> f64 {
        let half = self.goodput.len() / 2 + 1;
        let late = self.goodput.get(1..half).unwrap_or_default();
        late.iter().sum::<f64>() / late.len().max(1) as f64
    }

    fn trip(&self) -> Duration {
        self.measure.trip().unwrap_or_default()
    }

    fn count(&mut self, evidence: &RunMeasurements) {
        self.channels.clear();
        for lane in &evidence.lanes {
            *self.channels.entry(lane.lane.connection).or_default() += 1;
        }
        let connections = evidence.connections.len() as u32;
        let most = self.channels.values().copied().max().unwrap_or(1);
        self.counts = (connections.max(1), most.max(1));
    }
}
