use aws_lc_rs::digest::{self, SHA256};
use aws_lc_rs::signature::{
    ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA512, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use wire::{Field, FieldReader, Mpint};

use super::KeyError;
use super::curve::{EcdsaCurve, NISTP256};
use super::public::VerifyingKey;

/// Report of a security key about the moment of signing (OpenSSH PROTOCOL.u2f).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecurityKeyFlags {
    /// True if a user touched the key.
    pub present: bool,
    /// True if the key verified the user by a PIN or a fingerprint.
    pub verified: bool,
}

/// Flags SSH_SK_USER_PRESENCE_REQD and SSH_SK_USER_VERIFICATION_REQD (sk-api.h).
const PRESENT: u8 = 1;
const VERIFIED: u8 = 4;

/// Verifies `signature`, which must name the algorithm `name`, over `data`.
pub(super) fn verify(
    key: &VerifyingKey,
    name: &str,
    data: &[u8],
    signature: &[u8],
) -> Result<Option<SecurityKeyFlags>, KeyError> {
    let mut r = FieldReader::new(signature);
    let said = r.string()?;
    if said != name.as_bytes() {
        return Err(KeyError::WrongAlgorithm {
            algorithm: String::from_utf8_lossy(said).into_owned(),
        });
    }
    let proper = r.string()?;
    let touch = match key {
        VerifyingKey::Ed25519(key) => {
            ed25519(key, data, proper)?;
            None
        }
        VerifyingKey::Ecdsa(curve, point) => {
            ecdsa(curve, point, data, proper)?;
            None
        }
        VerifyingKey::Rsa { e, n } => {
            rsa(e, n, name, data, proper)?;
            None
        }
        VerifyingKey::SkEd25519 { key, application } => {
            let (signed, touch) = touched(&mut r, application, data)?;
            ed25519(key, &signed, proper)?;
            Some(touch)
        }
        VerifyingKey::SkEcdsa { point, application } => {
            let (signed, touch) = touched(&mut r, application, data)?;
            ecdsa(&NISTP256, point, &signed, proper)?;
            Some(touch)
        }
    };
    r.finish()?;
    Ok(touch)
}

fn ed25519(key: &[u8; 32], data: &[u8], signature: &[u8]) -> Result<(), KeyError> {
    UnparsedPublicKey::new(&ED25519, key)
        .verify(data, signature)
        .map_err(|_| KeyError::BadSignature)
}

/// Verifies an ECDSA signature, whose r and s are mpints (RFC 5656 section 3.1.2); the library
/// expects both at full length.
fn ecdsa(curve: &EcdsaCurve, point: &[u8], data: &[u8], signature: &[u8]) -> Result<(), KeyError> {
    let mut r = FieldReader::new(signature);
    let halves = [Mpint::read(&mut r)?, Mpint::read(&mut r)?];
    r.finish()?;
    let mut fixed = Vec::with_capacity(2 * curve.field_len);
    for half in halves {
        pad(&mut fixed, half.magnitude(), curve.field_len)?;
    }
    UnparsedPublicKey::new(curve.verifying, point)
        .verify(data, &fixed)
        .map_err(|_| KeyError::BadSignature)
}

fn rsa(e: &[u8], n: &[u8], name: &str, data: &[u8], signature: &[u8]) -> Result<(), KeyError> {
    let parameters = match name {
        "rsa-sha2-512" => &RSA_PKCS1_2048_8192_SHA512,
        "rsa-sha2-256" => &RSA_PKCS1_2048_8192_SHA256,
        _ => {
            return Err(KeyError::WrongAlgorithm {
                algorithm: name.to_owned(),
            });
        }
    };
    // Some implementations drop leading zeros, which OpenSSH accepts (ssh-rsa.c).
    let mut whole = Vec::with_capacity(n.len());
    pad(&mut whole, signature, n.len())?;
    RsaPublicKeyComponents { n, e }
        .verify(parameters, data, &whole)
        .map_err(|_| KeyError::BadSignature)
}

/// Appends `number`, padded in front with zeros to `len` bytes.
fn pad(out: &mut Vec<u8>, number: &[u8], len: usize) -> Result<(), KeyError> {
    let zeros = len
        .checked_sub(number.len())
        .ok_or(KeyError::BadSignature)?;
    out.resize(out.len() + zeros, 0);
    out.extend_from_slice(number);
    Ok(())
}

/// Returns the data that a security key signs in place of `data` (OpenSSH PROTOCOL.u2f), and its
/// report; flags and counter follow the signature.
fn touched(
    r: &mut FieldReader<'_>,
    application: &[u8],
    data: &[u8],
) -> Result<(Vec<u8>, SecurityKeyFlags), KeyError> {
    let (flags, counter) = (r.u8()?, r.u32()?);
    let mut signed = digest::digest(&SHA256, application).as_ref().to_vec();
    signed.push(flags);
    signed.extend_from_slice(&counter.to_be_bytes());
    signed.extend_from_slice(digest::digest(&SHA256, data).as_ref());
    let touch = SecurityKeyFlags {
        present: flags & PRESENT != 0,
        verified: flags & VERIFIED != 0,
    };
    Ok((signed, touch))
}
