use std::fmt;

/// Error of decoding bytes from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The message ends inside a field.
    Truncated {
        /// Bytes that the field needs.
        needed: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// Bytes follow the last field of the message.
    Trailing {
        /// Number of excess bytes.
        left: usize,
    },
    /// An mpint with an unnecessary leading zero byte, or a negative one (RFC 4251 section 5).
    BadMpint,
    /// A name-list with an empty name, a control byte or a non-ASCII byte (RFC 4251 section 6).
    BadNameList,
    /// The message number is not the expected one.
    WrongMessage {
        /// The expected message number.
        expected: u8,
        /// The message number received.
        got: u8,
    },
    /// Compressed data does not decompress to its declared length.
    NotPacked,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { needed, left } => {
                write!(
                    f,
                    "truncated message: a field needs {needed} bytes, {left} remain"
                )
            }
            Self::Trailing { left } => write!(f, "{left} bytes after the last field"),
            Self::BadMpint => f.write_str("an mpint is not in its shortest form"),
            Self::BadNameList => f.write_str("a name-list contains an empty or non-printable name"),
            Self::WrongMessage { expected, got } => {
                write!(f, "message {got} where {expected} was expected")
            }
            Self::NotPacked => f.write_str("compressed data is malformed"),
        }
    }
}

impl std::error::Error for WireError {}
