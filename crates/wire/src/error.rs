use std::fmt;

/// Why bytes from a peer could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The message ends inside a field.
    Truncated {
        /// Bytes the field needs.
        needed: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// Bytes follow the last field.
    Trailing {
        /// How many.
        left: usize,
    },
    /// An mpint with a needless leading byte, or a negative one where none may be.
    BadMpint,
    /// A name-list with an empty name, a control byte or a non-ASCII byte (RFC 4251 section 6).
    BadNameList,
    /// The first byte is not this message's number.
    WrongMessage {
        /// The number the message has.
        expected: u8,
        /// The number that came.
        got: u8,
    },
    /// What was made smaller for the way does not become what it claims.
    NotPacked,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { needed, left } => {
                write!(
                    f,
                    "message ends early: a field needs {needed} bytes, {left} are left"
                )
            }
            Self::Trailing { left } => write!(f, "{left} bytes after the last field"),
            Self::BadMpint => f.write_str("an mpint is not in its shortest form"),
            Self::BadNameList => f.write_str("a name-list holds an empty or non-printable name"),
            Self::WrongMessage { expected, got } => {
                write!(f, "message {got} where {expected} was expected")
            }
            Self::NotPacked => f.write_str("packed bytes are not what they claim"),
        }
    }
}

impl std::error::Error for WireError {}
