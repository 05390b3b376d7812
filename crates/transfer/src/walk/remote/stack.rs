//! Directories of a remote walk that wait to be listed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::RemoteDirectory;
use crate::walk::WalkDirectoryId;

/// Bytes that a waiting directory takes beyond its path.
const DIRECTORY: usize = 200;

/// Directories to list, deepest first: breadth first would hold the whole tree.
#[derive(Debug)]
pub(super) struct DirectoryStack {
    /// By the number of directories above them. Symlinks are queried first, so that directories are
    /// not found in this order.
    levels: BTreeMap<u32, Vec<Arc<RemoteDirectory>>>,
    /// Number of directories.
    len: usize,
    /// Bytes that they take.
    bytes: usize,
    most_bytes: usize,
    /// The walk was ended because too many directories waited, or because the tree has no end.
    overrun: bool,
}

impl DirectoryStack {
    pub(super) fn new(most_bytes: usize) -> Self {
        Self {
            levels: BTreeMap::new(),
            len: 0,
            bytes: 0,
            most_bytes,
            overrun: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(test)]
    pub(super) fn set_most_bytes(&mut self, most: usize) {
        self.most_bytes = most;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if the walk was ended early.
    pub(super) fn is_overrun(&self) -> bool {
        self.overrun
    }

    /// Adds a directory.
    ///
    /// # Errors
    /// The number of waiting directories, if they take too much memory. They are dropped.
    pub(super) fn push(&mut self, dir: Arc<RemoteDirectory>) -> Result<(), usize> {
        if self.overrun {
            return Ok(());
        }
        self.bytes += weight(&dir);
        if self.bytes <= self.most_bytes {
            self.len += 1;
            self.levels.entry(dir.levels).or_default().push(dir);
            return Ok(());
        }
        let waiting = self.len;
        self.overrun();
        Err(waiting)
    }

    /// Drops all directories, because the walk ends.
    pub(super) fn overrun(&mut self) {
        self.bytes = 0;
        self.len = 0;
        self.overrun = true;
        self.levels = BTreeMap::new();
    }

    /// True if the next directory lies so deep that no other is listed at the same time.
    pub(super) fn is_deep(&self) -> bool {
        let deepest = self.levels.last_key_value();
        let next = deepest.and_then(|(_, dirs)| dirs.last());
        next.is_some_and(|dir| dir.is_deep())
    }

    pub(super) fn pop(&mut self) -> Option<Arc<RemoteDirectory>> {
        let mut deepest = self.levels.last_entry()?;
        let dir = deepest.get_mut().pop()?;
        if deepest.get().is_empty() {
            deepest.remove();
        }
        self.len -= 1;
        self.bytes = self.bytes.saturating_sub(weight(&dir));
        Some(dir)
    }

    /// Removes a directory; `None` if it does not wait.
    pub(super) fn remove(&mut self, id: WalkDirectoryId) -> Option<Arc<RemoteDirectory>> {
        let (level, at) = self.levels.iter().rev().find_map(|(level, dirs)| {
            // Directories are added in the order of their numbers.
            let at = dirs.binary_search_by_key(&id, |dir| dir.id).ok()?;
            Some((*level, at))
        })?;
        let dirs = self.levels.get_mut(&level)?;
        let dir = dirs.remove(at);
        if dirs.is_empty() {
            self.levels.remove(&level);
        }
        self.len -= 1;
        self.bytes = self.bytes.saturating_sub(weight(&dir));
        Some(dir)
    }
}

/// Bytes that a directory takes while it waits. The copy holds its path at the target.
fn weight(dir: &RemoteDirectory) -> usize {
    DIRECTORY + dir.path_len + dir.real.as_ref().map_or(0, Vec::len)
}
