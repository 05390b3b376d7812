use std::ops::Deref;

use zeroize::Zeroizing;

/// Authentication message to be sent; its memory is zeroed when it is dropped.
#[derive(Debug)]
pub struct AuthMessage {
    bytes: Zeroizing<Vec<u8>>,
    is_secret: bool,
}

impl AuthMessage {
    pub(super) fn open(bytes: Vec<u8>) -> Self {
        Self {
            bytes: bytes.into(),
            is_secret: false,
        }
    }

    pub(super) fn secret(bytes: Zeroizing<Vec<u8>>) -> Self {
        Self {
            bytes,
            is_secret: true,
        }
    }

    /// Returns true for a password or answers, whose length must be hidden by padding.
    pub fn is_secret(&self) -> bool {
        self.is_secret
    }
}

impl Deref for AuthMessage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
