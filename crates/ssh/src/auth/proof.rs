use wire::{Field, Rest};

use super::PUBLICKEY;
use super::request::{CONNECTION, HOSTBOUND};
use crate::key::{KeyError, PublicKey, SecurityKeyTouch};
use crate::msg::UserauthRequest;

/// What a client shows to prove that it owns a key (RFC 4252 section 7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// How it has signed.
    pub algorithm: String,
    /// The signature covers the host key too (OpenSSH PROTOCOL section 3.1).
    pub host_bound: bool,
    /// Algorithm and signature proper.
    pub signature: Vec<u8>,
}

/// What somebody claims who shows a [`Proof`].
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The first exchange hash of the connection.
    pub session_id: &'a [u8],
    /// The blob of the key that the server has shown on it.
    pub host_key: &'a [u8],
    /// The account.
    pub user: &'a [u8],
    /// The key.
    pub key: &'a PublicKey,
}

impl Proof {
    /// Whether it proves the claim. What was signed is built anew from what the claim says rather
    /// than read from what was sent, so that nothing of the client's is interpreted here. Tells
    /// what a security key says of who was there; whether that is enough is the owner's to say.
    ///
    /// # Errors
    /// It does not.
    pub fn check(&self, claim: Claim<'_>) -> Result<Option<SecurityKeyTouch>, KeyError> {
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
            data: Rest(&data),
        }
        .encode(&mut covered);
        let key = claim.key;
        key.verify_touch(&self.algorithm, &covered, &self.signature)
    }
}
