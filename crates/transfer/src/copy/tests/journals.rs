//! Journals that cannot be written, are torn, damaged or removed: a copy completes all the same.

use testkit::sftp_model::Kind;

use super::faults::SimFault;
use super::journal::JournalFailure;
use super::scenario::{Direction, Scenario, TreeSpec, leftovers, tree_at};
use crate::report::CopyOutcome;

/// Copy of the contents of `src` into `dst`, so that a copy that starts over has the same target.
fn contents(seed: u64, direction: Direction) -> Scenario {
    let mut scenario = Scenario::new(seed, direction);
    scenario.place_tree(TreeSpec {
        files: 12,
        large: 2,
        ..TreeSpec::SMALL
    });
    scenario.sources = vec!["src/.".to_owned()];
    scenario.place_target("/home/u/dst", Kind::Dir, 0o755);
    scenario
}

/// Copies that are killed on their way, with a journal.
fn killed(seeds: std::ops::Range<u64>) -> impl Iterator<Item = Scenario> {
    Direction::ALL.into_iter().flat_map(move |direction| {
        seeds.clone().filter_map(move |seed| {
            let steps = Scenario::steps(|| contents(seed, direction));
            let mut scenario = contents(seed, direction);
            scenario.faults = vec![(steps * (1 + seed % 8) / 9, 0, SimFault::Killed)];
            let is_killed = scenario.run().is_none();
            let has_journal = scenario.world.borrow().journal.borrow().exists();
            (is_killed && has_journal).then_some(scenario)
        })
    })
}

fn fail(scenario: &Scenario, failure: Option<JournalFailure>) {
    scenario.world.borrow().journal.borrow_mut().failure = failure;
}

const NOT_RESUMABLE: &str = "this copy cannot be resumed if it is interrupted";

/// A full disk under the journal costs the copy nothing but its journal, and is told once.
#[test]
fn a_journal_that_cannot_be_written_is_told_and_the_copy_completes() {
    for direction in Direction::ALL {
        for failure in [
            JournalFailure::Find,
            JournalFailure::Create,
            JournalFailure::WriteBeyond(0),
            JournalFailure::WriteBeyond(60),
            JournalFailure::WriteBeyond(150),
            JournalFailure::WriteBeyond(400),
        ] {
            for seed in 0..5 {
                let mut scenario = contents(seed, direction);
                fail(&scenario, Some(failure));
                let report = scenario.complete();
                let name = format!("{}, {failure:?}", scenario.name());
                scenario.check_same("src", "dst");
                let told = report
                    .warnings
                    .iter()
                    .filter(|line| line.contains(NOT_RESUMABLE));
                assert_eq!(told.count(), 1, "{name}: {report:#?}");
                let is_left = scenario.world.borrow().journal.borrow().exists();
                assert!(!is_left, "{name}: the journal of a complete copy stayed");
            }
        }
    }
}

/// The copy is killed after its journal could not be written: the next run, with space, completes.
#[test]
fn a_copy_whose_journal_ends_early_is_completed_by_the_next_run() {
    let mut killed = 0;
    for direction in Direction::ALL {
        for limit in [0, 40, 100, 200, 500] {
            for seed in 0..4 {
                let steps = Scenario::steps(|| contents(seed, direction));
                let mut scenario = contents(seed, direction);
                fail(&scenario, Some(JournalFailure::WriteBeyond(limit)));
                scenario.faults = vec![(steps * (1 + seed) / 5, 0, SimFault::Killed)];
                killed += usize::from(scenario.run().is_none());
                fail(&scenario, None);
                scenario.complete();
                scenario.check_contains("src", "dst");
            }
        }
    }
    assert!(killed > 40, "{killed}");
}

/// An interrupted copy without a journal removes its own temporaries, because no later run finds
/// them.
#[test]
fn an_interrupted_copy_whose_journal_could_not_be_created_leaves_no_temporary() {
    for direction in Direction::ALL {
        for seed in 0..6 {
            let steps = Scenario::steps(|| contents(seed, direction));
            for tenth in [2, 5, 8] {
                let mut scenario = contents(seed, direction);
                fail(&scenario, Some(JournalFailure::Create));
                scenario.faults = vec![(steps * tenth / 10, 0, SimFault::Interrupted)];
                let report = scenario.finish();
                let name = scenario.name();
                assert_eq!(report.outcome(), CopyOutcome::Interrupted, "{name}");
                assert_eq!(
                    scenario.at_target(|fs| leftovers(fs)),
                    [""; 0],
                    "{name}: {report:#?}"
                );
                assert_eq!(report.summary().journal, None, "{name}: {report:#?}");
            }
        }
    }
}

/// A journal of an earlier run that cannot be read or continued is kept for later.
#[test]
fn a_journal_that_cannot_be_continued_is_kept_and_the_copy_completes() {
    let mut runs = 0;
    for failure in [JournalFailure::Find, JournalFailure::GoOn] {
        for mut scenario in killed(0..8) {
            fail(&scenario, Some(failure));
            let report = scenario.complete();
            let told = report.warnings.iter();
            let told = told.filter(|line| line.contains(NOT_RESUMABLE)).count();
            let name = format!("{}, {failure:?}", scenario.name());
            assert_eq!(told, 1, "{name}: {report:#?}");
            assert!(!report.warns("another longhaul"), "{name}: {report:#?}");
            fail(&scenario, None);
            // The journal has the names of the temporaries that the killed run has left.
            scenario.complete();
            scenario.check_same("src", "dst");
            runs += 1;
        }
    }
    assert!(runs > 20, "{runs}");
}

/// A journal that ends in the middle of a record, as after a power loss: the copy completes from
/// what is left of it.
#[test]
fn a_torn_journal_is_used_as_far_as_it_goes() {
    let mut torn = 0;
    for (nth, mut scenario) in (0..).zip(killed(0..24)) {
        let mut kept = 0;
        scenario
            .world
            .borrow()
            .journal
            .borrow_mut()
            .change(|bytes| {
                kept = bytes.len() * (nth % 11) / 11;
                bytes.truncate(kept);
            });
        scenario.complete();
        scenario.check_contains("src", "dst");
        torn += 1;
    }
    assert!(torn > 20, "{torn}");
}

/// A journal with a wrong byte, as a failing disk gives it: files are right all the same.
#[test]
fn a_damaged_journal_spoils_no_file() {
    let mut damaged = 0;
    for (nth, mut scenario) in (0..).zip(killed(0..24)) {
        scenario
            .world
            .borrow()
            .journal
            .borrow_mut()
            .change(|bytes| {
                let at = bytes.len() * (1 + nth % 13) / 14;
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << (nth % 8);
                }
            });
        scenario.complete();
        scenario.check_contains("src", "dst");
        damaged += 1;
    }
    assert!(damaged > 20, "{damaged}");
}

/// The user removes the journal: the copy starts over, and nothing that the killed run has left is
/// taken for a finished file.
#[test]
fn a_removed_journal_starts_the_copy_over() {
    for mut scenario in killed(0..8) {
        scenario.world.borrow().journal.borrow_mut().delete();
        let report = scenario.complete();
        assert_eq!(report.summary().taken_over, 0, "{}", scenario.name());
        scenario.check_contains("src", "dst");
    }
}

/// `--restart` uses nothing of the earlier run and removes what it has left.
#[test]
fn a_copy_that_starts_afresh_takes_over_nothing_and_leaves_nothing() {
    for mut scenario in killed(0..8) {
        scenario.options.afresh = true;
        let report = scenario.complete();
        let name = scenario.name();
        assert_eq!(report.summary().taken_over, 0, "{name}: {report:#?}");
        scenario.check_same("src", "dst");
    }
}

/// A resumed copy takes over what the killed run has sent: the bytes add up.
#[test]
fn a_resumed_copy_counts_each_byte_once() {
    let mut taken = 0;
    for mut scenario in killed(0..12) {
        let report = scenario.complete();
        let source = scenario.at_source(|fs| tree_at(fs, "src"));
        let sizes = source.values().map(|entry| match &entry.kind {
            Kind::File(data) => data.len() as u64,
            _ => 0,
        });
        let summary = report.summary();
        let name = scenario.name();
        let all: u64 = sizes.sum();
        assert_eq!(
            summary.bytes + summary.taken_over,
            all,
            "{name}: {report:#?}"
        );
        scenario.check_same("src", "dst");
        taken += summary.taken_over;
    }
    assert!(taken > 1 << 20, "{taken}");
}
