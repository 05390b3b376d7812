//! `--temp-dir`: temporaries lie in one directory, where names of many directories meet, and files get
//! their final names from there.

use std::collections::BTreeMap;

use sftp::StatusCode;
use testkit::sftp_model::Kind;

use super::faults::SimFault;
use super::scenario::{
    Direction, Scenario, TreeEntry, TreeSpec, file, leftovers, sampled, tree_at,
};
use crate::report::CopyOutcome;

/// Directions in which a host has the temporaries.
const TO_HOST: [Direction; 2] = [Direction::Upload, Direction::Relayed];

/// Copy of a tree in which each directory has a file of the same name, onto older files.
fn with_temp_dir(seed: u64, direction: Direction) -> Scenario {
    let mut scenario = Scenario::new(seed, direction);
    scenario.place_tree(TreeSpec::MIXED);
    scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
    scenario.place_target("/home/u/temp", Kind::Dir, 0o755);
    for dir in ["", "e0/", "e1/", "e2/"] {
        let dirs = [format!("/home/u/src/{dir}"), format!("/home/u/dst/{dir}")];
        if !dir.is_empty() {
            let [source, target] = dirs.each_ref().map(|dir| dir.trim_end_matches('/'));
            scenario.place_source(source, Kind::Dir, 0o755);
            scenario.place_target(target, Kind::Dir, 0o755);
        }
        let [source, target] = dirs.map(|dir| format!("{dir}same"));
        scenario.place_source(&source, file(format!("new {dir} ").repeat(9000)), 0o644);
        scenario.place_target(&target, file(format!("old {dir}")), 0o644);
    }
    scenario.sources = vec!["src/.".to_owned()];
    scenario.options.temp_dir = Some(schedule::TempDir::new(b"temp"));
    scenario
}

fn target(scenario: &Scenario) -> BTreeMap<String, TreeEntry> {
    scenario.at_target(|fs| tree_at(fs, "dst"))
}

/// A server that admits only certain names at the target sees none of the temporaries there.
#[test]
fn no_temporary_lies_beside_its_target_at_any_step() {
    let mut seen = 0;
    for direction in TO_HOST {
        for seed in 0..8 {
            let mut scenario = with_temp_dir(seed, direction);
            let report = scenario.run_with(|scenario, step, _| {
                let all = scenario.at_target(|fs| leftovers(fs));
                let (inside, beside): (Vec<_>, Vec<_>) =
                    all.into_iter().partition(|path| path.starts_with("temp/"));
                assert_eq!(beside, [""; 0], "{}, step {step}", scenario.name());
                seen += inside.len();
            });
            let report = report.expect("nothing kills it");
            assert_eq!(report.outcome(), CopyOutcome::Complete, "{report:#?}");
            scenario.check_same("src", "dst");
            assert_eq!(scenario.at_target(|fs| leftovers(fs)), [""; 0]);
        }
    }
    assert!(seen > 50, "{seen}");
}

/// Files of one name in many directories: no part of one is continued as the other's.
#[test]
fn equal_names_in_one_directory_for_temporaries_are_not_mixed_by_a_resumed_copy() {
    let mut left = 0;
    for direction in TO_HOST {
        for seed in 0..5 {
            let steps = Scenario::steps(|| with_temp_dir(seed, direction));
            for at in sampled(0, steps, 10) {
                let mut scenario = with_temp_dir(seed, direction);
                scenario.faults = vec![(at, 0, SimFault::Killed)];
                scenario.run();
                let begun = scenario.at_target(|fs| leftovers(fs));
                left += begun.len();
                let report = scenario.complete();
                scenario.check_same("src", "dst");
                let name = format!("{}, at {at}, {begun:?}: {report:#?}", scenario.name());
                for path in scenario.at_target(|fs| leftovers(fs)) {
                    // A server that replaces no file has moved the old one aside.
                    let is_old = scenario.at_target(|fs| {
                        fs.data(&path).is_some_and(|data| data.starts_with(b"old"))
                    });
                    let may_stay = is_old && !scenario.target_has("posix-rename@openssh.com");
                    assert!(may_stay, "{name}: {path}");
                }
            }
        }
    }
    assert!(left > 30, "{left}");
}

/// A directory that is missing, or that takes no files: each file is named with the reason, and the
/// old ones stay, in place of being written under their final names.
#[test]
fn a_directory_for_temporaries_that_takes_none_costs_no_old_file() {
    for direction in TO_HOST {
        for (seed, refusal) in (0..9).map(|seed| (seed, seed % 3)) {
            let mut scenario = with_temp_dir(seed, direction);
            scenario.at_target(|fs| match refusal {
                0 => assert_eq!(fs.remove(b"/home/u/temp", true), Ok(())),
                1 => fs.at_mut("/home/u/temp").expect("placed").mode = 0o500,
                _ => {
                    assert_eq!(fs.remove(b"/home/u/temp", true), Ok(()));
                    fs.place("/home/u/temp", file("no directory"), 0o644);
                }
            });
            let before = target(&scenario);
            let report = scenario.finish();
            let name = format!("{}, {refusal}: {report:#?}", scenario.name());
            assert_eq!(report.outcome(), CopyOutcome::Partial, "{name}");
            let after = target(&scenario);
            for (path, entry) in before.iter().filter(|(_, entry)| entry.kind != Kind::Dir) {
                assert_eq!(after.get(path), Some(entry), "{name}: {path}");
                assert!(report.reason(path).contains("temp"), "{name}: {path}");
            }
        }
    }
}

/// The target is on another file system than the temporaries, so that no rename works.
#[test]
fn a_refused_rename_out_of_the_directory_for_temporaries_costs_no_old_file() {
    for direction in TO_HOST {
        for seed in 0..8 {
            let mut scenario = with_temp_dir(seed, direction);
            for request in ["RENAME", "posix-rename@openssh.com"] {
                scenario.refuse(request, StatusCode::FAILURE);
            }
            let before = target(&scenario);
            let report = scenario.finish();
            scenario.check_honest(&report, ("src", "dst"), &before);
            let name = format!("{}: {report:#?}", scenario.name());
            let source = scenario.at_source(|fs| tree_at(fs, "src"));
            for (path, found) in target(&scenario) {
                let known = [source.get(&path), before.get(&path)];
                let is_known = known.iter().flatten().any(|of| of.kind == found.kind);
                assert!(is_known, "{name}: {path} is neither old nor new");
            }
            assert_eq!(scenario.at_target(|fs| leftovers(fs)), [""; 0], "{name}");
        }
    }
}
