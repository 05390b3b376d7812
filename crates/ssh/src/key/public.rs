use std::fmt;

use aws_lc_rs::digest;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use wire::{Field, FieldReader, Mpint};

use super::curve::{EcdsaCurve, NISTP256};
use super::table::{self, ED25519, RSA, SK_ECDSA, SK_ED25519};
use super::{Certificate, HOST_KEY_ALGORITHMS, KeyError, SecurityKeyFlags, certificate, signature};

/// Permitted RSA modulus lengths in bits: at least what NIST SP 800-131A requires (OpenSSH's
/// `RequiredRSASize` defaults to 1024), and at most what aws-lc-rs verifies.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// Public key or certificate, with its blob.
#[derive(Clone)]
pub struct PublicKey {
    blob: Vec<u8>,
    key_type: String,
    kind: PublicKeyKind,
}

/// Content of a public key's blob, as far as this crate understands it.
#[derive(Clone)]
enum PublicKeyKind {
    Plain(VerifyingKey),
    Certificate(Box<Certificate>),
    /// Key of an unknown type, which an agent may still hold and use.
    Opaque,
}

/// Public key that can verify signatures, parsed from its blob. The `Sk` types are FIDO keys, whose
/// signatures also cover the application.
#[derive(Clone)]
pub(super) enum VerifyingKey {
    Ed25519([u8; 32]),
    Ecdsa(&'static EcdsaCurve, Vec<u8>),
    Rsa {
        e: Vec<u8>,
        n: Vec<u8>,
    },
    SkEd25519 {
        key: [u8; 32],
        application: Vec<u8>,
    },
    SkEcdsa {
        point: Vec<u8>,
        application: Vec<u8>,
    },
}

/// Keys are equal if their blobs are; most key types have only one encoding for a key.
impl PartialEq for PublicKey {
    fn eq(&self, other: &Self) -> bool {
        self.blob == other.blob
    }
}
impl Eq for PublicKey {}

impl PublicKey {
    /// Decodes a blob, as in KEX_ECDH_REPLY, an agent's list or a line of known_hosts.
    ///
    /// An unknown key type is not an error; see [`PublicKey::is_usable`].
    pub fn from_blob(blob: &[u8]) -> Result<Self, KeyError> {
        let mut r = FieldReader::new(blob);
        let key_type = utf8(r.string()?)?;
        let kind = if let Some(plain_type) = table::certified_type(&key_type) {
            let certificate = Certificate::read(blob, &mut r, plain_type)?;
            PublicKeyKind::Certificate(Box::new(certificate))
        } else if let Some(plain) = VerifyingKey::read(&mut r, &key_type)? {
            PublicKeyKind::Plain(plain)
        } else {
            r.rest();
            PublicKeyKind::Opaque
        };
        r.finish()?;
        Ok(Self {
            blob: blob.to_vec(),
            key_type,
            kind,
        })
    }

    /// Decodes a certificate after verifying that `authority` has signed the first `covered` bytes
    /// of `blob`, so that only data from the CA is decoded.
    ///
    /// # Errors
    /// The signature is wrong, or the blob is not exactly the certificate that was signed.
    pub fn from_signed_blob(
        blob: &[u8],
        covered: usize,
        authority: &Self,
    ) -> Result<Self, KeyError> {
        let parts = blob.split_at_checked(covered);
        let (signed, rest) = parts.ok_or(KeyError::Malformed("its length is wrong"))?;
        let mut r = FieldReader::new(rest);
        let signature = r.string()?;
        r.finish()?;
        certificate::verify(authority, signed, signature)?;
        let key = Self::from_blob(blob)?;
        match key.certificate() {
            Some(found) if found.signed_is(signed) && found.authority() == authority => Ok(key),
            _ => Err(KeyError::Malformed(
                "it is not the certificate that was signed",
            )),
        }
    }

    /// Returns the blob.
    pub fn blob(&self) -> &[u8] {
        &self.blob
    }

    /// Returns the key type at the front of the blob, such as `ssh-ed25519`.
    pub fn key_type(&self) -> &str {
        &self.key_type
    }

    /// Returns true if the key type is known, so that [`PublicKey::verify`] can work.
    pub fn is_usable(&self) -> bool {
        !matches!(self.kind, PublicKeyKind::Opaque)
    }

    /// Returns the certificate, if this is one.
    pub fn certificate(&self) -> Option<&Certificate> {
        match &self.kind {
            PublicKeyKind::Certificate(certificate) => Some(certificate),
            PublicKeyKind::Plain(_) | PublicKeyKind::Opaque => None,
        }
    }

    /// Returns the plain key: the certified key of a certificate, else this key.
    pub fn plain(&self) -> &Self {
        self.certificate().map_or(self, Certificate::key)
    }

    /// Returns the length of an RSA modulus in bits; `None` for other keys.
    pub fn rsa_bits(&self) -> Option<usize> {
        match &self.plain().kind {
            PublicKeyKind::Plain(VerifyingKey::Rsa { n, .. }) => Some(bits(n)),
            _ => None,
        }
    }

    /// Returns the signature algorithms of the key, best first, for `server-sig-algs`,
    /// USERAUTH_REQUEST and the list of host key algorithms. For an unknown key type that is the
    /// type itself.
    pub fn algorithms(&self) -> Vec<&str> {
        if !self.is_usable() {
            return vec![&self.key_type];
        }
        HOST_KEY_ALGORITHMS
            .iter()
            .filter(|a| a.key_type == self.key_type)
            .map(|a| a.name)
            .collect()
    }

    /// Verifies that this key made `signature` (algorithm name and signature) over `data`, with the
    /// negotiated `algorithm`.
    pub fn verify(&self, algorithm: &str, data: &[u8], signature: &[u8]) -> Result<(), KeyError> {
        self.verify_touch(algorithm, data, signature).map(drop)
    }

    /// Verifies a signature like [`PublicKey::verify`]; returns a security key's report of touch
    /// and user verification, `None` for other keys.
    pub fn verify_touch(
        &self,
        algorithm: &str,
        data: &[u8],
        signature: &[u8],
    ) -> Result<Option<SecurityKeyFlags>, KeyError> {
        let wrong = || KeyError::WrongAlgorithm {
            algorithm: algorithm.to_owned(),
        };
        let row = table::algorithm(algorithm).ok_or_else(wrong)?;
        if row.key_type != self.key_type {
            return Err(wrong());
        }
        match &self.plain().kind {
            PublicKeyKind::Plain(key) => signature::verify(key, row.signature, data, signature),
            PublicKeyKind::Certificate(_) | PublicKeyKind::Opaque => Err(KeyError::Unsupported {
                key_type: self.key_type.clone(),
            }),
        }
    }

    /// Returns the fingerprint in OpenSSH's form, `SHA256:` and the hash; for a certificate that of
    /// the certified key.
    pub fn fingerprint(&self) -> String {
        let hash = digest::digest(&digest::SHA256, &self.plain().blob);
        format!("SHA256:{}", STANDARD_NO_PAD.encode(hash))
    }

    pub(super) fn from_plain(plain_type: &str, fields: &[u8], plain: VerifyingKey) -> Self {
        let mut blob = Vec::with_capacity(4 + plain_type.len() + fields.len());
        plain_type.as_bytes().write(&mut blob);
        blob.extend_from_slice(fields);
        Self {
            blob,
            key_type: plain_type.to_owned(),
            kind: PublicKeyKind::Plain(plain),
        }
    }
}

impl VerifyingKey {
    /// Decodes the fields behind the key type; `None` for an unknown type.
    pub(super) fn read(
        r: &mut FieldReader<'_>,
        plain_type: &str,
    ) -> Result<Option<Self>, KeyError> {
        if let Some(curve) = EcdsaCurve::of_type(plain_type) {
            return Ok(Some(Self::Ecdsa(curve, read_point(r, curve)?)));
        }
        Ok(Some(match plain_type {
            ED25519 => Self::Ed25519(read_ed25519(r)?),
            RSA => {
                let (e, n) = (Mpint::read(r)?, Mpint::read(r)?);
                check_rsa(e.magnitude(), n.magnitude())?;
                Self::Rsa {
                    e: e.magnitude().to_vec(),
                    n: n.magnitude().to_vec(),
                }
            }
            SK_ED25519 => Self::SkEd25519 {
                key: read_ed25519(r)?,
                application: r.string()?.to_vec(),
            },
            SK_ECDSA => Self::SkEcdsa {
                point: read_point(r, &NISTP256)?,
                application: r.string()?.to_vec(),
            },
            _ => return Ok(None),
        }))
    }
}

fn read_ed25519(r: &mut FieldReader<'_>) -> Result<[u8; 32], KeyError> {
    <[u8; 32]>::try_from(r.string()?)
        .map_err(|_| KeyError::Malformed("its Ed25519 key does not have 32 bytes"))
}

fn read_point(r: &mut FieldReader<'_>, curve: &EcdsaCurve) -> Result<Vec<u8>, KeyError> {
    if r.string()? != curve.name.as_bytes() {
        return Err(KeyError::Malformed("its curve does not match its type"));
    }
    let point = r.string()?;
    if curve.accepts(point) {
        Ok(point.to_vec())
    } else {
        Err(KeyError::Malformed(
            "its curve point is in compressed form, which is not supported",
        ))
    }
}

/// Returns the length in bits of a number without leading zero bytes.
fn bits(n: &[u8]) -> usize {
    n.first()
        .map_or(0, |first| n.len() * 8 - first.leading_zeros() as usize)
}

fn check_rsa(e: &[u8], n: &[u8]) -> Result<(), KeyError> {
    let bits = bits(n);
    if !RSA_BITS.contains(&bits) {
        return Err(KeyError::RsaSize { bits });
    }
    // A larger exponent than 64 bits only costs us computation.
    let exponent_ok = e.len() <= 8 && e != [1] && e.last().is_some_and(|b| b % 2 == 1);
    if exponent_ok {
        Ok(())
    } else {
        Err(KeyError::Malformed(
            "its RSA exponent is even, 1 or too large",
        ))
    }
}

pub(super) fn utf8(bytes: &[u8]) -> Result<String, KeyError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| KeyError::Malformed("a name is not UTF-8"))
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({:?} {})", self.key_type, self.fingerprint())
    }
}
