use std::fs::{File, Metadata};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use plan::{Attributes, FileMeta};
use rustix::fs::{Advice, CWD, Mode, OFlags, fadvise, openat};
use wire::Block;

use crate::sums::FileSums;

/// Slices that one preadv or pwritev takes (IOV_MAX of Linux and the BSDs).
pub(super) const IOV_MAX: usize = 1024;

/// A local file that is read.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    /// Of what is read, where sums are wanted.
    pub(super) sums: Option<Arc<FileSums>>,
}

/// Opens `path` and stats the open file. Like scp, copies only regular files.
pub(crate) fn open_source(path: &Path) -> io::Result<(Source, FileMeta)> {
    // O_NONBLOCK: a FIFO without a writer is refused below and must not block here.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(openat(CWD, path, flags, Mode::empty())?);
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let meta = FileMeta {
        attributes: attributes(&meta),
        // Files in /proc say 0 and have content.
        stream: meta.len() == 0,
    };
    Ok((Source { file, sums: None }, meta))
}

impl Source {
    /// Fills the room of `block`, or what of it the file has; true if the file ended within.
    pub(crate) fn read_first(&self, block: &mut Block) -> io::Result<bool> {
        self.read(0, usize::MAX, block)
    }

    /// Reads `len` bytes at `offset` into `block`; true if the file ended before.
    pub(crate) fn read(&self, offset: u64, len: usize, block: &mut Block) -> io::Result<bool> {
        let mut slices: Vec<IoSliceMut<'_>> =
            block.grow(len).into_iter().map(IoSliceMut::new).collect();
        let asked: usize = slices.iter().map(|s| s.len()).sum();
        let read = read_full(&self.file, &mut slices, offset)?;
        drop(slices);
        if read < asked {
            block.truncate(read);
        }
        Ok(read < asked)
    }

    /// There is more to read than the first block: let the kernel read further ahead.
    pub(crate) fn advise_sequential(&self) {
        let _ = fadvise(&self.file, 0, None, Advice::Sequential);
    }
}

fn read_full(file: &File, mut slices: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while !slices.is_empty() {
        let some = slices.len().min(IOV_MAX);
        match rustix::io::preadv(file, &mut slices[..some], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => {
                done += n;
                IoSliceMut::advance_slices(&mut slices, n);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(done)
}

/// What SFTP can carry of a file's metadata. Times outside of its 32 bits are cut to them.
pub(crate) fn attributes(meta: &Metadata) -> Attributes {
    let seconds = |t: i64| u32::try_from(t.max(0)).unwrap_or(u32::MAX);
    Attributes {
        size: Some(meta.len()),
        mode: Some(meta.mode()),
        owner: Some((meta.uid(), meta.gid())),
        times: Some((seconds(meta.atime()), seconds(meta.mtime()))),
    }
}
