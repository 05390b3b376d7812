//! Folder of a plan: its header, the files of its shards, and the leases.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use shard::{Lease, PlanHeader, PlanHeaderError, PlanRecordFile, PlanTotals, ShardTotals};

use super::records::ShardRecordReader;
use super::status::ShardPlanStatus;
use super::{PlanError, absolute, shown};
use crate::PrivateDir;
use crate::disk::os_words;

/// Name of the header.
const HEADER: &str = "plan";
/// Name of the record that the directories have their attributes.
const SEALED: &str = "sealed";
/// Name of the file of random digits that the names of temporaries of split files are made from.
/// Two plans of one tree and one target have the same identifier, and must not share temporaries.
const NONCE: &str = "nonce";
/// Digits of it.
const NONCE_DIGITS: usize = 32;
/// Longest header that is read, in bytes: that of the largest number of shards.
const LONGEST_HEADER: u64 = 32 << 20;
/// Longest lease that is read, in bytes.
const LONGEST_LEASE: u64 = 64 << 10;
/// Digits of the plan's identifier in file names.
const SHORT_ID: usize = 16;

/// Plan that was read from its folder.
#[derive(Debug)]
pub struct PlanFolder {
    dir: PrivateDir,
    header: PlanHeader,
    id: String,
    nonce: Vec<u8>,
}

/// Checksum in hexadecimal.
pub(super) fn sum(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// Opens the folder of a plan, which only this user may write.
pub(super) fn open_folder(path: &Path) -> Result<PrivateDir, PlanError> {
    PrivateDir::open(&absolute(path)).map_err(|error| match error.kind() {
        // A folder that others may write is named by the error.
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => {
            PlanError::Unusable(os_words(&error))
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory => {
            PlanError::Unusable(format!("{}: {}", shown(path), os_words(&error)))
        }
        // Another machine may have it.
        io::ErrorKind::NotFound => PlanError::Io(format!(
            "{}: {}: check the path, and that the file system of the plan is mounted here",
            shown(path),
            os_words(&error)
        )),
        _ => PlanError::Io(format!("{}: {}", shown(path), os_words(&error))),
    })
}

/// Reads the header of a plan; `None` if the folder has none.
pub(super) fn read_header(dir: &PrivateDir) -> Result<Option<(PlanHeader, String)>, PlanError> {
    header_of(dir, PlanHeaderError::to_string)
}

/// Reads the header of an earlier plan in the folder for a new one.
///
/// # Errors
/// Those of [`read_header`].
pub(super) fn earlier_header(dir: &PrivateDir) -> Result<Option<(PlanHeader, String)>, PlanError> {
    header_of(dir, |error| match error {
        PlanHeaderError::NotAPlan => {
            "this file was not written by longhaul plan: give -o a new or empty folder".to_owned()
        }
        error => error.to_string(),
    })
}

fn header_of(
    dir: &PrivateDir,
    words: impl Fn(&PlanHeaderError) -> String,
) -> Result<Option<(PlanHeader, String)>, PlanError> {
    let path = dir.path().join(HEADER);
    let io = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => PlanError::Unusable(os_words(&error)),
        _ => PlanError::Io(format!("{}: {}", shown(&path), os_words(&error))),
    };
    let file = match dir.file(HEADER.as_ref(), false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(io)?,
    };
    let mut text = Vec::new();
    file.take(LONGEST_HEADER)
        .read_to_end(&mut text)
        .map_err(io)?;
    let parsed = PlanHeader::parse(&text, sum);
    parsed
        .map(Some)
        .map_err(|error| PlanError::Unusable(format!("{}: {}", shown(&path), words(&error))))
}

/// Writes a file under a temporary name, makes it durable and renames it.
pub(super) fn replace(dir: &PrivateDir, name: &str, text: &[u8]) -> io::Result<()> {
    let temporary = OsString::from(format!(".{name}.{}", std::process::id()));
    let _ = dir.remove(&temporary);
    let written = dir.create_file(&temporary).and_then(|mut file| {
        file.write_all(text)?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| dir.rename(&temporary, name.as_ref()));
    if renamed.is_err() {
        let _ = dir.remove(&temporary);
    }
    renamed
}

/// Reads the random digits of a plan; empty if it has none.
fn read_nonce(dir: &PrivateDir) -> io::Result<Vec<u8>> {
    let mut nonce = Vec::new();
    match dir.file(NONCE.as_ref(), false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(nonce),
        file => file?.take(NONCE_DIGITS as u64).read_to_end(&mut nonce)?,
    };
    Ok(nonce)
}

/// Writes the random digits of a plan, unless the folder has them.
pub(super) fn write_nonce(dir: &PrivateDir) -> io::Result<()> {
    if read_nonce(dir)?.len() == NONCE_DIGITS {
        return Ok(());
    }
    let mut random = [0; NONCE_DIGITS / 2];
    let filled = aws_lc_rs::rand::fill(&mut random);
    filled.map_err(|_| io::Error::other("cannot read random numbers from the system"))?;
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    replace(dir, NONCE, digits.as_bytes())
}

/// Writes the header, which makes a plan valid.
pub(super) fn write_header(dir: &PrivateDir, text: &str) -> io::Result<()> {
    replace(dir, HEADER, text.as_bytes())
}

/// File name of a shard's records.
pub(super) fn shard_name(id: &str, shard: u32) -> String {
    format!("{}.{shard:05}", short(id))
}

/// File name of the tree of directories.
pub(super) fn tree_name(id: &str) -> String {
    format!("{}.tree", short(id))
}

/// File name of the mark that the temporary of a split file has been created.
fn mark_name(id: &str, tag: u64) -> String {
    format!("{}.temporary-{tag:016x}", short(id))
}

fn short(id: &str) -> &str {
    id.get(..SHORT_ID).unwrap_or(id)
}

fn lease_name(shard: u32, fence: u64) -> String {
    format!("{shard:05}.lease-{fence}")
}

/// Removes the files of plans other than `id`, and what an interrupted planning has left.
pub(super) fn remove_others(dir: &PrivateDir, id: &str) {
    let Ok(names) = fs::read_dir(dir.path()) else {
        return;
    };
    for name in names.flatten().map(|entry| entry.file_name()) {
        let text = name.to_string_lossy();
        let of_plan = text.split_once('.').is_some_and(|(id, rest)| {
            let number = rest.len() == 5 && rest.bytes().all(|byte| byte.is_ascii_digit());
            let mark = rest.starts_with("temporary-");
            id.len() == SHORT_ID && (number || mark || rest == "tree")
        });
        let new = text.starts_with(super::planning::NEW);
        if (of_plan && !text.starts_with(short(id))) || new {
            let _ = dir.remove(&name);
        }
    }
}

/// True if a worker has begun a shard.
pub(super) fn is_begun(dir: &PrivateDir, shards: u32) -> io::Result<bool> {
    for shard in 0..shards {
        if newest_fence(dir, shard)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn missing_file(path: &Path) -> String {
    format!(
        "{}: the file is missing, so the plan is damaged: run longhaul plan again with another folder",
        shown(path)
    )
}

/// Returns the largest fencing number of a shard. They have no gaps and are never removed.
fn newest_fence(dir: &PrivateDir, shard: u32) -> io::Result<Option<u64>> {
    let mut newest = None;
    while lease_exists(dir, shard, newest.unwrap_or(0) + 1)? {
        newest = Some(newest.unwrap_or(0) + 1);
    }
    Ok(newest)
}

fn lease_exists(dir: &PrivateDir, shard: u32, fence: u64) -> io::Result<bool> {
    exists(dir, &lease_name(shard, fence))
}

fn exists(dir: &PrivateDir, name: &str) -> io::Result<bool> {
    match dir.file(name.as_ref(), false) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl PlanFolder {
    /// Sums up the state of all shards.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn status(&self) -> Result<ShardPlanStatus, PlanError> {
        ShardPlanStatus::of(self)
    }

    /// Reads the plan of a folder.
    ///
    /// # Errors
    /// There is no plan, it is damaged or of another version, or others can write the folder.
    pub fn open(path: &Path) -> Result<Self, PlanError> {
        let dir = open_folder(path)?;
        match read_header(&dir)? {
            Some((header, id)) => {
                let nonce = read_nonce(&dir).map_err(|error| match error.kind() {
                    io::ErrorKind::PermissionDenied => PlanError::Unusable(os_words(&error)),
                    _ => PlanError::Io(format!("{}: {}", shown(path), os_words(&error))),
                })?;
                if header.tree.totals.files > 0 && nonce.len() != NONCE_DIGITS {
                    return Err(PlanError::Unusable(missing_file(&dir.path().join(NONCE))));
                }
                Ok(Self {
                    dir,
                    header,
                    id,
                    nonce,
                })
            }
            None => Err(PlanError::Unusable(format!(
                "{}: there is no plan in this folder: make one with longhaul plan",
                shown(path)
            ))),
        }
    }

    /// Returns a plan of one empty shard in a folder.
    #[cfg(test)]
    pub(super) fn of_one_shard(path: &Path) -> Self {
        let empty = ShardTotals {
            len: 0,
            sum: String::new(),
            totals: PlanTotals::default(),
        };
        let header = PlanHeader {
            source: b"s".to_vec(),
            target: b"t".to_vec(),
            directories: 0,
            tree: empty.clone(),
            shards: vec![empty],
        };
        Self {
            dir: open_folder(path).expect("a private folder"),
            header,
            id: "0".repeat(64),
            nonce: Vec::new(),
        }
    }

    /// Source operand.
    pub fn source(&self) -> &[u8] {
        &self.header.source
    }

    /// Target operand.
    pub fn target(&self) -> &[u8] {
        &self.header.target
    }

    /// Number of shards.
    pub fn shards(&self) -> u32 {
        u32::try_from(self.header.shards.len()).unwrap_or(u32::MAX)
    }

    /// Totals of all shards.
    pub fn totals(&self) -> PlanTotals {
        self.header.totals().unwrap_or_default()
    }

    /// Number of directories below the root.
    pub fn directories(&self) -> u64 {
        self.header.directories
    }

    /// Number of files that are split into ranges.
    pub fn split_files(&self) -> u64 {
        self.header.tree.totals.files
    }

    /// Totals of one shard.
    pub fn totals_of(&self, shard: u32) -> PlanTotals {
        let shard = self.header.shards.get(shard as usize);
        shard.map(|shard| shard.totals).unwrap_or_default()
    }

    /// Identifier of the plan.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the number from which the name of the temporary of a split file is made. Only users
    /// of the plan know it.
    pub(super) fn temporary_tag(&self, below: &[u8]) -> u64 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.id.as_bytes());
        hasher.update(&self.nonce);
        hasher.update(below);
        let hash = hasher.finalize();
        let first = hash.as_bytes().first_chunk().copied();
        u64::from_be_bytes(first.unwrap_or_default())
    }

    /// True if a worker has created the temporary with this tag. If it is missing now, it must not
    /// be created again: the ranges of complete shards would be zeros in it.
    pub(super) fn is_temporary_made(&self, tag: u64) -> io::Result<bool> {
        exists(&self.dir, &mark_name(&self.id, tag))
    }

    /// Notes that the temporary with this tag has been created, before its first byte is written.
    pub(super) fn note_temporary(&self, tag: u64) -> io::Result<()> {
        match self.dir.create_file(mark_name(&self.id, tag).as_ref()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            file => file?.sync_all(),
        }
    }

    /// Path of the folder.
    pub fn folder(&self) -> PathBuf {
        self.dir.path().to_path_buf()
    }

    /// Fails for a number that no shard has.
    ///
    /// # Errors
    /// The plan has fewer shards.
    pub fn check_shard(&self, shard: u32) -> Result<(), PlanError> {
        let count = self.shards();
        match shard < count {
            true => Ok(()),
            false => Err(PlanError::NoSuchShard(format!(
                "{}: no shard {shard}: the shards of this plan are numbered from 0 to {}",
                shown(self.dir.path()),
                count - 1
            ))),
        }
    }

    pub(super) fn records(&self, shard: u32) -> Result<ShardRecordReader, PlanError> {
        match self.header.shards.get(shard as usize) {
            Some(expected) => {
                let kind = (PlanRecordFile::Shard(shard), None);
                self.open_records(&shard_name(&self.id, shard), expected, kind)
            }
            None => Err(PlanError::NoSuchShard(format!(
                "{}: no shard {shard} in this plan",
                shown(self.dir.path())
            ))),
        }
    }

    /// Steps through all directories, and the ranges of split files.
    pub(super) fn tree(&self) -> Result<ShardRecordReader, PlanError> {
        let kind = (
            PlanRecordFile::Tree(self.shards()),
            Some(self.header.directories),
        );
        self.open_records(&tree_name(&self.id), &self.header.tree, kind)
    }

    fn open_records(
        &self,
        name: &str,
        expected: &ShardTotals,
        kind: (PlanRecordFile, Option<u64>),
    ) -> Result<ShardRecordReader, PlanError> {
        let path = self.dir.path().join(name);
        let file = self.dir.file(name.as_ref(), false);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => PlanError::Unusable(missing_file(&path)),
            io::ErrorKind::PermissionDenied => PlanError::Unusable(os_words(&error)),
            _ => PlanError::Io(format!("{}: {}", shown(&path), os_words(&error))),
        })?;
        Ok(ShardRecordReader::new(file, path, expected.clone(), kind))
    }

    /// Returns the newest lease of a shard: its fencing number, and its contents if they are
    /// complete and of this plan.
    pub(super) fn newest_lease(&self, shard: u32) -> io::Result<Option<(u64, Option<Lease>)>> {
        let Some(fence) = newest_fence(&self.dir, shard)? else {
            return Ok(None);
        };
        let file = self.dir.file(lease_name(shard, fence).as_ref(), false)?;
        let mut text = Vec::new();
        file.take(LONGEST_LEASE).read_to_end(&mut text)?;
        let lease = Lease::parse(&text);
        let of_this =
            |lease: &Lease| lease.plan == self.id && lease.shard == shard && lease.fence == fence;
        Ok(Some((fence, lease.filter(of_this))))
    }

    /// Returns the time since the last change of a shard's newest lease, by this machine's clock.
    pub(super) fn lease_age(&self, shard: u32, fence: u64) -> Option<std::time::Duration> {
        let file = self.dir.file(lease_name(shard, fence).as_ref(), false);
        let modified = file.ok()?.metadata().ok()?.modified().ok()?;
        modified.elapsed().ok()
    }

    /// True if another worker has taken the shard: a lease with the fencing number `fence + 1` exists.
    pub(super) fn has_successor(&self, shard: u32, fence: u64) -> io::Result<bool> {
        lease_exists(&self.dir, shard, fence + 1)
    }

    /// Creates a lease. Returns false if another worker has created this fencing number.
    pub(super) fn create_lease(&self, lease: &Lease) -> io::Result<bool> {
        let name = lease_name(lease.shard, lease.fence);
        let mut file: File = match self.dir.create_file(name.as_ref()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            file => file?,
        };
        file.write_all(lease.write().as_bytes())?;
        file.sync_all()?;
        Ok(true)
    }

    /// Replaces the contents of this worker's own lease.
    pub(super) fn write_lease(&self, lease: &Lease) -> io::Result<()> {
        let name = lease_name(lease.shard, lease.fence);
        replace(&self.dir, &name, lease.write().as_bytes())
    }

    /// True if the directories lack their attributes.
    pub fn needs_seal(&self) -> bool {
        !self.is_sealed()
    }

    /// True if the directories have their attributes.
    pub(super) fn is_sealed(&self) -> bool {
        let file = self.dir.file(SEALED.as_ref(), false);
        let mut text = String::new();
        let read = file.and_then(|file| file.take(256).read_to_string(&mut text));
        read.is_ok() && text.trim_end() == self.id
    }

    pub(super) fn write_sealed(&self) -> io::Result<()> {
        replace(&self.dir, SEALED, format!("{}\n", self.id).as_bytes())
    }
}
