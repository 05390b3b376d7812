//! Median, minimum and maximum of repeated measurements.

use serde::{Deserialize, Serialize};

/// Minimum, median and maximum of one figure over repeated runs; values that are not finite are
/// left out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RunStatistics {
    /// The smallest value.
    pub min: f64,
    /// The median; for an even number of values, the mean of the two in the middle.
    pub median: f64,
    /// The largest value.
    pub max: f64,
    /// Number of values.
    pub count: usize,
}

impl RunStatistics {
    /// Summarizes values; non-finite ones are skipped. `None` if no value remains.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        let median = match values.len() % 2 {
            0 => values
                .get(middle - 1)
                .map_or(upper, |lower| f64::midpoint(*lower, upper)),
            _ => upper,
        };
        Some(Self {
            min,
            median,
            max,
            count: values.len(),
        })
    }
}

/// `now / before`; `None` if that is not meaningful.
pub fn ratio(now: f64, before: f64) -> Option<f64> {
    let ratio = now / before;
    (ratio.is_finite() && before > 0.0).then_some(ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn median(values: &[f64]) -> Option<f64> {
        RunStatistics::of(values.iter().copied()).map(|spread| spread.median)
    }

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn what_is_no_number_does_not_count() {
        let spread = RunStatistics::of([f64::NAN, 2.0, f64::INFINITY, 5.0]).expect("two numbers");
        assert_eq!((spread.min, spread.max, spread.count), (2.0, 5.0, 2));
        assert_eq!(RunStatistics::of([f64::NAN]), None);
    }

    #[test]
    fn a_ratio_to_nothing_is_none() {
        assert_eq!(ratio(3.0, 2.0), Some(1.5));
        assert_eq!(ratio(3.0, 0.0), None);
        assert_eq!(ratio(f64::NAN, 2.0), None);
    }
}
