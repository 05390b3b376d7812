use std::path::PathBuf;

use crate::flags::flag::{Flag, FlagGroup, FlagValueKind, ScpCompatibility};

/// Flags about copies from and to several hosts.
pub(super) const ROWS: &[Flag] = &[
    Flag {
        short: None,
        long: Some("by-host"),
        takes: FlagValueKind::Nothing,
        help: "Put the files of each source host into a directory of its name",
        doc: "Put the files of each source host into the directory DST/HOST, which is created: \
              longhaul cp --by-host 'web{1..9}:/log/*' logs. HOST is the name as it was given, with \
              user and port only if two hosts have the same name. Without this flag, sources that \
              would get the same name are refused before anything is copied.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.by_host = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("hosts"),
        takes: FlagValueKind::Value("FILE"),
        help: "Copy to every host that FILE lists, one a line",
        doc: "Copy the sources, which are on this machine, to every host that FILE lists; - reads \
              standard input. A line is host or host:path, and may have braces as in host{1..9}. \
              The last operand is the path at each host whose line has none: \
              longhaul cp --hosts racks.txt image.tar /srv/. For another port, a line is \
              scp://host:port/path. Empty lines and text behind # are ignored.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, given| {
            args.hosts_file = Some(PathBuf::from(given.os()));
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("fan-out"),
        takes: FlagValueKind::Nothing,
        help: "Copy to every remote operand behind the local ones",
        doc: "Copy to every remote operand behind the local ones: longhaul cp -r --fan-out dir a:/x \
              b:/x. Without this flag that happens only if scp would refuse the command: there is \
              no -r, and each of the remote operands is host: or ends with a slash. Otherwise only \
              the last operand is a target, as in scp, and a command is refused whose other remote \
              operands were probably meant as targets too.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Copying,
        overrides: &[],
        set: |args, _| {
            args.fan_out = true;
            Ok(())
        },
    },
];
