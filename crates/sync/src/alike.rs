use std::collections::BTreeMap;

use crate::tree::{NodeId, SortedTree, Tree};

/// Finds entries of a tree by names that differ in case alone, which some file systems take for one
/// name.
#[derive(Debug)]
pub(crate) struct AlikeNames<'a> {
    tree: &'a SortedTree,
    /// Entries by directory and name in lower case, of the directories that were asked for.
    dirs: BTreeMap<NodeId, BTreeMap<String, NodeId>>,
}

impl<'a> AlikeNames<'a> {
    pub(crate) fn of(tree: &'a SortedTree) -> Self {
        let dirs = BTreeMap::new();
        Self { tree, dirs }
    }

    /// Returns the entry whose path is `path`, or differs from it in case alone.
    pub(crate) fn find(&mut self, path: &[u8]) -> Option<NodeId> {
        let mut at = Tree::ROOT;
        for name in path.split(|byte| *byte == b'/') {
            let tree = self.tree;
            let names = self.dirs.entry(at).or_insert_with(|| {
                let children = tree.children(at);
                children.map(|id| (key(tree.tree().name(id)), id)).collect()
            });
            at = *names.get(&key(name))?;
        }
        Some(at)
    }
}

fn key(name: &[u8]) -> String {
    String::from_utf8_lossy(name).to_lowercase()
}
