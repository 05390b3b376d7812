//! Reads known_hosts (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT) and checks host keys against it.

mod command;
mod decide;
mod error;
mod krl;
mod line;
mod pattern;
mod record;
mod revoked;
mod update;

use std::fs::File;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ssh::key::{CertificateError, HOST_KEY_ALGORITHMS, PublicKey};

pub use command::{HostKeyLookupPurpose, KnownHostsCommand, KnownHostsCommandError};
pub use decide::{AcceptedHostKey, HostKeyError, decide, decide_address, recorded};
pub use error::KnownHostsError;
pub use pattern::matches_pattern;
pub use record::record;
pub use revoked::RevokedKeys;
pub use update::{AnnouncedHostKeys, HostKeyChanges, KnownHostsUnchangedReason};

use crate::config::AlgorithmList;
use line::{DamagedKnownHostsLine, HostKeyEntry, KnownHostsLine};

/// The maximum file size in bytes; 64 MiB hold some 500,000 hosts.
const MAX_FILE: u64 = 64 << 20;

/// Characters that a recorded host name must not contain, since they have other meanings in the
/// file (sshconnect.c `check_host_key`).
const UNRECORDED: &str = "@?*#[]|'\"\\,! \t";

/// The name under which a host key is stored: lower case, with the port unless it is 22, or the
/// HostKeyAlias.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName {
    host: String,
    port: Option<u16>,
}

impl HostName {
    /// Builds the name from host and port, or from the alias that replaces both.
    pub fn new(host: &str, port: u16, alias: Option<&str>) -> Self {
        Self {
            host: alias.unwrap_or(host).to_ascii_lowercase(),
            port: (alias.is_none() && port != 22).then_some(port),
        }
    }

    /// Returns the host without the port, as in certificates.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// True if a line with this name matches only this host.
    fn can_be_recorded(&self) -> bool {
        !self
            .host
            .contains(|c: char| UNRECORDED.contains(c) || c.is_control())
    }

    /// Returns the name as written in a line: `host` or `[host]:port`.
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

/// File and number of a line of known hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHostsLinePosition {
    /// The file, or [`COMMAND_OUTPUT`].
    pub file: PathBuf,
    /// The line number, from 1.
    pub line: usize,
}

/// The name, instead of a file's, of the output of a KnownHostsCommand.
const COMMAND_OUTPUT: &str = "KnownHostsCommand";

impl KnownHostsLinePosition {
    /// True for a line that a KnownHostsCommand printed.
    pub fn is_command_output(&self) -> bool {
        self.file == Path::new(COMMAND_OUTPUT)
    }
}

/// The result of looking up a host's key in the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostKeyVerdict {
    /// The key is known for the host.
    Trusted(KnownHostsLinePosition),
    /// The key is certified by an authority that is trusted for the host.
    TrustedByCa(KnownHostsLinePosition),
    /// No key is known for the host.
    Unknown,
    /// The host has other keys, of this type or another.
    Changed(KnownHostKey),
    /// The key, or the authority that certified it, is revoked.
    Revoked(KnownHostsLinePosition),
    /// An unreadable line or file may name another key of the host, or revoke this one.
    Unreadable(UnreadableKnownHostsEntry),
}

/// Line of a known_hosts file that cannot be parsed, or a file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableKnownHostsEntry {
    /// The file.
    pub file: PathBuf,
    /// The line number, from 1; `None` if the whole file is unreadable.
    pub line: Option<usize>,
    /// The reason, which follows `FILE:LINE: `.
    pub why: String,
    /// True if the line may revoke the key, which no setting can override.
    pub revokes: bool,
}

/// Host key that a known_hosts file lists, and its place there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHostKey {
    /// The position of its line.
    pub place: KnownHostsLinePosition,
    /// The key's type, such as `ssh-ed25519`.
    pub key_type: String,
    /// The fingerprint, `SHA256:...`.
    pub fingerprint: String,
}

/// A [`HostKeyVerdict`], and the reason why a certificate was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKeyCheck {
    /// The verdict.
    pub verdict: HostKeyVerdict,
    /// The reason for refusing the certificate, if there was one; the verdict is then on the plain
    /// key.
    pub certificate: Option<CertificateError>,
}

/// The lines of all known_hosts files.
#[derive(Clone, Debug, Default)]
pub struct KnownHosts {
    entries: Vec<HostKeyEntry>,
    unreadable: Vec<DamagedKnownHostsLine>,
    unread: Vec<UnreadableKnownHostsEntry>,
    revoked: RevokedKeys,
    unrecorded: bool,
}

impl KnownHosts {
    /// Reads the `user` and `global` files in order; missing files count as empty. New hosts are
    /// added to the first `user` file; without one (UserKnownHostsFile=none), new hosts are
    /// refused.
    pub fn load(user: &[PathBuf], global: &[PathBuf]) -> Self {
        let mut known = Self {
            unrecorded: user.is_empty(),
            ..Self::default()
        };
        for file in user.iter().chain(global) {
            match read(file) {
                Ok(text) => known.add(file, &text),
                Err(e) if matches!(e.kind(), NotFound | NotADirectory) => {}
                Err(e) => known.unread.push(UnreadableKnownHostsEntry {
                    file: file.clone(),
                    line: None,
                    why: e.to_string(),
                    revokes: false,
                }),
            }
        }
        known
    }

    /// Adds the lines of `text`, the contents of `file`.
    pub fn add(&mut self, file: &Path, text: &[u8]) {
        for (at, line) in text.split(|b| *b == b'\n').enumerate() {
            let place = || KnownHostsLinePosition {
                file: file.to_owned(),
                line: at + 1,
            };
            let line = KnownHostsLine::parse(line, place);
            self.entries.extend(line.entry);
            self.unreadable.extend(line.unreadable);
        }
    }

    /// Adds the lines that a KnownHostsCommand printed for one lookup. They decide like a file's,
    /// except that a host on another port than 22 is not looked up in them without its port.
    pub fn add_command_output(&mut self, output: &[u8]) {
        self.add(Path::new(COMMAND_OUTPUT), output);
    }

    /// Accepts new hosts although there is no file to record them in.
    pub fn take_unrecorded(&mut self) {
        self.unrecorded = false;
    }

    /// Sets the keys that no host may have (RevokedHostKeys).
    pub fn revoke(&mut self, revoked: RevokedKeys) {
        self.revoked = revoked;
    }

    /// Looks up `key` for `name` at time `now` (seconds since 1970).
    ///
    /// For a host on a port other than 22, a line without the port also counts if it has exactly
    /// this key (sshconnect.c `check_host_key`).
    pub fn check(
        &self,
        name: &HostName,
        key: &PublicKey,
        now: u64,
        ca: &AlgorithmList,
    ) -> HostKeyCheck {
        let bare = name.without_port();
        let names: Vec<&HostName> = [Some(name), bare.as_ref()].into_iter().flatten().collect();
        // A KnownHostsCommand was asked for `name` alone (sshconnect.c `check_host_key`).
        let lines_of = |(at, name): (usize, &&HostName)| {
            let of_command = |e: &&HostKeyEntry| e.place().is_command_output();
            self.lines(name)
                .filter(|e| at == 0 || !of_command(e))
                .collect()
        };
        let by_name: Vec<Vec<&HostKeyEntry>> = names.iter().enumerate().map(lines_of).collect();
        let decided = |verdict| HostKeyCheck {
            verdict,
            certificate: None,
        };
        if let Some(place) = self.revocation(&by_name, key) {
            return decided(HostKeyVerdict::Revoked(place));
        }
        if let Some(damage) = self.possible_revocation(&names, key) {
            return decided(HostKeyVerdict::Unreadable(damage));
        }
        let mut certificate = None;
        for lines in by_name.iter().filter(|_| key.certificate().is_some()) {
            match by_authority(lines, name, key, now, ca) {
                Ok(place) => return decided(HostKeyVerdict::TrustedByCa(place)),
                Err(why) => certificate = certificate.or(Some(why)),
            }
        }
        if let (Some(certificate), [here, bare]) = (key.certificate(), by_name.as_slice()) {
            // For a certificate of an authority that is not listed for the port, OpenSSH looks up
            // the certificate and then its plain key by the name without the port, before the name
            // with the port.
            let authority = certificate.authority().blob();
            let mut authorities = here.iter().filter(|e| e.is_authority());
            let known = bare.iter().find(|e| e.accepts(key.plain().blob()));
            if let (Some(known), false) = (known, authorities.any(|e| e.blob() == authority)) {
                return decided(HostKeyVerdict::Trusted(known.place().clone()));
            }
        }
        HostKeyCheck {
            verdict: self.plain(name, &by_name, key.plain()),
            certificate,
        }
    }

    fn plain(
        &self,
        name: &HostName,
        by_name: &[Vec<&HostKeyEntry>],
        key: &PublicKey,
    ) -> HostKeyVerdict {
        for (at, lines) in by_name.iter().enumerate() {
            let keys = lines.iter().filter(|e| e.is_of_host());
            if let Some(same) = keys.clone().find(|e| e.accepts(key.blob())) {
                return HostKeyVerdict::Trusted(same.place().clone());
            }
            let of_type = keys.clone().find(|e| e.has_type(key.key_type()));
            // The host without the port may be another machine.
            if let Some(other) = of_type.or_else(|| keys.clone().next()).filter(|_| at == 0) {
                return HostKeyVerdict::Changed(other.known_key());
            }
        }
        let damaged = self
            .unreadable
            .iter()
            .find(|line| line.may_name_key() && line.may_name(name) && !line.has_key(key.blob()));
        let damage = damaged.map(|line| line.entry(false));
        match damage.or_else(|| self.unread.first().cloned()) {
            Some(damage) => HostKeyVerdict::Unreadable(damage),
            None => HostKeyVerdict::Unknown,
        }
    }

    fn revocation(
        &self,
        by_name: &[Vec<&HostKeyEntry>],
        key: &PublicKey,
    ) -> Option<KnownHostsLinePosition> {
        let blobs = bare_blobs(key);
        let listed = self.revoked.find(key);
        let mut marked = by_name.iter().flatten().filter(|e| e.revokes(&blobs));
        listed.or_else(|| marked.next().map(|e| e.place().clone()))
    }

    /// Returns a damaged line that may revoke this key of this host.
    fn possible_revocation(
        &self,
        names: &[&HostName],
        key: &PublicKey,
    ) -> Option<UnreadableKnownHostsEntry> {
        let blobs = bare_blobs(key);
        let found = self.unreadable.iter().find(|line| {
            names.iter().any(|name| line.may_name(name))
                && blobs.iter().any(|blob| line.may_revoke(blob))
        });
        found.map(|line| line.entry(true))
    }

    fn lines<'a>(&'a self, name: &HostName) -> impl Iterator<Item = &'a HostKeyEntry> + use<'a> {
        let name = name.clone();
        self.entries.iter().filter(move |e| e.names(&name))
    }

    /// Sorts the host key algorithms `offer` so that those with a matching line for `name` come
    /// first, and the server shows a key that can be checked (sshconnect2.c `order_hostkeyalgs`).
    pub fn prefer(&self, name: &HostName, offer: &[String]) -> Vec<String> {
        let rank = self.rank(name);
        let mut sorted = offer.to_vec();
        sorted.sort_by_key(&rank);
        sorted
    }

    /// Returns the names in `offer` that rank as high as the first of [`KnownHosts::prefer`].
    pub fn equally_preferred(&self, name: &HostName, offer: &[String]) -> Vec<String> {
        let rank = self.rank(name);
        let best = offer.iter().map(&rank).min();
        offer
            .iter()
            .filter(|name| Some(rank(name)) == best)
            .cloned()
            .collect()
    }

    /// Ranks an algorithm: 0 if an authority for `name` may have signed its certificates, 1 if a
    /// key of its type is known for `name`, 2 otherwise.
    fn rank(&self, name: &HostName) -> impl Fn(&String) -> u8 + use<'_> {
        let lines: Vec<&HostKeyEntry> = self.lines(name).collect();
        let lines = match name.without_port() {
            Some(bare) if lines.is_empty() => self.lines(&bare).collect(),
            _ => lines,
        };
        let has_authority = lines.iter().any(|e| e.is_authority());
        move |name| {
            let Some(row) = HOST_KEY_ALGORITHMS.iter().find(|a| a.name == name) else {
                return 2;
            };
            let known = lines.iter().any(|e| e.has_type(row.plain_type));
            match row.is_certificate() {
                true if has_authority => 0,
                false if known => 1,
                _ => 2,
            }
        }
    }

    /// True if any line is about `name`.
    pub fn knows(&self, name: &HostName) -> bool {
        self.lines(name).next().is_some()
    }

    /// Returns the other lines with `key`: position, and the names unless they are hashed.
    pub fn names_of(&self, key: &PublicKey) -> Vec<(KnownHostsLinePosition, Option<String>)> {
        let blob = key.plain().blob();
        self.entries
            .iter()
            .filter(|e| e.accepts(blob))
            .map(|e| (e.place().clone(), e.shown_names()))
            .collect()
    }
}

/// Returns the line of the authority that certifies `key` for `name`.
fn by_authority(
    lines: &[&HostKeyEntry],
    name: &HostName,
    key: &PublicKey,
    now: u64,
    ca: &AlgorithmList,
) -> Result<KnownHostsLinePosition, CertificateError> {
    let no_authority = || CertificateError::UntrustedAuthority {
        fingerprint: key.fingerprint(),
    };
    let certificate = key.certificate().ok_or_else(no_authority)?;
    let authority = lines
        .iter()
        .find(|entry| entry.is_authority() && entry.blob() == certificate.authority().blob());
    // CASignatureAlgorithms applies to the algorithm of this signature, not to those that the
    // authority's key supports.
    let algorithm = certificate.signature_algorithm();
    let allowed = algorithm.is_ok_and(|name| ca.allows(&name));
    certificate.validate_host(name.host(), now, |_| authority.is_some() && allowed)?;
    authority
        .map(|entry| entry.place().clone())
        .ok_or_else(no_authority)
}

/// Returns the plain key and the certificate's authority.
fn bare_blobs(key: &PublicKey) -> Vec<&[u8]> {
    let authority = key.certificate().map(|c| c.authority().blob());
    [Some(key.plain().blob()), authority]
        .into_iter()
        .flatten()
        .collect()
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(file)?
        .take(MAX_FILE + 1)
        .read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "the file is larger than 64 MiB",
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod tests;
