use aws_lc_rs::agreement::{EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
use aws_lc_rs::rand::SystemRandom;
use zeroize::Zeroizing;

use super::KexError;
use super::table::KexCurve;

/// Private key on one curve for a single key exchange; agreeing consumes it.
pub(super) struct EphemeralKey {
    curve: &'static KexCurve,
    private: EphemeralPrivateKey,
}

impl EphemeralKey {
    /// Generates a key; returns it and its public key as sent on the wire.
    pub(super) fn generate(curve: &'static KexCurve) -> Result<(Self, Vec<u8>), KexError> {
        let private = EphemeralPrivateKey::generate(curve.algorithm, &SystemRandom::new())
            .map_err(|_| KexError::Local)?;
        let public = private.compute_public_key().map_err(|_| KexError::Local)?;
        let public = public.as_ref().to_vec();
        Ok((Self { curve, private }, public))
    }

    /// Computes the secret shared with the owner of the public key `peer`, big-endian as the curve
    /// defines it.
    ///
    /// The length and form are checked here, since aws-lc-rs would accept other encodings of a
    /// public key. aws-lc-rs refuses points off the curve and the all-zero result of X25519.
    pub(super) fn agree(self, peer: &[u8]) -> Result<Zeroizing<Vec<u8>>, KexError> {
        if peer.len() != self.curve.public_len {
            return Err(KexError::WrongLength {
                expected: self.curve.public_len,
                got: peer.len(),
            });
        }
        if self.curve.mark.is_some() && peer.first().copied() != self.curve.mark {
            return Err(KexError::BadPoint);
        }
        let peer = UnparsedPublicKey::new(self.curve.algorithm, peer);
        agree_ephemeral(self.private, peer, KexError::BadPoint, |secret| {
            Ok(Zeroizing::new(secret.to_vec()))
        })
    }
}
