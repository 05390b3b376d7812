//! `-H` where names of one file change, are left out or lie outside of the source: each name has the
//! contents of its own source in the end.

use std::collections::{BTreeMap, BTreeSet};

use sync::{FilterBuilder, RuleOrigin};
use testkit::sftp_model::Kind;

use super::commands::SimCommandBehavior;
use super::faults::SimFault;
use super::links::{linked, with_hard_links};
use super::scenario::{Direction, RunReport, Scenario, file, leftovers, sampled, tree_at};
use super::sum_program::SumAnswers;
use crate::copy::SourceFilter;
use crate::report::CopyOutcome;

/// Upload of files of two names each, `a0` and `b0` and so on, in `src`.
fn with_pairs(seed: u64, contents: impl Fn(usize) -> Vec<u8>) -> Scenario {
    let mut scenario = Scenario::new(seed, Direction::Upload);
    scenario.place_source("/home/u/src", Kind::Dir, 0o755);
    for nth in 0..4 {
        scenario.place_source(&format!("/home/u/src/a{nth}"), file(contents(nth)), 0o644);
        link(&scenario, &format!("src/a{nth}"), &format!("src/b{nth}"));
    }
    scenario.options.hard_links = true;
    scenario.sources = vec!["src/.".to_owned()];
    scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
    scenario
}

fn link(scenario: &Scenario, from: &str, to: &str) {
    let (from, to) = (format!("/home/u/{from}"), format!("/home/u/{to}"));
    let linked = scenario.at_source(|fs| fs.hard_link(from.as_bytes(), to.as_bytes()));
    assert_eq!(linked, Ok(()), "{to}");
}

/// Replaces a file of the source's machine by another one.
fn replace(scenario: &Scenario, path: &str, contents: &str) {
    let path = format!("/home/u/{path}");
    let removed = scenario.at_source(|fs| fs.remove(path.as_bytes(), false));
    assert_eq!(removed, Ok(()), "{path}");
    scenario.place_source(&path, file(contents), 0o644);
}

/// Checks that the target is the source, and that no two files of it are one that are two there.
#[track_caller]
fn check_same(scenario: &Scenario, report: &RunReport) {
    scenario.check_same("src", "dst");
    let source = linked(scenario, false);
    for names in linked(scenario, true) {
        let is_part = source.iter().any(|of| names.is_subset(of));
        assert!(is_part, "{}: {names:?}: {report:#?}", scenario.name());
    }
}

/// The number of names that the file system tells is larger than that of the names in the source: the
/// copy neither waits for the others nor links files that are none.
#[test]
fn names_outside_of_the_source_are_not_waited_for() {
    for seed in 0..12 {
        let mut scenario = with_hard_links(seed);
        let paths: Vec<String> = scenario.at_source(|fs| {
            let tree = tree_at(fs, "src").into_iter();
            let files = tree.filter(|(_, entry)| entry.kind != Kind::Dir);
            files.map(|(path, _)| path).collect()
        });
        for (nth, path) in paths.iter().enumerate() {
            link(&scenario, &format!("src/{path}"), &format!("outside{nth}"));
        }
        let report = scenario.complete();
        check_same(&scenario, &report);
        if scenario.target_has("hardlink@openssh.com") {
            let (source, target) = (linked(&scenario, false), linked(&scenario, true));
            assert_eq!(target, source, "{}", scenario.name());
        }
    }
}

/// The first run has copied one name and was killed; by the next one the user has given the other name
/// a file of its own.
#[test]
fn names_that_are_separated_between_two_runs_are_two_files_at_the_target() {
    let mut killed = 0;
    for seed in 0..12 {
        let make = || with_pairs(seed, |nth| vec![b'0' + nth as u8; 400 << (3 * nth)]);
        let steps = Scenario::steps(make);
        for at in sampled(0, steps, 6) {
            let mut scenario = make();
            scenario.faults = vec![(at, 0, SimFault::Killed)];
            killed += usize::from(scenario.run().is_none());
            replace(&scenario, "src/a0", "a of its own");
            replace(&scenario, "src/b2", "b of its own");
            let report = scenario.complete();
            check_same(&scenario, &report);
            assert_eq!(scenario.at_target(|fs| leftovers(fs)), [""; 0]);
        }
    }
    assert!(killed > 30, "{killed}");
}

/// The first name, which the killed run has copied, is replaced at the target: the others must not
/// become names of the user's file.
#[test]
fn a_name_is_not_linked_to_a_file_that_the_user_put_at_the_target() {
    let mut replaced = 0;
    for seed in 0..12 {
        let make = || with_pairs(seed, |nth| vec![b'0' + nth as u8; 400 << (3 * nth)]);
        let steps = Scenario::steps(make);
        for at in sampled(0, steps, 6) {
            let mut scenario = make();
            scenario.faults = vec![(at, 0, SimFault::Killed)];
            scenario.run();
            let found = scenario.at_target(|fs| tree_at(fs, "dst"));
            let first = found.keys().find(|path| path.starts_with('a'));
            if let Some(first) = first {
                let path = format!("/home/u/dst/{first}");
                scenario.at_target(|fs| {
                    assert_eq!(fs.remove(path.as_bytes(), false), Ok(()));
                    fs.place(&path, file("the user's own, of another length"), 0o600);
                });
                replaced += 1;
            }
            let report = scenario.complete();
            check_same(&scenario, &report);
        }
    }
    assert!(replaced > 10, "{replaced}");
}

/// The first name that a walk finds is excluded: the file is copied under the next one.
#[test]
fn an_excluded_first_name_does_not_take_the_other_names_along() {
    for (rule, kept) in [("a*", 'b'), ("b*", 'a')] {
        for seed in 0..6 {
            let mut scenario = with_pairs(seed, |nth| vec![b'0' + nth as u8; 100]);
            link(&scenario, "src/b0", "src/c0");
            let mut builder = FilterBuilder::default();
            let is_rule = builder.rule(rule, RuleOrigin::Flag("--exclude")).is_ok();
            assert!(is_rule, "{rule}");
            let filter = builder.build().expect("a filter");
            scenario.options.filter = Some(SourceFilter::new(filter, false));
            let report = scenario.complete();
            let name = format!("{}: {report:#?}", scenario.name());
            assert_eq!(report.summary().excluded, 4, "{name}");
            let found = scenario.at_target(|fs| tree_at(fs, "dst"));
            let expected = [0, 1, 2, 3].map(|nth| format!("{kept}{nth}"));
            let expected: BTreeSet<String> = expected.into_iter().chain(["c0".into()]).collect();
            let names: BTreeSet<String> = found.keys().skip(1).cloned().collect();
            assert_eq!(names, expected, "{name}");
            for nth in 0..4 {
                let contents = file(vec![b'0' + nth; 100]);
                assert!(found[&format!("{kept}{nth}")].kind == contents, "{name}");
            }
            let same = found["c0"].inode == found[&format!("{kept}0")].inode;
            assert_eq!(same, scenario.target_has("hardlink@openssh.com"), "{name}");
        }
    }
}

/// A file that changes while its first name is copied: all names get what it has in the end.
#[test]
fn a_file_that_changes_while_it_is_copied_is_the_same_under_all_its_names() {
    let mut changed = 0;
    for seed in 0..6 {
        let make = || with_pairs(seed, |nth| vec![b'0' + nth as u8; 600_000]);
        let steps = Scenario::steps(make);
        for at in sampled(0, steps, 10) {
            let mut scenario = make();
            let report = scenario.run_with(|scenario, step, _| {
                if step == at {
                    scenario.at_source(|fs| {
                        let clock = fs.clock;
                        let node = fs.at_mut("/home/u/src/a1").expect("placed");
                        node.kind = file(vec![b'x'; 500_000]);
                        node.times.1 = clock;
                    });
                }
            });
            let report = report.expect("nothing kills it");
            let name = format!("{}, at {at}: {report:#?}", scenario.name());
            assert_eq!(report.outcome(), CopyOutcome::Complete, "{name}");
            let found = scenario.at_target(|fs| tree_at(fs, "dst"));
            // A change after the file was read is none of this copy.
            let versions = [vec![b'1'; 600_000], vec![b'x'; 500_000]].map(file);
            assert!(versions.contains(&found["a1"].kind), "{name}: a mixture");
            if scenario.target_has("hardlink@openssh.com") {
                assert!(found["a1"].kind == found["b1"].kind, "{name}");
            }
            changed += usize::from(report.warns("changed"));
        }
    }
    assert!(changed > 5, "{changed}");
}

/// A first name that was damaged at the target is repaired before the others become its names, or they
/// would keep the damage.
#[test]
fn no_name_is_linked_to_a_damaged_file() {
    let mut repaired = 0;
    for seed in 0..8 {
        let make = || {
            let mut scenario = with_pairs(seed, |nth| vec![b'0' + nth as u8; 40_000]);
            scenario.options.verify = true;
            if seed % 2 == 0 {
                let behavior = SimCommandBehavior::Sums(SumAnswers::Right);
                scenario.world.borrow_mut().commands.behavior = behavior;
            }
            scenario
        };
        let steps = Scenario::steps(make);
        for at in sampled(0, steps, 8) {
            let mut scenario = make();
            let report = scenario.run_with(|scenario, step, _| {
                if step == at {
                    scenario.at_target(|fs| fs.damages_next_write = true);
                }
            });
            let report = report.expect("nothing kills it");
            let name = format!("{}, at {at}: {report:#?}", scenario.name());
            assert_eq!(report.outcome(), CopyOutcome::Complete, "{name}");
            check_same(&scenario, &report);
            repaired += report.mismatches;
        }
    }
    assert!(repaired > 15, "{repaired}");
}

/// Names of one file in two sources that are merged or copied side by side.
#[test]
fn names_of_one_file_in_two_sources_have_its_contents() {
    for seed in 0..8 {
        for merged in [false, true] {
            let mut scenario = with_pairs(seed, |nth| vec![b'0' + nth as u8; 1000 << nth]);
            scenario.place_source("/home/u/more", Kind::Dir, 0o755);
            link(&scenario, "src/a0", "more/c0");
            link(&scenario, "src/b1", "more/a2x");
            scenario.place_source("/home/u/more/own", file("own"), 0o644);
            scenario.sources = match merged {
                true => vec!["src/.".to_owned(), "more/.".to_owned()],
                false => vec!["src".to_owned(), "more".to_owned()],
            };
            let report = scenario.complete();
            let name = format!("{}: {report:#?}", scenario.name());
            let roots = if merged {
                ["dst", "dst"]
            } else {
                ["dst/src", "dst/more"]
            };
            let mut by_source: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
            for (root, at) in ["src", "more"].into_iter().zip(roots) {
                scenario.check_contains(root, at);
                let target = scenario.at_target(|fs| tree_at(fs, at));
                for (path, entry) in scenario.at_source(|fs| tree_at(fs, root)) {
                    if entry.kind != Kind::Dir {
                        let copy = target[&path].inode;
                        by_source.entry(entry.inode).or_default().insert(copy);
                    }
                }
            }
            let has_links = scenario.target_has("hardlink@openssh.com");
            let is_one = by_source.values().all(|copies| copies.len() == 1);
            assert_eq!(is_one, has_links, "{name}");
        }
    }
}
