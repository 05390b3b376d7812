//! The folder of a lab: keys, generated files, figures. Its name identifies the owning process, so
//! that the next lab can remove the remains of a killed one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{getpid, getuid};

use crate::error::LabError;

const PREFIX: &str = "longhaul-lab-";
/// File that the owner keeps locked.
const ALIVE: &str = "alive";

/// Folder of one lab in the system's temporary folder, accessible to its user alone and removed
/// when dropped.
#[derive(Debug)]
pub(crate) struct ScratchFolder {
    path: PathBuf,
    /// Holds the lock for the lifetime of this process.
    _alive: File,
}

impl ScratchFolder {
    /// Creates a folder in the system's temporary folder, and removes those of dead labs.
    pub(crate) fn new() -> Result<Self, LabError> {
        let parent = std::env::temp_dir();
        remove_dead(&parent);
        let me = getpid().as_raw_nonzero().get();
        let name = format!(
            "{PREFIX}{me}-{}-{}",
            started(me).unwrap_or(0),
            process_namespace()
        );
        let path = parent.join(name);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .and_then(|()| {
                let alive = File::create(path.join(ALIVE))?;
                flock(&alive, FlockOperation::LockExclusive)?;
                Ok(alive)
            })
            .map(|_alive| Self {
                path: path.clone(),
                _alive,
            })
            .map_err(|error: io::Error| LabError::system(path.display(), error))
    }

    /// Returns true if the process that created this folder is alive. For its children, which
    /// cannot see it.
    pub(crate) fn owner_is_alive(path: &Path) -> bool {
        let locked = File::open(path.join(ALIVE)).and_then(|alive| {
            flock(&alive, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from)
        });
        locked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // If this fails, the next lab tries again.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders of this user's dead labs. Process IDs are valid within their namespace only,
/// so folders of other containers are left alone.
fn remove_dead(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(owner) = name.to_str().and_then(ScratchFolderOwner::of) else {
            continue;
        };
        let ours = fs::symlink_metadata(entry.path())
            .is_ok_and(|meta| meta.is_dir() && meta.uid() == getuid().as_raw());
        if ours && owner.namespace == process_namespace() && started(owner.pid) != owner.started {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The process that owns a folder, parsed from its name.
struct ScratchFolderOwner {
    pid: i32,
    started: Option<u64>,
    namespace: u64,
}

impl ScratchFolderOwner {
    fn of(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.split('-');
        let owner = Self {
            pid: parts.next()?.parse().ok()?,
            started: Some(parts.next()?.parse().ok()?),
            namespace: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(owner)
    }
}

/// Start time of a process in clock ticks since boot (proc(5), field 22 of stat). With the process
/// ID it is unique.
fn started(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in brackets, which may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn process_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_dead_left_is_removed_and_the_living_keep_theirs() {
        let parent = tempfile::tempdir().unwrap();
        let folder = |pid: i32, started: u64, namespace: u64| {
            let path = parent
                .path()
                .join(format!("{PREFIX}{pid}-{started}-{namespace}"));
            fs::create_dir(&path).unwrap();
            path
        };
        let me = getpid().as_raw_nonzero().get();
        let here = process_namespace();
        let began = started(me).unwrap();
        let mine = folder(me, began, here);
        let elsewhere = folder(me, began + 1, here + 1);
        let same_number = folder(me, began + 1, here);
        let no_number = parent.path().join(format!("{PREFIX}notes"));
        fs::create_dir(&no_number).unwrap();
        remove_dead(parent.path());
        assert!(mine.is_dir() && elsewhere.is_dir() && no_number.is_dir());
        assert!(!same_number.exists());
    }
}
