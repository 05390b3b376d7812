#![allow(
    unsafe_code,
    reason = "the pages of a file are memory of this process here, which nobody but the kernel may read: \
              who makes a file shorter takes them away, and who writes to it changes them"
)]
//! Files that are sent from where the kernel has them.
//!
//! To read a file and to write what was read to a socket copies it twice. write(2) from pages of the file
//! copies it once, as long as nobody has to look at it: where it is sealed, somebody has to.

use std::any::Any;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libc::c_void;
use rustix::fs::{FileType, Stat, fstat};
use rustix::io::{Errno, pread};
use wire::{Elsewhere, Part};

/// What is mapped at once: pages that are mapped count as this process's, and to map costs little beside
/// moving so much. Windows begin at multiples of it.
const WINDOW: usize = 4 << 20;
/// How far one reaches into the next, so that few reads need two.
const OVERLAP: usize = 2 << 20;
/// Windows that are kept: as many places as are read at once.
const WINDOWS: usize = 2;
/// Parts that one writev takes (IOV_MAX of Linux and the BSDs).
const IOV_MAX: usize = 1024;

/// Some of a file, as memory that only the kernel reads.
#[derive(Debug)]
pub struct Mapped {
    start: NonNull<c_void>,
    len: usize,
    file: Arc<File>,
    /// Where it begins in the file.
    offset: u64,
    /// Its file system is memory.
    always: bool,
}

// SAFETY: nobody reads or writes at `start` but the kernel, and what is mapped belongs to no thread.
unsafe impl Send for Mapped {}
// SAFETY: as above; a shared one is only asked where it is.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn new(file: &Arc<File>, always: bool, offset: u64, len: usize) -> io::Result<Self> {
        let place = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        let fd = file.as_raw_fd();
        // SAFETY: the kernel chooses where, so that nothing of this process is replaced.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ,
                libc::MAP_SHARED,
                fd,
                place,
            )
        };
        let start = NonNull::new(start).filter(|start| start.as_ptr() != libc::MAP_FAILED);
        Ok(Self {
            start: start.ok_or_else(io::Error::last_os_error)?,
            len,
            file: Arc::clone(file),
            offset,
            always,
        })
    }

    /// The `len` bytes `at` bytes behind its beginning, for the kernel to read.
    fn slice(&self, at: usize, len: usize) -> io::Result<libc::iovec> {
        let fits = at.checked_add(len).is_some_and(|end| end <= self.len);
        if !fits {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let start = self.start.as_ptr().cast::<u8>().wrapping_add(at);
        Ok(libc::iovec {
            iov_base: start.cast(),
            iov_len: len,
        })
    }

    /// Whether the file has so many bytes from the beginning of this on.
    fn reaches(&self, end: usize) -> bool {
        let end = self.offset.saturating_add(end as u64);
        fstat(&*self.file).is_ok_and(|stat| u64::try_from(stat.st_size).is_ok_and(|s| s >= end))
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
        // SAFETY: it was mapped by this, and who is to write it out borrows it.
        unsafe { libc::munmap(self.start.as_ptr(), self.len) };
    }
}

impl Elsewhere for Mapped {
    fn copy(&self, at: usize, to: &mut [u8]) -> bool {
        let mut done = 0;
        while done < to.len() {
            let place = self.offset + (at + done) as u64;
            match pread(&*self.file, &mut to[done..], place) {
                Ok(0) => return false,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

/// What of one's files is mapped.
#[derive(Debug, Default)]
pub struct Windows {
    /// The last one that was made is in front.
    kept: VecDeque<Arc<Mapped>>,
}

impl Windows {
    /// Where the `len` bytes at `offset` of `file` are, if it has them and they are in memory, and how far
    /// behind its beginning.
    pub fn find(
        &mut self,
        file: &Arc<File>,
        offset: u64,
        len: usize,
    ) -> Option<(Arc<Mapped>, usize)> {
        let stat = fstat(file).ok()?;
        let end = offset.checked_add(len as u64)?;
        let reaches = u64::try_from(stat.st_size).is_ok_and(|size| size >= end);
        if !reaches || len > OVERLAP {
            return None;
        }
        let begin = offset - offset % WINDOW as u64;
        let at = usize::try_from(offset - begin).ok()?;
        let known = |kept: &&Arc<Mapped>| kept.offset == begin && Arc::ptr_eq(&kept.file, file);
        let mapped = match self.kept.iter().find(known) {
            Some(mapped) => Arc::clone(mapped),
            None => self.map(file, &stat, begin)?,
        };
        (mapped.always || mapped.is_resident(at, len)).then_some((mapped, at))
    }

    /// Keeps nothing of `file`, which is to be closed.
    pub fn forget(&mut self, file: &Arc<File>) {
        self.kept.retain(|kept| !Arc::ptr_eq(&kept.file, file));
    }

    fn map(&mut self, file: &Arc<File>, stat: &Stat, begin: u64) -> Option<Arc<Mapped>> {
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        let always = is_in_memory(file);
        if !always && !is_told(stat) {
            return None;
        }
        let mapped = Mapped::new(file, always, begin, WINDOW + OVERLAP);
        let mapped = Arc::new(mapped.ok()?);
        self.kept.truncate(WINDOWS - 1);
        self.kept.push_front(Arc::clone(&mapped));
        Some(mapped)
    }
}

/// Whether mincore(2) tells what is in memory: of files that are not the caller's it says that all is, since
/// Linux 5.2.
fn is_told(stat: &Stat) -> bool {
    let me = rustix::process::geteuid();
    me.is_root() || me.as_raw() == stat.st_uid
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

/// Writes what `fd` takes of `parts`; returns how many bytes.
///
/// # Errors
/// Those of writev(2); `InvalidData` where a file has become shorter than it was when its part was made, so
/// that it is not known what was written.
pub fn write_parts<'a>(fd: impl AsFd, parts: impl Iterator<Item = Part<'a>>) -> io::Result<usize> {
    let parts: Vec<Part<'a>> = parts.take(IOV_MAX).collect();
    let written = match write_once(&fd, &parts, false) {
        // A page is not to be had where it was mapped.
        Err(e) if e.raw_os_error() == Some(libc::EFAULT) => write_once(&fd, &parts, true)?,
        written => written?,
    };
    // What the end of a file has left of its last page reads as zeros.
    let mut left = written;
    for part in &parts {
        let taken = part.len().min(left);
        left -= taken;
        if let (Some((mapped, at)), true) = (mapped(part), taken > 0)
            && !mapped.reaches(at + taken)
        {
            return Err(shorter());
        }
    }
    Ok(written)
}

fn write_once(fd: &impl AsFd, parts: &[Part<'_>], copy: bool) -> io::Result<usize> {
    let mut copies = Vec::new();
    let mut slices = Vec::with_capacity(parts.len());
    for part in parts {
        slices.push(match (part, mapped(part)) {
            (Part::Here(bytes), _) => slice(bytes),
            (_, Some((mapped, at))) if !copy => mapped.slice(at, part.len())?,
            _ => {
                let bytes = part.to_vec().ok_or_else(shorter)?;
                let slice = slice(&bytes);
                copies.push(bytes);
                slice
            }
        });
    }
    let count = libc::c_int::try_from(slices.len()).map_err(io::Error::other)?;
    // SAFETY: each slice is borrowed by `parts`, or held by `copies` or by what is mapped, which `parts`
    // borrows, and is as long as it says. The kernel reads it, and says so where a page is not there.
    let written = unsafe { libc::writev(fd.as_fd().as_raw_fd(), slices.as_ptr(), count) };
    drop(copies);
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

fn slice(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

/// Where a part lies that is mapped here.
fn mapped<'a>(part: &Part<'a>) -> Option<(&'a Mapped, usize)> {
    match *part {
        Part::Here(_) => None,
        Part::Outside { lie, at, .. } => {
            let lie: &dyn Any = lie;
            lie.downcast_ref().map(|mapped| (mapped, at))
        }
    }
}

fn shorter() -> io::Error {
    let words = "a file became shorter while it was sent";
    io::Error::new(io::ErrorKind::InvalidData, words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Seek as _, Write as _};
    use std::os::unix::fs::FileExt as _;
    use std::os::unix::net::UnixStream;

    fn file(content: &[u8]) -> io::Result<Arc<File>> {
        let mut file = tempfile::tempfile()?;
        file.write_all(content)?;
        file.rewind()?;
        Ok(Arc::new(file))
    }

    fn part(mapped: &Mapped, at: usize, len: usize) -> Part<'_> {
        Part::Outside {
            lie: mapped,
            at,
            len,
        }
    }

    #[test]
    fn what_is_mapped_is_written_between_what_is_not() -> io::Result<()> {
        let content: Vec<u8> = (0..=250).cycle().take(30_000).collect();
        let file = file(&content)?;
        let (mapped, at) = Windows::default().find(&file, 5_000, 20_000).unwrap();
        let (mut receiver, sender) = UnixStream::pair()?;
        let parts = [
            Part::Here(b"before"),
            part(&mapped, at, 20_000),
            Part::Here(b"behind"),
        ];
        assert_eq!(write_parts(&sender, parts.into_iter())?, 20_012);
        drop(sender);
        let mut received = Vec::new();
        receiver.read_to_end(&mut received)?;
        assert!(received == [b"before", &content[5_000..25_000], b"behind"].concat());
        Ok(())
    }

    #[test]
    fn windows_are_found_where_the_file_reaches_and_dropped_when_others_are() -> io::Result<()> {
        let file = file(b"begin")?;
        file.set_len(100 << 20)?;
        file.write_all_at(b"end", (100 << 20) - 3)?;
        let mut windows = Windows::default();
        for offset in (0..100 << 20).step_by(1 << 20) {
            // A hole is in memory once it was read, and on tmpfs always.
            let mut bytes = vec![1; 1 << 20];
            file.read_exact_at(&mut bytes, offset)?;
            let (mapped, at) = windows.find(&file, offset, 1 << 20).unwrap();
            assert_eq!(mapped.offset + at as u64, offset);
            let mut same = vec![1; 1 << 20];
            assert!(mapped.copy(at, &mut same) && same == bytes);
            assert_eq!(bytes.starts_with(b"begin"), offset == 0);
            assert_eq!(bytes.ends_with(b"end"), offset == 99 << 20);
            assert!(windows.kept.len() <= WINDOWS);
        }
        assert!(windows.find(&file, (99 << 20) + 1, 1 << 20).is_none());
        assert!(windows.find(&file, u64::MAX, 1).is_none());
        assert!(windows.find(&file, 0, OVERLAP + 1).is_none());
        assert!(windows.find(&file, (8 << 20) - 1, OVERLAP).is_some());
        windows.forget(&file);
        assert!(windows.kept.is_empty() && Arc::into_inner(file).is_some());
        Ok(())
    }

    /// The pages are gone, or what is left of the last of them is zeros: neither must pass for the file.
    #[test]
    fn a_file_that_became_shorter_is_an_error() -> io::Result<()> {
        for kept in [0, 100, 5_000, 19_999] {
            let content = vec![7; 20_000];
            let file = file(&content)?;
            let (mapped, at) = Windows::default().find(&file, 0, 20_000).unwrap();
            file.set_len(kept)?;
            let (_receiver, sender) = UnixStream::pair()?;
            let written = write_parts(&sender, std::iter::once(part(&mapped, at, 20_000)));
            let kind = written.map_err(|e| e.kind());
            assert_eq!(kind, Err(io::ErrorKind::InvalidData), "{kept} bytes");
            let mut bytes = vec![0; 20_000];
            assert!(!mapped.copy(at, &mut bytes));
        }
        Ok(())
    }

    #[test]
    fn what_has_no_pages_is_not_mapped() -> io::Result<()> {
        for path in ["/proc/self/status", "/dev/null", "/"] {
            let file = Arc::new(File::open(path)?);
            assert!(Windows::default().find(&file, 0, 1).is_none(), "{path}");
            assert!(Windows::default().find(&file, 0, 0).is_none(), "{path}");
        }
        Ok(())
    }
}
