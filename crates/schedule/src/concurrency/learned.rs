use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::TransferDirection;

/// Result of a run for a destination, from which the next run starts. The caller keeps one per
/// destination and direction, and uses it only while it is recent and the path is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedConcurrency {
    /// Direction of the transfer.
    pub direction: TransferDirection,
    /// Number of connections that paid.
    pub connections: u32,
    /// Number of channels on each connection.
    pub channels: u32,
    /// Rate reached, in bytes per second.
    pub rate: u64,
    /// Lowest round trip of that run in microseconds.
    pub rtt_us: u64,
    /// Time of the record in seconds since 1970.
    pub at: u64,
}

/// Age after which a record is assumed to describe another network.
const EXPIRES: Duration = Duration::from_secs(30 * 24 * 3600);

impl LearnedConcurrency {
    /// Returns the age at `now` (seconds since 1970); `None` if expired or in the future.
    pub fn age(&self, now: u64) -> Option<Duration> {
        // After the clock was set back, the record seems to be from the future.
        let age = Duration::from_secs(now.checked_sub(self.at)?);
        (age <= EXPIRES).then_some(age)
    }

    /// Returns true if a run at `now` (seconds since 1970) with round trip `rtt` may start from the
    /// record.
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

    const RECORD: LearnedConcurrency = LearnedConcurrency {
        direction: TransferDirection::Up,
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
