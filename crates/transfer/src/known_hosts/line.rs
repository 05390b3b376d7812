use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use wire::Reader;

use super::pattern::matches_list;
use super::{KnownKey, Place};
use crate::escape;

/// A line that names hosts and a key.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) place: Place,
    pub(super) marker: Marker,
    hosts: Hosts,
    pub(super) key_type: String,
    pub(super) blob: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    None,
    CertAuthority,
    Revoked,
}

#[derive(Clone, Debug)]
enum Hosts {
    /// Patterns between commas.
    Patterns(String),
    /// `|1|salt|hash`: HMAC-SHA1 of the name under the salt.
    Hashed { salt: Vec<u8>, hash: Vec<u8> },
}

impl Entry {
    /// `None` for an empty line, a comment, and what makes no sense.
    pub(super) fn parse(line: &[u8], place: impl FnOnce() -> Place) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?;
        let mut words = line.split([' ', '\t', '\r']).filter(|w| !w.is_empty());
        let first = words.next().filter(|w| !w.starts_with('#'))?;
        let (marker, hosts) = match first {
            "@cert-authority" => (Marker::CertAuthority, words.next()?),
            "@revoked" => (Marker::Revoked, words.next()?),
            unknown if unknown.starts_with('@') => return None,
            hosts => (Marker::None, hosts),
        };
        let key_type = words.next()?;
        let blob = decode(words.next()?)?;
        // The name is in the blob again; a line on which they differ is nobody's.
        if Reader::new(&blob).string() != Ok(key_type.as_bytes()) {
            return None;
        }
        Some(Self {
            place: place(),
            marker,
            hosts: Hosts::parse(hosts)?,
            key_type: key_type.to_owned(),
            blob,
        })
    }

    /// The line is about `name`, which is in lower case.
    pub(super) fn names(&self, name: &str) -> bool {
        match &self.hosts {
            Hosts::Patterns(patterns) => matches_list(name, patterns),
            Hosts::Hashed { salt, hash } => {
                let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, salt);
                hmac::verify(&key, name.as_bytes(), hash).is_ok()
            }
        }
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
            Hosts::Patterns(patterns) => Some(escape::name(patterns.as_bytes()).to_string()),
            Hosts::Hashed { .. } => None,
        }
    }
}

impl Hosts {
    fn parse(text: &str) -> Option<Self> {
        let Some(hashed) = text.strip_prefix("|1|") else {
            // Another number is another hash.
            return (!text.starts_with('|')).then(|| Self::Patterns(text.to_ascii_lowercase()));
        };
        let (salt, hash) = hashed.split_once('|')?;
        let (salt, hash) = (decode(salt)?, decode(hash)?);
        (hash.len() == 20).then_some(Self::Hashed { salt, hash })
    }
}

fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// The fingerprint of a blob of whatever type.
pub(super) fn fingerprint(blob: &[u8]) -> String {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, blob);
    format!("SHA256:{}", STANDARD_NO_PAD.encode(hash))
}
