//! Adds connections on paths with random packet loss: each connection of CUBIC keeps a window of a
//! few packets there, independent of the others, so each brings as much as the first.

use super::trial::Trial;
use super::{ConcurrencyChange, ConcurrencyController, Limiter, RunMeasurements};

/// Rise of the loss (factor and summand) from which connections are assumed to crowd each other
/// out; random loss stays constant.
const RISEN: f64 = 2.5;
const RISEN_BY: f64 = 0.02;
/// Factor by which all connections together must exceed the best earlier rate. That rate may be
/// from slow start before its first loss, several times the lasting one.
const BEYOND: f64 = 1.5;
/// Number of samples, of two round trips each, in which losses of an earlier full queue are still
/// reported.
const LATELY: u32 = 4;
/// Number of connections that are kept regardless of their gain, since the earlier rate is not
/// known well enough.
const FEW: usize = 8;
/// Maximum number of connections without a judgement if they tolerate losses. On 1 Gbit/s and 100
/// ms eight moved 104 MB/s, ten 113; sixteen overfilled the queue in their slow start.
const BORNE: u32 = 12;

impl ConcurrencyController {
    /// Returns true if packets seem to be lost at random, so that each connection brings its share.
    ///
    /// Connections that tolerate losses gain from more connections too. BBR holds its window for a
    /// round trip at each loss, so that its slow start doubles only every second one, and a lost
    /// packet stops all channels of its connection: at 1 GiB, 1 % and 100 ms, five connections took
    /// two seconds to reach half of the rate.
    pub(super) fn loses_at_random(&self) -> bool {
        let borne = self.figures.bears_losses() && !self.figures.queueing();
        self.limiter() == Limiter::Loss || (borne && !self.has_queued_lately())
    }

    /// Starts to add connections because of losses.
    pub(super) fn meet_losses(&mut self, evidence: &RunMeasurements) -> Vec<ConcurrencyChange> {
        let changes = self.more_for_losses(evidence);
        if !changes.is_empty() {
            let mut trial = Trial::new(evidence.now, &changes, self.work(), self.counts.0);
            let best = self.rates.iter().copied().fold(0.0, f64::max);
            trial.losses = Some((self.figures.shown.loss, best));
            self.trial = Some(trial);
        }
        changes
    }

    /// Adds as many connections as may log in at once while the evidence holds: waiting each time
    /// until the last ones are judged took five of ten seconds.
    pub(super) fn more_for_losses(&mut self, evidence: &RunMeasurements) -> Vec<ConcurrencyChange> {
        let mut changes = Vec::new();
        let holds = self.loses_at_random() && self.config.connections.is_none();
        if holds && self.has_cpu() && self.lasts(evidence) > self.costs() {
            let have = evidence.connections.len() + self.opening.len();
            let most = match self.figures.bears_losses() {
                true => self.config.most_connections.min(BORNE),
                false => self.config.most_lossy,
            };
            let room = most.saturating_sub(have as u32);
            self.add_connections(evidence.now, room, &mut changes);
        }
        changes
    }

    /// Returns true if packets were lost recently: data in flight then wait for lost packets, which
    /// looks like a slow server.
    pub(super) fn has_lost_lately(&self) -> bool {
        self.since_loss < 2 * LATELY
    }

    /// Returns true if the queue filled recently, so that present losses may be overflow of the
    /// queue.
    pub(super) fn has_queued_lately(&self) -> bool {
        self.since_queue < LATELY
    }

    /// Returns true if the loss has risen from `before`, so it is not random.
    pub(super) fn has_risen(&self, before: f64) -> bool {
        self.figures.shown.loss > before * RISEN + RISEN_BY
    }

    /// Returns true if the added connections do no harm: each brings its share.
    pub(super) fn bears_more(&self, (before, best): (f64, f64)) -> bool {
        let few = self.counts.0 as usize <= FEW;
        !self.has_risen(before) && !self.figures.queueing() && (few || self.work() > BEYOND * best)
    }
}
