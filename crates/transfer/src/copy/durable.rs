//! What no file makes durable with itself at a longhaul's end: the names of directories, symlinks and
//! hard links, and what directories have beside them.

use std::collections::BTreeSet;

use schedule::{JobKind, RemotePath, directory_of};

use super::engine::{End, Engine, Purpose};

/// Paths that one request has, and bytes of them: both are far below what it may have.
const MOST: usize = 512;
const MOST_BYTES: usize = 64 << 10;

/// Directories whose names and attributes have been set and are not durable yet.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    dirs: BTreeSet<Vec<u8>>,
    bytes: usize,
}

impl Unsynced {
    fn insert(&mut self, dir: Vec<u8>) {
        let len = dir.len();
        if self.dirs.insert(dir) {
            self.bytes += len;
        }
    }

    fn is_full(&self) -> bool {
        // Two are inserted at a time.
        self.dirs.len() >= MOST || self.bytes >= MOST_BYTES
    }
}

impl Engine<'_> {
    /// Something without contents has got this name, and stands there as it is to be.
    pub(super) fn name_made(&mut self, path: &[u8], directory: bool) {
        if !self.options.fsync || self.target.is_none() {
            return;
        }
        if directory {
            self.unsynced.insert([path, b"/."].concat());
        }
        self.unsynced.insert(directory_of(path));
        if self.unsynced.is_full() {
            self.sync_names();
        }
    }

    /// Has all of them made durable; false where there are none, or nobody who can be asked.
    pub(super) fn sync_names(&mut self) -> bool {
        let unsynced = std::mem::take(&mut self.unsynced);
        let Some(first) = unsynced.dirs.first() else {
            return false;
        };
        let name = self.shown(End::Target, first);
        let paths = unsynced.dirs.into_iter().map(RemotePath).collect();
        let kind = JobKind::MakeDurable { paths };
        let purpose = Purpose::Durable(name);
        self.submit(End::Target, kind, purpose).is_some()
    }
}
