//! The end of a run: each failure, then a closing line that claims no more than is known.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use transfer::report::{
    CopyOutcome, CopySummary, EscapedName, FarEndServerReport, HostCopyReason, HostCopyRoute,
    HostCopyRouteKind, HostResult, ItemFailure, ServerMode, VerifyResult,
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
    if summary.taken_over > 0 {
        let before = units::size(summary.taken_over);
        text.push_str(&format!(", after {before} in earlier runs"));
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
    let lost: Vec<_> = hosts.iter().filter(|h| is_lost(&h.outcome)).collect();
    let lost: Vec<&EscapedName> = lost.into_iter().map(|host| &host.host).collect();
    // A failed connection counts as one failed item, and is shown as a failed host.
    let items = summary.failed.saturating_sub(lost.len() as u64);
    if items > 0 {
        let of_items = |failure: &&ItemFailure| !lost.contains(&&failure.path);
        let named: Vec<_> = summary.failures.iter().filter(of_items).collect();
        let named: Vec<_> = named.into_iter().map(|failure| &failure.path).collect();
        text.push_str(&format!(", {}", failed(items, &named)));
    }
    if !hosts.is_empty() {
        let complete = |host: &&HostResult| host.outcome == CopyOutcome::Complete;
        let whole = hosts.iter().filter(complete).count();
        text.push_str(&format!("; {whole} of {} hosts complete", hosts.len()));
        if !lost.is_empty() {
            text.push_str(&format!(", {}", failed(lost.len() as u64, &lost)));
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

/// Names the one item or host that has failed, or says where several are named: an error line above
/// the closing line may have scrolled away, or be one of many.
fn failed(count: u64, names: &[&EscapedName]) -> String {
    match (count, names) {
        (1, [name]) => format!("1 failed: {name}"),
        (1, _) => "1 failed (see the error above)".to_owned(),
        _ => format!("{count} failed (see the errors above)"),
    }
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
        HostCopyRouteKind::ThroughHere => match reason {
            HostCopyReason::Clause(_) => {
                format!("the data went through this machine, because {reason}")
            }
            HostCopyReason::Named(_) | HostCopyReason::Advice(_) => {
                format!("the data went through this machine ({reason})")
            }
        },
        HostCopyRouteKind::Star => {
            let before = match reason {
                HostCopyReason::Advice(_) => ".",
                HostCopyReason::Named(_) => ":",
                HostCopyReason::Clause(_) => ", because",
            };
            format!("sent {}{before} {reason}", way(host_way))
        }
        HostCopyRouteKind::Direct | HostCopyRouteKind::Chain => {
            format!("{}: {reason}", way(host_way))
        }
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
    let unverified = summary.verified.as_ref().map_or(0, |v| v.unverified);
    if stopped && unverified > 0 {
        return Some(verify_step(summary, unverified));
    }
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

/// Suggests how to verify files that are complete, after a run that ended before their comparison.
fn verify_step(summary: &CopySummary, unverified: u64) -> String {
    let (files, them) = match unverified {
        1 => (
            "1 copied file is complete under its name, but was".to_owned(),
            "it",
        ),
        files => (
            format!("{files} copied files are complete under their names, but were"),
            "them",
        ),
    };
    // The next run takes over what the journal records as complete, and verifies it.
    let what = match summary.journal {
        Some(_) => format!("to resume and verify {them}"),
        None => format!("to copy {them} again and verify {them}"),
    };
    let command = command(std::env::args_os());
    format!("{files} not verified; {what}: {command}")
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

/// The line about an interrupted run that is resumed: files done, and those of them that may be
/// sent again; partial files, and their bytes.
pub(crate) fn resumed((done, unproven): (u64, u64), (partial, bytes): (u64, u64)) -> String {
    if done == 0 && unproven == 0 && (partial == 0 || bytes == 0) {
        return "resuming the earlier copy: it left no complete or partial file to continue from"
            .to_owned();
    }
    let mut text = format!(
        "resuming the earlier copy: {} recorded as complete",
        units::files(done)
    );
    if unproven > 0 {
        let files = units::files(unproven);
        text.push_str(&format!(
            ", {files} finished just before it ended (sent again unless size and modification \
             time match)"
        ));
    }
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
#[path = "closing_tests.rs"]
mod tests;
