//! Maps values to coordinates.

/// Maps values to coordinates along one axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AxisScale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl AxisScale {
    /// A linear scale from zero to at least `high`, onto the pixels `from` to `to`.
    pub fn linear(high: f64, from: f64, to: f64) -> Self {
        let high = if high.is_finite() && high > 0.0 {
            high
        } else {
            1.0
        };
        let step = step(high);
        Self {
            low: 0.0,
            high: (high / step).ceil() * step,
            from,
            to,
            log: false,
        }
    }

    /// A logarithmic scale that contains `low` and `high`, both above zero.
    pub fn log(low: f64, high: f64, from: f64, to: f64) -> Self {
        let low = if low.is_finite() && low > 0.0 {
            low
        } else {
            1.0
        };
        let high = if high.is_finite() && high > low {
            high
        } else {
            low * 10.0
        };
        // Leave room below the lowest value, whose bar would have no length otherwise.
        let low = 10_f64.powf((low / 1.5).log10().floor());
        let decades = (high / low).log10();
        // Extend by a part of a decade, since a whole one could leave most of the plot empty.
        let whole = decades.floor();
        let part = [1.0_f64, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|part| whole + part.log10())
            .find(|end| *end + 1e-9 >= decades)
            .unwrap_or_else(|| decades.ceil());
        Self {
            low,
            high: low * 10_f64.powf(part.max(1.0)),
            from,
            to,
            log: true,
        }
    }

    /// Chooses a logarithmic scale if the values, all above zero, differ by more than a factor of
    /// 25.
    pub fn fitting(values: &[f64], from: f64, to: f64) -> Self {
        let positive = values.iter().copied().filter(|v| v.is_finite() && *v > 0.0);
        let high = positive.clone().fold(0.0, f64::max);
        let low = positive.fold(f64::INFINITY, f64::min);
        if high / low > 25.0 {
            Self::log(low, high, from, to)
        } else {
            Self::linear(high, from, to)
        }
    }

    /// Returns true for a logarithmic scale.
    pub fn is_log(&self) -> bool {
        self.log
    }

    /// The coordinate of a value; values out of range are on the border.
    pub fn at(&self, value: f64) -> f64 {
        let part = if self.log {
            (value.max(self.low) / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Values of grid lines, with true if they get a label.
    pub fn marks(&self) -> Vec<(f64, bool)> {
        if !self.log {
            return ticks(self.high).into_iter().map(|v| (v, true)).collect();
        }
        let few = (self.high / self.low).log10() <= 3.1;
        let mut marks = Vec::new();
        let mut decade = self.low;
        while decade <= self.high * 1.001 {
            for part in [1.0, 2.0, 5.0] {
                let value = decade * part;
                if value <= self.high * 1.001 {
                    marks.push((value, part == 1.0 || few));
                }
            }
            decade *= 10.0;
        }
        marks
    }
}

/// Four to eight round values from zero to `high`.
pub fn ticks(high: f64) -> Vec<f64> {
    let step = step(high);
    let mut values = Vec::new();
    let mut number = 0_u32;
    while f64::from(number) * step <= high * 1.001 {
        values.push(f64::from(number) * step);
        number += 1;
    }
    values
}

fn step(high: f64) -> f64 {
    let rough = high / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|part| part * power)
        .find(|step| high / step <= 6.0);
    step.unwrap_or(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_begins_at_zero_and_holds_the_highest() {
        let scale = AxisScale::linear(106.0, 100.0, 300.0);
        assert_eq!(scale.at(0.0), 100.0);
        assert!(scale.at(106.0) <= 300.0);
        let marks = scale.marks();
        assert!((4..=8).contains(&marks.len()), "{marks:?}");
        assert_eq!(marks.first(), Some(&(0.0, true)));
    }

    #[test]
    fn log_gives_equal_factors_equal_steps() {
        let scale = AxisScale::log(1.6, 1000.0, 0.0, 300.0);
        let step = |a, b| scale.at(b) - scale.at(a);
        assert!((step(2.0, 20.0) - step(50.0, 500.0)).abs() < 1e-6);
        assert!(scale.at(1.6) > 0.0, "the least has a bar");
        assert_eq!(scale.at(0.0), 0.0);
    }

    #[test]
    fn only_a_wide_range_is_logarithmic() {
        assert!(!AxisScale::fitting(&[50.0, 100.0], 0.0, 1.0).is_log());
        assert!(AxisScale::fitting(&[1.0, 100.0], 0.0, 1.0).is_log());
        assert!(!AxisScale::fitting(&[], 0.0, 1.0).is_log());
        assert!(!AxisScale::fitting(&[0.0, f64::NAN], 0.0, 1.0).is_log());
    }

    #[test]
    fn odd_values_stay_in_the_picture() {
        for scale in [
            AxisScale::linear(f64::NAN, 0.0, 9.0),
            AxisScale::log(0.0, f64::INFINITY, 0.0, 9.0),
        ] {
            for value in [-1.0, 0.0, 1e300, f64::INFINITY] {
                let at = scale.at(value);
                assert!((0.0..=9.0).contains(&at), "{at}");
            }
            assert!(scale.marks().len() < 50);
        }
    }
}
