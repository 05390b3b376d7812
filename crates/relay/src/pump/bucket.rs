//! Token bucket that limits the rate of a flow.

use std::time::{Duration, Instant};

/// Token bucket: over any span of time at most the rate times the span, plus one burst, may pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    /// Rate in bytes per second.
    rate: u64,
    /// Bytes that may be sent now.
    level: u64,
    filled: Instant,
}

impl TokenBucket {
    /// Creates a full bucket.
    pub(crate) fn new(rate: u64, now: Instant) -> Self {
        let rate = rate.max(1);
        Self {
            rate,
            level: burst(rate),
            filled: now,
        }
    }

    /// Adds the tokens since the last call and returns the bytes that may be sent now.
    pub(crate) fn level(&mut self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.filled);
        let filled = since.as_nanos().saturating_mul(self.rate.into()) / 1_000_000_000;
        let filled = u64::try_from(filled).unwrap_or(u64::MAX);
        if filled > 0 {
            // The fraction of a byte remains as uncounted time.
            let counted = u128::from(filled) * 1_000_000_000 / u128::from(self.rate);
            self.filled += Duration::from_nanos(u64::try_from(counted).unwrap_or(u64::MAX));
            self.level = self.level.saturating_add(filled);
        }
        if self.level >= burst(self.rate) {
            self.level = burst(self.rate);
            self.filled = now;
        }
        self.level
    }

    /// Removes bytes that were sent.
    pub(crate) fn take(&mut self, bytes: u64) {
        self.level = self.level.saturating_sub(bytes);
    }

    /// Returns bytes that were taken but not sent.
    pub(crate) fn refund(&mut self, bytes: u64) {
        self.level = self.level.saturating_add(bytes).min(burst(self.rate));
    }

    /// Returns the time at which the bucket will be half full.
    pub(crate) fn again(&self) -> Instant {
        let wanted = (burst(self.rate) / 2).max(1);
        let missing = wanted.saturating_sub(self.level);
        let nanos = u128::from(missing) * 1_000_000_000 / u128::from(self.rate) + 1;
        self.filled + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Returns the capacity for a rate in bytes: 20 ms worth of it. A smaller one costs more in timers
/// and system calls than the smoother flow is worth.
fn burst(rate: u64) -> u64 {
    (rate / 50).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No span of time passes more than its share of the rate plus one burst, for any pattern of
    /// calls.
    #[test]
    fn a_rate_is_kept() {
        arbtest::arbtest(|u| {
            let begin = Instant::now();
            let rate = u.int_in_range(1..=10_000_000_u64)?;
            let mut bucket = TokenBucket::new(rate, begin);
            let (mut now, mut taken) = (begin, 0_u64);
            for _ in 0..u.int_in_range(1..=100)? {
                let level = bucket.level(now);
                let wanted = u.int_in_range(0..=100_000_u64)?.min(level);
                bucket.take(wanted);
                taken += wanted;
                let until = now.saturating_duration_since(begin).as_secs_f64();
                assert!(taken as f64 <= until * rate as f64 + burst(rate) as f64 + 1.0);
                now += match u.arbitrary()? {
                    true => bucket.again().saturating_duration_since(now),
                    false => Duration::from_micros(u.int_in_range(0..=50_000)?),
                };
            }
            assert!(bucket.level(now + Duration::from_secs(2)) > 0);
            Ok(())
        })
        .budget_ms(300);
    }

    /// A sender that takes everything each time the bucket is half full gets the full rate.
    #[test]
    fn a_rate_is_reached() {
        for rate in [1, 7, 1000, 1_000_003, 5_000_000_000] {
            let begin = Instant::now();
            let mut bucket = TokenBucket::new(rate, begin);
            let (mut now, mut taken) = (begin, 0);
            while now < begin + Duration::from_secs(20) {
                let level = bucket.level(now);
                bucket.take(level);
                taken += level;
                now = bucket.again().max(now + Duration::from_nanos(1));
            }
            let whole = rate as f64 * 20.0;
            assert!(
                (taken as f64 - whole).abs() <= whole / 40.0 + 2.0,
                "{rate}: {taken}"
            );
        }
    }
}
