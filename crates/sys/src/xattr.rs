use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::io::Errno;

/// File whose extended attributes are read or set.
#[derive(Clone, Copy, Debug)]
pub enum XattrTarget<'a> {
    /// An open file.
    Open(BorrowedFd<'a>),
    /// The target of a path; symlinks are followed.
    Path(&'a Path),
    /// An entry of an open directory; a symlink is not followed.
    At(BorrowedFd<'a>, &'a [u8]),
}

/// Name and value.
type Xattr = (Vec<u8>, Vec<u8>);

/// Size in bytes of the first buffer, which most lists and values fit into.
const USUAL: usize = 1024;
/// XATTR_LIST_MAX and XATTR_SIZE_MAX of linux/limits.h.
const LONGEST: usize = 64 * 1024;

/// Returns the extended attributes whose names pass `wanted`; none if the file system does not
/// support them.
///
/// # Errors
/// Errors of listxattr(2) and getxattr(2).
pub fn read_xattrs(of: XattrTarget<'_>, wanted: impl Fn(&[u8]) -> bool) -> io::Result<Vec<Xattr>> {
    let mut found = Vec::new();
    for name in names(of)?.into_iter().filter(|name| wanted(name)) {
        // An attribute that was removed meanwhile is skipped.
        if let Some(value) = value(of, &name)? {
            found.push((name, value));
        }
    }
    Ok(found)
}

/// Replaces the extended attributes whose names pass `among` by `list`, and removes those that are
/// not in it. An attribute that cannot be set does not stop the others.
///
/// # Errors
/// The first error of listxattr(2), setxattr(2) and removexattr(2).
pub fn replace_xattrs(
    of: XattrTarget<'_>,
    list: &[Xattr],
    among: impl Fn(&[u8]) -> bool,
) -> io::Result<()> {
    let there = names(of)?;
    let mut first = Ok(());
    for name in there.iter().filter(|name| among(name)) {
        if !list.iter().any(|(kept, _)| kept == name) {
            let removed = match call::remove(of, name) {
                Err(call::NONE) => Ok(()),
                done => done,
            };
            let removed = removed.map_err(io::Error::from);
            first = first.and(removed);
        }
    }
    let added = add(of, list, &there);
    first.and(added)
}

/// Sets the extended attributes in `list` and leaves all others unchanged. An attribute that cannot
/// be set does not stop the others.
///
/// # Errors
/// The first error of listxattr(2) and setxattr(2).
pub fn add_xattrs(of: XattrTarget<'_>, list: &[Xattr]) -> io::Result<()> {
    add(of, list, &names(of)?)
}

fn add(of: XattrTarget<'_>, list: &[Xattr], there: &[Vec<u8>]) -> io::Result<()> {
    let mut first = Ok(());
    for (name, wanted) in list {
        let same = there.contains(name)
            && value(of, name).is_ok_and(|there| there.as_ref() == Some(wanted));
        if !same {
            let set = call::set(of, name, wanted).map_err(io::Error::from);
            first = first.and(set);
        }
    }
    first
}

/// Returns the permission bits that a directory's default ACL grants at most to a file created in
/// it; `None` if the directory has no default ACL, so that the umask applies.
pub fn default_acl_bits(of: XattrTarget<'_>) -> Option<u32> {
    /// Entry tags of posix_acl_xattr.h.
    const USER_OBJ: u16 = 0x01;
    const GROUP_OBJ: u16 = 0x04;
    const MASK: u16 = 0x10;
    const OTHER: u16 = 0x20;
    let list = value(of, b"system.posix_acl_default").ok()??;
    let (_, entries) = list.split_first_chunk::<4>()?;
    let bits = |wanted: u16| {
        entries.as_chunks::<8>().0.iter().find_map(|entry| {
            let [tag0, tag1, bits0, bits1, ..] = *entry;
            let bits = u32::from(u16::from_le_bytes([bits0, bits1]));
            (u16::from_le_bytes([tag0, tag1]) == wanted).then_some(bits & 7)
        })
    };
    let group = bits(MASK).or_else(|| bits(GROUP_OBJ));
    Some(bits(USER_OBJ)? << 6 | group? << 3 | bits(OTHER)?)
}

fn names(of: XattrTarget<'_>) -> io::Result<Vec<Vec<u8>>> {
    let all = match whole(|buffer| call::list(of, buffer)) {
        Err(Errno::OPNOTSUPP) => Vec::new(),
        all => all?,
    };
    let names = all.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}

fn value(of: XattrTarget<'_>, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    match whole(|buffer| call::get(of, name, buffer)) {
        Err(call::NONE) => Ok(None),
        value => Ok(Some(value?)),
    }
}

/// Returns the result of `read`, called again with the largest buffer if the first is too short.
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
    use std::ffi::OsStr;
    use std::os::fd::{AsRawFd as _, BorrowedFd};
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::{Path, PathBuf};

    use rustix::fs::{
        XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr, getxattr, lgetxattr, listxattr,
        llistxattr, lremovexattr, lsetxattr, removexattr, setxattr,
    };
    use rustix::io::{Errno, Result};

    use super::XattrTarget;

    /// Error for a missing attribute.
    pub(super) const NONE: Errno = Errno::NODATA;

    /// Returns a path to an entry of an open directory. System calls that take such an entry
    /// (getxattrat(2)) exist only from Linux 6.13 on.
    fn entry(dir: BorrowedFd<'_>, name: &[u8]) -> PathBuf {
        let dir = format!("/proc/self/fd/{}", dir.as_raw_fd());
        Path::new(&dir).join(OsStr::from_bytes(name))
    }

    pub(super) fn list(of: XattrTarget<'_>, buffer: &mut [u8]) -> Result<usize> {
        match of {
            XattrTarget::Open(fd) => flistxattr(fd, buffer),
            XattrTarget::Path(path) => listxattr(path, buffer),
            XattrTarget::At(dir, name) => llistxattr(entry(dir, name), buffer),
        }
    }

    pub(super) fn get(of: XattrTarget<'_>, name: &[u8], buffer: &mut [u8]) -> Result<usize> {
        match of {
            XattrTarget::Open(fd) => fgetxattr(fd, name, buffer),
            XattrTarget::Path(path) => getxattr(path, name, buffer),
            XattrTarget::At(dir, of) => lgetxattr(entry(dir, of), name, buffer),
        }
    }

    pub(super) fn set(of: XattrTarget<'_>, name: &[u8], value: &[u8]) -> Result<()> {
        let flags = XattrFlags::empty();
        match of {
            XattrTarget::Open(fd) => fsetxattr(fd, name, value, flags),
            XattrTarget::Path(path) => setxattr(path, name, value, flags),
            XattrTarget::At(dir, of) => lsetxattr(entry(dir, of), name, value, flags),
        }
    }

    pub(super) fn remove(of: XattrTarget<'_>, name: &[u8]) -> Result<()> {
        match of {
            XattrTarget::Open(fd) => fremovexattr(fd, name),
            XattrTarget::Path(path) => removexattr(path, name),
            XattrTarget::At(dir, of) => lremovexattr(entry(dir, of), name),
        }
    }
}

/// Other systems: extended attributes are not supported.
#[cfg(not(target_os = "linux"))]
mod call {
    use rustix::io::{Errno, Result};

    use super::XattrTarget;

    pub(super) const NONE: Errno = Errno::NOENT;

    pub(super) fn list(_: XattrTarget<'_>, _: &mut [u8]) -> Result<usize> {
        Err(Errno::OPNOTSUPP)
    }

    pub(super) fn get(_: XattrTarget<'_>, _: &[u8], _: &mut [u8]) -> Result<usize> {
        Err(Errno::OPNOTSUPP)
    }

    pub(super) fn set(_: XattrTarget<'_>, _: &[u8], _: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    pub(super) fn remove(_: XattrTarget<'_>, _: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }
}
