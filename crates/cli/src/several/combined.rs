//! Summary of several copies.

use transfer::report::{FAILURES_KEPT, Failure, HostResult, Name, Outcome, Summary, Verified};

/// End of one host's copy.
pub(super) struct HostEnd {
    /// The host as on the command line.
    pub(super) host: String,
    /// The host that passed the data on.
    pub(super) from: Option<String>,
    pub(super) summary: Summary,
}

/// Combines the summaries of all hosts.
pub(super) fn combined(each: Vec<HostEnd>) -> Summary {
    let mut all = Summary {
        synced: !each.is_empty(),
        ..Summary::default()
    };
    let outcome = outcome(&each);
    for HostEnd {
        host,
        from,
        summary,
    } in each
    {
        add(&mut all, &host, from, summary);
    }
    all.synced &= all.files > 0;
    all.outcome = outcome;
    all
}

fn add(all: &mut Summary, host: &str, from: Option<String>, mut one: Summary) {
    add_failures(all, host, &mut one);
    // Names every field, so that none is forgotten.
    let Summary {
        outcome,
        files,
        directories,
        symlinks,
        excluded,
        bytes,
        unfinished,
        taken_over,
        reused,
        journal,
        failed,
        failures: _,
        state,
        synced,
        verified,
        elapsed,
        sessions,
        far_ends,
        way: _,
        hosts: _,
        decisions,
    } = one;
    all.hosts.push(HostResult {
        host: Name(host.as_bytes().to_vec()),
        from: from.map(|from| Name(from.into_bytes())),
        files,
        bytes,
        unfinished,
        failed,
        elapsed,
        outcome,
    });
    all.files += files;
    all.directories += directories;
    all.symlinks += symlinks;
    all.excluded += excluded;
    all.bytes = all.bytes.saturating_add(bytes);
    all.unfinished = all.unfinished.saturating_add(unfinished);
    all.taken_over = all.taken_over.saturating_add(taken_over);
    all.reused = all.reused.saturating_add(reused);
    all.journal = all.journal.take().or(journal);
    all.state = match (all.state, state) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    all.synced &= synced || files == 0;
    all.verified = match (all.verified.take(), verified) {
        (Some(a), Some(b)) => Some(both(a, b)),
        (a, b) => a.or(b),
    };
    all.sessions.extend(sessions);
    all.far_ends.extend(far_ends);
    all.decisions.extend(decisions);
}

/// Takes over the failures of a host; a failed connection counts as one.
fn add_failures(all: &mut Summary, host: &str, one: &mut Summary) {
    if let Outcome::NoConnection(why) | Outcome::Misconfigured(why) = &one.outcome {
        let of_connection = |failure: &Failure| why.ends_with(&failure.reason);
        let listed = one.failures.len();
        one.failures.retain(|failure| !of_connection(failure));
        let same = listed - one.failures.len();
        one.failed = one.failed.saturating_sub(same as u64) + 1;
        let prefix = format!("{host}: ");
        let reason = why.strip_prefix(&prefix).unwrap_or(why).to_owned();
        let path = Name(host.as_bytes().to_vec());
        one.failures.push(Failure { path, reason });
    }
    all.failed += one.failed;
    let room = FAILURES_KEPT.saturating_sub(all.failures.len());
    all.failures
        .extend(std::mem::take(&mut one.failures).into_iter().take(room));
}

/// Adds a further copy to the summary of the same host.
pub(super) fn joined(all: Summary, one: Summary) -> Summary {
    let outcome = match (all.outcome, one.outcome) {
        (Outcome::Complete, outcome) | (outcome, Outcome::Complete) => outcome,
        (Outcome::Interrupted, _) | (_, Outcome::Interrupted) => Outcome::Interrupted,
        (_, lost @ Outcome::NoConnection(_)) => lost,
        (outcome, _) => outcome,
    };
    let mut failures = all.failures;
    failures.extend(one.failures);
    failures.truncate(FAILURES_KEPT);
    let nothing = (all.files == 0, one.files == 0);
    let mut sessions = all.sessions;
    sessions.extend(one.sessions);
    let mut far_ends = all.far_ends;
    far_ends.extend(
        one.far_ends
            .into_iter()
            .filter(|end| !far_ends.contains(end))
            .collect::<Vec<_>>(),
    );
    let mut decisions = all.decisions;
    decisions.extend(one.decisions);
    // Names every field, so that none is forgotten.
    Summary {
        outcome,
        files: all.files + one.files,
        directories: all.directories + one.directories,
        symlinks: all.symlinks + one.symlinks,
        excluded: all.excluded + one.excluded,
        bytes: all.bytes.saturating_add(one.bytes),
        unfinished: all.unfinished.saturating_add(one.unfinished),
        taken_over: all.taken_over.saturating_add(one.taken_over),
        reused: all.reused.saturating_add(one.reused),
        journal: all.journal.or(one.journal),
        failed: all.failed + one.failed,
        failures,
        state: match (all.state, one.state) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        },
        synced: match nothing {
            (true, _) => one.synced,
            (_, true) => all.synced,
            _ => all.synced && one.synced,
        },
        verified: match (all.verified, one.verified) {
            (Some(a), Some(b)) => Some(both(a, b)),
            (a, b) => a.or(b),
        },
        elapsed: all.elapsed + one.elapsed,
        sessions,
        far_ends,
        way: None,
        hosts: Vec::new(),
        decisions,
    }
}

fn both(a: Verified, b: Verified) -> Verified {
    Verified {
        files: a.files + b.files,
        repaired: a.repaired + b.repaired,
        read_back: a.read_back + b.read_back,
        program: a.program.or(b.program),
        algorithm: a.algorithm.or(b.algorithm),
        reason: a.reason.or(b.reason),
        download: a.download || b.download,
    }
}

/// The outcome of all copies together: without any connection the run failed, with some it is
/// partial.
fn outcome(each: &[HostEnd]) -> Outcome {
    let all = |is: fn(&Outcome) -> bool| each.iter().all(|one| is(&one.summary.outcome));
    let any = |is: fn(&Outcome) -> bool| each.iter().any(|one| is(&one.summary.outcome));
    let unreached = |o: &Outcome| matches!(o, Outcome::NoConnection(_) | Outcome::Misconfigured(_));
    if any(|o| *o == Outcome::Interrupted) {
        Outcome::Interrupted
    } else if all(|o| *o == Outcome::Complete) {
        Outcome::Complete
    } else if all(|o| matches!(o, Outcome::Misconfigured(_))) {
        Outcome::Misconfigured("the settings of every host are wrong".to_owned())
    } else if all(unreached) {
        Outcome::NoConnection(format!("none of {} hosts was reached", each.len()))
    } else {
        Outcome::Partial
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(outcome: Outcome) -> Summary {
        Summary {
            outcome,
            ..Summary::default()
        }
    }

    fn end(host: &str, summary: Summary) -> HostEnd {
        HostEnd {
            host: host.to_owned(),
            from: None,
            summary,
        }
    }

    fn down() -> Summary {
        with(Outcome::NoConnection("h2: connection refused".to_owned()))
    }

    #[test]
    fn a_host_that_is_down_is_named_and_the_others_count() {
        let done = Summary {
            files: 3,
            bytes: 9,
            excluded: 2,
            ..Summary::default()
        };
        let all = combined(vec![end("h1", done), end("h2", down())]);
        assert_eq!((all.files, all.bytes, all.failed), (3, 9, 1));
        assert_eq!(all.excluded, 2, "it was left out");
        assert_eq!(all.outcome, Outcome::Partial);
        assert_eq!(all.failures[0].path, Name(b"h2".to_vec()));
        assert_eq!(all.failures[0].reason, "connection refused");
        assert_eq!(all.hosts.len(), 2);
    }

    #[test]
    fn the_outcome_is_no_connection_only_without_any_host() {
        let of = |each: Vec<Summary>| {
            let each = each.into_iter().map(|one| end("h", one));
            combined(each.collect()).outcome
        };
        assert!(matches!(of(vec![down(), down()]), Outcome::NoConnection(_)));
        assert_eq!(of(vec![down(), with(Outcome::Complete)]), Outcome::Partial);
        let interrupted = with(Outcome::Interrupted);
        assert_eq!(of(vec![down(), interrupted]), Outcome::Interrupted);
        assert_eq!(of(vec![with(Outcome::Complete)]), Outcome::Complete);
    }
}
