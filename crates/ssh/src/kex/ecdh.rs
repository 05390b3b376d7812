use aws_lc_rs::agreement::{EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
use aws_lc_rs::rand::SystemRandom;
use zeroize::Zeroizing;

use super::KexError;
use super::table::Curve;

/// An ephemeral key on one curve.
pub(super) struct EphemeralKey {
    curve: &'static Curve,
    private: EphemeralPrivateKey,
}

impl EphemeralKey {
    /// A new key and its public half as it goes over the wire.
    pub(super) fn generate(curve: &'static Curve) -> Result<(Self, Vec<u8>), KexError> {
        let private = EphemeralPrivateKey::generate(curve.algorithm, &SystemRandom::new())
            .map_err(|_| KexError::Local)?;
        let public = private.compute_public_key().map_err(|_| KexError::Local)?;
        let public = public.as_ref().to_vec();
        Ok((Self { curve, private }, public))
    }

    /// The secret shared with the owner of `peer`, big-endian as the curve has it.
    ///
    /// The length and form are checked here since aws-lc-rs would also take other encodings of
    /// a public key. It refuses points off the curve and the all-zero result of X25519.
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
