use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Direction;

/// What a run learned of a destination: where the next one begins. Kept per destination and
/// direction by the caller, and believed only as long as it is young and the path the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learned {
    /// Which way.
    pub direction: Direction,
    /// Connections that paid.
    pub connections: u32,
    /// Channels on each.
    pub channels: u32,
    /// Bytes a second that they reached.
    pub rate: u64,
    /// The lowest round trip then, in microseconds.
    pub rtt_us: u64,
    /// When: seconds since 1970.
    pub at: u64,
}

/// Older records are of another network.
const EXPIRES: Duration = Duration::from_secs(30 * 24 * 3600);

impl Learned {
    /// How long ago it was: `now` in seconds since 1970. `None` where that is too long, or to come.
    pub fn age(&self, now: u64) -> Option<Duration> {
        // A clock that was set back makes it look as if it came from the future.
        let age = Duration::from_secs(now.checked_sub(self.at)?);
        (age <= EXPIRES).then_some(age)
    }

    /// Whether to begin from it: `now` in seconds since 1970, `rtt` of the new connection.
    pub fn holds(&self, now: u64, rtt: Duration) -> bool {
        let young = self.age(now).is_some();
        let then = self.rtt_us.max(1) as f64;
        let ratio = rtt.as_micros().max(1) as f64 / then;
        let close = rtt.as_micros().abs_diff(u128::from(self.rtt_us)) < 2000;
        young && (close || (0.6..=1.7).contains(&ratio))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: Learned = Learned {
        direction: Direction::Up,
        connections: 5,
        channels: 2,
        rate: 100_000_000,
        rtt_us: 114_000,
        at: 1_000_000,
    };

    #[test]
    fn a_record_holds_for_a_month_and_the_same_path() {
        let rtt = Duration::from_millis(120);
        assert!(RECORD.holds(1_000_000, rtt));
        assert!(RECORD.holds(1_000_000 + 29 * 86400, rtt));
        assert!(!RECORD.holds(1_000_000 + 31 * 86400, rtt));
        assert!(!RECORD.holds(999_999, rtt), "from the future");
        assert!(!RECORD.holds(1_000_001, Duration::from_millis(20)));
        assert!(!RECORD.holds(1_000_001, Duration::from_millis(600)));
    }
}
