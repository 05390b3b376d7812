#![allow(
    unsafe_code,
    reason = "the pages of a file are memory of this process here: who makes a file shorter takes them away, \
              and who writes to it changes them"
)]
//! Files that are sent from where the kernel has them.
//!
//! To read a file and to write what was read to a socket copies it twice. write(2) from pages of the file
//! copies it once, as long as nobody has to look at it. Where it is sealed the cipher reads the pages, and
//! writes what comes of them to the packet: the copy is saved here too.

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
use wire::{Block, ExternalSource, Part};

use crate::holes::is_sparse;
use crate::sigbus::{LEN, Watched};

/// What is mapped at once: pages that are mapped count as this process's, and to map costs little beside
/// moving so much. Windows begin at multiples of it.
const WINDOW: usize = 4 << 20;
/// How far one reaches into the next, so that few reads need two.
const OVERLAP: usize = LEN - WINDOW;
/// Less than this is read: to have it mapped costs more than to copy it.
const LEAST: usize = 64 << 10;
/// Windows that are kept: as many places as are read at once.
const WINDOWS: usize = 2;
/// Slices that one readv or writev takes, or their like with an offset (of Linux and the BSDs).
pub const IOV_MAX: usize = 1024;

/// Some of a file, as memory that the kernel reads, or whoever it is lent to.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// [`LEN`] bytes from here on.
    start: NonNull<c_void>,
    /// Without it, only the kernel does.
    watched: Option<Watched>,
    file: Arc<File>,
    /// Where it begins in the file.
    offset: u64,
    /// Its file system is memory.
    always: bool,
}

// SAFETY: nobody writes at `start`, and what is mapped belongs to no thread.
unsafe impl Send for Mapped {}
// SAFETY: as above; a shared one is only read.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(file: &Arc<File>, always: bool, offset: u64) -> io::Result<Self> {
        let place = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        let fd = file.as_raw_fd();
        // SAFETY: the kernel chooses where, so that nothing of this process is replaced.
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
            watched: Watched::new(start.as_ptr() as usize),
            start,
            file: Arc::clone(file),
            offset,
            always,
        })
    }

    /// The `len` bytes `at` bytes behind its beginning, for the kernel to read.
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

    /// Whether some of it was taken away, and read.
    fn is_torn(&self) -> bool {
        self.watched.as_ref().is_some_and(Watched::is_torn)
    }

    /// Whether the file has so many bytes from the beginning of this on.
    fn reaches(&self, end: usize) -> bool {
        let end = self.offset.saturating_add(end as u64);
        fstat(&*self.file).is_ok_and(|stat| u64::try_from(stat.st_size).is_ok_and(|s| s >= end))
    }

    /// What is said of a file that does not reach so far any more, or whose pages are not to be had.
    fn shorter(&self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, self.missed())
    }

    /// Whether all of it can be read without waiting for a disk.
    fn is_resident(&self, at: usize, len: usize) -> bool {
        let page = rustix::param::page_size();
        let from = at - at % page;
        let Ok(slice) = self.slice(from, at + len - from) else {
            return false;
        };
        let mut pages = vec![0_u8; slice.iov_len.div_ceil(page)];
        // SAFETY: it is asked about memory that is mapped, and `pages` has a byte for each page of it.
        let asked =
            unsafe { libc::mincore(slice.iov_base, slice.iov_len, pages.as_mut_ptr().cast()) };
        asked == 0 && pages.iter().all(|page| page & 1 == 1)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // What is mapped there next is another's.
        self.watched = None;
        // SAFETY: it was mapped by this, and who is to write it out borrows it.
        unsafe { libc::munmap(self.start.as_ptr(), LEN) };
    }
}

impl ExternalSource for Mapped {
    fn copy(&self, at: usize, to: &mut [u8]) -> bool {
        self.file.read_exact_at(to, self.offset + at as u64).is_ok()
    }

    fn lend(&self, at: usize, len: usize, more: usize, to: &mut dyn FnMut(&[u8])) -> bool {
        let end = at + len + more;
        let (Some(watched), Ok(slice)) = (&self.watched, self.slice(at, len + more)) else {
            return false;
        };
        // Behind the last page of the file nothing is to be read.
        let page = rustix::param::page_size();
        let last = end.saturating_sub(1) / page * page;
        if end == 0 || watched.is_torn() || !self.reaches((at + len).max(last + 1)) {
            return false;
        }
        // SAFETY: it is mapped as long as `self` lives, and where the file is made shorter meanwhile `watched`
        // has zeros there. Others may write to the file: whoever it is lent to hands it to a function of the
        // cipher library, which reads each byte once and is not known to the compiler, and takes any byte.
        to(unsafe { std::slice::from_raw_parts(slice.iov_base.cast(), len + more) });
        // What the end of a file has left of its last page reads as zeros.
        !watched.is_torn() && self.reaches(at + len)
    }

    fn missed(&self) -> String {
        let link = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let name = std::fs::read_link(link)
            .map_or_else(|_| "a file".to_owned(), |path| format!("{path:?}"));
        format!("{name} became shorter, or cannot be read any more, while it was sent")
    }
}

/// What of one's files is mapped.
#[derive(Debug, Default)]
pub struct Windows {
    /// The last one that was made is in front.
    kept: VecDeque<Arc<Mapped>>,
    /// Those of the others that are still to be written out.
    others: Vec<Weak<Mapped>>,
}

impl Windows {
    /// Has `block` carry the `len` bytes at `offset` of `file` from where the kernel has them; false where that
    /// may not be or they are not all in memory, or so few that it costs less to read them.
    pub fn lay(&mut self, file: &Arc<File>, offset: u64, len: usize, block: &mut Block) -> bool {
        if !(LEAST..=OVERLAP).contains(&len) || !block.may_lie_outside() {
            return false;
        }
        let Some((mapped, at)) = self.find(file, offset, len) else {
            return false;
        };
        let mapped: Arc<dyn ExternalSource> = mapped;
        block.lie_outside(&mapped, at, len);
        true
    }

    /// Where the `len` bytes at `offset` of `file` are, if it has them and they are in memory, and how far
    /// behind its beginning.
    fn find(&mut self, file: &Arc<File>, offset: u64, len: usize) -> Option<(Arc<Mapped>, usize)> {
        let stat = fstat(file).ok()?;
        let size = u64::try_from(stat.st_size).ok()?;
        // Whoever maps a hole of tmpfs has it filled.
        let sparse = is_sparse(size, u64::try_from(stat.st_blocks).ok()?);
        if sparse || offset.checked_add(len as u64)? > size {
            return None;
        }
        let begin = offset - offset % WINDOW as u64;
        let at = usize::try_from(offset - begin).ok()?;
        let known = |kept: &&Arc<Mapped>| {
            kept.offset == begin && Arc::ptr_eq(&kept.file, file) && !kept.is_torn()
        };
        let mapped = match self.kept.iter().find(known) {
            Some(mapped) => Arc::clone(mapped),
            None => self.map(file, &stat, begin)?,
        };
        (mapped.always || mapped.is_resident(at, len)).then_some((mapped, at))
    }

    /// Keeps nothing of `file`, which is to be closed.
    pub fn forget(&mut self, file: &Arc<File>) {
        let of_it = |kept: &Arc<Mapped>| Arc::ptr_eq(&kept.file, file);
        while let Some(at) = self.kept.iter().position(of_it) {
            self.drop_at(at);
        }
    }

    /// Keeps nothing.
    pub fn trim(&mut self) {
        while !self.kept.is_empty() {
            self.drop_at(0);
        }
    }

    /// Whether some of what was laid into blocks is still to be written out: it is what the file is then.
    pub fn are_busy(&self) -> bool {
        // One of them is that which is kept.
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

    fn map(&mut self, file: &Arc<File>, stat: &Stat, begin: u64) -> Option<Arc<Mapped>> {
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        // Of files that are not the caller's mincore(2) says that all is in memory, since Linux 5.2.
        let told = rustix::process::geteuid().as_raw() == stat.st_uid;
        let always = is_in_memory(file);
        if !always && !told {
            return None;
        }
        let mapped = Mapped::new(file, always, begin);
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

/// Whether `file` is on a file system that is memory and nothing else.
#[cfg(target_os = "linux")]
pub fn is_in_memory(file: impl AsFd) -> bool {
    let fs = rustix::fs::fstatfs(file);
    fs.is_ok_and(|fs| u64::try_from(fs.f_type).is_ok_and(|kind| kind == TMPFS))
}

/// Whether `file` is on a file system that is memory and nothing else.
#[cfg(not(target_os = "linux"))]
pub fn is_in_memory(_: impl AsFd) -> bool {
    false
}

/// Writes what `fd` takes of `parts`, up to the first one that is mapped; returns how many bytes.
///
/// What follows that leaves by the next call: where the file has become shorter meanwhile, the packet that
/// carries it has not left whole, so that nobody makes anything of it.
///
/// # Errors
/// Those of writev(2); `InvalidData` where a file has become shorter than it was when its part was made, and
/// then nothing more may be written: it is not known what was.
pub fn write_parts<'a>(fd: impl AsFd, parts: impl Iterator<Item = Part<'a>>) -> io::Result<usize> {
    let (mut slices, mut before, mut last) = (Vec::new(), 0, None);
    for part in parts.take(IOV_MAX) {
        match part {
            Part::Here(bytes) => {
                slices.push(slice(bytes));
                before += bytes.len();
            }
            Part::Outside { lie, at, len } => {
                let lie: &dyn Any = lie;
                let mapped: &Mapped = lie.downcast_ref().ok_or(io::ErrorKind::InvalidInput)?;
                if mapped.is_torn() {
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
        // SAFETY: each slice is borrowed by `parts`, or held by what is mapped, which `parts` borrows, and is as
        // long as it says. The kernel reads it, and says so where a page is not there.
        let written = unsafe { libc::writev(fd.as_fd().as_raw_fd(), slices.as_ptr(), count) };
        usize::try_from(written).map_err(|_| {
            let error = io::Error::last_os_error();
            Errno::from_io_error(&error).unwrap_or(Errno::IO)
        })
    });
    match (written, last) {
        (Err(Errno::FAULT), Some((mapped, _))) => Err(mapped.shorter()),
        // What the end of a file has left of its last page reads as zeros.
        (Ok(n), Some((mapped, at))) if n > before && !mapped.reaches(at + n - before) => {
            Err(mapped.shorter())
        }
        (written, _) => Ok(written?),
    }
}

/// The same to a socket, which gets the pages that the file has instead of copies of them (sendfile(2)).
///
/// They are read when they are sent, and on one machine by the other end: what is changed meanwhile is sent as it
/// was or as it is, and of a file that becomes shorter zeros may be. The caller has to find that out once all has
/// arrived. Who receives them on the same machine should not read(2) them, which costs it twice as much as a
/// copy does ([`crate::SplicePipe`]).
///
/// # Errors
/// Those of [`write_parts`].
#[cfg(target_os = "linux")]
pub fn send_parts<'a>(fd: impl AsFd, parts: impl Iterator<Item = Part<'a>>) -> io::Result<usize> {
    let (mut slices, mut before, mut file) = (Vec::new(), 0, None);
    for part in parts.take(IOV_MAX) {
        match part {
            Part::Here(bytes) => {
                slices.push(IoSlice::new(bytes));
                before += bytes.len();
            }
            Part::Outside { lie, at, len } => {
                let lie: &dyn Any = lie;
                let mapped: &Mapped = lie.downcast_ref().ok_or(io::ErrorKind::InvalidInput)?;
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
        // What the end of a file has left of its last page reads as zeros.
        Ok(n) if !mapped.reaches(at + n) => Err(mapped.shorter()),
        Ok(n) => Ok(sent + n),
        // What is in front of it has left.
        Err(_) if sent > 0 => Ok(sent),
        Err(e) => Err(e.into()),
    }
}

/// [`write_parts`].
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
