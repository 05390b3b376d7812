//! What is to come, counted while the connection is being made and as listings arrive: a further
//! login takes four round trips, and is of most use when it is begun with the first files.

use std::fs;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use plan::{Attributes, Direction, EntryKind, TreeStep};

use super::Delta;
use super::engine::{End, Engine};
use crate::walk::local_path;

/// Entries looked at, in all: enough to know that there are many. Of 4 KiB each, 4,096 of them were
/// too few bytes for it; as many as these take 30 ms, while the connection is being made.
const MOST: usize = 16 * 1024;

/// Files and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    files: u64,
    bytes: u64,
}

/// Counts what is at `paths`, and below where `recursive`, on a thread of its own.
pub(super) fn count(paths: &[Vec<u8>], recursive: bool) -> Option<JoinHandle<Count>> {
    let paths: Vec<PathBuf> = paths.iter().map(|path| local_path(path)).collect();
    let thread = thread::Builder::new().name("count".to_owned());
    thread.spawn(move || count_here(paths, recursive)).ok()
}

fn count_here(mut paths: Vec<PathBuf>, recursive: bool) -> Count {
    let mut count = Count::default();
    let mut looked = 0;
    while let Some(path) = paths.pop().filter(|_| looked < MOST) {
        looked += 1;
        let Ok(meta) = fs::symlink_metadata(&path) else {
            continue;
        };
        if meta.is_file() {
            count.files += 1;
            count.bytes += meta.len();
        } else if meta.is_dir() && recursive {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            paths.extend(entries.map(|entry| entry.path()).take(MOST));
        }
    }
    count
}

impl Engine<'_> {
    /// Tells the session at the target what was counted, if that is done.
    pub(super) fn announce(&self, counting: Option<JoinHandle<Count>>) {
        let done = counting.filter(JoinHandle::is_finished);
        if let Some(count) = done.and_then(|thread| thread.join().ok()) {
            self.expect(End::Target, Direction::Up, count);
        }
    }

    /// Tells the session at the source what a listing has brought.
    pub(super) fn announce_listed(&self, entries: &[(Vec<u8>, Attributes)]) {
        self.announce_found(entries.iter().map(|(_, attributes)| attributes));
    }

    /// The same of a part of a tree.
    pub(super) fn announce_tree(&self, steps: &[TreeStep]) {
        self.announce_found(steps.iter().filter_map(|step| match step {
            TreeStep::Entry(_, attributes) => Some(attributes),
            _ => None,
        }));
    }

    fn announce_found<'a>(&self, found: impl Iterator<Item = &'a Attributes>) {
        let mut count = Count::default();
        for attributes in found.filter(|a| a.kind() == EntryKind::File) {
            count.files += 1;
            count.bytes = count.bytes.saturating_add(attributes.size.unwrap_or(0));
        }
        self.expect(End::Source, Direction::Down, count);
    }

    fn expect(&self, end: End, direction: Direction, count: Count) {
        // Where it is rebuilt further connections are of no use, and that is not known before it begins.
        if self.options.delta == Delta::Always && count.files == 1 {
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
        let all = Count { files: 2, bytes: 6 };
        assert_eq!(count_here(here.clone(), true), all);
        assert_eq!(count_here(here, false), Count::default());
        Ok(())
    }
}
