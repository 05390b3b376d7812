use wire::{Field, RemainingBytes};

use super::PUBLICKEY;
use super::request::{CONNECTION, HOSTBOUND};
use crate::key::{KeyError, PublicKey, SecurityKeyFlags};
use crate::msg::UserauthRequest;

/// Signature by which a client proves that it owns a key (RFC 4252 section 7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyProof {
    /// Signature algorithm.
    pub algorithm: String,
    /// True if the signature covers the host key too (OpenSSH PROTOCOL section 3.1).
    pub host_bound: bool,
    /// Signature blob: algorithm name and signature.
    pub signature: Vec<u8>,
}

/// Facts of a connection that the signature of a [`KeyProof`] must cover (RFC 4252 section 7).
#[derive(Clone, Copy, Debug)]
pub struct ProofContext<'a> {
    /// Session identifier: the first exchange hash of the connection.
    pub session_id: &'a [u8],
    /// Blob of the host key that the server presented.
    pub host_key: &'a [u8],
    /// Account name.
    pub user: &'a [u8],
    /// Public key of the client.
    pub key: &'a PublicKey,
}

impl KeyProof {
    /// Verifies that the signature covers the claim. The signed data is rebuilt from the claim
    /// instead of taken from the request, so no client input is interpreted here. Returns a
    /// security key's report of touch and user verification; the owner decides if that suffices.
    ///
    /// # Errors
    /// The signature does not prove the claim.
    pub fn check(&self, claim: ProofContext<'_>) -> Result<Option<SecurityKeyFlags>, KeyError> {
        let mut data = Vec::new();
        true.write(&mut data);
        self.algorithm.as_bytes().write(&mut data);
        claim.key.blob().write(&mut data);
        if self.host_bound {
            claim.host_key.write(&mut data);
        }
        let mut covered = Vec::with_capacity(data.len() + 256);
        claim.session_id.write(&mut covered);
        UserauthRequest {
            user: claim.user,
            service: CONNECTION,
            method: if self.host_bound {
                HOSTBOUND
            } else {
                PUBLICKEY
            },
            data: RemainingBytes(&data),
        }
        .encode(&mut covered);
        let key = claim.key;
        key.verify_touch(&self.algorithm, &covered, &self.signature)
    }
}
