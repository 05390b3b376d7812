//! Rules that tell a policer from random loss. Both drop packets without a queue; random losses
//! stay if the connection is held below its rate, and those of a policer end.

use super::{FLAT, LadderEvidence, SCALES};
use crate::cause::Cause;
use crate::evidence::LadderRung;
use crate::finding::{Certainty, DataDirection, Finding};
use crate::units::{percent, rate};

/// Share of lost segments that a policer causes at least.
const POLICED_LOSS: f64 = 0.005;
/// Delay that is no queue yet: a share of the round trip, and seconds.
const POLICED_DELAY: (f64, f64) = (0.05, 0.002);
/// Delay that is a queue on a short path: a share of the round trip, and seconds.
const SHORT_QUEUE: (f64, f64) = (0.5, 0.0005);
/// Share of the expected losses below which a restrained load was spared, and above which the
/// losses do not depend on the rate. Eight are expected at least ([`crate::RestrainedLoad`]).
const SPARED: f64 = 0.3;
const LOSES_AS_WELL: f64 = 0.5;
/// Rate of a restrained load, as a share of the full rate, from which on it tells something.
const RESTRAINED: f64 = 0.3;
/// Gain of two connections that each have a bucket. One connection alone may leave a part of a
/// bucket that several share, also with [`SCALES`].
const EACH: f64 = 1.75;
/// Gain of four connections over two that share no bucket.
const FURTHER: f64 = 1.35;
/// Difference between the rates of both directions under one kind of policer.
const ALIKE: f64 = 0.35;

impl LadderEvidence<'_> {
    /// A policer drops much and delays nothing; a full queue drops little and delays.
    pub(super) fn is_policed(&self) -> bool {
        self.dropped() > POLICED_LOSS && !self.is_delayed() && self.spared() != Some(false)
    }

    /// True if packets wait in a queue somewhere, also in a short one.
    pub(super) fn is_delayed(&self) -> bool {
        let delayed = |r: &LadderRung| {
            let delay = r.rtt - r.min_rtt;
            let short = delay > SHORT_QUEUE.0 * r.min_rtt && delay > SHORT_QUEUE.1;
            short || delay > POLICED_DELAY.0 * r.min_rtt + POLICED_DELAY.1
        };
        self.ladder.rungs.iter().any(delayed)
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
        let held = one.restrained?;
        let tells = held.rate > RESTRAINED * one.rate && held.expected > 0.0;
        match held.loss / held.expected {
            _ if !tells => None,
            share if share < SPARED => Some(true),
            share if share > LOSES_AS_WELL => Some(false),
            _ => None,
        }
    }

    /// Share of lost segments, with those of slow start: a connection that has found the policer's
    /// rate loses few.
    fn dropped(&self) -> f64 {
        let several = self.ladder.rung(2, 1).map_or(0.0, |two| two.loss);
        self.one.loss.max(self.one.loss_ever).max(several)
    }

    pub(super) fn policed(&self) -> Finding {
        let evidence = format!(
            "{} of the packets are lost without a queue{}, and more connections bring nothing",
            percent(self.dropped()),
            self.restrained()
        );
        // All connections share the bucket, and the first has the least time to find its rate.
        let finding = Finding::new(Cause::Policer, evidence);
        finding.limits(self.best, None)
    }

    fn restrained(&self) -> String {
        match self.one.restrained.filter(|_| self.spared() == Some(true)) {
            Some(held) => format!(", {} at {}", percent(held.loss), rate(held.rate)),
            None => String::new(),
        }
    }

    /// A policer of whose rate one connection leaves a part, or that has a bucket for each one.
    pub(super) fn policed_below(&self) -> Option<Finding> {
        if self.spared() != Some(true) || self.is_delayed() {
            return None;
        }
        let lost = format!(
            "{} of the packets are lost without a queue{}",
            percent(self.dropped()),
            self.restrained()
        );
        let finding = match self.has_bucket_for_each() {
            true => {
                let evidence = format!("{lost}{}", self.gain());
                let each = self.ladder.rungs.iter().filter(|r| r.channels == 1);
                let each = each.map(|r| r.rate / f64::from(r.connections.max(1)));
                let each = each.fold(0.0, f64::max);
                Finding::new(Cause::FlowPolicer, evidence).limits(each, self.could())
            }
            false => {
                let evidence = format!("{lost}, and all connections together bring no more");
                Finding::new(Cause::Policer, evidence).limits(self.best, None)
            }
        };
        Some(finding.certainty(match self.direction {
            DataDirection::Upload => Certainty::Sure,
            DataDirection::Download => Certainty::Likely,
        }))
    }

    pub(super) fn has_bucket_for_each(&self) -> bool {
        let Some(two) = self.ladder.rung(2, 1) else {
            return false;
        };
        let more = self.ladder.rung(4, 1).map(|four| {
            // The link may be full by then.
            four.rate > FURTHER * two.rate || four.is_queueing()
        });
        let gain = two.rate / self.one.rate;
        match more {
            Some(more) => more && gain > SCALES.max(FLAT),
            None => gain > EACH,
        }
    }
}
