//! The flags and operands of `longhaul sync`.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::path::PathBuf;

use clap::ArgMatches;
use sync::ComparisonRules;
use transfer::operand::CopyOperand;
use transfer::sync::UnicodeForm;

use super::{
    CopyArgs, EMPTY_OPERAND, OPERANDS, UsageError, add_rows, contradiction, from_rows, usage_of,
};
use crate::flags::argument_error::ArgumentError;
use crate::flags::flag::FlagInput;
use crate::flags::table::{sync_copy_rows, sync_rows};

/// The flags and operands of `longhaul sync`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SyncArgs {
    /// The flags that `longhaul cp` has as well, and the operands.
    pub(crate) copy: CopyArgs,
    pub(crate) comparison: ComparisonRules,
    pub(crate) delete: bool,
    pub(crate) max_delete: Option<u64>,
    pub(crate) yes: bool,
    pub(crate) backup_dir: Option<PathBuf>,
    pub(crate) dry_run: bool,
    pub(crate) itemize: bool,
    pub(crate) one_file_system: bool,
    pub(crate) link_dest: Option<PathBuf>,
    pub(crate) names: UnicodeForm,
}

impl SyncArgs {
    /// Sets the directory of `--link-dest`.
    pub(crate) fn link_to(&mut self, given: FlagInput) -> Result<(), ArgumentError> {
        if given.values.len() > 1 {
            return Err("is a second one: a sync links to one earlier copy, the newest".into());
        }
        let dir = given.os();
        if matches!(CopyOperand::parse(&dir), Ok(CopyOperand::Remote(_))) {
            return Err("names a host: give a directory beside DST, without the host".into());
        }
        self.link_dest = Some(dir.into());
        Ok(())
    }

    /// Sets the folder of `--backup-dir`.
    pub(crate) fn keep_backups(&mut self, folder: OsString) -> Result<(), ArgumentError> {
        if matches!(CopyOperand::parse(&folder), Ok(CopyOperand::Remote(_))) {
            return Err("names a host: give a folder of DST, without the host".into());
        }
        self.backup_dir = Some(folder.into());
        Ok(())
    }
}

/// Builds the arguments of `longhaul sync`.
pub(super) fn sync(matches: &ArgMatches) -> Result<SyncArgs, UsageError> {
    let mut args: SyncArgs = from_rows(sync_rows(), matches).map_err(|what| wrong(&what))?;
    add_rows(&mut args.copy, sync_copy_rows(), matches).map_err(|what| wrong(&what))?;
    args.copy.selection.settle().map_err(|what| wrong(&what))?;
    args.copy.archive = true;
    let operands = matches.get_many::<OsString>(OPERANDS).unwrap_or_default();
    let operands: Vec<&OsString> = operands.collect();
    let [source, target] = operands.as_slice() else {
        let letter = [
            (
                args.itemize,
                "--identity FILE names a key file; -i is --itemize, as in rsync",
            ),
            (
                args.comparison.checksum,
                "--cipher names a cipher; -c is --checksum, as in rsync",
            ),
        ];
        let letter = letter.iter().find(|(given, _)| *given);
        return Err(wrong(&match (operands.len(), letter) {
            (0 | 1, _) => "SRC and DST are needed".to_owned(),
            (_, None) => {
                "one SRC and one DST: sync makes one directory equal to another".to_owned()
            }
            (_, Some((_, meaning))) => format!("one SRC and one DST are needed; {meaning}"),
        }));
    };
    if source.as_os_str() == OsStr::new("") || target.as_os_str() == OsStr::new("") {
        return Err(wrong(EMPTY_OPERAND));
    }
    let is_remote = matches!(CopyOperand::parse(source), Ok(CopyOperand::Remote(_)));
    args.copy.devices = args.one_file_system && is_remote;
    // Files that share a hard link with others outside DST are copied, not changed.
    args.copy.links = true;
    for operand in [source, target] {
        if CopyOperand::expand(operand).is_ok_and(|hosts| hosts.len() > 1) {
            let operand = transfer::escape::os(operand);
            return Err(wrong(format!(
                "{operand}: one SRC and one DST: run longhaul sync once for each host of the braces"
            )));
        }
    }
    args.copy.sources = vec![(*source).clone()];
    args.copy.destination = (*target).clone();
    let needs_delete = [
        (
            args.max_delete.is_some(),
            "--max-delete limits --delete: give both",
        ),
        (args.yes, "--yes confirms --delete: give both"),
    ];
    for (given, what) in needs_delete {
        if given && !args.delete {
            return Err(wrong(what));
        }
    }
    match contradiction(&args.copy) {
        Some(what) => Err(wrong(what)),
        None => Ok(args),
    }
}

/// A usage error of `longhaul sync`.
pub(crate) fn wrong(what: impl Display) -> UsageError {
    usage_of("sync", "[flags] SRC DST", what)
}

#[cfg(test)]
mod tests {
    use super::super::{ParsedCommandLine, TerminalSetting, UncompiledFilterRule, parse_line};
    use super::*;
    use crate::flags::rate::RateLimitArg;

    fn read(words: &str) -> Result<Box<SyncArgs>, String> {
        match parse_line(words)? {
            ParsedCommandLine::Sync(args) => Ok(args),
            _ => panic!("another subcommand"),
        }
    }

    #[test]
    fn filters_keep_the_order_of_the_command_line() {
        let args = read("longhaul sync --exclude b --include a --filter-from f --include c x h:y");
        let lines: Vec<String> = args
            .unwrap()
            .copy
            .selection
            .filters
            .into_iter()
            .map(|(_, filter)| match filter {
                UncompiledFilterRule::Rule(line, _) => line,
                UncompiledFilterRule::File(file) => file.display().to_string(),
            })
            .collect();
        assert_eq!(lines, ["b", "!a", "f", "!c"]);
    }

    #[test]
    fn a_sync_is_an_archive_copy() {
        let args = read("longhaul sync -n --delete -z --bwlimit 100 x h:y").unwrap();
        assert!(args.dry_run && args.delete && args.copy.archive);
        assert_eq!(args.copy.compress, Some(TerminalSetting::Always));
        assert_eq!(args.copy.limit.map(RateLimitArg::bytes), Some(102_400));
    }

    /// Regression: -i took the letter behind it as the name of a key file, so that -in --delete
    /// deleted and -ni --delete did not.
    #[test]
    fn letters_of_rsync_mean_what_they_mean_in_rsync() {
        let args = read("longhaul sync -in --delete x h:y").unwrap();
        assert!(args.itemize && args.dry_run && args.delete);
        assert!(args.copy.identities.is_empty());
        let args = read("longhaul sync -ni --delete --identity k x h:y").unwrap();
        assert!(args.itemize && args.dry_run && args.delete);
        assert_eq!(args.copy.identities, [PathBuf::from("k")]);
        // Bug: with -h on its own the help was shown, with status 0, and nothing copied.
        assert!(read("longhaul sync -a -v -h x h:y").is_ok());
        let args = read("longhaul sync -avhzcHAXSW --stats -rltpu x h:y").unwrap();
        let copy = &args.copy;
        assert!(args.comparison.checksum && args.comparison.skipped.newer);
        assert!(copy.hard_links && copy.acls && copy.xattrs && copy.sparse);
        assert!(!copy.forward_agent && copy.ciphers.is_none() && copy.verbose == 1);
        assert_eq!(copy.delta, transfer::copy::DeltaUse::Never);
    }

    #[test]
    fn an_include_that_can_have_no_effect_is_an_error() {
        let why = read("longhaul sync --include keep.log --exclude *.log x h:y").unwrap_err();
        assert!(why.contains("--include keep.log: has no effect"), "{why}");
        for line in [
            "longhaul sync --exclude *.log --include keep.log x h:y",
            "longhaul sync --gitignore --include keep.log --exclude x x h:y",
            "longhaul sync --include keep.log x h:y",
        ] {
            assert!(read(line).is_ok(), "{line}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (line, says) in [
            ("longhaul sync a", "SRC and DST are needed"),
            ("longhaul sync -p2222 a h:b", "-p2222: the port is -P 2222"),
            ("longhaul sync -R a h:b", "append the path to DST"),
            ("longhaul sync -e ssh a h:b", "--identity KEY"),
            (
                "longhaul sync -i key a h:b",
                "--identity FILE names a key file",
            ),
            (
                "longhaul sync --link-dest x --link-dest y a h:b",
                "is a second one",
            ),
            ("longhaul sync -c aes a h:b", "--cipher names a cipher"),
            ("longhaul sync --backup-dir h:b a h:b", "names a host"),
            ("longhaul sync -avP a h:b", "rsync's -P is --progress"),
            ("longhaul sync a b c", "one SRC and one DST"),
            ("longhaul sync a h{1..2}:b", "once for each host"),
            ("longhaul sync h{1,2}:a b", "once for each host"),
            ("longhaul sync --yes a h:b", "--yes confirms --delete"),
            ("longhaul sync --max-delete 5 a h:b", "--max-delete limits"),
            (
                "longhaul sync --max-size lots a h:b",
                "'lots' is not a size",
            ),
            ("longhaul sync --newer soon a h:b", "'soon' is neither"),
            ("longhaul sync --include !x a h:b", "begins with !"),
        ] {
            let why = read(line).expect_err(line);
            assert!(why.contains(says), "{why}");
        }
    }
}
