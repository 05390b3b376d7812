//! Updates the user's known_hosts files with the host keys that a known server announced
//! (UpdateHostKeys; clientloop.c `client_input_hostkeys`, hostfile.c `hostfile_replace_entries`).

use std::fs::{File, OpenOptions};
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ssh::key::PublicKey;

use super::line::{HostKeyEntry, comparable};
use super::record::{append, contents, line, open_locked};
use super::{HostName, KnownHostKey, KnownHosts};

/// The host keys of a server, which it announced over a connection with a known key.
#[derive(Clone, Debug)]
pub struct AnnouncedHostKeys {
    name: HostName,
    /// The plain key of the connection.
    own: Vec<u8>,
    /// All announced keys, in the form of lines.
    blobs: Vec<Vec<u8>>,
}

/// The differences between announced keys and the user's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostKeyChanges {
    /// Announced blobs that no line of the host has.
    pub new: Vec<Vec<u8>>,
    /// Keys of the host's lines that were not announced.
    pub obsolete: Vec<KnownHostKey>,
}

/// The reason for leaving the files as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownHostsUnchangedReason {
    /// The files have the announced keys and no others.
    UpToDate,
    /// The key of the connection is not in the user's files under this name.
    OwnKeyUnlisted,
    /// The server did not announce the key that it uses.
    OwnKeyUnannounced,
    /// A line of the host has a marker, a pattern or more than two names, or is obsolete and has a
    /// second name.
    ComplexLine,
    /// A line of another host has one of the announced or obsolete keys.
    KeyOfOtherHost,
    /// A file cannot be read.
    Unreadable,
}

impl KnownHostsUnchangedReason {
    /// Returns the reason in words, for the log.
    pub fn why(self) -> &'static str {
        match self {
            Self::UpToDate => "known_hosts has the announced host keys",
            Self::OwnKeyUnlisted => "the user's known_hosts does not have the key in use",
            Self::OwnKeyUnannounced => "the server does not announce the host key in use",
            Self::ComplexLine => {
                "a known_hosts line of this host has a marker, a pattern or another name"
            }
            Self::KeyOfOtherHost => "known_hosts has one of the keys under another name",
            Self::Unreadable => "a known_hosts file cannot be read",
        }
    }
}

impl AnnouncedHostKeys {
    /// Collects the announced `blobs` of the server `name`, whose key `own` was accepted.
    pub fn new<'a>(
        name: HostName,
        own: &PublicKey,
        blobs: impl IntoIterator<Item = &'a [u8]>,
    ) -> Self {
        let blob = |blob: &[u8]| match comparable(blob.to_vec()) {
            Some((blob, _)) => blob,
            None => blob.to_vec(),
        };
        Self {
            name,
            own: own.plain().blob().to_vec(),
            blobs: blobs.into_iter().map(blob).collect(),
        }
    }

    /// Compares the announcement with the user's `files`.
    ///
    /// # Errors
    /// The files must not be changed. Stricter than ssh: the key in use must be among the announced
    /// keys and in the user's files under exactly this name, and damaged lines that may revoke a
    /// key of the host count as markers.
    pub fn compare(&self, files: &[PathBuf]) -> Result<HostKeyChanges, KnownHostsUnchangedReason> {
        let mut known = KnownHosts::default();
        for file in files {
            match super::read(file) {
                Ok(text) => known.add(file, &text),
                Err(e) if matches!(e.kind(), NotFound | NotADirectory) => {}
                Err(_) => return Err(KnownHostsUnchangedReason::Unreadable),
            }
        }
        self.changes(&known)
    }

    fn changes(&self, known: &KnownHosts) -> Result<HostKeyChanges, KnownHostsUnchangedReason> {
        if !self.blobs.contains(&self.own) {
            return Err(KnownHostsUnchangedReason::OwnKeyUnannounced);
        }
        let (lines, others): (Vec<&HostKeyEntry>, Vec<&HostKeyEntry>) =
            known.entries.iter().partition(|e| e.names(&self.name));
        let damaged = known
            .unreadable
            .iter()
            .any(|l| l.may_be_revocation() && l.may_name(&self.name));
        if damaged || lines.iter().any(|e| !e.is_of_host() || e.has_patterns()) {
            return Err(KnownHostsUnchangedReason::ComplexLine);
        }
        if !lines.iter().any(|e| e.blob() == self.own) {
            return Err(KnownHostsUnchangedReason::OwnKeyUnlisted);
        }
        let obsolete: Vec<&&HostKeyEntry> = lines.iter().filter(|e| self.drops(e)).collect();
        // The line would no longer bind its other name, which may be another host's.
        if obsolete.iter().any(|e| e.has_names()) {
            return Err(KnownHostsUnchangedReason::ComplexLine);
        }
        let elsewhere =
            |e: &&HostKeyEntry| !self.drops(e) || obsolete.iter().any(|old| old.blob() == e.blob());
        let listed = |blob: &&Vec<u8>| lines.iter().any(|e| e.blob() == **blob);
        let changes = HostKeyChanges {
            new: self.blobs.iter().filter(|b| !listed(b)).cloned().collect(),
            obsolete: obsolete.iter().map(|e| e.known_key()).collect(),
        };
        match changes == HostKeyChanges::default() {
            true => Err(KnownHostsUnchangedReason::UpToDate),
            false if others.iter().any(elsewhere) => Err(KnownHostsUnchangedReason::KeyOfOtherHost),
            false => Ok(changes),
        }
    }

    fn drops(&self, line: &HostKeyEntry) -> bool {
        !self.blobs.iter().any(|blob| blob == line.blob())
    }

    /// Adds lines with the `proven` keys to the first of the user's `files` if it exists, and
    /// removes the host's lines with keys that were not announced from all of them. All other lines
    /// keep their bytes and their order. A file that loses lines is replaced by a new one, and
    /// stays as FILE.old, as with ssh.
    ///
    /// # Errors
    /// A file could not be read or written; it is then unchanged.
    pub fn apply(
        &self,
        files: &[PathBuf],
        proven: &[PublicKey],
        hashed: bool,
    ) -> Result<(), (PathBuf, io::Error)> {
        // The files may have changed since the announcement.
        let Ok(changes) = self.compare(files) else {
            return Ok(());
        };
        for (at, file) in files.iter().enumerate() {
            let new = |key: &&PublicKey| at == 0 && changes.new.iter().any(|b| b == key.blob());
            let mut added = Vec::new();
            for key in proven.iter().filter(new) {
                let line = line(&self.name, key, hashed).map_err(|e| (file.clone(), e))?;
                added.extend(line);
            }
            match self.change(file, &added) {
                Err(e) if matches!(e.kind(), NotFound | NotADirectory) => {}
                done => done.map_err(|e| (file.clone(), e))?,
            }
        }
        Ok(())
    }

    /// Changes one file under its lock.
    fn change(&self, file: &Path, added: &[u8]) -> io::Result<()> {
        // A symlink stays, and the file that it leads to changes.
        let file = &file.canonicalize()?;
        let (mut open, true) = open_locked(file, false)? else {
            return Ok(());
        };
        let present = contents(&mut open)?;
        if present.len() as u64 >= super::MAX_FILE {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut known = KnownHosts::default();
        known.add(file, &present);
        let lines = known.lines(&self.name).filter(|e| self.drops(e));
        let dropped: Vec<usize> = lines.map(|e| e.place().line).collect();
        if dropped.is_empty() {
            return match added.is_empty() {
                true => Ok(()),
                false => append(&mut open, &present, added),
            };
        }
        let numbered = present.split_inclusive(|b| *b == b'\n').enumerate();
        let kept = numbered.filter(|(at, _)| !dropped.contains(&(at + 1)));
        let mut text = kept
            .flat_map(|(_, line)| line)
            .copied()
            .collect::<Vec<u8>>();
        if text.last().is_some_and(|b| *b != b'\n') && !added.is_empty() {
            text.push(b'\n');
        }
        text.extend_from_slice(added);
        replace(file, &open, &text)
    }
}

/// Puts a new file with `text` and the permissions of `old` in place of `file`, whose content stays
/// as FILE.old.
fn replace(file: &Path, old: &File, text: &[u8]) -> io::Result<()> {
    let beside = |end: &str| {
        let mut name = file.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    let mut random = [0; 8];
    aws_lc_rs::rand::fill(&mut random)
        .map_err(|_| io::Error::other("cannot read random numbers from the system"))?;
    let temp = beside(&format!(".{:016x}", u64::from_ne_bytes(random)));
    let mut new = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temp)?;
    let mut put = || {
        let old = old.metadata()?;
        if old.uid() != new.metadata()?.uid() {
            return Err(io::Error::other("the file belongs to another user"));
        }
        new.write_all(text)?;
        new.set_permissions(PermissionsExt::from_mode(old.mode() & 0o777))?;
        new.sync_all()?;
        let backup = beside(".old");
        match std::fs::remove_file(&backup) {
            Err(e) if e.kind() != NotFound => return Err(e),
            _ => std::fs::hard_link(file, &backup)?,
        }
        std::fs::rename(&temp, file)
    };
    let done = put();
    if done.is_err() {
        let _ = std::fs::remove_file(&temp);
    }
    done
}

#[cfg(test)]
mod tests;
