//! Parses lines of authorized_keys (sshd(8)) and of a list of certificate authorities.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use ssh::key::{CertificateError, PublicKey, SecurityKeyFlags};

use super::options::UncheckedKeyOptions;
use super::patterns;
use super::refusal::{CertificateRefusal, KeyRefusal, LineRefusal, UnmetSecurityKeyRequirement};

/// Address and time of a login attempt, against which the options of a key are checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct AuthContext {
    from: IpAddr,
    now: Timestamp,
}

impl AuthContext {
    pub(super) fn new(from: IpAddr, now: Timestamp) -> Self {
        Self { from, now }
    }

    /// True if the pattern list of `from=` includes the client's address.
    pub(super) fn comes_from(&self, list: &str) -> bool {
        patterns::takes(list, self.from)
    }

    /// True if it is `until` or later.
    pub(super) fn is_past(&self, until: Timestamp) -> bool {
        self.now >= until
    }
}

/// Key or certificate that a client offers, as received. Nothing in it is parsed until a listed key
/// matches it or is found to have signed it.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfferedKey<'s> {
    /// Blob of the key or certificate.
    blob: &'s [u8],
    /// Blob of the key that signed the certificate; empty for a plain key.
    authority: &'s [u8],
    /// Number of bytes of `blob` that the authority's signature covers.
    signed_len: usize,
}

impl<'s> OfferedKey<'s> {
    /// Takes the parts of a message: the key or certificate, the authority's key, and the number of
    /// bytes that it signed.
    pub(super) fn new(blob: &'s [u8], authority: &'s [u8], signed_len: usize) -> Self {
        Self {
            blob,
            authority,
            signed_len,
        }
    }

    pub(super) fn is_certificate(&self) -> bool {
        !self.authority.is_empty()
    }
}

/// A file with one key per line.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyFileLines<'t> {
    text: &'t str,
    /// Name of the file for log messages.
    name: &'static str,
    /// Every key is an authority, and no line has options (TrustedUserCAKeys of sshd).
    authorities: bool,
}

impl<'t> KeyFileLines<'t> {
    /// The text of an account's authorized_keys.
    pub(super) fn of_account(text: &'t str) -> Self {
        Self {
            text,
            name: "authorized_keys",
            authorities: false,
        }
    }

    /// The text of a list of authorities.
    pub(super) fn of_authorities(text: &'t str) -> Self {
        Self {
            text,
            name: "trusted-user-ca-keys",
            authorities: true,
        }
    }
}

/// Key or certificate that a line accepts, before the client has proved that it holds the private
/// key.
#[derive(Debug)]
pub(super) struct MatchedAuthorizedKey {
    key: PublicKey,
    no_touch_required: bool,
    verify_required: bool,
}

impl MatchedAuthorizedKey {
    /// The accepted key or certificate.
    pub(super) fn key(&self) -> &PublicKey {
        &self.key
    }

    /// Checks the flags of a security key's signature. By default the key must have been touched
    /// (auth2-pubkey.c).
    ///
    /// # Errors
    /// The flags do not suffice.
    pub(super) fn check_touch(
        &self,
        touch: Option<SecurityKeyFlags>,
    ) -> Result<(), UnmetSecurityKeyRequirement> {
        match touch {
            Some(touch) if !touch.present && !self.no_touch_required => {
                Err(UnmetSecurityKeyRequirement::Presence)
            }
            Some(touch) if !touch.verified && self.verify_required => {
                Err(UnmetSecurityKeyRequirement::Verification)
            }
            None if self.verify_required => Err(UnmetSecurityKeyRequirement::SecurityKey),
            _ => Ok(()),
        }
    }
}

/// Finds a line that accepts `shown` for the account of `user` in this context.
///
/// # Errors
/// No line has the key, or the options of each line rule it out.
pub(super) fn lets_in(
    lines: KeyFileLines<'_>,
    shown: OfferedKey<'_>,
    user: &str,
    at: AuthContext,
) -> Result<MatchedAuthorizedKey, KeyRefusal> {
    let file = lines.name;
    let (wanted, mut why) = match shown.is_certificate() {
        false => (shown.blob, KeyRefusal::NotListed(file)),
        true => (shown.authority, KeyRefusal::AuthorityNotListed(file)),
    };
    for (number, line) in (1..).zip(lines.text.lines()) {
        let found = split(line.trim()).filter(|(_, key)| key.blob() == wanted);
        let Some((options, key)) = found else {
            continue;
        };
        match enter(lines, options, key, shown, user, at) {
            Ok(admitted) => return Ok(admitted),
            Err(reason) => {
                why = KeyRefusal::Line {
                    number,
                    file,
                    why: reason,
                }
            }
        }
    }
    Err(why)
}

/// Checks one line whose key matches.
fn enter(
    lines: KeyFileLines<'_>,
    options: &str,
    key: PublicKey,
    shown: OfferedKey<'_>,
    user: &str,
    at: AuthContext,
) -> Result<MatchedAuthorizedKey, LineRefusal> {
    if lines.authorities && !options.is_empty() {
        return Err(LineRefusal::OptionsOfAuthority);
    }
    let options = UncheckedKeyOptions::read(options, at)?;
    match (
        options.is_authority() || lines.authorities,
        shown.is_certificate(),
    ) {
        (false, false) => Ok(MatchedAuthorizedKey {
            key,
            no_touch_required: options.waives_touch(),
            verify_required: options.requires_verification(),
        }),
        (true, true) => {
            certified(&options, &key, shown, user, at).map_err(LineRefusal::Certificate)
        }
        (true, false) => Err(LineRefusal::ForCertificates),
        (false, true) => Err(LineRefusal::ForKey),
    }
}

fn certified(
    options: &UncheckedKeyOptions,
    authority: &PublicKey,
    shown: OfferedKey<'_>,
    user: &str,
    at: AuthContext,
) -> Result<MatchedAuthorizedKey, CertificateRefusal> {
    let key = PublicKey::from_signed_blob(shown.blob, shown.signed_len, authority);
    let key = key.map_err(|e| CertificateRefusal::Invalid(CertificateError::BadSignature(e)))?;
    let certificate = key.certificate();
    let certificate = certificate.ok_or(CertificateRefusal::NotACertificate)?;
    let names = options.principals(user);
    let now = u64::try_from(at.now.as_second()).unwrap_or_default();
    let terms = certificate.validate_user(&names, now, |ca| ca == authority);
    let terms = terms.map_err(CertificateRefusal::Invalid)?;
    if let Some(networks) = &terms.source_address {
        match patterns::in_networks(networks, at.from) {
            Some(true) => {}
            Some(false) => return Err(CertificateRefusal::SourceAddress),
            None => return Err(CertificateRefusal::UnreadableSourceAddress),
        }
    }
    Ok(MatchedAuthorizedKey {
        // Merged as in auth-options.c: the stricter option applies.
        no_touch_required: options.waives_touch() && terms.no_touch_required,
        verify_required: options.requires_verification() || terms.verify_required,
        key,
    })
}

/// Splits a line into options and key; `None` for comments and for lines without a key.
fn split(line: &str) -> Option<(&str, PublicKey)> {
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    if let Some(key) = read_key(line) {
        return Some(("", key));
    }
    let end = end_of_options(line);
    let (options, rest) = line.split_at(end);
    Some((options, read_key(rest.trim_start())?))
}

/// Parses `type base64 comment`.
fn read_key(text: &str) -> Option<PublicKey> {
    let mut words = text.split_ascii_whitespace();
    let (key_type, encoded) = (words.next()?, words.next()?);
    let key = PublicKey::from_blob(&STANDARD.decode(encoded).ok()?).ok()?;
    // A certificate is accepted only through its authority's line, even if the file lists the
    // certificate itself.
    (key.key_type() == key_type && key.certificate().is_none()).then_some(key)
}

/// Offset of the first blank outside quotes, or the length of the line.
fn end_of_options(line: &str) -> usize {
    let mut quoted = false;
    let mut before = 0;
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            b'"' if before != b'\\' => quoted = !quoted,
            b' ' | b'\t' if !quoted => return at,
            _ => {}
        }
        before = byte;
    }
    line.len()
}

#[cfg(test)]
#[path = "authorized_tests.rs"]
mod tests;
