//! Estimates the size of the copy while the connection is being made and as listings arrive. A
//! further login takes four round trips and helps most if it starts with the first files.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use schedule::{Attributes, Direction, EntryKind, TreeStep};

use super::DeltaUse;
use super::engine::{CopyEnd, Engine};
use crate::walk::{RemoteWalk, local_path};

/// Largest number of entries counted, enough to decide about connections. Counting them takes 0.4 s
/// of one processor with warm caches, while the connection is being made.
const MOST: usize = 256 * 1024;

/// Number of files and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCount {
    /// Number of files.
    pub files: u64,
    /// Total size in bytes.
    pub bytes: u64,
}

/// Estimate of the data to send to a host, read by the code that connects meanwhile.
#[derive(Clone, Debug)]
pub struct TransferEstimate(Arc<Shared>);

impl TransferEstimate {
    /// Count so far, of a thread that is still counting or was stopped.
    pub fn so_far(&self) -> FileCount {
        self.0.so_far()
    }
}

/// Handle of a counting thread, which stops when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Counting(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    files: AtomicU64,
    bytes: AtomicU64,
    over: AtomicBool,
}

impl Counting {
    /// Counts the files at `paths`, including subdirectories if `recursive`, on a thread of its
    /// own.
    pub(super) fn of(paths: &[Vec<u8>], recursive: bool) -> Self {
        let paths: Vec<PathBuf> = paths.iter().map(|path| local_path(path)).collect();
        let counting = Self::default();
        let shared = counting.0.clone();
        let thread = thread::Builder::new().name("count".to_owned());
        // Without the thread the count stays zero.
        let _ = thread.spawn(move || shared.count(paths, recursive));
        counting
    }

    /// Read-only view of the count.
    pub(super) fn coming(&self) -> TransferEstimate {
        TransferEstimate(Arc::clone(&self.0))
    }

    fn so_far(&self) -> FileCount {
        self.0.so_far()
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn so_far(&self) -> FileCount {
        FileCount {
            files: self.files.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }

    fn count(&self, mut paths: Vec<PathBuf>, recursive: bool) {
        let mut looked = 0;
        let goes = |looked| looked < MOST && !self.over.load(Ordering::Relaxed);
        while let Some(path) = paths.pop().filter(|_| goes(looked)) {
            looked += 1;
            let Ok(meta) = fs::symlink_metadata(&path) else {
                continue;
            };
            if meta.is_file() {
                self.files.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add(meta.len(), Ordering::Relaxed);
            } else if meta.is_dir() && recursive {
                let entries = fs::read_dir(&path).into_iter().flatten().flatten();
                paths.extend(entries.map(|entry| entry.path()).take(MOST));
            }
        }
    }
}

impl Engine<'_> {
    /// Announces the count so far to the target's session and stops counting.
    pub(super) fn announce(&self, counting: Counting) {
        self.expect(CopyEnd::Target, Direction::Up, counting.so_far());
    }

    /// Announces the files of a listing to the source's session.
    pub(super) fn announce_listed(&self, entries: &[(Vec<u8>, Attributes)]) {
        self.announce_found(entries.iter().map(|(_, attributes)| attributes));
    }

    /// Announces the files of a partial tree to the source's session.
    pub(super) fn announce_tree(&self, steps: &[TreeStep]) {
        self.announce_found(steps.iter().filter_map(|step| match step {
            TreeStep::Entry(_, attributes) => Some(attributes),
            _ => None,
        }));
    }

    /// Tells the source's session how much the walks will probably find, if the estimate grew by
    /// more than a quarter.
    pub(super) fn foresee(&mut self) {
        let sum =
            |(a, b): (u64, u64), (c, d): (u64, u64)| (a.saturating_add(c), b.saturating_add(d));
        let all = self.walks.walking().map(RemoteWalk::foreseen);
        let (files, bytes) = all.fold((0, 0), sum);
        if files > self.walks.foreseen.saturating_mul(5) / 4 {
            self.walks.foreseen = files;
            if let Some(side) = self.side(CopyEnd::Source) {
                side.session.foresee(Direction::Down, files, bytes);
            }
        }
    }

    fn announce_found<'a>(&self, found: impl Iterator<Item = &'a Attributes>) {
        let mut count = FileCount::default();
        for attributes in found.filter(|a| a.kind() == EntryKind::File) {
            count.files += 1;
            count.bytes = count.bytes.saturating_add(attributes.size.unwrap_or(0));
        }
        self.expect(CopyEnd::Source, Direction::Down, count);
    }

    fn expect(&self, end: CopyEnd, direction: Direction, count: FileCount) {
        // A single file rebuilt from a delta does not use further connections, which is only known
        // once it starts.
        if self.options.delta == DeltaUse::Always && count.files == 1 {
            return;
        }
        if let Some(side) = self.side(end).filter(|_| count.files > 0) {
            side.session.expect(direction, count.files, count.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_below_count_where_they_are_copied() -> std::io::Result<()> {
        let dir = tempfile::tempdir()?;
        fs::create_dir(dir.path().join("sub"))?;
        fs::write(dir.path().join("sub/a"), "12345")?;
        fs::write(dir.path().join("b"), "1")?;
        let here = vec![dir.path().to_path_buf()];
        let counted = |recursive| {
            let counting = Counting::default();
            counting.0.count(here.clone(), recursive);
            counting.so_far()
        };
        assert_eq!(counted(true), FileCount { files: 2, bytes: 6 });
        assert_eq!(counted(false), FileCount::default());
        Ok(())
    }
}
