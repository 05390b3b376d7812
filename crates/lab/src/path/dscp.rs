use std::fmt;

/// A Differentiated Services code point, 0 to 63: the upper six bits of the traffic class
/// (RFC 2474).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dscp(u8);

/// RFC 2474 (CS), RFC 2597 (AF), RFC 3246 (EF), RFC 5865 (VA), RFC 8622 (LE). The first name of a
/// number is the one shown.
const NAMES: &[(&str, u8)] = &[
    ("CS0", 0),
    ("none", 0),
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
    /// The lower six bits of `value`.
    pub fn new(value: u8) -> Self {
        Self(value & 0x3f)
    }

    /// 0 to 63.
    pub fn value(self) -> u8 {
        self.0
    }

    /// A name in any case, or 0 to 63.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if let Some((_, value)) = NAMES
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(text))
        {
            return Some(Self(*value));
        }
        match text.parse() {
            Ok(value @ 0..=63) => Some(Self(value)),
            _ => None,
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
