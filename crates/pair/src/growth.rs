//! How many legs there are: one more only where it has paid.
//!
//! Where the legs are full and what they carry no longer rises by itself, their number is doubled,
//! and the legs stay if the sum has risen by 15 % since. Otherwise they are given back, and it is
//! tried again only much later. schedule::ConcurrencyController does the same for logins and channels of SSH, whose
//! windows, refusals and costs are most of it; there are none here.

use std::time::{Duration, Instant};

/// The sum has to rise by so much.
const PAYS: f64 = 1.15;
/// Looks with full legs and no rise before more are tried.
const STEADY: u32 = 2;
/// Looks until new legs have to have paid: a window of many packets opens in a dozen round trips.
const TRIAL: u32 = 8;
/// Looks of it that do not count: what is in the queues is still that of fewer legs.
const SETTLE: u32 = 2;
const REST: Duration = Duration::from_secs(30);
const LONGEST_REST: Duration = Duration::from_secs(300);

/// How many legs there are.
#[derive(Debug)]
pub struct StripeController {
    wanted: usize,
    most: usize,
    fixed: bool,
    state: State,
    last: Option<(Instant, u64)>,
    rate: f64,
    rest: Duration,
    found: Option<Found>,
}

/// What was found by trying: how many legs pay, and what other numbers carried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// So many pay.
    pub legs: usize,
    /// Bytes a second that they carried.
    pub rate: f64,
    /// How many there were before or were given back, and what those carried.
    pub other: (usize, f64),
}

#[derive(Debug)]
enum State {
    /// So many looks with full legs and no rise.
    Watching(u32),
    /// So many looks after more were asked for; there were so many legs, with so much.
    Trying {
        looks: u32,
        before: usize,
        rate: f64,
    },
    Resting(Instant),
}

/// What there is to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeSample {
    /// Bytes that have come to the other end so far, both ways.
    pub bytes: u64,
    /// All legs have been full since the last look.
    pub full: bool,
    /// Legs there are.
    pub legs: usize,
}

impl StripeController {
    /// From one leg to `most`.
    pub fn new(most: usize) -> Self {
        Self {
            wanted: 1,
            most: most.max(1),
            fixed: false,
            state: State::Watching(0),
            last: None,
            rate: 0.0,
            rest: REST,
            found: None,
        }
    }

    /// The same from `legs` on, which have paid before.
    pub fn beginning(legs: usize, most: usize) -> Self {
        let most = most.max(1);
        Self {
            wanted: legs.clamp(1, most),
            ..Self::new(most)
        }
    }

    /// What was found by trying, if anything was.
    pub fn found(&self) -> Option<Found> {
        self.found
    }

    /// Always so many.
    pub fn fixed(legs: usize) -> Self {
        Self {
            wanted: legs.max(1),
            fixed: true,
            ..Self::new(legs)
        }
    }

    /// How many legs there should be.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Whether it is to be looked at all.
    pub fn looks(&self) -> bool {
        !self.fixed && self.most > 1
    }

    /// How long after a look the next one is worth something.
    pub fn interval(rtt: Duration) -> Duration {
        (rtt * 4).clamp(Duration::from_millis(200), Duration::from_secs(2))
    }

    /// Looks.
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
            State::Resting(until) if now < until => {}
            State::Resting(_) => self.state = State::Watching(0),
            State::Watching(_) if !look.full || rose => self.state = State::Watching(0),
            State::Watching(steady) if steady + 1 < STEADY => {
                self.state = State::Watching(steady + 1);
            }
            State::Watching(_) if look.legs >= self.most => {}
            State::Watching(_) => {
                let before = look.legs.max(1);
                self.wanted = (before * 2).min(self.most);
                self.state = State::Trying {
                    looks: 0,
                    before,
                    rate: rate.max(self.rate),
                };
            }
            State::Trying {
                looks,
                before,
                rate: was,
            } => {
                if looks >= SETTLE && rate > was * PAYS && look.legs > before {
                    self.rest = REST;
                    self.state = State::Watching(0);
                    self.found = Some(Found {
                        legs: look.legs,
                        rate,
                        other: (before, was),
                    });
                } else if looks >= TRIAL {
                    self.found = Some(Found {
                        legs: before,
                        rate: was,
                        other: (look.legs, rate),
                    });
                    self.wanted = before;
                    self.state = State::Resting(now + self.rest);
                    self.rest = (self.rest * 2).min(LONGEST_REST);
                } else {
                    self.state = State::Trying {
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

    /// A path that gives each leg so much, and all of them `whole` at most; what is offered is
    /// `source`. Legs open at once. The most legs there were, and how many there are in the end.
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
        // Each leg is held back: eight bring eight times as much.
        assert_eq!(grown(25e6, 1e9, 1e9, 100), (8, 8));
        // Four fill the path: eight are tried, and given back.
        assert_eq!(grown(25e6, 100e6, 1e9, 60), (8, 4));
        // One fills the path.
        assert_eq!(grown(100e6, 100e6, 1e9, 60), (2, 1));
        // Whoever sends is the limit.
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
        // Four fill the path: eight are tried, and bring nothing.
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
