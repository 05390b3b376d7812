//! Parses lines of known_hosts, including damaged ones.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use ssh::key::PublicKey;
use wire::{Field, FieldReader, Mpint};

use super::pattern::matches_list;
use super::{HostName, KnownHostKey, KnownHostsLinePosition, UnreadableKnownHostsEntry};
use crate::escape;

/// OpenSSH ignores a line with a longer pattern (match.c `match_pattern_list`).
const LONGEST_PATTERN: usize = 1022;

const NUL: &str = "it contains a NUL byte";

/// A parsed line of a known_hosts file.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownHostsLine {
    /// The hosts and the key that OpenSSH reads in the line.
    pub entry: Option<HostKeyEntry>,
    /// The part that OpenSSH ignores, which may name another or a revoked key of the host.
    pub unreadable: Option<DamagedKnownHostsLine>,
}

/// Parsed line: its hosts, and the key that is accepted, revoked or an authority for them.
#[derive(Clone, Debug)]
pub(super) struct HostKeyEntry {
    place: KnownHostsLinePosition,
    marker: LineMarker,
    hosts: LineHosts,
    key_type: String,
    blob: Vec<u8>,
    /// The blob of the plain key if the line has a certificate.
    plain: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineMarker {
    None,
    CertAuthority,
    Revoked,
}

/// The readable parts of a damaged line of known_hosts.
#[derive(Clone, Debug)]
pub(super) struct DamagedKnownHostsLine {
    place: KnownHostsLinePosition,
    why: &'static str,
    /// The hosts; `None` if the line may be about any host.
    hosts: Option<LineHosts>,
    /// The plain key; `None` if the line may be about any key.
    plain: Option<Vec<u8>>,
    purpose: DamagedLineKind,
}

/// Meaning of a damaged line of known_hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DamagedLineKind {
    /// Names a host's key.
    HostKey,
    /// The line has the marker `@revoked`.
    Revocation,
    /// The line has an unknown marker.
    Unknown,
}

#[derive(Clone, Debug)]
enum LineHosts {
    /// Patterns between commas, in lower case.
    Patterns(Vec<u8>),
    /// `|1|salt|hash`: HMAC-SHA1 of the name under the salt.
    Hashed { salt: Vec<u8>, hash: Vec<u8> },
}

impl KnownHostsLine {
    /// Parses a line as hostfile.c `hostkeys_foreach_file` does: bytes separated by spaces and
    /// tabs, up to a NUL. Both parts are `None` for an empty line, a comment and a key of SSH 1.
    pub(super) fn parse(line: &[u8], place: impl Fn() -> KnownHostsLinePosition) -> Self {
        let front = until_nul(line);
        if front.len() < line.len() && front.trim_ascii().is_empty() {
            // OpenSSH treats this as an empty line.
            return Self {
                entry: None,
                unreadable: Some(DamagedKnownHostsLine {
                    place: place(),
                    why: NUL,
                    hosts: None,
                    plain: None,
                    purpose: DamagedLineKind::HostKey,
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
        // OpenSSH reads the byte order mark as part of the first word.
        if let Some(behind) = front.strip_prefix(b"\xef\xbb\xbf") {
            parsed.unreadable = match read(behind, &place) {
                Some(Ok(entry)) => entry.damaged("it starts with a byte order mark"),
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

/// Splits off the next word.
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

fn read(
    text: &[u8],
    place: impl Fn() -> KnownHostsLinePosition,
) -> Option<Result<HostKeyEntry, DamagedKnownHostsLine>> {
    let text = text.trim_blanks();
    if matches!(text.first(), Some(b'#') | None) || text.iter().all(u8::is_ascii_whitespace) {
        return None;
    }
    let (marker, rest) = markers(text)?;
    let (hosts, rest) = word(rest);
    let (key_type, rest) = word(rest);
    let (blob, _) = word(rest);
    let is_number = !key_type.is_empty() && key_type.iter().all(u8::is_ascii_digit);
    if is_number && key_type.len() < 8 && marker == Ok(LineMarker::None) {
        // An SSH 1 key: bits, exponent, modulus.
        return None;
    }
    let parsed_hosts = LineHosts::parse(hosts);
    let key = key(key_type, blob);
    let purpose = match marker {
        Ok(LineMarker::None | LineMarker::CertAuthority) => DamagedLineKind::HostKey,
        Ok(LineMarker::Revoked) => DamagedLineKind::Revocation,
        Err(()) => DamagedLineKind::Unknown,
    };
    let why = match (&marker, &parsed_hosts, &key) {
        (Err(()), ..) => "the marker there is unknown",
        (_, None, _) => "the host names there are not valid",
        (.., None) => "the host key there is not valid",
        (Ok(marker), Some(_), Some(_)) => {
            let marker = *marker;
            let (Some(hosts), Some((key_type, blob, plain))) = (parsed_hosts, key) else {
                return None;
            };
            return Some(Ok(HostKeyEntry {
                place: place(),
                marker,
                hosts,
                key_type,
                blob,
                plain,
            }));
        }
    };
    if marker == Ok(LineMarker::CertAuthority) {
        // Ignoring an authority can only reduce trust.
        return None;
    }
    Some(Err(DamagedKnownHostsLine {
        place: place(),
        why,
        hosts: parsed_hosts,
        plain: key.map(|(.., plain)| plain),
        purpose,
    }))
}

/// Splits off the marker. OpenSSH looks for a space after a marker before it looks for a tab. Here
/// a revocation counts in either form, and an authority whose marker OpenSSH does not recognize is
/// ignored.
fn markers(text: &[u8]) -> Option<(Result<LineMarker, ()>, &[u8])> {
    let (mut rest, mut found) = (text, Vec::new());
    while rest.first() == Some(&b'@') {
        let (marker, behind) = word(rest);
        let by_tab = behind.first() == Some(&b'\t') && behind.contains(&b' ');
        found.push((marker, by_tab));
        rest = behind.trim_blanks();
    }
    let marker = match found.as_slice() {
        [] => Ok(LineMarker::None),
        all if all.iter().any(|(m, _)| *m == b"@revoked") => Ok(LineMarker::Revoked),
        [(b"@cert-authority", false)] => Ok(LineMarker::CertAuthority),
        all if all.iter().all(|(m, _)| *m == b"@cert-authority") => return None,
        _ => Err(()),
    };
    Some((marker, rest))
}

/// Parses a key of a line: type, blob and blob of the plain key.
fn key(key_type: &[u8], blob: &[u8]) -> Option<(String, Vec<u8>, Vec<u8>)> {
    let blob = decode(blob)?;
    let named = FieldReader::new(&blob).string().ok()?;
    // OpenSSH also accepts the signature names for RSA keys (sshkey.c `peek_type_nid`).
    let rsa = named == b"ssh-rsa" && matches!(key_type, b"rsa-sha2-256" | b"rsa-sha2-512");
    if named != key_type && !rsa {
        return None;
    }
    let key_type = std::str::from_utf8(named).ok()?.to_owned();
    let (blob, plain) = comparable(blob)?;
    Some((key_type, blob, plain))
}

/// Returns the blob of a key and that of its plain key, in the form in which lines are compared.
pub(super) fn comparable(blob: Vec<u8>) -> Option<(Vec<u8>, Vec<u8>)> {
    match PublicKey::from_blob(&blob) {
        Ok(key) => {
            let plain = key.plain().blob().to_vec();
            Some((blob, plain))
        }
        Err(_) => {
            let rsa = FieldReader::new(&blob).string().ok() == Some(&b"ssh-rsa"[..]);
            let blob = rsa.then(|| shortest_rsa(&blob)).flatten()?;
            Some((blob.clone(), blob))
        }
    }
}

/// Re-encodes an `ssh-rsa` blob of any size with minimal numbers, since OpenSSH compares numbers
/// and not bytes.
fn shortest_rsa(blob: &[u8]) -> Option<Vec<u8>> {
    let mut r = FieldReader::new(blob);
    let key_type = r.string().ok()?;
    let (e, n) = (r.string().ok()?, r.string().ok()?);
    r.finish().ok()?;
    let mut out = Vec::with_capacity(blob.len());
    out.extend_from_slice(&u32::try_from(key_type.len()).ok()?.to_be_bytes());
    out.extend_from_slice(key_type);
    for number in [e, n] {
        // A key has no negative numbers.
        if number.first().is_some_and(|first| *first >= 0x80) {
            return None;
        }
        Mpint::from_magnitude(number).write(&mut out);
    }
    Some(out)
}

/// Parses a line of a revoked keys file and returns the plain blob; `None` if it is not a key.
pub(super) fn revoked_key(text: &[u8]) -> Option<Vec<u8>> {
    let (key_type, rest) = word(text);
    let (blob, _) = word(rest);
    key(key_type, blob).map(|(.., plain)| plain)
}

impl HostKeyEntry {
    /// Position of the line.
    pub(super) fn place(&self) -> &KnownHostsLinePosition {
        &self.place
    }

    /// The blob of the key.
    pub(super) fn blob(&self) -> &[u8] {
        &self.blob
    }

    /// True if the line has no marker, so that its key is a host's own.
    pub(super) fn is_of_host(&self) -> bool {
        self.marker == LineMarker::None
    }

    /// True if the key is a host's own and has this blob.
    pub(super) fn accepts(&self, blob: &[u8]) -> bool {
        self.is_of_host() && self.blob == blob
    }

    /// True if the key is a host's own and of this type.
    pub(super) fn has_type(&self, key_type: &str) -> bool {
        self.is_of_host() && self.key_type == key_type
    }

    /// True if the key is an authority, which certifies host keys.
    pub(super) fn is_authority(&self) -> bool {
        self.marker == LineMarker::CertAuthority
    }

    /// True if the line revokes one of these plain keys.
    pub(super) fn revokes(&self, plain: &[&[u8]]) -> bool {
        self.marker == LineMarker::Revoked && plain.contains(&self.plain.as_slice())
    }

    /// True if the line is about `name`.
    pub(super) fn names(&self, name: &HostName) -> bool {
        self.hosts.name(name)
    }

    pub(super) fn known_key(&self) -> KnownHostKey {
        KnownHostKey {
            place: self.place.clone(),
            key_type: self.key_type.clone(),
            fingerprint: fingerprint(&self.blob),
        }
    }

    /// True if the line may be about more than a host and its address: it has patterns, or more
    /// than two names (clientloop.c `hostspec_is_complex`).
    pub(super) fn has_patterns(&self) -> bool {
        match &self.hosts {
            LineHosts::Patterns(patterns) => {
                let commas = patterns.iter().filter(|b| **b == b',').count();
                commas > 1 || patterns.iter().any(|b| matches!(b, b'*' | b'?' | b'!'))
            }
            LineHosts::Hashed { .. } => false,
        }
    }

    /// True if the line has several names. A hashed line has one.
    pub(super) fn has_names(&self) -> bool {
        matches!(&self.hosts, LineHosts::Patterns(patterns) if patterns.contains(&b','))
    }

    pub(super) fn shown_names(&self) -> Option<String> {
        match &self.hosts {
            LineHosts::Patterns(patterns) => Some(escape::name(patterns).to_string()),
            LineHosts::Hashed { .. } => None,
        }
    }

    fn damaged(self, why: &'static str) -> Option<DamagedKnownHostsLine> {
        let purpose = match self.marker {
            LineMarker::Revoked => DamagedLineKind::Revocation,
            LineMarker::None => DamagedLineKind::HostKey,
            LineMarker::CertAuthority => return None,
        };
        Some(DamagedKnownHostsLine {
            place: self.place,
            why,
            hosts: Some(self.hosts),
            plain: Some(self.plain),
            purpose,
        })
    }
}

impl DamagedKnownHostsLine {
    /// True if the line may name a host's key.
    pub(super) fn may_name_key(&self) -> bool {
        self.purpose != DamagedLineKind::Revocation
    }

    /// True if the line is or may be a revocation.
    pub(super) fn may_be_revocation(&self) -> bool {
        self.purpose != DamagedLineKind::HostKey
    }

    /// Describes the line to the user; `revokes` tells if it may revoke the key in question.
    pub(super) fn entry(&self, revokes: bool) -> UnreadableKnownHostsEntry {
        UnreadableKnownHostsEntry {
            file: self.place.file.clone(),
            line: Some(self.place.line),
            why: self.why.to_owned(),
            revokes,
        }
    }

    /// True if the line may be about `name`.
    pub(super) fn may_name(&self, name: &HostName) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.name(name))
    }

    /// True if the line contains exactly this key.
    pub(super) fn has_key(&self, plain: &[u8]) -> bool {
        self.plain.as_deref() == Some(plain)
    }

    /// True if the line may revoke this key.
    pub(super) fn may_revoke(&self, plain: &[u8]) -> bool {
        match self.purpose {
            DamagedLineKind::HostKey => false,
            DamagedLineKind::Revocation => self.plain.as_deref().is_none_or(|key| key == plain),
            DamagedLineKind::Unknown => self.has_key(plain),
        }
    }
}

impl LineHosts {
    fn parse(text: &[u8]) -> Option<Self> {
        let Some(hashed) = text.strip_prefix(b"|1|") else {
            let long = |pattern: &[u8]| {
                pattern.strip_prefix(b"!").unwrap_or(pattern).len() > LONGEST_PATTERN
            };
            let readable = !text.is_empty() && !text.split(|b| *b == b',').any(long);
            // `|` with another number is another hash scheme.
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

/// Decodes base64 as resolv's `b64_pton` does, ignoring white space.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let space = |b: &u8| b.is_ascii_whitespace() || *b == 0x0b;
    if text.iter().any(space) {
        let text: Vec<u8> = text.iter().copied().filter(|b| !space(b)).collect();
        return STANDARD.decode(text).ok();
    }
    STANDARD.decode(text).ok()
}

/// Returns the fingerprint of a blob of any key type.
pub(super) fn fingerprint(blob: &[u8]) -> String {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, blob);
    format!("SHA256:{}", STANDARD_NO_PAD.encode(hash))
}
