//! Sizes in bytes as users write them.

use crate::flags::argument_error::ArgumentError;

/// Bytes of each unit; a letter alone is rsync's, in powers of 1024.
const UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("B", 1),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Parses a size such as `100MB`, `4GiB` or `1.5M`.
///
/// # Errors
/// The text is not a size; the reason continues a sentence that begins with it.
pub(crate) fn bytes(text: &str) -> Result<u64, ArgumentError> {
    let wrong = || ArgumentError::from("is not a size such as 100MB or 4GiB");
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let unit = UNITS
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let (_, factor) = unit.ok_or_else(wrong)?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(*factor).ok_or_else(wrong);
    }
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let size = number * *factor as f64;
    match size < u64::MAX as f64 {
        true => Ok(size as u64),
        false => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_decimal_unless_their_unit_is_binary() {
        for (text, size) in [
            ("0", 0),
            ("100MB", 100_000_000),
            ("4GiB", 4 << 30),
            ("1.5M", 3 << 19),
            ("10k", 10 << 10),
        ] {
            assert_eq!(bytes(text).unwrap(), size, "{text}");
        }
        for text in [
            "",
            "MB",
            "-1",
            "1.2.3",
            "5 apples",
            "99999999999999999999",
            "99999999TB",
        ] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
