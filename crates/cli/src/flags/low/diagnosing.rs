//! The arguments of `longhaul doctor`.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use wire::escape;

use super::{CopyArgs, OPERANDS, UsageError, from_rows, usage_of};
use crate::flags::rate::RateLimitArg;
use crate::flags::table::{bootstrap_rows, doctor_rows};

/// The flags of `longhaul doctor`, and the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DoctorArgs {
    pub(crate) time: Option<Duration>,
    pub(crate) data: Option<u64>,
    pub(crate) expected: Option<RateLimitArg>,
    /// Events of a finished transfer to explain, instead of measuring.
    pub(crate) from: Option<PathBuf>,
    /// Running transfer to explain, instead of measuring.
    pub(crate) watch: Option<u32>,
    pub(crate) json: bool,
    pub(crate) html: Option<PathBuf>,
    /// Offer a Host block for ssh_config.
    pub(crate) fix: bool,
    /// Write it without asking.
    pub(crate) yes: bool,
    /// A local file to read.
    pub(crate) local: Option<PathBuf>,
    /// The host, as the source of a copy, and the flags for reaching it.
    pub(crate) login: CopyArgs,
}

pub(super) fn doctor(matches: &ArgMatches) -> Result<DoctorArgs, UsageError> {
    let mut args: DoctorArgs = from_rows(doctor_rows(), matches).map_err(|what| wrong(&what))?;
    args.login = from_rows(bootstrap_rows(), matches).map_err(|what| wrong(&what))?;
    let words: Vec<&OsString> = matches
        .get_many::<OsString>(OPERANDS)
        .unwrap_or_default()
        .collect();
    if args.yes && !args.fix {
        return Err(wrong("--yes needs --fix"));
    }
    if args.from.is_some() && args.watch.is_some() {
        return Err(wrong("--from and --watch exclude each other"));
    }
    let reads = args.from.is_some() || args.watch.is_some();
    match words.as_slice() {
        [] if reads => {}
        [host, ..] if reads => {
            let flag = if args.watch.is_some() {
                "--watch"
            } else {
                "--from"
            };
            let host = escape::name(host.as_encoded_bytes());
            return Err(wrong(format!(
                "{flag} takes no HOST: leave out {host} to explain the transfer, or leave out {flag} \
                 to measure the path to it"
            )));
        }
        [_, _, extra, ..] => {
            let extra = escape::name(extra.as_encoded_bytes());
            return Err(wrong(format!(
                "unexpected argument {extra}: one host is measured at a time"
            )));
        }
        [host, local @ ..] if !reads && local.len() <= 1 && !host.is_empty() => {
            let mut host = (*host).clone();
            // A host alone, without a path; an IPv6 address has brackets.
            let bytes = host.as_encoded_bytes();
            let after = bytes.iter().rposition(|b| *b == b']').unwrap_or(0);
            if !bytes.iter().skip(after).any(|b| *b == b':') {
                host.push(":");
            }
            args.login.sources = vec![host];
            args.login.destination = ".".into();
            args.local = local.first().map(PathBuf::from);
        }
        _ => {
            return Err(wrong(
                "no host given: name one, or use --from FILE or --watch PID",
            ));
        }
    }
    Ok(args)
}

fn wrong(what: impl Display) -> UsageError {
    usage_of("doctor", "[flags] HOST[:PATH] [LOCAL]", what)
}

#[cfg(test)]
mod tests {
    use super::super::{ParsedCommandLine, parse_line};
    use super::*;

    fn read(words: &str) -> Result<Box<DoctorArgs>, String> {
        match parse_line(words)? {
            ParsedCommandLine::Doctor(args) => Ok(args),
            _ => panic!("another subcommand"),
        }
    }

    #[test]
    fn a_host_may_have_a_path() {
        for (word, source) in [
            ("h", "h:"),
            ("u@h:/srv", "u@h:/srv"),
            ("u@[::1]", "u@[::1]:"),
            ("[::1]:/x", "[::1]:/x"),
            ("scp://h:22/x", "scp://h:22/x"),
        ] {
            let args = read(&format!("longhaul doctor --time 5s {word} file")).unwrap();
            assert_eq!(args.login.sources, [OsString::from(source)]);
            assert_eq!(args.local, Some(PathBuf::from("file")));
        }
        assert!(read("longhaul doctor --from f").unwrap().from.is_some());
        assert_eq!(read("longhaul doctor --watch 7").unwrap().watch, Some(7));
        for wrong in ["0", "-1", "x", "4294967296"] {
            let why = read(&format!("longhaul doctor --watch={wrong}")).unwrap_err();
            assert!(why.contains("is not the number of a process"), "{why}");
        }
        for (wrong, why) in [
            ("longhaul doctor", "no host given"),
            ("longhaul doctor --data 0 h", "is not a size above zero"),
            ("longhaul doctor --watch 7 h", "--watch takes no HOST"),
            ("longhaul doctor --from f h", "--from takes no HOST"),
            ("longhaul doctor a b c", "unexpected argument c"),
        ] {
            let told = read(wrong).unwrap_err();
            assert!(told.contains(why), "{wrong}: {told}");
        }
    }
}
