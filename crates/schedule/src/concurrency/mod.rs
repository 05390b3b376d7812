//! Decides the number of connections and channels of a transfer.

mod choose;
mod evidence;
mod figures;
mod history;
mod learned;
mod limiter_inputs;
mod logins;
mod losses;
mod many;
mod plan;
mod start;
mod trial;
mod verdict;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::history::IntervalHistory;
use self::limiter_inputs::LimiterInputs;
use self::logins::LoginPacing;
use self::plan::InitialConcurrency;
use self::trial::ConcurrencyTrialHistory;
use crate::{ConnectionId, LaneId};

pub use diagnose::{Limiter, LimiterEvidence};
pub use evidence::{ConnectionSample, LaneSample, RunMeasurements, TcpSample, TransferDirection};
pub use learned::LearnedConcurrency;
pub use many::begins_with;
pub use plan::USUAL_RATE;
pub use start::{CopyTimeModel, LoginCost, MOST_AT_START};
pub use trial::TrialResult;
pub use verdict::LimiterLog;

/// Settings of a [`ConcurrencyController`]: the user's flags, limits of both machines, and results
/// of earlier runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConcurrencyConfig {
    /// Direction of the transfer.
    pub direction: TransferDirection,
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
    pub fn new(direction: TransferDirection) -> Self {
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
pub enum LaneOpenFailure {
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
    history: IntervalHistory,
    logins: LoginPacing,
    plan: InitialConcurrency,
    trials: ConcurrencyTrialHistory,
    next: Option<Instant>,
    /// Number of channels of each connection, and the most that one may have after a refusal.
    channels: BTreeMap<ConnectionId, u32>,
    channels_refused: Option<u32>,
    /// Number of connections, and the most channels on one of them.
    counts: (u32, u32),
    /// The user's rate limit held data back for most of the last interval.
    throttled: bool,
    /// [`RunMeasurements::start_up`] at the last sample, and [`RunMeasurements::starting`].
    start_up: Duration,
    starting: u32,
}

impl ConcurrencyController {
    /// Creates a controller that knows only the settings.
    pub fn new(config: ConcurrencyConfig) -> Self {
        Self {
            config,
            history: IntervalHistory::default(),
            logins: LoginPacing::new(config.interactive),
            plan: InitialConcurrency::default(),
            trials: ConcurrencyTrialHistory::default(),
            next: None,
            channels: BTreeMap::new(),
            channels_refused: None,
            counts: (1, 1),
            throttled: false,
            start_up: Duration::ZERO,
            starting: 0,
        }
    }

    /// Returns the interval for [`ConcurrencyController::sample`]: two round trips, 0.1 to 1.2 s.
    pub fn interval(&self) -> Duration {
        let rtt = self.history.trip();
        (2 * rtt).clamp(Duration::from_millis(100), Duration::from_millis(1200))
    }

    /// Returns the time of the next sample; `None` means at once.
    pub fn next_sample(&self) -> Option<Instant> {
        self.next
    }

    /// Returns true if there has been a sample.
    pub fn has_sampled(&self) -> bool {
        self.history.has_begun()
    }

    /// Handles a sample and returns the changes to make; first called when the first connection is
    /// authenticated.
    pub fn sample(&mut self, evidence: &RunMeasurements) -> Vec<ConcurrencyChange> {
        let figures = self.history.measure(self.config.direction, evidence);
        self.next = Some(evidence.now + self.interval());
        (self.start_up, self.starting) = (evidence.start_up, evidence.starting);
        self.count(evidence);
        let Some(figures) = figures else {
            self.make_plan(evidence);
            self.plan_for_many();
            return self.carry_out(evidence);
        };
        if self.plan.is_outdated(self.history.trip()) {
            self.make_plan(evidence);
        }
        self.history.add(figures);
        self.plan_start(evidence);
        self.plan_for_many();
        if self.config.channels.is_none() && self.outgrows_window(evidence) {
            let most = plan::windows_of_buffer(&self.config);
            let doubled = (self.counts.1 * 2).min(most);
            self.plan.raise_channels(doubled.max(2));
        }
        self.trials.miss_channels(&self.history);
        let mut changes = self.carry_out(evidence);
        if changes.is_empty() {
            changes = match self.trials.take() {
                Some(trial) => self.judge(trial, evidence),
                None => self.choose(evidence),
            };
        }
        changes
    }

    fn make_plan(&mut self, evidence: &RunMeasurements) {
        let costs = self.costs();
        let (config, history) = (&self.config, &self.history);
        if self.plan.make(config, history, evidence, costs) {
            // The server accepted that many the last time.
            self.logins.are_known();
        }
    }

    /// Raises the plan while the copy is starting and more files become known: with the first
    /// hundred names of a listing the rest looked too small for several connections.
    fn plan_start(&mut self, evidence: &RunMeasurements) {
        let connections = self.start_for(evidence.remaining.unwrap_or_default());
        self.plan.raise_connections(&self.config, connections);
    }

    /// Returns the number of connections to begin with for `left` bytes; one if so much was
    /// measured that the size no longer decides.
    fn start_for(&self, left: u64) -> u32 {
        let starting =
            self.history.intervals() < history::RECENT && self.trials.current().is_none();
        match starting {
            true => {
                let (config, history) = (&self.config, &self.history);
                self.plan.start_for(config, history, left, self.start_up)
            }
            false => 1,
        }
    }

    /// Raises the plan to the number that the announced files are worth.
    fn plan_for_many(&mut self) {
        let connections = self.for_many();
        self.plan.raise_for_many(&self.config, connections);
    }

    /// Returns the number of connections that the announced files are worth.
    fn for_many(&self) -> u32 {
        let may = self.begins_at_once();
        self.plan.for_many(&self.config, &self.history, may)
    }

    /// Returns true if connections may be opened before the effect of one is known.
    fn begins_at_once(&self) -> bool {
        let fixed = self.config.connections.is_some() || self.config.limit.is_some();
        plan::is_far_away(&self.history) && !fixed && !self.logins.are_over()
    }

    /// Announces `files` files with `bytes` bytes; if the plan changes, the next sample is due at
    /// once.
    pub fn expect(&mut self, files: u64, bytes: u64) {
        if self.plan.expect(files, bytes) {
            let starts = self.start_for(self.plan.announced_bytes());
            if self.plan.connections() < self.for_many().max(starts) {
                self.next = None;
            }
        }
    }

    /// Returns true if the announced files are, or may become, worth several initial connections,
    /// and further logins are possible.
    pub fn may_begin_with_several(&self) -> bool {
        self.plan.expects_files() && self.begins_at_once()
    }

    /// Returns the resource that limits the transfer now.
    pub fn limiter(&self) -> Limiter {
        self.situation().limiter()
    }

    /// Returns the figures behind [`ConcurrencyController::limiter`].
    pub fn limiter_evidence(&self) -> LimiterEvidence {
        *self.history.figures().shown()
    }

    fn situation(&self) -> LimiterInputs<'_> {
        let (sated, alone) = (self.trials.is_sated(), self.logins.are_over());
        let is = (sated, alone, self.throttled);
        LimiterInputs::new(&self.config, &self.history, is)
    }

    /// Handles the opening of a requested connection with its first channel; returns planned
    /// changes that had to wait for it.
    #[must_use]
    pub fn connection_opened(&mut self, now: Instant, id: ConnectionId) -> Vec<ConcurrencyChange> {
        self.logins.opened();
        self.counts.0 += 1;
        if let Some(trial) = self.trials.current_mut() {
            trial.is_in_place(now);
        }
        let mut changes = Vec::new();
        if self.trials.current().is_none() {
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
    pub fn refused(&mut self, now: Instant, refusal: LaneOpenFailure) {
        match refusal {
            LaneOpenFailure::Channel(connection) => {
                // Refused channels were counted with the others at the last sample.
                let counted = self.channels.entry(connection).or_insert(2);
                *counted = counted.saturating_sub(1).max(1);
                let had = *counted;
                let least = self.channels_refused.map_or(had, |n| n.min(had));
                self.channels_refused = Some(least.max(1));
                if let Some(trial) = self.trials.current_mut() {
                    trial.refused(connection);
                }
            }
            LaneOpenFailure::Connection => self.logins.connection_refused(now),
            LaneOpenFailure::Login => self.logins.login_refused(),
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
            ..self.logins.cost()
        }
    }

    /// Returns true while the last addition is on trial.
    pub fn is_trying(&self) -> bool {
        self.trials.current().is_some()
    }

    /// Returns the result of the last trial that was judged.
    pub fn tried(&self) -> Option<TrialResult> {
        self.trials.result()
    }

    /// Returns the result to remember for the next run, at `now` seconds since 1970.
    pub fn learned(&self, now: u64) -> Option<LearnedConcurrency> {
        let rtt = self.history.known_trip()?;
        let (mut connections, mut channels) = self.counts;
        // The last addition has not been judged yet.
        if let Some(trial) = self.trials.current() {
            connections = connections.min(trial.had()).max(1);
            if trial.adds_channels() {
                channels = channels.min(self.plan.channels()).max(1);
            }
        }
        let over = self.history.intervals() >= 3;
        over.then(|| LearnedConcurrency {
            direction: self.config.direction,
            connections,
            channels,
            rate: self.history.usual_rate() as u64,
            rtt_us: u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX),
            at: now,
        })
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
