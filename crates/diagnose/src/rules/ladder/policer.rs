//! Rules that tell a policer from random loss. Both drop packets without a queue; random losses
//! stay if the connection is held below its rate, and those of a policer end.

use super::{FLAT, SCALES, ScalingEvidence};
use crate::diagnosis_finding::{Certainty, DataDirection, DiagnosisFinding};
use crate::evidence::{ThroughputMeasurement, ThroughputScaling};
use crate::limit_cause::LimitCause;
use crate::units::{percent, rate};

/// Share of lost segments that a policer causes at least.
pub(super) const POLICED_LOSS: f64 = 0.005;
/// Delay that is no queue yet: a share of the round trip, and seconds.
const POLICED_DELAY: (f64, f64) = (0.05, 0.002);
/// Delay that is a queue on a short path: a share of the round trip, and seconds.
const SHORT_QUEUE: (f64, f64) = (0.5, 0.0005);
/// Share of the expected losses below which a restrained load was spared, and above which the
/// losses do not depend on the rate. Eight are expected at least ([`crate::ReducedRateLoad`]), of which
/// random losses leave one or none in three runs of a thousand.
const SPARED: f64 = 0.2;
const LOSES_AS_WELL: f64 = 0.5;
/// Rate of a restrained load, as a share of the full rate, from which on it tells something.
const RESTRAINED: f64 = 0.3;
/// Gain of two connections that each have a bucket. One connection alone may leave a part of a
/// bucket that several share, also with [`SCALES`].
const EACH: f64 = 1.75;
/// Rate of two connections, as a share of the highest rate of one, that a common bucket hardly passes.
const ABOVE_PEAK: f64 = 1.2;
/// Factor between shares of lost packets that are similar.
const SIMILAR: f64 = 2.0;
/// Round trips of a load below which a connection has hardly recovered from its first losses, so that
/// its mean rate is below the policer's: by 15 % in 12 s at 600 ms, and by 12 % at 220 ms.
const FEW_TRIPS: f64 = 100.0;
/// Gain from twice as many connections that share no bucket: 1.49 at least at 600 ms. Two that share one
/// passed up to 1.38 times as much as one there.
const FURTHER: f64 = 1.35;
/// Difference between the rates of both directions under one kind of policer.
pub(super) const ALIKE: f64 = 0.35;

impl ScalingEvidence<'_> {
    /// A policer drops much and delays nothing; a full queue drops little and delays.
    pub(super) fn is_policed(&self) -> bool {
        let random = self.spared() == Some(false) || self.loses_as_uploads();
        self.dropped() > POLICED_LOSS && !self.is_delayed() && !random
    }

    /// True for downloads that lose a similar share of packets as uploads to which further connections
    /// bring more: losses of that path are random.
    pub(super) fn loses_as_uploads(&self) -> bool {
        let up = &self.e.up;
        let (Some(one), Some(best)) = (up.rung(1, 1), up.best()) else {
            return false;
        };
        let lost = one.loss.max(one.loss_ever);
        let similar = self.dropped() < SIMILAR * lost && lost < SIMILAR * self.dropped();
        let queues = one.is_queueing(self.e) || one.overflowed(self.e).is_some();
        let scales = best.rate > SCALES * one.rate && !queues;
        let down = self.direction == DataDirection::Download;
        down && similar && scales && self.spared() != Some(true)
    }

    /// True if packets wait in a queue somewhere, also in a short one, or waited before they were lost.
    /// Uploads tell for downloads there as well.
    pub(super) fn is_delayed(&self) -> bool {
        let delayed = |r: &ThroughputMeasurement| {
            let base = self.e.unloaded_rtt(r);
            let delay = r.rtt - base;
            let short = delay > SHORT_QUEUE.0 * base && delay > SHORT_QUEUE.1;
            short || delay > POLICED_DELAY.0 * base + POLICED_DELAY.1
        };
        let mut first = [Some(self.one), self.e.up.rung(1, 1)].into_iter().flatten();
        let waited = first.any(|one| one.overflowed(self.e).is_some());
        waited || self.ladder.rungs.iter().any(delayed)
    }

    /// True if the losses end below the rate, false if they stay, `None` if that was not measured.
    /// A receiver cannot hold back the sender: uploads that lose at the same rate tell for
    /// downloads.
    pub(super) fn spared(&self) -> Option<bool> {
        let up = &self.e.up;
        let one = up.rung(1, 1)?;
        let close = |rate: f64, other: f64| (rate / other - 1.0).abs() < ALIKE;
        let alike = close(self.one.rate, one.rate)
            || up.best().is_some_and(|best| close(self.best, best.rate));
        if self.direction == DataDirection::Download && !alike {
            return None;
        }
        is_spared(one)
    }

    /// True for downloads over a path whose uploads lose nothing below their rate. If such downloads
    /// pass at another rate and were not measured over several connections, their losses may be
    /// a policer's as well, and no rate of theirs is known.
    pub(super) fn are_uploads_spared(&self) -> bool {
        let up = self.e.up.rung(1, 1);
        let spared = up.and_then(is_spared) == Some(true);
        spared && self.direction == DataDirection::Download && self.spared().is_none()
    }

    /// Share of lost segments, with those of slow start: a connection that has found the policer's
    /// rate loses few.
    fn dropped(&self) -> f64 {
        let several = self.ladder.rung(2, 1).map_or(0.0, |two| two.loss);
        self.one.loss.max(self.one.loss_ever).max(several)
    }

    pub(super) fn policed(&self) -> DiagnosisFinding {
        let evidence = format!(
            "{} of the packets are lost without a queue{}, and more connections bring nothing",
            percent(self.dropped()),
            self.restrained()
        );
        // All connections share the bucket, and the first has the least time to find its rate.
        let finding = DiagnosisFinding::new(LimitCause::Policer, evidence);
        finding.limits(self.passed(), None)
    }

    /// Highest rate that a bucket for all connections passed. Uploads that lose as downloads do meet
    /// the same kind of policer, and find its rate sooner.
    fn passed(&self) -> f64 {
        let own = reached_by(self.ladder, self.best);
        let up = reached_by(&self.e.up, 0.0);
        let alike = self.direction == DataDirection::Download
            && self.spared() == Some(true)
            && (own / up - 1.0).abs() < ALIKE;
        if alike { own.max(up) } else { own }
    }

    fn restrained(&self) -> String {
        match self.one.restrained.filter(|_| self.spared() == Some(true)) {
            Some(held) => format!(", {} at {}", percent(held.loss), rate(held.rate)),
            None => String::new(),
        }
    }

    /// A policer of whose rate one connection leaves a part, or that has a bucket for each one.
    pub(super) fn policed_below(&self) -> Option<DiagnosisFinding> {
        if self.spared() != Some(true) || self.is_delayed() {
            return None;
        }
        let lost = format!(
            "{} of the packets are lost without a queue{}",
            percent(self.dropped()),
            self.restrained()
        );
        let finding = match self.has_bucket_for_each() {
            Some(true) => {
                let evidence = format!("{lost}{}", self.gain());
                let each = self.ladder.rungs.iter().filter(|r| r.channels == 1);
                let each = each.map(|r| r.rate / f64::from(r.connections.max(1)));
                let each = each.fold(reached(self.one), f64::max);
                DiagnosisFinding::new(LimitCause::FlowPolicer, evidence).limits(each, self.could())
            }
            Some(false) => {
                let evidence = format!("{lost}, and all connections together bring no more");
                DiagnosisFinding::new(LimitCause::Policer, evidence).limits(self.passed(), None)
            }
            None => {
                let evidence = format!(
                    "{lost}{}; whether it has one bucket for all connections is not clear",
                    self.gain()
                );
                let finding =
                    DiagnosisFinding::new(LimitCause::Policer, evidence).limits(self.best, None);
                return Some(finding.certainty(Certainty::Unsure));
            }
        };
        Some(finding.certainty(match self.direction {
            DataDirection::Upload => Certainty::Sure,
            DataDirection::Download => Certainty::Likely,
        }))
    }

    /// True if each connection has a bucket, false if all share one, `None` if that is not clear.
    pub(super) fn has_bucket_for_each(&self) -> Option<bool> {
        let two = self.ladder.rung(2, 1)?;
        let gain = two.rate / self.one.rate;
        if let Some(four) = self.ladder.rung(4, 1) {
            // The link may be full by then.
            let more = four.rate > FURTHER * two.rate || four.is_queueing(self.e);
            return Some(more && gain > SCALES.max(FLAT));
        }
        // A policer that drops packets passes its rate: one connection reaches it now and then.
        // In few round trips it may miss it, but hardly in two loads: a policer sees no channels.
        let again = self.ladder.rung(1, 2).map_or(0.0, |again| again.peak);
        let peak = (self.one.peak > 0.0).then(|| self.one.peak.max(again));
        let above = peak.map(|peak| two.rate > ABOVE_PEAK * peak);
        match (gain, above) {
            (gain, _) if gain > EACH => Some(true),
            (gain, _) if gain < FURTHER => Some(false),
            (gain, Some(true)) if gain > SCALES || again > 0.0 => Some(true),
            (_, Some(false)) => Some(false),
            _ => None,
        }
    }
}

/// True if the losses of an upload end below its rate, false if they stay, `None` if that was not
/// measured.
pub(crate) fn is_spared(upload: &ThroughputMeasurement) -> Option<bool> {
    let held = upload.restrained?;
    let tells = held.rate > RESTRAINED * upload.rate && held.expected > 0.0;
    match held.loss / held.expected {
        _ if !tells => None,
        share if share < SPARED => Some(true),
        share if share > LOSES_AS_WELL => Some(false),
        _ => None,
    }
}

/// Highest rate of the loads of a direction.
fn reached_by(ladder: &ThroughputScaling, least: f64) -> f64 {
    let rungs = ladder.rungs.iter().filter(|r| r.channels == 1);
    rungs.map(reached).fold(least, f64::max)
}

/// Rate that a connection reached: its highest one if the load was too short for the mean. Over many
/// round trips the mean is closer, since the bucket fills a little after each loss. The rate between two
/// losses has no part of the bucket.
fn reached(rung: &ThroughputMeasurement) -> f64 {
    if let Some(between) = rung.between_losses {
        return rung.rate.max(between);
    }
    match rung.seconds < FEW_TRIPS * rung.min_rtt {
        true => rung.rate.max(rung.peak),
        false => rung.rate,
    }
}
