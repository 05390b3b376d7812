//! Messages and journal of a run that resumes an interrupted one.

use std::time::Duration;

use sftp::StatusCode;

use super::faults::SimFault;
use super::session::Shape;
use super::{Case, End};
use crate::report::CopyOutcome;

/// Number of the current line of what was told.
fn lines(case: &Case) -> usize {
    case.told.borrow().len()
}

/// Lines that were told since `from` and contain `words`.
fn told_since(case: &Case, from: usize, words: &str) -> Vec<String> {
    let told = case.told.borrow();
    let lines = told[from..].iter().filter(|line| line.contains(words));
    lines.cloned().collect()
}

/// Numbers of complete files and of those that may be sent again, as told since `from`.
fn resumed_files(case: &Case, from: usize) -> Option<(usize, usize)> {
    let said = told_since(case, from, "resumed: ");
    let (done, unproven) = said.first()?.strip_prefix("resumed: ")?.split_once(' ')?;
    Some((done.parse().ok()?, unproven.parse().ok()?))
}

/// Upload over a slow path to a server that is not asked for the times of its files.
fn slow_upload(seed: u64) -> Option<Case> {
    let case = Case::on_path(seed, |shape| Shape {
        delay: Duration::from_millis(10),
        bandwidth: 300_000,
        ..shape
    });
    (case.upload && !case.options.preserve).then_some(case)
}

/// True if the run has left a journal.
fn leaves_journal(end: &End) -> bool {
    matches!(end, End::Over(summary) if summary.journal.is_some())
}

/// Bug: `cp -r` to a stock server that was interrupted said "207 files recorded as complete" in its
/// next run and sent 131 of them again, because they were finished in its last second.
#[test]
fn files_that_are_sent_again_were_counted_as_complete() {
    let (mut resumed, mut again) = (0, 0);
    for seed in 0..60 {
        let Some(mut case) = slow_upload(seed) else {
            continue;
        };
        case.options.verify = false;
        case.faults = vec![(1000 + 150 * (seed % 16), SimFault::Interrupted)];
        if !leaves_journal(&case.run()) {
            continue;
        }
        let before = case.trees.inodes(&case.world.borrow());
        let from = lines(&case);
        let End::Over(summary) = case.run() else {
            panic!("seed {seed}: nothing kills it");
        };
        assert_eq!(summary.outcome, CopyOutcome::Complete, "seed {seed}");
        let after = case.trees.inodes(&case.world.borrow());
        let is_kept = |(path, inode): &(&String, &u64)| after.get(*path) == Some(*inode);
        let kept = before.iter().filter(is_kept).count();
        let Some((done, unproven)) = resumed_files(&case, from) else {
            continue;
        };
        assert!(done <= kept, "seed {seed}: {done} recorded, {kept} kept");
        resumed += usize::from(done > 0);
        again += usize::from(unproven > 0);
    }
    assert!(resumed > 2 && again > 2, "{resumed}, {again}");
}

/// Bug: a file of the last second before an interruption, which is sent again, could not be replaced
/// if it had no write permission: the resumed copy failed.
#[test]
fn a_read_only_file_that_an_earlier_run_has_copied_is_replaced() {
    let mut again = 0;
    for seed in 0..60 {
        let Some(mut case) = slow_upload(seed) else {
            continue;
        };
        (case.options.verify, case.options.archive) = (false, false);
        case.faults = vec![(1000 + 150 * (seed % 16), SimFault::Interrupted)];
        if !leaves_journal(&case.run()) {
            continue;
        }
        let before = case.trees.inodes(&case.world.borrow());
        for path in before.keys() {
            let fs = &mut case.world.borrow_mut().hosts[0].host.fs;
            let node = fs.at_mut(path).expect("it was found");
            node.mode &= 0o444;
        }
        let from = lines(&case);
        let End::Over(summary) = case.run() else {
            panic!("seed {seed}: nothing kills it");
        };
        let Some((done, unproven)) = resumed_files(&case, from) else {
            continue;
        };
        // Nobody knows whose file it is that got its name without a record.
        let unrecorded = before.len() - (done + unproven).min(before.len());
        assert!(summary.failed <= unrecorded as u64, "seed {seed}");
        let after = case.trees.inodes(&case.world.borrow());
        let is_replaced = |(path, inode): &(&String, &u64)| after.get(*path) != Some(*inode);
        again += before.iter().filter(is_replaced).count();
    }
    assert!(again > 10, "{again}");
}

/// Bug: the next run of an interrupted copy asked the server for each complete file, and sent 130
/// bytes for it: half of what the kill of a shard's worker cost.
#[test]
fn a_resumed_upload_asked_for_each_complete_file() {
    let (mut complete, mut asked) = (0, 0);
    for seed in 0..24 {
        let mut case = Case::new(seed);
        if !case.upload {
            continue;
        }
        // The times of such files tell that they are those of the source.
        (case.options.preserve, case.options.verify) = (true, false);
        case.faults = vec![(2000, SimFault::Interrupted)];
        if !leaves_journal(&case.run()) {
            continue;
        }
        let from = lines(&case);
        let before = case.world.borrow().stats;
        let End::Over(summary) = case.run() else {
            panic!("seed {seed}: nothing kills it");
        };
        assert_eq!(summary.outcome, CopyOutcome::Complete, "seed {seed}");
        if let Some((done, _)) = resumed_files(&case, from) {
            complete += done;
            asked += case.world.borrow().stats - before;
        }
    }
    assert!(
        complete > 500 && asked < complete as u64 / 2,
        "{asked}, {complete}"
    );
}

/// Refuses every rename, so that files are written under their final names.
fn refuse_renames(case: &Case) {
    for request in ["RENAME", "posix-rename@openssh.com", "put-file@longhaul"] {
        case.refuse(request, StatusCode::PERMISSION_DENIED);
    }
}

/// Cases of a large file whose temporary cannot be renamed.
fn in_place(seed: u64, change: impl FnOnce(Shape) -> Shape) -> Option<Case> {
    let mut case = Case::on_path(seed, change);
    case.options.verify = false;
    refuse_renames(&case);
    case.upload.then_some(case)
}

/// Bug: where a server refuses renames, the journal kept what had arrived of a temporary that the
/// run had removed: the next run said "resuming: 40 MB of 2 unfinished files", and then that they
/// were missing or changed.
#[test]
fn a_removed_temporary_stayed_in_the_journal() {
    let (mut interrupted, mut told) = (0, Vec::new());
    for seed in 0..24 {
        for at in (400..4000).step_by(400) {
            let Some(mut case) = in_place(seed, |shape| shape) else {
                continue;
            };
            let end = match at % 800 {
                0 => SimFault::Killed,
                _ => SimFault::Interrupted,
            };
            case.faults = vec![(at, end)];
            let ended = case.run();
            let is_in_place = !case.trees.incomplete(&case.world.borrow()).is_empty();
            if !case.faults.is_empty() || !is_in_place {
                continue;
            }
            drop(ended);
            interrupted += 1;
            let from = lines(&case);
            let _ = case.run();
            let lost = told_since(&case, from, "missing or changed");
            told.extend(lost.into_iter().map(|line| (seed, at, line)));
        }
    }
    assert!(interrupted > 5, "{interrupted} runs ended in place");
    assert!(told.is_empty(), "{told:?}");
}

/// Bug: a file that was being written under its final name when the connection was lost for good, or
/// the copy was interrupted, was left incomplete and not named.
#[test]
fn a_file_that_was_left_incomplete_was_not_named() {
    let mut left = [0, 0];
    for seed in 0..24 {
        for at in (300..4000).step_by(300) {
            let shape = |shape| Shape {
                worth: u64::MAX,
                ..shape
            };
            let Some(mut case) = in_place(seed, shape) else {
                continue;
            };
            let (kind, end) = match at % 600 {
                0 => (0, SimFault::HostLost),
                _ => (1, SimFault::Interrupted),
            };
            case.faults = vec![(at, end)];
            let _ = case.run();
            for path in case.trees.incomplete(&case.world.borrow()) {
                left[kind] += 1;
                let name = path.rsplit('/').next().unwrap_or_default();
                let told = told_since(&case, 0, "incomplete");
                let is_named = |line: &String| {
                    let is_warned = line.starts_with("warning: ") || line.starts_with("failed: ");
                    is_warned && line.contains(&format!("/{name}"))
                };
                assert!(
                    told.iter().any(is_named),
                    "seed {seed}, {at}: {path}: {told:?}"
                );
            }
        }
    }
    assert!(left[0] > 2 && left[1] > 2, "{left:?}");
}

/// Bug: a file that the killed run had renamed after its last record was said to be "missing or
/// changed", though nobody had touched it.
#[test]
fn a_part_that_nobody_has_touched_was_called_missing() {
    let (mut renamed, mut resumed) = (0, 0);
    for seed in 0..120 {
        let mut case = Case::stopped(seed, None);
        case.faults = vec![(200 + 40 * (seed % 23), SimFault::Killed)];
        if !matches!(case.run(), End::Killed) {
            continue;
        }
        if !case.trees.complete_large(&mut case.world.borrow_mut()) {
            continue;
        }
        renamed += 1;
        let from = lines(&case);
        let End::Over(summary) = case.run() else {
            panic!("seed {seed}: nothing kills it");
        };
        assert_eq!(summary.outcome, CopyOutcome::Complete, "seed {seed}");
        case.trees.check_complete(&case.world.borrow());
        resumed += usize::from(resumed_files(&case, from).is_some());
        for words in ["missing or changed", "is gone", "changed since"] {
            let said = told_since(&case, from, words);
            assert!(said.is_empty(), "seed {seed}: {said:?}");
        }
    }
    assert!(renamed > 10 && resumed > 3, "{renamed}, {resumed}");
}
