//! The command that completes the hosts of a run that lack files.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use transfer::copy::{CopyLocation, CopyRequest};
use transfer::operand::SshDestination;
use transfer::report::{CopyOutcome, HostResult};

use super::operands::{MultiHostCopy, folders};
use crate::flags::flag::FlagValueKind;
use crate::flags::high::CommandLineOperands;
use crate::flags::table;

/// Hosts up to which the suggestion names each.
const NAMED: usize = 3;

/// True if the command for this host alone, run again, may copy what the host lacks. A file that
/// failed at one target may succeed there once the cause is removed; a file that failed at a source
/// is missing in the same way each time, unless a part of it waits for its rest.
pub(super) fn lacks_files(several: &MultiHostCopy, host: &HostResult) -> bool {
    match (&host.outcome, several) {
        (CopyOutcome::Complete, _) => false,
        (CopyOutcome::Partial, MultiHostCopy::FanOut(_)) => host.failed > 0 || host.unfinished > 0,
        (CopyOutcome::Partial, MultiHostCopy::Gather { .. }) => host.unfinished > 0,
        _ => true,
    }
}

/// Suggests `command`, which completes the hosts for which `lacks` is true, and names them.
pub(super) fn step(
    several: &MultiHostCopy,
    hosts: &[HostResult],
    lacks: &[bool],
    command: &str,
) -> String {
    let lacking: Vec<&HostResult> = hosts
        .iter()
        .zip(lacks)
        .filter_map(|(host, lacks)| lacks.then_some(host))
        .collect();
    let names: Vec<String> = lacking.iter().map(|host| host.host.to_string()).collect();
    let named = match names.as_slice() {
        [one] => one.clone(),
        [others @ .., last] if names.len() <= NAMED => {
            format!("{} and {last}", others.join(", "))
        }
        _ => format!("the {} hosts that lack files", names.len()),
    };
    let failed = |host: &&HostResult| host.outcome == CopyOutcome::Partial;
    let cause = match lacking.iter().all(failed) {
        true => ", once the cause is removed",
        false => "",
    };
    let way = match several {
        MultiHostCopy::FanOut(_) => "to",
        _ => "from",
    };
    format!("to complete the copy {way} {named}{cause}: {command}")
}

/// Returns the words of a command that copies from or to the hosts for which `failed` is true.
/// `None` if it would not do the same as the whole command, `words`, does for these hosts.
pub(super) fn words(
    words: &[OsString],
    typed: &CommandLineOperands,
    (several, request): (&MultiHostCopy, &CopyRequest),
    hosts: &[SshDestination],
    failed: &[bool],
) -> Option<Vec<OsString>> {
    let has_failed = |at: usize| failed.get(at).copied().unwrap_or(false);
    let (mut flags, mut dashes) = flags(words);
    let mut operands = Vec::new();
    match several {
        MultiHostCopy::FanOut(targets) => {
            operands.extend(typed.sources.iter().cloned());
            let targets = targets.iter().zip(&typed.targets).enumerate();
            let left = targets.filter(|(at, _)| has_failed(*at));
            let left: Vec<_> = left.map(|(_, (_, typed))| typed.clone()).collect();
            // As sources of scp, targets with a path need the flag.
            let fan_out = OsStr::new("--fan-out");
            if left.len() > 1 && !flags.iter().any(|flag| flag == fan_out) {
                flags.push(fan_out.to_owned());
            }
            operands.extend(left);
        }
        MultiHostCopy::Gather { by_host, .. } => {
            let left = |at: usize| has_failed(at).then(|| hosts.get(at).cloned()).flatten();
            let left: Vec<SshDestination> = (0..hosts.len()).filter_map(left).collect();
            if *by_host {
                let all = folders(hosts).ok()?;
                let kept = (0..hosts.len()).filter(|at| has_failed(*at));
                let kept: Vec<_> = kept.filter_map(|at| all.get(at).cloned()).collect();
                // A name that only one host has is shorter.
                if folders(&left).ok()? != kept {
                    return None;
                }
            }
            let sources = request.sources.iter().zip(&typed.sources);
            let of_failed = sources.filter(|(source, _)| match source {
                CopyLocation::Remote { host, .. } => has_failed(host.0),
                CopyLocation::Local(_) => false,
            });
            operands.extend(of_failed.map(|(_, typed)| typed.clone()));
            operands.extend(typed.targets.iter().cloned());
        }
    }
    dashes |= operands
        .iter()
        .any(|word| word.as_bytes().starts_with(b"-"));
    flags.extend(dashes.then(|| OsString::from("--")));
    flags.extend(operands);
    Some(flags)
}

/// The words of a command line without its operands and without `--hosts`, and true if it has `--`.
fn flags(words: &[OsString]) -> (Vec<OsString>, bool) {
    let mut words = words.iter();
    let program = words.next();
    let mut kept: Vec<OsString> = program.into_iter().cloned().collect();
    let scp = program.is_some_and(|p| Path::new(p).file_name() == Some(OsStr::new("scp")));
    let mut begins = !scp;
    while let Some(word) = words.next() {
        if std::mem::take(&mut begins) && word == "cp" {
            kept.push(word.clone());
            continue;
        }
        if word == "--" {
            return (kept, true);
        }
        let Some(takes_next) = as_flag(word) else {
            continue;
        };
        let value = takes_next.then(|| words.next()).flatten();
        let hosts = word.as_bytes();
        if hosts == b"--hosts" || hosts.starts_with(b"--hosts=") {
            continue;
        }
        kept.push(word.clone());
        kept.extend(value.cloned());
    }
    (kept, false)
}

/// For a flag, true if the next word is its value; `None` for an operand.
fn as_flag(word: &OsStr) -> Option<bool> {
    let takes = |kind: FlagValueKind| {
        matches!(
            kind,
            FlagValueKind::Value(_) | FlagValueKind::Values(_) | FlagValueKind::Choice(..)
        )
    };
    let bytes = word.as_bytes();
    if let Some(name) = bytes.strip_prefix(b"--") {
        let flag = table::rows().find(|flag| flag.long.is_some_and(|l| l.as_bytes() == name));
        return Some(flag.is_some_and(|flag| takes(flag.takes)));
    }
    let letters = bytes.strip_prefix(b"-").filter(|rest| !rest.is_empty())?;
    for (at, letter) in letters.iter().enumerate() {
        let flag = table::rows().find(|flag| flag.short == Some(char::from(*letter)));
        if flag.is_some_and(|flag| takes(flag.takes)) {
            return Some(at + 1 == letters.len());
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::high::Environment;
    use crate::flags::low::{ParsedCommandLine, parse};

    /// The command for the hosts of these numbers.
    fn completing(line: &str, failed: &[usize]) -> String {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let args = match parse(words.iter().cloned(), clap::ColorChoice::Never) {
            Ok(ParsedCommandLine::Copy(args)) => *args,
            other => panic!("{line}: {other:?}"),
        };
        let high = super::super::resolve(args, &Environment::default());
        let high = high.unwrap_or_else(|error| panic!("{line}: {}", error.0));
        let several = high.several.as_ref().expect("several hosts");
        let failed: Vec<bool> = (0..high.hosts.len())
            .map(|at| failed.contains(&at))
            .collect();
        let copy = (several, &high.request);
        match super::words(&words, &high.typed, copy, &high.hosts, &failed) {
            Some(words) => {
                let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
                words.join(" ")
            }
            None => "the whole command".to_owned(),
        }
    }

    /// The command for two failed hosts of a hundred copied to all of them again.
    #[test]
    fn only_hosts_that_failed_are_named() {
        assert_eq!(
            completing("longhaul cp -p -l 5 big h{1..4}:", &[1]),
            "longhaul cp -p -l 5 big h2:"
        );
        assert_eq!(
            completing("longhaul cp big h{1..4}: -P 22 --limit 5MB/s", &[0, 3]),
            "longhaul cp -P 22 --limit 5MB/s --fan-out big h1: h4:"
        );
        assert_eq!(
            completing("longhaul cp -pl5 -- -big h1: h2:", &[0]),
            "longhaul cp -pl5 -- -big h1:"
        );
        assert_eq!(
            completing("longhaul cp u@h{1..3}:/log/* h3:/x to", &[2, 3]),
            "longhaul cp u@h3:/log/* h3:/x to"
        );
        assert_eq!(
            completing("longhaul cp --by-host h{1..3}:/log/* to", &[1]),
            "longhaul cp --by-host h2:/log/* to"
        );
    }

    fn ended(host: &str, outcome: CopyOutcome, failed: u64) -> HostResult {
        HostResult {
            host: transfer::report::EscapedName(host.as_bytes().to_vec()),
            from: None,
            outcome,
            files: 0,
            directories: 0,
            symlinks: 0,
            bytes: 0,
            unfinished: 0,
            failed,
            elapsed: std::time::Duration::ZERO,
        }
    }

    /// Bug: the suggestion spoke of "the other hosts", while its command had the one that was down,
    /// and a host of which only some files had failed was in no command.
    #[test]
    fn the_hosts_that_lack_files_were_called_the_others_and_some_were_left_out() {
        let fan_out = MultiHostCopy::FanOut(Vec::new());
        let down = || CopyOutcome::NoConnection("refused".to_owned());
        let said = |hosts: &[HostResult]| {
            let lacks: Vec<bool> = hosts
                .iter()
                .map(|host| lacks_files(&fan_out, host))
                .collect();
            step(&fan_out, hosts, &lacks, "CMD")
        };
        let done = || ended("h1", CopyOutcome::Complete, 0);
        let partly = || ended("h3", CopyOutcome::Partial, 2);
        let two = ended("h2", down(), 1);
        assert_eq!(
            said(&[done(), two.clone()]),
            "to complete the copy to h2: CMD"
        );
        assert_eq!(
            said(&[done(), two.clone(), partly()]),
            "to complete the copy to h2 and h3: CMD"
        );
        assert_eq!(
            said(&[done(), partly()]),
            "to complete the copy to h3, once the cause is removed: CMD"
        );
        let many = [done(), two.clone(), two.clone(), two.clone(), two];
        assert_eq!(
            said(&many),
            "to complete the copy to the 4 hosts that lack files: CMD"
        );
    }

    /// The files of one host would go to another directory.
    #[test]
    fn a_directory_that_would_get_another_name_needs_the_whole_command() {
        assert_eq!(
            completing("longhaul cp --by-host a@h:/x b@h:/x to", &[1]),
            "the whole command"
        );
    }

    #[test]
    fn a_file_of_hosts_is_replaced_by_its_lines() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hosts");
        std::fs::write(&file, "a\nb:/own/\nc\n").unwrap();
        let line = format!("longhaul cp -r --hosts {} tree /srv", file.display());
        assert_eq!(
            completing(&line, &[1, 2]),
            "longhaul cp -r --fan-out tree b:/own/ c:/srv"
        );
        let line = format!("longhaul cp --hosts={} big /srv/", file.display());
        assert_eq!(completing(&line, &[0]), "longhaul cp big a:/srv/");
    }
}
