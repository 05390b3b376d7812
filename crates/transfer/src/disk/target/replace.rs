//! Replaces a file by its complete temporary.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::TargetTemporary;
use crate::disk::error::{failed_to, os_words};
use crate::report::EscapedName;

/// Bytes copied at a time.
const PIECE: usize = 1 << 20;

/// A file that could not be replaced and was overwritten instead.
pub(super) struct OverwrittenFile {
    pub file: File,
    /// The reason why the rename failed.
    pub why: String,
}

/// Renames a closed temporary to its final name. If the existing file cannot be replaced (a mount
/// point, or another user's file in a sticky directory) but can be written, copies the contents
/// into it, as scp would.
///
/// # Errors
/// Both rename and overwrite failed; the text has both names and the reason.
pub(super) fn replace(
    temporary: &TargetTemporary,
    size: u64,
) -> io::Result<Option<OverwrittenFile>> {
    let (at, target) = (&temporary.at, &temporary.target);
    let refused = match at.rename(target) {
        Ok(()) => return Ok(None),
        Err(e) => e,
    };
    let why = os_words(&refused.into());
    if temporary.replaces()
        && matches!(refused, Errno::PERM | Errno::ACCESS | Errno::BUSY)
        && let Ok(from) = at.open(OFlags::RDONLY | OFlags::NONBLOCK, 0)
        && let Ok(to) = target.open(OFlags::WRONLY | OFlags::NONBLOCK, 0)
    {
        let file = File::from(to);
        let written = write_over(&from.into(), &file, size);
        written.map_err(|e| failed_to("write into it", &e))?;
        return Ok(Some(OverwrittenFile { file, why }));
    }
    let name = |name: &OsStr| EscapedName::from(Path::new(name));
    let (from, to) = (name(&at.name), name(&target.name));
    let mut words = format!("cannot rename {from} to {to}: {why}");
    if refused == Errno::XDEV {
        words.push_str("; --temp-dir must name a directory on the target's file system");
    }
    Err(io::Error::new(io::Error::from(refused).kind(), words))
}

fn write_over(from: &File, to: &File, size: u64) -> io::Result<()> {
    let (mut bytes, mut at) = (Vec::with_capacity(PIECE), 0);
    loop {
        bytes.clear();
        if sys::append_at(from, &mut bytes, PIECE, at)? == 0 {
            break;
        }
        to.write_all_at(&bytes, at)?;
        at += bytes.len() as u64;
    }
    to.set_len(size)
}
