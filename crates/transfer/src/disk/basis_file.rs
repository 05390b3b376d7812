//! A file that is rebuilt beside its older form.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use schedule::delta::LEAST;
use sftp::blocks::{BlockSum, SumKey, strong};

use super::directories::Destination;
use super::source::{Source, open_source_with};
use super::{Create, Target, create_target};
use crate::sums::FileSums;

/// Copied, or read and hashed, at once: whole blocks.
const PIECE: usize = 1 << 20;

/// What stands under the final name meanwhile.
#[derive(Debug)]
pub(super) struct BasisFile {
    pub(super) file: Source,
    /// Of what is rebuilt, where sums are wanted.
    sums: Option<Arc<FileSums>>,
}

/// Opens the older form of a target and the temporary beside it; as
/// [`schedule::DiskRequest::OpenOlder`]. Returns the size of the older form.
pub(super) fn open_older(
    create: Create<'_>,
    sums: impl FnOnce() -> Option<Arc<FileSums>>,
) -> Option<(Target, u64)> {
    let Ok(Destination::At(at)) = create.directories.destination(create.path) else {
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

impl Target {
    /// Copies `len` bytes at `from` of the older form to `at`; returns how many there were.
    pub(super) fn copy_older(&self, from: u64, at: u64, len: u64) -> io::Result<u64> {
        let Some(older) = &self.older else {
            return Err(io::Error::other("no older form of it is open"));
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
            // What of the older form cannot be read is read from the far end.
            let read = older.file.append(from + done, piece, &mut bytes);
            if read.is_err() || bytes.is_empty() {
                break;
            }
            self.write_slice(at + done, &bytes)?;
            done += bytes.len() as u64;
        }
        Ok(done)
    }

    /// Whether the blocks of what was written at `offset` have these sums.
    pub(super) fn check_rebuilt(
        &self,
        key: &SumKey,
        block: u32,
        (offset, len): (u64, usize),
        sums: &Bytes,
    ) -> io::Result<bool> {
        let block = block.max(1) as usize;
        let piece = PIECE.max(block);
        let mut sums = BlockSum::read_all(sums);
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
                    // A hole at its end: it has no length before it is finished.
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

/// Copies as far as the kernel does by itself, which shares the blocks where the file system can;
/// returns how many bytes. What it cannot do, and what fails, is another's to do, or to fail.
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
