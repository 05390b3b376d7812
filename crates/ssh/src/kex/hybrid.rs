use aws_lc_rs::kem::{self, ML_KEM_768};
use aws_lc_rs::rand;
use zeroize::Zeroizing;

use super::KexError;
use super::ecdh::EphemeralKey;
use super::table::{Kem, X25519};

/// FIPS 203 section 8, table 3.
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

    /// Makes a secret that only the owner of `public` can find, and the ciphertext that tells it.
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

/// What the sntrup761 crate expands into a key or ciphertext, drawn where all other secrets of
/// a key exchange are drawn.
fn seed() -> Result<Zeroizing<[u8; 32]>, KexError> {
    let mut seed = Zeroizing::new([0; 32]);
    rand::fill(&mut *seed).map_err(|_| KexError::Local)?;
    Ok(seed)
}

enum Decapsulation {
    MlKem768(kem::DecapsulationKey),
    Sntrup761(Box<sntrup761::DecapsulationKey>),
}

impl Decapsulation {
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

    /// Both methods answer a forged ciphertext of the right length with a secret that nobody
    /// else knows, so that the exchange fails at the host's signature.
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

/// The client's half of a hybrid exchange.
pub(super) struct Hybrid {
    kem: Kem,
    decapsulation: Decapsulation,
    ephemeral: EphemeralKey,
}

impl Hybrid {
    pub(super) fn start(kem: Kem) -> Result<(Self, Vec<u8>), KexError> {
        let (decapsulation, mut init) = Decapsulation::generate(kem)?;
        let (ephemeral, public) = EphemeralKey::generate(&X25519)?;
        init.extend_from_slice(&public);
        let half = Self {
            kem,
            decapsulation,
            ephemeral,
        };
        Ok((half, init))
    }

    /// The post-quantum secret, then the classical one: what is hashed into K.
    pub(super) fn finish(self, reply: &[u8]) -> Result<Zeroizing<Vec<u8>>, KexError> {
        let (ciphertext, public) = split(reply, self.kem.ciphertext_len())?;
        let secret = self.decapsulation.decapsulate(ciphertext)?;
        let classical = self.ephemeral.agree(public)?;
        Ok(both(&secret, &classical))
    }
}

/// The server's half: the reply, and the secrets as [`Hybrid::finish`] has them.
pub(super) fn respond(kem: Kem, init: &[u8]) -> Result<(Vec<u8>, Zeroizing<Vec<u8>>), KexError> {
    let (encapsulation, public) = split(init, kem.public_len())?;
    let (mut reply, secret) = kem.encapsulate(encapsulation)?;
    let (ephemeral, ours) = EphemeralKey::generate(&X25519)?;
    let classical = ephemeral.agree(public)?;
    reply.extend_from_slice(&ours);
    Ok((reply, both(&secret, &classical)))
}

/// Splits a value into its post-quantum part of `len` bytes and the X25519 key behind it.
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
