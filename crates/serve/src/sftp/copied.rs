//! copy-data: copies from one open file to another.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};

use rustix::fs::{self, FileType};
use rustix::io::retry_on_intr;

use super::request_error::{Exhausted, Invalid, RequestError, Unsuitable};
use super::session::RequestResult;

/// Bytes per read of copy-data.
const COPIED_AT_ONCE: usize = 1 << 20;
/// Bytes of the first copy_file_range(2) call; doubled after each quick call, as on file systems
/// that share blocks.
#[cfg(target_os = "linux")]
const LEAST_IN_KERNEL: usize = 4 << 20;
/// Maximum bytes per copy_file_range(2) call.
#[cfg(target_os = "linux")]
const MOST_IN_KERNEL: usize = 1 << 30;
/// Time after which a piece of a copy counts as slow; input from the client is read between pieces.
#[cfg(target_os = "linux")]
const LONG: Duration = Duration::from_millis(5);
/// Largest copy that is carried out inline; it takes no longer than a few WRITEs.
const SHORT: u64 = 4 << 20;

/// An open file, and the offset in it at which a copy begins.
pub(super) struct FilePosition {
    file: Arc<File>,
    offset: u64,
}

impl FilePosition {
    pub(super) fn new(file: Arc<File>, offset: u64) -> Self {
        Self { file, offset }
    }
}

/// True if a copy of `len` bytes, or up to the end if `len` is 0, is too long to be carried out
/// inline.
pub(super) fn is_long(len: u64) -> bool {
    whole(len) > SHORT
}

/// Number of bytes to copy, given that 0 means up to the end.
fn whole(len: u64) -> u64 {
    match len {
        0 => u64::MAX,
        len => len,
    }
}

/// Refuses a copy from anything but a regular file, because a copy of an endless device would never
/// end, and between ranges that overlap.
pub(super) fn check_copy(from: &FilePosition, len: u64, to: &FilePosition) -> RequestResult {
    let (a, b) = (fs::fstat(&*from.file)?, fs::fstat(&*to.file)?);
    if FileType::from_raw_mode(a.st_mode) != FileType::RegularFile {
        return Err(Unsuitable::NotRegular.into());
    }
    let same = (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
    let meet = from.offset < to.offset.saturating_add(whole(len))
        && to.offset < from.offset.saturating_add(whole(len));
    if same && meet {
        return Err(Invalid::Overlap.into());
    }
    Ok(())
}

/// Copies `len` bytes, or up to the end if `len` is 0, while `goes_on` returns true.
pub(super) fn copy(
    from: &FilePosition,
    len: u64,
    to: &FilePosition,
    goes_on: &impl Fn() -> bool,
) -> RequestResult {
    let whole = whole(len);
    let (from, from_offset) = (&*from.file, from.offset);
    let (to, to_offset) = (&*to.file, to.offset);
    // copy_file_range(2) costs nothing on file systems that share blocks, and saves one copy
    // elsewhere.
    let (out, into) = ((from, from_offset), (to, to_offset));
    let mut done = copy_in_kernel(out, whole, into, goes_on);
    let mut buffer = match done < whole {
        true => vec![0; COPIED_AT_ONCE],
        false => Vec::new(),
    };
    while done < whole {
        if !goes_on() {
            return Err(Exhausted::Time.into());
        }
        let most = usize::try_from(whole - done).unwrap_or(usize::MAX);
        let most = most.min(buffer.len());
        let at = from_offset.saturating_add(done);
        let read = retry_on_intr(|| rustix::io::pread(from, &mut buffer[..most], at))?;
        if read == 0 {
            break;
        }
        to.write_all_at(&buffer[..read], to_offset.saturating_add(done))?;
        done += read as u64;
    }
    match len == 0 || done == len {
        true => Ok(()),
        false => Err(RequestError::EndOfFile),
    }
}

/// Copies with copy_file_range(2) until it copies no more or fails; returns the number of bytes.
/// The caller copies the rest and meets the error again, if there is one.
#[cfg(target_os = "linux")]
fn copy_in_kernel(
    (from, from_offset): (&File, u64),
    len: u64,
    (to, to_offset): (&File, u64),
    goes_on: &impl Fn() -> bool,
) -> u64 {
    let (mut done, mut at_once) = (0, LEAST_IN_KERNEL);
    while done < len && goes_on() {
        let (mut a, mut b) = (
            from_offset.saturating_add(done),
            to_offset.saturating_add(done),
        );
        let most = usize::try_from(len - done).unwrap_or(usize::MAX);
        let begun = Instant::now();
        match fs::copy_file_range(from, Some(&mut a), to, Some(&mut b), most.min(at_once)) {
            Ok(0) | Err(_) => break,
            Ok(n) => done += n as u64,
        }
        at_once = match begun.elapsed() < LONG {
            true => MOST_IN_KERNEL.min(at_once * 2),
            false => LEAST_IN_KERNEL,
        };
    }
    done
}

#[cfg(not(target_os = "linux"))]
fn copy_in_kernel(_: (&File, u64), _: u64, _: (&File, u64), _: &impl Fn() -> bool) -> u64 {
    0
}
