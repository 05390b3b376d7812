use std::io;
use std::os::fd::AsFd;

/// What st_blocks of stat(2) counts.
const STAT_BLOCK: u64 = 512;

/// Whether a file of `size` bytes has holes, of which stat(2) says that it takes so many `blocks`.
pub fn is_sparse(size: u64, blocks: u64) -> bool {
    blocks.saturating_mul(STAT_BLOCK) < size
}

/// Where data of `file` begin at `offset` or behind it; `None` where there is only a hole up to its
/// end. A file system that knows no holes has data everywhere. The file's position moves.
///
/// # Errors
/// Those of lseek(2).
#[cfg(target_os = "linux")]
pub fn next_data(file: impl AsFd, offset: u64) -> io::Result<Option<u64>> {
    use rustix::io::Errno;
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::SPIPE) => Ok(Some(offset)),
        Err(e) => Err(e.into()),
    }
}

/// Where a hole of `file` begins at `offset` or behind it, the one behind its end if there is no
/// other; `None` where nothing is known of holes, or `offset` is behind the end. The file's position
/// moves.
///
/// # Errors
/// Those of lseek(2).
#[cfg(target_os = "linux")]
pub fn next_hole(file: impl AsFd, offset: u64) -> io::Result<Option<u64>> {
    use rustix::io::Errno;
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(offset)) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP | Errno::SPIPE) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Nothing is known of holes here.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub fn next_hole(_: impl AsFd, _: u64) -> io::Result<Option<u64>> {
    Ok(None)
}

/// Nothing is known of holes here.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub fn next_data(_: impl AsFd, offset: u64) -> io::Result<Option<u64>> {
    Ok(Some(offset))
}

/// Makes a hole where the file system has any, without changing the file's length; false where
/// zeros are to be written.
#[cfg(target_os = "linux")]
pub fn punch_hole(file: impl AsFd, offset: u64, len: u64) -> bool {
    use rustix::fs::{FallocateFlags, fallocate};
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, hole, offset, len).is_ok()
}

/// Always false.
#[cfg(not(target_os = "linux"))]
pub fn punch_hole(_: impl AsFd, _: u64, _: u64) -> bool {
    false
}
