//! Summary of several copies.

use transfer::report::{
    CopyOutcome, CopySummary, EscapedName, FAILURES_KEPT, FailureCause, HostResult, ItemFailure,
    VerifyResult,
};

/// Summary of one host's copy, to be combined with those of the other hosts.
pub(super) struct HostCopyResult {
    /// The host as on the command line.
    pub(super) host: String,
    /// The host that passed the data on.
    pub(super) from: Option<String>,
    pub(super) summary: CopySummary,
}

/// Combines the summaries of all hosts.
pub(super) fn combined(each: Vec<HostCopyResult>) -> CopySummary {
    let mut all = CopySummary::default();
    let outcome = outcome(&each);
    for HostCopyResult {
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

fn add(all: &mut CopySummary, host: &str, from: Option<String>, mut one: CopySummary) {
    list_lost_connection(host, &mut one);
    all.hosts.push(HostResult {
        host: EscapedName(host.as_bytes().to_vec()),
        from: from.map(|from| EscapedName(from.into_bytes())),
        files: one.files,
        directories: one.directories,
        symlinks: one.symlinks,
        bytes: one.bytes,
        unfinished: one.unfinished,
        failed: one.failed,
        elapsed: one.elapsed,
        outcome: one.outcome.clone(),
    });
    all.far_ends.append(&mut one.far_ends);
    add_figures(all, one);
}

/// Lists a failed connection among the failures of its host.
fn list_lost_connection(host: &str, one: &mut CopySummary) {
    if let CopyOutcome::NoConnection(why) | CopyOutcome::Misconfigured(why) = &one.outcome {
        let of_connection = |failure: &ItemFailure| {
            failure.cause == FailureCause::ConnectionLost && why.ends_with(&failure.reason)
        };
        let listed = one.failures.len();
        one.failures.retain(|failure| !of_connection(failure));
        let same = listed - one.failures.len();
        let others = one.failed.saturating_sub(same as u64);
        one.failed = others.saturating_add(1);
        let reason = without_host(host, why).to_owned();
        let path = EscapedName(host.as_bytes().to_vec());
        one.failures.push(ItemFailure::new(path, reason));
    }
}

/// Removes the host from the beginning of a message; it may lack the login name of the operand.
fn without_host<'a>(host: &str, message: &'a str) -> &'a str {
    let address = host.rsplit_once('@').map_or(host, |(_, address)| address);
    let address = address.trim_start_matches('[').trim_end_matches(']');
    let after = |name: &str| message.strip_prefix(name)?.strip_prefix(": ");
    after(host).or_else(|| after(address)).unwrap_or(message)
}

/// Adds a further copy to the summary of the same host.
pub(super) fn joined(mut all: CopySummary, mut one: CopySummary) -> CopySummary {
    all.outcome = match (all.outcome, one.outcome.clone()) {
        (CopyOutcome::Complete, outcome) | (outcome, CopyOutcome::Complete) => outcome,
        (CopyOutcome::Interrupted, _) | (_, CopyOutcome::Interrupted) => CopyOutcome::Interrupted,
        (_, lost @ CopyOutcome::NoConnection(_)) => lost,
        (outcome, _) => outcome,
    };
    all.elapsed += one.elapsed;
    for end in std::mem::take(&mut one.far_ends) {
        if !all.far_ends.contains(&end) {
            all.far_ends.push(end);
        }
    }
    add_figures(&mut all, one);
    all
}

/// Adds the figures of a further copy, but not its outcome, its time and its servers.
fn add_figures(all: &mut CopySummary, one: CopySummary) {
    // Names every field, so that none is forgotten.
    let CopySummary {
        outcome: _,
        files,
        ranges,
        directories,
        symlinks,
        excluded,
        bytes,
        unfinished,
        taken_over,
        reused,
        journal,
        failed,
        failures,
        unusable_temporaries,
        left_temporaries,
        state,
        synced,
        verified,
        elapsed: _,
        sessions,
        far_ends: _,
        way: _,
        hosts: _,
        fans_out: _,
        decisions,
    } = one;
    all.synced = match (all.files, files) {
        (0, _) => synced,
        (_, 0) => all.synced,
        _ => all.synced && synced,
    };
    all.files = all.files.saturating_add(files);
    all.ranges = all.ranges.saturating_add(ranges);
    all.directories = all.directories.saturating_add(directories);
    all.symlinks = all.symlinks.saturating_add(symlinks);
    all.excluded = all.excluded.saturating_add(excluded);
    all.bytes = all.bytes.saturating_add(bytes);
    all.unfinished = all.unfinished.saturating_add(unfinished);
    all.taken_over = all.taken_over.saturating_add(taken_over);
    all.reused = all.reused.saturating_add(reused);
    all.journal = all.journal.take().or(journal);
    all.failed = all.failed.saturating_add(failed);
    all.unusable_temporaries += unusable_temporaries;
    all.left_temporaries += left_temporaries;
    let room = FAILURES_KEPT.saturating_sub(all.failures.len());
    all.failures.extend(failures.into_iter().take(room));
    all.state = match (all.state, state) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    all.verified = match (all.verified.take(), verified) {
        (Some(a), Some(b)) => Some(both(a, b)),
        (a, b) => a.or(b),
    };
    all.sessions.extend(sessions);
    all.decisions.extend(decisions);
}

fn both(a: VerifyResult, b: VerifyResult) -> VerifyResult {
    VerifyResult {
        files: a.files.saturating_add(b.files),
        repaired: a.repaired.saturating_add(b.repaired),
        read_back: a.read_back.saturating_add(b.read_back),
        unverified: a.unverified.saturating_add(b.unverified),
        program: a.program.or(b.program),
        algorithm: a.algorithm.or(b.algorithm),
        reason: a.reason.or(b.reason),
        download: a.download || b.download,
    }
}

/// The outcome of all copies together: without any connection the run failed, with some it is
/// partial.
fn outcome(each: &[HostCopyResult]) -> CopyOutcome {
    let all = |is: fn(&CopyOutcome) -> bool| each.iter().all(|one| is(&one.summary.outcome));
    let any = |is: fn(&CopyOutcome) -> bool| each.iter().any(|one| is(&one.summary.outcome));
    let unreached = |o: &CopyOutcome| {
        matches!(
            o,
            CopyOutcome::NoConnection(_) | CopyOutcome::Misconfigured(_)
        )
    };
    if any(|o| *o == CopyOutcome::Interrupted) {
        CopyOutcome::Interrupted
    } else if all(|o| *o == CopyOutcome::Complete) {
        CopyOutcome::Complete
    } else if all(|o| matches!(o, CopyOutcome::Misconfigured(_))) {
        CopyOutcome::Misconfigured("the settings of every host are wrong".to_owned())
    } else if all(unreached) {
        CopyOutcome::NoConnection(format!("none of {} hosts was reached", each.len()))
    } else {
        CopyOutcome::Partial
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(outcome: CopyOutcome) -> CopySummary {
        CopySummary {
            outcome,
            ..CopySummary::default()
        }
    }

    fn end(host: &str, summary: CopySummary) -> HostCopyResult {
        HostCopyResult {
            host: host.to_owned(),
            from: None,
            summary,
        }
    }

    fn down() -> CopySummary {
        with(CopyOutcome::NoConnection(
            "h2: connection refused".to_owned(),
        ))
    }

    #[test]
    fn a_host_that_is_down_is_named_and_the_others_count() {
        let done = CopySummary {
            files: 3,
            bytes: 9,
            excluded: 2,
            ..CopySummary::default()
        };
        let all = combined(vec![end("h1", done), end("h2", down())]);
        assert_eq!((all.files, all.bytes, all.failed), (3, 9, 1));
        assert_eq!(all.excluded, 2, "it was left out");
        assert_eq!(all.outcome, CopyOutcome::Partial);
        assert_eq!(all.failures[0].path, EscapedName(b"h2".to_vec()));
        assert_eq!(all.failures[0].reason, "connection refused");
        assert_eq!(all.hosts.len(), 2);
    }

    /// Bug: a file that its server refused was not counted, and not listed, if the connection was
    /// lost for a reason of the same words.
    #[test]
    fn a_file_that_failed_in_the_words_of_the_lost_connection_was_not_counted() {
        let why = "h2: cannot start the SFTP server: permission denied";
        let failure = |path: &str, reason: &str, cause| ItemFailure {
            cause,
            ..ItemFailure::new(EscapedName(path.into()), reason)
        };
        let lost = CopySummary {
            failed: 2,
            failures: vec![
                failure("refused", "permission denied", FailureCause::Other),
                failure("lost", why, FailureCause::ConnectionLost),
            ],
            ..with(CopyOutcome::NoConnection(why.to_owned()))
        };
        let all = combined(vec![end("h2", lost)]);
        assert_eq!(all.failed, 2);
        let paths: Vec<_> = all.failures.iter().map(|f| f.path.to_string()).collect();
        assert_eq!(paths, ["refused", "h2"]);
    }

    /// Bug: "h3: cannot connect to h3 port 22", and the same with a login name.
    #[test]
    fn a_host_is_named_once_in_its_message() {
        let why = "cannot connect to port 22: connection refused";
        for (host, message) in [
            ("h2", "h2: cannot connect to port 22: connection refused"),
            ("me@h2", "h2: cannot connect to port 22: connection refused"),
            (
                "me@h2",
                "me@h2: cannot connect to port 22: connection refused",
            ),
            (
                "me@[::1]",
                "::1: cannot connect to port 22: connection refused",
            ),
            ("h2", "cannot connect to port 22: connection refused"),
        ] {
            assert_eq!(without_host(host, message), why, "{host}");
        }
        let other = "h22: connection refused";
        assert_eq!(without_host("h2", other), other);
    }

    #[test]
    fn the_outcome_is_no_connection_only_without_any_host() {
        let of = |each: Vec<CopySummary>| {
            let each = each.into_iter().map(|one| end("h", one));
            combined(each.collect()).outcome
        };
        assert!(matches!(
            of(vec![down(), down()]),
            CopyOutcome::NoConnection(_)
        ));
        assert_eq!(
            of(vec![down(), with(CopyOutcome::Complete)]),
            CopyOutcome::Partial
        );
        let interrupted = with(CopyOutcome::Interrupted);
        assert_eq!(of(vec![down(), interrupted]), CopyOutcome::Interrupted);
        assert_eq!(of(vec![with(CopyOutcome::Complete)]), CopyOutcome::Complete);
    }
}
