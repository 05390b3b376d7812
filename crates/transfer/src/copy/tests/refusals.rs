//! Queries that a server refuses.

use sftp::StatusCode;

use super::trees::Form;
use super::{Case, End};
use crate::report::CopyOutcome;

/// Bug: where a command was never answered, no file was read back after the time for it either, and
/// the copy waited for ever.
#[test]
fn files_are_verified_without_a_command_that_is_never_answered() {
    for seed in 0..8 {
        let mut case = Case::new(seed);
        case.faults.clear();
        case.options.verify = true;
        case.world.borrow_mut().commands_hang = true;
        completes(&mut case);
    }
}

/// Runs a case without faults, and checks that it copies everything.
#[track_caller]
fn completes(case: &mut Case) {
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
