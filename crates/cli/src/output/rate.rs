use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Long enough for a steady rate on a path that stalls now and then, short enough to follow a
/// change.
const WINDOW: Duration = Duration::from_secs(8);

/// Rate of the last 8 seconds from samples of a byte counter, for the display and the remaining
/// time. Time before the first byte does not count.
#[derive(Debug, Default)]
pub(crate) struct RecentRate {
    samples: VecDeque<(Instant, u64)>,
}

impl RecentRate {
    /// Notes that `bytes` had moved by `now`.
    pub(crate) fn note(&mut self, now: Instant, bytes: u64) {
        // Logins and listings come before the first byte and are not part of the rate.
        if self
            .samples
            .back()
            .is_some_and(|(_, last)| *last > bytes || *last == 0)
        {
            let last = self.samples.back().copied().filter(|(_, last)| *last == 0);
            self.samples.clear();
            self.samples.extend(last.filter(|_| bytes > 0));
        }
        self.samples.push_back((now, bytes));
        while self.samples.len() > 2
            && self
                .samples
                .get(1)
                .is_some_and(|(then, _)| now.duration_since(*then) >= WINDOW)
        {
            self.samples.pop_front();
        }
    }

    /// Bytes a second; 0 until two samples are 50 ms apart.
    pub(crate) fn per_second(&self) -> u64 {
        let (Some((t0, b0)), Some((t1, b1))) = (self.samples.front(), self.samples.back()) else {
            return 0;
        };
        let seconds = t1.duration_since(*t0).as_secs_f64();
        if seconds < 0.05 {
            0
        } else {
            (b1.saturating_sub(*b0) as f64 / seconds) as u64
        }
    }

    /// Time for another `bytes`; `None` while nothing moves.
    pub(crate) fn remaining(&self, bytes: u64) -> Option<Duration> {
        let rate = self.per_second();
        (rate > 0).then(|| Duration::from_secs(bytes.div_ceil(rate)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_last_seconds() {
        let start = Instant::now();
        let mut rate = RecentRate::default();
        assert_eq!(rate.per_second(), 0);
        let mut bytes = 0;
        for second in 0..60u64 {
            rate.note(start + Duration::from_secs(second), bytes);
            bytes += if second < 40 { 100 } else { 1000 };
        }
        assert_eq!(rate.per_second(), 1000);
        assert_eq!(rate.remaining(5500), Some(Duration::from_secs(6)));
    }

    #[test]
    fn nothing_moves_and_bytes_taken_back() {
        let start = Instant::now();
        let mut rate = RecentRate::default();
        rate.note(start, 500);
        rate.note(start + Duration::from_secs(1), 500);
        assert_eq!((rate.per_second(), rate.remaining(10)), (0, None));
        rate.note(start + Duration::from_secs(2), 100);
        rate.note(start + Duration::from_secs(3), 200);
        assert_eq!(rate.per_second(), 100);
    }

    #[test]
    fn the_time_before_the_first_byte_does_not_count() {
        let start = Instant::now();
        let mut rate = RecentRate::default();
        for second in 0..6 {
            rate.note(start + Duration::from_secs(second), 0);
        }
        rate.note(start + Duration::from_secs(6), 100);
        assert_eq!(rate.per_second(), 100);
        rate.note(start + Duration::from_secs(7), 200);
        assert_eq!(rate.per_second(), 100);
    }
}
