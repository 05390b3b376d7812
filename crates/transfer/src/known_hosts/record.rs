//! Adds host keys to a known_hosts file.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use aws_lc_rs::{hmac, rand};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{FlockOperation, flock};
use ssh::key::PublicKey;

use super::{HostName, KnownHosts};

/// Adds a line for `name` and `key` to `file`, unless another process has just added it.
///
/// A missing folder is created with mode 0700. `hashed` hides the name (HashKnownHosts).
pub fn record(file: &Path, name: &HostName, key: &PublicKey, hashed: bool) -> io::Result<()> {
    if let Some(folder) = file.parent().filter(|f| !f.as_os_str().is_empty()) {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
    }
    let mut open = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(file)?;
    let hosts = if hashed {
        hash(&name.entry())?
    } else {
        name.entry()
    };
    let key = key.plain();
    let line = format!(
        "{hosts} {} {}\n",
        key.key_type(),
        STANDARD.encode(key.blob())
    );
    if !open.metadata()?.is_file() {
        return open.write_all(line.as_bytes());
    }
    // The lock is held until the file is closed. It serializes longhaul processes; against other
    // programs, O_APPEND with a single write keeps lines intact.
    flock(&open, FlockOperation::LockExclusive)?;
    let present = contents(&mut open)?;
    let mut known = KnownHosts::default();
    known.add(file, &present);
    let is_there = |e: &&super::Entry| e.blob == key.blob() && e.marker == super::Marker::None;
    if known.lines(name).any(|e| is_there(&e)) {
        return Ok(());
    }
    let unfinished = present.last().is_some_and(|b| *b != b'\n');
    let line = if unfinished {
        format!("\n{line}")
    } else {
        line
    };
    open.write_all(line.as_bytes())
}

fn contents(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(super::MAX_FILE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn hash(name: &str) -> io::Result<String> {
    let mut salt = [0; 20];
    rand::fill(&mut salt).map_err(|_| io::Error::other("cannot read random bytes for the salt"))?;
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt);
    let hash = hmac::sign(&key, name.as_bytes());
    Ok(format!(
        "|1|{}|{}",
        STANDARD.encode(salt),
        STANDARD.encode(hash)
    ))
}
