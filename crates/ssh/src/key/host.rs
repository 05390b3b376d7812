//! Host keys of a server.

use wire::Field as _;

use super::{KeyError, PrivateKey, PublicKey};

/// Host key of a server, in this process or in another one that signs for it.
pub trait HostKeySigner: Send + Sync {
    /// Returns the public key.
    fn public(&self) -> &PublicKey;

    /// Signs an exchange hash with `algorithm`, as [`PrivateKey::sign`].
    ///
    /// # Errors
    /// Signing failed.
    fn sign(&self, algorithm: &str, hash: &[u8]) -> Result<Vec<u8>, KeyError>;

    /// Signs [`host_key_proof`] for the session `session_id`, to prove this key to a client that
    /// knows another key of the server.
    ///
    /// # Errors
    /// Signing failed.
    fn prove(&self, algorithm: &str, session_id: &[u8]) -> Result<Vec<u8>, KeyError> {
        let proof = host_key_proof(session_id, self.public().blob());
        self.sign(algorithm, &proof)
    }
}

/// Returns the data that is signed to prove a host key (OpenSSH's PROTOCOL, section 2.5). It starts
/// with a fixed name and is longer than any exchange hash, so neither signature can pass for the
/// other.
pub fn host_key_proof(session_id: &[u8], blob: &[u8]) -> Vec<u8> {
    let mut proof = Vec::new();
    for part in [&b"hostkeys-prove-00@openssh.com"[..], session_id, blob] {
        part.write(&mut proof);
    }
    proof
}

impl HostKeySigner for PrivateKey {
    fn public(&self) -> &PublicKey {
        self.public()
    }

    fn sign(&self, algorithm: &str, hash: &[u8]) -> Result<Vec<u8>, KeyError> {
        self.sign(algorithm, hash)
    }
}

/// Returns the signature algorithms of these host keys for a
/// [`AlgorithmProposal`](crate::transport::AlgorithmProposal): preferred first, without duplicates
/// if several keys have the same type.
pub fn host_key_algorithms<'k>(keys: impl IntoIterator<Item = &'k PublicKey>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in keys.into_iter().flat_map(PublicKey::algorithms) {
        if !names.iter().any(|there| there == name) {
            names.push(name.to_owned());
        }
    }
    names
}
