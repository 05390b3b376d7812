//! How a temporary that is complete takes the place of the file that it was written beside.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::error::{failed_to, os_words};
use super::target::Temporary;
use crate::report::Name;

/// Copied at once.
const PIECE: usize = 1 << 20;

/// A file that could not be replaced and has the new contents all the same.
pub(super) struct WrittenOver {
    pub(super) file: File,
    /// Why it was not replaced.
    pub(super) why: String,
}

/// Gives a temporary that is closed its final name. Where the file of that name cannot be replaced (a
/// mount point, somebody else's file in a sticky directory) but may be written, the contents are
/// copied into it, as scp would have written them.
///
/// # Errors
/// Neither can be done: both names and the reason.
pub(super) fn replace(temporary: &Temporary, size: u64) -> io::Result<Option<WrittenOver>> {
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
        return Ok(Some(WrittenOver { file, why }));
    }
    let name = |name: &OsStr| Name::from(Path::new(name));
    let (from, to) = (name(&at.name), name(&target.name));
    let words = format!("cannot rename {from} to {to}: {why}");
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
