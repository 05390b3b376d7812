use std::ops::Deref;

use zeroize::Zeroizing;

/// A message of authentication on its way out.
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

    /// It holds a password or answers, whose length is nobody's business.
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
