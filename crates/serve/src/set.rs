//! SETSTAT and its kin.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, fstat};
use rustix::io::{Errno, Result};
use sftp::Attrs;

use crate::beneath::proc_name;

/// Bits of a mode that a client may set.
const SETTABLE: u32 = 0o7777;

/// Sets them on an open file, in sftp-server's order; what fails does not keep the rest from
/// being set, and the last failure is told.
pub(crate) fn set_open(file: &File, attrs: &Attrs) -> Result<()> {
    let mut result = Ok(());
    let mut note = |done: Result<()>| {
        if done.is_err() {
            result = done;
        }
    };
    if let Some(size) = attrs.size {
        note(fs::ftruncate(file, size));
    }
    if let Some(mode) = attrs.permissions {
        note(fs::fchmod(file, Mode::from_raw_mode(mode & SETTABLE)));
    }
    if let Some(times) = attrs.times {
        note(fs::futimens(file, &timestamps(times)));
    }
    if let Some((user, group)) = attrs.owner {
        note(fs::fchown(
            file,
            Some(Uid::from_raw(user)),
            Some(Gid::from_raw(group)),
        ));
    }
    result
}

/// The same for what `found` (an O_PATH descriptor) stands for, a symlink too.
pub(crate) fn set_found(found: &OwnedFd, attrs: &Attrs) -> Result<()> {
    let mut result = Ok(());
    let mut note = |done: Result<()>| {
        if done.is_err() {
            result = done;
        }
    };
    let symlink = FileType::from_raw_mode(fstat(found)?.st_mode) == FileType::Symlink;
    // Of a symlink the path in /proc would lead to where it points.
    let own_name = || match symlink {
        true => Err(Errno::OPNOTSUPP),
        false => Ok(proc_name(found)),
    };
    if let Some(size) = attrs.size {
        let cut = own_name().and_then(|name| {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            fs::ftruncate(fs::open(name, flags, Mode::empty())?, size)
        });
        note(cut);
    }
    if let Some(mode) = attrs.permissions {
        let mode = Mode::from_raw_mode(mode & SETTABLE);
        note(own_name().and_then(|name| fs::chmod(name, mode)));
    }
    if let Some(times) = attrs.times {
        let times = timestamps(times);
        note(fs::utimensat(
            found.as_fd(),
            "",
            &times,
            AtFlags::EMPTY_PATH,
        ));
    }
    if let Some((user, group)) = attrs.owner {
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        let flags = AtFlags::EMPTY_PATH;
        note(fs::chownat(
            found.as_fd(),
            "",
            Some(user),
            Some(group),
            flags,
        ));
    }
    result
}

fn timestamps((access, modification): (u32, u32)) -> Timestamps {
    let at = |seconds: u32| Timespec {
        tv_sec: seconds.into(),
        tv_nsec: 0,
    };
    Timestamps {
        last_access: at(access),
        last_modification: at(modification),
    }
}
