use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Size of the burst that may pass after a pause, as a time at the limited rate.
const BURST: Duration = Duration::from_millis(100);
/// Size of a burst during a background copy, as a time at the limited rate; a burst queues on the
/// path and delays other traffic.
const FINE: Duration = Duration::from_millis(20);

/// Rate limit that several sessions share: those that run get equal parts of it.
#[derive(Clone, Debug)]
pub struct SharedRateLimit {
    /// Limit in bytes per second for all of them.
    rate: u64,
    running: Arc<AtomicU64>,
}

impl SharedRateLimit {
    /// A limit in bytes per second that no session has a part of yet.
    pub fn new(rate: u64) -> Self {
        Self {
            rate,
            running: Arc::default(),
        }
    }

    /// Takes a part, until the returned value is dropped.
    pub(super) fn join(&self) -> RateLimitPart {
        self.running.fetch_add(1, Ordering::Relaxed);
        RateLimitPart(self.clone())
    }
}

/// Part of a [`SharedRateLimit`] that one session has.
#[derive(Debug)]
pub(super) struct RateLimitPart(SharedRateLimit);

impl RateLimitPart {
    /// Returns its present size in bytes per second.
    pub(super) fn rate(&self) -> u64 {
        self.0.rate / self.0.running.load(Ordering::Relaxed).max(1)
    }
}

impl Drop for RateLimitPart {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Holds the bytes of a session, both directions together, to a rate (`-l`).
#[derive(Debug)]
pub(super) struct RateLimiter {
    /// Rate in bytes per second.
    rate: f64,
    burst: Duration,
    credit: f64,
    at: Instant,
    /// Total waiting time, start of the current wait, and start of the interval over which it is
    /// counted.
    held: Duration,
    held_since: Option<Instant>,
    counted_from: Instant,
}

impl RateLimiter {
    pub(super) fn new(rate: u64, now: Instant) -> Self {
        Self {
            rate: rate.max(1) as f64,
            burst: BURST,
            credit: 0.0,
            at: now,
            held: Duration::ZERO,
            held_since: None,
            counted_from: now,
        }
    }

    /// Creates a limiter that lets only short bursts through.
    pub(super) fn fine(rate: u64, now: Instant) -> Self {
        Self {
            burst: FINE,
            ..Self::new(rate, now)
        }
    }

    /// Sets the rate in bytes per second from now on.
    pub(super) fn set_rate(&mut self, now: Instant, rate: u64) {
        self.credit(now);
        self.rate = rate.max(1) as f64;
    }

    /// True if something waits for credit.
    pub(super) fn is_waiting(&self) -> bool {
        self.held_since.is_some()
    }

    /// Notes that something waits for credit, or no longer does.
    pub(super) fn note(&mut self, now: Instant, waits: bool) {
        match self.held_since {
            Some(since) if !waits => {
                self.held += now.saturating_duration_since(since);
                self.held_since = None;
            }
            None if waits => self.held_since = Some(now),
            _ => {}
        }
    }

    /// Share of the time since the last call in which something waited, 0 to 1.
    pub(super) fn take_share(&mut self, now: Instant) -> f64 {
        let waits = self.held_since.is_some();
        self.note(now, false);
        self.note(now, waits);
        let over = now.saturating_duration_since(self.counted_from);
        self.counted_from = now;
        let held = std::mem::take(&mut self.held);
        held.as_secs_f64() / over.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Bytes that may pass now.
    pub(super) fn credit(&mut self, now: Instant) -> usize {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.credit = (self.credit + passed * self.rate).min(self.rate * self.burst.as_secs_f64());
        self.credit.max(0.0) as usize
    }

    /// Deducts bytes that have passed, perhaps more than there was credit for.
    pub(super) fn spend(&mut self, bytes: usize) {
        self.credit -= bytes as f64;
    }

    /// Time at which there is credit again.
    pub(super) fn ready_at(&self) -> Instant {
        let wait = (self.burst.as_secs_f64() / 4.0).max((1.0 - self.credit) / self.rate);
        self.at + Duration::from_secs_f64(wait.min(3600.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_that_of_the_time_held_back() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut throttle = RateLimiter::new(1, start);
        throttle.note(at(100), true);
        throttle.note(at(200), true);
        throttle.note(at(350), false);
        assert!((throttle.take_share(at(500)) - 0.5).abs() < 1e-9);
        throttle.note(at(500), true);
        assert!((throttle.take_share(at(600)) - 1.0).abs() < 1e-9);
        assert!((throttle.take_share(at(700)) - 1.0).abs() < 1e-9);
        throttle.note(at(700), false);
        assert!(throttle.take_share(at(800)).abs() < 1e-9);
    }

    #[test]
    fn the_rate_holds_over_time_and_debts_are_paid() {
        let mut now = Instant::now();
        let mut throttle = RateLimiter::new(1_000_000, now);
        let (start, mut sent) = (now, 0);
        while sent < 3_000_000 {
            if throttle.credit(now) > 0 {
                throttle.spend(50_000);
                sent += 50_000;
            } else {
                assert!(throttle.ready_at() > now);
                now = throttle.ready_at();
            }
        }
        let took = (now - start).as_secs_f64();
        assert!((2.8..3.2).contains(&took), "{took}");
    }

    /// Sessions that end give their parts to the others; a limit that nobody uses is whole.
    #[test]
    fn sessions_that_run_have_equal_parts_of_a_shared_limit() {
        let limit = SharedRateLimit::new(1200);
        let mut parts: Vec<RateLimitPart> = Vec::new();
        let mut seed = testkit::Seed::new(22);
        for _ in 0..200 {
            match seed.below(2) == 0 && !parts.is_empty() {
                true => drop(parts.swap_remove(seed.below(parts.len() as u64) as usize)),
                false => parts.push(limit.join()),
            }
            for part in &parts {
                assert_eq!(part.rate(), 1200 / parts.len() as u64);
            }
        }
    }

    /// A pause saves up no more than a burst, and a clock that does not move gives nothing.
    #[test]
    fn a_pause_does_not_save_up_the_rate() {
        let now = Instant::now();
        let mut throttle = RateLimiter::new(1_000_000, now);
        assert_eq!(throttle.credit(now), 0);
        let later = now + Duration::from_secs(1000);
        assert_eq!(throttle.credit(later), 100_000);
        throttle.spend(100_000);
        assert_eq!(throttle.credit(later), 0, "it is spent once");
        let mut fine = RateLimiter::fine(1_000_000, now);
        assert_eq!(fine.credit(later), 20_000);
    }

    /// A rate of a few bytes per second still lets something pass at a time that can be waited for.
    #[test]
    fn the_slowest_rate_is_waited_for_an_hour_at_most() {
        for rate in [0, 1, 7, u64::MAX] {
            let now = Instant::now();
            let mut throttle = RateLimiter::new(rate, now);
            throttle.credit(now);
            throttle.spend(1 << 30);
            let wait = throttle.ready_at().saturating_duration_since(now);
            assert!(
                wait > Duration::ZERO && wait <= Duration::from_secs(3600),
                "{rate}: {wait:?}"
            );
        }
    }
}
