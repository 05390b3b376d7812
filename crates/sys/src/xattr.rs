use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::io::Errno;

/// Of what attributes are read or set.
#[derive(Clone, Copy, Debug)]
pub enum XattrsOf<'a> {
    /// An open file.
    Open(BorrowedFd<'a>),
    /// What a path leads to, symlinks followed.
    Path(&'a Path),
}

/// Name and value.
type Xattr = (Vec<u8>, Vec<u8>);

/// What most lists and values fit into.
const USUAL: usize = 1024;
/// XATTR_LIST_MAX and XATTR_SIZE_MAX of linux/limits.h.
const LONGEST: usize = 64 * 1024;

/// The extended attributes whose names are `wanted`. None where the file system has none.
///
/// # Errors
/// Those of listxattr(2) and getxattr(2).
pub fn read_xattrs(of: XattrsOf<'_>, wanted: impl Fn(&[u8]) -> bool) -> io::Result<Vec<Xattr>> {
    let mut found = Vec::new();
    for name in names(of)?.into_iter().filter(|name| wanted(name)) {
        // One that is gone meanwhile is not there.
        if let Some(value) = value(of, &name)? {
            found.push((name, value));
        }
    }
    Ok(found)
}

/// Makes `list` what there is of extended attributes whose names are `among`: others of those are
/// removed. One that cannot be set does not keep the rest from being set.
///
/// # Errors
/// The first of listxattr(2), setxattr(2) and removexattr(2).
pub fn replace_xattrs(
    of: XattrsOf<'_>,
    list: &[Xattr],
    among: impl Fn(&[u8]) -> bool,
) -> io::Result<()> {
    let there = names(of)?;
    let mut first = Ok(());
    let mut note = |done: Result<(), Errno>| {
        if let (Err(e), true) = (done, first.is_ok()) {
            first = Err(io::Error::from(e));
        }
    };
    for name in there.iter().filter(|name| among(name)) {
        if !list.iter().any(|(kept, _)| kept == name) {
            note(match call::remove(of, name) {
                Err(call::NONE) => Ok(()),
                done => done,
            });
        }
    }
    for (name, wanted) in list {
        let same = there.contains(name)
            && value(of, name).is_ok_and(|there| there.as_ref() == Some(wanted));
        if !same {
            note(call::set(of, name, wanted));
        }
    }
    first
}

fn names(of: XattrsOf<'_>) -> io::Result<Vec<Vec<u8>>> {
    let all = match whole(|buffer| call::list(of, buffer)) {
        Err(Errno::OPNOTSUPP) => Vec::new(),
        all => all?,
    };
    let names = all.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}

fn value(of: XattrsOf<'_>, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    match whole(|buffer| call::get(of, name, buffer)) {
        Err(call::NONE) => Ok(None),
        value => Ok(Some(value?)),
    }
}

/// What `read` fills a buffer with, which is made larger where it has to be.
fn whole(read: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    for len in [USUAL, LONGEST] {
        let mut buffer = vec![0; len];
        match read(&mut buffer) {
            Err(Errno::RANGE) if len < LONGEST => {}
            len => {
                buffer.truncate(len?);
                return Ok(buffer);
            }
        }
    }
    Err(Errno::RANGE)
}

#[cfg(target_os = "linux")]
mod call {
    use rustix::fs::{
        XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr, getxattr, listxattr,
        removexattr, setxattr,
    };
    use rustix::io::{Errno, Result};

    use super::XattrsOf;

    /// There is no attribute of that name.
    pub(super) const NONE: Errno = Errno::NODATA;

    pub(super) fn list(of: XattrsOf<'_>, buffer: &mut [u8]) -> Result<usize> {
        match of {
            XattrsOf::Open(fd) => flistxattr(fd, buffer),
            XattrsOf::Path(path) => listxattr(path, buffer),
        }
    }

    pub(super) fn get(of: XattrsOf<'_>, name: &[u8], buffer: &mut [u8]) -> Result<usize> {
        match of {
            XattrsOf::Open(fd) => fgetxattr(fd, name, buffer),
            XattrsOf::Path(path) => getxattr(path, name, buffer),
        }
    }

    pub(super) fn set(of: XattrsOf<'_>, name: &[u8], value: &[u8]) -> Result<()> {
        let flags = XattrFlags::empty();
        match of {
            XattrsOf::Open(fd) => fsetxattr(fd, name, value, flags),
            XattrsOf::Path(path) => setxattr(path, name, value, flags),
        }
    }

    pub(super) fn remove(of: XattrsOf<'_>, name: &[u8]) -> Result<()> {
        match of {
            XattrsOf::Open(fd) => fremovexattr(fd, name),
            XattrsOf::Path(path) => removexattr(path, name),
        }
    }
}

/// Nothing is known of them here.
#[cfg(not(target_os = "linux"))]
mod call {
    use rustix::io::{Errno, Result};

    use super::XattrsOf;

    pub(super) const NONE: Errno = Errno::NOENT;

    pub(super) fn list(_: XattrsOf<'_>, _: &mut [u8]) -> Result<usize> {
        Err(Errno::OPNOTSUPP)
    }

    pub(super) fn get(_: XattrsOf<'_>, _: &[u8], _: &mut [u8]) -> Result<usize> {
        Err(Errno::OPNOTSUPP)
    }

    pub(super) fn set(_: XattrsOf<'_>, _: &[u8], _: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    pub(super) fn remove(_: XattrsOf<'_>, _: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
}
