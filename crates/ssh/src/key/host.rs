use super::{KeyError, PrivateKey, PublicKey};

/// A server's host key: one that is here, or one that another process signs with.
pub trait HostKey: Send + Sync {
    /// The public half.
    fn public(&self) -> &PublicKey;

    /// Signs an exchange hash with `algorithm`, as [`PrivateKey::sign`].
    ///
    /// # Errors
    /// It cannot.
    fn sign(&self, algorithm: &str, hash: &[u8]) -> Result<Vec<u8>, KeyError>;
}

impl HostKey for PrivateKey {
    fn public(&self) -> &PublicKey {
        self.public()
    }

    fn sign(&self, algorithm: &str, hash: &[u8]) -> Result<Vec<u8>, KeyError> {
        self.sign(algorithm, hash)
    }
}
