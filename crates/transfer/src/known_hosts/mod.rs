//! known_hosts (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT): which key a host has.

mod decide;
mod line;
mod pattern;
mod record;
mod revoked;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ssh::key::{CertificateError, HOST_KEY_ALGORITHMS, PublicKey};

pub use decide::{Accepted, HostKeyError, decide};
pub use pattern::matches_pattern;
pub use record::record;
pub use revoked::RevokedKeys;

use crate::config::Algorithms;
use crate::escape;
use line::{Entry, Marker};

/// A larger file is refused; 64 MiB hold some 500,000 hosts.
const MAX_FILE: u64 = 64 << 20;

/// The name under which a host's key is kept: lower case, with the port unless it is 22, or the
/// alias as it is (HostKeyAlias).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName {
    host: String,
    port: Option<u16>,
}

impl HostName {
    /// For a host and port, or the alias that stands for both.
    pub fn new(host: &str, port: u16, alias: Option<&str>) -> Self {
        Self {
            host: alias.unwrap_or(host).to_ascii_lowercase(),
            port: (alias.is_none() && port != 22).then_some(port),
        }
    }

    /// The host without the port, as certificates name it.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// As a line has it: `host` or `[host]:port`.
    pub fn entry(&self) -> String {
        match self.port {
            Some(port) => format!("[{}]:{port}", self.host),
            None => self.host.clone(),
        }
    }

    fn without_port(&self) -> Option<Self> {
        self.port.map(|_| Self {
            host: self.host.clone(),
            port: None,
        })
    }
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
}

/// What the files say about a key that a host showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the host's.
    Trusted(Place),
    /// It is certified for the host by an authority that is trusted for it.
    TrustedByCa(Place),
    /// No key of this type is known for the host.
    Unknown {
        /// Keys of other types that are.
        others: Vec<KnownKey>,
    },
    /// The host has another key of this type.
    Changed(KnownKey),
    /// The key, or the authority that certified it, is revoked.
    Revoked(Place),
}

/// A key in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownKey {
    /// Where.
    pub place: Place,
    /// Its type, such as `ssh-ed25519`.
    pub key_type: String,
    /// `SHA256:...`
    pub fingerprint: String,
}

/// A [`Verdict`], and why a certificate did not help if there was one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// What counts.
    pub verdict: Verdict,
    /// The key came in a certificate, which was not accepted; the verdict is on the bare key.
    pub certificate: Option<CertificateError>,
}

/// The lines of all known_hosts files.
#[derive(Clone, Debug, Default)]
pub struct KnownHosts {
    entries: Vec<Entry>,
    revoked: RevokedKeys,
    /// Files that exist and could not be read, one sentence each.
    pub warnings: Vec<String>,
}

impl KnownHosts {
    /// Reads `files` in order; missing ones are empty. Lines that make no sense are skipped, as
    /// OpenSSH does.
    pub fn load<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        let mut known = Self::default();
        for file in files {
            match read(file) {
                Ok(text) => known.add(file, &text),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => known.warnings.push(format!(
                    "{} is left out, it cannot be read: {e}",
                    escape::path(file)
                )),
            }
        }
        known
    }

    /// Adds the lines of `text`, which came from `file`.
    pub fn add(&mut self, file: &Path, text: &[u8]) {
        for (at, line) in text.split(|b| *b == b'\n').enumerate() {
            let place = || Place {
                file: file.to_owned(),
                line: at + 1,
            };
            self.entries.extend(Entry::parse(line, place));
        }
    }

    /// Keys that no host may have (RevokedHostKeys).
    pub fn revoke(&mut self, revoked: RevokedKeys) {
        self.revoked = revoked;
    }

    /// What is known about `key` as the key of `name`, at `now` (seconds since 1970).
    ///
    /// A host on a port of its own is also known by a line without the port if that line has
    /// this very key (sshconnect.c `check_host_key`).
    pub fn check(&self, name: &HostName, key: &PublicKey, now: u64, ca: &Algorithms) -> Checked {
        let checked = self.check_name(name, key, now, ca);
        if let (Verdict::Unknown { .. }, Some(bare)) = (&checked.verdict, name.without_port()) {
            let on_22 = self.check_name(&bare, key, now, ca);
            let decisive = matches!(
                on_22.verdict,
                Verdict::Trusted(_) | Verdict::TrustedByCa(_) | Verdict::Revoked(_)
            );
            if decisive {
                return on_22;
            }
        }
        checked
    }

    fn check_name(&self, name: &HostName, key: &PublicKey, now: u64, ca: &Algorithms) -> Checked {
        let lines: Vec<&Entry> = self.lines(name).collect();
        let (verdict, certificate) = match (self.revocation(&lines, key), key.certificate()) {
            (Some(place), _) => (Verdict::Revoked(place), None),
            (None, None) => (plain(&lines, key), None),
            (None, Some(certificate)) => {
                let authority = lines.iter().find(|entry| {
                    entry.marker == Marker::CertAuthority
                        && entry.blob == certificate.authority().blob()
                });
                let algorithms = certificate.authority().algorithms();
                let allowed = algorithms.iter().any(|a| ca.allows(a));
                let valid =
                    certificate.validate_host(name.host(), now, |_| authority.is_some() && allowed);
                match (valid, authority) {
                    (Ok(()), Some(entry)) => (Verdict::TrustedByCa(entry.place.clone()), None),
                    (valid, _) => (plain(&lines, key.plain()), valid.err()),
                }
            }
        };
        Checked {
            verdict,
            certificate,
        }
    }

    fn revocation(&self, lines: &[&Entry], key: &PublicKey) -> Option<Place> {
        let authority = key.certificate().map(|c| c.authority().blob());
        let blobs = [Some(key.blob()), Some(key.plain().blob()), authority];
        let listed = blobs.iter().flatten().find_map(|b| self.revoked.find(b));
        let marked = || {
            lines
                .iter()
                .find(|e| e.marker == Marker::Revoked && blobs.contains(&Some(&e.blob)))
                .map(|e| e.place.clone())
        };
        listed.or_else(marked)
    }

    fn lines<'a>(&'a self, name: &HostName) -> impl Iterator<Item = &'a Entry> + use<'a> {
        let name = name.entry();
        self.entries.iter().filter(move |e| e.names(&name))
    }

    /// The host key algorithms `offer`, those first that match a line for `name`, so that the
    /// server shows the key that can be checked (sshconnect2.c `order_hostkeyalgs`).
    pub fn prefer(&self, name: &HostName, offer: &[String]) -> Vec<String> {
        let rank = self.rank(name);
        let mut sorted = offer.to_vec();
        sorted.sort_by_key(&rank);
        sorted
    }

    /// Those of `offer` that are as good as the first of [`KnownHosts::prefer`].
    pub fn equally_preferred(&self, name: &HostName, offer: &[String]) -> Vec<String> {
        let rank = self.rank(name);
        let best = offer.iter().map(&rank).min();
        offer
            .iter()
            .filter(|name| Some(rank(name)) == best)
            .cloned()
            .collect()
    }

    /// 0 for algorithms whose certificates an authority for `name` may have signed, 1 for keys of
    /// a type that is known for it, 2 for the rest.
    fn rank(&self, name: &HostName) -> impl Fn(&String) -> u8 + use<'_> {
        let lines: Vec<&Entry> = self.lines(name).collect();
        let lines = match name.without_port() {
            Some(bare) if lines.is_empty() => self.lines(&bare).collect(),
            _ => lines,
        };
        let has_authority = lines.iter().any(|e| e.marker == Marker::CertAuthority);
        move |name| {
            let Some(row) = HOST_KEY_ALGORITHMS.iter().find(|a| a.name == name) else {
                return 2;
            };
            let known = lines
                .iter()
                .any(|e| e.marker == Marker::None && e.key_type == row.plain_type);
            match row.is_certificate() {
                true if has_authority => 0,
                false if known => 1,
                _ => 2,
            }
        }
    }

    /// Whether any line is about `name`.
    pub fn knows(&self, name: &HostName) -> bool {
        self.lines(name).next().is_some()
    }

    /// Other names under which `key` is known: place, and the names unless they are hashed.
    pub fn names_of(&self, key: &PublicKey) -> Vec<(Place, Option<String>)> {
        let blob = key.plain().blob();
        self.entries
            .iter()
            .filter(|e| e.marker == Marker::None && e.blob == blob)
            .map(|e| (e.place.clone(), e.shown_names()))
            .collect()
    }
}

fn plain(lines: &[&Entry], key: &PublicKey) -> Verdict {
    let keys = lines.iter().filter(|e| e.marker == Marker::None);
    if let Some(same) = keys.clone().find(|e| e.blob == key.blob()) {
        return Verdict::Trusted(same.place.clone());
    }
    match keys.clone().find(|e| e.key_type == key.key_type()) {
        Some(other) => Verdict::Changed(other.known_key()),
        None => Verdict::Unknown {
            others: keys.map(|e| e.known_key()).collect(),
        },
    }
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(file)?
        .take(MAX_FILE + 1)
        .read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "it has over 64 MiB",
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
