//! `--inplace`: files are written under their final names, so that an old file is gone as soon as the
//! new one begins. Whatever is left incomplete is named.

use std::collections::BTreeMap;

use sftp::StatusCode;
use testkit::sftp_model::Kind;

use super::faults::SimFault;
use super::scenario::{
    Direction, Scenario, TreeEntry, TreeSpec, file, leftovers, sampled, symlink, tree_at,
};
use crate::report::CopyOutcome;

/// Copy in place of a tree onto one of which each file is there, with another length.
fn onto_older(seed: u64, direction: Direction) -> Scenario {
    let mut scenario = Scenario::new(seed, direction);
    scenario.options.inplace = true;
    scenario.place_tree(TreeSpec::MIXED);
    scenario.sources = vec!["src/.".to_owned()];
    scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
    for (path, entry) in scenario.at_source(|fs| tree_at(fs, "src")) {
        let at = format!("/home/u/dst/{path}");
        match entry.kind {
            Kind::Dir if !path.is_empty() => scenario.place_target(&at, Kind::Dir, 0o755),
            Kind::File(data) => {
                let len = (data.len() * 3 + 2000) >> (seed % 2 * 2);
                scenario.place_target(&at, file(vec![b'o'; len]), 0o640);
            }
            _ => {}
        }
    }
    scenario
}

/// Paths of the files at the target.
fn files(scenario: &Scenario) -> impl Iterator<Item = String> {
    let entries = target(scenario).into_iter();
    let files = entries.filter(|(_, entry)| entry.kind != Kind::Dir);
    files.map(|(path, _)| path)
}

fn target(scenario: &Scenario) -> BTreeMap<String, TreeEntry> {
    scenario.at_target(|fs| tree_at(fs, "dst"))
}

/// A shorter file must not keep the end of the older one, and the file stays the same one, with its
/// mode.
#[test]
fn a_copy_in_place_leaves_nothing_of_the_older_file() {
    for direction in Direction::ALL {
        for seed in 0..10 {
            let mut scenario = onto_older(seed, direction);
            let before = target(&scenario);
            scenario.complete();
            scenario.check_same("src", "dst");
            for (path, entry) in target(&scenario) {
                let name = format!("{}: {path}", scenario.name());
                let older = &before[&path];
                assert_eq!(entry.inode, older.inode, "{name}");
                assert_eq!(entry.mode, older.mode, "{name}");
            }
        }
    }
}

/// `--inplace updates all names`, as the warning without it says.
#[test]
fn a_copy_in_place_reaches_the_other_names_of_the_file() {
    for direction in Direction::ALL {
        for seed in 0..8 {
            let mut scenario = onto_older(seed, direction);
            let files: Vec<String> = files(&scenario).collect();
            scenario.at_target(|fs| {
                for (nth, path) in files.iter().enumerate() {
                    let from = format!("/home/u/dst/{path}");
                    let to = format!("/home/u/other{nth}");
                    let linked = fs.hard_link(from.as_bytes(), to.as_bytes());
                    assert_eq!(linked, Ok(()));
                }
            });
            let report = scenario.complete();
            assert!(!report.warns("keep the old contents"), "{report:#?}");
            for (nth, path) in files.iter().enumerate() {
                let name = format!("{}: {path}", scenario.name());
                let source = scenario.at_source(|fs| tree_at(fs, &format!("src/{path}")));
                let other = scenario.at_target(|fs| tree_at(fs, &format!("other{nth}")));
                assert!(source[""].kind == other[""].kind, "{name}");
            }
        }
    }
}

/// A kill at any time: the same command writes each file again from its start.
#[test]
fn a_killed_copy_in_place_is_not_continued_from_a_part_that_nobody_knows() {
    for direction in Direction::ALL {
        for seed in 0..4 {
            let steps = Scenario::steps(|| onto_older(seed, direction));
            for at in sampled(0, steps, 10) {
                let mut scenario = onto_older(seed, direction);
                scenario.faults = vec![(at, 0, SimFault::Killed)];
                assert!(scenario.run().is_none(), "it was killed");
                scenario.complete();
                scenario.check_same("src", "dst");
            }
        }
    }
}

/// Faults that end single files or all: each file that is neither the old nor the new one is named.
#[test]
fn a_file_that_a_copy_in_place_leaves_incomplete_is_named() {
    let mut incomplete = 0;
    for direction in Direction::ALL {
        let full = match direction {
            Direction::Download => SimFault::LocalFull,
            _ => SimFault::HostFull,
        };
        let faults = [
            full,
            SimFault::ConnectionLost,
            SimFault::HostLost,
            SimFault::Refused("WRITE", StatusCode::FAILURE),
            SimFault::Refused("READ", StatusCode::FAILURE),
        ];
        for (seed, fault) in (0..).zip(faults) {
            let make = || {
                let scenario = onto_older(seed, direction);
                scenario.world.borrow_mut().lose_hosts_for_good();
                scenario
            };
            let steps = Scenario::steps(make);
            for at in sampled(0, steps, 16) {
                let mut scenario = make();
                let host = usize::from(direction == Direction::Relayed);
                scenario.faults = vec![(at, host, fault)];
                let before = target(&scenario);
                let report = scenario.finish();
                let name = format!("{}, {fault:?} at {at}", scenario.name());
                let source = scenario.at_source(|fs| tree_at(fs, "src"));
                for (path, found) in target(&scenario) {
                    let is_whole = found.kind == source[&path].kind;
                    if is_whole || found.kind == before[&path].kind {
                        continue;
                    }
                    incomplete += 1;
                    let is_named = report.has_failed(&path);
                    assert!(is_named, "{name}: {path} is not named: {report:#?}");
                    let reason = report.reason(&path);
                    assert!(reason.contains("incomplete"), "{name}: {path}: {reason}");
                }
                assert_eq!(scenario.at_target(|fs| leftovers(fs)), [""; 0], "{name}");
            }
        }
    }
    assert!(incomplete > 20, "{incomplete}");
}

/// Ctrl-C: files that are not whole are named by a warning, and the next run completes them.
#[test]
fn an_interrupted_copy_in_place_names_what_it_leaves_incomplete() {
    let mut incomplete = 0;
    for direction in Direction::ALL {
        for seed in 0..4 {
            let steps = Scenario::steps(|| onto_older(seed, direction));
            for at in sampled(0, steps, 12) {
                let mut scenario = onto_older(seed, direction);
                scenario.faults = vec![(at, 0, SimFault::Interrupted)];
                let before = target(&scenario);
                let report = scenario.finish();
                let name = format!("{}, at {at}", scenario.name());
                assert_eq!(report.outcome(), CopyOutcome::Interrupted, "{name}");
                let source = scenario.at_source(|fs| tree_at(fs, "src"));
                for (path, found) in target(&scenario) {
                    if found.kind != source[&path].kind && found.kind != before[&path].kind {
                        incomplete += 1;
                        let warned = format!("{path}: ");
                        let is_named = report.warns(&warned) && report.warns("incomplete");
                        assert!(is_named, "{name}: {path}: {report:#?}");
                    }
                }
                scenario.complete();
                scenario.check_same("src", "dst");
            }
        }
    }
    assert!(incomplete > 5, "{incomplete}");
}

/// A directory of this machine that allows no new files: the old ones are overwritten without a flag.
/// Elsewhere nothing is called incomplete, whatever was on its way.
#[test]
fn a_file_of_a_directory_without_write_permission_is_named_if_it_is_left_incomplete() {
    let mut incomplete = 0;
    for mode in [0o555, 0o755] {
        for seed in 0..6 {
            let make = || {
                let mut scenario = onto_older(seed, Direction::Download);
                scenario.options.inplace = false;
                scenario.at_target(|fs| {
                    for (path, entry) in tree_at(fs, "dst") {
                        if entry.kind == Kind::Dir {
                            let path = format!("/home/u/dst/{path}");
                            let node = fs.at_mut(path.trim_end_matches('/'));
                            node.expect("listed").mode = mode;
                        }
                    }
                });
                scenario
            };
            let steps = Scenario::steps(make);
            for at in sampled(0, steps, 20) {
                let mut scenario = make();
                scenario.faults = vec![(at, 0, SimFault::Interrupted)];
                let before = target(&scenario);
                let report = scenario.finish();
                let name = format!("{}, {mode:o}, at {at}: {report:#?}", scenario.name());
                let source = scenario.at_source(|fs| tree_at(fs, "src"));
                for (path, older) in &before {
                    let found = &target(&scenario)[path].kind;
                    if *found == source[path].kind || *found == older.kind {
                        continue;
                    }
                    incomplete += 1;
                    let warned = format!("{path}: interrupted while");
                    assert!(report.warns(&warned), "{name}: {path}");
                }
                assert!(mode == 0o555 || !report.warns("incomplete"), "{name}");
            }
        }
    }
    assert!(incomplete > 5, "{incomplete}");
}

/// A symlink below the target leads elsewhere, and opening its name for writing would follow it.
#[test]
fn a_copy_in_place_does_not_write_through_a_symlink_below_the_target() {
    for direction in [Direction::Upload, Direction::Relayed] {
        for seed in 0..10 {
            let mut scenario = onto_older(seed, direction);
            scenario.place_target("/home/u/outside", file("outside"), 0o644);
            let links: Vec<String> = target(&scenario)
                .into_iter()
                .filter(|(_, entry)| entry.kind != Kind::Dir)
                .map(|(path, _)| path)
                .step_by(2)
                .collect();
            scenario.at_target(|fs| {
                for path in &links {
                    let at = format!("/home/u/dst/{path}");
                    assert_eq!(fs.remove(at.as_bytes(), false), Ok(()));
                    fs.place(&at, symlink("/home/u/outside"), 0o777);
                }
            });
            let report = scenario.finish();
            let name = format!("{}: {report:#?}", scenario.name());
            let kept = scenario.at_target(|fs| fs.data("outside") == Some(b"outside"));
            assert!(kept, "{name}");
            scenario.check_honest(&report, ("src", "dst"), &BTreeMap::new());
        }
    }
}

/// A read-only file is refused by its mode alone, and stays whole.
#[test]
fn a_read_only_file_is_not_cut_by_a_copy_in_place() {
    for direction in Direction::ALL {
        for seed in 0..6 {
            let mut scenario = onto_older(seed, direction);
            let read_only: Vec<String> = files(&scenario).step_by(3).collect();
            scenario.at_target(|fs| {
                for path in &read_only {
                    let node = fs.at_mut(&format!("/home/u/dst/{path}"));
                    node.expect("listed").mode = 0o444;
                }
            });
            let before = target(&scenario);
            let report = scenario.finish();
            let name = format!("{}: {report:#?}", scenario.name());
            assert_eq!(report.failed.len(), read_only.len(), "{name}");
            let after = target(&scenario);
            for path in &read_only {
                assert!(report.has_failed(path), "{name}: {path}");
                assert_eq!(after[path], before[path], "{name}: {path}");
            }
        }
    }
}

/// `/dev/null` and other devices take the data and stay what they are.
#[test]
fn a_device_that_is_the_target_is_written_and_not_replaced() {
    for direction in [Direction::Upload, Direction::Relayed] {
        for inplace in [false, true] {
            for seed in 0..6 {
                let mut scenario = Scenario::new(seed, direction);
                scenario.options.inplace = inplace;
                scenario.place_source("/home/u/src", file("data"), 0o600);
                scenario.target = "/dev/null".to_owned();
                let report = scenario.complete();
                let name = format!("{}, in place {inplace}: {report:#?}", scenario.name());
                let found = scenario.at_target(|fs| tree_at(fs, "/dev"));
                let names: Vec<&String> = found.keys().collect();
                assert_eq!(names, ["", "null"], "{name}");
                assert_eq!(found["null"].kind, Kind::Device(b"data".to_vec()), "{name}");
                assert_eq!(found["null"].mode, 0o666, "{name}");
            }
        }
    }
}
