//! What a client may do in a drop box: with what it has put there itself, and with nothing else.
//!
//! A client of several channels has a server behind each, which know nothing of one another, and
//! writes one large file through all of them. So the name of a temporary tells as well whose it is:
//! nobody can list it, and 50 random bits are not guessed.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, Mode, OFlags, Stat};
use rustix::io::Errno;
use sftp::StatusCode;

use crate::Access;
use crate::answer::{Answer, Session};
use crate::beneath::proc_name;
use crate::error::Refused;

/// What a client has put into a drop box: at least the last [`KEPT`] files, which it may still rename and
/// remove. Not by device and inode: when a file is removed the next one, whoever's it is, has its inode.
#[derive(Debug, Default)]
pub(crate) struct DropBoxFiles {
    recent: BTreeSet<Id>,
    before: BTreeSet<Id>,
    /// Where files have no such ids the last ones are kept open: nobody is given the inode of one that is.
    held: VecDeque<((u64, u64), OwnedFd)>,
}

/// What of [`sys::file_id`] and the device is enough to tell files apart.
type Id = [u8; 16];

/// A client may put any number of files there, and has few of them in hand at a time.
const KEPT: usize = 1 << 16;
/// The same where each takes a descriptor.
const HELD: usize = 64;

impl DropBoxFiles {
    fn insert(&mut self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let stat = fs::fstat(file)?;
        self.keep(id(file, &stat), file, &stat)
    }

    fn keep(&mut self, id: Option<Id>, file: BorrowedFd<'_>, stat: &Stat) -> Result<(), Errno> {
        match id {
            Some(id) => {
                if self.recent.len() >= KEPT {
                    self.before = std::mem::take(&mut self.recent);
                }
                self.recent.insert(id);
            }
            None => {
                self.held.truncate(HELD - 1);
                // Not to write to: that would keep it from being run.
                let how = OFlags::PATH | OFlags::CLOEXEC;
                let file = fs::open(proc_name(file), how, Mode::empty())?;
                self.held.push_front(((stat.st_dev, stat.st_ino), file));
            }
        }
        Ok(())
    }

    fn contains(&self, id: Option<Id>, stat: &Stat) -> bool {
        match id {
            Some(id) => self.recent.contains(&id) || self.before.contains(&id),
            None => {
                let inode = (stat.st_dev, stat.st_ino);
                self.held.iter().any(|(held, _)| *held == inode)
            }
        }
    }

    /// Whether what `path` leads to, which is `file`, was put there by this client.
    pub(crate) fn has(&self, path: &[u8], file: BorrowedFd<'_>, stat: &Stat) -> bool {
        is_temporary(path) || self.contains(id(file, stat), stat)
    }
}

fn id(file: BorrowedFd<'_>, stat: &Stat) -> Option<Id> {
    let id = sys::file_id(file).ok()?;
    let mut hash = blake3::Hasher::new();
    hash.update(&stat.st_dev.to_ne_bytes()).update(&id);
    hash.finalize().as_bytes().first_chunk().copied()
}

impl Session<'_> {
    pub(crate) fn is_drop_box(&self) -> bool {
        self.export.access == Access::WriteOnly
    }

    /// Remembers what this client has put into a drop box.
    pub(crate) fn has_put(&mut self, file: impl AsFd) -> Answer {
        if self.is_drop_box() {
            self.own.insert(file.as_fd())?;
        }
        Ok(())
    }

    /// In a drop box only what this client has put there may be looked at or changed: what `path` leads
    /// to, which is `found`.
    pub(crate) fn must_be_own(&self, path: &[u8], found: impl AsFd, stat: &Stat) -> Answer {
        match self.is_drop_box() && !self.own.has(path, found.as_fd(), stat) {
            true => Err(self.forbidden()),
            false => Ok(()),
        }
    }

    /// The same for what has this name.
    pub(crate) fn name_must_be_own(&self, path: &[u8]) -> Answer {
        match self.is_drop_box() && !self.is_own(path)? {
            true => Err(self.forbidden()),
            false => Ok(()),
        }
    }

    /// Whether this client has put into the drop box what now has this name.
    pub(crate) fn is_own(&self, path: &[u8]) -> Result<bool, Refused> {
        // With one behind it a symlink's name is that of the directory it leads to.
        let end = path.iter().rposition(|byte| *byte != b'/');
        let path = end.map_or(path, |end| &path[..=end]);
        match self.export.place.find(path, false) {
            Ok(found) => Ok(self.own.has(path, found.as_fd(), &fs::fstat(&found)?)),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// The same for a name in a directory that is open.
    pub(crate) fn is_own_in(&self, dir: BorrowedFd<'_>, name: &[u8]) -> bool {
        let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = fs::openat(dir, name, how, Mode::empty());
        found.is_ok_and(|found| {
            let stat = fs::fstat(&found);
            stat.is_ok_and(|stat| self.own.has(name, found.as_fd(), &stat))
        })
    }

    pub(crate) fn forbidden(&self) -> Refused {
        Refused::new(
            StatusCode::PERMISSION_DENIED,
            match self.export.access {
                Access::ReadOnly => "nothing can be changed here: it is served read-only",
                _ => "only new files can be put here: it is a drop box",
            },
        )
    }
}

/// Whether the last component of `path` is a name that longhaul gives a file until it is whole.
fn is_temporary(path: &[u8]) -> bool {
    sftp::is_temp_name(path.rsplit(|byte| *byte == b'/').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::fs::{File, remove_file, write};
    use std::os::fd::AsFd as _;

    use rustix::fs::fstat;

    use super::{DropBoxFiles, id, is_temporary};

    /// Another client's file was taken for one's own, and could be overwritten and removed: it had the inode of
    /// one that was removed.
    #[test]
    fn who_gets_the_inode_of_a_file_does_not_get_its_owner() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        for has_ids in [true, false] {
            let mut own = DropBoxFiles::default();
            for _ in 0..20 {
                write(&path, "mine").expect("ours");
                let file = File::open(&path).expect("ours");
                let stat = fstat(&file).expect("ours");
                let known = id(file.as_fd(), &stat).filter(|_| has_ids);
                assert!(!own.contains(known, &stat));
                own.keep(known, file.as_fd(), &stat).expect("it is kept");
                assert!(own.contains(known, &stat));
                drop(file);
                remove_file(&path).expect("ours");
            }
            assert!(own.held.len() <= super::HELD);
        }
    }

    #[test]
    fn a_temporary_is_known_by_its_name() {
        for name in ["a/.b.c.1111111111.longhaul", ".b.0123456xyz.longhaul"] {
            assert!(is_temporary(name.as_bytes()), "{name}");
        }
        for name in [
            "b.1111111111.longhaul",
            ".b.111111111.longhaul",
            ".b.11111111111.longhaul",
            ".b.111111111A.longhaul",
            "..1111111111.longhaul/x",
            ".1111111111.longhaul",
            ".b.1111111111",
            "",
        ] {
            assert!(!is_temporary(name.as_bytes()), "{name}");
        }
    }
}
