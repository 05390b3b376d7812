//! Local temporaries that an earlier run has left.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use plan::Keep;
use plan::journal::{Entry, Seen};
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, access, open, openat, statat, unlinkat,
};
use rustix::io::Errno;

use super::Target;
use super::target::{Replaced, mtime};

/// Whether a file belongs to who runs this.
fn is_ours(meta: &fs::Metadata) -> bool {
    meta.uid() == rustix::process::geteuid().as_raw()
}

/// Opens the temporary of an earlier run if it can be gone on with. If it cannot, or its final
/// name is something else now, it is removed and `None` returned.
pub(crate) fn adopt_target(
    target: &Path,
    replace_link: bool,
    keep: Option<&Keep>,
) -> Option<Target> {
    let (keep, left) = keep.and_then(|keep| Some((keep, keep.left.as_ref()?)))?;
    let name = target.file_name()?;
    let path = target.with_file_name(OsStr::from_bytes(&keep.temporary(name.as_bytes(), 0)));
    let replaced = match fs::symlink_metadata(target) {
        Ok(meta) if meta.is_file() => access(target, Access::WRITE_OK)
            .is_ok()
            .then(|| Some(Replaced::of(&meta))),
        Ok(meta) if meta.is_symlink() && replace_link => Some(None),
        Ok(_) => None,
        Err(_) => Some(None),
    };
    let open = || {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = File::from(openat(CWD, &path, flags, Mode::empty()).ok()?);
        let meta = file.metadata().ok().filter(fs::Metadata::is_file)?;
        let seen = Seen {
            size: meta.len(),
            mtime: mtime(&meta),
        };
        // Another name of it would be written as well, and its owner could still write it.
        (left.may_go_on(seen) && meta.nlink() == 1 && is_ours(&meta)).then_some(file)
    };
    match replaced.and_then(|replaced| Some((replaced, open()?))) {
        Some((replaced, file)) => Some(Target::adopted(file, path, target.to_path_buf(), replaced)),
        None => {
            // A file or a link; a directory that somebody put there stays.
            let _ = fs::remove_file(&path);
            None
        }
    }
}

/// Removes the temporaries that an earlier run of the copy to `root` may have left of a file:
/// regular files of this user's with one name, which lie beside `root`, or below it without a
/// symlink on the way.
pub(crate) fn remove_temporaries(root: &Path, entry: &Entry) {
    let target = Path::new(OsStr::from_bytes(&entry.target));
    if let (Ok(dir), Some(name)) = (folder_of(root, target), target.file_name()) {
        for name in Keep::names(name.as_bytes(), entry.tag) {
            remove_own(&dir, OsStr::from_bytes(&name));
        }
    }
    // The command's own target may be a symlink: the temporary lies beside what it leads to.
    if target == root
        && let Some(temp) = &entry.temp
        && let Ok(real) = fs::canonicalize(target)
        && Keep::names(real.as_os_str().as_bytes(), entry.tag).any(|name| name == *temp)
        && let Some(above) = real.parent()
        && let Ok(dir) = open(above, folder_flags(), Mode::empty())
        && let Some(name) = Path::new(OsStr::from_bytes(temp)).file_name()
    {
        remove_own(&dir, name);
    }
}

fn folder_flags() -> OFlags {
    OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC
}

/// The folder of `target`, which is `root` or lies below it; symlinks are followed on the way to
/// `root` alone, as the command names it.
fn folder_of(root: &Path, target: &Path) -> io::Result<OwnedFd> {
    if target == root {
        let above = root.parent().filter(|above| !above.as_os_str().is_empty());
        let above = above.unwrap_or_else(|| Path::new("."));
        return Ok(open(above, folder_flags(), Mode::empty())?);
    }
    let below = target.strip_prefix(root).map_err(|_| Errno::XDEV)?;
    let root = match root.as_os_str().is_empty() {
        true => Path::new("."),
        false => root,
    };
    let mut dir = open(root, folder_flags(), Mode::empty())?;
    for component in below.parent().into_iter().flat_map(Path::components) {
        let Component::Normal(name) = component else {
            return Err(Errno::XDEV.into());
        };
        dir = openat(&dir, name, folder_flags() | OFlags::NOFOLLOW, Mode::empty())?;
    }
    Ok(dir)
}

fn remove_own(dir: &OwnedFd, name: &OsStr) {
    let is_own = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_uid == rustix::process::geteuid().as_raw()
            && stat.st_nlink == 1
    });
    if is_own {
        // Most of them never were.
        let _ = unlinkat(dir, name, AtFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use plan::journal::{Record, State};
    use plan::tagged_name;

    use super::*;

    /// A journal's file below `root`, and whether its temporary is gone after the clearing.
    fn clears(root: &Path, target: &Path, temporary: &Path) -> bool {
        let (mut state, bytes) = (State::default(), |p: &Path| {
            p.as_os_str().as_bytes().to_vec()
        });
        fs::write(temporary, b"precious").unwrap();
        state.apply(Record::Begun {
            id: 0,
            target: bytes(target),
            source: plan::journal::SourceId::default(),
            tag: 7,
        });
        state.apply(Record::Temp {
            id: 0,
            path: bytes(temporary),
        });
        state.confine(&bytes(root));
        state
            .unfinished()
            .for_each(|(_, entry)| remove_temporaries(root, entry));
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
        // A file with another name, beside one of the copy.
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
        fs::hard_link(at("other"), &temp).unwrap();
        assert!(!clears(folder.path(), &at("f"), &temp));
        symlink(at("other"), &temp).unwrap();
        assert!(!clears(folder.path(), &at("f"), &temp));
    }
}
