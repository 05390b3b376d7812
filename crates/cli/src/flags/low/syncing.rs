//! The flags and operands of `longhaul sync`.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::ArgMatches;
use sync::{Comparison, RuleOrigin};

use super::{CopyArgs, OPERANDS, UsageError, contradiction, from_rows, usage_of};
use crate::flags::flag::FlagInput;
use crate::flags::low::When;
use crate::flags::moment::Moment;
use crate::flags::rate::Rate;
use crate::flags::table::{sync_copy_rows, sync_rows};

/// The flags and operands of `longhaul sync`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SyncArgs {
    /// The flags that `longhaul cp` has as well, and the operands.
    pub(crate) copy: CopyArgs,
    pub(crate) comparison: Comparison,
    pub(crate) delete: bool,
    pub(crate) max_delete: Option<u64>,
    pub(crate) yes: bool,
    pub(crate) backup_dir: Option<PathBuf>,
    pub(crate) dry_run: bool,
    pub(crate) itemize: bool,
    /// Rules with their places on the command line, by which they are ordered.
    pub(crate) filters: Vec<(usize, FilterSource)>,
    pub(crate) gitignore: bool,
    pub(crate) files_from: Option<PathBuf>,
    pub(crate) min_size: Option<u64>,
    pub(crate) max_size: Option<u64>,
    pub(crate) newer: Option<Moment>,
    pub(crate) older: Option<Moment>,
    pub(crate) one_file_system: bool,
    pub(crate) compress: bool,
    pub(crate) limit: Option<Rate>,
}

/// Origin of filter rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FilterSource {
    /// A line in gitignore's syntax, from this flag.
    Rule(String, RuleOrigin),
    /// A file of such lines.
    File(PathBuf),
}

impl SyncArgs {
    /// Adds a rule for each value, with a prefix.
    pub(crate) fn rules(
        &mut self,
        given: FlagInput,
        origin: RuleOrigin,
        prefix: &str,
    ) -> Result<(), String> {
        let places = given.places.clone();
        for (place, pattern) in places.into_iter().zip(given.texts()?) {
            // `--include !x` would be a pattern with two marks.
            let line = match pattern.strip_prefix('!').filter(|_| !prefix.is_empty()) {
                Some(_) => return Err("begins with !, which --include adds itself".to_owned()),
                None => format!("{prefix}{pattern}"),
            };
            self.filters
                .push((place, FilterSource::Rule(line, origin.clone())));
        }
        Ok(())
    }

    /// Adds files of rules.
    pub(crate) fn filter_files(&mut self, given: FlagInput) {
        for (place, file) in given.places.into_iter().zip(given.values) {
            self.filters.push((place, FilterSource::File(file.into())));
        }
    }
}

/// Builds the arguments of `longhaul sync`.
pub(super) fn sync(matches: &ArgMatches) -> Result<SyncArgs, UsageError> {
    let mut args: SyncArgs = from_rows(sync_rows(), matches).map_err(|what| wrong(&what))?;
    args.copy = from_rows(sync_copy_rows(), matches).map_err(|what| wrong(&what))?;
    args.filters.sort_by_key(|(place, _)| *place);
    if args.compress && args.copy.compress.is_none() {
        args.copy.compress = Some(When::Always);
    }
    args.copy.limit = args.copy.limit.or(args.limit);
    args.copy.archive = true;
    let operands = matches.get_many::<OsString>(OPERANDS).unwrap_or_default();
    let operands: Vec<&OsString> = operands.collect();
    let [source, target] = operands.as_slice() else {
        return Err(wrong(match operands.len() {
            0 | 1 if !args.copy.identities.is_empty() => {
                "SRC and DST are needed; -i names a key file here, and --itemize shows changes"
            }
            0 | 1 => "SRC and DST are needed",
            _ => "one SRC and one DST: sync makes one directory equal to another",
        }));
    };
    if source.as_os_str() == OsStr::new("") || target.as_os_str() == OsStr::new("") {
        return Err(wrong(
            "an operand is empty (\"\"); name a file, or host: for a home directory",
        ));
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
pub(crate) fn wrong(what: &str) -> UsageError {
    usage_of("sync", "[flags] SRC DST", what)
}

#[cfg(test)]
mod tests {
    use super::super::{LowArgs, parse};
    use super::*;

    fn read(words: &str) -> Result<Box<SyncArgs>, String> {
        let words = words.split(' ').map(OsString::from);
        match parse(words, clap::ColorChoice::Never) {
            Ok(LowArgs::Sync(args)) => Ok(args),
            Ok(_) => panic!("another subcommand"),
            Err(UsageError(why)) => Err(why),
        }
    }

    #[test]
    fn filters_keep_the_order_of_the_command_line() {
        let args = read("longhaul sync --include b --exclude a --filter-from f --include c x h:y");
        let lines: Vec<String> = args
            .unwrap()
            .filters
            .into_iter()
            .map(|(_, filter)| match filter {
                FilterSource::Rule(line, _) => line,
                FilterSource::File(file) => file.display().to_string(),
            })
            .collect();
        assert_eq!(lines, ["!b", "a", "f", "!c"]);
    }

    #[test]
    fn a_sync_is_an_archive_copy() {
        let args = read("longhaul sync -n --delete -z --bwlimit 100 x h:y").unwrap();
        assert!(args.dry_run && args.delete && args.copy.archive);
        assert_eq!(args.copy.compress, Some(When::Always));
        assert_eq!(args.copy.limit.map(Rate::bytes), Some(102_400));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (line, says) in [
            ("longhaul sync a", "SRC and DST are needed"),
            ("longhaul sync -i a b", "-i names a key file"),
            ("longhaul sync a b c", "one SRC and one DST"),
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
