//! `--verify`: damage is found and repaired, and nothing is called verified that was not compared.

use std::collections::BTreeMap;

use sftp::StatusCode;
use testkit::sftp_model::{Kind, SftpServerProfile};

use super::commands::SimCommandBehavior;
use super::faults::SimFault;
use super::scenario::{Direction, RunReport, Scenario, TreeSpec, leftovers, sampled, tree_at};
use super::sum_program::SumAnswers;
use crate::report::{CopyOutcome, VerifyResult};

/// Sides of the sums that a host with this behavior can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FarSums {
    /// No program: files are read back.
    Nothing,
    Program,
    /// A longhaul sums by hash@longhaul.
    Longhaul,
}

impl FarSums {
    const ALL: [Self; 3] = [Self::Nothing, Self::Program, Self::Longhaul];
}

fn verified(seed: u64, direction: Direction, sums: FarSums) -> Scenario {
    let profile = || match sums {
        FarSums::Longhaul => SftpServerProfile::ours(),
        _ => SftpServerProfile::openssh(),
    };
    let mut scenario = Scenario::with_servers(seed, direction, [profile(), profile()]);
    scenario.options.verify = true;
    scenario.place_tree(TreeSpec::MIXED);
    if sums == FarSums::Program {
        let behavior = SimCommandBehavior::Sums(SumAnswers::Right);
        scenario.world.borrow_mut().commands.behavior = behavior;
    }
    scenario
}

fn result_of(report: &RunReport) -> VerifyResult {
    report.summary().verified.clone().expect("it was wanted")
}

/// Number of files in the tree at `root`.
fn files(tree: &BTreeMap<String, super::scenario::TreeEntry>) -> u64 {
    tree.values()
        .filter(|entry| matches!(entry.kind, Kind::File(_)))
        .count() as u64
}

#[test]
fn every_file_is_verified_by_the_way_that_the_host_has() {
    for direction in Direction::ALL {
        for sums in FarSums::ALL {
            for seed in 0..5 {
                let mut scenario = verified(seed, direction, sums);
                let report = scenario.complete();
                let name = format!("{}, {sums:?}", scenario.name());
                scenario.check_same("src", "dst");
                let all = files(&scenario.at_source(|fs| tree_at(fs, "src")));
                let result = result_of(&report);
                assert_eq!(result.files, all, "{name}: {report:#?}");
                let read_back = match sums {
                    FarSums::Nothing => all,
                    FarSums::Program => 0,
                    FarSums::Longhaul => result.read_back,
                };
                assert_eq!(result.read_back, read_back, "{name}: {report:#?}");
                assert_eq!((report.mismatches, result.unverified), (0, 0), "{name}");
            }
        }
    }
}

/// Runs the copy while the target's disk damages one write at each of these steps.
fn run_damaged(scenario: &mut Scenario, is_at: impl Fn(u64) -> bool) -> RunReport {
    let report = scenario.run_with(|scenario, step, _| {
        if is_at(step) {
            scenario.at_target(|fs| fs.damages_next_write = true);
        }
    });
    scenario.at_target(|fs| fs.damages_next_write = false);
    report.expect("nothing kills it")
}

/// Data that the target's disk has changed is sent again.
#[test]
fn a_file_that_was_damaged_at_the_target_is_repaired() {
    let mut repaired = 0;
    for direction in [Direction::Upload, Direction::Relayed] {
        for sums in FarSums::ALL {
            for seed in 0..3 {
                let steps = Scenario::steps(|| verified(seed, direction, sums));
                for at in sampled(0, steps, 6) {
                    let mut scenario = verified(seed, direction, sums);
                    let report = run_damaged(&mut scenario, |step| step == at);
                    let name = format!("{}, {sums:?}, {at}", scenario.name());
                    assert_eq!(
                        report.outcome(),
                        CopyOutcome::Complete,
                        "{name}: {report:#?}"
                    );
                    scenario.check_same("src", "dst");
                    let result = result_of(&report);
                    let all = files(&scenario.at_source(|fs| tree_at(fs, "src")));
                    assert_eq!(
                        result.repaired, report.mismatches as u64,
                        "{name}: {report:#?}"
                    );
                    assert_eq!(result.files, all, "{name}");
                    repaired += report.mismatches;
                }
            }
        }
    }
    assert!(repaired > 60, "{repaired}");
}

/// A disk that goes on changing what is written: the copy gives up after some copies of each file,
/// and says so.
#[test]
fn a_disk_that_damages_every_copy_fails_the_files() {
    let mut failed = 0;
    for direction in [Direction::Upload, Direction::Relayed] {
        for sums in FarSums::ALL {
            for seed in 0..3 {
                let mut scenario = verified(seed, direction, sums);
                let report = run_damaged(&mut scenario, |_| true);
                let name = format!("{}, {sums:?}", scenario.name());
                assert_eq!(
                    report.outcome(),
                    CopyOutcome::Partial,
                    "{name}: {report:#?}"
                );
                for (path, reason) in &report.failed {
                    let is_told = reason.contains("verification failed");
                    assert!(is_told, "{name}: {path}: {reason}");
                }
                let source = scenario.at_source(|fs| tree_at(fs, "src"));
                let target = scenario.at_target(|fs| tree_at(fs, "dst"));
                for (path, entry) in &source {
                    let same = target
                        .get(path)
                        .is_some_and(|found| found.kind == entry.kind);
                    assert!(
                        same || report.has_failed(path),
                        "{name}: {path}: {report:#?}"
                    );
                }
                let all = files(&source) - report.failed.len() as u64;
                assert_eq!(result_of(&report).files, all, "{name}");
                failed += report.failed.len();
            }
        }
    }
    assert!(failed > 20, "{failed}");
}

/// Wrong, missing or senseless checksums of the host never fail a right file and never pass a wrong
/// one: files are read back.
#[test]
fn a_checksum_program_that_lies_neither_fails_nor_passes_a_file() {
    let all = [
        SumAnswers::Wrong,
        SumAnswers::Unreadable,
        SumAnswers::Garbage,
        SumAnswers::Silent,
        SumAnswers::Ends,
    ];
    for direction in [Direction::Upload, Direction::Download] {
        for answers in all {
            for seed in 0..4 {
                let mut scenario = verified(seed, direction, FarSums::Nothing);
                let behavior = SimCommandBehavior::Sums(answers);
                scenario.world.borrow_mut().commands.behavior = behavior;
                let report = scenario.complete();
                let name = format!("{}, {answers:?}", scenario.name());
                scenario.check_same("src", "dst");
                let result = result_of(&report);
                let all = files(&scenario.at_source(|fs| tree_at(fs, "src")));
                assert_eq!(
                    (result.files, result.unverified),
                    (all, 0),
                    "{name}: {report:#?}"
                );
                assert_eq!(
                    (report.mismatches, result.repaired),
                    (0, 0),
                    "{name}: {report:#?}"
                );
                assert_eq!(result.read_back, all, "{name}: {report:#?}");
            }
        }
    }
}

/// A program that is of no use, or answers too much, hides no damage and makes none up.
#[test]
fn damage_is_found_whatever_the_checksum_program_does() {
    let mut repaired = 0;
    for answers in [
        SumAnswers::Wrong,
        SumAnswers::Unreadable,
        SumAnswers::Garbage,
        SumAnswers::Silent,
        SumAnswers::Twice,
        SumAnswers::Ends,
    ] {
        for direction in [Direction::Upload, Direction::Relayed] {
            let make = |seed| {
                let scenario = verified(seed, direction, FarSums::Nothing);
                let behavior = SimCommandBehavior::Sums(answers);
                scenario.world.borrow_mut().commands.behavior = behavior;
                scenario
            };
            for seed in 0..2 {
                let steps = Scenario::steps(|| make(seed));
                for at in sampled(0, steps, 6) {
                    let mut scenario = make(seed);
                    let report = run_damaged(&mut scenario, |step| step == at);
                    let name = format!("{}, {answers:?}, {at}: {report:#?}", scenario.name());
                    assert_eq!(report.outcome(), CopyOutcome::Complete, "{name}");
                    scenario.check_same("src", "dst");
                    let result = result_of(&report);
                    let all = files(&scenario.at_source(|fs| tree_at(fs, "src")));
                    assert_eq!((result.files, result.unverified), (all, 0), "{name}");
                    assert!(report.mismatches <= 1, "{name}");
                    repaired += report.mismatches;
                }
            }
        }
    }
    assert!(repaired > 30, "{repaired}");
}

#[test]
fn a_longhaul_that_lies_about_checksums_neither_fails_nor_passes_a_file() {
    for direction in Direction::ALL {
        for seed in 0..6 {
            let mut scenario = verified(seed, direction, FarSums::Longhaul);
            for host in &mut scenario.world.borrow_mut().hosts {
                host.host.lies_about_sums = true;
            }
            let report = scenario.complete();
            let name = scenario.name();
            scenario.check_same("src", "dst");
            let result = result_of(&report);
            let all = files(&scenario.at_source(|fs| tree_at(fs, "src")));
            assert_eq!(
                (result.files, report.mismatches),
                (all, 0),
                "{name}: {report:#?}"
            );
        }
    }
}

/// Connections lost at each event, also while checksums are requested and files read back.
#[test]
fn a_connection_that_is_lost_during_the_verification_passes_no_file_unseen() {
    for direction in Direction::ALL {
        for sums in FarSums::ALL {
            for fault in [SimFault::ConnectionLost, SimFault::HostLost] {
                let seed = direction as u64 * 3 + sums as u64;
                let steps = Scenario::steps(|| verified(seed, direction, sums));
                for at in sampled(1, steps, 10) {
                    let mut scenario = verified(seed, direction, sums);
                    let host = usize::from(direction == Direction::Relayed);
                    scenario.faults = vec![(at, host, fault)];
                    let report = scenario.finish();
                    let name = format!("{}, {sums:?}, {at}", scenario.name());
                    if let CopyOutcome::NoConnection(_) = report.outcome() {
                        continue;
                    }
                    assert_eq!(
                        report.outcome(),
                        CopyOutcome::Complete,
                        "{name}: {report:#?}"
                    );
                    scenario.check_same("src", "dst");
                    let all = files(&scenario.at_source(|fs| tree_at(fs, "src")));
                    let result = result_of(&report);
                    assert_eq!((result.files, result.unverified), (all, 0), "{name}");
                    assert_eq!(report.mismatches, 0, "{name}: {report:#?}");
                }
            }
        }
    }
}

/// Damage before a lost connection is found after it.
#[test]
fn damage_is_found_after_a_lost_connection_too() {
    let mut repaired = 0;
    for direction in [Direction::Upload, Direction::Relayed] {
        for sums in FarSums::ALL {
            for seed in 0..3 {
                let steps = Scenario::steps(|| verified(seed, direction, sums));
                for tenth in [3, 5, 7, 9] {
                    let mut scenario = verified(seed, direction, sums);
                    let host = usize::from(direction == Direction::Relayed);
                    let at = steps * tenth / 10;
                    scenario.faults = vec![(at, host, SimFault::ConnectionLost)];
                    let report = run_damaged(&mut scenario, |step| step + 8 == at);
                    let name = format!("{}, {sums:?}", scenario.name());
                    if let CopyOutcome::NoConnection(_) = report.outcome() {
                        continue;
                    }
                    assert_eq!(
                        report.outcome(),
                        CopyOutcome::Complete,
                        "{name}: {report:#?}"
                    );
                    scenario.check_same("src", "dst");
                    repaired += report.mismatches;
                }
            }
        }
    }
    assert!(repaired > 10, "{repaired}");
}

/// A file that cannot be read back is not called verified.
#[test]
fn a_file_that_cannot_be_read_back_is_a_failure() {
    let mut failed = 0;
    for seed in 0..8 {
        let mut scenario = verified(seed, Direction::Upload, FarSums::Nothing);
        // A drop box takes files and gives none.
        scenario.refuse("READ", StatusCode::PERMISSION_DENIED);
        let report = scenario.finish();
        let name = scenario.name();
        let all = scenario.at_source(|fs| tree_at(fs, "src"));
        let empty = |entry: &&super::scenario::TreeEntry| entry.kind == Kind::File(Vec::new());
        let empty = all.values().filter(empty).count() as u64;
        let result = result_of(&report);
        assert!(result.files <= empty, "{name}: {report:#?}");
        assert_eq!(
            report.failed.len() as u64,
            files(&all) - result.files,
            "{name}"
        );
        for (path, reason) in &report.failed {
            let is_told = reason.contains("cannot be verified");
            assert!(is_told, "{name}: {path}: {reason}");
        }
        scenario.check_same("src", "dst");
        failed += report.failed.len();
    }
    assert!(failed > 40, "{failed}");
}

/// Ctrl-C during the verification: files that were not compared are counted as such, and are whole.
#[test]
fn an_interrupted_verification_counts_what_it_has_not_compared() {
    let mut unverified = 0;
    for direction in Direction::ALL {
        for sums in FarSums::ALL {
            let seed = direction as u64 * 3 + sums as u64;
            let steps = Scenario::steps(|| verified(seed, direction, sums));
            for at in sampled(1, steps, 12) {
                let mut scenario = verified(seed, direction, sums);
                scenario.faults = vec![(at, 0, SimFault::Interrupted)];
                let report = scenario.finish();
                let name = format!("{}, {sums:?}, {at}", scenario.name());
                assert_eq!(report.outcome(), CopyOutcome::Interrupted, "{name}");
                let result = result_of(&report);
                unverified += result.unverified;
                let summary = report.summary();
                assert_eq!(
                    result.files + result.unverified,
                    summary.files,
                    "{name}: {report:#?}"
                );
                let source = scenario.at_source(|fs| tree_at(fs, "src"));
                for (path, found) in scenario.at_target(|fs| tree_at(fs, "dst")) {
                    let name_of = path.rsplit('/').next().unwrap_or_default();
                    if sftp::final_name_in(name_of.as_bytes()).is_none() {
                        assert!(source[&path].kind == found.kind, "{name}: {path}");
                    }
                }
                scenario.complete();
                assert_eq!(scenario.at_target(|fs| leftovers(fs)), [""; 0], "{name}");
            }
        }
    }
    assert!(unverified > 5, "{unverified}");
}

/// A killed copy with --verify: what the first run has copied is compared by the second.
#[test]
fn files_of_a_killed_run_are_compared_by_the_next_one() {
    let mut repaired = 0;
    for direction in [Direction::Upload, Direction::Relayed] {
        for sums in FarSums::ALL {
            for seed in 0..4 {
                let steps = Scenario::steps(|| verified(seed, direction, sums));
                let mut scenario = verified(seed, direction, sums);
                scenario.options.preserve = true;
                scenario.faults = vec![(steps * 9 / 10, 0, SimFault::Killed)];
                if scenario.run().is_some() {
                    continue;
                }
                // The disk changes a file that has its name, and neither its length nor its time.
                let found = scenario.at_target(|fs| tree_at(fs, "dst"));
                let finished = found.iter().find(|(path, entry)| {
                    let name = path.rsplit('/').next().unwrap_or_default();
                    let is_temporary = sftp::final_name_in(name.as_bytes()).is_some();
                    matches!(&entry.kind, Kind::File(data) if !data.is_empty()) && !is_temporary
                });
                let Some((path, _)) = finished else { continue };
                scenario.at_target(|fs| {
                    let node = fs.at_mut(&format!("/home/u/dst/{path}")).expect("found");
                    if let Kind::File(data) = &mut node.kind {
                        data[0] ^= 4;
                    }
                });
                scenario.complete();
                let name = scenario.name();
                let is_new = scenario.at_target(|fs| fs.at("dst/src").is_some());
                if !is_new {
                    scenario.check_same("src", "dst");
                    repaired += 1;
                }
                assert_eq!(scenario.at_target(|fs| leftovers(fs)), [""; 0], "{name}");
            }
        }
    }
    assert!(repaired > 5, "{repaired}");
}
