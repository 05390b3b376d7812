use std::path::PathBuf;
use std::sync::LazyLock;

use crate::flags::flag::{Flag, FlagGroup, FlagInput, FlagValueKind, ScpCompatibility};
use crate::flags::low::LabArgs;

/// Rows for the options of the path, made from the lab's own table.
pub(super) fn path_rows() -> &'static [Flag<LabArgs>] {
    static ROWS: LazyLock<Vec<Flag<LabArgs>>> =
        LazyLock::new(|| lab::path::OPTIONS.iter().map(path_row).collect());
    &ROWS
}

fn path_row(option: &'static lab::path::NetworkPathOption) -> Flag<LabArgs> {
    Flag {
        short: None,
        long: Some(option.name),
        takes: match (option.value, option.several) {
            ("", _) => FlagValueKind::Nothing,
            (value, false) => FlagValueKind::Value(value),
            (value, true) => FlagValueKind::Values(value),
        },
        help: option.help,
        // Leaked once for the process; the rest of the table is static too.
        doc: format!("{}.", option.help).leak(),
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Path,
        overrides: &[],
        set: |args, given| {
            let long = given.long;
            let mut values = given.texts()?;
            if values.is_empty() {
                values.push(String::new());
            }
            args.options
                .extend(values.into_iter().map(|value| (long, value)));
            Ok(())
        },
    }
}

/// The flag that selects a named path.
pub(super) const NAMED_ROWS: &[Flag<LabArgs>] = &[
    Flag {
        short: None,
        long: Some("path"),
        takes: FlagValueKind::Value("NAME"),
        help: "Start from this named path, which other flags adjust; see --list",
        doc: "Start from this named path, which other flags adjust. --list and the end of this \
              help list all of them.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Path,
        overrides: &[],
        set: |args, given| {
            args.path = Some(given.text()?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("list"),
        takes: FlagValueKind::Nothing,
        help: "List the named paths",
        doc: "List the named paths and exit.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Path,
        overrides: &[],
        set: |args, _| {
            args.list = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("estimate"),
        takes: FlagValueKind::Value("SIZE"),
        help: "Print the time that a copy of this size should take over the path",
        doc: "Print the time that a copy of SIZE, such as 64MiB, should take over the path, in both \
              directions, at first contact and to a known host, and exit. The model counts the \
              round trips of the login, slow start of each connection, the rate of the path, what \
              CUBIC makes of its losses, and the answers at the end.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Path,
        overrides: &[],
        set: |args, given| {
            args.estimate = Some(super::relay::size(&given.text()?)? as u64);
            Ok(())
        },
    },
];

/// Flags about the programs at the two ends, and about output.
pub(super) const ROWS: &[Flag<LabArgs>] = &[
    Flag {
        short: None,
        long: Some("sshd"),
        takes: FlagValueKind::Nothing,
        help: "Start an OpenSSH server on the far side, for ssh and scp to far",
        doc: "Start a throwaway OpenSSH server with new keys on port 22 of the far side. ssh, and \
              every program that uses its configuration, reaches it as `far`. For other programs, \
              LONGHAUL_LAB_KEY, LONGHAUL_LAB_KNOWN_HOSTS, LONGHAUL_LAB_USER, LONGHAUL_LAB_PORT and \
              LONGHAUL_LAB_CONFIG (an ssh_config) hold what they need.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Sides,
        overrides: &[],
        set: |args, _| {
            args.sshd = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("sshd-option"),
        takes: FlagValueKind::Values("KEY=VALUE"),
        help: "Set an option of sshd_config for that server; may be repeated",
        doc: "Set an option of sshd_config(5) for the server of --sshd, such as MaxSessions=1. May \
              be repeated.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Sides,
        overrides: &[],
        set: |args, given| {
            for setting in given.texts()? {
                let (key, value) = setting
                    .split_once(['=', ' '])
                    .ok_or("is not KEY=VALUE, such as MaxSessions=1")?;
                if key.is_empty() || setting.contains(['\n', '\r']) {
                    return Err("is not KEY=VALUE, such as MaxSessions=1".into());
                }
                args.sshd_options.push((key.to_owned(), value.to_owned()));
            }
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("far"),
        takes: FlagValueKind::Value("COMMAND"),
        help: "Run this shell command on the far side, as a server",
        doc: "Run this command on the far side with sh -c, as a server, and stop it when the lab \
              ends. Its output goes to standard error. The near command starts when the server \
              listens, or after one second.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Sides,
        overrides: &[],
        set: |args, given| {
            args.far = Some(given.os());
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("far-port"),
        takes: FlagValueKind::Value("PORT"),
        help: "Wait until the command of --far listens on this port",
        doc: "Wait until the command of --far listens on this port, for up to ten seconds; after \
              that the lab fails.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Sides,
        overrides: &[],
        set: |args, given| {
            match given.text()?.parse() {
                Ok(port @ 1..) => args.far_port = Some(port),
                _ => return Err("is not a port, 1 to 65535".into()),
            }
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("far-start"),
        takes: FlagValueKind::Value("TIME"),
        help: "Delay each start of the account's shell on the far side, such as 900ms",
        doc: "Delay each start of the account's shell on the far side, such as 900ms, as slow \
              start-up files do. Without it the shell is /bin/sh and reads none.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Sides,
        overrides: &[],
        set: |args, given| {
            args.far_start = Some(lab::path::time(&given.text()?)?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("far-cpu"),
        takes: FlagValueKind::Value("PERCENT"),
        help: "Let the server of --sshd run for this share of every 100 ms, such as 10%",
        doc: "Let the server of --sshd and its sessions run for this share of every 100 ms, such as \
              10%, as under a processor quota. They are stopped in between.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Sides,
        overrides: &[],
        set: |args, given| {
            let text = given.text()?;
            let percent = text
                .strip_suffix('%')
                .and_then(|number| number.parse().ok());
            args.far_cpu = match percent {
                Some(percent @ 1..=100) => Some(percent),
                _ => return Err("is not a percentage from 1% to 100%".into()),
            };
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("far-disk"),
        takes: FlagValueKind::Value("RATE"),
        help: "Let the sessions of --sshd use disks at this rate, such as 20MB",
        doc: "Let the sessions of --sshd read files from disks and write them at this rate, such as \
              20MB, bytes per second. They are stopped until a disk of that rate would be done. \
              Files in memory (tmpfs) and cached files are not slowed down.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Sides,
        overrides: &[],
        set: |args, given| {
            args.far_disk = Some(
                given
                    .text()?
                    .parse::<crate::flags::rate::RateLimitArg>()?
                    .bytes(),
            );
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("allow-cc"),
        takes: FlagValueKind::Values("NAME"),
        help: "Allow programs to select this congestion control; may be repeated",
        doc: "Allow programs in the lab to select this congestion control for their connections \
              (TCP_CONGESTION), even if the machine restricts it to root. The programs can then \
              also administer the lab's network. May be repeated.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Sides,
        overrides: &[],
        set: |args, given| {
            args.allow_cc = given.texts()?;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("shell"),
        takes: FlagValueKind::Nothing,
        help: "Run a shell ($SHELL) on the near side",
        doc: "Run the shell named by the SHELL variable on the near side, instead of a command.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Sides,
        overrides: &[],
        set: |args, _| {
            args.shell = true;
            Ok(())
        },
    },
    Flag {
        short: Some('q'),
        long: Some("quiet"),
        takes: FlagValueKind::Nothing,
        help: "Do not print the path's statistics at the end",
        doc: "Do not print the path's statistics on standard error at the end.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Output,
        overrides: &[],
        set: |args, _| {
            args.quiet = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("figures"),
        takes: FlagValueKind::Value("FILE"),
        help: "Write the path's statistics to this file, as JSON",
        doc: "Write the path's statistics to this file, as one JSON object of numbers: packets and \
              bytes of each direction, drops by cause, the longest queue, bytes by DSCP, and the \
              processor time of the emulator.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Output,
        overrides: &[],
        set: |args, given: FlagInput| {
            args.figures = Some(PathBuf::from(given.os()));
            Ok(())
        },
    },
];
