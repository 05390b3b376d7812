//! Checksums of the blocks of a file that hosts pass on to each other.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use ssh::direct_control::{GrowingFileBlocks, HASH, MOST_BLOCKS};

use crate::disk::{ExpectedContent, open_regular};

/// Smallest block. The time of a block is what each host of a chain adds to the copy.
const LEAST: u64 = 1 << 20;
/// Bytes that are hashed at once.
const PIECE: usize = 1 << 20;

/// BLAKE3 of each block of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileBlockHashes {
    size: u64,
    block: u64,
    sums: Vec<[u8; HASH]>,
}

impl FileBlockHashes {
    /// Computes the checksums of a file, and what another host has to know about it before it is
    /// complete there. `stopped` ends the work early.
    ///
    /// # Errors
    /// The file cannot be read, has changed, or `stopped` returned true.
    pub fn of(path: &Path, stopped: impl Fn() -> bool) -> io::Result<(Self, GrowingFileBlocks)> {
        let file = open_regular(path)?;
        let meta = file.metadata()?;
        let size = meta.len();
        let least = size.div_ceil(MOST_BLOCKS as u64);
        let block = least.next_multiple_of(LEAST).max(LEAST);
        let mut sums = Vec::new();
        let mut at = 0_u64;
        while at < size {
            if stopped() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let end = at.saturating_add(block).min(size);
            sums.push(sum(&file, at, end)?);
            at = end;
        }
        let after = file.metadata()?;
        if (after.len(), after.mtime(), after.mtime_nsec())
            != (size, meta.mtime(), meta.mtime_nsec())
        {
            return Err(io::Error::other(
                "the file changed while it was read: copy it again",
            ));
        }
        let growing = GrowingFileBlocks {
            size,
            mode: meta.mode() & 0o7777,
            mtime: meta.mtime().try_into().unwrap_or(0),
            block,
            hashes: sums.clone(),
        };
        Ok((Self { size, block, sums }, growing))
    }

    /// Returns a text that identifies the contents of the file.
    pub fn identity(&self) -> String {
        let sum = blake3::hash(&self.sums.concat());
        format!("{}-{}", self.size, sum.to_hex())
    }

    /// Returns the offset of the first block of a file that differs; `None` if all are equal.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn first_difference(&self, path: &Path) -> io::Result<Option<u64>> {
        self.difference_in(&open_regular(path)?)
    }

    fn difference_in(&self, file: &File) -> io::Result<Option<u64>> {
        let mut at = 0_u64;
        for expected in &self.sums {
            let end = at.saturating_add(self.block).min(self.size);
            match sum(file, at, end) {
                Ok(found) if found == *expected => {}
                Ok(_) => return Ok(Some(at)),
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(Some(at)),
                Err(e) => return Err(e),
            }
            at = end;
        }
        let same = at == self.size && file.metadata()?.len() == self.size;
        Ok((!same).then_some(at))
    }
}

/// Checksums that a file must have before it gets its final name.
#[derive(Debug)]
pub(super) struct RequiredBlockHashes {
    sums: FileBlockHashes,
    proven: AtomicBool,
}

impl RequiredBlockHashes {
    pub(super) fn new(sums: FileBlockHashes) -> Self {
        Self {
            sums,
            proven: AtomicBool::new(false),
        }
    }

    /// True if a file with these checksums was found before it got its name.
    pub(super) fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
    }
}

impl ExpectedContent for RequiredBlockHashes {
    fn size(&self) -> u64 {
        self.sums.size
    }

    fn check(&self, file: &File) -> io::Result<()> {
        match self.sums.difference_in(file)? {
            None => {
                self.proven.store(true, Ordering::Relaxed);
                Ok(())
            }
            Some(at) => Err(io::Error::other(differs(at))),
        }
    }
}

/// Says from where on a copy is wrong.
pub(super) fn differs(at: u64) -> String {
    format!("the copy differs from the source from byte {at} on; copy it again")
}

/// BLAKE3 of a range of a file.
fn sum(file: &File, mut at: u64, end: u64) -> io::Result<[u8; HASH]> {
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; PIECE];
    while at < end {
        let room = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
        let room = piece.get_mut(..room).unwrap_or_default();
        file.read_exact_at(room, at)?;
        hasher.update(room);
        at += room.len() as u64;
    }
    Ok(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_block_and_a_changed_length_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let mut content = vec![5; (2 << 20) + 7];
        std::fs::write(&file, &content).unwrap();
        let (sums, growing) = FileBlockHashes::of(&file, || false).unwrap();
        assert_eq!((growing.block, growing.hashes.len()), (1 << 20, 3));
        assert_eq!(sums.first_difference(&file).unwrap(), None);
        content[(1 << 20) + 1] = 6;
        std::fs::write(&file, &content).unwrap();
        assert_eq!(sums.first_difference(&file).unwrap(), Some(1 << 20));
        content[(1 << 20) + 1] = 5;
        for len in [content.len() - 1, content.len() + 1] {
            let mut other = content.clone();
            other.resize(len, 5);
            std::fs::write(&file, &other).unwrap();
            assert!(sums.first_difference(&file).unwrap().is_some(), "{len}");
        }
        // Another user of the receiving host may put a FIFO there.
        std::fs::remove_file(&file).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &file, fifo, mode, 0).unwrap();
        assert!(sums.first_difference(&file).is_err());
        assert!(FileBlockHashes::of(&file, || true).is_err());
    }

    #[test]
    fn a_large_file_has_no_more_blocks_than_a_message_holds() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let holes = File::create(&file).unwrap();
        holes.set_len((500 << 20) + 1).unwrap();
        let (_, growing) = FileBlockHashes::of(&file, || false).unwrap();
        assert_eq!((growing.block, growing.hashes.len()), (2 << 20, 251));
    }
}
