#![allow(
    unsafe_code,
    reason = "the pages of a file are memory of this process here: who makes a file shorter takes them away, \
              and who writes to it changes them"
)]
//! Sends file data straight from the page cache.
//!
//! Reading a file and writing the data to a socket copies it twice. write(2) from mapped pages
//! copies it once, if no code has to look at the data. For a sealed packet the cipher reads the
//! mapped pages and writes its output into the packet, which also saves one copy.

use std::any::Any;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Weak};

use libc::c_void;
use rustix::fs::{FileType, Stat, fstat};
use rustix::io::{Errno, retry_on_intr};
#[cfg(target_os = "linux")]
use rustix::{
    fs::sendfile,
    net::{SendAncillaryBuffer, SendFlags, sendmsg},
};
use wire::{ExternalPayloadSource, OutputPart, PayloadBlock};

use crate::holes::is_sparse;
use crate::sigbus::{LEN, SigbusGuard};

/// Bytes between the starts of two windows, which are multiples of it. Mapped pages count as memory
/// of this process, and mapping 4 MiB costs little compared with moving them.
const WINDOW: usize = 4 << 20;
/// Bytes that a window overlaps the next one, so that few reads need two windows.
const OVERLAP: usize = LEN - WINDOW;
/// Shortest payload in bytes that is mapped; copying less is cheaper than mapping it.
const LEAST: usize = 64 << 10;
/// Number of windows kept: the number of positions that are read concurrently.
const WINDOWS: usize = 2;
/// Maximum number of slices for one readv or writev and their variants with an offset (Linux and
/// the BSDs).
pub const IOV_MAX: usize = 1024;

/// Mapped part of a file, read by the kernel or by the borrower it is lent to.
#[derive(Debug)]
pub(crate) struct MappedRange {
    /// Start of [`LEN`] mapped bytes.
    start: NonNull<c_void>,
    /// SIGBUS guard; without one, only the kernel reads the mapping.
    watched: Option<SigbusGuard>,
    file: Arc<File>,
    /// Offset of the mapping in the file.
    offset: u64,
    /// True if the file system is in memory, so that all pages are resident.
    always: bool,
}

// SAFETY: no code writes at `start`, and a mapping belongs to no thread.
unsafe impl Send for MappedRange {}
// SAFETY: no code writes at `start`; a shared mapping is only read.
unsafe impl Sync for MappedRange {}

impl MappedRange {
    fn new(file: &Arc<File>, always: bool, offset: u64) -> io::Result<Self> {
        let place = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        let fd = file.as_raw_fd();
        // SAFETY: the kernel chooses the address, so the call replaces no mapping of this process.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                LEN,
                libc::PROT_READ,
                libc::MAP_SHARED,
                fd,
                place,
            )
        };
        let start = NonNull::new(start).filter(|start| start.as_ptr() != libc::MAP_FAILED);
        let start = start.ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            watched: SigbusGuard::new(start.as_ptr() as usize),
            start,
            file: Arc::clone(file),
            offset,
            always,
        })
    }

    /// Returns the `len` bytes at offset `at` of the mapping as an iovec for the kernel.
    fn slice(&self, at: usize, len: usize) -> io::Result<libc::iovec> {
        let fits = at.checked_add(len).is_some_and(|end| end <= LEN);
        if !fits {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let start = self.start.as_ptr().cast::<u8>().wrapping_add(at);
        Ok(libc::iovec {
            iov_base: start.cast(),
            iov_len: len,
        })
    }

    /// Returns true if a page was read after the file had been truncated.
    fn is_truncated(&self) -> bool {
        self.watched.as_ref().is_some_and(SigbusGuard::is_truncated)
    }

    /// Returns true if the file still has at least `end` bytes after the start of this mapping.
    fn reaches(&self, end: usize) -> bool {
        let end = self.offset.saturating_add(end as u64);
        fstat(&*self.file).is_ok_and(|stat| u64::try_from(stat.st_size).is_ok_and(|s| s >= end))
    }

    /// Returns the error for a file that became shorter or whose pages cannot be read.
    fn shorter(&self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, self.missed())
    }

    /// Returns true if the `len` bytes at `at` can be read without waiting for the disk
    /// (mincore(2)).
    fn is_resident(&self, at: usize, len: usize) -> bool {
        let page = rustix::param::page_size();
        let from = at - at % page;
        let Ok(slice) = self.slice(from, at + len - from) else {
            return false;
        };
        let mut pages = vec![0_u8; slice.iov_len.div_ceil(page)];
        // SAFETY: the range is mapped, and `pages` has one byte for each page of it.
        let asked =
            unsafe { libc::mincore(slice.iov_base, slice.iov_len, pages.as_mut_ptr().cast()) };
        asked == 0 && pages.iter().all(|page| page & 1 == 1)
    }
}

impl Drop for MappedRange {
    fn drop(&mut self) {
        // Another mapping may take this address next, so the SIGBUS guard ends first.
        self.watched = None;
        // SAFETY: `new` mapped this range, and every writer that uses it borrows `self`.
        unsafe { libc::munmap(self.start.as_ptr(), LEN) };
    }
}

impl ExternalPayloadSource for MappedRange {
    fn copy(&self, at: usize, to: &mut [u8]) -> bool {
        self.file.read_exact_at(to, self.offset + at as u64).is_ok()
    }

    fn lend(&self, at: usize, len: usize, more: usize, to: &mut dyn FnMut(&[u8])) -> bool {
        let end = at + len + more;
        let (Some(watched), Ok(slice)) = (&self.watched, self.slice(at, len + more)) else {
            return false;
        };
        // No page past the last page of the file may be read.
        let page = rustix::param::page_size();
        let last = end.saturating_sub(1) / page * page;
        if end == 0 || watched.is_truncated() || !self.reaches((at + len).max(last + 1)) {
            return false;
        }
        // SAFETY: the range stays mapped as long as `self` lives, and if the file is truncated
        // meanwhile `watched` maps zeros there. Other processes may write to the file: the borrower
        // passes the slice to a function of the cipher library, which is opaque to the compiler,
        // reads each byte once and accepts any byte.
        to(unsafe { std::slice::from_raw_parts(slice.iov_base.cast(), len + more) });
        // Truncated data within the file's last page reads as zeros without a signal.
        !watched.is_truncated() && self.reaches(at + len)
    }

    fn missed(&self) -> String {
        let link = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let name = std::fs::read_link(link)
            .map_or_else(|_| "a file".to_owned(), |path| path.display().to_string());
        format!("{name} became shorter, or could not be read, during the copy")
    }
}

/// Mapped windows of the files of one sender.
#[derive(Debug, Default)]
pub struct MappedFileWindows {
    /// Windows kept for reuse, most recently mapped first.
    kept: VecDeque<Arc<MappedRange>>,
    /// Windows that are no longer kept but still referenced by packets to be sent.
    others: Vec<Weak<MappedRange>>,
}

impl MappedFileWindows {
    /// Makes `block` borrow the `len` bytes at `offset` of `file` from the page cache. Returns
    /// false if borrowing is not allowed, if the bytes are not all in memory, or if they are so few
    /// that reading them costs less.
    pub fn lay(
        &mut self,
        file: &Arc<File>,
        offset: u64,
        len: usize,
        block: &mut PayloadBlock,
    ) -> bool {
        if !(LEAST..=OVERLAP).contains(&len) || !block.may_lie_outside() {
            return false;
        }
        let Some((mapped, at)) = self.find(file, offset, len) else {
            return false;
        };
        let mapped: Arc<dyn ExternalPayloadSource> = mapped;
        block.lie_outside(&mapped, at, len);
        true
    }

    /// Returns the window that holds the `len` bytes at `offset` of `file` and their offset in it;
    /// `None` if the file is too short or the bytes are not in memory.
    fn find(
        &mut self,
        file: &Arc<File>,
        offset: u64,
        len: usize,
    ) -> Option<(Arc<MappedRange>, usize)> {
        let stat = fstat(file).ok()?;
        let size = u64::try_from(stat.st_size).ok()?;
        // Mapping a hole of tmpfs would allocate its pages.
        let sparse = is_sparse(size, u64::try_from(stat.st_blocks).ok()?);
        if sparse || offset.checked_add(len as u64)? > size {
            return None;
        }
        let begin = offset - offset % WINDOW as u64;
        let at = usize::try_from(offset - begin).ok()?;
        let known = |kept: &&Arc<MappedRange>| {
            kept.offset == begin && Arc::ptr_eq(&kept.file, file) && !kept.is_truncated()
        };
        let mapped = match self.kept.iter().find(known) {
            Some(mapped) => Arc::clone(mapped),
            None => self.map(file, &stat, begin)?,
        };
        (mapped.always || mapped.is_resident(at, len)).then_some((mapped, at))
    }

    /// Drops the windows of `file`, which is about to be closed.
    pub fn forget(&mut self, file: &Arc<File>) {
        let of_it = |kept: &Arc<MappedRange>| Arc::ptr_eq(&kept.file, file);
        while let Some(at) = self.kept.iter().position(of_it) {
            self.drop_at(at);
        }
    }

    /// Drops all windows.
    pub fn trim(&mut self) {
        while !self.kept.is_empty() {
            self.drop_at(0);
        }
    }

    /// Returns true if packets still refer to a window. Their content is that of the file when they
    /// are sent.
    pub fn are_busy(&self) -> bool {
        // One reference is the one in `kept`.
        let kept = self.kept.iter().any(|kept| Arc::strong_count(kept) > 1);
        kept || self.others.iter().any(|other| other.strong_count() > 0)
    }

    fn drop_at(&mut self, at: usize) {
        self.others.retain(|other| other.strong_count() > 0);
        if let Some(dropped) = self.kept.remove(at)
            && Arc::strong_count(&dropped) > 1
        {
            self.others.push(Arc::downgrade(&dropped));
        }
    }

    fn map(&mut self, file: &Arc<File>, stat: &Stat, begin: u64) -> Option<Arc<MappedRange>> {
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        // For files of another user mincore(2) reports every page as resident, since Linux 5.2.
        let told = rustix::process::geteuid().as_raw() == stat.st_uid;
        let always = is_in_memory(file);
        if !always && !told {
            return None;
        }
        let mapped = MappedRange::new(file, always, begin);
        let mapped = Arc::new(mapped.ok()?);
        while self.kept.len() >= WINDOWS {
            self.drop_at(WINDOWS - 1);
        }
        self.kept.push_front(Arc::clone(&mapped));
        Some(mapped)
    }
}

/// TMPFS_MAGIC of linux/magic.h, the type of a tmpfs for statfs(2).
#[cfg(target_os = "linux")]
const TMPFS: u64 = 0x0102_1994;

/// Returns true if `file` is on a file system that is entirely in memory (tmpfs).
#[cfg(target_os = "linux")]
pub fn is_in_memory(file: impl AsFd) -> bool {
    let fs = rustix::fs::fstatfs(file);
    fs.is_ok_and(|fs| u64::try_from(fs.f_type).is_ok_and(|kind| kind == TMPFS))
}

/// Always false: this system has no tmpfs that can be recognized.
#[cfg(not(target_os = "linux"))]
pub fn is_in_memory(_: impl AsFd) -> bool {
    false
}

/// Writes `parts` to `fd` up to and including the first mapped one; returns the number of bytes
/// written.
///
/// Later parts need another call: if the file was truncated meanwhile, the packet that carries it
/// has not left as a whole, so the receiver cannot use it.
///
/// # Errors
/// Errors of writev(2); `InvalidData` if a file became shorter than when its part was made. The
/// connection is then unusable, since it is unknown what was written.
pub fn write_parts<'a>(
    fd: impl AsFd,
    parts: impl Iterator<Item = OutputPart<'a>>,
) -> io::Result<usize> {
    let (mut slices, mut before, mut last) = (Vec::new(), 0, None);
    for part in parts.take(IOV_MAX) {
        match part {
            OutputPart::Inline(bytes) => {
                slices.push(slice(bytes));
                before += bytes.len();
            }
            OutputPart::External { lie, at, len } => {
                let lie: &dyn Any = lie;
                let mapped: &MappedRange = lie.downcast_ref().ok_or(io::ErrorKind::InvalidInput)?;
                if mapped.is_truncated() {
                    return Err(mapped.shorter());
                }
                slices.push(mapped.slice(at, len)?);
                last = Some((mapped, at));
                break;
            }
        }
    }
    let count = libc::c_int::try_from(slices.len()).map_err(io::Error::other)?;
    let written = retry_on_intr(|| {
        // SAFETY: each slice is borrowed by `parts`, or kept mapped by the source that `parts`
        // borrows, and is as long as it claims. The kernel reads it and reports a missing page as
        // EFAULT.
        let written = unsafe { libc::writev(fd.as_fd().as_raw_fd(), slices.as_ptr(), count) };
        usize::try_from(written).map_err(|_| {
            let error = io::Error::last_os_error();
            Errno::from_io_error(&error).unwrap_or(Errno::IO)
        })
    });
    match (written, last) {
        (Err(Errno::FAULT), Some((mapped, _))) => Err(mapped.shorter()),
        // Truncated data within the file's last page reads as zeros without an error.
        (Ok(n), Some((mapped, at))) if n > before && !mapped.reaches(at + n - before) => {
            Err(mapped.shorter())
        }
        (written, _) => Ok(written?),
    }
}

/// Writes `parts` to a socket like [`write_parts`], but hands over the file's pages instead of
/// copies of them (sendfile(2)).
///
/// The pages are read when they are sent, or on one machine when the peer reads them: a concurrent
/// change is sent in its old or new form, and a truncated file may be sent as zeros. The caller has
/// to check for that once all data has arrived. A receiver on the same machine should not read(2)
/// such pages, which takes twice as long as reading copies ([`crate::SplicePipe`]).
///
/// # Errors
/// As for [`write_parts`].
#[cfg(target_os = "linux")]
pub fn send_parts<'a>(
    fd: impl AsFd,
    parts: impl Iterator<Item = OutputPart<'a>>,
) -> io::Result<usize> {
    let (mut slices, mut before, mut file) = (Vec::new(), 0, None);
    for part in parts.take(IOV_MAX) {
        match part {
            OutputPart::Inline(bytes) => {
                slices.push(IoSlice::new(bytes));
                before += bytes.len();
            }
            OutputPart::External { lie, at, len } => {
                let lie: &dyn Any = lie;
                let mapped: &MappedRange = lie.downcast_ref().ok_or(io::ErrorKind::InvalidInput)?;
                file = Some((mapped, at, len));
                break;
            }
        }
    }
    let mut sent = 0;
    if before > 0 {
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, file.is_some());
        let mut none = SendAncillaryBuffer::default();
        sent = retry_on_intr(|| sendmsg(&fd, &slices, &mut none, flags))?;
    }
    let Some((mapped, at, len)) = file.filter(|_| sent == before) else {
        return Ok(sent);
    };
    let mut offset = mapped.offset.saturating_add(at as u64);
    match retry_on_intr(|| sendfile(&fd, &mapped.file, Some(&mut offset), len)) {
        Ok(0) => Err(mapped.shorter()),
        // Truncated data within the file's last page reads as zeros without an error.
        Ok(n) if !mapped.reaches(at + n) => Err(mapped.shorter()),
        Ok(n) => Ok(sent + n),
        // The bytes before the file part were sent.
        Err(_) if sent > 0 => Ok(sent),
        Err(e) => Err(e.into()),
    }
}

/// Same as [`write_parts`] on systems without sendfile(2).
#[cfg(not(target_os = "linux"))]
pub use write_parts as send_parts;

fn slice(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

#[cfg(test)]
#[path = "mapped_tests.rs"]
mod tests;
