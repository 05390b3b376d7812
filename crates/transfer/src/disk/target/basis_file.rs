//! Rebuilds a file from the basis file under its final name (delta).

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use schedule::delta::LEAST;
use sftp::blocks::{BasisBlockChecksums, BlockSumKey, strong};

use super::{CreateSettings, LocalTarget, create_target};
use crate::disk::directories::WriteDestination;
use crate::disk::source::{LocalSource, open_source_with};
use crate::sums::FileChecksums;

/// Bytes copied, or read and hashed, at a time; a multiple of the delta block size.
const PIECE: usize = 1 << 20;

/// The older version of the file, which keeps the final name until the rebuilt one replaces it.
#[derive(Debug)]
pub(super) struct BasisFile {
    file: LocalSource,
    /// The checksums of the rebuilt file, with `--verify`.
    sums: Option<Arc<FileChecksums>>,
}

/// Opens the basis file of a target and the temporary beside it, as in
/// [`schedule::DiskRequest::OpenBasis`]. Returns the target and the basis file's size; `None`
/// without a usable basis file.
pub(in crate::disk) fn open_older(
    create: CreateSettings<'_>,
    sums: impl FnOnce() -> Option<Arc<FileChecksums>>,
) -> Option<(LocalTarget, u64)> {
    let Ok(WriteDestination::At(at)) = create.directories.destination(create.path) else {
        return None;
    };
    let (mut file, meta) = open_source_with(|flags| at.open(flags, 0)).ok()?;
    let size = meta.attributes.size.filter(|size| *size >= LEAST)?;
    let mut target = create_target(create).ok()?;
    if !target.is_temporary() {
        return None;
    }
    file.expect_more();
    let sums = sums();
    target.older = Some(BasisFile { file, sums });
    Some((target, size))
}

impl LocalTarget {
    /// The basis file, if the target is rebuilt from one.
    pub(in crate::disk) fn basis(&self) -> Option<&LocalSource> {
        self.older.as_ref().map(|older| &older.file)
    }

    /// Copies `len` bytes at `from` of the basis file to `at`; returns the number of bytes copied.
    pub(in crate::disk) fn copy_older(&self, from: u64, at: u64, len: u64) -> io::Result<u64> {
        let Some(older) = &self.older else {
            return Err(io::Error::other("internal error: no basis file is open"));
        };
        let mut done = match self.sparse {
            true => 0,
            false => in_kernel((older.file.file(), from), (&self.file, at), len),
        };
        self.end.fetch_max(at + done, Ordering::Relaxed);
        let mut bytes = Vec::new();
        while done < len {
            let piece = usize::try_from(len - done).unwrap_or(PIECE).min(PIECE);
            bytes.clear();
            // Bytes that cannot be read from the basis file are fetched from the far end.
            let read = older.file.append(from + done, piece, &mut bytes);
            if read.is_err() || bytes.is_empty() {
                break;
            }
            self.write_slice(at + done, &bytes)?;
            done += bytes.len() as u64;
        }
        Ok(done)
    }

    /// True if the blocks written at `offset` have these checksums.
    pub(in crate::disk) fn check_rebuilt(
        &self,
        key: &BlockSumKey,
        block: u32,
        (offset, len): (u64, usize),
        sums: &Bytes,
    ) -> io::Result<bool> {
        let block = block.max(1) as usize;
        let piece = PIECE.max(block);
        let mut sums = BasisBlockChecksums::read_all(sums);
        let mut bytes = Vec::with_capacity(piece.min(len));
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let asked = piece.min(len - done);
            bytes.clear();
            while bytes.len() < asked {
                let behind = at + bytes.len() as u64;
                let missing = asked - bytes.len();
                if sys::append_at(&self.file, &mut bytes, missing, behind)? == 0 {
                    // The file may end in a hole: its length is set when it is finished.
                    bytes.resize(asked, 0);
                }
            }
            if let Some(ours) = self.older.as_ref().and_then(|older| older.sums.as_ref()) {
                ours.add(at, std::iter::once(bytes.as_slice()));
            }
            let same = |bytes| {
                sums.next()
                    .is_some_and(|sum| sum.strong == strong(key, bytes))
            };
            if !bytes.chunks(block).all(same) {
                return Ok(false);
            }
            done += asked;
        }
        Ok(true)
    }
}

/// Copies with copy_file_range(2), which shares blocks on file systems that support it; returns the
/// number of bytes copied. The caller copies the rest and reports errors.
#[cfg(target_os = "linux")]
fn in_kernel((from, from_offset): (&File, u64), (to, to_offset): (&File, u64), len: u64) -> u64 {
    let mut done = 0;
    while done < len {
        let (mut a, mut b) = (from_offset + done, to_offset + done);
        let most = usize::try_from(len - done).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(from, Some(&mut a), to, Some(&mut b), most) {
            Ok(0) | Err(_) => break,
            Ok(n) => done += n as u64,
        }
    }
    done
}

#[cfg(not(target_os = "linux"))]
fn in_kernel(_: (&File, u64), _: (&File, u64), _: u64) -> u64 {
    0
}
