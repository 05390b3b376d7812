use std::fmt;

use aws_lc_rs::digest;

use super::ecdh::EphemeralKey;
use super::hybrid::{self, HybridClient};
use super::table::KeyAgreement;
use super::{KexError, KexMethod, SharedSecret};

/// Client side of a key exchange that waits for the server's reply.
pub struct ClientKeyExchange {
    method: &'static KexMethod,
    half: ClientKexSecret,
}

/// Secret half of a client's key exchange, until the server's share has come.
enum ClientKexSecret {
    Ecdh(EphemeralKey),
    Hybrid(Box<HybridClient>),
}

impl ClientKeyExchange {
    /// Generates an ephemeral key; returns the state and the public value for KEX_ECDH_INIT (Q_C,
    /// or C_INIT of the hybrid methods).
    pub fn start(method: &'static KexMethod) -> Result<(Self, Vec<u8>), KexError> {
        let (half, init) = match &method.agreement {
            KeyAgreement::Ecdh(curve) => {
                let (ephemeral, public) = EphemeralKey::generate(curve)?;
                (ClientKexSecret::Ecdh(ephemeral), public)
            }
            KeyAgreement::Hybrid(kem) => {
                let (hybrid, init) = HybridClient::start(*kem)?;
                (ClientKexSecret::Hybrid(Box::new(hybrid)), init)
            }
        };
        Ok((Self { method, half }, init))
    }

    /// Changes the method to one that differs only by name; `None` for any other.
    pub fn renamed(self, method: &'static KexMethod) -> Option<Self> {
        let same = match (&self.method.agreement, &method.agreement) {
            (KeyAgreement::Hybrid(kem), KeyAgreement::Hybrid(other)) => kem == other,
            _ => false,
        };
        let half = self.half;
        (same && self.method.hash == method.hash).then_some(Self { method, half })
    }

    /// Returns the method.
    pub fn method(&self) -> &'static KexMethod {
        self.method
    }

    /// Computes the secret from the server's public value in KEX_ECDH_REPLY (Q_S, S_REPLY).
    pub fn finish(self, reply: &[u8]) -> Result<SharedSecret, KexError> {
        match self.half {
            ClientKexSecret::Ecdh(ephemeral) => {
                Ok(SharedSecret::from_mpint(&ephemeral.agree(reply)?))
            }
            ClientKexSecret::Hybrid(hybrid) => Ok(hashed(self.method, &hybrid.finish(reply)?)),
        }
    }
}

/// Server side of a key exchange: returns the public value for KEX_ECDH_REPLY and the secret for
/// the client's `init`.
pub fn respond(
    method: &'static KexMethod,
    init: &[u8],
) -> Result<(Vec<u8>, SharedSecret), KexError> {
    match &method.agreement {
        KeyAgreement::Ecdh(curve) => {
            let (ephemeral, reply) = EphemeralKey::generate(curve)?;
            Ok((reply, SharedSecret::from_mpint(&ephemeral.agree(init)?)))
        }
        KeyAgreement::Hybrid(kem) => {
            let (reply, secrets) = hybrid::respond(*kem, init)?;
            Ok((reply, hashed(method, &secrets)))
        }
    }
}

/// Computes K = HASH(K_PQ || K_CL) of the hybrid methods.
fn hashed(method: &KexMethod, secrets: &[u8]) -> SharedSecret {
    SharedSecret::from_string(digest::digest(method.hash, secrets).as_ref())
}

impl fmt::Debug for ClientKeyExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientExchange")
            .field("method", &self.method.name)
            .finish_non_exhaustive()
    }
}
