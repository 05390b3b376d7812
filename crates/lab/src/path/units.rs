use std::fmt;
use std::time::Duration;

/// A rate in bits a second, never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BitRate(u64);

impl BitRate {
    /// The highest rate, 10 Tbit/s.
    pub const MAX: Self = Self(10_000_000_000_000);

    /// Creates a rate from bits a second, limited to 1 to [`BitRate::MAX`].
    pub const fn from_bits(bits: u64) -> Self {
        match bits {
            0 => Self(1),
            bits if bits > Self::MAX.0 => Self::MAX,
            bits => Self(bits),
        }
    }

    /// The rate in bits a second.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Bytes sent at this rate in `time`.
    pub fn bytes_in(self, time: Duration) -> u64 {
        let bytes = u128::from(self.0) * time.as_nanos() / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = RATE_UNITS
            .iter()
            .rev()
            .find(|(unit, _)| self.0 >= *unit)
            .unwrap_or(&RATE_UNITS[0]);
        write!(f, "{} {name}/s", self.0 as f64 / *unit as f64)
    }
}

/// A share from 0 to below 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Fraction(f64);

impl Fraction {
    /// The share 0.
    pub const NONE: Self = Self(0.0);

    /// Creates a share from 0 to below 1; `None` for other numbers.
    pub fn new(share: f64) -> Option<Self> {
        (0.0..1.0).contains(&share).then_some(Self(share))
    }

    /// The share as a number from 0 to below 1.
    pub fn get(self) -> f64 {
        self.0
    }
}

const RATE_UNITS: [(u64, &str); 5] = [
    (1, "bit"),
    (1_000, "kbit"),
    (1_000_000, "Mbit"),
    (1_000_000_000, "Gbit"),
    (1_000_000_000_000, "Tbit"),
];

const SIZE_UNITS: [(u64, &str); 7] = [
    (1, "B"),
    (1_000, "kB"),
    (1_000_000, "MB"),
    (1_000_000_000, "GB"),
    (1 << 10, "KiB"),
    (1 << 20, "MiB"),
    (1 << 30, "GiB"),
];

const TIME_UNITS: [(u64, &str); 5] = [
    (1, "ns"),
    (1_000, "us"),
    (1_000_000, "ms"),
    (1_000_000_000, "s"),
    (60_000_000_000, "min"),
];

/// The reason why a value is invalid; it is printed after the option's name and the value.
pub(super) type InvalidValue = String;

/// Longest accepted time, so that sums stay far from overflow.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Parses a time: "114ms", "1.5s", "200us".
///
/// # Errors
/// The end of a sentence that begins with the text.
pub fn time(text: &str) -> Result<Duration, InvalidValue> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let nanoseconds = scaled(text, &TIME_UNITS, "a time such as 20ms, 1.5s or 200us")?;
    let time = Duration::from_nanos(nanoseconds);
    match time <= LONGEST {
        true => Ok(time),
        false => Err("is more than a day".to_owned()),
    }
}

/// Parses a size: "64kB", "2MiB".
pub(super) fn size(text: &str) -> Result<u64, InvalidValue> {
    scaled(text, &SIZE_UNITS, "a size such as 64kB or 2MiB")
}

/// Parses a rate: "1Gbit", "120Mbit/s", "10Mbps".
pub(super) fn rate(text: &str) -> Result<BitRate, InvalidValue> {
    let bare = text.strip_suffix("/s").unwrap_or(text);
    let bits = match bare.strip_suffix("bps") {
        Some(bare) => format!("{bare}bit"),
        None => bare.to_owned(),
    };
    let bits = scaled(&bits, &RATE_UNITS, "a rate such as 1Gbit or 120Mbit")?;
    match bits {
        0 => Err("is zero: a link needs a rate".to_owned()),
        bits if bits > BitRate::MAX.bits() => Err(format!("is more than {}", BitRate::MAX)),
        bits => Ok(BitRate(bits)),
    }
}

/// Parses "1Gbit" for both directions, or "1Gbit/100Mbit".
pub(super) fn rates(text: &str) -> Result<[BitRate; 2], InvalidValue> {
    let mut parts = text.split('/').filter(|part| *part != "s");
    match (parts.next(), parts.next(), parts.next()) {
        (Some(both), None, _) => Ok([rate(both)?; 2]),
        (Some(there), Some(back), None) => Ok([rate(there)?, rate(back)?]),
        _ => Err("is neither a rate nor two of them such as 1Gbit/100Mbit".to_owned()),
    }
}

/// Parses a percentage: "0.1%".
pub(super) fn share(text: &str) -> Result<Fraction, InvalidValue> {
    let Some(number) = text.strip_suffix('%') else {
        return match text.parse::<f64>() {
            Ok(_) => Err(format!("has no unit: write {text}%")),
            Err(_) => Err("is not a percentage such as 0.1%".to_owned()),
        };
    };
    let percent = positive(number.trim_end()).ok_or("is not a percentage such as 0.1%")?;
    Fraction::new(percent / 100.0).ok_or_else(|| "must be below 100%".into())
}

/// Parses a number in plain digits that is neither negative, infinite nor NaN.
pub(super) fn positive(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse().ok().filter(|_| plain)
}

/// Parses a number with a unit and multiplies them, rounded.
fn scaled(text: &str, units: &[(u64, &str)], wanted: &str) -> Result<u64, InvalidValue> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start();
    let number = positive(number).ok_or_else(|| format!("is not {wanted}"))?;
    let same_letters = |name: &str| name.eq_ignore_ascii_case(unit);
    let Some((factor, _)) = units.iter().find(|(_, name)| same_letters(name)) else {
        return Err(match unit {
            "" => format!("has no unit: use {wanted}"),
            _ => format!("is not {wanted}"),
        });
    };
    let product = (number * *factor as f64).round();
    match product < 9.0e18 {
        true => Ok(product as u64),
        false => Err("is too large".to_owned()),
    }
}
