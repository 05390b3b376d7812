use wire::Reader;

use super::public::{Plain, utf8};
use super::{CertificateError, KeyError, PublicKey};

/// OpenSSH's SSHKEY_CERT_MAX_PRINCIPALS (sshkey.h).
const MAX_PRINCIPALS: usize = 256;

/// A certificate in OpenSSH's format (PROTOCOL.certkeys), not yet validated.
#[derive(Clone, Debug)]
pub struct Certificate {
    key: PublicKey,
    /// The CA's number for it; 0 where it gives none.
    pub serial: u64,
    /// What it is for.
    pub kind: CertificateKind,
    /// The CA's name for it.
    pub key_id: String,
    /// Host names or user names.
    pub principals: Vec<String>,
    /// From when; seconds since 1970.
    pub valid_after: u64,
    /// Until when, itself excluded; seconds since 1970.
    pub valid_before: u64,
    /// Name and data; who does not know one must refuse the certificate.
    pub critical_options: Vec<(String, Vec<u8>)>,
    /// Name and data; unknown ones are ignored.
    pub extensions: Vec<(String, Vec<u8>)>,
    authority: PublicKey,
    signed: Vec<u8>,
    signature: Vec<u8>,
}

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateKind {
    /// It lets a user in.
    User,
    /// It names a host.
    Host,
}

impl Certificate {
    /// Reads the fields of `blob` from behind its type's name.
    pub(super) fn read(
        blob: &[u8],
        r: &mut Reader<'_>,
        plain_type: &'static str,
    ) -> Result<Self, KeyError> {
        let consumed = |r: &Reader<'_>| blob.len() - r.left();
        let _nonce = r.string()?;

        let fields_start = consumed(r);
        let plain = Plain::read(r, plain_type)?.ok_or_else(|| KeyError::Unsupported {
            key_type: plain_type.to_owned(),
        })?;
        let fields = blob.get(fields_start..consumed(r)).unwrap_or_default();
        let key = PublicKey::from_plain(plain_type, fields, plain);

        let serial = r.u64()?;
        let kind = match r.u32()? {
            1 => CertificateKind::User,
            2 => CertificateKind::Host,
            _ => return Err(KeyError::Malformed("it is neither a user's nor a host's")),
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

    /// The key it certifies.
    pub fn key(&self) -> &PublicKey {
        &self.key
    }

    /// The key that signed it.
    pub fn authority(&self) -> &PublicKey {
        &self.authority
    }

    /// Checks the authority's signature. That says nothing about trust in it.
    pub fn verify_signature(&self) -> Result<(), KeyError> {
        verify(&self.authority, &self.signed, &self.signature)
    }

    /// The name of the algorithm that the authority's signature says it is made with.
    ///
    /// # Errors
    /// The signature has no name.
    pub fn signature_algorithm(&self) -> Result<String, KeyError> {
        utf8(Reader::new(&self.signature).string()?)
    }

    /// How many bytes at the front of its blob the authority has signed.
    pub fn signed_len(&self) -> usize {
        self.signed.len()
    }

    /// Whether these bytes of its blob are what the authority has signed.
    pub(super) fn signed_is(&self, bytes: &[u8]) -> bool {
        self.signed == bytes
    }

    /// Whether the host certificate holds for `hostname` at `now` (seconds since 1970), signed
    /// by a key that `is_trusted_ca`, which is asked about plain keys only.
    ///
    /// Principals may have the wildcards `*` and `?`, as OpenSSH since 10.3 takes them. A
    /// certificate without principals is refused, as it does too.
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

    /// All but its options: whom it is for, who signed it, when it holds and whether it names
    /// one that `names_it`; that one is told as `name`.
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

/// Checks an authority's signature over the front of a certificate.
pub(super) fn verify(
    authority: &PublicKey,
    signed: &[u8],
    signature: &[u8],
) -> Result<(), KeyError> {
    // The name of the algorithm is only in the signature; SHA-1 is in no table, so refused.
    let name = utf8(Reader::new(signature).string()?)?;
    authority.verify(&name, signed, signature)
}

/// The CA's key must be a plain one: no chains of certificates (PROTOCOL.certkeys).
fn read_authority(blob: &[u8]) -> Result<PublicKey, KeyError> {
    let key_type = utf8(Reader::new(blob).string()?)?;
    // Looked at before the key is read, or certificates in certificates could go on for long.
    if super::table::certified_type(&key_type).is_some() {
        return Err(KeyError::Malformed("its authority is itself a certificate"));
    }
    PublicKey::from_blob(blob)
}

fn read_principals(list: &[u8]) -> Result<Vec<String>, KeyError> {
    let mut r = Reader::new(list);
    let mut principals = Vec::new();
    while r.left() > 0 {
        if principals.len() == MAX_PRINCIPALS {
            return Err(KeyError::Malformed("it has over 256 principals"));
        }
        principals.push(utf8(r.string()?)?);
    }
    Ok(principals)
}

/// Options come in the order of their names, each once (PROTOCOL.certkeys).
fn read_options(list: &[u8]) -> Result<Vec<(String, Vec<u8>)>, KeyError> {
    let mut r = Reader::new(list);
    let mut options: Vec<(String, Vec<u8>)> = Vec::new();
    while r.left() > 0 {
        let name = utf8(r.string()?)?;
        let data = r.string()?.to_vec();
        if options.last().is_some_and(|(last, _)| *last >= name) {
            return Err(KeyError::Malformed("its options are not in order"));
        }
        options.push((name, data));
    }
    Ok(options)
}

/// Whether `name` matches `pattern` with `*` and `?` (OpenSSH match.c), in time that is at most
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
                // The star takes one more byte.
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
