//! Dates in messages about certificates.

use std::fmt;

use jiff::Timestamp;

/// A time in seconds since 1970, shown as a date in UTC.
pub(super) struct UtcDate(pub(super) u64);

impl fmt::Display for UtcDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = i64::try_from(self.0).ok();
        match seconds.and_then(|seconds| Timestamp::from_second(seconds).ok()) {
            Some(time) => write!(f, "{}", time.strftime("%Y-%m-%d %H:%M:%S UTC")),
            // Beyond the year 9999.
            None => write!(f, "{} seconds after 1970", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_since_1970_are_shown_as_date_and_time() {
        // As `date -u -d @N` prints them.
        for (seconds, shown) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_709_251_200, "2024-03-01 00:00:00 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (253_402_200_000, "9999-12-30 20:00:00 UTC"),
            (u64::MAX, "18446744073709551615 seconds after 1970"),
        ] {
            assert_eq!(UtcDate(seconds).to_string(), shown);
        }
    }
}
