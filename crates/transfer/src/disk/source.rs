//! Reads local files.

use std::fs::{File, Metadata};
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Advice, CWD, FileType, Mode, OFlags, Stat, fadvise, openat};
use rustix::io::Errno;
#[cfg(target_os = "linux")]
use rustix::io::ReadWriteFlags;
use schedule::journal::SourceFileStamp;
use schedule::{Attributes, SourceFileMeta};
use sftp::InodeId;
use sys::{IOV_MAX, MappedFileWindows, is_in_memory};
use wire::PayloadBlock;

use super::target::{mtime, mtime_of};
use crate::sums::{ChecksumPieceTicket, FileChecksums};

/// A local file that is read.
#[derive(Debug)]
pub(crate) struct LocalSource {
    file: Arc<File>,
    /// Mappings from which parts are sent without a copy.
    windows: Mutex<MappedFileWindows>,
    /// The size when the file was opened.
    size: u64,
    /// The checksums of the data read, if wanted.
    sums: Option<Arc<FileChecksums>>,
    /// True if the comparison hashes the whole file, so that repeated reads are not hashed again.
    summed: AtomicBool,
    /// True once a non-blocking read found data that were not in memory: later reads go to a thread
    /// directly.
    cold: AtomicBool,
    /// True if the file is known to be on a memory file system.
    in_memory: bool,
    /// True if the file has holes, which are reported instead of read.
    sparse: bool,
}

/// Opens `path` and stats the open file. Like scp, accepts only regular files.
pub(crate) fn open_source(path: &Path) -> io::Result<(LocalSource, SourceFileMeta)> {
    open_source_with(|flags| openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty()))
}

/// Opens a regular file to read it. Another process may have put a FIFO there, which is refused and
/// not waited for.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, path, flags, Mode::empty())?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("not a regular file")),
    }
}

/// Opens a source with `open`, which gets the flags, and stats the open file.
pub(super) fn open_source_with(
    open: impl FnOnce(OFlags) -> Result<OwnedFd, Errno>,
) -> io::Result<(LocalSource, SourceFileMeta)> {
    // O_NONBLOCK: a FIFO without a writer is refused below and must not block here.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = Arc::new(File::from(open(flags)?));
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let meta = SourceFileMeta {
        attributes: attributes(&meta),
        // Files in /proc report size 0 and have content.
        stream: meta.len() == 0,
    };
    let source = LocalSource {
        size: meta.attributes.size.unwrap_or(0),
        windows: Mutex::default(),
        file,
        sums: None,
        summed: AtomicBool::new(false),
        cold: AtomicBool::new(false),
        in_memory: false,
        sparse: false,
    };
    Ok((source, meta))
}

impl LocalSource {
    /// Fills `block` from the start of the file; true if the file ended within. Reads one byte more
    /// than the file's size, to see if it has grown.
    pub(crate) fn read_first(&self, block: &mut PayloadBlock) -> io::Result<bool> {
        let len = match self.size {
            // Files in /proc report size 0.
            0 => usize::MAX,
            size => usize::try_from(size.saturating_add(1)).unwrap_or(usize::MAX),
        };
        self.fill(0, len, block, Some(self.size))
    }

    /// Reads `len` bytes at `offset` into `block`; true if the file ended early.
    pub(crate) fn read(
        &self,
        offset: u64,
        len: usize,
        block: &mut PayloadBlock,
    ) -> io::Result<bool> {
        self.fill(offset, len, block, None)
    }

    fn fill(
        &self,
        offset: u64,
        len: usize,
        block: &mut PayloadBlock,
        ends: Option<u64>,
    ) -> io::Result<bool> {
        let mut slices: Vec<IoSliceMut<'_>> =
            block.grow(len).into_iter().map(IoSliceMut::new).collect();
        let asked: usize = slices.iter().map(|s| s.len()).sum();
        let read = read_full(&self.file, &mut slices, offset, ends)?;
        drop(slices);
        if read < asked {
            block.truncate(read);
        }
        Ok(read < asked)
    }

    /// Fills `block` with `len` bytes if all of them are in memory; otherwise leaves it unchanged
    /// and returns false.
    pub(super) fn read_at_once(&self, offset: u64, len: usize, block: &mut PayloadBlock) -> bool {
        if self.sparse || self.sums.is_some() || self.cold.load(Ordering::Relaxed) {
            return false;
        }
        let windows = || self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if block.may_lie_outside() && windows().lay(&self.file, offset, len, block) {
            return true;
        }
        let slices = block.grow(len).into_iter();
        let mut slices: Vec<IoSliceMut<'_>> = slices.map(IoSliceMut::new).collect();
        let read = read_in_memory(&self.file, &mut slices, offset, self.in_memory);
        drop(slices);
        let all = read == Some(len);
        if !all {
            self.cold.store(true, Ordering::Relaxed);
            block.clear();
        }
        all
    }

    /// The open file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Appends up to `len` bytes at `offset` to `out`, fewer at the end of the file.
    pub(super) fn append(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        let end = out.len() + len;
        let start = out.len();
        while out.len() < end {
            let at = offset + (out.len() - start) as u64;
            if sys::append_at(&self.file, out, end - out.len(), at)? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Collects the checksums of the data from now on.
    pub(super) fn collect_sums(&mut self, sums: Option<Arc<FileChecksums>>) {
        self.sums = sums;
    }

    /// Adds bytes that were read to the checksums, if wanted.
    pub(super) fn add_to_sums<'a, Slices>(&self, offset: u64, slices: impl FnOnce() -> Slices)
    where
        Slices: Iterator<Item = &'a [u8]> + Clone,
    {
        if let Some(sums) = &self.sums {
            sums.add(offset, slices());
        }
    }

    /// Adds bytes that were read for comparison to the checksums.
    pub(super) fn sum(&self, offset: u64, bytes: &[u8]) {
        self.summed.store(self.sums.is_some(), Ordering::Relaxed);
        self.add_to_sums(offset, || std::iter::once(bytes));
    }

    /// Announces a read in the order of the checksums; `None` if none are wanted, or if a
    /// comparison hashes the whole file.
    pub(super) fn promise_sum(&self, offset: u64, len: u64) -> Option<ChecksumPieceTicket> {
        let sums = self.sums.as_ref();
        let sums = sums.filter(|_| !self.summed.load(Ordering::Relaxed));
        sums.map(|sums| sums.promise(offset, len))
    }

    /// Enables the reporting of holes if the file has any.
    pub(crate) fn tell_holes(&mut self) {
        self.sparse = self.file.metadata().is_ok_and(|meta| is_sparse(&meta));
    }

    /// Returns the length of the hole at `offset` for a read of `asked` bytes. With checksums,
    /// which cover whole requests, only a hole that covers the whole request counts.
    pub(crate) fn hole(&self, offset: u64, asked: usize) -> io::Result<Option<u64>> {
        if !self.sparse {
            return Ok(None);
        }
        let size = self.file.metadata()?.len();
        let data = sys::next_data(&self.file, offset)?.unwrap_or(size);
        let hole = data.checked_sub(offset).filter(|len| *len > 0);
        if self.sums.is_none() {
            return Ok(hole);
        }
        let whole = |len: &u64| *len >= asked as u64 || data >= size;
        Ok(hole.filter(whole).map(|len| len.min(asked as u64)))
    }

    /// Returns how many of the `len` bytes at `offset`, which are data, precede the next hole.
    pub(crate) fn before_hole(&self, offset: u64, len: usize) -> io::Result<usize> {
        match self.sparse && self.sums.is_none() {
            false => Ok(len),
            true => {
                let hole = sys::next_hole(&self.file, offset)?;
                let data = hole.map_or(u64::MAX, |hole| hole.saturating_sub(offset));
                Ok(len.min(usize::try_from(data).unwrap_or(len)))
            }
        }
    }

    /// Announces reads after the first block: has the kernel read further ahead and checks the file
    /// system's type. Small files need neither call.
    pub(crate) fn expect_more(&mut self) {
        self.in_memory = is_in_memory(&self.file);
        let _ = fadvise(&self.file, 0, None, Advice::Sequential);
    }
}

/// Reads data that are in memory; `None` if there are none or the kernel cannot tell.
#[cfg(target_os = "linux")]
fn read_in_memory(
    file: &File,
    slices: &mut [IoSliceMut<'_>],
    offset: u64,
    in_memory: bool,
) -> Option<usize> {
    let flags = match in_memory {
        true => ReadWriteFlags::empty(),
        false => ReadWriteFlags::NOWAIT,
    };
    let some = slices.len().min(IOV_MAX);
    rustix::io::preadv2(file, &mut slices[..some], offset, flags).ok()
}

#[cfg(not(target_os = "linux"))]
fn read_in_memory(_: &File, _: &mut [IoSliceMut<'_>], _: u64, _: bool) -> Option<usize> {
    None
}

/// Fills `slices` up to the end of the file. A short read that stops at `ends`, the known size, is
/// not repeated.
fn read_full(
    file: &File,
    mut slices: &mut [IoSliceMut<'_>],
    offset: u64,
    ends: Option<u64>,
) -> io::Result<usize> {
    let mut done = 0;
    while !slices.is_empty() {
        let some = slices.len().min(IOV_MAX);
        match rustix::io::preadv(file, &mut slices[..some], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => {
                done += n;
                IoSliceMut::advance_slices(&mut slices, n);
                if ends == Some(offset + done as u64) {
                    break;
                }
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(done)
}

fn is_sparse(meta: &Metadata) -> bool {
    sys::is_sparse(meta.len(), meta.blocks())
}

/// True if the file at `path` has holes.
pub(crate) fn has_holes(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| is_sparse(&meta))
}

/// Returns the properties by which a file counts as unchanged.
pub(crate) fn identity(meta: &Metadata) -> SourceFileStamp {
    SourceFileStamp {
        size: meta.len(),
        mtime: mtime(meta),
        inode: meta.ino(),
        device: meta.dev(),
    }
}

/// Properties of an entry that a walk reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryStat {
    attributes: Attributes,
    /// Properties by which the entry counts as unchanged.
    id: SourceFileStamp,
}

impl EntryStat {
    pub(crate) fn attributes(&self) -> Attributes {
        self.attributes
    }

    /// Properties by which the entry counts as unchanged.
    pub(crate) fn id(&self) -> SourceFileStamp {
        self.id
    }
}

impl From<&Metadata> for EntryStat {
    fn from(meta: &Metadata) -> Self {
        Self {
            attributes: attributes(meta),
            id: identity(meta),
        }
    }
}

impl From<&Stat> for EntryStat {
    #[allow(
        clippy::useless_conversion,
        reason = "the types differ between architectures"
    )]
    fn from(stat: &Stat) -> Self {
        let seconds = |time: i64| u32::try_from(time.max(0)).unwrap_or(u32::MAX);
        let (accessed, modified) = (stat.st_atime.into(), stat.st_mtime.into());
        let accessed_part = u32::try_from(stat.st_atime_nsec).unwrap_or(0);
        let modified_part = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
        let names = u32::try_from(stat.st_nlink).unwrap_or(u32::MAX);
        let id = SourceFileStamp {
            size: stat.st_size.unsigned_abs(),
            mtime: mtime_of(stat),
            inode: stat.st_ino.into(),
            device: stat.st_dev.into(),
        };
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let link = InodeId {
            device: id.device,
            inode: id.inode,
            names,
        };
        Self {
            attributes: Attributes {
                size: Some(id.size),
                mode: Some(stat.st_mode.into()),
                owner: Some((stat.st_uid, stat.st_gid)),
                times: Some((seconds(accessed), seconds(modified))),
                nanoseconds: Some((accessed_part, modified_part)),
                link: (is_file && names > 1).then_some(link),
            },
            id,
        }
    }
}

/// Returns the metadata that SFTP and longhaul's extensions can carry. Times outside SFTP's 32 bits
/// are clamped.
pub(crate) fn attributes(meta: &Metadata) -> Attributes {
    let part = |t: i64| u32::try_from(t).unwrap_or(0);
    let seconds = |t: i64| u32::try_from(t.max(0)).unwrap_or(u32::MAX);
    Attributes {
        size: Some(meta.len()),
        mode: Some(meta.mode()),
        owner: Some((meta.uid(), meta.gid())),
        times: Some((seconds(meta.atime()), seconds(meta.mtime()))),
        nanoseconds: Some((part(meta.atime_nsec()), part(meta.mtime_nsec()))),
        link: (meta.is_file() && meta.nlink() > 1).then(|| InodeId {
            device: meta.dev(),
            inode: meta.ino(),
            names: u32::try_from(meta.nlink()).unwrap_or(u32::MAX),
        }),
    }
}
