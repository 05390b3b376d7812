//! Local temporaries that an earlier run has left.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use plan::Keep;
use plan::journal::Seen;
use rustix::fs::{Access, CWD, Mode, OFlags, access, openat};

use super::Target;
use super::target::{Replaced, mtime};

/// Whether a file belongs to who runs this.
pub(crate) fn is_ours(meta: &fs::Metadata) -> bool {
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
