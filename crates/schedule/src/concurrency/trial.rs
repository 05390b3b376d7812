use std::time::{Duration, Instant};

use super::history::IntervalHistory;
use super::{ConcurrencyChange, RunMeasurements};
use crate::{ConnectionId, LaneId};

/// A change whose effect is being measured.
#[derive(Debug)]
pub(super) struct ConcurrencyTrial {
    /// Time when the last addition was in place.
    began: Instant,
    asked: Instant,
    /// Work per second before the change.
    before: f64,
    connections: u32,
    /// Number of connections before the change.
    had: u32,
    /// For additions because of losses: the loss before, and the best work per second so far.
    losses: Option<(f64, f64)>,
    channels: Vec<ConnectionId>,
}

/// Result of a trial of added connections or channels. They stay if the goodput rose by 5 % or
/// more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrialResult {
    /// Number of connections before the addition.
    pub had: u32,
    /// Number of connections with the addition.
    pub connections: u32,
    /// Number of channels that were added to existing connections.
    pub channels: u32,
    /// Ratio of the goodput with the addition to the goodput before.
    pub gain: f64,
}

impl TrialResult {
    /// Returns true if the gain is large enough to keep the addition.
    pub fn paid(&self) -> bool {
        self.gain >= PAYS
    }
}

/// Minimum gain for keeping an addition.
const PAYS: f64 = 1.05;
/// Share of a proportional gain from which the next step is as bold.
const PROPORTION: f64 = 0.5;
/// Longest wait for a connection that does not come.
const LONGEST: Duration = Duration::from_secs(20);

impl ConcurrencyTrial {
    pub(super) fn new(now: Instant, changes: &[ConcurrencyChange], before: f64, had: u32) -> Self {
        let mut trial = Self {
            began: now,
            asked: now,
            before,
            connections: 0,
            had,
            losses: None,
            channels: Vec::new(),
        };
        trial.add(changes);
        trial
    }

    /// Makes it a trial of connections that are added because of losses: the loss before, and the
    /// best work per second so far.
    pub(super) fn because_of_losses(self, before: f64, best: f64) -> Self {
        Self {
            losses: Some((before, best)),
            ..self
        }
    }

    /// Returns the loss before, and the best work per second, if connections were added because of
    /// losses.
    pub(super) fn losses(&self) -> Option<(f64, f64)> {
        self.losses
    }

    /// Records that an addition is in place.
    pub(super) fn is_in_place(&mut self, now: Instant) {
        self.began = now;
    }

    /// Returns the number of connections before the change.
    pub(super) fn had(&self) -> u32 {
        self.had
    }

    /// Returns true if channels were added to existing connections.
    pub(super) fn adds_channels(&self) -> bool {
        !self.channels.is_empty()
    }

    /// Adds further changes to the trial.
    pub(super) fn add(&mut self, changes: &[ConcurrencyChange]) {
        for change in changes {
            match change {
                ConcurrencyChange::AddConnection => self.connections += 1,
                ConcurrencyChange::AddChannel(connection) => self.channels.push(*connection),
                ConcurrencyChange::RetireConnection(_) | ConcurrencyChange::RetireLane(_) => {}
            }
        }
    }

    /// Removes a refused channel from the trial.
    pub(super) fn refused(&mut self, connection: ConnectionId) {
        if let Some(at) = self.channels.iter().position(|c| *c == connection) {
            self.channels.remove(at);
        }
    }

    /// Measures the gain, and if it is proportional to the addition; `None` if it is too early to
    /// tell.
    pub(super) fn measured(
        &self,
        evidence: &RunMeasurements,
        history: &IntervalHistory,
    ) -> Option<(TrialResult, bool)> {
        let rtt = history.trip();
        let since = evidence.now.saturating_duration_since(self.began);
        // A new connection starts slowly; a channel on a fast connection is fast at once.
        let (least, most) = match (self.connections, self.losses) {
            (0, _) => (4 * rtt, 8 * rtt),
            (_, None) => (6 * rtt, 16 * rtt),
            // Until slow start has met its first losses.
            (_, Some(_)) => (12 * rtt, 24 * rtt),
        };
        let floor = Duration::from_millis(300);
        let early =
            since < least.max(floor) || (!history.is_level() && since < most.max(2 * floor));
        let gain = match self.before > 0.0 {
            true => history.work() / self.before,
            false => 1.0,
        };
        let had = match self.connections {
            0 => {
                let lanes = evidence.lanes.len();
                lanes.saturating_sub(self.channels.len()).max(1) as f64
            }
            _ => f64::from(self.had.max(1)),
        };
        let added = f64::from(self.connections) + self.channels.len() as f64;
        let proportional = gain >= 1.0 + PROPORTION * added / had;
        if early && !proportional {
            return None;
        }
        let result = TrialResult {
            had: self.had,
            connections: self.had + self.connections,
            channels: self.channels.len() as u32,
            gain,
        };
        Some((result, proportional))
    }

    /// Returns true if the last addition has been awaited for long.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.asked) > LONGEST
    }

    /// Returns changes that retire everything that was added.
    pub(super) fn give_back(&self, evidence: &RunMeasurements) -> Vec<ConcurrencyChange> {
        let mut changes = retire(evidence, self.connections);
        let mut lanes: Vec<LaneId> = evidence.lanes.iter().map(|l| l.lane).collect();
        for connection in &self.channels {
            let mut of = lanes.iter().rposition(|l| l.connection == *connection);
            if lanes.iter().filter(|l| l.connection == *connection).count() < 2 {
                of = None;
            }
            if let Some(at) = of {
                changes.push(ConcurrencyChange::RetireLane(lanes.remove(at)));
            }
        }
        changes
    }

    /// Returns the work per second to miss, if only channels are given back.
    pub(super) fn to_miss(&self, work: f64) -> Option<f64> {
        (self.connections == 0).then(|| work.max(self.before))
    }

    /// Returns the number of added connections that the gain does not need, less one as a margin.
    pub(super) fn surplus(&self, gain: f64) -> u32 {
        let needed = (f64::from(self.had) * gain).ceil() as u32 + 1;
        (self.had + self.connections).saturating_sub(needed)
    }
}

/// Returns changes that retire `count` connections, newest first; one always stays.
pub(super) fn retire(evidence: &RunMeasurements, count: u32) -> Vec<ConcurrencyChange> {
    let spare = evidence.connections.len().saturating_sub(1);
    let newest = evidence.connections.iter().rev();
    let those = newest.take((count as usize).min(spare));
    those
        .map(|c| ConcurrencyChange::RetireConnection(c.connection))
        .collect()
}

/// Share of the earlier work below which closed channels are opened again.
const MISSED: f64 = 0.9;
/// Time without a trial after one that did not pay, twice as long after each further one.
const BACKOFF: Duration = Duration::from_secs(8);
const MOST_BACKOFF: Duration = Duration::from_secs(120);

/// Trials of a controller: the present one, and what the earlier ones have shown.
#[derive(Debug)]
pub(super) struct ConcurrencyTrialHistory {
    now: Option<ConcurrencyTrial>,
    /// Result of the last trial.
    result: Option<TrialResult>,
    backoff: Duration,
    /// Time before which no trial starts.
    rest_until: Option<Instant>,
    /// The last trial showed that more brings nothing.
    sated: bool,
    /// Work per second with the channels that were closed last.
    gave_back: Option<f64>,
    /// The last trial brought its share, so the next step may be as large.
    bold: bool,
}

impl Default for ConcurrencyTrialHistory {
    fn default() -> Self {
        Self {
            now: None,
            result: None,
            backoff: BACKOFF,
            rest_until: None,
            sated: false,
            gave_back: None,
            bold: false,
        }
    }
}

impl ConcurrencyTrialHistory {
    /// Returns the present trial.
    pub(super) fn current(&self) -> Option<&ConcurrencyTrial> {
        self.now.as_ref()
    }

    pub(super) fn current_mut(&mut self) -> Option<&mut ConcurrencyTrial> {
        self.now.as_mut()
    }

    /// Takes the present trial out, to be judged.
    pub(super) fn take(&mut self) -> Option<ConcurrencyTrial> {
        self.now.take()
    }

    /// Starts or continues a trial.
    pub(super) fn go_on(&mut self, trial: ConcurrencyTrial) {
        self.now = Some(trial);
    }

    /// Returns the result of the last trial.
    pub(super) fn result(&self) -> Option<TrialResult> {
        self.result
    }

    /// Records the result of a trial, which brought its share or not (`proportional`).
    pub(super) fn judged(&mut self, result: TrialResult, proportional: bool) {
        self.bold = proportional;
        self.result = Some(result);
    }

    /// Records that the addition is kept.
    pub(super) fn kept(&mut self) {
        self.sated = false;
        self.gave_back = None;
        self.backoff = BACKOFF;
        self.rest_until = None;
    }

    /// Records that the path is full with fewer connections.
    pub(super) fn is_full(&mut self, now: Instant) {
        self.sated = true;
        self.rest_until = Some(now + self.backoff);
    }

    /// Records that the addition brought nothing; `gave_back` is the work with closed channels.
    pub(super) fn was_in_vain(&mut self, now: Instant, gave_back: Option<f64>) {
        self.is_full(now);
        self.backoff = (self.backoff * 2).min(MOST_BACKOFF);
        self.gave_back = gave_back;
    }

    /// Returns true if no trial may start yet.
    pub(super) fn rests(&self, now: Instant) -> bool {
        self.rest_until.is_some_and(|at| now < at)
    }

    pub(super) fn is_sated(&self) -> bool {
        self.sated
    }

    pub(super) fn is_bold(&self) -> bool {
        self.bold
    }

    /// Tries again if the rate has clearly fallen since channels were closed and the remaining
    /// windows are too small, so that the closed channels did pay.
    pub(super) fn miss_channels(&mut self, history: &IntervalHistory) -> bool {
        let Some(before) = self.gave_back else {
            return false;
        };
        let last = history.last(4);
        let slower = last.len() == 4 && last.iter().all(|rate| *rate < MISSED * before);
        let missed = slower && history.figures().shown().window_blocked > 0.3;
        if missed {
            self.gave_back = None;
            self.sated = false;
            self.rest_until = None;
        }
        missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LaneSample;

    /// Six channels got four more, of which one was refused; closing four of nine left five, whose
    /// windows do not fill the path.
    #[test]
    fn what_was_refused_is_not_given_back() {
        let now = testkit::sftp_model::epoch();
        let connection = ConnectionId(0);
        let changes = [ConcurrencyChange::AddChannel(connection); 4];
        let mut trial = ConcurrencyTrial::new(now, &changes, 100e6, 1);
        trial.refused(connection);
        let lane = |channel| LaneSample {
            lane: LaneId {
                connection,
                channel,
            },
            bytes: 0,
            window: 2 << 20,
            window_blocked: Duration::ZERO,
            in_flight: 0,
            unsent: 0,
            depth: 0,
            latency: Duration::ZERO,
            stalls_disk: 0,
            stalls_depth: 0,
        };
        let evidence = RunMeasurements {
            now,
            remaining: None,
            moved: 0,
            done: 0,
            cpu: Duration::ZERO,
            idle: None,
            wanted_cpu: None,
            silent: Duration::ZERO,
            start_up: Duration::ZERO,
            starting: 0,
            bears_losses: false,
            connections: Vec::new(),
            lanes: (0..9).map(lane).collect(),
        };
        assert_eq!(trial.give_back(&evidence).len(), 3);
    }

    #[test]
    fn channels_are_missed_where_windows_hold_what_is_left() {
        let missed = |rates: &[f64], window_blocked| {
            let mut trials = ConcurrencyTrialHistory::default();
            trials.was_in_vain(testkit::sftp_model::epoch(), Some(100e6));
            let missed = trials.miss_channels(&IntervalHistory::of(rates, window_blocked));
            assert_eq!(trials.gave_back.is_none(), missed);
            assert_eq!(trials.is_sated(), !missed);
            missed
        };
        assert!(missed(&[85e6; 5], 0.5));
        assert!(!missed(&[85e6; 5], 0.1), "something else holds it");
        assert!(!missed(&[85e6; 3], 0.5), "too early to tell");
        assert!(!missed(&[85e6, 85e6, 95e6, 85e6], 0.5));
    }
}
