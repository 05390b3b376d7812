//! The arguments of `longhaul bench`.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use measure::bench::BenchData;
use transfer::escape;

use super::{CopyArgs, OPERANDS, UsageError, from_rows, usage_of};
use crate::flags::table::{bench_rows, bootstrap_rows};

/// The flags of `longhaul bench`, and the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BenchArgs {
    pub(crate) local: bool,
    pub(crate) time: Option<Duration>,
    /// Kinds of data; empty for all three generated ones.
    pub(crate) data: Vec<BenchData>,
    pub(crate) file: Option<PathBuf>,
    /// Ciphers; empty for all that both ends have.
    pub(crate) ciphers: Vec<String>,
    /// (connections, channels); empty for the default ones.
    pub(crate) lanes: Vec<(u32, u32)>,
    pub(crate) places: BenchStorageChoice,
    /// Measure also, with OpenSSH's ssh, algorithms that longhaul lacks.
    pub(crate) insecure_too: bool,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) far_folder: Option<String>,
    pub(crate) json: bool,
    pub(crate) csv: bool,
    pub(crate) html: Option<PathBuf>,
    /// The host, as the source of a copy, and the flags for reaching it.
    pub(crate) login: CopyArgs,
    /// Two results to compare, instead of measuring.
    pub(crate) compare: Option<(PathBuf, PathBuf)>,
}

/// Storage that the benchmark copies between: memory, disk, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BenchStorageChoice {
    /// Memory to memory, and disk to disk.
    #[default]
    Both,
    /// Memory to memory.
    Memory,
    /// Disk to disk.
    Disk,
}

pub(super) fn bench(matches: &ArgMatches) -> Result<BenchArgs, UsageError> {
    let mut args: BenchArgs = from_rows(bench_rows(), matches).map_err(|what| wrong(&what))?;
    args.login = from_rows(bootstrap_rows(), matches).map_err(|what| wrong(&what))?;
    let words: Vec<&OsString> = matches
        .get_many::<OsString>(OPERANDS)
        .unwrap_or_default()
        .collect();
    if args.json && args.csv {
        return Err(wrong(
            "--json and --csv cannot be combined: both write to standard output",
        ));
    }
    match words.as_slice() {
        [compare, before, now] if *compare == "compare" => {
            args.compare = Some((PathBuf::from(before), PathBuf::from(now)));
        }
        [compare, _, ..] if *compare == "compare" => {
            return Err(wrong(
                "compare needs two result files of --json: longhaul bench compare OLD NEW",
            ));
        }
        [] if args.local => {}
        [host, ..] if args.local => {
            let host = escape::name(host.as_encoded_bytes());
            return Err(wrong(format!(
                "--local takes no HOST: leave out {host} to measure this machine, or leave out \
                 --local to measure {host}"
            )));
        }
        [_, extra, ..] => {
            let extra = escape::name(extra.as_encoded_bytes());
            return Err(wrong(format!(
                "unexpected argument {extra}: one host is measured at a time"
            )));
        }
        [host] if !host.is_empty() => {
            let mut host = (*host).clone();
            if !host.as_encoded_bytes().windows(3).any(|w| w == b"://") {
                host.push(":");
            }
            args.login.sources = vec![host];
            args.login.destination = ".".into();
        }
        _ => {
            return Err(wrong(
                "no host given: name one, or use --local for this machine, or compare two result files \
                 with longhaul bench compare OLD NEW",
            ));
        }
    }
    Ok(args)
}

fn wrong(what: impl Display) -> UsageError {
    usage_of("bench", "[flags] HOST", what)
}

#[cfg(test)]
mod tests {
    use super::super::{ParsedCommandLine, parse};
    use super::*;

    fn read(words: &str) -> Result<Box<BenchArgs>, String> {
        let words = words.split(' ').map(OsString::from);
        match parse(words, clap::ColorChoice::Never) {
            Ok(ParsedCommandLine::Bench(args)) => Ok(args),
            Ok(_) => panic!("another subcommand"),
            Err(UsageError(why)) => Err(why),
        }
    }

    #[test]
    fn a_host_with_flags() {
        let args = read("longhaul bench --time 2s --data text,random --lanes 1x1,4x2 -P 23 u@h");
        let args = args.unwrap();
        assert_eq!(args.time, Some(Duration::from_secs(2)));
        assert_eq!(args.data, [BenchData::Text, BenchData::Random]);
        assert_eq!(args.lanes, [(1, 1), (4, 2)]);
        assert_eq!(args.login.port, Some(23));
        assert_eq!(args.login.sources, ["u@h:"]);
        assert!(read("longhaul bench --local").unwrap().local);
        let compare = read("longhaul bench compare a b").unwrap().compare;
        assert_eq!(compare, Some(("a".into(), "b".into())));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (line, says) in [
            ("longhaul bench", "no host given"),
            // Bug: a command with a host was told that it gives no host.
            (
                "longhaul bench --local h",
                "--local takes no HOST: leave out h",
            ),
            ("longhaul bench a b", "unexpected argument b: one host"),
            ("longhaul bench compare a", "compare needs two result files"),
            (
                "longhaul bench compare a b c",
                "compare needs two result files",
            ),
            ("longhaul bench --json --csv h", "--json and --csv"),
            (
                "longhaul bench --data words h",
                "--data: 'words' is not a list of",
            ),
            (
                "longhaul bench --lanes 2 h",
                "--lanes: '2' is not CONNECTIONSxCHANNELS such as 2x1",
            ),
            ("longhaul bench --lanes 0x1 h", "--lanes: '0x1'"),
            ("longhaul bench --time soon h", "--time: 'soon'"),
            (
                "longhaul bench -c 3des-cbc h",
                "-c: '3des-cbc' names a cipher",
            ),
        ] {
            let why = read(line).expect_err(line);
            assert!(why.contains(says), "{why}");
        }
    }
}
