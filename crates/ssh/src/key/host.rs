//! What a server proves to be itself with.

use wire::Field as _;

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

    /// Proves to the client of the session with this id, which knows another key of this server, that this one is
    /// the server's too: signs [`host_key_proof`].
    ///
    /// # Errors
    /// It cannot.
    fn prove(&self, algorithm: &str, session_id: &[u8]) -> Result<Vec<u8>, KeyError> {
        let proof = host_key_proof(session_id, self.public().blob());
        self.sign(algorithm, &proof)
    }
}

/// What is signed to prove a host key (OpenSSH's PROTOCOL, section 2.5). It begins with a string as an exchange hash
/// would, and is longer than any.
pub fn host_key_proof(session_id: &[u8], blob: &[u8]) -> Vec<u8> {
    let mut proof = Vec::new();
    for part in [&b"hostkeys-prove-00@openssh.com"[..], session_id, blob] {
        part.write(&mut proof);
    }
    proof
}

impl HostKey for PrivateKey {
    fn public(&self) -> &PublicKey {
        self.public()
    }

    fn sign(&self, algorithm: &str, hash: &[u8]) -> Result<Vec<u8>, KeyError> {
        self.sign(algorithm, hash)
    }
}

/// What these host keys sign with, for a [`Proposal`](crate::transport::Proposal): the preferred first, and once where
/// there are several keys of a type.
pub fn host_key_algorithms<'k>(keys: impl IntoIterator<Item = &'k PublicKey>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in keys.into_iter().flat_map(PublicKey::algorithms) {
        if !names.iter().any(|there| there == name) {
            names.push(name.to_owned());
        }
    }
    names
}
