//! Parses lines of authorized_keys (sshd(8)) and of a list of certificate authorities.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use ssh::key::{CertificateError, PublicKey, SecurityKeyTouch};

use super::options::Options;
use super::patterns;

/// Address and time of a login attempt, against which the options of a key are checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct AuthContext {
    pub(super) from: IpAddr,
    pub(super) now: Timestamp,
}

/// Key or certificate that a client offers, as received. Nothing in it is parsed until a listed key
/// matches it or is found to have signed it.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfferedKey<'s> {
    /// Blob of the key or certificate.
    pub(super) blob: &'s [u8],
    /// Blob of the key that signed the certificate; empty for a plain key.
    pub(super) authority: &'s [u8],
    /// Number of bytes of `blob` that the authority's signature covers.
    pub(super) signed_len: usize,
}

impl OfferedKey<'_> {
    pub(super) fn is_certificate(&self) -> bool {
        !self.authority.is_empty()
    }
}

/// A file with one key per line.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyFileLines<'t> {
    pub(super) text: &'t str,
    /// Name of the file for log messages.
    pub(super) name: &'t str,
    /// Every key is an authority, and no line has options (TrustedUserCAKeys of sshd).
    pub(super) authorities: bool,
}

/// Key or certificate that a line accepts, before the client has proved that it holds the private
/// key.
#[derive(Debug)]
pub(super) struct Authorized {
    /// The accepted key or certificate.
    pub(super) key: PublicKey,
    no_touch_required: bool,
    verify_required: bool,
}

impl Authorized {
    /// Checks the flags of a security key's signature. By default the key must have been touched
    /// (auth2-pubkey.c).
    ///
    /// # Errors
    /// The flags do not suffice; one sentence.
    pub(super) fn check_touch(&self, touch: Option<SecurityKeyTouch>) -> Result<(), String> {
        let wrong = match touch {
            Some(touch) if !touch.present && !self.no_touch_required => {
                "nobody has touched the security key"
            }
            Some(touch) if !touch.verified && self.verify_required => {
                "the security key has not verified who touched it (verify-required)"
            }
            None if self.verify_required => {
                "only a security key can say that it has verified its user (verify-required)"
            }
            _ => return Ok(()),
        };
        Err(wrong.to_owned())
    }
}

/// Finds a line that accepts `shown` for the account of `user` in this context.
///
/// # Errors
/// The reason for the refusal, one sentence: no line has the key, or the options of each line rule
/// it out.
pub(super) fn lets_in(
    lines: KeyFileLines<'_>,
    shown: OfferedKey<'_>,
    user: &str,
    at: AuthContext,
) -> Result<Authorized, String> {
    let name = lines.name;
    let (wanted, mut why) = match shown.is_certificate() {
        false => (shown.blob, format!("it is not in {name}")),
        true => (
            shown.authority,
            format!("the authority that signed it is not in {name}"),
        ),
    };
    for (number, line) in (1..).zip(lines.text.lines()) {
        let found = split(line.trim()).filter(|(_, key)| key.blob() == wanted);
        let Some((options, key)) = found else {
            continue;
        };
        match enter(lines, options, key, shown, user, at) {
            Ok(admitted) => return Ok(admitted),
            Err(reason) => why = format!("line {number} of {name} {reason}"),
        }
    }
    Err(why)
}

/// Checks one line whose key matches; the error continues a sentence about the line.
fn enter(
    lines: KeyFileLines<'_>,
    options: &str,
    key: PublicKey,
    shown: OfferedKey<'_>,
    user: &str,
    at: AuthContext,
) -> Result<Authorized, String> {
    if lines.authorities && !options.is_empty() {
        return Err("has options, which a list of authorities cannot have".to_owned());
    }
    let options = Options::read(options, at)?;
    match (
        options.authority || lines.authorities,
        shown.is_certificate(),
    ) {
        (false, false) => Ok(Authorized {
            key,
            no_touch_required: options.no_touch_required,
            verify_required: options.verify_required,
        }),
        (true, true) => certified(&options, &key, shown, user, at)
            .map_err(|why| format!("has its authority, but {why}")),
        (true, false) => {
            Err("lets in what the key has signed, and not the key (cert-authority)".to_owned())
        }
        (false, true) => {
            Err("has its authority for itself alone, without cert-authority".to_owned())
        }
    }
}

fn certified(
    options: &Options,
    authority: &PublicKey,
    shown: OfferedKey<'_>,
    user: &str,
    at: AuthContext,
) -> Result<Authorized, String> {
    let key = PublicKey::from_signed_blob(shown.blob, shown.signed_len, authority);
    let key = key.map_err(|e| CertificateError::BadSignature(e).to_string())?;
    let certificate = key.certificate().ok_or("it is no certificate")?;
    let names: Vec<&str> = match &options.principals {
        Some(names) => names.iter().map(String::as_str).collect(),
        None => vec![user],
    };
    let now = u64::try_from(at.now.as_second()).unwrap_or_default();
    let terms = certificate.validate_user(&names, now, |ca| ca == authority);
    let terms = terms.map_err(|e| e.to_string())?;
    if let Some(networks) = &terms.source_address {
        match patterns::in_networks(networks, at.from) {
            Some(true) => {}
            Some(false) => {
                return Err("the certificate is for other addresses (source-address)".to_owned());
            }
            None => {
                return Err("the certificate has a source-address that cannot be read".to_owned());
            }
        }
    }
    Ok(Authorized {
        // Merged as in auth-options.c: the stricter option applies.
        no_touch_required: options.no_touch_required && terms.no_touch_required,
        verify_required: options.verify_required || terms.verify_required,
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
