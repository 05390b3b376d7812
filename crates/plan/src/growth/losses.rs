//! Packets that are lost at random: a connection of CUBIC keeps a window of a few packets whatever
//! else there is, so each brings as much as the first.

use super::trial::Trial;
use super::{Change, Evidence, Growth, Limiter};

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

impl Growth {
    /// Begins to open connections since losses hold the transfer back.
    pub(super) fn meet_losses(&mut self, evidence: &Evidence) -> Vec<Change> {
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
    pub(super) fn more_for_losses(&mut self, evidence: &Evidence) -> Vec<Change> {
        let mut changes = Vec::new();
        let holds = self.limiter() == Limiter::Loss && self.config.connections.is_none();
        if holds && self.has_cpu() && self.lasts(evidence) > self.costs() {
            let have = evidence.connections.len() + self.opening.len();
            let room = self.config.most_lossy.saturating_sub(have as u32);
            self.add_connections(evidence.now, room, &mut changes);
        }
        changes
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
