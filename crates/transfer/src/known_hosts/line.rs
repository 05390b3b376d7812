use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use ssh::key::PublicKey;
use wire::{Field, Mpint, Reader};

use super::pattern::matches_list;
use super::{HostName, KnownKey, Place};
use crate::escape;

/// OpenSSH drops a line that has a longer pattern (match.c `match_pattern_list`).
const LONGEST_PATTERN: usize = 1022;

const NUL: &str = "it has a NUL byte";

/// A line of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    /// The hosts and the key that OpenSSH reads in it.
    pub(super) entry: Option<Entry>,
    /// The part that OpenSSH skips. Its key may be another one of the host's, or a revoked one.
    pub(super) unreadable: Option<Unreadable>,
}

/// Hosts, and a key that is theirs, is revoked or is an authority's.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) place: Place,
    pub(super) marker: Marker,
    hosts: Hosts,
    pub(super) key_type: String,
    pub(super) blob: Vec<u8>,
    /// The blob of the bare key where the line has a certificate.
    pub(super) plain: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    None,
    CertAuthority,
    Revoked,
}

/// As much of a damaged line as can be told.
#[derive(Clone, Debug)]
pub(super) struct Unreadable {
    pub(super) place: Place,
    pub(super) why: &'static str,
    /// `None`: it may be about any host.
    hosts: Option<Hosts>,
    /// The bare key; `None`: it may be any key.
    plain: Option<Vec<u8>>,
    pub(super) purpose: Purpose,
}

/// Meaning of a line that is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Names a host's key.
    Binds,
    /// Has `@revoked`.
    Revokes,
    /// Has a marker that is not known here.
    Unknown,
}

#[derive(Clone, Debug)]
enum Hosts {
    /// Patterns between commas, in lower case.
    Patterns(Vec<u8>),
    /// `|1|salt|hash`: HMAC-SHA1 of the name under the salt.
    Hashed { salt: Vec<u8>, hash: Vec<u8> },
}

impl Line {
    /// Reads a line as hostfile.c `hostkeys_foreach_file` does: bytes, between blanks and tabs, up
    /// to a NUL. An empty line, a comment and a key of SSH 1 have neither part.
    pub(super) fn parse(line: &[u8], place: impl Fn() -> Place) -> Self {
        let front = until_nul(line);
        if front.len() < line.len() && front.trim_ascii().is_empty() {
            // OpenSSH sees an empty line.
            return Self {
                entry: None,
                unreadable: Some(Unreadable {
                    place: place(),
                    why: NUL,
                    hosts: None,
                    plain: None,
                    purpose: Purpose::Binds,
                }),
            };
        }
        let mut parsed = match read(front, &place) {
            None => Self::default(),
            Some(Ok(entry)) => Self {
                entry: Some(entry),
                unreadable: None,
            },
            Some(Err(mut unreadable)) => {
                if front.len() < line.len() {
                    (unreadable.hosts, unreadable.why) = (None, NUL);
                }
                Self {
                    entry: None,
                    unreadable: Some(unreadable),
                }
            }
        };
        // OpenSSH takes it for a part of the first word.
        if let Some(behind) = front.strip_prefix(b"\xef\xbb\xbf") {
            parsed.unreadable = match read(behind, &place) {
                Some(Ok(entry)) => entry.damaged("it begins with a byte order mark"),
                Some(Err(unreadable)) => Some(unreadable),
                None => None,
            };
        }
        parsed
    }
}

fn until_nul(line: &[u8]) -> &[u8] {
    line.split(|b| *b == 0).next().unwrap_or_default()
}

/// The next word, and what follows it.
fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_blanks();
    let end = text.iter().position(|b| blank(*b)).unwrap_or(text.len());
    text.split_at(end)
}

fn blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

trait TrimBlanks {
    fn trim_blanks(&self) -> &[u8];
}

impl TrimBlanks for [u8] {
    fn trim_blanks(&self) -> &[u8] {
        let start = self.iter().position(|b| !blank(*b)).unwrap_or(self.len());
        self.get(start..).unwrap_or_default()
    }
}

fn read(text: &[u8], place: impl Fn() -> Place) -> Option<Result<Entry, Unreadable>> {
    let text = text.trim_blanks();
    if matches!(text.first(), Some(b'#') | None) || text.iter().all(u8::is_ascii_whitespace) {
        return None;
    }
    let (marker, rest) = markers(text)?;
    let (hosts, rest) = word(rest);
    let (key_type, rest) = word(rest);
    let (blob, _) = word(rest);
    let is_number = !key_type.is_empty() && key_type.iter().all(u8::is_ascii_digit);
    if is_number && key_type.len() < 8 && marker == Ok(Marker::None) {
        // SSH 1: bits, exponent, modulus.
        return None;
    }
    let parsed_hosts = Hosts::parse(hosts);
    let key = key(key_type, blob);
    let purpose = match marker {
        Ok(Marker::None | Marker::CertAuthority) => Purpose::Binds,
        Ok(Marker::Revoked) => Purpose::Revokes,
        Err(()) => Purpose::Unknown,
    };
    let why = match (&marker, &parsed_hosts, &key) {
        (Err(()), ..) => "its marker is not known",
        (_, None, _) => "its host names cannot be read",
        (.., None) => "it has no key that can be read",
        (Ok(marker), Some(_), Some(_)) => {
            let marker = *marker;
            let (Some(hosts), Some((key_type, blob, plain))) = (parsed_hosts, key) else {
                return None;
            };
            return Some(Ok(Entry {
                place: place(),
                marker,
                hosts,
                key_type,
                blob,
                plain,
            }));
        }
    };
    if marker == Ok(Marker::CertAuthority) {
        // Without its authority nothing is trusted that should not be.
        return None;
    }
    Some(Err(Unreadable {
        place: place(),
        why,
        hosts: parsed_hosts,
        plain: key.map(|(.., plain)| plain),
        purpose,
    }))
}

/// The marker, and what follows it. OpenSSH looks for the blank that ends a marker before it looks
/// for a tab; a revocation counts here however it is written, and an authority whose marker
/// OpenSSH does not see is left out.
fn markers(text: &[u8]) -> Option<(Result<Marker, ()>, &[u8])> {
    let (mut rest, mut found) = (text, Vec::new());
    while rest.first() == Some(&b'@') {
        let (marker, behind) = word(rest);
        let by_tab = behind.first() == Some(&b'\t') && behind.contains(&b' ');
        found.push((marker, by_tab));
        rest = behind.trim_blanks();
    }
    let marker = match found.as_slice() {
        [] => Ok(Marker::None),
        all if all.iter().any(|(m, _)| *m == b"@revoked") => Ok(Marker::Revoked),
        [(b"@cert-authority", false)] => Ok(Marker::CertAuthority),
        all if all.iter().all(|(m, _)| *m == b"@cert-authority") => return None,
        _ => Err(()),
    };
    Some((marker, rest))
}

/// Type, blob and bare blob of a key as a line has it.
fn key(key_type: &[u8], blob: &[u8]) -> Option<(String, Vec<u8>, Vec<u8>)> {
    let blob = decode(blob)?;
    let named = Reader::new(&blob).string().ok()?;
    // OpenSSH knows RSA keys by the names of their signatures too (sshkey.c `peek_type_nid`).
    let rsa = named == b"ssh-rsa" && matches!(key_type, b"rsa-sha2-256" | b"rsa-sha2-512");
    if named != key_type && !rsa {
        return None;
    }
    let key_type = std::str::from_utf8(named).ok()?.to_owned();
    let (blob, plain) = match (PublicKey::from_blob(&blob), key_type.as_str()) {
        (Ok(key), _) => (blob, key.plain().blob().to_vec()),
        (Err(_), "ssh-rsa") => {
            let blob = shortest_rsa(&blob)?;
            (blob.clone(), blob)
        }
        (Err(_), _) => return None,
    };
    Some((key_type, blob, plain))
}

/// An `ssh-rsa` blob, of whatever size, with its numbers as short as they can be: OpenSSH compares
/// numbers and not bytes.
fn shortest_rsa(blob: &[u8]) -> Option<Vec<u8>> {
    let mut r = Reader::new(blob);
    let key_type = r.string().ok()?;
    let (e, n) = (r.string().ok()?, r.string().ok()?);
    r.finish().ok()?;
    let mut out = Vec::with_capacity(blob.len());
    out.extend_from_slice(&u32::try_from(key_type.len()).ok()?.to_be_bytes());
    out.extend_from_slice(key_type);
    for number in [e, n] {
        // A negative one is no number that a key has.
        if number.first().is_some_and(|first| *first >= 0x80) {
            return None;
        }
        Mpint::from_magnitude(number).write(&mut out);
    }
    Some(out)
}

/// A key of a list of revoked keys: the bare blob. `None`: it is no key.
pub(super) fn revoked_key(text: &[u8]) -> Option<Vec<u8>> {
    let (key_type, rest) = word(text);
    let (blob, _) = word(rest);
    key(key_type, blob).map(|(.., plain)| plain)
}

impl Entry {
    /// The line is about `name`.
    pub(super) fn names(&self, name: &HostName) -> bool {
        self.hosts.name(name)
    }

    pub(super) fn known_key(&self) -> KnownKey {
        KnownKey {
            place: self.place.clone(),
            key_type: self.key_type.clone(),
            fingerprint: fingerprint(&self.blob),
        }
    }

    pub(super) fn shown_names(&self) -> Option<String> {
        match &self.hosts {
            Hosts::Patterns(patterns) => Some(escape::name(patterns).to_string()),
            Hosts::Hashed { .. } => None,
        }
    }

    fn damaged(self, why: &'static str) -> Option<Unreadable> {
        let purpose = match self.marker {
            Marker::Revoked => Purpose::Revokes,
            Marker::None => Purpose::Binds,
            Marker::CertAuthority => return None,
        };
        Some(Unreadable {
            place: self.place,
            why,
            hosts: Some(self.hosts),
            plain: Some(self.plain),
            purpose,
        })
    }
}

impl Unreadable {
    /// The line may be about `name`.
    pub(super) fn may_name(&self, name: &HostName) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.name(name))
    }

    /// The line has this very key.
    pub(super) fn has(&self, plain: &[u8]) -> bool {
        self.plain.as_deref() == Some(plain)
    }

    /// The line revokes this key, as far as can be told.
    pub(super) fn may_revoke(&self, plain: &[u8]) -> bool {
        match self.purpose {
            Purpose::Binds => false,
            Purpose::Revokes => self.plain.as_deref().is_none_or(|key| key == plain),
            Purpose::Unknown => self.has(plain),
        }
    }
}

impl Hosts {
    fn parse(text: &[u8]) -> Option<Self> {
        let Some(hashed) = text.strip_prefix(b"|1|") else {
            let long = |pattern: &[u8]| {
                pattern.strip_prefix(b"!").unwrap_or(pattern).len() > LONGEST_PATTERN
            };
            let readable = !text.is_empty() && !text.split(|b| *b == b',').any(long);
            // Another number is another hash.
            let plain = readable && !text.starts_with(b"|");
            return plain.then(|| Self::Patterns(text.to_ascii_lowercase()));
        };
        let at = hashed.iter().position(|b| *b == b'|')?;
        let (salt, hash) = (hashed.get(..at)?, hashed.get(at + 1..)?);
        let (salt, hash) = (decode(salt)?, decode(hash)?);
        (salt.len() == 20 && hash.len() == 20).then_some(Self::Hashed { salt, hash })
    }

    fn name(&self, name: &HostName) -> bool {
        match self {
            Self::Patterns(patterns) => matches_list(name.entry().as_bytes(), patterns),
            Self::Hashed { salt, hash } => {
                let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, salt);
                hmac::verify(&key, name.entry().as_bytes(), hash).is_ok()
            }
        }
    }
}

/// Base64 as resolv's `b64_pton` takes it: white space within does not count.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let space = |b: &u8| b.is_ascii_whitespace() || *b == 0x0b;
    if text.iter().any(space) {
        let text: Vec<u8> = text.iter().copied().filter(|b| !space(b)).collect();
        return STANDARD.decode(text).ok();
    }
    STANDARD.decode(text).ok()
}

/// The fingerprint of a blob of whatever type.
pub(super) fn fingerprint(blob: &[u8]) -> String {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, blob);
    format!("SHA256:{}", STANDARD_NO_PAD.encode(hash))
}
