use std::fmt;

use aws_lc_rs::digest;

use super::ecdh::EphemeralKey;
use super::hybrid::{self, Hybrid};
use super::table::Agreement;
use super::{KexError, KexMethod, SharedSecret};

/// The client's side of a key exchange whose answer is still to come.
pub struct ClientExchange {
    method: &'static KexMethod,
    half: Half,
}

enum Half {
    Ecdh(EphemeralKey),
    Hybrid(Box<Hybrid>),
}

impl ClientExchange {
    /// Makes an ephemeral key, and the string that KEX_ECDH_INIT carries (Q_C, or C_INIT of the
    /// hybrid methods).
    pub fn start(method: &'static KexMethod) -> Result<(Self, Vec<u8>), KexError> {
        let (half, init) = match &method.agreement {
            Agreement::Ecdh(curve) => {
                let (ephemeral, public) = EphemeralKey::generate(curve)?;
                (Half::Ecdh(ephemeral), public)
            }
            Agreement::Hybrid(kem) => {
                let (hybrid, init) = Hybrid::start(*kem)?;
                (Half::Hybrid(Box::new(hybrid)), init)
            }
        };
        Ok((Self { method, half }, init))
    }

    /// The same for a method that differs from its own by name alone.
    pub fn renamed(self, method: &'static KexMethod) -> Option<Self> {
        let same = match (&self.method.agreement, &method.agreement) {
            (Agreement::Hybrid(kem), Agreement::Hybrid(other)) => kem == other,
            _ => false,
        };
        let half = self.half;
        (same && self.method.hash == method.hash).then_some(Self { method, half })
    }

    /// The method.
    pub fn method(&self) -> &'static KexMethod {
        self.method
    }

    /// The secret, from the server's string in KEX_ECDH_REPLY (Q_S, S_REPLY).
    pub fn finish(self, reply: &[u8]) -> Result<SharedSecret, KexError> {
        match self.half {
            Half::Ecdh(ephemeral) => Ok(SharedSecret::from_mpint(&ephemeral.agree(reply)?)),
            Half::Hybrid(hybrid) => Ok(hashed(self.method, &hybrid.finish(reply)?)),
        }
    }
}

/// The server's side: the string for KEX_ECDH_REPLY and the secret, from the client's `init`.
pub fn respond(
    method: &'static KexMethod,
    init: &[u8],
) -> Result<(Vec<u8>, SharedSecret), KexError> {
    match &method.agreement {
        Agreement::Ecdh(curve) => {
            let (ephemeral, reply) = EphemeralKey::generate(curve)?;
            Ok((reply, SharedSecret::from_mpint(&ephemeral.agree(init)?)))
        }
        Agreement::Hybrid(kem) => {
            let (reply, secrets) = hybrid::respond(*kem, init)?;
            Ok((reply, hashed(method, &secrets)))
        }
    }
}

/// K = HASH(K_PQ || K_CL) of the hybrid methods.
fn hashed(method: &KexMethod, secrets: &[u8]) -> SharedSecret {
    SharedSecret::from_string(digest::digest(method.hash, secrets).as_ref())
}

impl fmt::Debug for ClientExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientExchange")
            .field("method", &self.method.name)
            .finish_non_exhaustive()
    }
}
