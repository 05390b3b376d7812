use std::time::Duration;

use super::chance::{Purpose, Random};
use super::nanoseconds;
use crate::path::{Direction, PathSpec};

/// The shortest time in which the delay goes from one random value to the next.
const STEP: Duration = Duration::from_millis(10);

/// Propagation: half the round trip, wandering by the jitter.
///
/// The delay is a line through random values, uniform within the jitter, at regular times. It is
/// the same for all packets of a moment, as the queues of other people's traffic make it, and so
/// keeps their order; an independent value for each packet would reorder them, or where order is
/// enforced, add the whole jitter to every one.
#[derive(Debug)]
pub(super) struct Delay {
    base: u64,
    jitter: u64,
    step: u64,
    random: Random,
}

impl Delay {
    pub(super) fn new(path: &PathSpec, direction: Direction) -> Self {
        let rtt = nanoseconds(path.rtt);
        let jitter = nanoseconds(path.jitter);
        Self {
            base: match direction {
                Direction::NearToFar => rtt / 2,
                Direction::FarToNear => rtt - rtt / 2,
            },
            jitter,
            // Falling by 2 * jitter within 4 * jitter, packets at most double their rate.
            step: jitter.saturating_mul(4).max(nanoseconds(STEP)),
            random: Random::new(path.seed, direction, Purpose::Jitter),
        }
    }

    /// When a packet arrives that left the queue at `departs`.
    pub(super) fn arrival(&self, departs: u64) -> u64 {
        if self.jitter == 0 {
            return departs.saturating_add(self.base);
        }
        let (index, within) = (departs / self.step, departs % self.step);
        let part = within as f64 / self.step as f64;
        let wander = self.value(index) * (1.0 - part) + self.value(index + 1) * part;
        let low = departs.saturating_add(self.base.saturating_sub(self.jitter));
        low.saturating_add(wander as u64)
    }

    /// 0 to twice the jitter.
    fn value(&self, index: u64) -> f64 {
        let unit = self.random.at(index) as f64 / 2f64.powi(64);
        unit * 2.0 * self.jitter as f64
    }
}
