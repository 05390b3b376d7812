//! Parses `expiry-time=` of authorized_keys (sshd(8)).

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// Parses `YYYYMMDD`, `YYYYMMDDHHMM` or `YYYYMMDDHHMMSS` as time in `zone`, or in UTC if a `Z`
/// follows. `None` for anything else.
pub(super) fn read(text: &str, zone: &TimeZone) -> Option<Timestamp> {
    let (digits, zone) = match text.strip_suffix(['Z', 'z']) {
        Some(digits) => (digits, &TimeZone::UTC),
        None => (text, zone),
    };
    if !digits.bytes().all(|b| b.is_ascii_digit()) || !matches!(digits.len(), 8 | 12 | 14) {
        return None;
    }
    let whole = format!("{digits:0<14}");
    let time = DateTime::strptime("%Y%m%d%H%M%S", whole).ok()?;
    let time: Zoned = time.to_zoned(zone.clone()).ok()?;
    Some(time.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_sshd_reads_them() {
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        let at = |text| read(text, &zone).map(Timestamp::as_second);
        assert_eq!(at("19700101Z"), Some(0));
        assert_eq!(at("19700101"), Some(-7200));
        assert_eq!(at("197001010201"), Some(60));
        assert_eq!(at("19700101000102Z"), Some(62));
        for wrong in [
            "",
            "Z",
            "1970",
            "19701301",
            "1970010",
            "19700101x",
            "197001012500",
        ] {
            assert_eq!(at(wrong), None, "{wrong}");
        }
    }
}
