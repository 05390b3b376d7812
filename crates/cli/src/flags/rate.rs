use crate::flags::argument_error::ArgumentError;
use std::str::FromStr;

/// A rate limit in bytes a second, from 1 to [`MOST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateLimitArg(u64);

/// The highest rate limit: a terabyte a second.
const MOST: u64 = 1_000_000_000_000;

/// The lowest rate without a unit, in bytes a second: a lower number is meant as rsync's KiB or
/// scp's kbit.
const LEAST_BARE: f64 = 1000.0;

/// Bits of each unit. Case matters only where it distinguishes bits from bytes: `bit` and `B`.
const UNITS: &[(&str, f64)] = &[
    ("", 8.0),
    ("B", 8.0),
    ("k", 8e3),
    ("kB", 8e3),
    ("M", 8e6),
    ("MB", 8e6),
    ("G", 8e9),
    ("GB", 8e9),
    ("KiB", 8192.0),
    ("MiB", 8_388_608.0),
    ("GiB", 8_589_934_592.0),
    ("bit", 1.0),
    ("kbit", 1e3),
    ("Mbit", 1e6),
    ("Gbit", 1e9),
];

impl RateLimitArg {
    /// The rate in bytes a second.
    pub(crate) fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for RateLimitArg {
    type Err = ArgumentError;

    fn from_str(text: &str) -> Result<Self, ArgumentError> {
        let wrong = || ArgumentError::from("is not a rate such as 10MB, 9.5MiB or 80Mbit");
        let bare = text.strip_suffix("/s").unwrap_or(text);
        let end = bare
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(bare.len());
        let (number, unit) = bare.split_at(end);
        if unit.ends_with('b') {
            return Err("is ambiguous: write Mbit for bits or MB for bytes".into());
        }
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let same = |name: &str| name.eq_ignore_ascii_case(unit);
        let unit_is_missing = unit.is_empty();
        let unit = UNITS.iter().find(|(name, _)| same(name));
        let (_, bits) = unit.ok_or_else(wrong)?;
        let bytes = (number * bits / 8.0).round();
        if unit_is_missing && (1.0..LEAST_BARE).contains(&bytes) {
            return Err(format!(
                "has no unit and would be {bytes} bytes per second: write {bare}kB for kilobytes, \
                 or {bare}B for bytes"
            )
            .into());
        }
        if !(1.0..=MOST as f64).contains(&bytes) {
            return Err("is not between 1 byte and 1000 GB per second".into());
        }
        Ok(Self(bytes as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        for (text, bytes) in [
            ("10MB", 10_000_000),
            ("10M", 10_000_000),
            ("10MB/s", 10_000_000),
            ("10MiB", 10 << 20),
            ("80Mbit", 10_000_000),
            ("80mbit/s", 10_000_000),
            ("1.5kB", 1500),
            ("0.5GiB", 1 << 29),
            ("1Gbit", 125_000_000),
            ("800B", 800),
            ("8000", 8000),
            ("1000GB", MOST),
        ] {
            assert_eq!(
                text.parse::<RateLimitArg>().unwrap().bytes(),
                bytes,
                "{text}"
            );
        }
    }

    /// `--limit 10`, meant as in rsync, copied ten bytes a second.
    #[test]
    fn a_low_rate_without_a_unit_is_refused() {
        for text in ["10", "999", "1.5", "10/s"] {
            let error = text.parse::<RateLimitArg>().unwrap_err().to_string();
            let bare = text.trim_end_matches("/s");
            assert!(
                error.contains(&format!("write {bare}kB")),
                "{text}: {error}"
            );
        }
        assert_eq!("1000".parse::<RateLimitArg>().unwrap().bytes(), 1000);
        assert_eq!("10B".parse::<RateLimitArg>().unwrap().bytes(), 10);
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        for text in [
            "",
            "MB",
            "-1MB",
            "0",
            "0MB",
            "1bit",
            "1.2.3MB",
            "10 apples",
            "1e6",
            "infMB",
            "NaN",
            "1001GB",
            "10Mb",
            "10TB",
            "10MB/min",
        ] {
            assert!(text.parse::<RateLimitArg>().is_err(), "{text}");
        }
        let error = "10Mb".parse::<RateLimitArg>().unwrap_err().to_string();
        assert!(error.contains("Mbit") && error.contains("MB"), "{error}");
    }
}
