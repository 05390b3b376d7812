//! The arguments of `longhaul wrap`.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;

use clap::ArgMatches;
use lab::path::Dscp;

use super::{COMMAND, UsageError, from_rows, usage_of};
use crate::flags::table::wrap_rows;

/// The flags of `longhaul wrap`, and the program to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WrapArgs {
    pub(crate) always: bool,
    pub(crate) no_tune: bool,
    pub(crate) dscp: Dscp,
    pub(crate) congestion: Option<String>,
    /// `DEST=VIA`; host names are not resolved yet.
    pub(crate) routes: Vec<String>,
    /// Destinations; host names are not resolved yet.
    pub(crate) filters: Vec<String>,
    pub(crate) report: Option<ReportDestination>,
    pub(crate) check: bool,
    pub(crate) anyway: bool,
    /// Print the path of the library.
    pub(crate) library: bool,
    pub(crate) command: Vec<OsString>,
}

/// Destination of the report on all connections, from `longhaul wrap --report[=FILE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReportDestination {
    /// Printed for people at the end.
    Shown,
    /// Written to a file, as JSON lines.
    Written(PathBuf),
}

pub(super) fn wrap(matches: &ArgMatches) -> Result<WrapArgs, UsageError> {
    let mut args: WrapArgs = from_rows(wrap_rows(), matches).map_err(|what| wrong(&what))?;
    let words = matches.get_many::<OsString>(COMMAND).unwrap_or_default();
    args.command = words.cloned().collect();
    let acts = args.always || args.dscp != Dscp::default() || args.congestion.is_some();
    let why = match args.command.len() {
        _ if args.no_tune && acts => {
            "--no-tune cannot be combined with --always, --dscp or --congestion"
        }
        0 if args.library => return Ok(args),
        _ if args.library => "--library cannot be combined with a program",
        0 => "no program given",
        1 => return Ok(args),
        _ if args.check => "--check takes one program",
        _ => return Ok(args),
    };
    Err(wrong(why))
}

/// A usage error of `longhaul wrap`.
pub(crate) fn wrong(what: impl Display) -> UsageError {
    usage_of("wrap", "[flags] [--] PROGRAM [ARGS...]", what)
}

#[cfg(test)]
mod tests {
    use super::super::{ParsedCommandLine, parse};
    use super::*;

    fn read(words: &str) -> Result<WrapArgs, String> {
        let words = words.split(' ').map(OsString::from);
        match parse(words, clap::ColorChoice::Never) {
            Ok(ParsedCommandLine::Wrap(args)) => Ok(*args),
            Ok(other) => panic!("{other:?}"),
            Err(UsageError(why)) => Err(why),
        }
    }

    #[test]
    fn flags_of_the_program_are_the_programs() {
        let args = read("longhaul wrap --always --report curl --report=x -o y").unwrap();
        assert!(args.always && args.report == Some(ReportDestination::Shown));
        assert_eq!(args.command, ["curl", "--report=x", "-o", "y"]);
        let args = read("longhaul wrap --report=a -- --odd").unwrap();
        assert_eq!(args.report, Some(ReportDestination::Written("a".into())));
        assert_eq!(args.command, ["--odd"]);
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (line, says) in [
            ("longhaul wrap", "no program given"),
            ("longhaul wrap --check a b", "one program"),
            (
                "longhaul wrap --library a",
                "cannot be combined with a program",
            ),
            ("longhaul wrap --no-tune --always a", "--no-tune"),
            ("longhaul wrap --dscp no-such a", "--dscp: 'no-such'"),
        ] {
            let why = read(line).expect_err(line);
            assert!(why.contains(says), "{line}: {why}");
        }
    }
}
