//! Figures of a burst, from the times at which its bytes arrived.

use std::time::Duration;

use super::RouteFigures;

/// Round trips in which the last half of a burst arrives during slow start: one, and some for the
/// pauses between the answers.
const DOUBLES: f64 = 1.6;

/// Longest time for the last half of a burst that shows nothing: it measures this machine.
const BRIEF: f64 = 0.05;

/// Bytes of a burst that have arrived, over time.
#[derive(Clone, Debug, Default)]
pub(super) struct ArrivalCurve {
    /// Time since the start of the burst, and all bytes that had arrived then.
    points: Vec<(Duration, u64)>,
}

impl ArrivalCurve {
    /// Notes that `bytes` have arrived, `at` this time after the start.
    pub(super) fn note(&mut self, at: Duration, bytes: u64) {
        if self.points.last().is_none_or(|last| last.1 < bytes) {
            self.points.push((at, bytes));
        }
    }

    /// Returns the figures of a burst that ended at `end`, either because all of it had arrived
    /// (`complete`) or for lack of time.
    ///
    /// The rate is that of the last half of the bytes: TCP reaches a limit in the first half, if
    /// there is one within reach of the burst.
    pub(super) fn figures(&self, rtt: Duration, end: Duration, complete: bool) -> RouteFigures {
        let total = self.points.last().map_or(0, |last| last.1);
        let half = self.points.iter().find(|point| 2 * point.1 >= total);
        let (begun, before) = half.copied().unwrap_or_default();
        let took = end.saturating_sub(begun).as_secs_f64();
        let rate = (total - before) as f64 / took.max(1e-3);
        let grows = complete && took < (DOUBLES * rtt.as_secs_f64()).max(BRIEF);
        RouteFigures {
            rtt_us: u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX),
            rate: rate as u64,
            grows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(160);

    fn curve(points: &[(u64, u64)]) -> ArrivalCurve {
        let mut curve = ArrivalCurve::default();
        for (ms, bytes) in points {
            curve.note(Duration::from_millis(*ms), *bytes);
        }
        curve
    }

    #[test]
    fn a_burst_in_slow_start_grows() {
        let doubling: Vec<_> = (0..9).map(|n| (160 * n, 16_000 << n)).collect();
        let figures = curve(&doubling).figures(RTT, 8 * RTT, true);
        assert!(figures.grows, "{figures:?}");
    }

    #[test]
    fn a_burst_at_a_constant_rate_does_not_grow() {
        let flat: Vec<_> = (0..=40).map(|n| (100 * n, 100_000 * n)).collect();
        let figures = curve(&flat).figures(RTT, Duration::from_secs(4), true);
        assert!(!figures.grows);
        assert_eq!(figures.rate, 1_000_000);
        assert_eq!(figures.rtt(), RTT);
    }

    #[test]
    fn a_burst_that_stops_is_slow() {
        let stops = curve(&[(160, 100_000), (320, 200_000)]);
        let figures = stops.figures(RTT, Duration::from_secs(3), false);
        assert!(figures.rate < 40_000, "{figures:?}");
        assert!(!figures.grows);
        let nothing = curve(&[]).figures(RTT, Duration::from_secs(3), false);
        assert_eq!(nothing.rate, 0);
    }
}
