//! Resumes or removes local temporaries of an earlier run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{Dir, FileType, OFlags, fstat};
use schedule::journal::ExistingFile;
use schedule::{LocalTargetPath, ResumeData};

use super::LocalTarget;
use super::directories::{
    NameInDirectory, OpenDirectory, OpenDirectoryCache, WriteDestination, kind_of,
};
use super::target::{ReplacedAttributes, mtime};

/// True if the file belongs to the effective user.
fn is_ours(meta: &fs::Metadata) -> bool {
    meta.uid() == rustix::process::geteuid().as_raw()
}

/// Opens the temporary of an earlier run if it can be continued. Otherwise, or if the final name is
/// now a directory or a special file, removes the temporary and returns `None`.
pub(crate) fn adopt_target(
    directories: &OpenDirectoryCache,
    path: &LocalTargetPath,
    keep: Option<&ResumeData>,
) -> Option<LocalTarget> {
    let (keep, left) = keep.and_then(|keep| Some((keep, keep.left.as_ref()?)))?;
    // If the target is a symlink that the user named, the temporary lies beside the symlink's
    // destination.
    let Ok(WriteDestination::At(target)) = directories.destination(path) else {
        return None;
    };
    let name = keep.temporary(target.name_bytes(), 0);
    let at = directories.temporary(&target, &name).ok()?;
    let replaced = match target.look() {
        Ok(Some(stat)) => match kind_of(&stat) {
            FileType::RegularFile => Some(Some(ReplacedAttributes::of(&stat))),
            FileType::Symlink => Some(None),
            _ => None,
        },
        Ok(None) => Some(None),
        Err(_) => None,
    };
    let open = || {
        let file = File::from(at.open(OFlags::WRONLY | OFlags::NONBLOCK, 0).ok()?);
        let meta = file.metadata().ok().filter(fs::Metadata::is_file)?;
        let seen = ExistingFile {
            size: meta.len(),
            mtime: mtime(&meta),
        };
        // A second hard link would be written too, and another owner could still write the file.
        (left.may_go_on(seen) && meta.nlink() == 1 && is_ours(&meta)).then_some(file)
    };
    match replaced.and_then(|replaced| Some((replaced, open()?))) {
        Some((replaced, file)) => Some(LocalTarget::adopted(file, at, target, replaced)),
        // Other processes write it.
        None if keep.shared.is_some() => None,
        None => {
            // Removes a file or a symlink; a directory of that name stays.
            let _ = at.remove();
            // A temporary from before the target became a symlink lies beside the symlink.
            if let Ok(named) = directories.locate(path) {
                let _ = named.beside(at.name_bytes()).remove();
            }
            None
        }
    }
}

/// Removes temporaries that an earlier run with this tag may have left for the file at `path`:
/// regular files of this user with a single hard link. They lie beside the file, or beside the
/// destination of a symlink that the command names.
pub(crate) fn remove_temporaries(
    directories: &OpenDirectoryCache,
    path: &LocalTargetPath,
    tag: u64,
) {
    let Ok(WriteDestination::At(target)) = directories.destination(path) else {
        return;
    };
    for name in ResumeData::names(target.name_bytes(), tag) {
        if let Ok(at) = directories.temporary(&target, &name) {
            remove_own(&at);
        }
    }
}

/// Removes the temporaries of many files as [`remove_temporaries`] does, and reads each directory
/// once: after 200,000 files that could not be created, an interrupted copy took 23 s to look for
/// all names that their temporaries might have.
pub(crate) struct TemporaryFileSweep<'a> {
    directories: &'a OpenDirectoryCache,
    /// Names of temporaries in each directory, by device and inode.
    found: BTreeMap<(u64, u64), BTreeSet<Vec<u8>>>,
}

impl<'a> TemporaryFileSweep<'a> {
    pub(crate) fn new(directories: &'a OpenDirectoryCache) -> Self {
        Self {
            directories,
            found: BTreeMap::new(),
        }
    }

    /// Removes the temporaries of the file at `path`.
    pub(crate) fn remove(&mut self, path: &LocalTargetPath, tag: u64) {
        let Ok(WriteDestination::At(target)) = self.directories.destination(path) else {
            return;
        };
        let Ok(at) = self.directories.temporary(&target, target.name_bytes()) else {
            return;
        };
        let Ok(stat) = fstat(&at.dir) else { return };
        let found = self
            .found
            .entry((stat.st_dev, stat.st_ino))
            .or_insert_with(|| temporaries_in(&at.dir).unwrap_or_default());
        if found.is_empty() {
            return;
        }
        for name in ResumeData::names(target.name_bytes(), tag) {
            if found.remove(&name) {
                remove_own(&at.beside(&name));
            }
        }
    }
}

/// Returns all names in a directory that are names of temporaries.
fn temporaries_in(dir: &OpenDirectory) -> io::Result<BTreeSet<Vec<u8>>> {
    let mut found = BTreeSet::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if sftp::final_name_in(&name).is_some() {
            found.insert(name);
        }
    }
    Ok(found)
}

fn remove_own(at: &NameInDirectory) {
    let is_own = at.look().is_ok_and(|found| {
        found.is_some_and(|stat| {
            kind_of(&stat) == FileType::RegularFile
                && stat.st_uid == rustix::process::geteuid().as_raw()
                && stat.st_nlink == 1
        })
    });
    if is_own {
        // Most of these names never existed.
        let _ = at.remove();
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use schedule::journal::{JournalRecord, JournalState};
    use schedule::tagged_name;

    use super::*;

    /// Runs the removal for a journal with `target` below `root`; true if `temporary` is gone
    /// afterwards.
    fn clears(root: &Path, target: &Path, temporary: &Path) -> bool {
        let clears = |sweeps| clears_by(sweeps, root, target, temporary);
        let one = clears(false);
        assert_eq!(clears(true), one);
        one
    }

    fn clears_by(sweeps: bool, root: &Path, target: &Path, temporary: &Path) -> bool {
        let (mut state, bytes) = (JournalState::default(), |p: &Path| {
            p.as_os_str().as_bytes().to_vec()
        });
        fs::write(temporary, b"precious").unwrap();
        state.apply(JournalRecord::Begun {
            id: 0,
            target: bytes(target),
            source: schedule::journal::SourceFileStamp::default(),
            tag: 7,
        });
        state.apply(JournalRecord::Temp {
            id: 0,
            path: bytes(temporary),
        });
        state.confine(&bytes(root));
        let directories = OpenDirectoryCache::default();
        let mut sweep = TemporaryFileSweep::new(&directories);
        for (_, entry) in state.unfinished() {
            let target = Path::new(OsStr::from_bytes(&entry.target));
            let below = target.strip_prefix(root).expect("confined to the root");
            let path = LocalTargetPath::beneath(root, below, false);
            match sweeps {
                true => sweep.remove(&path, entry.tag),
                false => remove_temporaries(&directories, &path, entry.tag),
            }
        }
        let stays = temporary.exists();
        let _ = fs::remove_file(temporary);
        !stays
    }

    fn temporary(target: &Path) -> std::path::PathBuf {
        let name = tagged_name(target.as_os_str().as_bytes(), 7);
        OsStr::from_bytes(&name).into()
    }

    #[test]
    fn temporaries_of_a_copy_are_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for dir in ["root/sub", "outside/sub"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        symlink(at("outside"), at("root/link")).unwrap();
        let root = at("root");
        for below in ["root/f", "root/sub/f", "root"] {
            assert!(clears(&root, &at(below), &temporary(&at(below))), "{below}");
        }
        for other in [
            "root/link/f",
            "root/link/sub/f",
            "outside/f",
            "root/../outside/f",
        ] {
            let lies = at(&other.replace("root/link", "outside"));
            assert!(!clears(&root, &at(other), &temporary(&lies)), "{other}");
        }
        // A file with another name beside a file of the copy.
        assert!(!clears(&root, &at("root/f"), &at("root/precious")));
        assert!(!clears(&root, &at("root/f"), &temporary(&at("outside/f"))));
    }

    #[test]
    fn beside_what_a_target_leads_to_its_temporary_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
        fs::create_dir(at("elsewhere")).unwrap();
        fs::write(at("elsewhere/real"), b"old").unwrap();
        symlink("elsewhere/real", at("link")).unwrap();
        assert!(clears(
            &at("link"),
            &at("link"),
            &temporary(&at("elsewhere/real"))
        ));
        assert!(!clears(
            &at("link"),
            &at("link"),
            &temporary(&at("elsewhere/other"))
        ));
        assert!(!clears(&at("link"), &at("link"), &at("elsewhere/real")));
    }

    #[test]
    fn other_names_and_other_kinds_stay() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let temp = temporary(&at("f"));
        fs::write(at("other"), b"precious").unwrap();
        for sweeps in [false, true] {
            fs::hard_link(at("other"), &temp).unwrap();
            assert!(!clears_by(sweeps, folder.path(), &at("f"), &temp));
            symlink(at("other"), &temp).unwrap();
            assert!(!clears_by(sweeps, folder.path(), &at("f"), &temp));
        }
    }
}
