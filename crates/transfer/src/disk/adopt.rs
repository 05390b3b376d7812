//! Local temporaries that an earlier run has left.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use plan::journal::Seen;
use plan::{Keep, LocalPath};
use rustix::fs::{FileType, OFlags};

use super::Target;
use super::directories::{Destination, DirectoryCache, kind_of};
use super::target::{Replaced, mtime};

/// Whether a file belongs to who runs this.
pub(crate) fn is_ours(meta: &fs::Metadata) -> bool {
    meta.uid() == rustix::process::geteuid().as_raw()
}

/// Opens the temporary of an earlier run if it can be gone on with. If it cannot, or its final
/// name is something else now, it is removed and `None` returned.
pub(crate) fn adopt_target(
    directories: &DirectoryCache,
    path: &LocalPath,
    keep: Option<&Keep>,
) -> Option<Target> {
    let (keep, left) = keep.and_then(|keep| Some((keep, keep.left.as_ref()?)))?;
    // A target that is named as a symlink has its temporary beside what that leads to.
    let Ok(Destination::At(target)) = directories.destination(path) else {
        return None;
    };
    let at = target.beside(&keep.temporary(target.name_bytes(), 0));
    let replaced = match target.look() {
        Ok(Some(stat)) => match kind_of(&stat) {
            FileType::RegularFile => Some(Some(Replaced::of(&stat))),
            FileType::Symlink => Some(None),
            _ => None,
        },
        Ok(None) => Some(None),
        Err(_) => None,
    };
    let open = || {
        let file = File::from(at.open(OFlags::WRONLY | OFlags::NONBLOCK, 0).ok()?);
        let meta = file.metadata().ok().filter(fs::Metadata::is_file)?;
        let seen = Seen {
            size: meta.len(),
            mtime: mtime(&meta),
        };
        // Another name of it would be written as well, and its owner could still write it.
        (left.may_go_on(seen) && meta.nlink() == 1 && is_ours(&meta)).then_some(file)
    };
    match replaced.and_then(|replaced| Some((replaced, open()?))) {
        Some((replaced, file)) => Some(Target::adopted(file, at, target, replaced)),
        None => {
            // A file or a link; a directory that somebody put there stays.
            let _ = at.remove();
            // One that was begun before its target became a symlink lies beside that.
            if let Ok(named) = directories.locate(path) {
                let _ = named.beside(at.name_bytes()).remove();
            }
            None
        }
    }
}
