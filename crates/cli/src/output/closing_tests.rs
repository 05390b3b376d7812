use std::time::Duration;

use transfer::sums::SumAlgorithm;

use super::*;

/// A suggested command must reach the program with the same words when a shell runs it.
#[test]
fn a_quoted_word_is_the_same_word_in_every_shell() {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    use std::process::Command;
    let hostile: [&[u8]; 13] = [
        b"",
        b"a b",
        b"it's",
        b"'; touch pwned #",
        b"$(touch pwned)",
        b"`touch pwned`",
        b"\\",
        b"-n",
        b"~",
        b"*?[a]",
        b"{a,b}!x",
        b"a\nb\x01\x1b[2J\x7f'\\",
        b"\xff\xe9caf",
    ];
    let shells = ["sh", "dash", "bash", "zsh", "ksh"];
    let there = |shell: &&str| Command::new(shell).args(["-c", ":"]).status().is_ok();
    for shell in shells.into_iter().filter(there) {
        for word in hostile {
            let quoted = quoted(OsStr::from_bytes(word));
            // Only bash, zsh and ksh know $'...'.
            if quoted.starts_with('$') && matches!(shell, "sh" | "dash") {
                continue;
            }
            let script = format!("printf %s {quoted}");
            let said = Command::new(shell).args(["-c", &script]).output().unwrap();
            let said = OsString::from_vec(said.stdout);
            // printf would take -n as an option.
            assert_eq!(said.as_bytes(), word, "{shell}: {script}");
        }
    }
}

fn three() -> CopySummary {
    CopySummary {
        files: 3,
        bytes: 1_204_000_000,
        state: Some(FileCopyState::Renamed),
        elapsed: Duration::from_millis(12_300),
        ..CopySummary::default()
    }
}

#[test]
fn the_command_that_goes_on_is_for_a_shell() {
    let words = [
        "lh",
        "cp",
        "--no-resume",
        "a b",
        "it's",
        "\x1b[2J",
        "h:x",
        "--",
        "--no-resume",
    ];
    assert_eq!(
        command(words.iter().map(Into::into)),
        "lh cp 'a b' 'it'\\''s' $'\\x1b[2J' h:x -- --no-resume"
    );
}

#[test]
fn claims_no_more_than_is_known() {
    assert_eq!(
        line(&three()),
        "copied 3 files, 1.2 GB in 12.3 s (98 MB/s), written and renamed"
    );
    let synced = CopySummary {
        synced: true,
        ..three()
    };
    assert_eq!(
        line(&synced),
        "copied 3 files, 1.2 GB in 12.3 s (98 MB/s), flushed to disk and renamed"
    );
    let inplace = CopySummary {
        state: Some(FileCopyState::Closed),
        ..three()
    };
    assert_eq!(
        line(&inplace),
        "copied 3 files, 1.2 GB in 12.3 s (98 MB/s), written"
    );
    let less = CopySummary {
        state: Some(FileCopyState::Written),
        ..three()
    };
    assert_eq!(line(&less), "copied 3 files, 1.2 GB in 12.3 s (98 MB/s)");
}

/// Bug: the closing lines of all shards counted more files than the plan has.
#[test]
fn a_range_of_a_file_is_no_file() {
    let ranges = CopySummary {
        ranges: 2,
        ..three()
    };
    assert!(line(&ranges).starts_with("copied 3 files, 2 parts of split files, 1.2 GB"));
}

#[test]
fn what_served_is_said_where_it_is_not_the_usual() {
    let with = |far: FarEndServerReport| {
        line(&CopySummary {
            far_ends: vec![far],
            ..three()
        })
    };
    let stock = FarEndServerReport {
        reason: Some("longhaul is not installed there".to_owned()),
        ..FarEndServerReport::default()
    };
    assert!(with(stock.clone()).ends_with("renamed"));
    let less = FarEndServerReport {
        less: true,
        ..stock.clone()
    };
    let said =
        "renamed; using the server's own SFTP server, because longhaul is not installed there";
    assert!(with(less).ends_with(said));
    let exec = FarEndServerReport {
        host: EscapedName(b"h".to_vec()),
        depth: ServerMode::Exec,
        software: Some("0.1.0".to_owned()),
        ..FarEndServerReport::default()
    };
    assert!(with(exec.clone()).ends_with("renamed; by longhaul 0.1.0 at the far end"));
    let two = CopySummary {
        far_ends: vec![stock, exec],
        ..three()
    };
    assert!(line(&two).ends_with("renamed; h: by longhaul 0.1.0 at the far end"));
}

/// Bug: a file that three hosts passed on was said to have gone by longhaul at 1 host.
#[test]
fn hosts_that_pass_the_data_on_are_not_counted_by_their_servers() {
    let exec = FarEndServerReport {
        host: EscapedName(b"h".to_vec()),
        depth: ServerMode::Exec,
        software: Some("0.1.0".to_owned()),
        ..FarEndServerReport::default()
    };
    let chain = CopySummary {
        far_ends: vec![exec],
        way: Some(HostCopyRoute {
            kind: HostCopyRouteKind::Chain,
            connected: None,
            address: None,
            reason: "each has longhaul".into(),
        }),
        ..three()
    };
    let line = line(&chain);
    let end = "renamed; passed on from host to host: each has longhaul";
    assert!(line.ends_with(end), "{line}");
}

#[test]
fn the_way_through_this_machine_has_its_reason() {
    let through = |reason: HostCopyReason| CopySummary {
        way: Some(HostCopyRoute::through_here(reason)),
        ..three()
    };
    let same = line(&through("both ends are on the same host".into()));
    let end = "; the data went through this machine, because both ends are on the same host";
    assert!(same.ends_with(end), "{same}");
    let absent = "b: longhaul is not on the PATH there".to_owned();
    let absent = line(&through(HostCopyReason::Named(absent)));
    let end = "; the data went through this machine (b: longhaul is not on the PATH there)";
    assert!(absent.ends_with(end), "{absent}");
    let nothing = line(&CopySummary {
        way: through("both ends are on the same host".into()).way,
        ..CopySummary::default()
    });
    assert!(!nothing.contains("through this machine"), "{nothing}");
}

/// Bug: "from this machine to each host: hosts pass on only files of 32 MiB or more". Bug: a clause
/// with a colon in it was taken for the message of a host.
#[test]
fn the_reason_for_a_copy_from_here_to_each_host_was_no_sentence() {
    let star = |reason: HostCopyReason| HostCopyRoute {
        kind: HostCopyRouteKind::Star,
        connected: None,
        address: None,
        reason,
    };
    for (form, reason, before) in [
        (
            HostCopyReason::Clause as fn(String) -> _,
            "the file a: b is small",
            ", because",
        ),
        (HostCopyReason::Named, "h: longhaul is not there", ":"),
        (HostCopyReason::Named, "Host: longhaul is not there", ":"),
        (HostCopyReason::Advice, "To save time, wait", "."),
    ] {
        let said = format!("sent from this machine to each host{before} {reason}");
        assert_eq!(explained_way(&star(form(reason.to_owned()))), said);
    }
}

#[test]
fn what_verifying_does_not_prove_is_said() {
    let program = VerifyResult {
        files: 3,
        program: Some("xxhsum".to_owned()),
        algorithm: Some(SumAlgorithm::Xxh128),
        ..VerifyResult::default()
    };
    let ending = |verified: VerifyResult| {
        let verified = Some(verified);
        let said = line(&CopySummary {
            verified,
            ..three()
        });
        said.split_once("renamed, ").map(|(_, end)| end.to_owned())
    };
    assert_eq!(
        ending(program.clone()).as_deref(),
        Some(
            "verified by xxhsum at the far end (XXH128); the data may have come from the \
             server's memory, not its disk"
        )
    );
    let back = VerifyResult {
        files: 2,
        repaired: 1,
        read_back: 2,
        reason: Some("the server does not run commands".to_owned()),
        download: true,
        ..program
    };
    assert_eq!(
        ending(back).as_deref(),
        Some(
            "2 verified (1 repaired) by reading back, because the server does not run commands; \
             the source may have been read from memory, not from disk, and the written data \
             were not read back from disk"
        )
    );
}

/// Bug: after a resume all files stood beside the bytes of this run: "copied 1 file, 212 MB" of 300 MB.
#[test]
fn a_resumed_copy_told_all_files_and_its_own_bytes_alone() {
    let resumed = CopySummary {
        files: 1,
        bytes: 212_000_000,
        taken_over: 88_000_000,
        state: Some(FileCopyState::Renamed),
        elapsed: Duration::from_secs(2),
        ..CopySummary::default()
    };
    assert_eq!(
        line(&resumed),
        "copied 1 file, 212 MB in 2.00 s (106 MB/s), after 88 MB in earlier runs, written and renamed"
    );
}

#[test]
fn empty_and_small_copies() {
    let empty = CopySummary {
        files: 1,
        state: Some(FileCopyState::Renamed),
        elapsed: Duration::from_millis(490),
        ..CopySummary::default()
    };
    assert_eq!(
        line(&empty),
        "copied 1 file, 0 B in 0.49 s, written and renamed"
    );
    let tree = CopySummary {
        files: 0,
        directories: 1,
        symlinks: 2,
        state: None,
        ..empty
    };
    assert_eq!(
        line(&tree),
        "copied 0 files, 1 directory, 2 links in 0.49 s"
    );
}

/// Bug: one file that was sent to three hosts was called three files, and a host that could not
/// be reached a failed file.
#[test]
fn a_file_for_three_hosts_is_one_file_and_a_lost_host_is_no_file() {
    let host = |files: u64, outcome: CopyOutcome| HostResult {
        host: EscapedName(b"h".to_vec()),
        from: None,
        outcome,
        files,
        directories: 0,
        symlinks: 0,
        bytes: 0,
        unfinished: 0,
        failed: 0,
        elapsed: Duration::ZERO,
    };
    let lost = || CopyOutcome::NoConnection("connection refused".to_owned());
    let with = |fans_out, failed, hosts: Vec<HostResult>| {
        line(&CopySummary {
            fans_out,
            failed,
            files: hosts.iter().map(|host| host.files).sum(),
            hosts,
            ..three()
        })
    };
    let done = || host(1, CopyOutcome::Complete);
    assert_eq!(
        with(true, 0, vec![done(), done(), done()]),
        "copied 1 file to 3 hosts, 1.2 GB in total, in 12.3 s (98 MB/s), written and renamed; \
         3 of 3 hosts complete"
    );
    let one_lost = with(true, 1, vec![done(), host(0, lost()), done()]);
    assert!(
        one_lost.starts_with("copied 1 file to 2 hosts, "),
        "{one_lost}"
    );
    let end = "written and renamed; 2 of 3 hosts complete, 1 failed: h";
    assert!(one_lost.ends_with(end), "{one_lost}");
    let less = with(
        true,
        2,
        vec![done(), host(3, CopyOutcome::Partial), host(0, lost())],
    );
    assert!(
        less.starts_with("copied 4 files in total to 2 hosts, "),
        "{less}"
    );
    let end = "renamed, 1 failed (see the error above); 1 of 3 hosts complete, 1 failed: h";
    assert!(less.ends_with(end), "{less}");
    // Files that come from several hosts are different ones.
    let gathered = with(false, 0, vec![done(), done()]);
    assert!(
        gathered.starts_with("copied 2 files, 1.2 GB in 12.3 s"),
        "{gathered}"
    );
}

#[test]
fn what_was_not_copied_is_counted() {
    let summary = CopySummary {
        outcome: CopyOutcome::Partial,
        excluded: 1,
        failed: 4,
        ..three()
    };
    assert!(
        line(&summary)
            .ends_with("written and renamed, 1 excluded, 4 failed (see the errors above)")
    );
}

/// Bug: the last line of a copy said "1 failed", without which one, or where to look.
#[test]
fn the_one_file_that_failed_was_not_named_at_the_end() {
    let failure = |path: &[u8]| ItemFailure::new(EscapedName(path.to_vec()), "permission denied");
    let ending = |failed, failures: Vec<ItemFailure>| {
        let said = line(&CopySummary {
            outcome: CopyOutcome::Partial,
            failed,
            failures,
            ..three()
        });
        said.split_once("renamed, ").map(|(_, end)| end.to_owned())
    };
    let one = ending(1, vec![failure(b"src/\x1b[2J")]);
    assert_eq!(one.as_deref(), Some("1 failed: src/\\x1b[2J"));
    let two = ending(2, vec![failure(b"a"), failure(b"b")]);
    assert_eq!(two.as_deref(), Some("2 failed (see the errors above)"));
}

/// The closing line did not say that a detour was taken.
#[test]
fn relaying_hosts_are_named() {
    let ways = |all: &[(&str, Option<&str>)]| {
        let each = all
            .iter()
            .map(|(host, through)| ((*host).to_owned(), through.map(str::to_owned)));
        relayed(&each.collect())
    };
    assert_eq!(ways(&[("a", None), ("b", None)]), None);
    let one = ways(&[("a", Some("r1,r2"))]);
    assert_eq!(one.as_deref(), Some("relayed by r1,r2"));
    let some = ways(&[("a", None), ("b", Some("r"))]);
    assert_eq!(some.as_deref(), Some("b: relayed by r"));
}

/// A copy within one host named its server twice, and its host each time.
#[test]
fn a_host_that_is_both_ends_is_named_once() {
    let exec = FarEndServerReport {
        host: EscapedName(b"h".to_vec()),
        depth: ServerMode::Exec,
        software: Some("0.1.0".to_owned()),
        ..FarEndServerReport::default()
    };
    let both = CopySummary {
        far_ends: vec![exec.clone(), exec],
        ..three()
    };
    assert!(line(&both).ends_with("renamed; by longhaul 0.1.0 at the far end"));
}

/// Permission denied and a refused type change were followed by the command that had just
/// failed.
#[test]
fn a_run_that_would_fail_again_is_not_to_be_resumed() {
    let failed = CopySummary {
        outcome: CopyOutcome::Partial,
        failed: 1,
        journal: Some(EscapedName(b"j".to_vec())),
        ..CopySummary::default()
    };
    assert_eq!(next_step(&failed, None), None);
    let full = CopySummary {
        unfinished: 1,
        ..failed
    };
    let again = next_step(&full, None).unwrap_or_default();
    assert!(again.starts_with("to resume, once the cause"), "{again}");
}

#[test]
fn an_interrupted_run_says_so() {
    let summary = CopySummary {
        outcome: CopyOutcome::Interrupted,
        ..three()
    };
    assert!(line(&summary).starts_with("interrupted: copied 3 files"));
}

/// After the loss of a connection, files said to be removed were named as left.
#[test]
fn what_may_be_left_is_not_said_to_be_removed() {
    for unfinished in [0, 1_000_000] {
        let lost = CopySummary {
            outcome: CopyOutcome::NoConnection("gone".to_owned()),
            unfinished,
            left_temporaries: 2,
            ..CopySummary::default()
        };
        let again = next_step(&lost, None).unwrap_or_default();
        assert!(again.contains("may be left"), "{again}");
        assert!(!again.contains("were removed"), "{again}");
    }
}

/// Regression: Ctrl-C after 99 MB of one file reported that nothing had been copied.
#[test]
fn what_had_gone_of_unfinished_files_is_said() {
    let summary = CopySummary {
        outcome: CopyOutcome::Interrupted,
        unfinished: 99_000_000,
        elapsed: Duration::from_secs(10),
        ..CopySummary::default()
    };
    assert_eq!(
        line(&summary),
        "interrupted: copied 0 files, and 99 MB of unfinished files, in 10.0 s (9.9 MB/s)"
    );
    let again = next_step(&summary, None).unwrap_or_default();
    assert!(again.contains("the same command"), "{again}");
    let kept = CopySummary {
        journal: Some(EscapedName(b"j".to_vec())),
        ..summary
    };
    let again = next_step(&kept, None).unwrap_or_default();
    assert!(again.starts_with("to resume: "), "{again}");
    assert_eq!(next_step(&three(), None), None);
}

#[test]
fn files_that_were_not_verified_are_complete() {
    let unverified = |outcome, files| {
        let summary = CopySummary {
            outcome,
            verified: Some(VerifyResult {
                unverified: files,
                ..VerifyResult::default()
            }),
            ..three()
        };
        next_step(&summary, None)
    };
    let step = unverified(CopyOutcome::Interrupted, 1).unwrap_or_default();
    let said = "1 copied file is complete under its name, but was not verified; to copy it again and \
                verify it: ";
    assert!(step.starts_with(said), "{step}");
    let lost = CopyOutcome::NoConnection("gone".to_owned());
    let step = unverified(lost, 2).unwrap_or_default();
    assert!(step.starts_with("2 copied files are complete "), "{step}");
    assert_eq!(unverified(CopyOutcome::Interrupted, 0), None);
}
