//! Makes durable what no file's own fsync covers on a remote longhaul: names of directories,
//! symlinks and hard links, and the metadata of directories.

use std::collections::BTreeSet;

use schedule::{JobKind, RemotePath, directory_of};

use super::context::CopyContext;
use super::jobs::JobPurpose;
use super::sides::CopySide;

/// Paths in one request, and their total bytes; both are far below the protocol's limits.
const MOST: usize = 512;
const MOST_BYTES: usize = 64 << 10;

/// Directories with new names or attributes that are not durable yet.
#[derive(Debug, Default)]
pub(super) struct UnsyncedDirs {
    dirs: BTreeSet<Vec<u8>>,
    bytes: usize,
}

impl UnsyncedDirs {
    fn insert(&mut self, dir: Vec<u8>) {
        let len = dir.len();
        if self.dirs.insert(dir) {
            self.bytes += len;
        }
    }

    fn is_full(&self) -> bool {
        // Two paths are inserted at a time.
        self.dirs.len() >= MOST || self.bytes >= MOST_BYTES
    }

    /// Notes that a directory, symlink or hard link got this name and is complete.
    pub(super) fn name_made(
        &mut self,
        context: &mut CopyContext<'_>,
        path: &[u8],
        directory: bool,
    ) {
        if !context.options().fsync || !context.target_is_remote() {
            return;
        }
        if directory {
            self.insert([path, b"/."].concat());
        }
        self.insert(directory_of(path));
        if self.is_full() {
            self.sync(context);
        }
    }

    /// Requests durability for all noted directories. Returns false if there are none or no session
    /// can do it.
    pub(super) fn sync(&mut self, context: &mut CopyContext<'_>) -> bool {
        let unsynced = std::mem::take(self);
        let Some(first) = unsynced.dirs.first() else {
            return false;
        };
        let name = context.shown(CopySide::Target, first);
        let paths = unsynced.dirs.into_iter().map(RemotePath).collect();
        let kind = JobKind::MakeDurable { paths };
        let purpose = JobPurpose::Durable(name);
        context.submit(CopySide::Target, kind, purpose).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request for durability stays below the protocol's limits, also with the two paths that are
    /// added at a time.
    #[test]
    fn a_request_for_durability_has_a_limited_size() {
        let mut seed = testkit::Seed::new(16);
        for long in [1, 200, 4000] {
            let mut unsynced = UnsyncedDirs::default();
            let (mut names, mut bytes) = (BTreeSet::new(), 0);
            while !unsynced.is_full() {
                let len = 1 + seed.below(long) as usize;
                let dir = format!("{}{}", seed.below(4000), "d".repeat(len)).into_bytes();
                // A directory counts once, however many names it gets.
                for _ in 0..2 {
                    unsynced.insert(dir.clone());
                }
                if names.insert(dir.clone()) {
                    bytes += dir.len();
                }
                assert_eq!((unsynced.dirs.len(), unsynced.bytes), (names.len(), bytes));
            }
            assert!(
                names.len() <= MOST && bytes < MOST_BYTES + 4100,
                "{} {bytes}",
                names.len()
            );
        }
    }
}
