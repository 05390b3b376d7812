//! Several sources of one copy: names that are equal, sources that are merged, missing or refused.

use std::collections::{BTreeMap, BTreeSet};

use sftp::StatusCode;
use testkit::sftp_model::{Kind, Rng};

use super::faults::SimFault;
use super::scenario::{Direction, RunReport, Scenario, TreeSpec, file, leftovers, tree_at};
use crate::report::CopyOutcome;

/// Two trees whose files have some names in common, to be merged into `dst`.
fn merged(seed: u64, direction: Direction) -> Scenario {
    let mut scenario = Scenario::new(seed, direction);
    let mut rng = Rng::new(seed);
    for root in ["one", "two"] {
        scenario.place_source(&format!("/home/u/{root}"), Kind::Dir, 0o755);
        for dir in ["d0", "d1"] {
            scenario.place_source(&format!("/home/u/{root}/{dir}"), Kind::Dir, 0o755);
        }
        for nth in 0..8 {
            if rng.below(3) == 0 {
                continue;
            }
            let dir = ["", "d0/", "d1/"][nth % 3];
            let contents = format!("{root} {nth} ").repeat(rng.below(400) as usize + 1);
            let path = format!("/home/u/{root}/{dir}f{nth}");
            scenario.place_source(&path, file(contents), 0o644);
        }
    }
    scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
    scenario.sources = vec!["one/.".to_owned(), "two/.".to_owned()];
    scenario
}

/// Checks that the target has all names of both trees, each with the contents of one of them, and
/// that each file that it does not have is named. Trees of a host are listed side by side, so that
/// either may come first.
#[track_caller]
fn check_merged(scenario: &Scenario, report: &RunReport) -> usize {
    let trees = ["one", "two"].map(|root| scenario.at_source(|fs| tree_at(fs, root)));
    let found = scenario.at_target(|fs| tree_at(fs, "dst"));
    let name = scenario.name();
    let mut lost = 0;
    for path in trees.iter().flat_map(BTreeMap::keys) {
        let kinds = trees
            .each_ref()
            .map(|tree| tree.get(path).map(|entry| &entry.kind));
        let is = found.get(path).map(|entry| &entry.kind);
        assert!(
            is.is_some() && kinds.contains(&is),
            "{name}: {path}: {report:#?}"
        );
        for (root, kind) in ["one", "two"].iter().zip(kinds) {
            if kind.is_some() && kind != is {
                let source = format!("{root}/./{path}");
                let reason = report.reason(&source);
                assert!(reason.contains("already the copy of"), "{name}: {reason}");
                lost += 1;
            }
        }
    }
    let all = trees
        .iter()
        .flat_map(BTreeMap::keys)
        .collect::<BTreeSet<_>>();
    assert_eq!(found.len(), all.len(), "{name}: {:?}", found.keys());
    // Each of them was met twice.
    lost / 2
}

#[test]
fn merged_sources_share_directories_and_each_file_that_is_left_out_is_named() {
    let mut lost = 0;
    for direction in Direction::ALL {
        for seed in 0..20 {
            let mut scenario = merged(seed, direction);
            let report = scenario.finish();
            let left_out = check_merged(&scenario, &report);
            assert_eq!(
                report.failed.len(),
                left_out,
                "{}: {report:#?}",
                scenario.name()
            );
            lost += left_out;
        }
    }
    assert!(lost > 50, "{lost}");
}

/// A killed merge goes on: no file is a mixture, and those that are left out are named again.
#[test]
fn a_killed_merge_goes_on_without_mixing_files() {
    let mut killed = 0;
    for direction in Direction::ALL {
        for seed in 0..12 {
            let steps = Scenario::steps(|| merged(seed, direction));
            let mut scenario = merged(seed, direction);
            scenario.faults = vec![(steps * (1 + seed % 7) / 8, 0, SimFault::Killed)];
            killed += usize::from(scenario.run().is_none());
            scenario.faults.clear();
            let report = scenario.finish();
            check_merged(&scenario, &report);
        }
    }
    assert!(killed > 20, "{killed}");
}

/// Each pair of sources gets one name in the target: nothing is copied.
#[test]
fn sources_with_one_name_are_refused_before_anything_is_copied() {
    for direction in Direction::ALL {
        for (seed, sources) in (0..).zip([
            ["one/x", "two/x"],
            ["one/x/", "two/x"],
            ["one/./x", "two/x/"],
            ["x", "one/x"],
            ["/home/u/one/x", "two/x"],
        ]) {
            let mut scenario = Scenario::new(seed, direction);
            for root in ["one", "two"] {
                scenario.place_source(&format!("/home/u/{root}"), Kind::Dir, 0o755);
                scenario.place_source(&format!("/home/u/{root}/x"), Kind::Dir, 0o755);
                scenario.place_source(&format!("/home/u/{root}/x/y"), file(root), 0o644);
            }
            scenario.place_source("/home/u/x", Kind::Dir, 0o755);
            scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
            scenario.sources = sources.map(str::to_owned).to_vec();
            let report = scenario.finish();
            let name = format!("{}, {sources:?}", scenario.name());
            assert_eq!(report.outcome(), CopyOutcome::Partial, "{name}");
            assert!(
                report.failed[0].1.contains("has the same name"),
                "{name}: {report:#?}"
            );
            let found = scenario.at_target(|fs| tree_at(fs, "dst"));
            assert_eq!(found.len(), 1, "{name}: {found:?}");
        }
    }
}

/// Matches of different patterns get one name as well, which only the host knows.
#[test]
fn matches_with_one_name_are_refused_before_anything_is_copied() {
    for direction in [Direction::Download, Direction::Relayed] {
        for seed in 0..6 {
            let mut scenario = Scenario::new(seed, direction);
            for root in ["one", "two"] {
                scenario.place_source(&format!("/home/u/{root}"), Kind::Dir, 0o755);
                for name in ["a.c", &format!("{root}.c")] {
                    let path = format!("/home/u/{root}/{name}");
                    scenario.place_source(&path, file(&path), 0o644);
                }
            }
            scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
            scenario.sources = vec!["one/*.c".to_owned(), "tw[o]/?.c".to_owned()];
            let report = scenario.finish();
            assert_eq!(report.failed.len(), 1, "{report:#?}");
            assert!(report.has_failed("two/a.c"), "{report:#?}");
            assert_eq!(scenario.at_target(|fs| tree_at(fs, "dst")).len(), 1);
            scenario.sources[1] = "two/t*.c".to_owned();
            scenario.complete();
            let names = scenario.at_target(|fs| tree_at(fs, "dst"));
            let names: Vec<&str> = names.keys().map(String::as_str).collect();
            assert_eq!(names, ["", "a.c", "one.c", "two.c"]);
        }
    }
}

#[test]
fn a_source_that_is_named_twice_is_copied_once() {
    for direction in Direction::ALL {
        for seed in 0..4 {
            let mut scenario = Scenario::new(seed, direction);
            scenario.place_source("/home/u/a", file("a"), 0o644);
            scenario.place_source("/home/u/b", file("b"), 0o644);
            scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
            scenario.sources = ["a", "./a", "b", "a/../a"][..3]
                .iter()
                .map(|s| (*s).to_owned())
                .collect();
            let report = scenario.complete();
            assert_eq!(
                report.summary().files,
                2,
                "{}: {report:#?}",
                scenario.name()
            );
            assert!(report.warns("named twice, copied once"), "{report:#?}");
        }
    }
}

/// Like scp, a copy goes on with the other sources.
#[test]
fn a_missing_source_does_not_keep_the_others_from_being_copied() {
    for direction in Direction::ALL {
        for (seed, missing) in (0..6).flat_map(|seed| [(seed, 0), (seed, 1), (seed, 2)]) {
            let mut scenario = Scenario::new(seed, direction);
            let names = ["a", "b", "c"];
            for (nth, name) in names.iter().enumerate() {
                if nth != missing {
                    scenario.place_source(&format!("/home/u/{name}"), file(name), 0o644);
                }
            }
            scenario.sources = names.map(str::to_owned).to_vec();
            scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
            let report = scenario.finish();
            let name = scenario.name();
            assert_eq!(
                report.outcome(),
                CopyOutcome::Partial,
                "{name}: {report:#?}"
            );
            assert_eq!(report.failed.len(), 1, "{name}: {report:#?}");
            assert!(report.has_failed(names[missing]), "{name}: {report:#?}");
            let found = scenario.at_target(|fs| tree_at(fs, "dst"));
            assert_eq!(found.len(), 3, "{name}: {found:?}");
            assert_eq!(scenario.at_target(|fs| leftovers(fs)), [""; 0], "{name}");
        }
    }
}

#[test]
fn a_directory_is_refused_without_r_and_the_files_beside_it_are_copied() {
    for direction in Direction::ALL {
        for seed in 0..6 {
            let mut scenario = Scenario::new(seed, direction);
            scenario.options.recursive = false;
            scenario.place_tree_at("tree", TreeSpec::SMALL);
            scenario.place_source("/home/u/a", file("a"), 0o644);
            scenario.place_source("/home/u/b", file("b"), 0o644);
            scenario.sources = ["a", "tree", "b"].map(str::to_owned).to_vec();
            scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
            let report = scenario.finish();
            let name = scenario.name();
            assert_eq!(report.summary().files, 2, "{name}: {report:#?}");
            assert_eq!(report.failed.len(), 1, "{name}: {report:#?}");
            let found = scenario.at_target(|fs| tree_at(fs, "dst"));
            let names: Vec<&str> = found.keys().map(String::as_str).collect();
            assert_eq!(names, ["", "a", "b"], "{name}");
        }
    }
}

/// Files and directories of the source that the account may not read are named, the rest is copied.
#[test]
fn unreadable_entries_of_a_host_are_named_and_the_rest_is_copied() {
    let mut unread = 0;
    for direction in [Direction::Download, Direction::Relayed] {
        for seed in 0..16 {
            let mut scenario = Scenario::new(seed, direction);
            scenario.place_tree(TreeSpec::SMALL);
            let mut rng = Rng::new(seed);
            let hidden = scenario.at_source(|fs| {
                let mut hidden = Vec::new();
                for (path, entry) in tree_at(fs, "src") {
                    if matches!(entry.kind, Kind::File(_)) && rng.below(3) == 0 {
                        fs.at_mut(&format!("/home/u/src/{path}"))
                            .expect("found")
                            .mode = 0o200;
                        hidden.push(path);
                    }
                }
                hidden
            });
            let report = scenario.finish();
            let name = scenario.name();
            assert_eq!(report.failed.len(), hidden.len(), "{name}: {report:#?}");
            for path in &hidden {
                let last = path.rsplit('/').next().expect("a name");
                assert!(report.has_failed(last), "{name}: {path}: {report:#?}");
            }
            unread += hidden.len();
            scenario.check_honest(&report, ("src", "dst"), &BTreeMap::new());
            let all = scenario.at_source(|fs| tree_at(fs, "src")).len();
            let copied = scenario.at_target(|fs| tree_at(fs, "dst")).len();
            assert_eq!(copied, all - hidden.len(), "{name}");
        }
    }
    assert!(unread > 20, "{unread}");
}

/// A directory whose listing fails is named; the times of what it holds are not made up.
#[test]
fn a_directory_that_cannot_be_listed_is_named() {
    let mut told = 0;
    for direction in [Direction::Download, Direction::Relayed] {
        for request in ["OPENDIR", "READDIR", "list-tree@longhaul"] {
            for seed in 0..16 {
                let mut scenario = Scenario::new(seed, direction);
                scenario.place_tree(TreeSpec::SMALL);
                let code = StatusCode::PERMISSION_DENIED;
                let fault = SimFault::Refused(request, code);
                scenario.faults = (0..12).map(|nth| (nth + seed, 0, fault)).collect();
                let report = scenario.finish();
                scenario.check_honest(&report, ("src", "dst"), &BTreeMap::new());
                told += report.failed.len();
            }
        }
    }
    assert!(told > 10, "{told}");
}
