//! The flags and operands of `longhaul plan`, and of `longhaul cp` with a plan.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::path::PathBuf;

use clap::ArgMatches;

use super::{CopyArgs, EMPTY_OPERAND, OPERANDS, UsageError, from_rows, usage_of};
use crate::flags::table::{plan_copy_rows, plan_rows};

/// Arguments of `longhaul plan`; the range size is in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlanArgs {
    /// The flags for reaching hosts. The operands are those of [`PlanAction::Make`].
    pub(crate) copy: CopyArgs,
    pub(crate) shards: Option<u32>,
    pub(crate) range_size: Option<u64>,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) checksum: bool,
    pub(crate) json: bool,
    pub(crate) action: PlanAction,
}

/// Subcommand of `longhaul plan`: `status` and `verify` are words in front of the folder, and
/// without one a plan is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum PlanAction {
    /// Make a plan of the given number of shards in this folder.
    #[default]
    Make,
    /// `status DIR`: sum up the shards.
    Status(PathBuf),
    /// `verify DIR`: compare the target with the plan.
    Verify(PathBuf),
}

/// Builds the arguments of `longhaul plan`.
pub(super) fn plan(matches: &ArgMatches) -> Result<PlanArgs, UsageError> {
    let mut args: PlanArgs = from_rows(plan_rows(), matches).map_err(|what| wrong(&what))?;
    args.copy = from_rows(plan_copy_rows(), matches).map_err(|what| wrong(&what))?;
    args.copy.json = args.json;
    let operands = matches.get_many::<OsString>(OPERANDS).unwrap_or_default();
    let operands: Vec<&OsString> = operands.collect();
    let makes = args.shards.is_some() || args.folder.is_some();
    let is = |word: &str| {
        operands
            .first()
            .is_some_and(|o| o.as_os_str() == OsStr::new(word))
    };
    if operands.iter().any(|operand| operand.is_empty()) {
        return Err(wrong(match is("status") || is("verify") {
            true => "DIR is an empty string (\"\"): check for an unset shell variable",
            false => EMPTY_OPERAND,
        }));
    }
    match operands.as_slice() {
        [_, folder] if is("status") && !makes => {
            args.action = PlanAction::Status(PathBuf::from(folder));
        }
        [_, folder] if is("verify") && !makes => {
            args.action = PlanAction::Verify(PathBuf::from(folder));
        }
        [word, ..] if !makes && let Some(action) = similar_action(word) => {
            let word = wire::escape::name(word.as_encoded_bytes());
            return Err(wrong(format!("{word}: no such action; similar: {action}")));
        }
        [source, target] => {
            if args.shards.is_none() || args.folder.is_none() {
                return Err(wrong("--shards N and -o DIR are needed to make a plan"));
            }
            args.copy.sources = vec![(*source).clone()];
            args.copy.destination = (*target).clone();
        }
        [_] if (is("status") || is("verify")) && !makes => {
            return Err(wrong("no plan folder given: name the folder of the plan"));
        }
        _ => {
            return Err(wrong(
                "one SRC and one DST are needed: a plan copies one directory to another",
            ));
        }
    }
    match &args.action {
        PlanAction::Verify(_) => {}
        _ if args.checksum => return Err(wrong("--checksum can only be used with plan verify")),
        _ => {}
    }
    Ok(args)
}

/// Returns why a copy with a plan cannot have the other flags; `None` if it can.
pub(super) fn shard_contradiction(args: &CopyArgs) -> Option<&'static str> {
    if args.plan.is_none() {
        let alone = args.shard.is_some() || args.lease.is_some();
        return alone.then_some("--shard and --lease need --plan DIR");
    }
    let wrong = match () {
        () if args.shard.is_none() => "--plan needs --shard N, the number of the shard to copy",
        () if !args.sources.is_empty() || !args.destination.is_empty() => {
            "--plan takes no SRC and DST: the plan has them"
        }
        () if args.inplace => {
            "--inplace cannot be combined with --plan: another worker would take an incomplete \
             file for a complete one"
        }
        () if args.hard_links => {
            "--hard-links cannot be combined with --plan: the names of one file may be in several \
             shards"
        }
        () if !args.selection.is_all() => {
            "filters cannot be combined with --plan: the plan lists what is copied"
        }
        () if args.manifest.is_some() => "--manifest cannot be combined with --plan",
        () if args.program.is_some() || args.sftp_server.is_some() => {
            "-S and -D cannot be combined with --plan, which needs longhaul's own SSH client"
        }
        () => return None,
    };
    Some(wrong)
}

/// The action whose name differs from a word in at most two letters, if the word is not that name.
fn similar_action(word: &OsStr) -> Option<&'static str> {
    let word = word.to_str()?;
    ["status", "verify"]
        .into_iter()
        .find(|action| (1..=2).contains(&distance(word, action)))
}

/// The number of letters to insert, delete or replace to make one word of the other (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (line, letter) in a.chars().enumerate() {
        let mut left = line + 1;
        let mut next = vec![left];
        for (other, above) in b.iter().zip(row.windows(2)) {
            let replaced = above[0] + usize::from(*other != letter);
            left = replaced.min(above[1] + 1).min(left + 1);
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

/// A usage error of `longhaul plan`.
fn wrong(what: impl Display) -> UsageError {
    usage_of(
        "plan",
        "[flags] SRC DST --shards N -o DIR\n       longhaul plan status [--json] DIR\n       \
         longhaul plan verify [flags] DIR",
        what,
    )
}

#[cfg(test)]
mod tests {
    use super::super::{ParsedCommandLine, parse_line as read};
    use super::*;

    #[test]
    fn the_three_forms_are_told_apart() {
        let action = |line: &str| match read(line).unwrap() {
            ParsedCommandLine::Plan(args) => args.action,
            _ => panic!("another subcommand"),
        };
        assert_eq!(
            action("longhaul plan a h:b --shards 3 -o d"),
            PlanAction::Make
        );
        assert_eq!(
            action("longhaul plan status d --json"),
            PlanAction::Status("d".into())
        );
        assert_eq!(
            action("longhaul plan verify --checksum d"),
            PlanAction::Verify("d".into())
        );
        // A source may have the name of an action.
        assert_eq!(
            action("longhaul plan status d --shards 3 -o x"),
            PlanAction::Make
        );
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (line, says) in [
            ("longhaul plan a", "one SRC and one DST"),
            ("longhaul plan a b", "--shards N and -o DIR"),
            ("longhaul plan a b --shards 0 -o d", "'0' is not a number"),
            ("longhaul plan a b --shards 100001 -o d", "is not a number"),
            (
                "longhaul plan status",
                "no plan folder given: name the folder of the plan",
            ),
            (
                "longhaul plan stauts x",
                "stauts: no such action; similar: status",
            ),
            (
                "longhaul plan verfy",
                "verfy: no such action; similar: verify",
            ),
            (
                "longhaul plan statistics b",
                "--shards N and -o DIR are needed",
            ),
            (
                "longhaul plan a",
                "\n       longhaul plan verify [flags] DIR",
            ),
            (
                "longhaul plan status d --checksum",
                "--checksum can only be used with plan verify",
            ),
            ("longhaul cp --plan d", "--plan needs --shard"),
            ("longhaul cp --shard 3 a h:", "need --plan"),
            ("longhaul cp --plan d --shard x", "'x' is not the number"),
            ("longhaul cp --plan d --shard -1", "'-1' is not the number"),
            (
                "longhaul cp --plan d --shard 1 a h:",
                "takes no SRC and DST",
            ),
            (
                "longhaul cp --plan d --shard 1 --inplace",
                "--inplace cannot",
            ),
            (
                "longhaul cp --plan d --shard 1 --lease 1",
                "'1' is not a number",
            ),
        ] {
            let Err(why) = read(line) else {
                panic!("accepted: {line}")
            };
            assert!(why.contains(says), "{line}: {why}");
        }
    }
}
