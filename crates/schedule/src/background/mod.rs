//! Rate of a background copy, which yields to all other traffic.

mod base;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::base::BaseDelays;

/// Queueing delay that the controller aims at. RFC 6817 allows 100 ms at most, which is audible in
/// a call; a quarter of it is one frame of video, and still several times the delay that local
/// timers and batches add (docs/design/0004-background.md has the sweep).
const TARGET: Duration = Duration::from_millis(25);

/// Minimum rate in bytes per second: an SSH connection that moves nothing looks dead, and a path on
/// which this rate is felt is unsuitable for a copy.
const FLOOR: f64 = 16e3;

/// Initial window in bytes: the ten segments of RFC 6928. The first answers measure the path
/// without a queue; with 64 kB on 2 Mbit/s they waited a quarter of a second for each other, and
/// that was taken for the delay of the path from then on.
const INITIAL: f64 = 14.6e3;
/// Growth of the window per round trip without any queue, after slow start: a hundredfold loss is
/// regained in about twenty-five round trips.
const GAIN: f64 = 0.2;
/// Near the target, the relative error of the queueing delay changes the window by this share per
/// round trip: measurements are a round trip old, and a larger share would oscillate.
const DAMPED: f64 = 0.5;
/// Queueing delay, in units of the target, that own oscillation does not explain: other traffic
/// fills the queue.
const NOISE: f64 = 1.15;
/// Factor applied to the window after a loss (RFC 6817 section 2.4.2).
const LOSS: f64 = 0.5;
/// Interval for measuring the base delay with no own data in the queue, as LEDBAT++ does
/// (draft-irtf-iccrg-ledbat-plus-plus section 4.4); otherwise the own queue would be taken for the
/// path.
const REST_EVERY: Duration = Duration::from_secs(60);
/// Number of samples of which the lowest counts (RFC 6817's CURRENT_FILTER): one late sample is no
/// queue.
const FILTER: usize = 2;
/// Factor of the pacing rate over the window's rate: the window limits the flow, the rate only
/// prevents bursts.
const PACING: f64 = 1.25;
/// Maximum ratio of the window to the data moved per round trip (RFC 6817 section 2.4.2).
const ALLOWED: f64 = 2.0;

/// Measurements of the path from which the rate of a background copy is set; counters run from its
/// beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackgroundPathSample {
    /// Time of the sample.
    pub now: Instant,
    /// TCP's smoothed round trip, if data were acknowledged since the last sample.
    pub round_trip: Option<Duration>,
    /// Shortest response time of the requests answered since the last sample. It includes the
    /// server's work, and is not smoothed.
    pub answer: Option<Duration>,
    /// Bytes that the receiver has confirmed.
    pub moved: u64,
    /// Packets lost, as far as known locally.
    pub lost: u64,
}

/// Rate and window until the next sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BackgroundAllowance {
    /// Maximum rate in bytes per second.
    pub rate: f64,
    /// Maximum number of bytes in requests without an answer.
    pub in_flight: u64,
}

/// Rate control that uses only the capacity that other traffic leaves: LEDBAT (RFC 6817), with a
/// window that grows by a share of itself instead of by a packet, since a gigabit across an ocean
/// has ten thousand packets in flight.
///
/// The input is the delay that queues anywhere on the path add to a round trip. Below the target of
/// 25 ms the window grows; above it the window shrinks, by half per round trip at twice the target.
/// A loss halves the window. The lower of two delay measurements counts, since each includes all
/// queues. TCP's excludes the server's work, but is smoothed over eight acknowledgements, which may
/// take seconds at a low rate, and includes delayed acknowledgements. Call
/// [`BackgroundRateControl::sample`] every [`BackgroundRateControl::interval`].
#[derive(Clone, Debug)]
pub struct BackgroundRateControl {
    window: f64,
    round_trips: BaseDelays,
    answers: BaseDelays,
    /// Recent queueing delays, latest first.
    recent: VecDeque<Duration>,
    slow_start: bool,
    last: Option<BackgroundPathSample>,
    /// Rate of confirmed bytes over the last round trips, in bytes per second.
    delivered: f64,
    lost_at: Option<Instant>,
    adjusted_at: Option<Instant>,
    rest: BaseDelayPause,
}

/// Schedule of the pauses in which the base delay is measured.
#[derive(Clone, Copy, Debug)]
enum BaseDelayPause {
    /// Time of the next pause.
    Next(Option<Instant>),
    /// End of the current pause, and the window to restore.
    Resting(Instant, f64),
}

impl Default for BackgroundRateControl {
    fn default() -> Self {
        Self::new()
    }
}

impl BackgroundRateControl {
    /// Creates a controller that knows nothing of the path yet.
    pub fn new() -> Self {
        Self {
            window: INITIAL,
            round_trips: BaseDelays::default(),
            answers: BaseDelays::default(),
            recent: VecDeque::new(),
            slow_start: true,
            last: None,
            delivered: 0.0,
            lost_at: None,
            adjusted_at: None,
            rest: BaseDelayPause::Next(None),
        }
    }

    /// Returns the interval between samples: half a round trip, within bounds.
    pub fn interval(&self) -> Duration {
        (self.least_delay() / 2).clamp(Duration::from_millis(5), Duration::from_millis(100))
    }

    /// Returns the latest queueing delay.
    pub fn queueing(&self) -> Option<Duration> {
        self.recent.iter().min().copied()
    }

    /// Handles a sample and returns the allowance until the next one.
    pub fn sample(&mut self, sample: BackgroundPathSample) -> BackgroundAllowance {
        let now = sample.now;
        let seen = [
            self.round_trips.queueing(now, sample.round_trip),
            self.answers.queueing(now, sample.answer),
        ];
        let seen = seen.into_iter().flatten().min();
        if let Some(seen) = seen {
            self.recent.push_front(seen);
            self.recent.truncate(FILTER);
        }
        let Some(last) = self.last.replace(sample) else {
            return self.allowance();
        };
        let passed = now.saturating_duration_since(last.now).as_secs_f64();
        let moved = sample.moved.saturating_sub(last.moved) as f64;
        if passed > 0.0 {
            let weight = (passed / self.round_trip() / 2.0).min(1.0);
            self.delivered += (moved / passed - self.delivered) * weight;
        }
        if self.rests(now) {
            return self.allowance();
        }
        if sample.lost > last.lost {
            self.lose(now);
        } else if seen.is_some() {
            // Samples within one round trip count in proportion to the time passed.
            let since = self.adjusted_at.unwrap_or(last.now);
            let passed = now.saturating_duration_since(since).as_secs_f64();
            self.adjusted_at = Some(now);
            self.adjust((passed / self.round_trip()).min(1.0));
        }
        if self.window < self.least() {
            self.window = self.least();
            // Measurements of the path are out of date, as after a TCP timeout.
            self.slow_start = true;
        }
        self.allowance()
    }

    fn adjust(&mut self, part: f64) {
        let Some(queueing) = self.queueing() else {
            return;
        };
        let queueing = queueing.as_secs_f64() / TARGET.as_secs_f64();
        // Share of the window that a queue of the target's length holds.
        let weight = TARGET.as_secs_f64() / self.round_trip();
        if queueing > 1.0 {
            self.slow_start = false;
            let near = DAMPED * weight * (queueing - 1.0);
            let far = (queueing - NOISE).max(0.0);
            self.window *= 1.0 - part * (near + far).min(0.5);
            return;
        }
        // RFC 9406: leaving slow start only when the queue is full would be too late.
        self.slow_start &= queueing < 0.5;
        let gain = match self.slow_start {
            true => 1.0,
            false => {
                let near = DAMPED * weight * (1.0 - queueing);
                near.min(GAIN).max(GAIN * (1.0 - 2.0 * queueing))
            }
        };
        // A limit by the disk or the server says nothing about the path, and a window grown
        // meanwhile would be sent as one burst.
        let used = ALLOWED * self.delivered * self.round_trip();
        if self.window < used.max(INITIAL) {
            self.window *= 1.0 + part * gain;
        }
    }

    fn lose(&mut self, now: Instant) {
        let round_trip = Duration::from_secs_f64(self.round_trip());
        let told = |at: Instant| now.saturating_duration_since(at) < round_trip;
        // All losses within one round trip count as one signal.
        if !self.lost_at.is_some_and(told) {
            self.lost_at = Some(now);
            self.slow_start = false;
            self.window *= LOSS;
        }
    }

    /// Returns true during a pause for measuring the base delay.
    fn rests(&mut self, now: Instant) -> bool {
        match self.rest {
            BaseDelayPause::Next(None) => self.rest = BaseDelayPause::Next(Some(now + REST_EVERY)),
            BaseDelayPause::Next(Some(at)) if at <= now && !self.slow_start => {
                // The own queue drains first, then a round trip shows the delay of the path.
                let drains = self.queueing().unwrap_or_default();
                let lasts = drains + Duration::from_secs_f64(2.0 * self.round_trip());
                self.rest = BaseDelayPause::Resting(now + lasts, self.window);
                self.window = self.least();
                return true;
            }
            BaseDelayPause::Next(_) => {}
            BaseDelayPause::Resting(until, _) if now < until => return true,
            BaseDelayPause::Resting(_, window) => {
                self.window = window;
                self.rest = BaseDelayPause::Next(Some(now + REST_EVERY));
            }
        }
        false
    }

    /// Returns the response time without queues.
    fn least_delay(&self) -> Duration {
        let known = self.answers.least().or_else(|| self.round_trips.least());
        known.unwrap_or_default()
    }

    /// Returns the round trip including queues in seconds, at least one millisecond.
    fn round_trip(&self) -> f64 {
        let now = self.least_delay() + self.queueing().unwrap_or_default();
        now.max(Duration::from_millis(1)).as_secs_f64()
    }

    fn least(&self) -> f64 {
        FLOOR * self.round_trip()
    }

    fn allowance(&self) -> BackgroundAllowance {
        let rate = self.window / self.round_trip();
        BackgroundAllowance {
            rate: (PACING * rate).max(FLOOR),
            in_flight: self.window as u64,
        }
    }
}
