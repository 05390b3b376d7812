//! The failures of a run: the first of each reason by name, the others counted.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use transfer::report::{CopyEvent, CopyOutcome, CopySummary, ItemFailure};

use crate::output::units;

/// Failures with the same reason that are named; further ones are counted.
const NAMED: u64 = 10;
/// Reasons that are told apart. A peer chooses some of the words.
const REASONS: usize = 100;

/// Counts the failures of a run by reason.
#[derive(Debug, Default)]
pub(crate) struct FailureCounter(Mutex<Vec<FailureReasonGroup>>);

/// Failures whose reasons differ in their numbers at most.
#[derive(Clone, Debug)]
struct FailureReasonGroup {
    /// The reason with N for each number.
    pattern: String,
    /// The reason of the first failure; `None` once another one has other numbers.
    exact: Option<String>,
    failures: u64,
}

/// Begin and end of the clause about a temporary, whose name is random.
const TEMPORARY: (&str, &str) = ("; the temporary file ", " may be left");

/// Replaces each number by N, and leaves out the names of temporaries: they make a reason of their own
/// for each file.
fn pattern(reason: &str) -> String {
    let mut text = String::new();
    let (begin, end) = TEMPORARY;
    let clause = reason.split_once(begin);
    let clause = clause.and_then(|(before, after)| Some((before, after.split_once(end)?.1)));
    let short = clause.map(|(before, after)| format!("{before}; a temporary file{end}{after}"));
    for c in short.as_deref().unwrap_or(reason).chars() {
        match c.is_ascii_digit() {
            true if text.ends_with('N') => {}
            true => text.push('N'),
            false => text.push(c),
        }
    }
    text
}

impl FailureCounter {
    /// Counts an event if it is a failure.
    pub(crate) fn note(&self, event: &CopyEvent) {
        if let CopyEvent::Failed { reason, .. } = event {
            let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            count(&mut counts, reason);
        }
    }

    /// Returns one sentence for each failure; with `all`, for each one that the summary has.
    pub(crate) fn lines(&self, summary: &CopySummary, all: bool) -> Vec<String> {
        let lost = match &summary.outcome {
            CopyOutcome::NoConnection(reason) | CopyOutcome::Misconfigured(reason) => Some(reason),
            _ => None,
        };
        // Failures by a lost connection are reported once, not for each file that was in flight.
        let same = |reason: &str| lost.is_some_and(|lost| lost.ends_with(reason));
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut counts = counts.clone();
        counts.retain(|count| count.exact.as_deref().is_none_or(|reason| !same(reason)));
        let mut named = Vec::new();
        let mut lines = Vec::new();
        let mut hidden = 0;
        let mut hosts = failures_of_several(summary);
        for failure in &summary.failures {
            // Taken by the first of equal failures, which counts for all of them.
            let several = hosts.get_mut(&key_of(failure)).map(std::mem::take);
            if same(&failure.reason) || several == Some(0) {
                hidden += 1;
                continue;
            }
            if all || count(&mut named, &failure.reason) <= NAMED {
                let several = several.map(|hosts| format!(" ({hosts} hosts)"));
                lines.push(format!(
                    "{}: {}{}",
                    failure.path,
                    failure.reason,
                    several.unwrap_or_default()
                ));
            }
        }
        let mut left = summary.failed.saturating_sub(lines.len() as u64 + hidden);
        for of in &mut counts {
            let shown = named.iter().find(|n| n.pattern == of.pattern);
            let shown = shown.map_or(0, |n: &FailureReasonGroup| n.failures.min(NAMED));
            let more = of.failures.saturating_sub(shown).min(left);
            if more > 0 && !all {
                let reason = of.exact.as_ref().unwrap_or(&of.pattern);
                let files = units::counted(more, "more file", "more files");
                lines.push(format!("{files}: {reason}"));
                left -= more;
            }
        }
        if left > 0 {
            lines.push(format!("{left} more failed; --json lists all of them"));
        }
        lines.extend(lost.cloned());
        lines
    }
}

/// Path and reason of a failure.
fn key_of(failure: &ItemFailure) -> (&[u8], &str) {
    (&failure.path.0, &failure.reason)
}

/// Counts failures that are equal in the copies of several hosts: those of a file of this machine.
fn failures_of_several(summary: &CopySummary) -> HashMap<(&[u8], &str), usize> {
    let mut counts = HashMap::new();
    if summary.hosts.len() > 1 {
        for failure in &summary.failures {
            *counts.entry(key_of(failure)).or_default() += 1;
        }
    }
    counts.retain(|_, count| *count > 1);
    counts
}

/// Counts a reason. Returns its number of failures, or 0 if there are too many reasons.
fn count(counts: &mut Vec<FailureReasonGroup>, reason: &str) -> u64 {
    let pattern = pattern(reason);
    if let Some(found) = counts.iter_mut().find(|count| count.pattern == pattern) {
        found.failures += 1;
        if found.exact.as_deref() != Some(reason) {
            found.exact = None;
        }
        return found.failures;
    }
    if counts.len() == REASONS {
        return 0;
    }
    counts.push(FailureReasonGroup {
        pattern,
        exact: Some(reason.to_owned()),
        failures: 1,
    });
    1
}

#[cfg(test)]
mod tests {
    use transfer::report::{EscapedName, FAILURES_KEPT, HostResult};

    use super::*;

    fn after(reasons: impl Iterator<Item = String>) -> (FailureCounter, CopySummary) {
        let counter = FailureCounter::default();
        let mut summary = CopySummary {
            outcome: CopyOutcome::Partial,
            ..CopySummary::default()
        };
        for (number, reason) in reasons.enumerate() {
            let path = EscapedName(format!("f{number}").into_bytes());
            summary.failed += 1;
            counter.note(&CopyEvent::Failed {
                id: None,
                path: path.clone(),
                reason: reason.clone(),
            });
            if summary.failures.len() < FAILURES_KEPT {
                summary.failures.push(ItemFailure::new(path, reason));
            }
        }
        (counter, summary)
    }

    /// A full disk gave 441 lines, and a verification 1000 and the number of the others.
    #[test]
    fn failures_with_the_same_reason_are_counted_after_ten() {
        let full = "cannot write: no space left on device";
        let reasons = (0..3000).map(|n| match n % 3 {
            2 => format!("has {n} bytes, but the plan says {}", n + 1),
            _ => full.to_owned(),
        });
        let (counter, summary) = after(reasons);
        let lines = counter.lines(&summary, false);
        assert_eq!(lines.len(), 22, "{lines:?}");
        assert_eq!(lines[0], format!("f0: {full}"));
        assert_eq!(lines[2], "f2: has 2 bytes, but the plan says 3");
        assert_eq!(lines[20], format!("1990 more files: {full}"));
        assert_eq!(
            lines[21],
            "990 more files: has N bytes, but the plan says N"
        );
        let all = counter.lines(&summary, true);
        assert_eq!(all.len(), FAILURES_KEPT + 1);
        assert_eq!(
            all.last().map(String::as_str),
            Some("2000 more failed; --json lists all of them")
        );
    }

    /// Bug: after the loss of a server 240 lines named a file each, since the random name of its
    /// temporary made each reason another one.
    #[test]
    fn a_temporary_made_each_reason_another_one() {
        let gone = |name: &str| {
            format!("gone; the temporary file /d/.f.{name}.longhaul may be left at the far end")
        };
        let reasons = (0..500).map(|n: u32| {
            let letter = |n: u32| char::from_digit(n % 26 + 10, 36).unwrap_or('z');
            gone(&[n, n / 26].map(letter).iter().collect::<String>())
        });
        let (counter, summary) = after(reasons);
        let lines = counter.lines(&summary, false);
        assert_eq!(lines.len(), 11, "{lines:?}");
        assert_eq!(lines[0], format!("f0: {}", gone("aa")));
        let others = "490 more files: gone; a temporary file may be left at the far end";
        assert_eq!(lines[10], others);
    }

    #[test]
    fn eleven_are_ten_and_one_more() {
        let (counter, summary) = after((0..11).map(|_| "permission denied".to_owned()));
        let lines = counter.lines(&summary, false);
        assert_eq!(lines.len(), 11);
        assert_eq!(lines[10], "1 more file: permission denied");
    }

    /// The words of a reason may come from a server.
    #[test]
    fn reasons_without_end_take_bounded_memory() {
        let letters = |n: usize| "x".repeat(n);
        let (counter, summary) = after((0..500).map(letters));
        assert!(counter.0.lock().unwrap().len() <= REASONS);
        assert!(counter.lines(&summary, false).len() <= 501);
    }

    /// Some thousand files in flight each repeated why the connection was lost.
    #[test]
    fn a_lost_connection_is_said_once() {
        let reasons = [
            "the server went away",
            "permission denied",
            "h: the server went away",
        ];
        let (counter, summary) = after(reasons.map(str::to_owned).into_iter());
        let summary = CopySummary {
            outcome: CopyOutcome::NoConnection("h: the server went away".to_owned()),
            ..summary
        };
        let said = ["f1: permission denied", "h: the server went away"];
        assert_eq!(counter.lines(&summary, false), said);
        let alone = CopySummary {
            outcome: CopyOutcome::NoConnection("h: gone".to_owned()),
            ..CopySummary::default()
        };
        assert_eq!(FailureCounter::default().lines(&alone, false), ["h: gone"]);
    }

    #[test]
    fn names_drive_no_terminal() {
        let (counter, mut summary) = after(["permission denied".to_owned()].into_iter());
        summary.failures[0].path = EscapedName(b"bad\x1b[2Jname".to_vec());
        let lines = counter.lines(&summary, false);
        assert_eq!(lines, ["bad\\x1b[2Jname: permission denied"]);
    }

    /// Bug: a file of this machine that could not be read was an error once for each host.
    #[test]
    fn a_failure_of_this_machine_is_one_line_for_all_hosts() {
        let failure =
            |path: &str| ItemFailure::new(EscapedName(path.into()), "no such file or directory");
        let host = |name: &str| HostResult {
            host: EscapedName(name.into()),
            from: None,
            files: 0,
            directories: 0,
            symlinks: 0,
            bytes: 0,
            unfinished: 0,
            failed: 2,
            elapsed: std::time::Duration::ZERO,
            outcome: CopyOutcome::Partial,
        };
        let (counter, mut summary) = after((0..4).map(|_| failure("x").reason));
        summary.failed = 4;
        summary.failures = ["gone", "h1:f", "gone", "h2:f"].map(failure).into();
        summary.hosts = ["h1", "h2"].map(host).into();
        let why = "no such file or directory";
        let expected = [
            format!("gone: {why} (2 hosts)"),
            format!("h1:f: {why}"),
            format!("h2:f: {why}"),
        ];
        assert_eq!(counter.lines(&summary, false), expected);
        assert_eq!(counter.lines(&summary, true), expected);
    }
}
