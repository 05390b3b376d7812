//! Number of stripes: more are added only if they raise the rate.
//!
//! If all stripes are full and the total rate no longer rises by itself, their number is doubled.
//! The new ones stay if the total has risen by 15 %; otherwise they are closed, and the next trial
//! comes much later. `schedule::ConcurrencyController` does this for SSH logins and channels and
//! has to handle windows, refusals and costs, which stripes do not have.

use std::time::{Duration, Instant};

/// Factor by which the total rate has to rise.
const PAYS: f64 = 1.15;
/// Samples with full stripes and no rise before more are tried.
const STEADY: u32 = 2;
/// Samples until new stripes must have paid: a congestion window of many packets opens in a dozen
/// round trips.
const TRIAL: u32 = 8;
/// First samples of a trial that do not count: queues still hold data from before.
const SETTLE: u32 = 2;
const REST: Duration = Duration::from_secs(30);
const LONGEST_REST: Duration = Duration::from_secs(300);

/// Decides the number of stripes of one connection from samples of its rate: it is doubled on
/// trial, and reduced again if the rate did not rise enough.
#[derive(Debug)]
pub struct StripeController {
    wanted: usize,
    most: usize,
    fixed: bool,
    state: StripeTrialState,
    last: Option<(Instant, u64)>,
    rate: f64,
    rest: Duration,
    found: Option<StripeTrialResult>,
}

/// Result of a trial: the number of stripes that paid, and the rate of another number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StripeTrialResult {
    /// Number of stripes that paid.
    pub legs: usize,
    /// Rate that they carried, in bytes per second.
    pub rate: f64,
    /// Number of stripes before the trial, or the number that was given up, and its rate.
    pub other: (usize, f64),
}

/// Phase of the controller: waiting for a steady rate, a trial with more stripes, or the pause
/// after a failed trial.
#[derive(Debug)]
enum StripeTrialState {
    /// Number of samples with full stripes and no rise.
    Watching(u32),
    /// Number of samples since more stripes were requested; the number of stripes before, and their
    /// rate.
    Trying {
        looks: u32,
        before: usize,
        rate: f64,
    },
    Resting(Instant),
}

/// Counters that the relay reads from a connection at regular intervals, see
/// [`StripeController::interval`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeSample {
    /// Bytes that have reached the other end so far, both directions.
    pub bytes: u64,
    /// All stripes have been full since the last sample.
    pub full: bool,
    /// Current number of stripes.
    pub legs: usize,
}

impl StripeController {
    /// Creates a controller that starts with one stripe and goes up to `most`.
    pub fn new(most: usize) -> Self {
        Self {
            wanted: 1,
            most: most.max(1),
            fixed: false,
            state: StripeTrialState::Watching(0),
            last: None,
            rate: 0.0,
            rest: REST,
            found: None,
        }
    }

    /// Creates a controller that starts with `legs` stripes, the number that paid on this path
    /// before.
    pub fn beginning(legs: usize, most: usize) -> Self {
        let most = most.max(1);
        Self {
            wanted: legs.clamp(1, most),
            ..Self::new(most)
        }
    }

    /// Returns the result of the last trial, if there was one.
    pub fn found(&self) -> Option<StripeTrialResult> {
        self.found
    }

    /// Creates a controller with a constant number of stripes.
    pub fn fixed(legs: usize) -> Self {
        Self {
            wanted: legs.max(1),
            fixed: true,
            ..Self::new(legs)
        }
    }

    /// Returns the number of stripes that there should be.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Reports if samples can change the number of stripes.
    pub fn looks(&self) -> bool {
        !self.fixed && self.most > 1
    }

    /// Returns the useful time between two samples for a round-trip time.
    pub fn interval(rtt: Duration) -> Duration {
        (rtt * 4).clamp(Duration::from_millis(200), Duration::from_secs(2))
    }

    /// Takes a sample and decides about the number of stripes.
    pub fn look(&mut self, look: StripeSample, now: Instant) {
        let Some((then, bytes)) = self.last.replace((now, look.bytes)) else {
            return;
        };
        let took = now.saturating_duration_since(then).as_secs_f64();
        if self.fixed || took <= 0.0 {
            return;
        }
        let rate = look.bytes.saturating_sub(bytes) as f64 / took;
        let rose = rate > self.rate * PAYS;
        match self.state {
            StripeTrialState::Resting(until) if now < until => {}
            StripeTrialState::Resting(_) => self.state = StripeTrialState::Watching(0),
            StripeTrialState::Watching(_) if !look.full || rose => {
                self.state = StripeTrialState::Watching(0)
            }
            StripeTrialState::Watching(steady) if steady + 1 < STEADY => {
                self.state = StripeTrialState::Watching(steady + 1);
            }
            StripeTrialState::Watching(_) if look.legs >= self.most => {}
            StripeTrialState::Watching(_) => {
                let before = look.legs.max(1);
                self.wanted = (before * 2).min(self.most);
                self.state = StripeTrialState::Trying {
                    looks: 0,
                    before,
                    rate: rate.max(self.rate),
                };
            }
            StripeTrialState::Trying {
                looks,
                before,
                rate: was,
            } => {
                if looks >= SETTLE && rate > was * PAYS && look.legs > before {
                    self.rest = REST;
                    self.state = StripeTrialState::Watching(0);
                    self.found = Some(StripeTrialResult {
                        legs: look.legs,
                        rate,
                        other: (before, was),
                    });
                } else if looks >= TRIAL {
                    self.found = Some(StripeTrialResult {
                        legs: before,
                        rate: was,
                        other: (look.legs, rate),
                    });
                    self.wanted = before;
                    self.state = StripeTrialState::Resting(now + self.rest);
                    self.rest = (self.rest * 2).min(LONGEST_REST);
                } else {
                    self.state = StripeTrialState::Trying {
                        looks: looks + 1,
                        before,
                        rate: was,
                    };
                }
            }
        }
        self.rate = rate;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a path that gives each stripe `each` and all of them at most `whole`, with a
    /// source of rate `source`. Stripes open at once. Returns the highest and the final number of
    /// stripes.
    fn grown(each: f64, whole: f64, source: f64, looks: u32) -> (usize, usize) {
        let mut growth = StripeController::new(8);
        #[allow(clippy::disallowed_methods, reason = "time begins somewhere")]
        let mut now = Instant::now();
        let (mut bytes, mut most) = (0.0, 0);
        for _ in 0..looks {
            let legs = growth.wanted();
            let carries = (each * legs as f64).min(whole);
            let look = StripeSample {
                bytes: bytes as u64,
                full: source > carries,
                legs,
            };
            growth.look(look, now);
            now += Duration::from_millis(250);
            bytes += carries.min(source) / 4.0;
            most = most.max(growth.wanted());
        }
        (most, growth.wanted())
    }

    #[test]
    fn legs_grow_while_the_sum_does() {
        // Each stripe is limited: eight carry eight times as much.
        assert_eq!(grown(25e6, 1e9, 1e9, 100), (8, 8));
        // Four stripes fill the path: eight are tried and given up.
        assert_eq!(grown(25e6, 100e6, 1e9, 60), (8, 4));
        // One stripe fills the path.
        assert_eq!(grown(100e6, 100e6, 1e9, 60), (2, 1));
        // The sender is the limit.
        assert_eq!(grown(25e6, 1e9, 20e6, 100), (1, 1));
    }

    #[test]
    fn what_was_found_is_where_the_next_one_begins() {
        let mut growth = StripeController::beginning(4, 8);
        assert_eq!((growth.wanted(), growth.found()), (4, None));
        assert_eq!(StripeController::beginning(16, 8).wanted(), 8);
        #[allow(clippy::disallowed_methods, reason = "time begins somewhere")]
        let mut now = Instant::now();
        let mut bytes = 0;
        // Four stripes fill the path: eight are tried and gain nothing.
        for _ in 0..40 {
            let look = StripeSample {
                bytes,
                full: true,
                legs: growth.wanted(),
            };
            growth.look(look, now);
            now += Duration::from_millis(250);
            bytes += 25_000_000;
        }
        let found = growth.found().expect("eight were tried");
        assert_eq!((found.legs, found.other.0), (4, 8));
        assert!((found.rate - 1e8).abs() < 1e6, "{found:?}");
    }

    #[test]
    fn a_number_that_was_given_stays() {
        let mut growth = StripeController::fixed(5);
        #[allow(clippy::disallowed_methods, reason = "time begins somewhere")]
        let now = Instant::now();
        for n in 0..50_u32 {
            let look = StripeSample {
                bytes: u64::from(n),
                full: true,
                legs: 5,
            };
            growth.look(look, now + Duration::from_secs(n.into()));
        }
        assert_eq!(growth.wanted(), 5);
        assert!(!growth.looks());
    }
}
