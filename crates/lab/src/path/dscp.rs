use std::fmt;
use std::str::FromStr;

/// A Differentiated Services code point, 0 to 63: the upper six bits of the IP header's traffic
/// class (RFC 2474). The default is 0, unmarked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dscp(u8);

/// A text that is no code point. Its message completes a sentence after the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DscpError;

impl fmt::Display for DscpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("is neither a name (CS1, AF21, EF, LE, none, ...) nor 0 to 63")
    }
}

impl std::error::Error for DscpError {}

/// Names of code points: RFC 2474 (CS), RFC 2597 (AF), RFC 3246 (EF), RFC 5865 (VA), RFC 8622 (LE),
/// and "none" as in OpenSSH's IPQoS. Output uses the first name of a number.
const NAMES: &[(&str, u8)] = &[
    ("CS0", 0),
    ("none", 0),
    ("BE", 0),
    ("DF", 0),
    ("LE", 1),
    ("CS1", 8),
    ("AF11", 10),
    ("AF12", 12),
    ("AF13", 14),
    ("CS2", 16),
    ("AF21", 18),
    ("AF22", 20),
    ("AF23", 22),
    ("CS3", 24),
    ("AF31", 26),
    ("AF32", 28),
    ("AF33", 30),
    ("CS4", 32),
    ("AF41", 34),
    ("AF42", 36),
    ("AF43", 38),
    ("CS5", 40),
    ("VA", 44),
    ("EF", 46),
    ("CS6", 48),
    ("CS7", 56),
];

impl Dscp {
    /// Creates a code point from the lower six bits of `value`.
    pub fn new(value: u8) -> Self {
        Self(value & 0x3f)
    }

    /// The code point, 0 to 63.
    pub fn value(self) -> u8 {
        self.0
    }
}

/// Parses a name in any case, or a number from 0 to 63.
impl FromStr for Dscp {
    type Err = DscpError;

    fn from_str(text: &str) -> Result<Self, DscpError> {
        if let Some((_, value)) = NAMES
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(text))
        {
            return Ok(Self(*value));
        }
        match text.parse() {
            Ok(value @ 0..=63) => Ok(Self(value)),
            _ => Err(DscpError),
        }
    }
}

impl fmt::Display for Dscp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, value)| *value == self.0) {
            Some((name, _)) => f.pad(name),
            None => write!(f, "DSCP {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        for (text, value) in [
            ("CS1", 8),
            ("le", 1),
            ("af21", 18),
            ("EF", 46),
            ("none", 0),
            ("63", 63),
        ] {
            assert_eq!(text.parse::<Dscp>().unwrap().value(), value, "{text}");
        }
        for text in ["64", "-1", "CS8", "", "lowdelay"] {
            assert!(text.parse::<Dscp>().is_err(), "{text}");
        }
    }

    #[test]
    fn classes_follow_their_formulas() {
        for (name, value) in NAMES {
            let digits: Vec<u8> = name
                .bytes()
                .filter(u8::is_ascii_digit)
                .map(|d| d - b'0')
                .collect();
            match (&name[..2], digits.as_slice()) {
                ("CS", [class]) => assert_eq!(*value, 8 * class, "{name}"),
                ("AF", [class, drop]) => assert_eq!(*value, 8 * class + 2 * drop, "{name}"),
                _ => {}
            }
        }
    }
}
