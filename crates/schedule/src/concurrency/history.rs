//! Measurements of the run so far.

use std::f64::consts::LN_2;
use std::time::{Duration, Instant};

use super::figures::{IntervalRateCalculator, IntervalRates};
use super::plan::USUAL_RATE;
use super::{RunMeasurements, TransferDirection};

/// Number of bytes that any path holds in flight at once.
const LITTLE: u64 = 64 << 10;
/// Number of intervals whose mean rate is remembered for the next run.
const LEARNS_FROM: usize = 32;
/// Number of intervals whose work is kept.
const KEPT: usize = 16;
/// Number of samples, of two round trips each, in which losses of an earlier full queue are still
/// reported.
const LATELY: u32 = 4;
/// Rise of the loss (factor and summand) from which connections are assumed to crowd each other
/// out; random loss stays constant.
const RISEN: f64 = 2.5;
const RISEN_BY: f64 = 0.02;
/// Number of intervals whose best rate predicts the time for the rest.
pub(super) const RECENT: usize = 3;
/// Share of an earlier rate below which an interval was disturbed and is no measure of the path.
const COLLAPSED: f64 = 0.5;
/// Payload of a segment in bytes.
const SEGMENT: f64 = 1448.0;
/// Least share of lost packets that a slow start is assumed to meet.
const LEAST_LOSS: f64 = 1e-4;
/// Share of lost packets above which slow start ends before it has opened the window.
const SOON_LOST: f64 = 0.005;
/// Factor by which CUBIC reduces its window at a loss (RFC 9438).
const KEPT_AT_LOSS: f64 = 0.7;

/// Figures of the present interval, and rates of those before.
#[derive(Debug)]
pub(super) struct IntervalHistory {
    measure: IntervalRateCalculator,
    began: Option<Instant>,
    figures: IntervalRates,
    /// Work of the last intervals, latest first.
    rates: Vec<f64>,
    /// Bytes per second of the last intervals, latest first.
    goodput: Vec<f64>,
    /// Number of samples since the path's queue was seen to fill.
    since_queue: u32,
    /// Number of samples since packets were lost.
    since_loss: u32,
}

impl Default for IntervalHistory {
    fn default() -> Self {
        Self {
            measure: IntervalRateCalculator::default(),
            began: None,
            figures: IntervalRates::default(),
            rates: Vec::new(),
            goodput: Vec::new(),
            since_queue: u32::MAX,
            since_loss: u32::MAX,
        }
    }
}

impl IntervalHistory {
    /// Takes a sample; returns the figures of the interval, `None` at the first sample.
    pub(super) fn measure(
        &mut self,
        direction: TransferDirection,
        evidence: &RunMeasurements,
    ) -> Option<IntervalRates> {
        let figures = self.measure.take(direction, evidence);
        if figures.is_none() {
            self.began.get_or_insert(evidence.now);
        }
        figures
    }

    /// Adds the figures of an interval.
    pub(super) fn add(&mut self, figures: IntervalRates) {
        self.since_queue = match figures.queueing() {
            true => 0,
            false => self.since_queue.saturating_add(1),
        };
        self.since_loss = match figures.lossy() || figures.bears_losses() {
            true => 0,
            false => self.since_loss.saturating_add(1),
        };
        self.rates.insert(0, figures.work());
        self.rates.truncate(KEPT);
        self.goodput.insert(0, figures.shown().rate);
        self.goodput.truncate(LEARNS_FROM);
        self.figures = figures;
    }

    /// Returns true if there has been a sample.
    pub(super) fn has_begun(&self) -> bool {
        self.began.is_some()
    }

    /// Returns the figures of the last interval.
    pub(super) fn figures(&self) -> &IntervalRates {
        &self.figures
    }

    /// Returns the round trip, if it is known.
    pub(super) fn known_trip(&self) -> Option<Duration> {
        self.measure.trip()
    }

    /// Returns the round trip, zero if unknown.
    pub(super) fn trip(&self) -> Duration {
        self.measure.trip().unwrap_or_default()
    }

    /// Returns the number of intervals that are kept.
    pub(super) fn intervals(&self) -> usize {
        self.rates.len()
    }

    /// Returns the work per second of the last `count` intervals, latest first.
    pub(super) fn last(&self, count: usize) -> &[f64] {
        self.rates.get(..count).unwrap_or(&self.rates)
    }

    /// Returns the best work per second of the intervals that are kept.
    pub(super) fn best(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// Returns the mean of the later half of the kept rates in bytes per second, which excludes
    /// slow start, without the last interval, in which little may have been left.
    pub(super) fn usual_rate(&self) -> f64 {
        let half = self.goodput.len() / 2 + 1;
        let late = self.goodput.get(1..half).unwrap_or_default();
        late.iter().sum::<f64>() / late.len().max(1) as f64
    }

    /// Returns the recent work per second, as the mean of two intervals, since answers come in
    /// bursts.
    pub(super) fn work(&self) -> f64 {
        match self.rates.as_slice() {
            [now, before, ..] => (now + before) / 2.0,
            [now] => *now,
            [] => 0.0,
        }
    }

    /// Returns true if the rate no longer grows by itself.
    pub(super) fn is_level(&self) -> bool {
        match self.rates.as_slice() {
            [now, before, ..] => *now < before * 1.15,
            _ => false,
        }
    }

    /// Returns true if the rate has neither grown nor collapsed over two intervals, since answers
    /// come in bursts; checked before a login is requested.
    pub(super) fn is_steady(&self) -> bool {
        match self.rates.as_slice() {
            [now, before, first, ..] => {
                let grows = *now >= before * 1.15 || *now >= first * 1.2;
                let collapsed = *now < before.max(*first) * COLLAPSED;
                !grows && !collapsed
            }
            _ => false,
        }
    }

    /// Returns the time for the rest at the best rate of the last intervals. If the length is
    /// unknown, the rest is assumed to take as long as the copy so far.
    ///
    /// One interval in which a busy machine or a lost packet kept everything back says nothing
    /// about the rest: 42 MB at 60 ms were almost done when 49 MB/s fell to 7 for a tenth of a
    /// second, and the copy waited for another login.
    pub(super) fn lasts(&self, evidence: &RunMeasurements) -> Duration {
        let recent = self.goodput.iter().take(RECENT).copied();
        let rate = recent.fold(self.figures.shown().rate, f64::max);
        let elapsed = self.began.map_or(Duration::ZERO, |at| evidence.now - at);
        match evidence.remaining {
            // No other connection would speed up so few bytes.
            Some(left) if left < LITTLE => Duration::ZERO,
            Some(left) if rate > 0.0 => {
                Duration::try_from_secs_f64(left as f64 / rate).unwrap_or(Duration::MAX)
            }
            _ => elapsed,
        }
    }

    /// As [`Self::lasts`], for `connections` that have lost packets and may still double their windows. They
    /// do so in each round trip until as many packets are sent as pass between two losses, and then keep
    /// most of the rate that they have reached.
    ///
    /// A third of the copies of 16 MiB over 114 ms with 0.1 % loss ended after 2.0 s with the three
    /// connections that they had begun with. In the others eight more were opened when the first packet
    /// was lost: they repeated the last parts in slow starts of their own, sent 46 MB, and took 3.0 s.
    pub(super) fn lasts_with_losses(
        &self,
        evidence: &RunMeasurements,
        connections: u32,
    ) -> Duration {
        let steady = self.lasts(evidence);
        let shown = self.figures.shown();
        let trip = self.trip().as_secs_f64();
        let grows = self.figures.is_in_slow_start() || !self.is_level();
        let (Some(left), true) = (evidence.remaining, grows && trip > 0.0 && shown.rate > 0.0)
        else {
            return steady;
        };
        let loss = lost_so_far(evidence);
        if loss > SOON_LOST {
            return steady;
        }
        let until_loss = SEGMENT / loss * f64::from(connections.max(1));
        let bytes = until_loss.min(left as f64);
        // Each round trip doubles the rate, so the bytes of all together are the last one's.
        let reached = (shown.rate + bytes / trip).min(USUAL_RATE);
        let trips = (bytes * LN_2 / (shown.rate * trip)).ln_1p() / LN_2;
        let rest = (left as f64 - bytes) / (KEPT_AT_LOSS * reached);
        let growing = Duration::try_from_secs_f64(trips * trip + rest);
        growing.map_or(steady, |growing| growing.min(steady))
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
        self.figures.shown().loss > before * RISEN + RISEN_BY
    }

    #[cfg(test)]
    pub(super) fn of(rates: &[f64], window_blocked: f64) -> Self {
        let mut history = Self {
            rates: rates.to_vec(),
            ..Self::default()
        };
        history.figures.set_window_blocked(window_blocked);
        history
    }
}

/// Returns the share of packets that the connections have lost since they began, without the first one, which
/// may be lost at any time. The last interval alone has too few.
fn lost_so_far(evidence: &RunMeasurements) -> f64 {
    let tcp = evidence.connections.iter().filter_map(|c| c.tcp);
    let (sent, lost) = tcp.fold((0, 0), |(sent, lost), tcp| {
        let lost_here = tcp.retransmitted.max(tcp.out_of_order);
        (sent + tcp.segments, lost + lost_here)
    });
    (lost.saturating_sub(1) as f64 / sent.max(1) as f64).clamp(LEAST_LOSS, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_level_once_it_stops_growing_and_steady_after_two_intervals() {
        let of = |rates: &[f64]| {
            let history = IntervalHistory::of(rates, 0.0);
            (history.is_level(), history.is_steady())
        };
        assert_eq!(of(&[100.0]), (false, false));
        assert_eq!(of(&[100.0, 95.0]), (true, false));
        assert_eq!(of(&[100.0, 95.0, 50.0]), (true, false));
        assert_eq!(of(&[100.0, 95.0, 90.0]), (true, true));
        assert_eq!(of(&[200.0, 95.0, 190.0]), (false, false));
        assert_eq!(of(&[40.0, 95.0, 90.0]), (true, false), "it collapsed");
        let history = IntervalHistory::of(&[100.0, 50.0, 300.0], 0.0);
        assert!((history.work() - 75.0).abs() < 1e-9 && (history.best() - 300.0).abs() < 1e-9);
        assert_eq!(history.last(9).len(), 3);
    }
}
