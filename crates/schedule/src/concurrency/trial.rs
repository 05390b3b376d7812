use std::time::{Duration, Instant};

use super::{BACKOFF, ConcurrencyChange, ConcurrencyController, RunMeasurements};
use crate::{ConnectionId, LaneId};

/// A change whose effect is being measured.
#[derive(Debug)]
pub(super) struct Trial {
    /// Time when the last addition was in place.
    pub(super) began: Instant,
    asked: Instant,
    /// Work per second before the change.
    before: f64,
    connections: u32,
    /// Number of connections before the change.
    had: u32,
    /// For additions because of losses: the loss before, and the best work per second so far.
    pub(super) losses: Option<(f64, f64)>,
    channels: Vec<ConnectionId>,
}

/// Result of an addition.
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
/// Share of the earlier work below which closed channels are opened again.
const MISSED: f64 = 0.9;
/// Share of a proportional gain from which the next step is as bold.
const PROPORTION: f64 = 0.5;
/// Longest wait for a connection that does not come.
const LONGEST: Duration = Duration::from_secs(20);
const MOST_BACKOFF: Duration = Duration::from_secs(120);

impl Trial {
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

    /// Returns the number of added connections that the gain does not need, less one as a margin.
    fn surplus(&self, gain: f64) -> u32 {
        let needed = (f64::from(self.had) * gain).ceil() as u32 + 1;
        (self.had + self.connections).saturating_sub(needed)
    }
}

/// Returns changes that retire `count` connections, newest first; one always stays.
fn retire(evidence: &RunMeasurements, count: u32) -> Vec<ConcurrencyChange> {
    let spare = evidence.connections.len().saturating_sub(1);
    let newest = evidence.connections.iter().rev();
    let those = newest.take((count as usize).min(spare));
    those
        .map(|c| ConcurrencyChange::RetireConnection(c.connection))
        .collect()
}

impl ConcurrencyController {
    /// Judges the trial; continues it if it is too early to tell.
    pub(super) fn judge(
        &mut self,
        mut trial: Trial,
        evidence: &RunMeasurements,
    ) -> Vec<ConcurrencyChange> {
        let now = evidence.now;
        let rtt = self.trip();
        if trial
            .losses
            .is_some_and(|(before, _)| !self.has_risen(before))
        {
            let more = self.more_for_losses(evidence);
            if !more.is_empty() {
                trial.add(&more);
                self.trial = Some(trial);
                return more;
            }
        }
        let late = now.saturating_duration_since(trial.asked) > LONGEST;
        if !self.opening.is_empty() && !late {
            self.trial = Some(trial);
            return Vec::new();
        }
        let since = now.saturating_duration_since(trial.began);
        // A new connection starts slowly; a channel on a fast connection is fast at once.
        let (least, most) = match (trial.connections, trial.losses) {
            (0, _) => (4 * rtt, 8 * rtt),
            (_, None) => (6 * rtt, 16 * rtt),
            // Until slow start has met its first losses.
            (_, Some(_)) => (12 * rtt, 24 * rtt),
        };
        let floor = Duration::from_millis(300);
        let early = since < least.max(floor) || (!self.is_level() && since < most.max(2 * floor));
        let work = self.work();
        let gain = match trial.before > 0.0 {
            true => work / trial.before,
            false => 1.0,
        };
        let had = match trial.connections {
            0 => evidence
                .lanes
                .len()
                .saturating_sub(trial.channels.len())
                .max(1) as f64,
            _ => f64::from(trial.had.max(1)),
        };
        let added = f64::from(trial.connections) + trial.channels.len() as f64;
        let proportional = gain >= 1.0 + PROPORTION * added / had;
        if early && !proportional {
            self.trial = Some(trial);
            return Vec::new();
        }
        let kept = trial.losses.is_some_and(|losses| self.bears_more(losses));
        self.bold = proportional;
        self.tried = Some(TrialResult {
            had: trial.had,
            connections: trial.had + trial.connections,
            channels: trial.channels.len() as u32,
            gain,
        });
        if gain >= PAYS || kept {
            self.sated = false;
            self.gave_back = None;
            self.backoff = BACKOFF;
            self.rest_until = None;
            let surplus = trial.surplus(gain);
            if !proportional && !kept && surplus > 0 {
                // The path is full with fewer connections.
                self.sated = true;
                self.rest_until = Some(now + self.backoff);
                return retire(evidence, surplus);
            }
            return self.choose(evidence);
        }
        self.sated = true;
        self.rest_until = Some(now + self.backoff);
        self.backoff = (self.backoff * 2).min(MOST_BACKOFF);
        self.gave_back = (trial.connections == 0).then(|| work.max(trial.before));
        self.give_back(&trial, evidence)
    }

    /// Returns true if the rate has clearly fallen since channels were closed and the remaining
    /// windows are too small, so that the closed channels did pay.
    pub(super) fn is_missed(&mut self) -> bool {
        let Some(before) = self.gave_back else {
            return false;
        };
        let mut late = self.rates.iter().take(4);
        let slower = late.len() == 4 && late.all(|rate| *rate < MISSED * before);
        let missed = slower && self.figures.shown.window_blocked > 0.3;
        if missed {
            self.gave_back = None;
        }
        missed
    }

    fn give_back(&self, trial: &Trial, evidence: &RunMeasurements) -> Vec<ConcurrencyChange> {
        let mut changes = retire(evidence, trial.connections);
        let mut lanes: Vec<LaneId> = evidence.lanes.iter().map(|l| l.lane).collect();
        for connection in &trial.channels {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConcurrencyConfig, Direction, LaneSample, Refusal};

    /// Six channels got four more, of which one was refused; closing four of nine left five, whose
    /// windows do not fill the path.
    #[test]
    fn what_was_refused_is_not_given_back() {
        let now = testkit::sftp_model::epoch();
        let connection = ConnectionId(0);
        let mut growth = ConcurrencyController::new(ConcurrencyConfig::new(Direction::Up));
        let changes = [ConcurrencyChange::AddChannel(connection); 4];
        growth.trial = Some(Trial::new(now, &changes, 100e6, 1));
        growth.refused(now, Refusal::Channel(connection));
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
        let trial = growth.trial.take().unwrap();
        assert_eq!(growth.give_back(&trial, &evidence).len(), 3);
    }

    #[test]
    fn channels_are_missed_where_windows_hold_what_is_left() {
        let missed = |rates: &[f64], window_blocked| {
            let mut growth = ConcurrencyController::new(ConcurrencyConfig::new(Direction::Up));
            growth.gave_back = Some(100e6);
            growth.rates = rates.to_vec();
            growth.figures.shown.window_blocked = window_blocked;
            let missed = growth.is_missed();
            assert_eq!(growth.gave_back.is_none(), missed);
            missed
        };
        assert!(missed(&[85e6; 5], 0.5));
        assert!(!missed(&[85e6; 5], 0.1), "something else holds it");
        assert!(!missed(&[85e6; 3], 0.5), "too early to tell");
        assert!(!missed(&[85e6, 85e6, 95e6, 85e6], 0.5));
    }
}
