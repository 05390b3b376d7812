use std::time::Duration;

use super::chance::{RandomStreamKind, SplitMix64};
use super::nanoseconds;
use crate::path::{NetworkPathSpec, PacketDirection};

/// Shortest time between two random values of the delay.
const STEP: Duration = Duration::from_millis(10);

/// The propagation delay: half the round trip, varying by the jitter.
///
/// The delay is a line through random values at regular times, uniformly distributed within the
/// jitter. All packets of a moment have the same delay, as queues of cross traffic cause it, so
/// their order is kept. Independent values for each packet would reorder them, or if order is
/// enforced, add the full jitter to each.
#[derive(Debug)]
pub(super) struct PropagationDelay {
    base: u64,
    jitter: u64,
    step: u64,
    random: SplitMix64,
}

impl PropagationDelay {
    pub(super) fn new(path: &NetworkPathSpec, direction: PacketDirection) -> Self {
        let rtt = nanoseconds(path.rtt);
        let jitter = nanoseconds(path.jitter);
        Self {
            base: match direction {
                PacketDirection::NearToFar => rtt / 2,
                PacketDirection::FarToNear => rtt - rtt / 2,
            },
            jitter,
            // Falling by 2 * jitter within 4 * jitter, the delay at most doubles the rate of
            // packets.
            step: jitter.saturating_mul(4).max(nanoseconds(STEP)),
            random: SplitMix64::new(path.seed, direction, RandomStreamKind::Jitter),
        }
    }

    /// Arrival time of a packet that leaves the queue at `departs`, in nanoseconds.
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

    /// Random value from 0 to twice the jitter.
    fn value(&self, index: u64) -> f64 {
        let unit = self.random.at(index) as f64 / 2f64.powi(64);
        unit * 2.0 * self.jitter as f64
    }
}
