use wire::FieldReader;

use super::public::{VerifyingKey, utf8};
use super::{CertificateError, KeyError, PublicKey};

/// Maximum number of principals: OpenSSH's SSHKEY_CERT_MAX_PRINCIPALS (sshkey.h).
const MAX_PRINCIPALS: usize = 256;

/// Certificate in OpenSSH's format (PROTOCOL.certkeys), not yet validated.
#[derive(Clone, Debug)]
pub struct Certificate {
    key: PublicKey,
    /// Serial number from the CA; 0 if it assigns none.
    pub serial: u64,
    /// Kind of certificate.
    pub kind: CertificateKind,
    /// Key identifier that the CA has chosen.
    pub key_id: String,
    /// Host names or user names that the certificate is valid for.
    pub principals: Vec<String>,
    /// Start of validity, in seconds since 1970.
    pub valid_after: u64,
    /// End of validity (exclusive), in seconds since 1970.
    pub valid_before: u64,
    /// Critical options, name and data; a certificate with an unknown one must be refused.
    pub critical_options: Vec<(String, Vec<u8>)>,
    /// Extensions, name and data; unknown ones are ignored.
    pub extensions: Vec<(String, Vec<u8>)>,
    authority: PublicKey,
    signed: Vec<u8>,
    signature: Vec<u8>,
}

/// Use of an OpenSSH certificate (PROTOCOL.certkeys): for a login or as a host key, never for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateKind {
    /// User certificate.
    User,
    /// Host certificate.
    Host,
}

impl Certificate {
    /// Decodes the fields of `blob` behind the key type.
    pub(super) fn read(
        blob: &[u8],
        r: &mut FieldReader<'_>,
        plain_type: &'static str,
    ) -> Result<Self, KeyError> {
        let consumed = |r: &FieldReader<'_>| blob.len() - r.left();
        let _nonce = r.string()?;

        let fields_start = consumed(r);
        let plain = VerifyingKey::read(r, plain_type)?.ok_or_else(|| KeyError::Unsupported {
            key_type: plain_type.to_owned(),
        })?;
        let fields = blob.get(fields_start..consumed(r)).unwrap_or_default();
        let key = PublicKey::from_plain(plain_type, fields, plain);

        let serial = r.u64()?;
        let kind = match r.u32()? {
            1 => CertificateKind::User,
            2 => CertificateKind::Host,
            _ => return Err(KeyError::Malformed("its type is neither user nor host")),
        };
        let key_id = String::from_utf8_lossy(r.string()?).into_owned();
        let principals = read_principals(r.string()?)?;
        let (valid_after, valid_before) = (r.u64()?, r.u64()?);
        let critical_options = read_options(r.string()?)?;
        let extensions = read_options(r.string()?)?;
        let _reserved = r.string()?;

        let authority = r.string()?;
        let signed = blob.get(..consumed(r)).unwrap_or_default().to_vec();
        let signature = r.string()?.to_vec();
        Ok(Self {
            key,
            serial,
            kind,
            key_id,
            principals,
            valid_after,
            valid_before,
            critical_options,
            extensions,
            authority: read_authority(authority)?,
            signed,
            signature,
        })
    }

    /// Returns the certified key.
    pub fn key(&self) -> &PublicKey {
        &self.key
    }

    /// Returns the CA's public key.
    pub fn authority(&self) -> &PublicKey {
        &self.authority
    }

    /// Verifies the CA's signature, which says nothing about trust in the CA.
    pub fn verify_signature(&self) -> Result<(), KeyError> {
        verify(&self.authority, &self.signed, &self.signature)
    }

    /// Returns the algorithm name in the CA's signature.
    ///
    /// # Errors
    /// The signature has no name.
    pub fn signature_algorithm(&self) -> Result<String, KeyError> {
        utf8(FieldReader::new(&self.signature).string()?)
    }

    /// Returns the number of bytes at the front of the blob that the CA's signature covers.
    pub fn signed_len(&self) -> usize {
        self.signed.len()
    }

    /// Returns true if `bytes` are the part of the blob that the CA's signature covers.
    pub(super) fn signed_is(&self, bytes: &[u8]) -> bool {
        self.signed == bytes
    }

    /// Checks that the host certificate is valid for `hostname` at `now` (seconds since 1970) and
    /// signed by a CA for which `is_trusted_ca` returns true; the CA's key is always a plain key.
    ///
    /// Principals may contain the wildcards `*` and `?`, as in OpenSSH since 10.3. A certificate
    /// without principals is refused, also as in OpenSSH.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn validate_host(
        &self,
        hostname: &str,
        now: u64,
        is_trusted_ca: impl Fn(&PublicKey) -> bool,
    ) -> Result<(), CertificateError> {
        let name = hostname.to_ascii_lowercase();
        let names_it = |pattern: &str| matches(pattern.as_bytes(), name.as_bytes());
        self.validate(CertificateKind::Host, now, is_trusted_ca, names_it, &name)?;
        match self.critical_options.first() {
            Some((name, _)) => Err(CertificateError::CriticalOption { name: name.clone() }),
            None => Ok(()),
        }
    }

    /// Checks everything but the options: kind, CA, signature, validity, and that `names_it`
    /// returns true for a principal. `name` is the wanted name for the error.
    pub(super) fn validate(
        &self,
        kind: CertificateKind,
        now: u64,
        is_trusted_ca: impl Fn(&PublicKey) -> bool,
        names_it: impl Fn(&str) -> bool,
        name: &str,
    ) -> Result<(), CertificateError> {
        match (kind, self.kind) {
            (CertificateKind::Host, CertificateKind::User) => {
                return Err(CertificateError::NotAHost);
            }
            (CertificateKind::User, CertificateKind::Host) => {
                return Err(CertificateError::NotAUser);
            }
            _ => {}
        }
        if !is_trusted_ca(&self.authority) {
            return Err(CertificateError::UntrustedAuthority {
                fingerprint: self.authority.fingerprint(),
            });
        }
        self.verify_signature()
            .map_err(CertificateError::BadSignature)?;
        let (valid_after, valid_before) = (self.valid_after, self.valid_before);
        if now < valid_after {
            return Err(CertificateError::NotYetValid { valid_after });
        }
        if now >= valid_before {
            return Err(CertificateError::Expired { valid_before });
        }
        if self.principals.is_empty() {
            return Err(CertificateError::NoPrincipals);
        }
        match self.principals.iter().any(|named| names_it(named)) {
            true => Ok(()),
            false => Err(CertificateError::OtherPrincipals {
                name: name.to_owned(),
            }),
        }
    }
}

/// Verifies a CA's signature over the front of a certificate.
pub(super) fn verify(
    authority: &PublicKey,
    signed: &[u8],
    signature: &[u8],
) -> Result<(), KeyError> {
    // The signature alone has the algorithm name; SHA-1 is in no table and therefore refused.
    let name = utf8(FieldReader::new(signature).string()?)?;
    authority.verify(&name, signed, signature)
}

/// Decodes the CA's key, which must be a plain key: certificates cannot be chained
/// (PROTOCOL.certkeys).
fn read_authority(blob: &[u8]) -> Result<PublicKey, KeyError> {
    let key_type = utf8(FieldReader::new(blob).string()?)?;
    // The type is checked before the key is decoded, which prevents deeply nested certificates.
    if super::table::certified_type(&key_type).is_some() {
        return Err(KeyError::Malformed(
            "its signing key is itself a certificate",
        ));
    }
    PublicKey::from_blob(blob)
}

fn read_principals(list: &[u8]) -> Result<Vec<String>, KeyError> {
    let mut r = FieldReader::new(list);
    let mut principals = Vec::new();
    while r.left() > 0 {
        if principals.len() == MAX_PRINCIPALS {
            return Err(KeyError::Malformed("it has more than 256 principals"));
        }
        principals.push(utf8(r.string()?)?);
    }
    Ok(principals)
}

/// Decodes options, which must be in ascending order without duplicates (PROTOCOL.certkeys).
fn read_options(list: &[u8]) -> Result<Vec<(String, Vec<u8>)>, KeyError> {
    let mut r = FieldReader::new(list);
    let mut options: Vec<(String, Vec<u8>)> = Vec::new();
    while r.left() > 0 {
        let name = utf8(r.string()?)?;
        let data = r.string()?.to_vec();
        if options.last().is_some_and(|(last, _)| *last >= name) {
            return Err(KeyError::Malformed(
                "its options are not in ascending order",
            ));
        }
        options.push((name, data));
    }
    Ok(options)
}

/// Returns true if `name` matches `pattern` with `*` and `?` (OpenSSH match.c), in time bounded by
/// the product of their lengths.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut retry = None;
    while let Some(byte) = name.get(n) {
        match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                retry = Some((p, n));
            }
            Some(c) if c == byte || *c == b'?' => {
                p += 1;
                n += 1;
            }
            _ => match retry {
                // The star consumes one more byte.
                Some((after_star, taken)) => {
                    p = after_star;
                    n = taken + 1;
                    retry = Some((after_star, n));
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn wildcards() {
        for (pattern, name, expected) in [
            ("host", "host", true),
            ("host", "host2", false),
            ("*.example.org", "a.example.org", true),
            ("*.example.org", "example.org", false),
            ("*.example.org", "a.example.org.evil", false),
            ("h?st", "host", true),
            ("h?st", "hst", false),
            ("*", "", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("", "a", false),
        ] {
            let got = matches(pattern.as_bytes(), name.as_bytes());
            assert_eq!(got, expected, "{pattern} {name}");
        }
    }
}
