//! The command line as it was given: parsed, nothing looked up.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::flags::command::{OPERANDS, command};
use crate::flags::dscp::Dscp;
use crate::flags::flag::{Flag, Given, Takes};
use crate::flags::table::rows;

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum LowArgs {
    /// `longhaul cp`.
    Copy(Box<CopyArgs>),
    /// `longhaul completions SHELL`.
    Completions(clap_complete::Shell),
    /// `longhaul man [COMMAND]`: print a man page, or write all generated documents to a folder.
    Man {
        /// Of which subcommand; the main page when there is none.
        command: Option<String>,
        /// Write them all below this folder instead.
        write: Option<PathBuf>,
    },
    /// Help or version was asked for: this text.
    Show(String),
}

/// The flags and operands of `longhaul cp`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyArgs {
    pub(crate) recursive: bool,
    pub(crate) preserve: bool,
    pub(crate) archive: bool,
    pub(crate) inplace: bool,
    pub(crate) fsync: bool,
    pub(crate) port: Option<u16>,
    pub(crate) identities: Vec<PathBuf>,
    pub(crate) jump: Option<String>,
    pub(crate) config: Option<PathBuf>,
    pub(crate) options: Vec<String>,
    pub(crate) ciphers: Option<String>,
    pub(crate) compress: bool,
    pub(crate) limit_kbit: Option<u64>,
    pub(crate) family: Family,
    pub(crate) batch: bool,
    pub(crate) forward_agent: bool,
    pub(crate) program: Option<OsString>,
    pub(crate) sftp_server: Option<OsString>,
    pub(crate) dscp: Dscp,
    pub(crate) quiet: bool,
    pub(crate) verbose: u8,
    pub(crate) progress: When,
    pub(crate) json: bool,
    pub(crate) color: When,
    pub(crate) sources: Vec<OsString>,
    pub(crate) destination: OsString,
}

/// Which addresses to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Family {
    /// Both.
    #[default]
    Any,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// When to do something that depends on the terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum When {
    /// If it is a terminal.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The command line makes no sense: what to say, ready for the terminal.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl When {
    /// From a value that the table allows.
    pub(crate) fn of(text: &str) -> Self {
        match text {
            "always" => Self::Always,
            "never" => Self::Never,
            _ => Self::Auto,
        }
    }
}

/// Parses the command line. Pure: reads neither files nor the environment.
///
/// # Errors
/// An unknown or refused flag, a value that can't be, or missing operands.
pub(crate) fn parse(
    args: impl IntoIterator<Item = OsString>,
    color: clap::ColorChoice,
) -> Result<LowArgs, UsageError> {
    let matches = match command().color(color).try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => {
            let text = render(&error, color);
            return if error.use_stderr() {
                Err(UsageError(text))
            } else {
                Ok(LowArgs::Show(text))
            };
        }
    };
    match matches.subcommand() {
        Some(("cp", matches)) => Ok(LowArgs::Copy(Box::new(copy_args(matches)?))),
        Some(("completions", matches)) => match matches.get_one("SHELL") {
            Some(shell) => Ok(LowArgs::Completions(*shell)),
            None => Err(UsageError("error: which shell?\n".to_owned())),
        },
        Some(("man", matches)) => Ok(LowArgs::Man {
            command: matches.get_one::<String>("COMMAND").cloned(),
            write: matches.get_one::<PathBuf>("write").cloned(),
        }),
        _ => Err(UsageError(command().render_help().to_string())),
    }
}

fn render(error: &clap::Error, color: clap::ColorChoice) -> String {
    let text = error.render();
    if color == clap::ColorChoice::Never {
        text.to_string()
    } else {
        text.ansi().to_string()
    }
}

fn copy_args(matches: &ArgMatches) -> Result<CopyArgs, UsageError> {
    let mut args = CopyArgs::default();
    for flag in rows() {
        let Some(given) = given(flag, matches) else {
            continue;
        };
        if let Some(reason) = flag.refused() {
            return Err(usage(&format!("{}: {reason}", flag.spelled())));
        }
        let shown = given
            .values
            .last()
            .map(|value| value.to_string_lossy().into_owned());
        (flag.set)(&mut args, given).map_err(|why| {
            let value = shown.unwrap_or_default().escape_debug().to_string();
            usage(&format!("{}: '{value}' {why}", flag.spelled()))
        })?;
    }
    let operands = matches.get_many::<OsString>(OPERANDS).unwrap_or_default();
    args.sources = operands.cloned().collect();
    args.destination = args.sources.pop().unwrap_or_default();
    if args.sources.is_empty() {
        return Err(usage("a source and a destination are needed"));
    }
    if args
        .sources
        .iter()
        .chain([&args.destination])
        .any(|operand| operand == OsStr::new(""))
    {
        return Err(usage("an operand is empty"));
    }
    Ok(args)
}

fn given(flag: &Flag, matches: &ArgMatches) -> Option<Given> {
    let id = flag.id();
    if matches.value_source(&id) != Some(ValueSource::CommandLine) {
        return None;
    }
    let times = match flag.takes {
        Takes::Repeats => matches.get_count(&id),
        _ => 1,
    };
    let values = match flag.takes {
        Takes::Nothing | Takes::Repeats => Vec::new(),
        Takes::Value(_) | Takes::Values(_) => matches
            .get_many::<OsString>(&id)
            .unwrap_or_default()
            .cloned()
            .collect(),
        Takes::Choice(..) | Takes::OptionalChoice(..) => matches
            .get_many::<String>(&id)
            .unwrap_or_default()
            .map(OsString::from)
            .collect(),
    };
    Some(Given { times, values })
}

fn usage(what: &str) -> UsageError {
    UsageError(format!(
        "error: {what}\n\nUsage: longhaul cp [flags] SRC... DST\n\n\
         For more information, try 'longhaul cp --help'.\n"
    ))
}

#[cfg(test)]
#[path = "low_tests.rs"]
mod tests;
