//! `--exclude` and its relatives: what is left out is neither copied nor touched at the target, in any
//! direction and after an interruption.

use std::collections::BTreeSet;

use sync::{FilterBuilder, RuleOrigin};
use testkit::sftp_model::{Kind, Rng};

use super::faults::SimFault;
use super::scenario::{Direction, Scenario, TreeSpec, file, leftovers, sampled, tree_at};
use crate::copy::SourceFilter;

fn filter(rules: &[&str]) -> Option<SourceFilter> {
    let mut builder = FilterBuilder::default();
    for rule in rules {
        let is_rule = builder.rule(rule, RuleOrigin::Flag("--exclude")).is_ok();
        assert!(is_rule, "{rule}");
    }
    let filter = builder.build().expect("a filter");
    Some(SourceFilter::new(filter, false))
}

/// Copy of a random tree without what the rules exclude: the directories `d1` and everything below,
/// and the files with an odd number.
fn without_odd_files(seed: u64, direction: Direction) -> Scenario {
    let mut scenario = Scenario::new(seed, direction);
    scenario.place_tree(TreeSpec {
        files: 14,
        ..TreeSpec::MIXED
    });
    scenario.sources = vec!["src/.".to_owned()];
    scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
    scenario.options.filter = filter(&["d1/", "f*[13579]"]);
    scenario
}

fn is_excluded(path: &str, kind: &Kind) -> bool {
    let (dirs, name) = path.rsplit_once('/').unwrap_or(("", path));
    let below = dirs.split('/').any(|dir| dir == "d1");
    let is_odd = name.starts_with('f') && name.ends_with(['1', '3', '5', '7', '9']);
    below || is_odd || *kind == Kind::Dir && name == "d1"
}

/// Checks that the target has the selected entries, and nothing else but `kept`.
#[track_caller]
fn check_selected(scenario: &Scenario, kept: &BTreeSet<String>) {
    let source = scenario.at_source(|fs| tree_at(fs, "src"));
    let target = scenario.at_target(|fs| tree_at(fs, "dst"));
    let name = scenario.name();
    for (path, entry) in &source {
        let found = target.get(path).map(|found| &found.kind);
        match is_excluded(path, &entry.kind) {
            true => assert!(found.is_none() || kept.contains(path), "{name}: {path}"),
            false => assert!(found == Some(&entry.kind), "{name}: {path}"),
        }
    }
    let known = |path: &&String| source.contains_key(*path) || kept.contains(*path);
    let more: Vec<&String> = target.keys().filter(|path| !known(path)).collect();
    assert!(more.is_empty(), "{name}: {more:?}");
}

#[test]
fn excluded_entries_are_neither_copied_nor_changed_at_the_target() {
    for direction in Direction::ALL {
        for seed in 0..10 {
            let mut scenario = without_odd_files(seed, direction);
            let mut rng = Rng::new(seed);
            let mut kept = BTreeSet::new();
            // Older versions of excluded files, and a directory with files of the user.
            for (path, entry) in scenario.at_source(|fs| tree_at(fs, "src")) {
                let is_top = !path.contains('/') && !path.is_empty();
                if is_top && is_excluded(&path, &entry.kind) && rng.below(2) == 0 {
                    let at = format!("/home/u/dst/{path}");
                    match entry.kind {
                        Kind::Dir => {
                            scenario.place_target(&at, Kind::Dir, 0o700);
                            scenario.place_target(&format!("{at}/mine"), file("mine"), 0o600);
                            kept.insert(format!("{path}/mine"));
                        }
                        _ => scenario.place_target(&at, file("older"), 0o600),
                    }
                    kept.insert(path);
                }
            }
            let before = scenario.at_target(|fs| tree_at(fs, "dst"));
            let report = scenario.complete();
            check_selected(&scenario, &kept);
            let after = scenario.at_target(|fs| tree_at(fs, "dst"));
            for path in &kept {
                assert_eq!(after[path], before[path], "{}: {path}", scenario.name());
            }
            let excluded = report.summary().excluded;
            let source = scenario.at_source(|fs| tree_at(fs, "src"));
            // What lies below an excluded directory is not listed.
            let is_counted = |path: &str| !path.split('/').rev().skip(1).any(|dir| dir == "d1");
            let all = source
                .iter()
                .filter(|(path, entry)| is_excluded(path, &entry.kind) && is_counted(path));
            assert_eq!(
                excluded,
                all.count() as u64,
                "{}: {report:#?}",
                scenario.name()
            );
        }
    }
}

/// The resumed copy neither takes excluded files over nor removes them.
#[test]
fn a_killed_copy_with_a_filter_selects_the_same_entries_when_it_is_resumed() {
    for direction in Direction::ALL {
        for seed in 0..4 {
            let steps = Scenario::steps(|| without_odd_files(seed, direction));
            for at in sampled(0, steps, 8) {
                let mut scenario = without_odd_files(seed, direction);
                scenario.faults = vec![(at, 0, SimFault::Killed)];
                scenario.run();
                scenario.complete();
                check_selected(&scenario, &BTreeSet::new());
                assert_eq!(scenario.at_target(|fs| leftovers(fs)), [""; 0]);
            }
        }
    }
}

/// The first run had no filter. What it has begun of files that are excluded now is no part of the
/// target.
#[test]
fn files_that_are_excluded_after_an_interruption_leave_no_part() {
    let mut begun = 0;
    for direction in Direction::ALL {
        for seed in 0..6 {
            let make = || {
                let mut scenario = without_odd_files(seed, direction);
                scenario.options.filter = None;
                scenario
            };
            let steps = Scenario::steps(make);
            for at in sampled(0, steps, 8) {
                let mut scenario = make();
                scenario.faults = vec![(at, 0, SimFault::Killed)];
                scenario.run();
                begun += scenario.at_target(|fs| leftovers(fs)).len();
                let before = scenario.at_target(|fs| tree_at(fs, "dst"));
                let kept: BTreeSet<String> = before.into_keys().collect();
                scenario.options.filter = filter(&["d1/", "f*[13579]"]);
                scenario.complete();
                check_selected(&scenario, &kept);
                let name = scenario.name();
                assert_eq!(scenario.at_target(|fs| leftovers(fs)), [""; 0], "{name}");
            }
        }
    }
    assert!(begun > 30, "{begun}");
}
