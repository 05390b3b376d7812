use std::path::PathBuf;

use measure::bench::Data;

use super::relay::time;
use crate::flags::flag::{Flag, Group, ValueKind};
use crate::flags::low::{BenchArgs, Places};

/// Most connections or channels that a setting may have.
const MOST_LANES: u32 = 64;

/// The flags of `longhaul bench`, without those for reaching the host.
pub(super) const ROWS: &[Flag<BenchArgs>] = &[
    Flag::ours(
        Group::Measuring,
        ("local", ValueKind::Nothing),
        "Measure this processor alone: ciphers, compression, sums",
        "Measure the primitives on this processor, on one core and on all: each cipher with each \
         MAC as packets of 32 KiB, zlib, zstd, BLAKE3 and SHA-256. No host is needed.",
        |args, _| {
            args.local = true;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Measuring,
        ("time", ValueKind::Value("TIME")),
        "Take about so long: 90s, 5m, ... (3m; 30s with --local)",
        "Take about so long, such as 90s or 5m: three minutes without it, half a minute with \
         --local. The most useful settings come first, and each cipher runs once whatever the \
         time; what is left goes to more runs, in turns, until each figure is known within 2 %.",
        |args, given| {
            args.time = Some(time(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Measuring,
        ("data", ValueKind::Value("KINDS")),
        "Send these: random, text, gzipped (all three)",
        "Send these kinds of data, separated by commas: random, which nothing makes smaller, text, \
         and gzipped, which is text that was compressed before. All three without it.",
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
        Group::Measuring,
        ("file", ValueKind::Value("FILE")),
        "Send this file too: its beginning, as often as it takes",
        "Send this file too: its first 4 MiB, as often as it takes. The recommendation for it is \
         the one that counts for such data.",
        |args, given| {
            args.file = Some(PathBuf::from(given.os()));
            Ok(())
        },
    ),
    Flag {
        short: Some('c'),
        ..Flag::ours(
            Group::Measuring,
            ("cipher", ValueKind::Value("CIPHERS")),
            "Measure these ciphers alone",
            "Measure these ciphers alone, separated by commas, of those that both ends have.",
            |args, given| {
                let names = given.text()?;
                let known = |name: &str| match ssh::cipher::cipher(name) {
                    Some(_) => Ok(name.to_owned()),
                    None => Err("has a cipher that longhaul does not have".to_owned()),
                };
                args.ciphers = names.split(',').map(known).collect::<Result<_, _>>()?;
                Ok(())
            },
        )
    },
    Flag::ours(
        Group::Measuring,
        ("lanes", ValueKind::Value("LANES")),
        "Connections x channels to try: 1x1,1x2,2x1,4x1",
        "Connections, and channels on each, to try: 1x1,1x2,2x1,4x1 without it. The first of them \
         is used where lanes are not in question.",
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
        Group::Measuring,
        (
            "place",
            ValueKind::Choice("WHERE", &["both", "memory", "disk"]),
        ),
        "Copy from memory to memory, from disk to disk, or both",
        "Copy from memory to memory, from disk to disk, or both, which is what happens without it. \
         Memory is /dev/shm where an end has it.",
        |args, given| {
            args.places = match given.text()?.as_str() {
                "memory" => Places::Memory,
                "disk" => Places::Disk,
                _ => Places::Both,
            };
            Ok(())
        },
    ),
    Flag::ours(
        Group::Measuring,
        ("insecure-too", ValueKind::Nothing),
        "Measure what only the host has too: WEAK ciphers, by OpenSSH's ssh",
        "Measure the ciphers and MACs too that the host offers and longhaul does not have, because \
         they are old, broken or both: random data are sent to the host under them. OpenSSH's ssh \
         carries them, as far as it knows them. They are marked and never recommended.",
        |args, _| {
            args.insecure_too = true;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Measuring,
        ("dir", ValueKind::Value("PATH")),
        "Where files lie on this end's disk (a folder in ~/.cache)",
        "Where files lie on this end's disk; in a folder of longhaul's below ~/.cache without it. \
         They are removed at the end.",
        |args, given| {
            args.folder = Some(PathBuf::from(given.os()));
            Ok(())
        },
    ),
    Flag::ours(
        Group::Measuring,
        ("far-dir", ValueKind::Value("DIR")),
        "Where files lie on the host's disk (the login folder)",
        "Where files lie on the host's disk; in the folder that one logs in to without it. They \
         are removed at the end.",
        |args, given| {
            args.far_folder = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Output,
        ("json", ValueKind::Nothing),
        "Write the result as JSON on standard output",
        "Write the result as JSON on standard output, in place of the table. longhaul bench \
         compare takes two of them.",
        |args, _| {
            args.json = true;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Output,
        ("csv", ValueKind::Nothing),
        "Write every run as CSV on standard output",
        "Write every run as a line of CSV on standard output, in place of the table.",
        |args, _| {
            args.csv = true;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Output,
        ("html", ValueKind::Value("FILE")),
        "Write a page with plots into this file too",
        "Write the result into this file too, as an HTML page with plots that needs nothing else \
         and prints well.",
        |args, given| {
            args.html = Some(PathBuf::from(given.os()));
            Ok(())
        },
    ),
];

fn data(name: &str) -> Result<Data, String> {
    let generated = [Data::Random, Data::Text, Data::Gzipped];
    let found = generated.into_iter().find(|data| data.name() == name);
    found.ok_or_else(|| "is not of random, text and gzipped".to_owned())
}

fn lanes(text: &str) -> Result<(u32, u32), String> {
    let wrong = || format!("is not such as 2x1, with numbers from 1 to {MOST_LANES}");
    let number = |text: &str| {
        let number = text.parse().ok();
        number
            .filter(|number| (1..=MOST_LANES).contains(number))
            .ok_or_else(wrong)
    };
    let (connections, channels) = text.split_once('x').ok_or_else(wrong)?;
    Ok((number(connections)?, number(channels)?))
}
