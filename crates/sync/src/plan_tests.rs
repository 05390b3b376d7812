use std::collections::{BTreeMap, BTreeSet};

use arbtest::arbitrary::{Result, Unstructured};
use arbtest::arbtest;

use super::*;
use crate::compare::{MetadataRules, SkipRules};
use crate::tree::TreeEntry;

/// Tree as a map from paths to entries.
type Files = BTreeMap<Vec<u8>, TreeEntry>;

fn arbitrary_files(u: &mut Unstructured<'_>) -> Result<Files> {
    let mut files = Files::new();
    let mut dirs = vec![Vec::new()];
    for _ in 0..u.int_in_range(0..=12)? {
        let dir: Vec<u8> = u.choose(&dirs)?.clone();
        let name = *u.choose(&[&b"a"[..], b"b", b"c", b"d"])?;
        let path = if dir.is_empty() {
            name.to_vec()
        } else {
            [&dir, name].join(&b'/')
        };
        if files.contains_key(&path) {
            continue;
        }
        let entry = match u.int_in_range(0..=3)? {
            0 => {
                dirs.push(path.clone());
                TreeEntry::new(TreeEntryKind::Directory)
            }
            1 => TreeEntry {
                link: Some(vec![u.int_in_range(0..=1)?].into()),
                ..TreeEntry::new(TreeEntryKind::Symlink)
            },
            _ => TreeEntry::file(u.int_in_range(0..=2)?, u.int_in_range(0..=2)?),
        };
        files.insert(path, entry);
    }
    Ok(files)
}

fn tree(files: &Files) -> SortedTree {
    let mut tree = EntryTree::new();
    let mut ids = BTreeMap::from([(Vec::new(), EntryTree::ROOT)]);
    // A directory sorts before what is below it.
    for (path, entry) in files {
        let end = path.iter().rposition(|b| *b == b'/');
        let (dir, name) = match end {
            Some(end) => (path[..end].to_vec(), &path[end + 1..]),
            None => (Vec::new(), &path[..]),
        };
        let id = tree.add(ids[&dir], name, entry.clone()).unwrap();
        ids.insert(path.clone(), id);
    }
    tree.sorted()
}

/// The next run of the copy resumes it; in a directory that the source lost, nobody would.
#[test]
fn a_temporary_stays_unless_its_directory_goes() {
    let dir = || TreeEntry::new(TreeEntryKind::Directory);
    let temporary = || TreeEntry::new(TreeEntryKind::Temporary);
    let ours = Files::from([(b"kept".to_vec(), dir())]);
    let theirs = Files::from([
        (b"gone".to_vec(), dir()),
        (b"gone/t".to_vec(), temporary()),
        (b"kept".to_vec(), dir()),
        (b"kept/t".to_vec(), temporary()),
        (b"t".to_vec(), temporary()),
    ]);
    let plan = SyncPlan::new(tree(&ours), tree(&theirs), &ComparisonRules::default());
    let target = plan.target().tree();
    let deleted: Vec<Vec<u8>> = plan.deletions().iter().map(|id| target.path(*id)).collect();
    assert_eq!(deleted, [&b"gone/t"[..], b"gone"]);
}

/// Regression: on a target that takes `A` for `a`, the copy of `a` was deleted as `A`.
#[test]
fn an_entry_whose_name_differs_in_case_alone_is_not_deleted() {
    let dir = || TreeEntry::new(TreeEntryKind::Directory);
    let file = |size| TreeEntry::file(size, 1);
    let ours = Files::from([
        (b"a".to_vec(), file(1)),
        (b"d".to_vec(), dir()),
        (b"d/x".to_vec(), file(2)),
        ("\u{fc}".into(), file(3)),
    ]);
    let theirs = Files::from([
        (b"A".to_vec(), file(4)),
        (b"B".to_vec(), file(5)),
        (b"D".to_vec(), dir()),
        (b"D/X".to_vec(), file(6)),
        (b"D/Y".to_vec(), file(7)),
        ("\u{dc}".into(), file(8)),
    ]);
    let mut plan = SyncPlan::new(tree(&ours), tree(&theirs), &ComparisonRules::default());
    let spared = plan.alike_deletions();
    plan.spare(&spared.iter().map(|(_, target)| *target).collect());
    let (source, target) = (plan.source().tree(), plan.target().tree());
    let lower = |path: Vec<u8>| String::from_utf8(path).unwrap().to_lowercase();
    for (one, other) in &spared {
        assert_eq!(lower(source.path(*one)), lower(target.path(*other)));
    }
    let deleted: BTreeSet<Vec<u8>> = plan.deletions().iter().map(|id| target.path(*id)).collect();
    assert_eq!(deleted, BTreeSet::from([b"B".to_vec(), b"D/Y".to_vec()]));
    assert_eq!(spared.len(), 4);
}

/// Carries out a plan on a map of files, checking what an end would refuse.
fn carry_out(plan: &SyncPlan, target: &Files) -> Files {
    let mut files = target.clone();
    let remove = |files: &mut Files, id: TreeEntryId| {
        let path = plan.target().tree().path(id);
        let below = [path.as_slice(), b"/"].concat();
        assert!(
            !files.keys().any(|p| p.starts_with(&below)),
            "a full directory is removed"
        );
        assert!(files.remove(&path).is_some(), "removed twice");
    };
    for id in plan.in_the_way() {
        remove(&mut files, *id);
    }
    for step in plan.steps() {
        let path = plan.source().tree().path(step.source);
        if let Some(end) = path.iter().rposition(|b| *b == b'/') {
            assert_eq!(
                files[&path[..end]].kind,
                TreeEntryKind::Directory,
                "the parent is missing"
            );
        }
        let entry = plan.source().tree().entry(step.source).clone();
        if let SyncAction::MoveFrom(from) = step.action {
            let from = plan.target().tree().path(from);
            assert!(files.remove(&from).is_some(), "moved twice");
        }
        files.insert(path, entry);
    }
    for id in plan.deletions() {
        remove(&mut files, *id);
    }
    files
}

#[test]
fn a_plan_makes_the_target_equal_to_the_source() {
    arbtest(|u| {
        let (source, target) = (arbitrary_files(u)?, arbitrary_files(u)?);
        let rules = ComparisonRules::default();
        let mut plan = SyncPlan::new(tree(&source), tree(&target), &rules);
        if u.ratio(1, 2)? {
            let moves = plan.find_moves(&rules);
            plan.settle_moves(&moves);
        }
        assert_eq!(carry_out(&plan, &target), source);
        Ok(())
    })
    .budget_ms(2000);
}

#[test]
fn a_plan_of_equal_trees_does_nothing() {
    arbtest(|u| {
        let files = arbitrary_files(u)?;
        let plan = SyncPlan::new(tree(&files), tree(&files), &ComparisonRules::default());
        assert!(plan.steps().is_empty() && plan.deletions().is_empty());
        assert_eq!(plan.equal() as usize, files.len());
        Ok(())
    })
    .budget_ms(500);
}

fn dirs_and_files(paths: &[&str]) -> Files {
    let entry = |path: &&str| match path.strip_suffix('/') {
        Some(dir) => (
            dir.as_bytes().to_vec(),
            TreeEntry::new(TreeEntryKind::Directory),
        ),
        None => (path.as_bytes().to_vec(), TreeEntry::file(1, 1)),
    };
    paths.iter().map(entry).collect()
}

#[test]
fn a_directory_with_excluded_entries_is_not_deleted() {
    let mut target = EntryTree::new();
    let dir = target
        .add(
            EntryTree::ROOT,
            b"d",
            TreeEntry::new(TreeEntryKind::Directory),
        )
        .unwrap();
    target.add(dir, b"f", TreeEntry::file(1, 1));
    target.protect(dir);
    let source = tree(&Files::new());
    let plan = SyncPlan::new(source, target.sorted(), &ComparisonRules::default());
    let paths: Vec<_> = plan
        .deletions()
        .iter()
        .map(|id| plan.target().tree().path(*id))
        .collect();
    assert_eq!(paths, [b"d/f"]);
}

#[test]
fn a_directory_with_excluded_entries_is_not_replaced_by_a_file() {
    let mut target = EntryTree::new();
    let dir = target
        .add(
            EntryTree::ROOT,
            b"d",
            TreeEntry::new(TreeEntryKind::Directory),
        )
        .unwrap();
    target.protect(dir);
    let source = tree(&dirs_and_files(&["d"]));
    let plan = SyncPlan::new(source, target.sorted(), &ComparisonRules::default());
    assert!(plan.steps().is_empty() && plan.in_the_way().is_empty());
    assert_eq!(plan.blocked(), [dir]);
}

#[test]
fn a_device_at_the_source_keeps_the_entry_of_its_name() {
    let mut source = EntryTree::new();
    source.add(EntryTree::ROOT, b"x", TreeEntry::new(TreeEntryKind::Other));
    let target = tree(&dirs_and_files(&["x"]));
    let plan = SyncPlan::new(source.sorted(), target, &ComparisonRules::default());
    assert!(plan.steps().is_empty() && plan.deletions().is_empty());
}

#[test]
fn existing_only_creates_nothing_and_ignore_existing_replaces_nothing() {
    let source = dirs_and_files(&["new/", "new/f", "both"]);
    let mut target = dirs_and_files(&["both"]);
    target.insert(b"both".to_vec(), TreeEntry::file(9, 9));
    let plan = |rules: ComparisonRules| SyncPlan::new(tree(&source), tree(&target), &rules);
    let existing = plan(ComparisonRules {
        skipped: SkipRules {
            missing: true,
            ..SkipRules::default()
        },
        ..ComparisonRules::default()
    });
    assert!(matches!(existing.steps(), [step] if matches!(step.action, SyncAction::Replace(_))));
    let ignoring = plan(ComparisonRules {
        skipped: SkipRules {
            existing: true,
            ..SkipRules::default()
        },
        ..ComparisonRules::default()
    });
    assert!(
        ignoring
            .steps()
            .iter()
            .all(|step| step.action == SyncAction::Create)
    );
    assert_eq!(ignoring.steps().len(), 2);
    let newer = plan(ComparisonRules {
        skipped: SkipRules {
            newer: true,
            ..SkipRules::default()
        },
        ..ComparisonRules::default()
    });
    assert_eq!(newer.created(), 2);
    assert_eq!(newer.steps().len(), 2);
}

#[test]
fn what_a_checksum_shows_to_be_equal_only_gets_its_attributes() {
    let source = Files::from([(b"f".to_vec(), TreeEntry::file(1, 1))]);
    let target = Files::from([(b"f".to_vec(), TreeEntry::file(1, 2))]);
    let rules = ComparisonRules {
        checksum: true,
        ..ComparisonRules::default()
    };
    let mut equal = SyncPlan::new(tree(&source), tree(&target), &rules);
    let mut other = equal.clone();
    equal.settle(|_| true);
    assert_eq!(
        equal.steps()[0].action,
        SyncAction::SetAttributes(DifferenceReasons::TIME)
    );
    other.settle(|_| false);
    assert!(
        matches!(other.steps()[0].action, SyncAction::Replace(why) if why.has(DifferenceReasons::CONTENT))
    );
}

#[test]
fn the_counterpart_of_a_file_outside_the_limits_stays_with_its_directories() {
    let source = tree(&Files::new());
    let target = tree(&dirs_and_files(&["d/", "d/large", "d/other", "gone"]));
    let kept = BTreeSet::from([b"d/large".to_vec()]);
    let plan = SyncPlan::keeping(source, target, &ComparisonRules::default(), kept);
    let mut paths: Vec<_> = plan
        .deletions()
        .iter()
        .map(|id| plan.target().tree().path(*id))
        .collect();
    paths.sort();
    assert_eq!(paths, [&b"d/other"[..], b"gone"]);
}

#[test]
fn a_plan_that_deletes_nothing_moves_nothing_either() {
    let source = tree(&dirs_and_files(&["new/", "new/f"]));
    let target = tree(&dirs_and_files(&["old/", "old/f"]));
    let rules = ComparisonRules::default();
    let mut plan = SyncPlan::new(source, target, &rules);
    let moves = plan.find_moves(&rules);
    plan.settle_moves(&moves);
    assert!(
        plan.steps()
            .iter()
            .any(|step| matches!(step.action, SyncAction::MoveFrom(_)))
    );
    plan.keep_others();
    assert!(
        plan.steps()
            .iter()
            .all(|step| step.action == SyncAction::Create)
    );
}

#[test]
fn without_deletions_a_directory_with_entries_is_not_replaced_by_a_file() {
    let source = tree(&dirs_and_files(&["full", "hollow"]));
    let target = tree(&dirs_and_files(&["full/", "full/f", "hollow/"]));
    let mut plan = SyncPlan::new(source, target, &ComparisonRules::default());
    plan.keep_others();
    let paths = |ids: &[TreeEntryId]| {
        ids.iter()
            .map(|id| plan.target().tree().path(*id))
            .collect::<Vec<_>>()
    };
    assert_eq!(paths(plan.blocked()), [b"full"]);
    assert_eq!(paths(plan.in_the_way()), [b"hollow"]);
    assert_eq!(plan.steps().len(), 1);
}

/// Differences that are found later are steps in the order of the names, and no entry counts twice.
#[test]
fn noted_differences_become_steps_in_their_order() {
    let dir = || TreeEntry::new(TreeEntryKind::Directory);
    let ours = Files::from([
        (b"a".to_vec(), TreeEntry::file(1, 1)),
        (b"b".to_vec(), TreeEntry::file(1, 1)),
        (b"d".to_vec(), dir()),
        (b"d/a".to_vec(), TreeEntry::file(1, 1)),
        (b"e".to_vec(), TreeEntry::file(1, 1)),
        (b"f".to_vec(), TreeEntry::file(1, 1)),
        (b"l".to_vec(), TreeEntry::new(TreeEntryKind::Symlink)),
        (b"new".to_vec(), TreeEntry::file(1, 1)),
    ]);
    let mut theirs = ours.clone();
    theirs.remove(&b"new"[..]);
    theirs.insert(b"b".to_vec(), TreeEntry::file(2, 1));
    theirs.insert(b"f".to_vec(), TreeEntry::file(1, 2));
    let rules = ComparisonRules {
        skipped: SkipRules {
            newer: true,
            ..SkipRules::default()
        },
        ..ComparisonRules::default()
    };
    let mut plan = SyncPlan::new(tree(&ours), tree(&theirs), &rules);
    let equal = plan.equal();
    let pairs = plan.with_equal_data(&rules);
    let path = |plan: &SyncPlan, id| String::from_utf8(plan.source().tree().path(id)).unwrap();
    let paths: Vec<String> = pairs.iter().map(|(id, _)| path(&plan, *id)).collect();
    // The size of b differs, f is newer at the target, and a symlink has no attributes.
    assert_eq!(paths, ["", "a", "d", "d/a", "e"]);
    let (xattrs, content) = (DifferenceReasons::XATTRS, DifferenceReasons::CONTENT);
    let whys = [xattrs, xattrs, DifferenceReasons::ACLS, xattrs];
    let found = pairs.iter().zip(whys);
    let found = found.map(|((source, target), why)| FoundDifference {
        source: *source,
        target: *target,
        why,
        grants: path(&plan, *source) == "d/a",
    });
    plan.note(&found.collect::<Vec<_>>(), &rules);
    let steps: Vec<_> = plan
        .steps()
        .iter()
        .map(|step| (path(&plan, step.source), step.action))
        .collect();
    let named = |name: &str, action| (name.to_owned(), action);
    assert_eq!(
        steps,
        [
            named("", SyncAction::SetAttributes(xattrs)),
            named("a", SyncAction::SetAttributes(xattrs)),
            named("b", SyncAction::Replace(DifferenceReasons::SIZE)),
            named("d", SyncAction::SetAttributes(DifferenceReasons::ACLS)),
            named("d/a", SyncAction::Replace(xattrs.with(content))),
            named("new", SyncAction::Create),
        ]
    );
    assert_eq!(plan.equal(), equal - 3);
}

/// Bug: root gave a setuid program, of which only an extended attribute differed, the bits and the owner
/// without its data: somebody could have put a file of its size and time there.
#[test]
fn a_setuid_program_with_other_extended_attributes_is_copied() {
    let program = TreeEntry {
        mode: Some(0o4755),
        ..TreeEntry::file(1, 1)
    };
    let files = Files::from([(b"program".to_vec(), program)]);
    let rules = ComparisonRules {
        metadata: MetadataRules {
            permissions: true,
            owners: true,
            ..MetadataRules::default()
        },
        ..ComparisonRules::default()
    };
    let mut plan = SyncPlan::new(tree(&files), tree(&files), &rules);
    let pairs = plan.with_equal_data(&rules);
    let found = pairs.iter().filter(|(ours, _)| *ours != EntryTree::ROOT);
    let found = found.map(|(source, target)| FoundDifference {
        source: *source,
        target: *target,
        why: DifferenceReasons::XATTRS,
        grants: false,
    });
    plan.note(&found.collect::<Vec<_>>(), &rules);
    let actions: Vec<_> = plan.steps().iter().map(|step| step.action).collect();
    let why = DifferenceReasons::XATTRS.with(DifferenceReasons::CONTENT);
    assert_eq!(actions, [SyncAction::Replace(why)]);
}

/// A file whose capability is the same at the target, and whose owner or mode is not, is copied: the
/// file may be somebody else's. One that differs in nothing stays.
#[test]
fn a_file_with_a_capability_whose_attributes_differ_is_copied() {
    let file = |mode| TreeEntry {
        mode: Some(mode),
        ..TreeEntry::file(1, 1)
    };
    let ours = Files::from([(b"a".to_vec(), file(0o755)), (b"b".to_vec(), file(0o755))]);
    let theirs = Files::from([(b"a".to_vec(), file(0o700)), (b"b".to_vec(), file(0o755))]);
    let rules = ComparisonRules {
        metadata: MetadataRules {
            permissions: true,
            ..MetadataRules::default()
        },
        ..ComparisonRules::default()
    };
    let mut plan = SyncPlan::new(tree(&ours), tree(&theirs), &rules);
    let pairs = plan.with_equal_data(&rules);
    let found = pairs.iter().map(|(source, target)| FoundDifference {
        source: *source,
        target: *target,
        why: DifferenceReasons::default(),
        grants: *source != EntryTree::ROOT,
    });
    plan.note(&found.collect::<Vec<_>>(), &rules);
    let actions: Vec<_> = plan.steps().iter().map(|step| step.action).collect();
    let why = DifferenceReasons::MODE.with(DifferenceReasons::CONTENT);
    assert_eq!(actions, [SyncAction::Replace(why)]);
}
