//! Gives up a copy whose receiver reports no progress, however often it gives signs of life.

use std::time::{Duration, Instant};

use crate::report::ProgressValues;

/// Longest time without data in a fan-out, whose source waits for its own data. An honest source
/// gives up after ten minutes.
const STUCK: Duration = Duration::from_secs(660);
/// Longest time without progress in other copies. A receiver that waits for a tape or reads a large
/// file again gives signs of life and no progress.
const IDLE: Duration = Duration::from_secs(24 * 60 * 60);
/// Slowest rate in bytes per second at which data are compared and synced, without progress.
const SLOWEST: u64 = 4 << 20;
/// Largest size for which such a time is allowed, in bytes: a receiver may report any.
const LARGEST: u64 = 1 << 44;

/// Watches whether a copy advances.
#[derive(Debug)]
pub(super) struct ProgressWatchdog {
    bytes: u64,
    files: u64,
    since: Instant,
    /// Bytes of the growing source.
    growing: Option<u64>,
    /// Bytes in all as far as the receiver knows.
    total: u64,
    /// All data have arrived. Comparing and syncing a large file takes long.
    has_all: bool,
}

impl ProgressWatchdog {
    /// Watches a copy from `now` on; `growing` is the size in bytes of a source that is still being
    /// written.
    pub(super) fn new(now: Instant, growing: Option<u64>) -> Self {
        Self {
            bytes: 0,
            files: 0,
            since: now,
            growing,
            total: 0,
            has_all: false,
        }
    }

    /// Notes what a receiver reports. Returns true if that is more than before.
    pub(super) fn note(&mut self, now: Instant, values: &ProgressValues) -> bool {
        self.total = values.total();
        self.has_all = values.has_all();
        let advances = values.bytes() > self.bytes || values.files() > self.files;
        if advances {
            self.bytes = self.bytes.max(values.bytes());
            self.files = self.files.max(values.files());
            self.since = now;
        }
        advances
    }

    /// Time without progress after which the copy is given up, if that time has passed.
    pub(super) fn stuck(&self, now: Instant) -> Option<Duration> {
        let comparing = |bytes: u64| Duration::from_secs(bytes.min(LARGEST) / SLOWEST);
        let limit = match self.growing {
            Some(size) if self.has_all => STUCK + comparing(size),
            Some(_) => STUCK,
            None => IDLE + comparing(self.total),
        };
        (now.saturating_duration_since(self.since) > limit).then_some(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ProgressCounters;

    /// Bug: a host of a fan-out that never answered READ, while the receiver gave signs of life,
    /// kept the hosts behind it waiting for ever.
    #[test]
    fn a_copy_without_data_is_given_up_however_much_the_hosts_say() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let values = |bytes, total| {
            let counters = ProgressCounters::default();
            counters.add_file(Some(total));
            counters.add_bytes(bytes);
            counters.values()
        };
        let mut advance = ProgressWatchdog::new(start, Some(1 << 30));
        advance.note(at(600), &values(5, 9));
        assert_eq!(advance.stuck(at(1200)), None);
        for now in (600..1300).step_by(5) {
            advance.note(at(now), &values(5, 9));
        }
        assert!(advance.stuck(at(1300)).is_some());
        // The end of a large file takes long, but not for ever.
        advance.note(at(1300), &values(9, 9));
        assert_eq!(advance.stuck(at(2100)), None);
        assert!(advance.stuck(at(3000)).is_some());
        // So does any other copy whose receiver reports all that it wants.
        let mut advance = ProgressWatchdog::new(start, None);
        advance.note(at(10), &values(u64::MAX, u64::MAX));
        for day in 0..60 {
            advance.note(at(day * 86_400), &values(u64::MAX, u64::MAX));
        }
        assert_eq!(advance.stuck(at(2 * 86_400)), None);
        assert!(advance.stuck(at(60 * 86_400)).is_some());
    }
}
