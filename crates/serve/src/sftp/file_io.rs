//! System calls that open, read and write files for requests.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};

use rustix::fs::OFlags;
use rustix::io::{Errno, retry_on_intr};
use sftp::OpenFlags;

/// Reads into `slices` up to the end of the file. A short read is not an error: clients request the
/// rest again.
pub(super) fn read_at(
    file: &File,
    slices: &mut [IoSliceMut<'_>],
    offset: u64,
) -> Result<usize, Errno> {
    retry_on_intr(|| rustix::io::preadv(file, slices, offset))
}

/// Writes all of `slices`, at the end of the file if `offset` is `None`; returns the number of
/// bytes.
pub(super) fn write_at(
    file: &File,
    mut slices: &mut [IoSlice<'_>],
    offset: Option<u64>,
) -> Result<u64, Errno> {
    let mut done = 0;
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        let some = &slices[..slices.len().min(sys::IOV_MAX)];
        let n = retry_on_intr(|| match offset {
            Some(offset) => rustix::io::pwritev(file, some, offset.saturating_add(done)),
            None => rustix::io::writev(file, some),
        })?;
        if n == 0 {
            return Err(Errno::IO);
        }
        done += n as u64;
        IoSlice::advance_slices(&mut slices, n);
    }
    Ok(done)
}

/// Flags of open(2) for those of OPEN.
pub(super) fn open_flags(flags: OpenFlags) -> OFlags {
    let has = |flag| flags.contains(flag);
    let mut how = match (has(OpenFlags::READ), has(OpenFlags::WRITE)) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    let more = [
        (OpenFlags::APPEND, OFlags::APPEND),
        (OpenFlags::CREAT, OFlags::CREATE),
        (OpenFlags::TRUNC, OFlags::TRUNC),
        (OpenFlags::EXCL, OFlags::EXCL),
    ];
    for (asked, flag) in more {
        if has(asked) {
            how |= flag;
        }
    }
    // A terminal that a client opens must not become this process's controlling terminal.
    how | OFlags::NOCTTY
}
