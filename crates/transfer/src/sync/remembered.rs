//! The file system of a sync's source, remembered from run to run: an empty directory on another
//! file system is a mount point whose file system is missing.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::time::SystemTime;

use super::SyncRequest;
use crate::copy::{CopyLocation, PlannedCopy};
use crate::private_dir::{LonghaulDirKind, PrivateDir};

/// Longest memory that is read, in bytes.
const MOST: u64 = 64;
/// Beginning of the names of these memories.
const PREFIX: &str = "sync-";
/// Largest number of memories. A script that names each target after the day would leave one a day
/// for ever.
const KEPT: usize = 1000;

/// Compares the file system of a sync's source with that of the last run.
pub(super) struct SourceFileSystemCheck {
    name: OsString,
    /// Identity of the file system in hexadecimal digits, as it is stored.
    now: Option<String>,
    before: Option<String>,
}

impl SourceFileSystemCheck {
    /// Looks at the source's file system, and at the memory of the last sync of the same source to
    /// the same target. `remote` is the file system of a remote source, if its server tells it.
    pub(super) fn find(run: &PlannedCopy<'_>, request: &SyncRequest, remote: Option<u64>) -> Self {
        let identity = match &request.source {
            CopyLocation::Local(path) => rustix::fs::statvfs(path).ok().map(|stat| stat.f_fsid),
            CopyLocation::Remote { .. } => remote,
        };
        let now = identity.map(|identity| format!("{identity:x}"));
        let places = [&request.source, &request.target];
        let identity = places.map(|place| run.place_name(place).0).join(&0);
        let mut name = OsString::from(PREFIX);
        name.push(blake3::hash(&identity).to_hex().as_str());
        let before = now.as_ref().and_then(|_| Self::read(&name));
        Self { name, now, before }
    }

    fn read(name: &OsString) -> Option<String> {
        let dir = PrivateDir::open(&LonghaulDirKind::State.path()?).ok()?;
        let file = dir.file(name, false).ok()?;
        let mut text = String::new();
        file.take(MOST).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// True if the source lies on another file system than in the last sync.
    pub(super) fn has_changed(&self) -> bool {
        self.before.is_some() && self.before != self.now
    }

    /// Remembers the present file system, in place of that of the sync that was made longest ago if
    /// there are too many. Without a private state folder nothing is remembered.
    pub(super) fn keep(&self) {
        let Some(now) = &self.now else { return };
        let keep = || -> Option<()> {
            let dir = PrivateDir::create(&LonghaulDirKind::State.path()?).ok()?;
            if self.before.as_ref() == Some(now)
                && let Ok(file) = dir.file(&self.name, true)
            {
                // The time of the file is that of the last sync.
                return file.set_modified(SystemTime::now()).ok();
            }
            let _ = dir.remove(&self.name);
            let mut file = dir.create_file(&self.name).ok()?;
            file.write_all(now.as_bytes()).ok()?;
            dir.keep_newest(PREFIX, KEPT).ok()
        };
        keep();
    }
}
