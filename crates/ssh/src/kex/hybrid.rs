use aws_lc_rs::kem::{self, ML_KEM_768};
use aws_lc_rs::rand;
use zeroize::Zeroizing;

use super::KexError;
use super::ecdh::EphemeralKey;
use super::table::{Kem, X25519};

/// Lengths in bytes from FIPS 203 section 8, table 3.
const ML_KEM_768_PUBLIC: usize = 1184;
const ML_KEM_768_CIPHERTEXT: usize = 1088;

impl Kem {
    fn public_len(self) -> usize {
        match self {
            Self::MlKem768 => ML_KEM_768_PUBLIC,
            Self::Sntrup761 => sntrup761::PUBLIC_KEY_SIZE,
        }
    }

    fn ciphertext_len(self) -> usize {
        match self {
            Self::MlKem768 => ML_KEM_768_CIPHERTEXT,
            Self::Sntrup761 => sntrup761::CIPHERTEXT_SIZE,
        }
    }

    /// Encapsulates a new secret for the owner of `public`; returns ciphertext and secret.
    fn encapsulate(self, public: &[u8]) -> Result<(Vec<u8>, Zeroizing<Vec<u8>>), KexError> {
        match self {
            Self::MlKem768 => {
                let key = kem::EncapsulationKey::new(&ML_KEM_768, public)
                    .map_err(|_| KexError::BadEncapsulation)?;
                let (ciphertext, secret) =
                    key.encapsulate().map_err(|_| KexError::BadEncapsulation)?;
                Ok((
                    ciphertext.as_ref().to_vec(),
                    Zeroizing::new(secret.as_ref().to_vec()),
                ))
            }
            Self::Sntrup761 => {
                let key = sntrup761::EncapsulationKey::try_from(public)
                    .map_err(|_| KexError::BadEncapsulation)?;
                let (ciphertext, secret) = key.encapsulate_deterministic(*seed()?);
                Ok((
                    ciphertext.as_ref().to_vec(),
                    Zeroizing::new(secret.as_ref().to_vec()),
                ))
            }
        }
    }
}

/// Returns the random seed that the sntrup761 crate expands into a key or ciphertext, from the
/// source of all other key exchange secrets.
fn seed() -> Result<Zeroizing<[u8; 32]>, KexError> {
    let mut seed = Zeroizing::new([0; 32]);
    rand::fill(&mut *seed).map_err(|_| KexError::Local)?;
    Ok(seed)
}

/// Secret key of a key encapsulation mechanism, with which a client decapsulates the server's
/// ciphertext.
enum KemSecretKey {
    MlKem768(kem::DecapsulationKey),
    Sntrup761(Box<sntrup761::DecapsulationKey>),
}

impl KemSecretKey {
    fn generate(kem: Kem) -> Result<(Self, Vec<u8>), KexError> {
        match kem {
            Kem::MlKem768 => {
                let key =
                    kem::DecapsulationKey::generate(&ML_KEM_768).map_err(|_| KexError::Local)?;
                let public = key
                    .encapsulation_key()
                    .and_then(|public| public.key_bytes())
                    .map_err(|_| KexError::Local)?;
                let public = public.as_ref().to_vec();
                Ok((Self::MlKem768(key), public))
            }
            Kem::Sntrup761 => {
                let (public, key) = sntrup761::generate_key_from_seed(*seed()?);
                let public = public.as_ref().to_vec();
                Ok((Self::Sntrup761(Box::new(key)), public))
            }
        }
    }

    /// Recovers the secret from a ciphertext. For a forged ciphertext of the right length both
    /// methods return a secret unknown to the peer, so that the exchange fails at the host key
    /// signature.
    fn decapsulate(&self, ciphertext: &[u8]) -> Result<Zeroizing<Vec<u8>>, KexError> {
        match self {
            Self::MlKem768(key) => key
                .decapsulate(ciphertext.into())
                .map(|secret| Zeroizing::new(secret.as_ref().to_vec()))
                .map_err(|_| KexError::BadEncapsulation),
            Self::Sntrup761(key) => {
                let ciphertext = sntrup761::Ciphertext::try_from(ciphertext)
                    .map_err(|_| KexError::BadEncapsulation)?;
                let secret = key.decapsulate(&ciphertext);
                Ok(Zeroizing::new(secret.as_ref().to_vec()))
            }
        }
    }
}

/// Client side of a hybrid key exchange.
pub(super) struct HybridClient {
    kem: Kem,
    decapsulation: KemSecretKey,
    ephemeral: EphemeralKey,
}

impl HybridClient {
    pub(super) fn start(kem: Kem) -> Result<(Self, Vec<u8>), KexError> {
        let (decapsulation, mut init) = KemSecretKey::generate(kem)?;
        let (ephemeral, public) = EphemeralKey::generate(&X25519)?;
        init.extend_from_slice(&public);
        let half = Self {
            kem,
            decapsulation,
            ephemeral,
        };
        Ok((half, init))
    }

    /// Returns the post-quantum secret followed by the classical one, which are hashed to K.
    pub(super) fn finish(self, reply: &[u8]) -> Result<Zeroizing<Vec<u8>>, KexError> {
        let (ciphertext, public) = split(reply, self.kem.ciphertext_len())?;
        let secret = self.decapsulation.decapsulate(ciphertext)?;
        let classical = self.ephemeral.agree(public)?;
        Ok(both(&secret, &classical))
    }
}

/// Server side of a hybrid key exchange: returns the reply and both secrets in the order of
/// [`HybridClient::finish`].
pub(super) fn respond(kem: Kem, init: &[u8]) -> Result<(Vec<u8>, Zeroizing<Vec<u8>>), KexError> {
    let (encapsulation, public) = split(init, kem.public_len())?;
    let (mut reply, secret) = kem.encapsulate(encapsulation)?;
    let (ephemeral, ours) = EphemeralKey::generate(&X25519)?;
    let classical = ephemeral.agree(public)?;
    reply.extend_from_slice(&ours);
    Ok((reply, both(&secret, &classical)))
}

/// Splits a public value into the post-quantum part of `len` bytes and the X25519 key behind it.
fn split(value: &[u8], len: usize) -> Result<(&[u8], &[u8]), KexError> {
    let expected = len + X25519.public_len;
    let wrong = KexError::WrongLength {
        expected,
        got: value.len(),
    };
    if value.len() == expected {
        value.split_at_checked(len).ok_or(wrong)
    } else {
        Err(wrong)
    }
}

fn both(secret: &[u8], classical: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut both = Zeroizing::new(Vec::with_capacity(secret.len() + classical.len()));
    both.extend_from_slice(secret);
    both.extend_from_slice(classical);
    both
}
