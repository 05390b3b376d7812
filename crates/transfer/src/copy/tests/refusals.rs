//! Queries that a server refuses.

use std::time::Duration;

use sftp::StatusCode;

use super::commands::SimCommandBehavior;
use super::trees::Form;
use super::{Case, End};
use crate::report::{CopyOutcome, CopySummary};

/// Bug: where a command was never answered, no file was read back after the time for it either, and
/// the copy waited for ever.
#[test]
fn files_are_verified_without_a_command_that_is_never_answered() {
    for seed in 0..8 {
        let mut case = Case::new(seed);
        case.faults.clear();
        case.options.verify = true;
        case.world.borrow_mut().commands.behavior = SimCommandBehavior::Hang;
        completes(&mut case);
    }
}

/// Bug: the 15 s for the start of a checksum program ran while there was no connection to start it
/// on, so that all files were read back.
#[test]
fn a_checksum_program_that_waited_for_a_connection_was_given_up() {
    let mut waited = 0;
    for seed in 0..8 {
        let mut case = Case::new(seed);
        case.faults.clear();
        case.options.verify = true;
        let time = Duration::from_secs(60);
        case.world.borrow_mut().commands.behavior = SimCommandBehavior::WaitForConnection(time);
        let verified = completes(&mut case).verified.unwrap_or_default();
        if let Some(reason) = verified.reason {
            assert_eq!(reason, "the host does not run commands for this account");
            waited += 1;
        }
    }
    assert!(waited > 3, "{waited} copies waited");
}

/// Bug: a checksum program that took its connection down each time was started again without end.
#[test]
fn a_checksum_program_that_ends_the_connection_was_restarted_without_end() {
    let mut gave_up = 0;
    for seed in 0..8 {
        let mut case = Case::new(seed);
        case.faults.clear();
        case.options.verify = true;
        case.world.borrow_mut().commands.behavior = SimCommandBehavior::LoseConnection;
        completes(&mut case);
        let told = case.told.borrow();
        let is_warning = |line: &&String| line.contains("reading files back instead");
        let warnings: Vec<_> = told.iter().filter(is_warning).collect();
        match warnings.as_slice() {
            [] => {}
            [warning] => {
                let why = "the connection was lost 4 times in a row while xxhsum ran at the far \
                           end: reading files back instead";
                assert!(warning.ends_with(why), "seed {seed}: {warning}");
                gave_up += 1;
            }
            several => panic!("seed {seed}: {several:?}"),
        }
    }
    assert!(gave_up > 3, "{gave_up} copies read files back");
}

/// Runs a case without faults, and checks that it copies everything.
#[track_caller]
fn completes(case: &mut Case) -> Box<CopySummary> {
    let seed = case.seed;
    let End::Over(summary) = case.run() else {
        panic!("seed {seed}: nothing kills it");
    };
    let told = case.told.borrow();
    assert_eq!(
        summary.outcome,
        CopyOutcome::Complete,
        "seed {seed}: {told:?}"
    );
    case.trees.check_complete(&case.world.borrow());
    drop(told);
    summary
}

/// Bug: each error was taken for a target that does not exist, so that a tree landed in a directory
/// instead of below it when the server could not look at the directory through symlinks.
#[test]
fn a_target_that_the_server_cannot_look_at_is_not_taken_for_a_missing_one() {
    let mut refused = 0;
    for seed in 0..60 {
        let mut case = Case::new(seed);
        if !case.upload || !matches!(case.form, Form::Into) {
            continue;
        }
        case.faults.clear();
        // What was copied cannot be verified without STAT.
        case.options.verify = false;
        let code = match seed % 2 {
            0 => StatusCode::FAILURE,
            _ => StatusCode::PERMISSION_DENIED,
        };
        case.refuse("STAT", code);
        completes(&mut case);
        refused += 1;
    }
    assert!(refused > 3, "{refused} queries were refused");
}
