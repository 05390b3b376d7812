//! How fast a transfer may go that yields to all other traffic.

mod base;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::base::BaseDelays;

/// How much delay of queues is meant to be kept. RFC 6817 allows 100 ms at most, and that much is
/// heard in a call; a quarter of it is what one frame of video takes, and still several times what
/// timers and batches of this end add (docs/design/0004-background.md has the sweep).
const TARGET: Duration = Duration::from_millis(25);

/// Never slower, in bytes a second: an SSH connection that moves nothing looks dead, and a path on
/// which this much is felt is one that a copy should not be on.
const FLOOR: f64 = 16e3;

/// In flight at the beginning: RFC 6928's ten segments. The first answers say what the path takes
/// without a queue; with 64 kB, on 2 Mbit/s they had waited for each other for a quarter of a second,
/// which was taken for the path from then on.
const INITIAL: f64 = 14.6e3;
/// Growth in a round trip without any queue, once past the slow start: lost ground of a hundredfold
/// is won back in some twenty-five round trips.
const GAIN: f64 = 0.2;
/// Near the target a queue that is too long or too short by so much changes the window by half as
/// much in a round trip: what is seen is a round trip old, and more would swing.
const DAMPED: f64 = 0.5;
/// In units of the target, a queue that no swing of ours explains: somebody else fills it.
const NOISE: f64 = 1.15;
/// What a loss leaves (RFC 6817 section 2.4.2).
const LOSS: f64 = 0.5;
/// How often the base delay is measured anew with nothing of ours in the queue, as LEDBAT++ does
/// (draft-irtf-iccrg-ledbat-plus-plus section 4.4): else our own queue is believed to be the path.
const REST_EVERY: Duration = Duration::from_secs(60);
/// Samples of which the lowest counts (RFC 6817's CURRENT_FILTER): one late one is no queue.
const FILTER: usize = 2;
/// The window is what holds a flow back; the rate is there so that it does not leave at once.
const PACING: f64 = 1.25;
/// How much more than was moved the window may hold (RFC 6817 section 2.4.2).
const ALLOWED: f64 = 2.0;

/// What was measured until now; counters run from the beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackgroundSample {
    /// When.
    pub now: Instant,
    /// TCP's smoothed round trip, where something was acknowledged since the last sample.
    pub round_trip: Option<Duration>,
    /// The shortest time to the answer of a request of those answered since the last sample. It
    /// holds the server's work, and is not smoothed.
    pub answer: Option<Duration>,
    /// Bytes that the receiver has confirmed.
    pub moved: u64,
    /// Packets lost, as far as this end can tell.
    pub lost: u64,
}

/// What may be done until the next sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Allowance {
    /// Bytes a second.
    pub rate: f64,
    /// Bytes without an answer.
    pub in_flight: u64,
}

/// A rate that fills what others leave of a path: LEDBAT (RFC 6817), with a window that grows by
/// a share of itself instead of a packet, since a gigabit across an ocean has ten thousand of them
/// in flight.
///
/// It goes by the delay that queues add to a round trip, wherever on the way they are: below the
/// target of 25 ms the window grows, above it shrinks, by half in a round trip at twice the target.
/// A loss halves it. Of two measurements the lower one counts, since each holds all queues: TCP's
/// is free of the server's work, but smoothed over eight acknowledgements, which may be seconds
/// where little moves, and holds acknowledgements that the far end put off. Call [`Background::sample`] every [`Background::interval`].
#[derive(Clone, Debug)]
pub struct Background {
    window: f64,
    round_trips: BaseDelays,
    answers: BaseDelays,
    /// Delays that queues added, the last first.
    recent: VecDeque<Duration>,
    slow_start: bool,
    last: Option<BackgroundSample>,
    /// Rate at which bytes were confirmed, over the last round trips.
    delivered: f64,
    lost_at: Option<Instant>,
    adjusted_at: Option<Instant>,
    rest: BaseDelayPause,
}

/// Pauses in which the base delay is measured.
#[derive(Clone, Copy, Debug)]
enum BaseDelayPause {
    /// Until then.
    Next(Option<Instant>),
    /// Until then, and with which window it goes on.
    Resting(Instant, f64),
}

impl Default for Background {
    fn default() -> Self {
        Self::new()
    }
}

impl Background {
    /// Nothing is known of the path.
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

    /// How often to take a sample: half a round trip, within bounds.
    pub fn interval(&self) -> Duration {
        (self.least_delay() / 2).clamp(Duration::from_millis(5), Duration::from_millis(100))
    }

    /// Delay that queues add, as last seen.
    pub fn queueing(&self) -> Option<Duration> {
        self.recent.iter().min().copied()
    }

    /// Takes a sample, and says what is allowed until the next.
    pub fn sample(&mut self, sample: BackgroundSample) -> Allowance {
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
            // Of a round trip; what was seen within one counts for less.
            let since = self.adjusted_at.unwrap_or(last.now);
            let passed = now.saturating_duration_since(since).as_secs_f64();
            self.adjusted_at = Some(now);
            self.adjust((passed / self.round_trip()).min(1.0));
        }
        if self.window < self.least() {
            self.window = self.least();
            // Whatever was learned of the path is history, as behind a timeout of TCP.
            self.slow_start = true;
        }
        self.allowance()
    }

    fn adjust(&mut self, part: f64) {
        let Some(queueing) = self.queueing() else {
            return;
        };
        let queueing = queueing.as_secs_f64() / TARGET.as_secs_f64();
        // How much of the window a queue as long as the target is.
        let weight = TARGET.as_secs_f64() / self.round_trip();
        if queueing > 1.0 {
            self.slow_start = false;
            let near = DAMPED * weight * (queueing - 1.0);
            let far = (queueing - NOISE).max(0.0);
            self.window *= 1.0 - part * (near + far).min(0.5);
            return;
        }
        // RFC 9406: to leave the slow start only when the queue is full would be too late.
        self.slow_start &= queueing < 0.5;
        let gain = match self.slow_start {
            true => 1.0,
            false => {
                let near = DAMPED * weight * (1.0 - queueing);
                near.min(GAIN).max(GAIN * (1.0 - 2.0 * queueing))
            }
        };
        // What the disk or the server holds back says nothing of the path, and a window that grew
        // meanwhile would come as one burst.
        let used = ALLOWED * self.delivered * self.round_trip();
        if self.window < used.max(INITIAL) {
            self.window *= 1.0 + part * gain;
        }
    }

    fn lose(&mut self, now: Instant) {
        let round_trip = Duration::from_secs_f64(self.round_trip());
        let told = |at: Instant| now.saturating_duration_since(at) < round_trip;
        // All losses of one round trip are one sign.
        if !self.lost_at.is_some_and(told) {
            self.lost_at = Some(now);
            self.slow_start = false;
            self.window *= LOSS;
        }
    }

    /// Whether this is a pause for the base delay.
    fn rests(&mut self, now: Instant) -> bool {
        match self.rest {
            BaseDelayPause::Next(None) => self.rest = BaseDelayPause::Next(Some(now + REST_EVERY)),
            BaseDelayPause::Next(Some(at)) if at <= now && !self.slow_start => {
                // Our own queue drains in its own time, and then a round trip shows the path.
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

    /// What a request takes without queues.
    fn least_delay(&self) -> Duration {
        let known = self.answers.least().or_else(|| self.round_trips.least());
        known.unwrap_or_default()
    }

    /// With the queues, in seconds: how long the window is in flight.
    fn round_trip(&self) -> f64 {
        let now = self.least_delay() + self.queueing().unwrap_or_default();
        now.max(Duration::from_millis(1)).as_secs_f64()
    }

    fn least(&self) -> f64 {
        FLOOR * self.round_trip()
    }

    fn allowance(&self) -> Allowance {
        let rate = self.window / self.round_trip();
        Allowance {
            rate: (PACING * rate).max(FLOOR),
            in_flight: self.window as u64,
        }
    }
}
