//! The end of a run: each failure, then a closing line that claims no more than is known.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use transfer::report::{
    CopyOutcome, CopySummary, FarEndServerReport, HostCopyRoute, HostCopyRouteKind, HostResult,
    ServerMode, VerifyResult,
};

use crate::output::units;
use schedule::FileCopyState;

/// The closing line, without prefix.
pub(crate) fn line(summary: &CopySummary) -> String {
    let mut text = String::new();
    if summary.outcome == CopyOutcome::Interrupted {
        text.push_str("interrupted: ");
    }
    let receivers = receivers(summary);
    text.push_str(&format!("copied {}", copied(summary, &receivers)));
    let is_sum = receivers.len() > 1;
    if summary.bytes > 0 || summary.files > 0 {
        text.push_str(&format!(", {}", units::size(summary.bytes)));
        if is_sum {
            text.push_str(match summary.unfinished {
                0 => " in total,",
                _ => " in total",
            });
        }
    }
    if summary.unfinished > 0 {
        text.push_str(&format!(
            ", and {} of unfinished files,",
            units::size(summary.unfinished)
        ));
    }
    text.push_str(&format!(" in {}", units::duration(summary.elapsed)));
    let moved = summary.bytes.saturating_add(summary.unfinished);
    if let Some(rate) = units::rate(moved, summary.elapsed).filter(|_| moved > 0) {
        text.push_str(&format!(" ({rate})"));
    }
    if summary.reused > 0 {
        text.push_str(&format!(
            ", {} of it taken from existing files",
            units::size(summary.reused)
        ));
    }
    if let Some(claim) = claim(summary) {
        text.push_str(&format!(", {claim}"));
    }
    if let Some(verified) = summary.verified.as_ref().filter(|v| v.files > 0) {
        text.push_str(&format!(", {}", proof(summary, verified)));
    }
    if summary.excluded > 0 {
        text.push_str(&format!(", {} excluded", summary.excluded));
    }
    let hosts = &summary.hosts;
    let lost = hosts.iter().filter(|host| is_lost(&host.outcome)).count();
    // A failed connection counts as one failed item, and is shown as a failed host.
    let items = summary.failed.saturating_sub(lost as u64);
    if items > 0 {
        text.push_str(&format!(", {items} failed"));
    }
    if !hosts.is_empty() {
        let complete = |host: &&HostResult| host.outcome == CopyOutcome::Complete;
        let whole = hosts.iter().filter(complete).count();
        text.push_str(&format!("; {whole} of {} hosts complete", hosts.len()));
        if lost > 0 {
            text.push_str(&format!(", {lost} failed"));
        }
    }
    if let Some(far) = far(summary) {
        text.push_str(&format!("; {far}"));
    }
    if let Some(host_way) = summary.way.as_ref().filter(|_| has_copied(summary)) {
        text.push_str(&format!("; {}", explained_way(host_way)));
    }
    text
}

/// True if anything was copied, so that its way is of interest.
fn has_copied(summary: &CopySummary) -> bool {
    let entries = [summary.files, summary.directories, summary.symlinks];
    let data = [summary.ranges, summary.bytes, summary.unfinished];
    entries.into_iter().chain(data).any(|count| count > 0)
}

/// The way of the data between two hosts, with the reason.
fn explained_way(host_way: &HostCopyRoute) -> String {
    let reason = &host_way.reason;
    match host_way.kind {
        // A reason that begins with the name of a host is a sentence of its own.
        HostCopyRouteKind::ThroughHere if reason.contains(": ") => {
            format!("the data went through this machine ({reason})")
        }
        HostCopyRouteKind::ThroughHere => {
            format!("the data went through this machine, because {reason}")
        }
        HostCopyRouteKind::Star => {
            let advises = reason.starts_with(|first: char| first.is_uppercase());
            let before = match (advises, reason.contains(": ")) {
                (true, _) => ".",
                (false, true) => ":",
                (false, false) => ", because",
            };
            format!("sent {}{before} {reason}", way(host_way))
        }
        _ => format!("{}: {reason}", way(host_way)),
    }
}

/// True if the connection to a host failed, or its settings are wrong.
fn is_lost(outcome: &CopyOutcome) -> bool {
    matches!(
        outcome,
        CopyOutcome::NoConnection(_) | CopyOutcome::Misconfigured(_)
    )
}

/// Numbers of files, directories and links.
type EntryCounts = (u64, u64, u64);

/// Returns the numbers of entries that the hosts of a fan-out received, without hosts that received
/// nothing. Other copies have none.
fn receivers(summary: &CopySummary) -> Vec<EntryCounts> {
    let hosts = summary.hosts.iter().filter(|_| summary.fans_out);
    let counts = hosts.map(|host| (host.files, host.directories, host.symlinks));
    counts.filter(|counts| *counts != (0, 0, 0)).collect()
}

/// Counts what was copied: in a fan-out what each host received, if that is the same.
fn copied(summary: &CopySummary, receivers: &[EntryCounts]) -> String {
    let all = (summary.files, summary.directories, summary.symlinks);
    let hosts = units::counted(receivers.len() as u64, "host", "hosts");
    match receivers {
        [] => entries(all, summary.ranges),
        [first, rest @ ..] if rest.iter().all(|other| other == first) => {
            format!("{} to {hosts}", entries(*first, summary.ranges))
        }
        _ => format!("{} in total to {hosts}", entries(all, summary.ranges)),
    }
}

fn entries((files, directories, links): EntryCounts, ranges: u64) -> String {
    let counts = [
        (ranges, "part of a split file", "parts of split files"),
        (directories, "directory", "directories"),
        (links, "link", "links"),
    ];
    let mut counted: Vec<String> = Vec::new();
    counted.extend((files > 0 || ranges == 0).then(|| units::files(files)));
    let counts = counts.into_iter().filter(|(count, ..)| *count > 0);
    counted.extend(counts.map(|(count, one, many)| units::counted(count, one, many)));
    counted.join(", ")
}

/// The way of the data between two hosts, without the reason.
pub(crate) fn way(way: &HostCopyRoute) -> String {
    match (way.kind, &way.address) {
        (HostCopyRouteKind::Direct, Some(address)) => {
            format!("directly between the hosts, source at {address}")
        }
        (HostCopyRouteKind::Direct, None) => "directly between the hosts".to_owned(),
        (HostCopyRouteKind::ThroughHere, _) => "through this machine".to_owned(),
        (HostCopyRouteKind::Chain, _) => "passed on from host to host".to_owned(),
        (HostCopyRouteKind::Star, _) => "from this machine to each host".to_owned(),
    }
}

/// Names the relaying hosts of `--via`; `ways` has the hosts with those that relay to them.
pub(crate) fn relayed(ways: &BTreeMap<String, Option<String>>) -> Option<String> {
    let through: BTreeSet<&Option<String>> = ways.values().collect();
    match through.into_iter().collect::<Vec<_>>().as_slice() {
        [] | [None] => None,
        [Some(all)] => Some(format!("relayed by {all}")),
        _ => {
            let each = ways.iter().filter_map(|(host, through)| {
                let through = through.as_ref()?;
                Some(format!("{host}: relayed by {through}"))
            });
            Some(each.collect::<Vec<_>>().join("; "))
        }
    }
}

/// Suggests how to continue a run that did not copy everything. `completing` is the suggestion for
/// the hosts that lack files, if others do not.
pub(crate) fn next_step(summary: &CopySummary, completing: Option<&str>) -> Option<String> {
    if let Some(step) = completing {
        return Some(step.to_owned());
    }
    let stopped = matches!(
        summary.outcome,
        CopyOutcome::Interrupted | CopyOutcome::NoConnection(_) | CopyOutcome::Misconfigured(_)
    );
    // A run that ended with failures alone fails again in the same way, unless a part of a file
    // waits for its rest.
    if summary.journal.is_some() && (stopped || summary.unfinished > 0) {
        let command = command(std::env::args_os());
        return Some(match stopped {
            true => format!("to resume: {command}"),
            false => format!("to resume, once the cause is removed: {command}"),
        });
    }
    let unreached = |host: &HostResult| {
        matches!(
            host.outcome,
            CopyOutcome::NoConnection(_) | CopyOutcome::Interrupted
        )
    };
    if summary.hosts.iter().any(unreached) {
        let command = command(std::env::args_os());
        return Some(format!("to copy again: {command}"));
    }
    // Nothing can be removed from a host whose connection was lost.
    if stopped && summary.left_temporaries > 0 {
        let text = "the same command copies unfinished files again; their temporary files \
                    (.NAME.xxxxxxxxxx.longhaul) may be left at the far end: remove them there";
        return Some(text.to_owned());
    }
    (stopped && summary.unfinished > 0)
        .then(|| "unfinished files were removed: the same command copies them again".to_owned())
}

/// Names the server at the far ends, if it is more than the stock one or less than expected.
fn far(summary: &CopySummary) -> Option<String> {
    let mut ends: Vec<&FarEndServerReport> = Vec::new();
    for end in &summary.far_ends {
        // Both ends of a copy within one host are that host.
        if !ends.contains(&end) {
            ends.push(end);
        }
    }
    let several = ends.len() > 1;
    // Hosts that pass the data on all have a longhaul, and this one reaches some of them only.
    let chained = summary.way.as_ref();
    let chained = chained.is_some_and(|way| way.kind == HostCopyRouteKind::Chain);
    let mut counted: Vec<(String, usize, &FarEndServerReport)> = Vec::new();
    let said = ends.into_iter().filter_map(|far| {
        if chained && !far.less {
            return None;
        }
        let software = far.software.as_deref().unwrap_or_default();
        let what = match (far.depth, &far.reason) {
            (ServerMode::Direct, _) => format!("directly to longhaul {software} at the far end"),
            (ServerMode::Exec, Some(reason)) if far.less => {
                format!(
                    "by longhaul {software} at the far end, without a direct connection: \
                     {reason}"
                )
            }
            (ServerMode::Exec, _) => format!("by longhaul {software} at the far end"),
            (ServerMode::Stock, Some(reason)) if far.less => {
                format!("using the server's own SFTP server, because {reason}")
            }
            _ => return None,
        };
        if !summary.hosts.is_empty() {
            match counted.iter_mut().find(|(other, ..)| *other == what) {
                Some((_, hosts, _)) => *hosts += 1,
                None => counted.push((what, 1, far)),
            }
            return None;
        }
        Some(match several {
            true => format!("{}: {what}", far.host),
            false => what,
        })
    });
    let mut said: Vec<String> = said.collect();
    let of_hosts = |(what, hosts, far): (String, usize, &FarEndServerReport)| match hosts {
        1 => format!("{}: {what}", far.host),
        _ => format!("{hosts} hosts: {what}"),
    };
    said.extend(counted.into_iter().map(of_hosts));
    (!said.is_empty()).then(|| said.join("; "))
}

/// The line about an interrupted run that is resumed: files done, bytes of partial ones.
pub(crate) fn resumed(done: u64, partial: u64, bytes: u64) -> String {
    if done == 0 && (partial == 0 || bytes == 0) {
        return "resuming the earlier copy: nothing of it was complete".to_owned();
    }
    let mut text = format!(
        "resuming the earlier copy: {} recorded as complete",
        units::files(done)
    );
    if partial > 0 {
        let files = units::counted(partial, "unfinished file", "unfinished files");
        text.push_str(&format!(", and {} of {files}", units::size(bytes)));
    }
    text
}

/// The shell command that resumes the run.
pub(crate) fn command(words: impl Iterator<Item = OsString>) -> String {
    let mut operands = false;
    let again = words.filter(|word| {
        operands |= word == "--";
        operands || word != "--no-resume"
    });
    let quoted: Vec<String> = again.map(|word| quoted(&word)).collect();
    quoted.join(" ")
}

fn quoted(word: &OsStr) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@=,+%".contains(c);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.chars().all(plain) => text.to_owned(),
        Some(text) if !text.chars().any(char::is_control) => {
            format!("'{}'", text.replace('\'', "'\\''"))
        }
        // Escape any other byte, in a form that bash and zsh read and terminals do not interpret.
        _ => {
            let bytes = word.as_encoded_bytes().iter();
            let escaped: String = bytes
                .map(|b| match b {
                    b' '..=b'~' if !b"'\\".contains(b) => char::from(*b).to_string(),
                    b => format!("\\x{b:02x}"),
                })
                .collect();
            format!("$'{escaped}'")
        }
    }
}

/// The strongest state that all copied files are known to have reached.
fn claim(summary: &CopySummary) -> Option<&'static str> {
    match (summary.state?, summary.synced) {
        (FileCopyState::Renamed, true) => Some("flushed to disk and renamed"),
        (FileCopyState::Renamed, false) => Some("written and renamed"),
        (_, true) | (FileCopyState::Synced, _) => Some("flushed to disk"),
        (FileCopyState::Closed, false) => Some("written"),
        (FileCopyState::Planned | FileCopyState::Created | FileCopyState::Written, false) => None,
    }
}

/// Describes how files were verified, and the limits of that proof.
fn proof(summary: &CopySummary, verified: &VerifyResult) -> String {
    let mut text = match verified.files == summary.files {
        true => "verified".to_owned(),
        false => format!("{} verified", verified.files),
    };
    if verified.repaired > 0 {
        text.push_str(&format!(" ({} repaired)", verified.repaired));
    }
    let program = verified.program.as_ref().zip(verified.algorithm);
    match program.filter(|_| verified.read_back < verified.files) {
        Some((program, algorithm)) => {
            text.push_str(&format!(
                " by {program} at the far end ({})",
                algorithm.name()
            ));
            if verified.read_back > 0 {
                text.push_str(&format!(", {} by reading back", verified.read_back));
            }
        }
        None => text.push_str(" by reading back"),
    }
    if let Some(reason) = &verified.reason {
        text.push_str(&format!(", because {reason}"));
    }
    let is_remote = verified.program.is_some() || verified.reason.is_some();
    text.push_str(match (verified.download, is_remote) {
        (true, _) => {
            "; the source may have been read from memory, not from disk, and the written data were \
             not read back from disk"
        }
        (false, true) => "; the data may have come from the server's memory, not its disk",
        (false, false) => "; the data may have been read from memory, not from disk",
    });
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use transfer::report::EscapedName;
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
                reason: "each has longhaul".to_owned(),
            }),
            ..three()
        };
        let line = line(&chain);
        let end = "renamed; passed on from host to host: each has longhaul";
        assert!(line.ends_with(end), "{line}");
    }

    #[test]
    fn the_way_through_this_machine_has_its_reason() {
        let through = |reason: &str| CopySummary {
            way: Some(HostCopyRoute {
                kind: HostCopyRouteKind::ThroughHere,
                connected: None,
                address: None,
                reason: reason.to_owned(),
            }),
            ..three()
        };
        let same = line(&through("both ends are on the same host"));
        let end = "; the data went through this machine, because both ends are on the same host";
        assert!(same.ends_with(end), "{same}");
        let absent = line(&through("b: longhaul is not on the PATH there"));
        let end = "; the data went through this machine (b: longhaul is not on the PATH there)";
        assert!(absent.ends_with(end), "{absent}");
        let nothing = line(&CopySummary {
            way: through("both ends are on the same host").way,
            ..CopySummary::default()
        });
        assert!(!nothing.contains("through this machine"), "{nothing}");
    }

    /// Bug: "from this machine to each host: hosts pass on only files of 32 MiB or more".
    #[test]
    fn the_reason_for_a_copy_from_here_to_each_host_was_no_sentence() {
        let star = |reason: &str| HostCopyRoute {
            kind: HostCopyRouteKind::Star,
            connected: None,
            address: None,
            reason: reason.to_owned(),
        };
        for (reason, said) in [
            ("the files are small", ", because the files are small"),
            ("h: longhaul is not there", ": h: longhaul is not there"),
            ("To save time, wait", ". To save time, wait"),
        ] {
            let said = format!("sent from this machine to each host{said}");
            assert_eq!(explained_way(&star(reason)), said);
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
        let end = "written and renamed; 2 of 3 hosts complete, 1 failed";
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
        let end = "renamed, 1 failed; 1 of 3 hosts complete, 1 failed";
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
        assert!(line(&summary).ends_with("written and renamed, 1 excluded, 4 failed"));
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
}
