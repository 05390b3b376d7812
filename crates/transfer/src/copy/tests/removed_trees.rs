//! Interrupted copies whose target was changed before they go on.

use std::collections::BTreeMap;

use testkit::sftp_model::{Fs, Kind, Rng};

use super::faults::SimFault;
use super::scenario::{
    Direction, RunReport, Scenario, TreeEntry, TreeSpec, file, leftovers, remove_tree, symlink,
    tree_at,
};
use crate::report::CopyOutcome;

/// Copy of the contents of a tree that is stopped on its way.
fn stopped(seed: u64, direction: Direction) -> Option<Scenario> {
    let make = || {
        let mut scenario = Scenario::new(seed, direction);
        scenario.place_tree(TreeSpec {
            files: 24,
            dirs: 5,
            ..TreeSpec::MIXED
        });
        scenario.sources = vec!["src/.".to_owned()];
        scenario.options.preserve = seed.is_multiple_of(2);
        scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
        scenario
    };
    let steps = Scenario::steps(make);
    let mut scenario = make();
    let fault = match seed % 3 {
        0 => SimFault::Interrupted,
        _ => SimFault::Killed,
    };
    scenario.faults = vec![(steps * (2 + seed % 7) / 9, 0, fault)];
    let report = scenario.run();
    let is_over = report.is_some_and(|report| report.outcome() == CopyOutcome::Complete);
    let has_journal = scenario.world.borrow().journal.borrow().exists();
    (!is_over && has_journal).then_some(scenario)
}

/// Entries that the first run has finished.
fn finished(scenario: &Scenario) -> BTreeMap<String, TreeEntry> {
    let source = scenario.at_source(|fs| tree_at(fs, "src"));
    let mut found = scenario.at_target(|fs| tree_at(fs, "dst"));
    found.retain(|path, _| !path.is_empty() && source.contains_key(path));
    found
}

/// Changes a random finished entry of the target that `is_it` accepts, and goes on with the copy.
fn change_and_go_on(
    is_it: fn(&TreeEntry) -> bool,
    change: fn(&mut Fs, &str),
    mut check: impl FnMut(&Scenario, &RunReport, &str),
) {
    let mut changed = 0;
    for direction in Direction::ALL {
        for seed in 0..12 {
            let Some(mut scenario) = stopped(seed, direction) else {
                continue;
            };
            let entries = finished(&scenario);
            let entries: Vec<&String> = entries
                .iter()
                .filter(|(_, entry)| is_it(entry))
                .map(|(path, _)| path)
                .collect();
            if entries.is_empty() {
                continue;
            }
            let nth = Rng::new(seed).below(entries.len() as u64);
            let path = entries[nth as usize].clone();
            scenario.at_target(|fs| {
                fs.clock += 3;
                change(fs, &format!("/home/u/dst/{path}"));
            });
            let report = scenario.finish();
            check(&scenario, &report, &path);
            assert_eq!(
                scenario.at_target(|fs| leftovers(fs)),
                [""; 0],
                "{}",
                scenario.name()
            );
            changed += 1;
        }
    }
    assert!(changed > 10, "{changed}");
}

fn is_dir(entry: &TreeEntry) -> bool {
    entry.kind == Kind::Dir
}

fn is_file(entry: &TreeEntry) -> bool {
    matches!(entry.kind, Kind::File(_))
}

#[track_caller]
fn check_complete(scenario: &Scenario, report: &RunReport, _: &str) {
    let name = scenario.name();
    assert_eq!(
        report.outcome(),
        CopyOutcome::Complete,
        "{name}: {report:#?}"
    );
    scenario.check_same("src", "dst");
}

/// A directory that the first run has filled, and the user has removed: all of it is copied again.
#[test]
fn a_removed_directory_is_copied_again() {
    change_and_go_on(is_dir, remove_tree, check_complete);
}

#[test]
fn a_removed_file_is_copied_again() {
    change_and_go_on(is_file, remove_tree, check_complete);
}

/// A file that somebody has shortened since is not taken for the finished one.
#[test]
fn a_file_that_was_cut_since_is_copied_again() {
    let cut = |fs: &mut Fs, path: &str| {
        let clock = fs.clock;
        if let Some(node) = fs.at_mut(path)
            && let Kind::File(data) = &mut node.kind
        {
            data.truncate(data.len() / 2);
            node.times.1 = clock;
        }
    };
    change_and_go_on(is_file, cut, check_complete);
}

/// Entries of another kind in the place of a finished file.
#[test]
fn a_symlink_in_the_place_of_a_finished_file_is_replaced_and_not_followed() {
    let replace = |fs: &mut Fs, path: &str| {
        remove_tree(fs, path);
        fs.place("/home/u/elsewhere", file("elsewhere"), 0o644);
        fs.place(path, symlink("/home/u/elsewhere"), 0o777);
    };
    change_and_go_on(is_file, replace, |scenario, report, path| {
        check_complete(scenario, report, path);
        let kept = scenario.at_target(|fs| fs.data("elsewhere") == Some(b"elsewhere"));
        assert!(kept, "{}: written through a symlink", scenario.name());
    });
}

#[test]
fn a_directory_in_the_place_of_a_finished_file_is_kept_and_told() {
    let replace = |fs: &mut Fs, path: &str| {
        remove_tree(fs, path);
        fs.place(path, Kind::Dir, 0o755);
        fs.place(&format!("{path}/kept"), file("kept"), 0o644);
    };
    change_and_go_on(is_file, replace, |scenario, report, path| {
        let name = scenario.name();
        assert_eq!(
            report.outcome(),
            CopyOutcome::Partial,
            "{name}: {report:#?}"
        );
        assert_eq!(report.failed.len(), 1, "{name}: {report:#?}");
        assert!(report.has_failed(path), "{name}: {path}: {report:#?}");
        let path = format!("dst/{path}/kept");
        let kept = scenario.at_target(|fs| fs.data(&path) == Some(b"kept"));
        assert!(kept, "{name}: {path}");
    });
}

#[test]
fn a_file_in_the_place_of_a_filled_directory_is_kept_and_told() {
    let replace = |fs: &mut Fs, path: &str| {
        remove_tree(fs, path);
        fs.place(path, file("the user's own"), 0o644);
    };
    change_and_go_on(is_dir, replace, |scenario, report, path| {
        let name = scenario.name();
        assert_eq!(
            report.outcome(),
            CopyOutcome::Partial,
            "{name}: {report:#?}"
        );
        assert!(report.has_failed(path), "{name}: {path}: {report:#?}");
        let at = format!("dst/{path}");
        let kept = scenario.at_target(|fs| fs.data(&at) == Some(b"the user's own"));
        assert!(kept, "{name}: {path} was replaced");
        let below = format!("{path}/");
        let source = scenario.at_source(|fs| tree_at(fs, "src"));
        let target = scenario.at_target(|fs| tree_at(fs, "dst"));
        let is_below = |of: &str| of == path || of.starts_with(&below);
        for (path, entry) in source.iter().filter(|(of, _)| !is_below(of)) {
            let same = target
                .get(path)
                .is_some_and(|found| found.kind == entry.kind);
            assert!(same, "{name}: {path}: {report:#?}");
        }
    });
}

/// A symlink to a directory elsewhere in the place of a filled directory is not followed.
#[test]
fn a_symlink_in_the_place_of_a_filled_directory_is_not_followed() {
    let replace = |fs: &mut Fs, path: &str| {
        remove_tree(fs, path);
        fs.place("/home/u/elsewhere", Kind::Dir, 0o755);
        fs.place(path, symlink("/home/u/elsewhere"), 0o777);
    };
    change_and_go_on(is_dir, replace, |scenario, report, path| {
        let name = scenario.name();
        assert!(report.has_failed(path), "{name}: {path}: {report:#?}");
        let found = scenario.at_target(|fs| tree_at(fs, "elsewhere"));
        assert_eq!(found.len(), 1, "{name}: {found:?}");
    });
}

/// Temporaries that were removed, cut or replaced between the runs.
#[test]
fn a_changed_temporary_is_never_continued_into_a_wrong_file() {
    let mut changed = 0;
    for direction in Direction::ALL {
        for seed in 0..24 {
            let Some(mut scenario) = stopped(seed, direction) else {
                continue;
            };
            let temporaries = scenario.at_target(|fs| leftovers(fs));
            for (nth, path) in temporaries.iter().enumerate() {
                scenario.at_target(|fs| {
                    fs.clock += 3;
                    let clock = fs.clock;
                    let at = format!("/home/u/{path}");
                    let Some(node) = fs.at_mut(&at) else { return };
                    let Kind::File(data) = &mut node.kind else {
                        return;
                    };
                    match (nth as u64 + seed) % 4 {
                        0 => remove_tree(fs, &at),
                        1 => {
                            data.truncate(data.len() / 2);
                            node.times.1 = clock;
                        }
                        2 => {
                            data.fill(b'x');
                            node.times.1 = clock;
                        }
                        _ => {
                            data.extend_from_slice(b"more");
                            node.times.1 = clock;
                        }
                    }
                });
                changed += 1;
            }
            let report = scenario.finish();
            check_complete(&scenario, &report, "");
            assert_eq!(
                scenario.at_target(|fs| leftovers(fs)),
                [""; 0],
                "{}",
                scenario.name()
            );
        }
    }
    assert!(changed > 10, "{changed}");
}

/// Files that the user puts into the target between two runs stay.
#[test]
fn files_of_the_user_in_the_target_are_kept_by_a_resumed_copy() {
    for direction in Direction::ALL {
        for seed in 0..10 {
            let Some(mut scenario) = stopped(seed, direction) else {
                continue;
            };
            let dirs = finished(&scenario);
            let dirs: Vec<&String> = dirs
                .iter()
                .filter(|(_, entry)| is_dir(entry))
                .map(|(path, _)| path)
                .collect();
            for dir in &dirs {
                scenario.at_target(|fs| {
                    fs.place(&format!("/home/u/dst/{dir}/mine"), file("mine"), 0o644);
                });
            }
            scenario.complete();
            for dir in &dirs {
                let path = format!("dst/{dir}/mine");
                let kept = scenario.at_target(|fs| fs.data(&path) == Some(b"mine"));
                assert!(kept, "{}: {path}", scenario.name());
            }
        }
    }
}

/// Sources that were removed between the runs: what the first run has begun of them is removed.
#[test]
fn leftovers_of_a_source_that_is_gone_are_removed() {
    for direction in Direction::ALL {
        for seed in 0..12 {
            let Some(mut scenario) = stopped(seed, direction) else {
                continue;
            };
            let before = finished(&scenario);
            let gone = scenario.at_source(|fs| {
                let mut gone = Vec::new();
                for (nth, (path, entry)) in tree_at(fs, "src").iter().rev().enumerate() {
                    if nth % 2 == 0 && is_file(entry) {
                        fs.remove(format!("/home/u/src/{path}").as_bytes(), false)
                            .expect("it is there");
                        gone.push(path.clone());
                    }
                }
                gone
            });
            let report = scenario.complete();
            let name = scenario.name();
            assert_eq!(
                scenario.at_target(|fs| leftovers(fs)),
                [""; 0],
                "{name}: {report:#?}"
            );
            let found = scenario.at_target(|fs| tree_at(fs, "dst"));
            for path in &gone {
                let was_there = before.contains_key(path);
                assert_eq!(found.contains_key(path), was_there, "{name}: {path}");
            }
        }
    }
}

/// Three runs, each killed: the last one completes, and no byte of the first is lost on the way.
#[test]
fn a_copy_that_is_killed_several_times_completes() {
    let mut completed = 0;
    for direction in Direction::ALL {
        for seed in 0..10 {
            let Some(mut scenario) = stopped(seed, direction) else {
                continue;
            };
            for nth in 1..4 {
                scenario.faults = vec![(20 * nth + seed, 0, SimFault::Killed)];
                if let Some(report) = scenario.run() {
                    let name = scenario.name();
                    assert_eq!(
                        report.outcome(),
                        CopyOutcome::Complete,
                        "{name}: {report:#?}"
                    );
                }
            }
            scenario.complete();
            scenario.check_same("src", "dst");
            assert_eq!(
                scenario.at_target(|fs| leftovers(fs)),
                [""; 0],
                "{}",
                scenario.name()
            );
            completed += 1;
        }
    }
    assert!(completed > 10, "{completed}");
}
