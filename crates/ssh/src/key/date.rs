//! Dates in messages about certificates.

use std::fmt;

/// First second of the year 10000, from which on only the seconds are shown.
const FOUR_DIGITS: u64 = 253_402_300_800;
/// Days of 400 years.
const ERA: u64 = 146_097;

/// A time in seconds since 1970, shown as a date in UTC.
pub(super) struct UtcDate(pub(super) u64);

impl fmt::Display for UtcDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= FOUR_DIGITS {
            return write!(f, "{} seconds after 1970", self.0);
        }
        let (days, seconds) = (self.0 / 86_400, self.0 % 86_400);
        // Years begin in March here, so that the day that leap years add is the last one.
        let days = days + 719_468;
        let (era, day) = (days / ERA, days % ERA);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year + u64::from(month <= 2);
        let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02} {hours:02}:{minutes:02}:{:02} UTC",
            seconds % 60
        )
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
            (253_402_300_799, "9999-12-31 23:59:59 UTC"),
            (u64::MAX, "18446744073709551615 seconds after 1970"),
        ] {
            assert_eq!(UtcDate(seconds).to_string(), shown);
        }
    }
}
