//! Packets that are lost at random: a connection of CUBIC keeps a window of a few packets whatever
//! else there is, so each brings as much as the first.

use super::trial::Trial;
use super::{ConcurrencyChange, ConcurrencyController, Evidence, Limiter};

/// So much more is lost where the connections crowd each other out: at random it stays what it
/// was.
const RISEN: f64 = 2.5;
const RISEN_BY: f64 = 0.02;
/// What all of them bring must be so many times the best that there was before. That may have been
/// slow start on its way to the first loss, which is several times what stays.
const BEYOND: f64 = 1.5;
/// Looks, of two round trips each: so long losses are told of that a full queue has made.
const LATELY: u32 = 4;
/// So few are kept whatever they bring: what there was before is not known well enough.
const FEW: usize = 8;
/// So many at most without a judgement where they bear losses. On 1 Gbit/s and 100 ms eight moved
/// 104 MB/s, ten 113; sixteen overfilled the queue in their slow start.
const BORNE: u32 = 12;

impl ConcurrencyController {
    /// Packets are lost at random, as far as can be told: each connection brings its share.
    ///
    /// Those that bear losses gain by company too. BBR holds its window for a round trip at each
    /// loss, so that its slow start doubles every second one, and a lost packet stops all channels
    /// of its connection: of 1 GiB at 1 % and 100 ms five connections took two seconds to half of
    /// the rate.
    pub(super) fn loses_at_random(&self) -> bool {
        let borne = self.figures.bears_losses() && !self.figures.queueing();
        self.limiter() == Limiter::Loss || (borne && !self.has_queued_lately())
    }

    /// Begins to open connections since losses hold the transfer back.
    pub(super) fn meet_losses(&mut self, evidence: &Evidence) -> Vec<ConcurrencyChange> {
        let changes = self.more_for_losses(evidence);
        if !changes.is_empty() {
            let mut trial = Trial::new(evidence.now, &changes, self.work(), self.counts.0);
            let best = self.rates.iter().copied().fold(0.0, f64::max);
            trial.losses = Some((self.figures.shown.loss, best));
            self.trial = Some(trial);
        }
        changes
    }

    /// As many as may log in at once, as long as the evidence is the same: to wait each time
    /// until the last ones are judged took five seconds of ten.
    pub(super) fn more_for_losses(&mut self, evidence: &Evidence) -> Vec<ConcurrencyChange> {
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

    /// What is on the way waits for packets that were lost, which looks like a server that takes its
    /// time.
    pub(super) fn has_lost_lately(&self) -> bool {
        self.since_loss < 2 * LATELY
    }

    /// What is lost now may be what the queue could not hold.
    pub(super) fn has_queued_lately(&self) -> bool {
        self.since_queue < LATELY
    }

    /// More is lost than the `before`: not at random.
    pub(super) fn has_risen(&self, before: f64) -> bool {
        self.figures.shown.loss > before * RISEN + RISEN_BY
    }

    /// Nothing speaks against what was added: each connection has its share.
    pub(super) fn bears_more(&self, (before, best): (f64, f64)) -> bool {
        let few = self.counts.0 as usize <= FEW;
        !self.has_risen(before) && !self.figures.queueing() && (few || self.work() > BEYOND * best)
    }
}
