//! Points in time as users write them: an age, or a date.

use crate::flags::argument_error::ArgumentError;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

/// A point in time, relative to the start of the run or absolute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PointInTime {
    /// Seconds before now.
    Ago(i64),
    /// Seconds since 1970.
    At(i64),
}

/// Seconds of each unit of an age.
const UNITS: &[(&str, i64)] = &[
    ("s", 1),
    ("m", 60),
    ("h", 3600),
    ("d", 86_400),
    ("w", 604_800),
];

impl PointInTime {
    /// Parses an age such as `36h`, or a date such as `2026-11-27T18:00` in the local time zone.
    ///
    /// # Errors
    /// The text is neither; the reason continues a sentence that begins with it.
    pub(crate) fn parse(text: &str) -> Result<Self, ArgumentError> {
        let wrong = || {
            ArgumentError::from(
                "is neither an age such as 36h or 7d nor a date such as 2026-11-27 or \
             2026-11-27T18:00",
            )
        };
        let end = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        if let (Ok(number), Some((_, seconds))) = (
            number.parse::<i64>(),
            UNITS.iter().find(|(name, _)| *name == unit),
        ) {
            return number
                .checked_mul(*seconds)
                .map(Self::Ago)
                .ok_or_else(wrong);
        }
        let date = text
            .parse::<DateTime>()
            .or_else(|_| text.parse::<Date>().map(|date| date.at(0, 0, 0, 0)))
            .map_err(|_| wrong())?;
        let zoned = date.to_zoned(TimeZone::system()).map_err(|_| wrong())?;
        Ok(Self::At(zoned.timestamp().as_second()))
    }

    /// Seconds since 1970, if it is `now` seconds since 1970.
    pub(crate) fn seconds(self, now: i64) -> i64 {
        match self {
            Self::Ago(seconds) => now.saturating_sub(seconds),
            Self::At(seconds) => seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_dates_are_told_apart() {
        assert_eq!(
            PointInTime::parse("36h").unwrap(),
            PointInTime::Ago(36 * 3600)
        );
        assert_eq!(
            PointInTime::parse("2w").unwrap(),
            PointInTime::Ago(14 * 86_400)
        );
        assert!(matches!(
            PointInTime::parse("2026-11-27"),
            Ok(PointInTime::At(_))
        ));
        let (noon, one) = (
            PointInTime::parse("2026-11-27T12:00"),
            PointInTime::parse("2026-11-27T13:00"),
        );
        let seconds = |moment: Result<PointInTime, ArgumentError>| moment.unwrap().seconds(0);
        assert_eq!(seconds(one) - seconds(noon), 3600);
        for text in [
            "",
            "7",
            "d",
            "7y",
            "yesterday",
            "2026-13-01",
            "9223372036854775807w",
        ] {
            assert!(PointInTime::parse(text).is_err(), "{text}");
        }
        assert_eq!(PointInTime::Ago(10).seconds(100), 90);
    }
}
