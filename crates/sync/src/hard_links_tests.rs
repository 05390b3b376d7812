use std::collections::{BTreeMap, BTreeSet};

use arbtest::arbitrary::{Result, Unstructured};
use arbtest::arbtest;

use super::*;
use crate::compare::MetadataRules;
use crate::tree::{EntryTree, TreeEntry};

/// Files of one end: names with the numbers of their inodes, and inodes.
#[derive(Clone, Debug, Default)]
struct Disk {
    names: BTreeMap<Vec<u8>, u64>,
    inodes: BTreeMap<u64, TreeEntry>,
}

impl Disk {
    fn with(names: &[(&str, u64)], inodes: &[(u64, TreeEntry)]) -> Self {
        Self {
            names: names
                .iter()
                .map(|(n, i)| (n.as_bytes().to_vec(), *i))
                .collect(),
            inodes: inodes.iter().cloned().collect(),
        }
    }

    fn arbitrary(u: &mut Unstructured<'_>) -> Result<Self> {
        let mut disk = Self::default();
        for name in [&b"a"[..], b"b", b"c", b"d", b"e"] {
            if u.ratio(1, 5)? {
                continue;
            }
            let inode = u.int_in_range(0..=3)?;
            let entry = TreeEntry {
                mode: Some(u.int_in_range(0..=1)?),
                ..TreeEntry::file(u.int_in_range(0..=1)?, u.int_in_range(0..=1)?)
            };
            disk.inodes.entry(inode).or_insert(entry);
            disk.names.insert(name.to_vec(), inode);
        }
        Ok(disk)
    }

    fn list(&self) -> (SortedTree, LinkedEntries) {
        let (mut tree, mut links) = (EntryTree::new(), LinkedEntries::new());
        for (name, inode) in &self.names {
            let entry = self.inodes[inode].clone();
            let id = tree.add(EntryTree::ROOT, name, entry).unwrap();
            if self.names.values().filter(|other| *other == inode).count() > 1 {
                let (device, inode) = (1, *inode);
                links.insert(id, FileIdentity { device, inode });
            }
        }
        (tree.sorted(), links)
    }

    fn copied(&mut self, name: Vec<u8>, entry: TreeEntry) {
        let inode = self.inodes.keys().max().map_or(0, |last| last + 1);
        self.inodes.insert(inode, entry);
        self.names.insert(name, inode);
    }

    /// Carries out a plan in the order of a sync. Returns the number of files that were sent.
    fn carry_out(&mut self, plan: &SyncPlan) -> usize {
        let source = plan.source().tree();
        let linked = |wanted: bool| {
            let steps = plan.steps().iter();
            steps.filter_map(move |step| match step.action {
                SyncAction::HardLink {
                    first, has_data, ..
                } if has_data == wanted => Some((source.path(step.source), source.path(first))),
                _ => None,
            })
        };
        for step in plan.steps() {
            if let SyncAction::MoveFrom(from) = step.action {
                let inode = self.names.remove(&plan.target().tree().path(from)).unwrap();
                self.names.insert(source.path(step.source), inode);
            }
        }
        for (name, first) in linked(true) {
            self.names.insert(name, self.names[&first]);
        }
        let mut sent = 0;
        for step in plan.steps() {
            if let SyncAction::Create | SyncAction::Replace(_) = step.action {
                let entry = source.entry(step.source).clone();
                self.copied(source.path(step.source), entry);
                sent += 1;
            }
        }
        for (name, first) in linked(false) {
            self.names.insert(name, self.names[&first]);
        }
        for step in plan.steps() {
            // Links share the attributes of the file that has them.
            if let SyncAction::SetAttributes(_) | SyncAction::MoveFrom(_) = step.action {
                let inode = self.names[&source.path(step.source)];
                self.inodes.get_mut(&inode).unwrap().mode = source.entry(step.source).mode;
            }
        }
        for id in plan.deletions() {
            assert!(self.names.remove(&plan.target().tree().path(*id)).is_some());
        }
        sent
    }
}

fn rules() -> ComparisonRules {
    let metadata = MetadataRules {
        permissions: true,
        ..MetadataRules::default()
    };
    ComparisonRules {
        metadata,
        ..ComparisonRules::default()
    }
}

fn plan(source: &Disk, target: &Disk, knows_target: bool, moves: bool) -> SyncPlan {
    let ((ours, source), (theirs, target)) = (source.list(), target.list());
    let mut plan = SyncPlan::new(ours, theirs, &rules());
    if moves {
        let moves = plan.find_moves(&rules());
        plan.settle_moves(&moves);
    }
    plan.keep_hard_links(&source, knows_target.then_some(&target), &rules());
    plan
}

fn file(size: u64, mode: u16) -> TreeEntry {
    TreeEntry {
        mode: Some(mode),
        ..TreeEntry::file(size, 1)
    }
}

/// Bug: only names that were copied in the same run were linked to each other.
#[test]
fn the_names_of_a_file_are_linked_however_the_target_was() {
    arbtest(|u| {
        let (source, target) = (Disk::arbitrary(u)?, Disk::arbitrary(u)?);
        let knows_target = u.arbitrary()?;
        let plan = plan(&source, &target, knows_target, u.arbitrary()?);
        let mut after = target.clone();
        let sent = after.carry_out(&plan);
        let of = |disk: &Disk| disk.names.keys().cloned().collect::<Vec<_>>();
        assert_eq!(of(&after), of(&source));
        let mut files: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for (name, inode) in &source.names {
            let there = after.names[name];
            files.entry(*inode).or_default().insert(there);
            // Without the target's links, attributes are set through them, as rsync sets them.
            if knows_target {
                assert_eq!(after.inodes[&there], source.inodes[inode], "{name:?}");
            }
        }
        assert!(files.values().all(|there| there.len() == 1), "{after:?}");
        assert!(sent <= files.len(), "a file was sent twice");
        if knows_target {
            let again = self::plan(&source, &after, true, true);
            assert!(again.steps().is_empty(), "{:?}", again.steps());
            assert_eq!(again.equal() as usize, source.names.len());
        }
        Ok(())
    })
    .budget_ms(2000);
}

#[test]
fn a_name_with_equal_data_is_linked_and_nothing_is_sent() {
    let source = Disk::with(&[("a", 0), ("b", 0)], &[(0, file(1, 0))]);
    for names in [&[("b", 0)][..], &[("a", 0)], &[("a", 0), ("b", 1)]] {
        let mut target = Disk::with(names, &[(0, file(1, 0)), (1, file(1, 0))]);
        for knows_target in [true, false] {
            let plan = plan(&source, &target, knows_target, false);
            let [step] = plan.steps() else {
                panic!("{:?}", plan.steps());
            };
            let SyncAction::HardLink { has_data, .. } = step.action else {
                panic!("{step:?}");
            };
            assert_eq!(has_data, names.len() == 2);
            assert_eq!(plan.equal(), 1);
        }
        let plan = plan(&source, &target, true, false);
        assert_eq!(target.carry_out(&plan), 0);
    }
}

/// A link at the target between files that are separate at the source shares attributes.
#[test]
fn attributes_are_not_set_through_a_link_that_the_source_has_not() {
    let names = [("a", 0), ("b", 1)];
    let source = Disk::with(&names, &[(0, file(1, 0)), (1, file(1, 7))]);
    let target = Disk::with(&[("a", 0), ("b", 0)], &[(0, file(1, 0))]);
    let plan = plan(&source, &target, true, false);
    let why = DifferenceReasons::MODE.with(DifferenceReasons::NAMES);
    let actions: Vec<SyncAction> = plan.steps().iter().map(|step| step.action).collect();
    assert_eq!(actions, [SyncAction::Replace(why)]);
}

#[test]
fn names_that_cannot_be_linked_stay_as_separate_files() {
    let source = Disk::with(&[("a", 0), ("b", 0), ("c", 0)], &[(0, file(1, 0))]);
    let names = [("a", 0), ("b", 1), ("c", 2)];
    let inodes = [(0, file(1, 0)), (1, file(1, 0)), (2, file(1, 7))];
    let mut plan = plan(&source, &Disk::with(&names, &inodes), true, false);
    let linked: BTreeSet<TreeEntryId> = plan.steps().iter().map(|step| step.source).collect();
    assert_eq!((linked.len(), plan.equal()), (2, 1));
    plan.leave_separate(&linked);
    let actions: Vec<SyncAction> = plan.steps().iter().map(|step| step.action).collect();
    let mode = SyncAction::SetAttributes(DifferenceReasons::MODE);
    assert_eq!((actions.as_slice(), plan.equal()), (&[mode][..], 2));
}
