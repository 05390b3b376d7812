use std::fmt;

use crate::error::PeerName;

/// Reason why a key exchange failed: a value of the peer that the method forbids, or a failure of
/// the cipher library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KexError {
    /// The peer's public value has the wrong length for the method.
    WrongLength {
        /// Expected length in bytes.
        expected: usize,
        /// Received length in bytes.
        got: usize,
    },
    /// The peer's public key is not a point on the curve, not in the permitted encoding, or gives
    /// the all-zero secret (RFC 8731 section 3).
    BadPoint,
    /// The peer's ML-KEM encapsulation key is not reduced (FIPS 203 section 7.2), or its
    /// ciphertext is malformed.
    BadEncapsulation,
    /// The cipher library failed to generate our key.
    Local,
}

impl KexError {
    /// Writes the message, which calls the other side `peer`.
    pub(crate) fn describe(&self, peer: PeerName, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongLength { expected, got } => write!(
                f,
                "{peer}'s key exchange value has {got} bytes instead of {expected}"
            ),
            Self::BadPoint => write!(f, "{peer}'s key exchange value is not a valid point"),
            Self::BadEncapsulation => {
                write!(f, "{peer}'s post-quantum key exchange value is not valid")
            }
            Self::Local => {
                f.write_str("the cipher library failed to create a key for the key exchange")
            }
        }
    }
}

impl fmt::Display for KexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(PeerName::default(), f)
    }
}

impl std::error::Error for KexError {}
