//! known_hosts (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT): which key a host has.

mod decide;
mod krl;
mod line;
mod pattern;
mod record;
mod revoked;

use std::fs::File;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ssh::key::{CertificateError, HOST_KEY_ALGORITHMS, PublicKey};

pub use decide::{Accepted, HostKeyError, decide, decide_address, recorded};
pub use pattern::matches_pattern;
pub use record::record;
pub use revoked::RevokedKeys;

use crate::config::Algorithms;
use line::{Entry, Line, Marker, Purpose, Unreadable};

/// A larger file is refused; 64 MiB hold some 500,000 hosts.
const MAX_FILE: u64 = 64 << 20;

/// Characters that no host name recorded in a file may have: they mean something else there
/// (sshconnect.c `check_host_key`).
const UNRECORDED: &str = "@?*#[]|'\"\\,! \t";

/// The name under which a host's key is kept: lower case, with the port unless it is 22, or the
/// alias (HostKeyAlias).
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

    /// A line can name it, and no other host by that.
    fn can_be_recorded(&self) -> bool {
        !self
            .host
            .contains(|c: char| UNRECORDED.contains(c) || c.is_control())
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

/// The files' answer about a key that a host showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the host's.
    Trusted(Place),
    /// It is certified for the host by an authority that is trusted for it.
    TrustedByCa(Place),
    /// No key is known for the host.
    Unknown,
    /// The host has other keys, of this type or another.
    Changed(KnownKey),
    /// The key, or the authority that certified it, is revoked.
    Revoked(Place),
    /// A line or a file that cannot be read may name another key of the host, or revoke this one.
    Unreadable(Damage),
}

/// A line or file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; `None` where the whole file cannot be read.
    pub line: Option<usize>,
    /// The reason, which goes on behind `FILE:LINE: `.
    pub why: String,
    /// It may revoke the key, which no setting makes good.
    pub revokes: bool,
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
    unreadable: Vec<Unreadable>,
    unread: Vec<Damage>,
    revoked: RevokedKeys,
    unrecorded: bool,
}

impl KnownHosts {
    /// Reads `user` and `global` files in order; missing ones are empty. New hosts are added to the
    /// first of `user`; where there is none (UserKnownHostsFile=none), no new host is taken.
    pub fn load(user: &[PathBuf], global: &[PathBuf]) -> Self {
        let mut known = Self {
            unrecorded: user.is_empty(),
            ..Self::default()
        };
        for file in user.iter().chain(global) {
            match read(file) {
                Ok(text) => known.add(file, &text),
                Err(e) if matches!(e.kind(), NotFound | NotADirectory) => {}
                Err(e) => known.unread.push(Damage {
                    file: file.clone(),
                    line: None,
                    why: e.to_string(),
                    revokes: false,
                }),
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
            let line = Line::parse(line, place);
            self.entries.extend(line.entry);
            self.unreadable.extend(line.unreadable);
        }
    }

    /// New hosts are taken although there is no file that they could be added to.
    pub fn take_unrecorded(&mut self) {
        self.unrecorded = false;
    }

    /// Keys that no host may have (RevokedHostKeys).
    pub fn revoke(&mut self, revoked: RevokedKeys) {
        self.revoked = revoked;
    }

    /// Looks up `key` as the key of `name`, at `now` (seconds since 1970).
    ///
    /// A host on a port of its own is also known by a line without the port if that line has
    /// this very key (sshconnect.c `check_host_key`).
    pub fn check(&self, name: &HostName, key: &PublicKey, now: u64, ca: &Algorithms) -> Checked {
        let bare = name.without_port();
        let names: Vec<&HostName> = [Some(name), bare.as_ref()].into_iter().flatten().collect();
        let by_name: Vec<Vec<&Entry>> = names
            .iter()
            .map(|name| self.lines(name).collect())
            .collect();
        let decided = |verdict| Checked {
            verdict,
            certificate: None,
        };
        if let Some(place) = self.revocation(&by_name, key) {
            return decided(Verdict::Revoked(place));
        }
        if let Some(damage) = self.possible_revocation(&names, key) {
            return decided(Verdict::Unreadable(damage));
        }
        let mut certificate = None;
        for lines in by_name.iter().filter(|_| key.certificate().is_some()) {
            match by_authority(lines, name, key, now, ca) {
                Ok(place) => return decided(Verdict::TrustedByCa(place)),
                Err(why) => certificate = certificate.or(Some(why)),
            }
        }
        if let (Some(certificate), [here, bare]) = (key.certificate(), by_name.as_slice()) {
            // OpenSSH looks a certificate of an authority that is not named for the port up by the
            // name alone, and then its bare key, before it looks that up with the port.
            let authority = certificate.authority().blob();
            let mut authorities = here.iter().filter(|e| e.marker == Marker::CertAuthority);
            let known = bare
                .iter()
                .find(|e| e.marker == Marker::None && e.blob == key.plain().blob());
            if let (Some(known), false) = (known, authorities.any(|e| e.blob == authority)) {
                return decided(Verdict::Trusted(known.place.clone()));
            }
        }
        Checked {
            verdict: self.plain(name, &by_name, key.plain()),
            certificate,
        }
    }

    fn plain(&self, name: &HostName, by_name: &[Vec<&Entry>], key: &PublicKey) -> Verdict {
        for (at, lines) in by_name.iter().enumerate() {
            let keys = lines.iter().filter(|e| e.marker == Marker::None);
            if let Some(same) = keys.clone().find(|e| e.blob == key.blob()) {
                return Verdict::Trusted(same.place.clone());
            }
            let of_type = keys.clone().find(|e| e.key_type == key.key_type());
            // Without the port it may be another machine.
            if let Some(other) = of_type.or_else(|| keys.clone().next()).filter(|_| at == 0) {
                return Verdict::Changed(other.known_key());
            }
        }
        let damaged = self.unreadable.iter().find(|line| {
            line.purpose != Purpose::Revokes && line.may_name(name) && !line.has(key.blob())
        });
        let damage = damaged.map(|line| damage(line, false));
        match damage.or_else(|| self.unread.first().cloned()) {
            Some(damage) => Verdict::Unreadable(damage),
            None => Verdict::Unknown,
        }
    }

    fn revocation(&self, by_name: &[Vec<&Entry>], key: &PublicKey) -> Option<Place> {
        let blobs = bare_blobs(key);
        let listed = self.revoked.find(key);
        let mut marked = by_name
            .iter()
            .flatten()
            .filter(|e| e.marker == Marker::Revoked && blobs.contains(&e.plain.as_slice()));
        listed.or_else(|| marked.next().map(|e| e.place.clone()))
    }

    /// A damaged line that may revoke this key of this host.
    fn possible_revocation(&self, names: &[&HostName], key: &PublicKey) -> Option<Damage> {
        let blobs = bare_blobs(key);
        let found = self.unreadable.iter().find(|line| {
            names.iter().any(|name| line.may_name(name))
                && blobs.iter().any(|blob| line.may_revoke(blob))
        });
        found.map(|line| damage(line, true))
    }

    fn lines<'a>(&'a self, name: &HostName) -> impl Iterator<Item = &'a Entry> + use<'a> {
        let name = name.clone();
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

/// The line of the authority that certifies `key` for `name`.
fn by_authority(
    lines: &[&Entry],
    name: &HostName,
    key: &PublicKey,
    now: u64,
    ca: &Algorithms,
) -> Result<Place, CertificateError> {
    let no_authority = || CertificateError::UntrustedAuthority {
        fingerprint: key.fingerprint(),
    };
    let certificate = key.certificate().ok_or_else(no_authority)?;
    let authority = lines.iter().find(|entry| {
        entry.marker == Marker::CertAuthority && entry.blob == certificate.authority().blob()
    });
    // CASignatureAlgorithms is about this signature, not about what the authority's key could make.
    let algorithm = certificate.signature_algorithm();
    let allowed = algorithm.is_ok_and(|name| ca.allows(&name));
    certificate.validate_host(name.host(), now, |_| authority.is_some() && allowed)?;
    authority
        .map(|entry| entry.place.clone())
        .ok_or_else(no_authority)
}

/// The key without its certificate, and the certificate's authority.
fn bare_blobs(key: &PublicKey) -> Vec<&[u8]> {
    let authority = key.certificate().map(|c| c.authority().blob());
    [Some(key.plain().blob()), authority]
        .into_iter()
        .flatten()
        .collect()
}

fn damage(line: &Unreadable, revokes: bool) -> Damage {
    Damage {
        file: line.place.file.clone(),
        line: Some(line.place.line),
        why: line.why.to_owned(),
        revokes,
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
mod damage_tests;
#[cfg(test)]
mod tests;
