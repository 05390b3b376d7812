//! Sources that change, shrink, grow or disappear while they are copied.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use testkit::Seed;
use testkit::sftp_model::{Fs, Kind};

use super::faults::SimFault;
use super::scenario::{
    Direction, RunReport, Scenario, TreeSpec, leftovers, remove_tree, sampled, tree_at,
};
use crate::report::CopyOutcome;

/// Change of a source file during its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Other bytes of the same length.
    Rewritten,
    Shorter,
    Longer,
    Emptied,
    /// Another file with the same length gets its name.
    Replaced,
}

impl Change {
    const ALL: [Self; 5] = [
        Self::Rewritten,
        Self::Shorter,
        Self::Longer,
        Self::Emptied,
        Self::Replaced,
    ];

    /// Carries out the change. Returns the new contents.
    fn apply(self, fs: &mut Fs, path: &str) -> Vec<u8> {
        let old = fs.data(path).expect("a file").to_vec();
        let len = match self {
            Self::Rewritten | Self::Replaced => old.len(),
            Self::Shorter => old.len() / 3,
            Self::Longer => old.len() + 150_000,
            Self::Emptied => 0,
        };
        let new = Seed::new(old.len() as u64 ^ 0x6368).bytes(len);
        let clock = fs.clock;
        if self == Self::Replaced {
            fs.remove(path.as_bytes(), false).expect("it exists");
            fs.place(path, Kind::File(new.clone()), 0o644);
        } else if let Some(node) = fs.at_mut(path) {
            node.kind = Kind::File(new.clone());
            node.times.1 = clock;
        }
        new
    }
}

const LARGE: &str = "/home/u/src/large8";

/// Copy of a file that takes many requests, and is cut into ranges for odd seeds.
fn with_large(seed: u64, direction: Direction) -> Scenario {
    let mut scenario = Scenario::new(seed, direction);
    let spec = TreeSpec {
        dirs: 0,
        ..TreeSpec::MIXED
    };
    scenario.place_tree(spec);
    if !seed.is_multiple_of(2) {
        scenario.at_source(|fs| {
            let node = fs.at_mut(LARGE).expect("placed");
            node.kind = Kind::File(Seed::new(seed).bytes(1_400_000));
        });
    }
    scenario
}

/// Copies while `change` happens at each of some steps, and passes on both versions of the file.
fn change_at_each_step(change: Change, mut check: impl FnMut(Scenario, RunReport, [Vec<u8>; 2])) {
    for direction in Direction::ALL {
        for seed in 0..3 {
            let steps = Scenario::steps(|| with_large(seed, direction));
            for at in sampled(0, steps, 10) {
                let mut scenario = with_large(seed, direction);
                let old = scenario.at_source(|fs| fs.data(LARGE).expect("placed").to_vec());
                let mut new = None;
                let report = scenario.run_with(|scenario, step, _| {
                    if step >= at && new.is_none() {
                        new = Some(scenario.at_source(|fs| change.apply(fs, LARGE)));
                    }
                });
                let report = report.expect("nothing kills it");
                let Some(new) = new else { continue };
                check(scenario, report, [old, new]);
            }
        }
    }
}

/// A file that changes is copied again, or the copy says that it may mix two versions: a complete
/// copy without a word is one of the versions.
#[test]
fn a_source_that_changes_during_the_copy_is_never_mixed_without_a_word() {
    for change in Change::ALL {
        let mut followed = 0;
        change_at_each_step(change, |scenario, report, versions| {
            let name = format!("{}, {change:?}", scenario.name());
            let found = scenario.at_target(|fs| fs.data("dst/large8").map(<[u8]>::to_vec));
            let is_version = found.as_ref().is_some_and(|found| versions.contains(found));
            let is_told = report.warns("may mix two versions")
                || report.warns("grew while it was copied")
                || report.has_failed("large8");
            assert!(is_version || is_told, "{name}: {report:#?}");
            if report.warns("changed while") && !is_told {
                assert!(found.as_ref() == Some(&versions[1]), "{name}: {report:#?}");
                followed += 1;
            }
            let others = scenario.at_source(|fs| tree_at(fs, "src"));
            let copied = scenario.at_target(|fs| tree_at(fs, "dst"));
            for (path, entry) in others.iter().filter(|(path, _)| *path != "large8") {
                assert!(copied[path].kind == entry.kind, "{name}: {path}");
            }
            assert_eq!(scenario.at_target(|fs| leftovers(fs)), [""; 0], "{name}");
        });
        assert!(
            followed > 3,
            "{change:?}: {followed} copies followed the change"
        );
    }
}

/// A source that goes on changing is copied a bounded number of times, and the copy says that it may
/// mix versions if it does.
#[test]
fn a_source_that_changes_without_end_is_told_and_does_not_keep_the_copy_running() {
    let mut mixed = 0;
    for direction in Direction::ALL {
        for (seed, grows) in (0..3).flat_map(|seed| [(seed, false), (seed, true)]) {
            let mut scenario = with_large(seed, direction);
            let first = scenario.at_source(|fs| fs.data(LARGE).expect("placed").to_vec());
            let mut versions = BTreeSet::from([hash(&first)]);
            let report = scenario.run_with(|scenario, step, _| {
                if step % 6 != 0 {
                    return;
                }
                scenario.at_source(|fs| {
                    let clock = fs.clock;
                    let Some(node) = fs.at_mut(LARGE) else { return };
                    let Kind::File(data) = &mut node.kind else {
                        return;
                    };
                    let len = data.len();
                    for part in 0..8 {
                        data[len * part / 8] ^= 1;
                    }
                    match grows {
                        true => data.push(step as u8),
                        false => data.truncate(len - 1),
                    }
                    node.times.1 = clock;
                    versions.insert(hash(data));
                });
            });
            let report = report.expect("nothing kills it");
            let found = scenario.at_target(|fs| fs.data("dst/large8").map(<[u8]>::to_vec));
            let is_version = found.is_some_and(|found| versions.contains(&hash(&found)));
            let is_told = ["may mix two versions", "grew while it was copied"]
                .iter()
                .any(|words| report.warns(words));
            let is_told = is_told || report.has_failed("large8");
            assert!(
                is_told || is_version,
                "{}, grows {grows}: {report:#?}",
                scenario.name()
            );
            mixed += usize::from(!is_version);
        }
    }
    assert!(mixed > 2, "{mixed}");
}

fn hash(data: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    data.hash(&mut hasher);
    hasher.finish()
}

/// A file that is removed is copied as it was, or its failure is reported; the others are copied.
#[test]
fn a_source_that_is_removed_during_the_copy_is_copied_or_named() {
    let mut failed = 0;
    for direction in Direction::ALL {
        for seed in 0..4 {
            let steps = Scenario::steps(|| with_large(seed, direction));
            for at in sampled(0, steps, 10) {
                let mut scenario = with_large(seed, direction);
                let source = scenario.at_source(|fs| tree_at(fs, "src"));
                let report = scenario.run_with(|scenario, step, _| {
                    if step >= at {
                        scenario.at_source(|fs| fs.remove(LARGE.as_bytes(), false).ok());
                    }
                });
                let report = report.expect("nothing kills it");
                let name = format!("{}, {at}", scenario.name());
                let found = scenario.at_target(|fs| tree_at(fs, "dst"));
                let copied = found.get("large8").map(|found| &found.kind);
                if let Some(kind) = copied {
                    assert!(*kind == source["large8"].kind, "{name}: {report:#?}");
                }
                let was_listed = at > 0;
                let is_told = report.has_failed("large8");
                assert!(
                    copied.is_some()
                        || is_told
                        || !was_listed
                        || at < 4
                        || report.failed.is_empty(),
                    "{name}"
                );
                failed += usize::from(is_told);
                assert!(report.failed.len() <= 1, "{name}: {report:#?}");
                assert_eq!(scenario.at_target(|fs| leftovers(fs)), [""; 0], "{name}");
            }
        }
    }
    assert!(failed > 3, "{failed}");
}

/// A directory that disappears with all its contents while it is copied: the copy ends, and what it
/// has under final names is whole.
#[test]
fn a_source_directory_that_is_removed_during_the_copy_leaves_whole_files() {
    for direction in Direction::ALL {
        for seed in 0..5 {
            let make = || {
                let mut scenario = Scenario::new(seed, direction);
                scenario.place_tree(TreeSpec {
                    files: 20,
                    ..TreeSpec::MIXED
                });
                scenario
            };
            let steps = Scenario::steps(make);
            for at in sampled(0, steps, 8) {
                let mut scenario = make();
                let source = scenario.at_source(|fs| tree_at(fs, "src"));
                let mut is_removed = false;
                let report = scenario.run_with(|scenario, step, _| {
                    if step >= at && !is_removed {
                        is_removed = true;
                        scenario.at_source(|fs| remove_tree(fs, "src/d0"));
                    }
                });
                let report = report.expect("nothing kills it");
                let name = format!("{}, {at}", scenario.name());
                for (path, found) in scenario.at_target(|fs| tree_at(fs, "dst")) {
                    let is_whole = source.get(&path).is_some_and(|of| of.kind == found.kind);
                    assert!(is_whole, "{name}: {path}: {report:#?}");
                }
                let is_kept = |path: &str| path != "d0" && !path.starts_with("d0/");
                for (path, entry) in source.iter().filter(|(path, _)| is_kept(path)) {
                    let found = scenario.at_target(|fs| tree_at(fs, "dst"));
                    let same = found.get(path).is_some_and(|of| of.kind == entry.kind);
                    assert!(same, "{name}: {path}: {report:#?}");
                }
            }
        }
    }
}

/// A change between two runs of an interrupted copy: parts of both versions are never joined.
#[test]
fn a_source_that_changes_between_two_runs_is_copied_from_its_start() {
    let mut resumed = 0;
    for change in Change::ALL {
        for direction in Direction::ALL {
            for seed in 0..5 {
                let steps = Scenario::steps(|| with_large(seed, direction));
                for tenth in [3, 6, 9] {
                    let mut scenario = with_large(seed, direction);
                    scenario.options.preserve = seed.is_multiple_of(2);
                    scenario.faults = vec![(steps * tenth / 10, 0, SimFault::Killed)];
                    if scenario.run().is_some() {
                        continue;
                    }
                    resumed += 1;
                    scenario.at_source(|fs| {
                        fs.clock += 100;
                        change.apply(fs, LARGE)
                    });
                    scenario.complete();
                    let place = scenario.at_target(|fs| fs.at("dst/src").is_some());
                    let root = if place { "dst/src" } else { "dst" };
                    let source = scenario.at_source(|fs| tree_at(fs, "src"));
                    let found = scenario.at_target(|fs| tree_at(fs, root));
                    for (path, entry) in &source {
                        let same = found.get(path).is_some_and(|of| of.kind == entry.kind);
                        assert!(same, "{}, {change:?}: {path}", scenario.name());
                    }
                }
            }
        }
    }
    assert!(resumed > 50, "{resumed}");
}

/// Files that appear in the source after its listing do no harm.
#[test]
fn a_file_that_is_added_during_the_copy_is_copied_whole_or_not_at_all() {
    for direction in Direction::ALL {
        for seed in 0..6 {
            let mut scenario = with_large(seed, direction);
            let mut added = BTreeMap::new();
            let report = scenario.run_with(|scenario, step, _| {
                if step % 3 == 0 && added.len() < 20 {
                    let name = format!("added{}", added.len());
                    let contents = name.repeat(1000);
                    scenario.at_source(|fs| {
                        let path = format!("/home/u/src/{name}");
                        fs.place(&path, Kind::File(contents.clone().into_bytes()), 0o644);
                    });
                    added.insert(name, contents.into_bytes());
                }
            });
            let report = report.expect("nothing kills it");
            assert_eq!(report.outcome(), CopyOutcome::Complete, "{report:#?}");
            for (path, found) in scenario.at_target(|fs| tree_at(fs, "dst")) {
                if let (Some(contents), Kind::File(data)) = (added.get(&path), &found.kind) {
                    assert!(contents == data, "{}: {path}", scenario.name());
                }
            }
        }
    }
}
