//! Directories of the target that may be the source itself, under a path that tells nothing.

use crate::tree::{EntryTree, SortedTree, TreeEntry, TreeEntryId, TreeEntryKind};

/// Returns the directories of the target that contain everything that the root of the source
/// contains, by name, type and size; at most `most`.
pub fn source_lookalikes(
    source: &SortedTree,
    target: &SortedTree,
    most: usize,
) -> Vec<TreeEntryId> {
    let entry = |tree: &SortedTree, id: TreeEntryId| -> TreeEntry { tree.tree().entry(id).clone() };
    let wanted: Vec<(&[u8], TreeEntry)> = source
        .children(EntryTree::ROOT)
        .map(|id| (source.tree().name(id), entry(source, id)))
        .collect();
    let mut found = Vec::new();
    let mut open = vec![EntryTree::ROOT];
    while let Some(dir) = open
        .pop()
        .filter(|_| found.len() < most && !wanted.is_empty())
    {
        let below = target.children(dir);
        open.extend(below.filter(|id| target.tree().entry(*id).kind == TreeEntryKind::Directory));
        let has = |(name, wanted): &(&[u8], TreeEntry)| {
            let there = target.child(dir, name).map(|id| entry(target, id));
            there.is_some_and(|there| there.kind == wanted.kind && there.size == wanted.size)
        };
        if dir != EntryTree::ROOT && wanted.iter().all(has) {
            found.push(dir);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(paths: &[&str]) -> SortedTree {
        let mut tree = EntryTree::new();
        let mut dirs = vec![(String::new(), EntryTree::ROOT)];
        for path in paths {
            let (above, name) = path
                .trim_end_matches('/')
                .rsplit_once('/')
                .unwrap_or(("", path));
            let name = name.trim_end_matches('/');
            let parent = dirs
                .iter()
                .find(|(dir, _)| dir == above)
                .expect("a directory")
                .1;
            let kind = match path.ends_with('/') {
                true => TreeEntry::new(TreeEntryKind::Directory),
                false => TreeEntry::file(name.len() as u64, 1),
            };
            let id = tree
                .add(parent, name.as_bytes(), kind)
                .expect("there is room");
            dirs.push((path.trim_end_matches('/').to_owned(), id));
        }
        tree.sorted()
    }

    fn found(source: &[&str], target: &[&str], most: usize) -> Vec<String> {
        let target = tree(target);
        let all = source_lookalikes(&tree(source), &target, most);
        let mut all: Vec<String> = all
            .into_iter()
            .map(|id| String::from_utf8(target.tree().path(id)).expect("ours"))
            .collect();
        all.sort();
        all
    }

    #[test]
    fn a_directory_with_all_of_the_source_may_be_the_source() {
        let source = ["a", "d/", "d/x"];
        let target = [
            "other", "s/", "s/a", "s/d/", "s/more", "t/", "t/a", "u/", "u/d/", "u/d/s/", "u/d/s/a",
            "u/d/s/d/",
        ];
        assert_eq!(found(&source, &target, 9), ["s", "u/d/s"]);
        assert_eq!(found(&source, &target, 1).len(), 1);
        // The root itself is what is synced, and a file is no directory.
        assert!(found(&source, &["a", "d/"], 9).is_empty());
        assert!(found(&source, &["s/", "s/a", "s/d"], 9).is_empty());
        // An empty source is refused elsewhere.
        assert!(found(&[], &target, 9).is_empty());
    }
}
