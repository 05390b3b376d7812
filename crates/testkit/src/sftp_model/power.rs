//! Power loss: a file system in memory forgets what was not synced.

use std::collections::BTreeMap;

use super::{Fs, Kind, Rng};

/// Changes of the file system since the last sync, which a power loss may undo.
#[derive(Clone, Debug, Default)]
pub(super) struct UnsyncedChanges {
    /// Changes of names in order, each with the inode that the name had before. The changes of one
    /// operation belong together.
    names: Vec<Vec<(Vec<u8>, Option<u64>)>>,
    /// Number of further changes that belong to the last operation.
    together: usize,
    /// Ranges of files that were written.
    ranges: BTreeMap<u64, Vec<(u64, u64)>>,
}

impl UnsyncedChanges {
    /// Announces that the next `changes` belong to one operation.
    pub(super) fn begin(&mut self, changes: usize) {
        self.names.push(Vec::new());
        self.together = changes;
    }

    pub(super) fn renamed(&mut self, path: Vec<u8>, before: Option<u64>) {
        if self.together == 0 {
            self.begin(1);
        }
        self.together -= 1;
        if let Some(last) = self.names.last_mut() {
            last.push((path, before));
        }
    }

    pub(super) fn wrote(&mut self, inode: u64, from: u64, to: u64) {
        let ranges = self.ranges.entry(inode).or_default();
        match ranges.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => ranges.push((from, to)),
        }
    }
}

impl Fs {
    /// Records from now on what a power loss would undo.
    pub fn record_unsynced(&mut self) {
        self.unsynced = Some(UnsyncedChanges::default());
    }

    /// Makes a file durable, and all names with it, as a journaling file system does.
    pub fn sync(&mut self, inode: u64) {
        if let Some(unsynced) = &mut self.unsynced {
            unsynced.ranges.remove(&inode);
            unsynced.names.clear();
        }
    }

    /// Makes everything durable.
    pub fn sync_all(&mut self) {
        if self.unsynced.is_some() {
            self.unsynced = Some(UnsyncedChanges::default());
        }
    }

    /// Loses the power: of the changes of names since the last sync the first ones remain, up to a
    /// random one, and of unsynced data random ranges read as zeros.
    pub fn lose_power(&mut self, rng: &mut Rng) {
        let Some(unsynced) = self.unsynced.take() else {
            return;
        };
        let keeps = rng.below(unsynced.names.len() as u64 + 1) as usize;
        for operation in unsynced.names.into_iter().skip(keeps).rev() {
            for (path, before) in operation.into_iter().rev() {
                match before {
                    Some(inode) => self.names.insert(path, inode),
                    None => self.names.remove(&path),
                };
            }
        }
        for (inode, ranges) in unsynced.ranges {
            for (from, to) in ranges {
                if rng.below(2) == 0 {
                    self.zero(inode, from, to);
                }
            }
        }
        self.record_unsynced();
    }

    fn zero(&mut self, inode: u64, from: u64, to: u64) {
        if let Some(node) = self.inodes.get_mut(&inode)
            && let Kind::File(data) = &mut node.kind
        {
            let len = data.len();
            let (from, to) = ((from as usize).min(len), (to as usize).min(len));
            if let Some(lost) = data.get_mut(from..to) {
                lost.fill(0);
            }
        }
    }
}
