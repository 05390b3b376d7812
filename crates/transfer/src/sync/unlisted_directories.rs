//! Directories whose entries are being listed.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};

use sync::TreeEntryId;

use crate::walk::WalkDirectoryId;

/// Directories that a walk has found and not listed to the end, with their entries in the tree.
#[derive(Default)]
pub(super) struct UnlistedDirectories {
    nodes: BTreeMap<WalkDirectoryId, TreeEntryId>,
    /// Hashes of their paths with the directories, from the first search on. Many directories wait
    /// to be listed, whose paths would take much memory.
    by_path: Option<BTreeSet<(u64, TreeEntryId)>>,
    /// A server chooses the paths, and must not choose their hashes.
    hasher: RandomState,
}

impl UnlistedDirectories {
    /// Adds a directory, whose path `path_of` returns.
    pub(super) fn insert(
        &mut self,
        id: WalkDirectoryId,
        node: TreeEntryId,
        path_of: impl Fn(TreeEntryId) -> Vec<u8>,
    ) {
        self.nodes.insert(id, node);
        if let Some(by_path) = &mut self.by_path {
            by_path.insert((self.hasher.hash_one(path_of(node)), node));
        }
    }

    /// Returns the entry of a directory.
    pub(super) fn get(&self, id: WalkDirectoryId) -> Option<TreeEntryId> {
        self.nodes.get(&id).copied()
    }

    /// Removes a directory that is listed, whose path `path_of` returns.
    pub(super) fn remove(&mut self, id: WalkDirectoryId, path_of: impl Fn(TreeEntryId) -> Vec<u8>) {
        if let (Some(node), Some(by_path)) = (self.nodes.remove(&id), &mut self.by_path) {
            by_path.remove(&(self.hasher.hash_one(path_of(node)), node));
        }
    }

    /// Finds the directory with this path. `path_of` returns the path of an entry.
    pub(super) fn find(
        &mut self,
        path: &[u8],
        path_of: impl Fn(TreeEntryId) -> Vec<u8>,
    ) -> Option<TreeEntryId> {
        let (nodes, hasher) = (&self.nodes, &self.hasher);
        let by_path = self.by_path.get_or_insert_with(|| {
            let nodes = nodes.values();
            nodes
                .map(|node| (hasher.hash_one(path_of(*node)), *node))
                .collect()
        });
        // Slices and vectors have the same hash.
        let hash = self.hasher.hash_one(path);
        let alike = by_path.range((hash, TreeEntryId::MIN)..=(hash, TreeEntryId::MAX));
        let mut alike = alike.map(|(_, node)| *node);
        alike.find(|node| path_of(*node) == path)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use sync::{EntryTree, TreeEntry, TreeEntryKind};

    use super::*;

    /// Bug: each file with the name of a temporary took a look at all directories that were being
    /// listed.
    #[test]
    fn a_directory_is_found_without_a_look_at_the_others() {
        const DIRECTORIES: u64 = 2000;
        let mut tree = EntryTree::new();
        let mut open = UnlistedDirectories::default();
        let paths = Cell::new(0);
        let mut add = |open: &mut UnlistedDirectories, n: u64| {
            let entry = TreeEntry::new(TreeEntryKind::Directory);
            let node = tree.add(EntryTree::ROOT, n.to_string().as_bytes(), entry);
            let node = node.expect("there is room");
            open.insert(WalkDirectoryId(n), node, |id| tree.path(id));
            node
        };
        let mut nodes: Vec<TreeEntryId> = (0..DIRECTORIES).map(|n| add(&mut open, n)).collect();
        nodes.push(add(&mut open, DIRECTORIES));
        let path_of = |id| {
            paths.set(paths.get() + 1);
            tree.path(id)
        };
        for (n, node) in nodes.iter().enumerate() {
            let found = open.find(n.to_string().as_bytes(), path_of);
            assert_eq!(found, Some(*node));
        }
        assert!(paths.get() <= 2 * nodes.len(), "{} paths", paths.get());
        open.remove(WalkDirectoryId(7), path_of);
        assert_eq!(
            (open.get(WalkDirectoryId(7)), open.find(b"7", path_of)),
            (None, None)
        );
        assert_eq!(open.find(b"none", path_of), None);
    }
}
