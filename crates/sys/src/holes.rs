use std::io;
use std::os::fd::AsFd;

/// Unit of `st_blocks` in bytes (stat(2)).
const STAT_BLOCK: u64 = 512;

/// Returns true if a file of `size` bytes that occupies `blocks` blocks of stat(2) has holes.
pub fn is_sparse(size: u64, blocks: u64) -> bool {
    blocks.saturating_mul(STAT_BLOCK) < size
}

/// Returns the offset of the next data of `file` at or after `offset`; `None` if only a hole
/// follows. On a file system without holes that is `offset`. The call moves the file position.
///
/// # Errors
/// Errors of lseek(2).
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

/// Returns the offset of the next hole of `file` at or after `offset`, which is the end of the file
/// if there is no other; `None` if the file system reports no holes or `offset` is past the end.
/// The call moves the file position.
///
/// # Errors
/// Errors of lseek(2).
#[cfg(target_os = "linux")]
pub fn next_hole(file: impl AsFd, offset: u64) -> io::Result<Option<u64>> {
    use rustix::io::Errno;
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(offset)) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP | Errno::SPIPE) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Always `None`: this system reports no holes.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub fn next_hole(_: impl AsFd, _: u64) -> io::Result<Option<u64>> {
    Ok(None)
}

/// Always `offset`: this system reports no holes.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub fn next_data(_: impl AsFd, offset: u64) -> io::Result<Option<u64>> {
    Ok(Some(offset))
}

/// Makes a hole of `len` bytes without changing the file's length. Returns false if the file system
/// cannot, so that the caller writes zeros.
#[cfg(target_os = "linux")]
pub fn punch_hole(file: impl AsFd, offset: u64, len: u64) -> bool {
    use rustix::fs::{FallocateFlags, fallocate};
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, hole, offset, len).is_ok()
}

/// Always false: this system cannot punch holes.
#[cfg(not(target_os = "linux"))]
pub fn punch_hole(_: impl AsFd, _: u64, _: u64) -> bool {
    false
}
