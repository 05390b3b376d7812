//! Measures a lane's rate over the time in which it has bytes to move.

use std::time::{Duration, Instant};

/// Averaging time of a rate.
const SPAN: Duration = Duration::from_millis(250);
/// Bytes that a lane must move before its rate counts as known; the start alone says little.
const KNOWN: u64 = 4 << 20;
/// Time after which the rate counts as known with fewer bytes.
const KNOWN_AFTER: Duration = Duration::from_millis(500);

/// Recent rate of a lane in bytes per second.
#[derive(Debug, Default)]
pub(super) struct RateMeter {
    /// Start of the busy time that has not been counted yet.
    since: Option<Instant>,
    /// Busy time and bytes that are counted but not in the rate yet.
    time: Duration,
    bytes: u64,
    /// Totals before that.
    all_time: Duration,
    all_bytes: u64,
    rate: Option<f64>,
    known: bool,
    /// Rate of the last averaging time alone, and if it was well above the one before.
    last: f64,
    grows: bool,
}

/// Ratio of two successive rates above which a lane is still in slow start.
const GROWS: f64 = 1.3;

impl RateMeter {
    /// Records that the lane has, or no longer has, bytes to move; idle time does not count.
    pub(super) fn works(&mut self, now: Instant, works: bool) {
        self.count(now);
        self.since = works.then_some(now);
    }

    /// Records moved bytes. Unannounced bytes, as of a file of unknown size, do not count.
    pub(super) fn moved(&mut self, now: Instant, bytes: u64) {
        if self.since.is_none() {
            return;
        }
        self.count(now);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.time < SPAN {
            return;
        }
        let rate = self.bytes as f64 / self.time.as_secs_f64();
        self.all_time += self.time;
        self.all_bytes = self.all_bytes.saturating_add(self.bytes);
        (self.time, self.bytes) = (Duration::ZERO, 0);
        self.grows = self.last > 0.0 && rate > GROWS * self.last;
        self.last = rate;
        let before = self.rate.unwrap_or(rate);
        self.rate = Some((before + rate) / 2.0);
        self.known = self.all_bytes >= KNOWN || self.all_time >= KNOWN_AFTER;
    }

    /// Returns the rate; `None` until it is known.
    pub(super) fn rate(&self) -> Option<f64> {
        self.rate.filter(|_| self.known)
    }

    /// Returns the latest rate while it grows from one averaging time to the next, as in slow start.
    pub(super) fn growing(&self) -> Option<f64> {
        (self.known && self.grows).then_some(self.last)
    }

    /// Returns the rate so far, which for a fast lane is known before the first averaging time
    /// ends. At 3 GB/s that time is 700 MB, of which a lane moved two thirds while it had one range
    /// at a time.
    pub(super) fn so_far(&self) -> Option<f64> {
        let moved = self.bytes >= KNOWN && !self.time.is_zero();
        let begun = moved.then(|| self.bytes as f64 / self.time.as_secs_f64());
        self.rate.or(begun)
    }

    /// Returns the bytes that the lane moves in `seconds`; until the rate is known, at most as many
    /// as it has moved so far.
    pub(super) fn lasting(&self, seconds: f64) -> u64 {
        let bytes = self.so_far().map_or(0, |rate| (seconds * rate) as u64);
        match self.known {
            true => bytes,
            false => bytes.min(self.all_bytes.saturating_add(self.bytes)),
        }
    }

    fn count(&mut self, now: Instant) {
        if let Some(since) = &mut self.since {
            self.time += now.saturating_duration_since(*since);
            *since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Moves `bytes` in each of `steps` steps of 10 ms.
    fn move_on(meter: &mut RateMeter, now: &mut Instant, steps: u64, bytes: u64) {
        for _ in 0..steps {
            *now += ms(10);
            meter.moved(*now, bytes);
        }
    }

    #[test]
    fn time_without_anything_to_move_does_not_count() {
        let mut now = testkit::sftp_model::epoch();
        let mut meter = RateMeter::default();
        for _ in 0..10 {
            meter.works(now, true);
            move_on(&mut meter, &mut now, 10, MB);
            meter.works(now, false);
            now += Duration::from_secs(20);
        }
        let rate = meter.rate().expect("it has moved 100 MiB") / MB as f64;
        assert!((99.0..101.0).contains(&rate), "{rate} MiB/s");
    }

    #[test]
    fn how_a_lane_begins_is_not_its_rate() {
        let mut now = testkit::sftp_model::epoch();
        let mut meter = RateMeter::default();
        meter.works(now, true);
        move_on(&mut meter, &mut now, 30, 30_000);
        assert_eq!(meter.rate(), None);
        move_on(&mut meter, &mut now, 20, 2 * MB);
        assert!(meter.rate().is_some_and(|rate| rate > 80e6));
    }

    #[test]
    fn a_fast_lane_shows_it_within_the_first_span() {
        let mut now = testkit::sftp_model::epoch();
        let mut meter = RateMeter::default();
        meter.works(now, true);
        move_on(&mut meter, &mut now, 3, MB);
        assert_eq!(meter.so_far(), None);
        move_on(&mut meter, &mut now, 2, MB);
        assert_eq!(meter.lasting(0.1), 5 * MB);
        let rate = meter.so_far().expect("it has moved 5 MiB") / MB as f64;
        assert!((99.0..101.0).contains(&rate), "{rate} MiB/s");
        assert_eq!(meter.rate(), None);
    }

    #[test]
    fn a_lane_in_slow_start_grows_until_its_rate_is_level() {
        let mut now = testkit::sftp_model::epoch();
        let mut meter = RateMeter::default();
        meter.works(now, true);
        for bytes in [10_000, 40_000, 160_000] {
            move_on(&mut meter, &mut now, 25, bytes);
        }
        let rate = meter.growing().expect("it grows fourfold in each span");
        assert!((15e6..17e6).contains(&rate), "{rate}");
        move_on(&mut meter, &mut now, 25, 160_000);
        assert_eq!(meter.growing(), None);
    }

    #[test]
    fn a_slow_lane_is_known_to_be_slow_after_half_a_second() {
        let mut now = testkit::sftp_model::epoch();
        let mut meter = RateMeter::default();
        meter.works(now, true);
        move_on(&mut meter, &mut now, 49, 1000);
        assert_eq!(meter.rate(), None);
        assert!(meter.so_far().is_some());
        move_on(&mut meter, &mut now, 1, 1000);
        let rate = meter.rate().expect("it had its time");
        assert!((99_000.0..101_000.0).contains(&rate), "{rate} B/s");
    }
}
