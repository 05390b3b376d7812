//! Sets attributes: SETSTAT, FSETSTAT and lsetstat@openssh.com.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, fstat};
use rustix::io::{Errno, Result};
use sftp::Attrs;

use crate::beneath::proc_name;

/// Mode bits that a client may set.
const SETTABLE: u32 = 0o7777;

/// Sets attributes of an open file. The owner comes before the mode, because chown(2) clears setuid
/// and setgid.
pub(crate) fn set_open(file: &File, attrs: &Attrs) -> Result<()> {
    last_failure([
        attrs.size.map(|size| fs::ftruncate(file, size)),
        owner(attrs).map(|(user, group)| fs::fchown(file, user, group)),
        mode(attrs).map(|mode| fs::fchmod(file, mode)),
        times(attrs).map(|times| fs::futimens(file, &times)),
    ])
}

/// Sets attributes of the file of `found`, an O_PATH descriptor, which may be a symlink.
pub(crate) fn set_found(found: &OwnedFd, attrs: &Attrs) -> Result<()> {
    let symlink = FileType::from_raw_mode(fstat(found)?.st_mode) == FileType::Symlink;
    // For a symlink, the path in /proc would lead to its target.
    let own_name = || match symlink {
        true => Err(Errno::OPNOTSUPP),
        false => Ok(proc_name(found)),
    };
    let itself = AtFlags::EMPTY_PATH;
    last_failure([
        attrs.size.map(|size| {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            fs::ftruncate(fs::open(own_name()?, flags, Mode::empty())?, size)
        }),
        owner(attrs).map(|(user, group)| fs::chownat(found, "", user, group, itself)),
        mode(attrs).map(|mode| fs::chmod(own_name()?, mode)),
        times(attrs).map(|times| fs::utimensat(found, "", &times, itself)),
    ])
}

/// Returns the last failure; all attributes are attempted.
fn last_failure(done: [Option<Result<()>>; 4]) -> Result<()> {
    let mut done = done.into_iter().flatten();
    done.rfind(Result::is_err).unwrap_or(Ok(()))
}

fn mode(attrs: &Attrs) -> Option<Mode> {
    let bits = attrs.permissions?;
    Some(Mode::from_raw_mode(bits & SETTABLE))
}

fn owner(attrs: &Attrs) -> Option<(Option<Uid>, Option<Gid>)> {
    let (user, group) = attrs.owner?;
    Some(sys::chown_ids(user, group))
}

fn times(attrs: &Attrs) -> Option<Timestamps> {
    let (access, modification) = attrs.times?;
    let at = |seconds: u32, nanoseconds: u32| Timespec {
        tv_sec: seconds.into(),
        tv_nsec: nanoseconds.into(),
    };
    let (a, m) = attrs.nanoseconds.unwrap_or_default();
    Some(Timestamps {
        last_access: at(access, a),
        last_modification: at(modification, m),
    })
}
