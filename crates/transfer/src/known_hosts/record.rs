//! Adds host keys to a known_hosts file.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use aws_lc_rs::{hmac, rand};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{FlockOperation, flock};
use ssh::key::PublicKey;

use super::{HostName, KnownHosts};

/// Maximum number of times that a file may be replaced while it is being locked.
const REPLACED: u32 = 16;

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
    let line = line(name, key, hashed)?;
    let (mut open, is_file) = open_locked(file, true)?;
    if !is_file {
        return open.write_all(&line);
    }
    let present = contents(&mut open)?;
    let mut known = KnownHosts::default();
    known.add(file, &present);
    let key = key.plain();
    let is_there =
        |e: &&super::HostKeyEntry| e.blob() == key.blob() && e.marker() == super::LineMarker::None;
    if known.lines(name).any(|e| is_there(&e)) {
        return Ok(());
    }
    append(&mut open, &present, &line)
}

/// Returns a line for `name` and `key`, with its end.
pub(super) fn line(name: &HostName, key: &PublicKey, hashed: bool) -> io::Result<Vec<u8>> {
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
    Ok(line.into_bytes())
}

/// Opens a known_hosts file to append to it, and locks it if it is a regular one, which the second
/// value tells. `create` makes a missing file.
///
/// The lock is held until the file is closed. It serializes longhaul processes; against other
/// programs, O_APPEND with a single write keeps lines intact.
pub(super) fn open_locked(file: &Path, create: bool) -> io::Result<(File, bool)> {
    for _ in 0..REPLACED {
        let open = OpenOptions::new()
            .read(true)
            .append(true)
            .create(create)
            .mode(0o600)
            .open(file)?;
        if !open.metadata()?.is_file() {
            return Ok((open, false));
        }
        flock(&open, FlockOperation::LockExclusive)?;
        let (ours, there) = (open.metadata()?, std::fs::metadata(file)?);
        if (ours.dev(), ours.ino()) == (there.dev(), there.ino()) {
            return Ok((open, true));
        }
        // Another process has put a new file in its place.
    }
    Err(io::Error::other(
        "another program keeps replacing the file: try again",
    ))
}

/// Appends whole lines to a file whose content is `present`, in one write.
pub(super) fn append(open: &mut File, present: &[u8], lines: &[u8]) -> io::Result<()> {
    let unfinished = present.last().is_some_and(|b| *b != b'\n');
    let end: &[u8] = if unfinished { b"\n" } else { b"" };
    open.write_all(&[end, lines].concat())
}

pub(super) fn contents(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(super::MAX_FILE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn hash(name: &str) -> io::Result<String> {
    let mut salt = [0; 20];
    rand::fill(&mut salt)
        .map_err(|_| io::Error::other("cannot read random numbers from the system"))?;
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &salt);
    let hash = hmac::sign(&key, name.as_bytes());
    Ok(format!(
        "|1|{}|{}",
        STANDARD.encode(salt),
        STANDARD.encode(hash)
    ))
}
