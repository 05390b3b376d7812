//! Rules about a policer whose rate is near the link's. Slow start fills the queue of the link before the
//! bucket is empty, so that the first losses look like those of the link.

use super::ScalingEvidence;
use super::policer::{ALIKE, POLICED_LOSS, is_spared};
use crate::diagnosis_finding::{Certainty, DataDirection, DiagnosisFinding};
use crate::evidence::{LESS_THAN_LINK, NearLinkLoad, ThroughputMeasurement};
use crate::limit_cause::LimitCause;
use crate::units::{percent, rate};

/// Share of packets that a policer drops at least from a load just below the link's rate. Policers of
/// 80 to 95 % of it dropped 0.3 to 1.7 %, and links with FQ-CoDel 0.02 %.
const DROPPED: f64 = 0.002;
/// Delay just before these losses, as a share of that of the full queue, up to which the packets were not
/// lost from the queue: 4 to 33 % before policers.
const UNQUEUED: f64 = 0.6;
/// Gain from several connections that a bucket for all of them does not give.
const MORE: f64 = 1.1;

/// Evidence of a policer whose rate is near the link's.
pub(super) struct NearLinkEvidence<'a> {
    of: &'a ScalingEvidence<'a>,
}

impl<'a> NearLinkEvidence<'a> {
    pub(super) fn new(of: &'a ScalingEvidence<'a>) -> Self {
        Self { of }
    }

    /// True if a load just below the rate of the link loses packets without a queue, and one far below it
    /// loses none. Uploads tell for downloads at a similar rate.
    pub(super) fn is_policed(&self) -> bool {
        let Some((one, near)) = self.near_link() else {
            return false;
        };
        let Some(full) = self.of.e.overflowed_link() else {
            return false;
        };
        let base = self.of.e.unloaded_rtt(one);
        let unqueued = |rtt: f64| rtt - base < UNQUEUED * (full.rtt - base);
        let unqueued = |rtt: f64| unqueued(rtt) || !one.waits(self.of.e, rtt);
        let drops = near.loss > DROPPED && near.at_losses.is_some_and(|at| unqueued(at.rtt));
        let dropped = drops && !one.waits(self.of.e, near.rtt) && is_spared(one) == Some(true);
        let up = self.of.e.up.best().map_or(0.0, |best| best.rate);
        let alike = (self.of.best / up - 1.0).abs() < ALIKE && !self.reaches(full.rate);
        dropped && (self.of.direction == DataDirection::Upload || alike)
    }

    /// First load of uploads, and the one near the rate of the link.
    fn near_link(&self) -> Option<(&ThroughputMeasurement, NearLinkLoad)> {
        let one = self.of.e.up.rung(1, 1)?;
        one.near_link.map(|near| (one, near))
    }

    /// True if several connections pass what the link does, in its queue.
    fn reaches(&self, link: f64) -> bool {
        let several = self.of.ladder.rungs.iter().filter(|r| r.connections > 1);
        let mut filling = several.filter(|r| r.waits(self.of.e, r.rtt));
        filling.any(|r| r.rate > LESS_THAN_LINK * link)
    }

    pub(super) fn policed(&self) -> DiagnosisFinding {
        let (dropped, below, at) = self.near_link().map_or((0.0, 0.0, 0.0), |(one, near)| {
            let restrained = one.restrained.map_or(0.0, |held| held.rate);
            (near.loss, restrained, near.target)
        });
        let lost = format!(
            "{} of the packets are lost without a queue at {}, where the link passes more, and hardly any \
             at {}",
            percent(dropped),
            rate(at),
            rate(below)
        );
        let link = self.of.e.overflowed_link();
        let up = self.of.direction == DataDirection::Upload;
        if up && link.is_some_and(|link| self.reaches(link.rate)) {
            return self.flow_policer(&lost);
        }
        // A download shows no rate between losses, and has the bucket of a policer as uploads do.
        let limit = self.of.e.up.rungs.iter().map(highest).fold(0.0, f64::max);
        let finding = DiagnosisFinding::new(LimitCause::Policer, lost).limits(limit, None);
        match up {
            true => finding,
            false => finding.certainty(Certainty::Likely),
        }
    }

    /// A policer for each connection whose rate is near the link's: one connection loses packets without
    /// a queue, several fill the link, and no packets are lost below the rate.
    pub(super) fn policed_below_full_link(&self) -> Option<DiagnosisFinding> {
        let unqueued = |rtt: f64| !self.of.one.waits(self.of.e, rtt);
        let at_losses = self.of.one.at_losses?;
        let lost = self.of.one.loss.max(self.of.one.loss_ever);
        let spared = is_spared(self.of.one) == Some(true) && lost > POLICED_LOSS;
        let drops = unqueued(at_losses.rtt) && unqueued(self.of.one.rtt);
        let fills = self.reaches(self.of.best) && self.of.best > MORE * highest(self.of.one);
        if !(self.of.direction == DataDirection::Upload && spared && drops && fills) {
            return None;
        }
        let lost = percent(lost);
        Some(self.flow_policer(&format!("{lost} of the packets are lost without a queue")))
    }

    fn flow_policer(&self, lost: &str) -> DiagnosisFinding {
        let evidence = format!("{lost}{}", self.of.gain());
        let finding = DiagnosisFinding::new(LimitCause::FlowPolicer, evidence);
        let finding = finding.limits(highest(self.of.one), Some(self.of.best));
        finding.certainty(Certainty::Likely)
    }
}

/// Highest rate of a load after its first loss. The mean is lower: CUBIC needs longer than a load to
/// recover from the losses of slow start.
fn highest(load: &ThroughputMeasurement) -> f64 {
    let between = load.near_link.and_then(|near| near.between_losses);
    let between = load
        .between_losses
        .unwrap_or(0.0)
        .max(between.unwrap_or(0.0));
    load.rate.max(load.peak).max(between)
}
