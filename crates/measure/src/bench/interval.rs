//! Confidence intervals of medians without assumptions about the distribution, and a test of the
//! difference of two series.
//!
//! Program run times are not normally distributed: they have a floor and a long tail. The intervals
//! therefore use only the order of the values (the sign test; Conover, Practical Nonparametric
//! Statistics, 3.2).

use serde::{Deserialize, Serialize};

/// Coverage of an interval that is reported.
pub const USUAL: f64 = 0.95;
/// Coverage required to call two series different; it is higher because a table has many pairs.
pub const SURE: f64 = 0.99;

/// The median of some values, with a confidence interval for that of the distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ConfidenceInterval {
    /// The lower end, which is one of the values.
    pub low: f64,
    /// The median of the values.
    pub median: f64,
    /// The upper end, which is one of the values.
    pub high: f64,
    /// Probability that the true median lies between the ends, from 0 to 1. It is lower than
    /// requested if there are too few values: five give at most 0.94, one gives 0.
    pub coverage: f64,
    /// Number of values.
    pub count: usize,
}

impl ConfidenceInterval {
    /// The narrowest interval that covers `wanted`, or all values if none does. Non-finite values
    /// are skipped; `None` if no value remains.
    pub fn of(values: impl IntoIterator<Item = f64>, wanted: f64) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let median = crate::RunStatistics::of(values.iter().copied())?.median;
        // Cutting `each` values at both ends costs twice the probability that so few lie there.
        let (mut each, mut coverage) = (0, 1.0 - 2.0 * below(count, 0));
        while 2 * (each + 1) < count {
            let next = 1.0 - 2.0 * below(count, each + 1);
            if next < wanted {
                break;
            }
            (each, coverage) = (each + 1, next);
        }
        Some(Self {
            low: *values.get(each)?,
            median,
            high: *values.get(count - 1 - each)?,
            coverage: coverage.max(0.0),
            count,
        })
    }

    /// Half the width, as a share of the median.
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0 / self.median
    }

    /// Returns true if more values would add nothing useful: the interval covers [`USUAL`], and its
    /// half width is at most `share`.
    pub fn is_narrow(&self, share: f64) -> bool {
        self.coverage >= USUAL && self.half_width() <= share
    }

    /// Returns true if the two intervals do not overlap.
    pub fn apart(&self, other: &Self) -> bool {
        self.low > other.high || self.high < other.low
    }
}

/// The probability that at most `most` of `count` values lie below the median.
fn below(count: usize, most: usize) -> f64 {
    // Beyond this, more values change the interval too little to matter.
    let count = count.min(1000);
    let mut term = 0.5_f64.powi(count as i32);
    let mut sum = term;
    for number in 1..=most.min(count) {
        term *= (count + 1 - number) as f64 / number as f64;
        sum += term;
    }
    sum
}

/// Ratio of two series that were measured alternately, as a confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairedRatio {
    /// First by second; 1 means equal.
    pub ratio: ConfidenceInterval,
}

impl PairedRatio {
    /// Compares values that were measured alternately, one pair in each round. Influences on both,
    /// such as heat or another program, cancel out.
    pub fn paired(rounds: &[(f64, f64)]) -> Option<Self> {
        let ratios = rounds.iter().map(|(first, second)| first / second);
        ConfidenceInterval::of(ratios, SURE).map(|ratio| Self { ratio })
    }

    /// Returns true if the ratio differs from 1 with 99 % confidence.
    pub fn is_sure(&self) -> bool {
        self.ratio.coverage >= SURE && (self.ratio.low > 1.0 || self.ratio.high < 1.0)
    }
}

/// Returns the drop of the values from the first third to the last, as a share of the first, if the two
/// differ significantly. Values are in order of time; a negative result is a rise.
pub fn significant_drop(values: &[f64]) -> Option<f64> {
    let third = values.len() / 3;
    let first = ConfidenceInterval::of(values.get(..third)?.iter().copied(), USUAL)?;
    let last = ConfidenceInterval::of(values.get(values.len() - third..)?.iter().copied(), USUAL)?;
    let sure = first.coverage >= USUAL && last.coverage >= USUAL && first.apart(&last);
    sure.then(|| 1.0 - last.median / first.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random run times from a seed (xorshift).
    struct RandomTimes(u64);

    impl RandomTimes {
        fn uniform(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as f64 / (1_u64 << 53) as f64
        }

        /// Normally distributed around 1, with this deviation.
        fn bell(&mut self, deviation: f64) -> f64 {
            let sum: f64 = (0..12).map(|_| self.uniform()).sum();
            1.0 + (sum - 6.0) * deviation
        }

        /// A floor with a long tail, like run times of a program among others.
        fn tail(&mut self, mean: f64) -> f64 {
            1.0 - mean * (1.0 - self.uniform()).ln()
        }
    }

    const ROUNDS: usize = 30;
    const TRIALS: u64 = 300;

    /// Number of trials in which a difference is found.
    fn found(ratio: f64, mut time: impl FnMut(&mut RandomTimes) -> f64) -> u64 {
        let sure = |seed: &u64| {
            let mut times =
                RandomTimes(0x9e37_79b9_7f4a_7c15 ^ seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
            let rounds: Vec<(f64, f64)> = (0..ROUNDS)
                .map(|round| {
                    // Both become slower together over the rounds.
                    let heat = 1.0 + 0.2 * round as f64 / ROUNDS as f64;
                    (heat * ratio * time(&mut times), heat * time(&mut times))
                })
                .collect();
            PairedRatio::paired(&rounds).is_some_and(|d| d.is_sure())
        };
        (1..=TRIALS).filter(sure).count() as u64
    }

    #[test]
    fn three_percent_are_found() {
        assert!(found(1.03, |t| t.bell(0.015)) > TRIALS * 95 / 100);
        assert!(found(0.97, |t| t.bell(0.015)) > TRIALS * 95 / 100);
        assert!(found(1.03, |t| t.tail(0.015)) > TRIALS * 95 / 100);
    }

    #[test]
    fn none_is_invented() {
        let most = TRIALS * 3 / 100;
        assert!(found(1.0, |t| t.bell(0.015)) <= most);
        assert!(found(1.0, |t| t.bell(0.2)) <= most);
        assert!(found(1.0, |t| t.tail(0.3)) <= most);
    }

    #[test]
    fn few_values_are_sure_of_nothing() {
        assert_eq!(ConfidenceInterval::of([], USUAL), None);
        let one = ConfidenceInterval::of([2.0], USUAL).unwrap();
        assert_eq!((one.low, one.median, one.high), (2.0, 2.0, 2.0));
        assert_eq!(one.coverage, 0.0);
        assert!(!one.is_narrow(0.1));
        let five = ConfidenceInterval::of([1.0; 5], USUAL).unwrap();
        assert!(five.coverage < USUAL && !five.is_narrow(0.1));
        assert!(
            ConfidenceInterval::of([1.0; 6], USUAL)
                .unwrap()
                .is_narrow(0.1)
        );
        let rounds = [(1.1, 1.0); 7];
        assert!(!PairedRatio::paired(&rounds).unwrap().is_sure());
        assert!(PairedRatio::paired(&[(1.1, 1.0); 8]).unwrap().is_sure());
    }

    #[test]
    fn the_interval_is_that_of_the_tables() {
        // Conover's table: for 20 values, the 6th and the 15th give 95 %.
        let values = (1..=20).map(f64::from);
        let interval = ConfidenceInterval::of(values, USUAL).unwrap();
        assert_eq!((interval.low, interval.high), (6.0, 15.0));
        assert!((interval.coverage - 0.9586).abs() < 1e-4);
        assert_eq!(interval.median, 10.5);
    }

    #[test]
    fn it_covers_what_it_says() {
        let mut times = RandomTimes(7);
        let true_median = 1.0 + 0.1 * 2.0_f64.ln();
        let trials = 2000;
        let holds = (0..trials).filter(|_| {
            let values: Vec<f64> = (0..15).map(|_| times.tail(0.1)).collect();
            let interval = ConfidenceInterval::of(values, USUAL).unwrap();
            interval.low <= true_median && true_median <= interval.high
        });
        assert!(holds.count() > trials * 94 / 100);
    }

    #[test]
    fn an_outlier_moves_nothing() {
        let mut values = vec![10.0, 10.1, 9.9, 10.0, 10.05, 9.95, 10.0, 10.02, 9.98];
        values.push(1000.0);
        let interval = ConfidenceInterval::of(values, USUAL).unwrap();
        assert!(interval.is_narrow(0.02), "{interval:?}");
    }

    #[test]
    fn throttling_is_a_fall() {
        let mut times = RandomTimes(11);
        let steady: Vec<f64> = (0..60).map(|_| times.bell(0.02)).collect();
        assert_eq!(significant_drop(&steady), None);
        let throttled: Vec<f64> = steady
            .iter()
            .enumerate()
            .map(|(at, value)| if at > 30 { value * 0.8 } else { *value })
            .collect();
        let fell = significant_drop(&throttled).unwrap();
        assert!((fell - 0.2).abs() < 0.03, "{fell}");
        assert_eq!(significant_drop(&[1.0, 0.5]), None);
        assert_eq!(significant_drop(&[]), None);
    }
}
