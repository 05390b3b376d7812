//! Restricts clients of a drop box to the files that they have put there themselves.
//!
//! A client with several channels has a separate server on each, and they share no state, but one
//! large file is written through all of them. Therefore a temporary's name also proves ownership:
//! nobody can list it, and its 50 random bits cannot be guessed.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{self, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::beneath::proc_name;

/// Files that a client has put into a drop box, at least the last [`KEPT`], which it may still
/// rename and remove. They are not identified by device and inode: after a removal another client's
/// new file may get the same inode.
#[derive(Debug, Default)]
pub(super) struct DropBoxFiles {
    recent: BTreeSet<FileIdHash>,
    before: BTreeSet<FileIdHash>,
    /// The last files, kept open on file systems without such IDs, since the inode of an open file
    /// is not reused.
    held: VecDeque<((u64, u64), OwnedFd)>,
}

/// Hash of [`sys::file_id`] and the device, long enough to tell files apart.
type FileIdHash = [u8; 16];

/// Number of IDs per generation: a client may put any number of files there, but works on few at a
/// time.
const KEPT: usize = 1 << 16;
/// Maximum number of files that are kept open.
const HELD: usize = 64;

impl DropBoxFiles {
    /// Remembers a file that the client has created.
    pub(super) fn insert(&mut self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        let stat = fs::fstat(file)?;
        self.keep(id(file, &stat), file, &stat)
    }

    fn keep(
        &mut self,
        id: Option<FileIdHash>,
        file: BorrowedFd<'_>,
        stat: &Stat,
    ) -> Result<(), Errno> {
        match id {
            Some(id) => {
                if self.recent.len() >= KEPT {
                    self.before = std::mem::take(&mut self.recent);
                }
                self.recent.insert(id);
            }
            None => {
                self.held.truncate(HELD - 1);
                // O_PATH: a descriptor open for writing would keep the file from being executed.
                let how = OFlags::PATH | OFlags::CLOEXEC;
                let file = fs::open(proc_name(file), how, Mode::empty())?;
                self.held.push_front(((stat.st_dev, stat.st_ino), file));
            }
        }
        Ok(())
    }

    fn contains(&self, id: Option<FileIdHash>, stat: &Stat) -> bool {
        match id {
            Some(id) => self.recent.contains(&id) || self.before.contains(&id),
            None => {
                let inode = (stat.st_dev, stat.st_ino);
                self.held.iter().any(|(held, _)| *held == inode)
            }
        }
    }

    /// True if this client has put `file`, to which `path` leads, into the drop box.
    pub(super) fn has(&self, path: &[u8], file: BorrowedFd<'_>, stat: &Stat) -> bool {
        is_temporary(path) || self.contains(id(file, stat), stat)
    }
}

fn id(file: BorrowedFd<'_>, stat: &Stat) -> Option<FileIdHash> {
    let id = sys::file_id(file).ok()?;
    let mut hash = blake3::Hasher::new();
    hash.update(&stat.st_dev.to_ne_bytes()).update(&id);
    hash.finalize().as_bytes().first_chunk().copied()
}

/// True if the last component of `path` has the form of a temporary's name.
fn is_temporary(path: &[u8]) -> bool {
    sftp::is_temp_name(path.rsplit(|byte| *byte == b'/').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::fs::{File, remove_file, write};
    use std::os::fd::AsFd as _;

    use rustix::fs::fstat;

    use super::{DropBoxFiles, id, is_temporary};

    /// Bug: another client's file was taken for the client's own, and could be overwritten and
    /// removed, because it had the inode of a removed file.
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
