use std::collections::BTreeMap;

use crate::compare::{ComparisonRules, TimeGranularity};
use crate::tree::{EntryTree, TreeEntry, TreeEntryId, TreeEntryKind};

/// Pairs new files of the source with files of the target that have the same size and modification
/// time. Among several of one size and time, files of one name are paired first, and the rest only
/// if a single pair is left, so that no pair is a guess.
pub(crate) fn pairs(
    source: &EntryTree,
    created: impl Iterator<Item = TreeEntryId>,
    target: &EntryTree,
    deleted: impl Iterator<Item = TreeEntryId>,
    rules: &ComparisonRules,
) -> Vec<(TreeEntryId, TreeEntryId)> {
    let mut groups: BTreeMap<MoveMatchKey, MoveGroup> = BTreeMap::new();
    for id in deleted {
        if let Some(key) = MoveMatchKey::of(target.entry(id), rules) {
            groups.entry(key).or_default().deleted.push(id);
        }
    }
    for id in created {
        let entry = source.entry(id);
        let key = MoveMatchKey::of(entry, rules).filter(|_| !rules.is_privileged(entry));
        if let Some(group) = key.and_then(|key| groups.get_mut(&key)) {
            group.created.push(id);
        }
    }
    let mut pairs = Vec::new();
    for group in groups.into_values() {
        group.pair(source, target, &mut pairs);
    }
    pairs
}

/// Size in bytes and modification time by which a moved file is recognized, in the unit that both
/// ends share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MoveMatchKey(u64, i64);

impl MoveMatchKey {
    fn of(entry: &TreeEntry, rules: &ComparisonRules) -> Option<Self> {
        if entry.kind != TreeEntryKind::File || entry.size == 0 {
            return None;
        }
        let seconds = entry.modified?.seconds;
        let unit = match rules.grain {
            TimeGranularity::TwoSeconds => 2,
            TimeGranularity::Second | TimeGranularity::Nanosecond => 1,
        };
        Some(Self(entry.size, seconds.div_euclid(unit)))
    }
}

/// New files of the source and vanished files of the target with one size and modification time.
#[derive(Debug, Default)]
struct MoveGroup {
    created: Vec<TreeEntryId>,
    deleted: Vec<TreeEntryId>,
}

impl MoveGroup {
    fn pair(
        mut self,
        source: &EntryTree,
        target: &EntryTree,
        pairs: &mut Vec<(TreeEntryId, TreeEntryId)>,
    ) {
        let mut by_name: BTreeMap<&[u8], Vec<TreeEntryId>> = BTreeMap::new();
        for id in self.deleted.iter().rev() {
            by_name.entry(target.name(*id)).or_default().push(*id);
        }
        let mut taken = Vec::new();
        self.created.retain(|id| {
            let found = by_name.get_mut(source.name(*id)).and_then(Vec::pop);
            if let Some(from) = found {
                pairs.push((*id, from));
                taken.push(from);
            }
            found.is_none()
        });
        taken.sort_unstable();
        self.deleted.retain(|id| taken.binary_search(id).is_err());
        if let ([to], [from]) = (self.created.as_slice(), self.deleted.as_slice()) {
            pairs.push((*to, *from));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::SyncPlan;

    fn tree(files: &[(&str, u64, i64)]) -> crate::SortedTree {
        let mut tree = EntryTree::new();
        let mut dirs: BTreeMap<Vec<u8>, TreeEntryId> = BTreeMap::new();
        for (path, size, seconds) in files {
            let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
            let parent = match dir {
                "" => EntryTree::ROOT,
                dir => *dirs.entry(dir.as_bytes().to_vec()).or_insert_with(|| {
                    let entry = TreeEntry::new(TreeEntryKind::Directory);
                    tree.add(EntryTree::ROOT, dir.as_bytes(), entry).unwrap()
                }),
            };
            tree.add(parent, name.as_bytes(), TreeEntry::file(*size, *seconds));
        }
        tree.sorted()
    }

    fn moves(source: &[(&str, u64, i64)], target: &[(&str, u64, i64)]) -> Vec<String> {
        let rules = ComparisonRules::default();
        let plan = SyncPlan::new(tree(source), tree(target), &rules);
        let path = |tree: &crate::SortedTree, id| String::from_utf8(tree.tree().path(id)).unwrap();
        let found = plan.find_moves(&rules);
        let mut found: Vec<String> = found
            .into_iter()
            .map(|(to, from)| {
                format!(
                    "{} > {}",
                    path(plan.target(), from),
                    path(plan.source(), to)
                )
            })
            .collect();
        found.sort();
        found
    }

    #[test]
    fn a_moved_directory_is_paired_file_by_file() {
        let source = [("new/a", 5, 1), ("new/b", 5, 1), ("new/c", 7, 2)];
        let target = [("old/a", 5, 1), ("old/b", 5, 1), ("old/c", 7, 2)];
        let expected = ["old/a > new/a", "old/b > new/b", "old/c > new/c"];
        assert_eq!(moves(&source, &target), expected);
    }

    #[test]
    fn a_renamed_file_is_paired_only_if_there_is_no_choice() {
        assert_eq!(moves(&[("x", 5, 1)], &[("y", 5, 1)]), ["y > x"]);
        assert!(moves(&[("x", 5, 1)], &[("y", 5, 1), ("z", 5, 1)]).is_empty());
        assert!(moves(&[("x", 5, 1)], &[("y", 5, 2)]).is_empty());
        assert!(moves(&[("x", 0, 1)], &[("y", 0, 1)]).is_empty());
    }
}
