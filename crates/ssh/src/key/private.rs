use std::fmt;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA512, RsaKeyPair,
};
use wire::{Field, Mpint};
use zeroize::Zeroizing;

use super::curve::{CURVES, EcdsaCurve};
use super::table::{self, ED25519, RSA};
use super::{KeyError, PublicKey, RsaParts, der};

/// Private key that signs in this process. The secret is inside aws-lc-rs, which zeroes it when it
/// is dropped.
pub struct PrivateKey {
    kind: PrivateKeyKind,
    public: PublicKey,
}

/// Key pair of the cipher library, by key type.
enum PrivateKeyKind {
    Ed25519(Ed25519KeyPair),
    Ecdsa(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl PrivateKey {
    /// Creates an ed25519 key from its 32-byte seed.
    pub fn from_ed25519_seed(seed: &[u8; 32]) -> Result<Self, KeyError> {
        Ed25519KeyPair::from_seed_unchecked(seed)
            .map_err(|_| KeyError::BadPrivateKey)
            .and_then(Self::ed25519)
    }

    /// Creates an ECDSA key from the curve name (`nistp256`, `nistp384`, `nistp521`), the private
    /// scalar, big-endian with or without leading zeros, and the uncompressed public point.
    pub fn from_ecdsa(curve: &str, secret: &[u8], point: &[u8]) -> Result<Self, KeyError> {
        let curve = EcdsaCurve::named(curve).ok_or_else(|| KeyError::Unsupported {
            key_type: curve.to_owned(),
        })?;
        let zeros = secret.iter().take_while(|b| **b == 0).count();
        let magnitude = secret.get(zeros..).unwrap_or_default();
        let pad = curve
            .field_len
            .checked_sub(magnitude.len())
            .ok_or(KeyError::BadPrivateKey)?;
        let mut fixed = Zeroizing::new(Vec::with_capacity(curve.field_len));
        fixed.resize(pad, 0);
        fixed.extend_from_slice(magnitude);
        EcdsaKeyPair::from_private_key_and_public_key(curve.signing, &fixed, point)
            .map_err(|_| KeyError::BadPrivateKey)
            .and_then(|pair| Self::ecdsa(curve, pair))
    }

    /// Creates an RSA key from the numbers in OpenSSH's private key format.
    pub fn from_rsa(parts: RsaParts<'_>) -> Result<Self, KeyError> {
        Self::from_rsa_pkcs1(&parts.to_pkcs1())
    }

    /// Creates an RSA key from an RSAPrivateKey (`BEGIN RSA PRIVATE KEY`) in DER.
    pub fn from_rsa_pkcs1(der: &[u8]) -> Result<Self, KeyError> {
        RsaKeyPair::from_der(der)
            .map_err(|_| KeyError::BadPrivateKey)
            .and_then(Self::rsa)
    }

    /// Creates an ECDSA key from an ECPrivateKey (`BEGIN EC PRIVATE KEY`) in DER.
    pub fn from_ec_der(der: &[u8]) -> Result<Self, KeyError> {
        let mut pairs = CURVES.into_iter().filter_map(|curve| {
            let pair = EcdsaKeyPair::from_private_key_der(curve.signing, der).ok()?;
            Some((curve, pair))
        });
        let (curve, pair) = pairs.next().ok_or(KeyError::BadPrivateKey)?;
        Self::ecdsa(curve, pair)
    }

    /// Creates a key of any supported kind from unencrypted PKCS#8 (`BEGIN PRIVATE KEY`) in DER.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, KeyError> {
        if let Ok(pair) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der) {
            return Self::ed25519(pair);
        }
        if let Ok(pair) = RsaKeyPair::from_pkcs8(der) {
            return Self::rsa(pair);
        }
        for curve in CURVES {
            if let Ok(pair) = EcdsaKeyPair::from_pkcs8(curve.signing, der) {
                return Self::ecdsa(curve, pair);
            }
        }
        Err(KeyError::BadPrivateKey)
    }

    /// Generates an ed25519 key.
    pub fn generate_ed25519() -> Result<Self, KeyError> {
        Ed25519KeyPair::generate()
            .map_err(|_| KeyError::Local)
            .and_then(Self::ed25519)
    }

    /// Generates an ECDSA key on the curve with this name, as in [`PrivateKey::from_ecdsa`].
    pub fn generate_ecdsa(curve: &str) -> Result<Self, KeyError> {
        let curve = EcdsaCurve::named(curve).ok_or_else(|| KeyError::Unsupported {
            key_type: curve.to_owned(),
        })?;
        EcdsaKeyPair::generate(curve.signing)
            .map_err(|_| KeyError::Local)
            .and_then(|pair| Self::ecdsa(curve, pair))
    }

    /// Generates an RSA key of 3072 bits, ssh-keygen's default.
    pub fn generate_rsa() -> Result<Self, KeyError> {
        RsaKeyPair::generate(KeySize::Rsa3072)
            .map_err(|_| KeyError::Local)
            .and_then(Self::rsa)
    }

    /// Returns the public key.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Returns the blob of the public key.
    pub fn public_blob(&self) -> &[u8] {
        self.public.blob()
    }

    /// Signs `data` with `algorithm`, one of [`PublicKey::algorithms`] of this key or of a
    /// certificate for it. Returns a signature blob: the algorithm name and the signature.
    pub fn sign(&self, algorithm: &str, data: &[u8]) -> Result<Vec<u8>, KeyError> {
        let row = table::algorithm(algorithm)
            .filter(|row| row.plain_type == self.public.key_type())
            .ok_or_else(|| KeyError::WrongAlgorithm {
                algorithm: algorithm.to_owned(),
            })?;
        let random = SystemRandom::new();
        let proper = match &self.kind {
            PrivateKeyKind::Ed25519(pair) => {
                let signed = pair.try_sign(data).map_err(|_| KeyError::Local)?;
                signed.as_ref().to_vec()
            }
            PrivateKeyKind::Ecdsa(pair) => {
                let signed = pair.sign(&random, data).map_err(|_| KeyError::Local)?;
                let (r, s) = signed.as_ref().split_at(signed.as_ref().len() / 2);
                let mut halves = Vec::with_capacity(signed.as_ref().len() + 10);
                Mpint::from_magnitude(r).write(&mut halves);
                Mpint::from_magnitude(s).write(&mut halves);
                halves
            }
            PrivateKeyKind::Rsa(pair) => {
                let encoding = match row.signature {
                    "rsa-sha2-256" => &RSA_PKCS1_SHA256,
                    _ => &RSA_PKCS1_SHA512,
                };
                let mut signed = vec![0; pair.public_modulus_len()];
                pair.sign(encoding, &random, data, &mut signed)
                    .map_err(|_| KeyError::Local)?;
                signed
            }
        };
        let mut blob = Vec::with_capacity(8 + row.signature.len() + proper.len());
        row.signature.as_bytes().write(&mut blob);
        proper.as_slice().write(&mut blob);
        Ok(blob)
    }

    fn ed25519(pair: Ed25519KeyPair) -> Result<Self, KeyError> {
        let public = public_blob(ED25519, &[pair.public_key().as_ref()])?;
        Ok(Self {
            kind: PrivateKeyKind::Ed25519(pair),
            public,
        })
    }

    fn ecdsa(curve: &'static EcdsaCurve, pair: EcdsaKeyPair) -> Result<Self, KeyError> {
        let fields = [curve.name.as_bytes(), pair.public_key().as_ref()];
        let public = public_blob(curve.key_type, &fields)?;
        Ok(Self {
            kind: PrivateKeyKind::Ecdsa(pair),
            public,
        })
    }

    fn rsa(pair: RsaKeyPair) -> Result<Self, KeyError> {
        // RSAPublicKey of RFC 8017 has modulus and exponent, SSH has them in reverse order.
        let [n, e] =
            der::read_sequence(pair.public_key().as_ref()).ok_or(KeyError::BadPrivateKey)?;
        let public = public_blob(RSA, &[e, n])?;
        Ok(Self {
            kind: PrivateKeyKind::Rsa(pair),
            public,
        })
    }
}

/// Encodes a public key. DER INTEGERs have the same form as mpints, so all fields are written as
/// strings.
fn public_blob(key_type: &str, fields: &[&[u8]]) -> Result<PublicKey, KeyError> {
    let mut blob = Vec::new();
    key_type.as_bytes().write(&mut blob);
    for field in fields {
        field.write(&mut blob);
    }
    PublicKey::from_blob(&blob)
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({:?})", self.public)
    }
}
