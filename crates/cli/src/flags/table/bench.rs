use std::path::PathBuf;

use measure::bench::BenchData;

use super::relay::time;
use crate::flags::argument_error::ArgumentError;
use crate::flags::flag::{Flag, FlagGroup, FlagValueKind};
use crate::flags::low::{BenchArgs, BenchStorageChoice};

/// Maximum number of connections or channels that a setting may have.
const MOST_LANES: u32 = 64;

/// The flags of `longhaul bench`, without those for reaching the host.
pub(super) const ROWS: &[Flag<BenchArgs>] = &[
    Flag::ours(
        FlagGroup::Measuring,
        ("local", FlagValueKind::Nothing),
        "Measure only this machine's processor: ciphers, compression, checksums",
        "Measure this machine's processor, on one core and on all cores: each cipher with each MAC \
         in packets of 32 KiB, zlib, zstd, BLAKE3 and SHA-256. No host is needed.",
        |args, _| {
            args.local = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Measuring,
        ("time", FlagValueKind::Value("TIME")),
        "Stop after about TIME, such as 90s or 5m (default 3m; 30s with --local)",
        "Stop after about TIME, such as 90s or 5m. The default is three minutes, and 30 seconds \
         with --local. The most useful settings run first, and each cipher runs at least once, \
         whatever the time. The remaining time goes to further runs, in turn, until each figure is \
         known within 2 %.",
        |args, given| {
            args.time = Some(time(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Measuring,
        ("data", FlagValueKind::Value("KINDS")),
        "Send these kinds of data: random, text, gzipped (default: all three)",
        "Send these kinds of data, separated by commas: random (does not compress), text, and \
         gzipped (text that is already compressed). The default is all three.",
        |args, given| {
            args.data = given
                .text()?
                .split(',')
                .map(data)
                .collect::<Result<_, _>>()?;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Measuring,
        ("file", FlagValueKind::Value("FILE")),
        "Also send data from this file",
        "Also send data from this file: its first 4 MiB, repeated as often as needed. For data \
         like it, use the recommendation that the result gives for this file.",
        |args, given| {
            args.file = Some(PathBuf::from(given.os()));
            Ok(())
        },
    ),
    Flag {
        short: Some('c'),
        ..Flag::ours(
            FlagGroup::Measuring,
            ("cipher", FlagValueKind::Value("CIPHERS")),
            "Measure only these ciphers",
            "Measure only these ciphers, separated by commas, if both ends support them.",
            |args, given| {
                let names = given.text()?;
                let known = |name: &str| match ssh::cipher::cipher(name) {
                    Some(_) => Ok::<_, ArgumentError>(name.to_owned()),
                    None => {
                        let names: Vec<&str> =
                            ssh::cipher::CIPHERS.iter().map(|spec| spec.name).collect();
                        Err(format!(
                            "names a cipher that longhaul does not support: choose from {}",
                            names.join(", ")
                        )
                        .into())
                    }
                };
                args.ciphers = names.split(',').map(known).collect::<Result<_, _>>()?;
                Ok(())
            },
        )
    },
    Flag::ours(
        FlagGroup::Measuring,
        ("lanes", FlagValueKind::Value("LANES")),
        "Try these numbers of connections x channels (default 1x1,1x2,2x1,4x1)",
        "Try these numbers of connections, and of channels on each connection. The default is \
         1x1,1x2,2x1,4x1. Runs that do not compare them use the first one.",
        |args, given| {
            args.lanes = given
                .text()?
                .split(',')
                .map(lanes)
                .collect::<Result<_, _>>()?;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Measuring,
        (
            "place",
            FlagValueKind::Choice("WHERE", &["both", "memory", "disk"]),
        ),
        "Copy from memory to memory, from disk to disk, or both",
        "Copy from memory to memory, from disk to disk, or both (the default). Memory is /dev/shm \
         on an end that has it.",
        |args, given| {
            args.places = match given.text()?.as_str() {
                "memory" => BenchStorageChoice::Memory,
                "disk" => BenchStorageChoice::Disk,
                _ => BenchStorageChoice::Both,
            };
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Measuring,
        ("insecure-too", FlagValueKind::Nothing),
        "Also measure WEAK ciphers that only the host supports, with OpenSSH's ssh",
        "Also measure the ciphers and MACs that the host offers and longhaul does not support \
         because they are old or broken. Only random data is sent to the host under them. \
         OpenSSH's ssh makes these connections, as far as it supports the algorithms. The results \
         are marked and never recommended.",
        |args, _| {
            args.insecure_too = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Measuring,
        ("dir", FlagValueKind::Value("PATH")),
        "Put files on this machine's disk in PATH (default: a folder in ~/.cache)",
        "Put the files of disk runs on this machine in PATH. The default is longhaul's folder \
         below ~/.cache. The files are removed at the end.",
        |args, given| {
            args.folder = Some(PathBuf::from(given.os()));
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Measuring,
        ("far-dir", FlagValueKind::Value("DIR")),
        "Put files on the host's disk in DIR (default: the login folder)",
        "Put the files of disk runs on the host in DIR. The default is the folder in which a login \
         starts. The files are removed at the end.",
        |args, given| {
            args.far_folder = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Output,
        ("json", FlagValueKind::Nothing),
        "Write the result as JSON on standard output",
        "Write the result as JSON on standard output instead of the table. longhaul bench compare \
         reads two such results.",
        |args, _| {
            args.json = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Output,
        ("csv", FlagValueKind::Nothing),
        "Write every run as CSV on standard output",
        "Write every run as a line of CSV on standard output instead of the table.",
        |args, _| {
            args.csv = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Output,
        ("html", FlagValueKind::Value("FILE")),
        "Also write an HTML page with plots to this file",
        "Also write the result to this file, as an HTML page with plots. The page needs no other \
         files and can be printed.",
        |args, given| {
            args.html = Some(PathBuf::from(given.os()));
            Ok(())
        },
    ),
];

fn data(name: &str) -> Result<BenchData, ArgumentError> {
    let generated = [BenchData::Random, BenchData::Text, BenchData::Gzipped];
    let found = generated.into_iter().find(|data| data.name() == name);
    found.ok_or_else(|| "is not a list of random, text and gzipped".into())
}

fn lanes(text: &str) -> Result<(u32, u32), ArgumentError> {
    let wrong = || {
        ArgumentError::from(format!(
            "is not CONNECTIONSxCHANNELS such as 2x1, with numbers from 1 to {MOST_LANES}"
        ))
    };
    let number = |text: &str| {
        let number = text.parse().ok();
        number
            .filter(|number| (1..=MOST_LANES).contains(number))
            .ok_or_else(wrong)
    };
    let (connections, channels) = text.split_once('x').ok_or_else(wrong)?;
    Ok((number(connections)?, number(channels)?))
}
