//! Estimates the size of the copy while the connection is being made and as listings arrive. A
//! further login takes four round trips and helps most if it starts with the first files.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use schedule::{Attributes, EntryKind, TransferDirection, TreeWalkStep};

use super::sides::{CopySide, EndpointSessions, RemoteSide};
use super::{CopyOptions, DeltaUse};
use crate::walk::local_path;

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
pub struct TransferEstimate(Arc<EstimateShared>);

impl TransferEstimate {
    /// Count so far, of a thread that is still counting or was stopped.
    pub fn so_far(&self) -> FileCount {
        self.0.so_far()
    }
}

/// Handle of the thread that counts the files to be transferred; the thread stops when this is
/// dropped.
#[derive(Debug, Default)]
pub(super) struct FileCountThread {
    shared: Arc<EstimateShared>,
    /// Part of the count that was already reported to the session.
    told: FileCount,
}

#[derive(Debug, Default)]
struct EstimateShared {
    files: AtomicU64,
    bytes: AtomicU64,
    /// The thread must stop.
    over: AtomicBool,
    /// The count is complete.
    complete: AtomicBool,
}

impl FileCountThread {
    /// Counts the files at `paths`, including subdirectories if `recursive`, on a new thread.
    pub(super) fn of(paths: &[Vec<u8>], recursive: bool) -> Self {
        let paths: Vec<PathBuf> = paths.iter().map(|path| local_path(path)).collect();
        let counting = Self::default();
        let shared = Arc::clone(&counting.shared);
        let thread = thread::Builder::new().name("count".to_owned());
        // Without the thread the count stays zero.
        let _ = thread.spawn(move || {
            shared.count(paths, recursive);
            shared.complete.store(true, Ordering::Release);
        });
        counting
    }

    /// Read-only view of the count.
    pub(super) fn coming(&self) -> TransferEstimate {
        TransferEstimate(Arc::clone(&self.shared))
    }

    /// Returns the growth of the count since the last news if that is more than a quarter or the
    /// count is now complete, and true in the latter case.
    fn news(&mut self) -> Option<(FileCount, bool)> {
        // Read before the count, which does not grow afterwards.
        let complete = self.shared.complete.load(Ordering::Acquire);
        let count = self.shared.so_far();
        let grew = count.files > self.told.files.saturating_mul(5) / 4;
        (grew || complete).then(|| {
            let told = std::mem::replace(&mut self.told, count);
            let growth = FileCount {
                files: count.files.saturating_sub(told.files),
                bytes: count.bytes.saturating_sub(told.bytes),
            };
            (growth, complete)
        })
    }
}

impl Drop for FileCountThread {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
    }
}

impl EstimateShared {
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

/// Tells the sessions how much the copy will move, so that they open connections in time.
#[derive(Debug)]
pub(super) struct TransferSizeAnnouncer {
    delta: DeltaUse,
    /// Count of the files to send that is not complete.
    counting: Option<FileCountThread>,
}

impl TransferSizeAnnouncer {
    pub(super) fn new(options: &CopyOptions) -> Self {
        Self {
            delta: options.delta,
            counting: None,
        }
    }

    /// Takes the count of the files to send, and announces it.
    pub(super) fn begin(&mut self, sides: &EndpointSessions, counting: FileCountThread) {
        self.counting = Some(counting);
        self.announce_count(sides);
    }

    /// Announces the count of the files to send to the target's session, until it is complete.
    ///
    /// The login may be faster than the count. A copy that went by the files counted until then
    /// opened too few connections, or took a tree of small files for one that gains from direct
    /// connections.
    pub(super) fn announce_count(&mut self, sides: &EndpointSessions) {
        let Some(counting) = &mut self.counting else {
            return;
        };
        let Some((more, complete)) = counting.news() else {
            return;
        };
        if complete {
            self.counting = None;
        }
        self.expect(sides.get(CopySide::Target), TransferDirection::Up, more);
    }

    /// Announces the files of a listing to the source's session.
    pub(super) fn announce_listed(
        &self,
        sides: &EndpointSessions,
        entries: &[(Vec<u8>, Attributes)],
    ) {
        self.announce_found(sides, entries.iter().map(|(_, attributes)| attributes));
    }

    /// Announces the files of a partial tree to the source's session.
    pub(super) fn announce_tree(&self, sides: &EndpointSessions, steps: &[TreeWalkStep]) {
        let found = steps.iter().filter_map(|step| match step {
            TreeWalkStep::Entry(_, attributes) => Some(attributes),
            _ => None,
        });
        self.announce_found(sides, found);
    }

    /// Tells the source's session the number of files that the walks will probably find, and their
    /// bytes, if that estimate has grown.
    pub(super) fn foresee(&self, sides: &EndpointSessions, grown: Option<(u64, u64)>) {
        if let (Some((files, bytes)), Some(side)) = (grown, sides.get(CopySide::Source)) {
            side.session()
                .foresee(TransferDirection::Down, files, bytes);
        }
    }

    fn announce_found<'a>(
        &self,
        sides: &EndpointSessions,
        found: impl Iterator<Item = &'a Attributes>,
    ) {
        let mut count = FileCount::default();
        for attributes in found.filter(|a| a.kind() == EntryKind::File) {
            count.files += 1;
            count.bytes = count.bytes.saturating_add(attributes.size.unwrap_or(0));
        }
        self.expect(sides.get(CopySide::Source), TransferDirection::Down, count);
    }

    fn expect(&self, side: Option<&RemoteSide>, direction: TransferDirection, count: FileCount) {
        // A single file rebuilt from a delta does not use further connections, which is only known
        // once it starts.
        if self.delta == DeltaUse::Always && count.files == 1 {
            return;
        }
        if let Some(side) = side.filter(|_| count.files > 0) {
            side.session().expect(direction, count.files, count.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under load the count was a part of the tree when the login was over, and stayed that.
    #[test]
    fn the_count_is_told_again_until_it_is_complete() {
        let mut counting = FileCountThread::default();
        let shared = Arc::clone(&counting.shared);
        let add = |files, bytes| {
            shared.files.fetch_add(files, Ordering::Relaxed);
            shared.bytes.fetch_add(bytes, Ordering::Relaxed);
        };
        let count = |files, bytes| FileCount { files, bytes };
        assert_eq!(counting.news(), None, "nothing is known");
        add(100, 1000);
        assert_eq!(counting.news(), Some((count(100, 1000), false)));
        add(10, 100);
        assert_eq!(counting.news(), None, "hardly more");
        add(90, 900);
        assert_eq!(counting.news(), Some((count(100, 1000), false)));
        add(5, 50);
        shared.complete.store(true, Ordering::Release);
        assert_eq!(counting.news(), Some((count(5, 50), true)));
    }

    #[test]
    fn files_below_count_where_they_are_copied() -> std::io::Result<()> {
        let dir = tempfile::tempdir()?;
        fs::create_dir(dir.path().join("sub"))?;
        fs::write(dir.path().join("sub/a"), "12345")?;
        fs::write(dir.path().join("b"), "1")?;
        let here = vec![dir.path().to_path_buf()];
        let counted = |recursive| {
            let counting = FileCountThread::default();
            counting.shared.count(here.clone(), recursive);
            counting.shared.so_far()
        };
        assert_eq!(counted(true), FileCount { files: 2, bytes: 6 });
        assert_eq!(counted(false), FileCount::default());
        Ok(())
    }

    /// The parts that are told add up to the count, whatever the times at which it is read.
    #[test]
    fn the_parts_that_are_told_add_up_to_the_count() {
        let mut seed = testkit::Seed::new(10);
        for _ in 0..200 {
            let mut counting = FileCountThread::default();
            let shared = Arc::clone(&counting.shared);
            let (mut all, mut told) = (FileCount::default(), FileCount::default());
            let mut is_complete = false;
            for nth in 0..30 {
                let (files, bytes) = (seed.below(200), seed.below(5000));
                shared.files.fetch_add(files, Ordering::Relaxed);
                shared.bytes.fetch_add(bytes, Ordering::Relaxed);
                all.files += files;
                all.bytes += bytes;
                shared.complete.store(nth == 29, Ordering::Release);
                if let Some((more, complete)) = counting.news() {
                    told.files += more.files;
                    told.bytes += more.bytes;
                    is_complete |= complete;
                    assert_eq!(told, all, "what is told is what was counted");
                } else {
                    assert!(
                        all.files <= told.files + told.files / 4 + 1,
                        "{all:?} {told:?}"
                    );
                }
            }
            assert!(is_complete, "the end of the count was not told");
        }
    }

    /// The count goes by the files that the copy sends: symlinks and missing sources are none, and
    /// a count that was stopped ends.
    #[test]
    fn symlinks_and_missing_sources_are_not_counted() -> std::io::Result<()> {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("file"), "123")?;
        std::os::unix::fs::symlink("file", dir.path().join("link"))?;
        std::os::unix::fs::symlink(".", dir.path().join("loop"))?;
        let counting = FileCountThread::default();
        let paths = vec![dir.path().to_path_buf(), dir.path().join("missing")];
        counting.shared.count(paths.clone(), true);
        assert_eq!(counting.coming().so_far(), FileCount { files: 1, bytes: 3 });
        let stopped = FileCountThread::default();
        let shared = Arc::clone(&stopped.shared);
        drop(stopped);
        shared.count(paths, true);
        assert_eq!(shared.so_far(), FileCount::default());
        Ok(())
    }
}
