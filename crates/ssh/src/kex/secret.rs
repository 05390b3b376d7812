use std::fmt;

use wire::{Field, Mpint};
use zeroize::Zeroizing;

/// Shared secret K in the encoding of the exchange hash and of key derivation: an mpint for
/// elliptic curve methods (RFC 5656, RFC 8731), a string for hybrid ones
/// (draft-ietf-sshm-mlkem-hybrid-kex, draft-ietf-sshm-ntruprime-ssh). Zeroed when dropped.
pub struct SharedSecret {
    encoded: Zeroizing<Vec<u8>>,
}

impl SharedSecret {
    pub(super) fn from_mpint(magnitude: &[u8]) -> Self {
        let mut encoded = Self::room(magnitude.len());
        Mpint::from_magnitude(magnitude).write(&mut encoded);
        Self { encoded }
    }

    pub(super) fn from_string(bytes: &[u8]) -> Self {
        let mut encoded = Self::room(bytes.len());
        bytes.write(&mut encoded);
        Self { encoded }
    }

    /// Allocates the full capacity at once: a growing vector leaves copies behind that are not
    /// zeroed.
    fn room(len: usize) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(Vec::with_capacity(4 + 1 + len))
    }

    pub(super) fn encoded(&self) -> &[u8] {
        &self.encoded
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSecret")
    }
}
