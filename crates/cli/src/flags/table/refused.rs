use crate::flags::flag::{Flag, FlagGroup, FlagValueKind, ScpCompatibility};

/// Flags of scp that are errors here, each with its reason.
pub(super) const ROWS: &[Flag] = &[
    refused(
        'O',
        FlagValueKind::Nothing,
        "the old scp protocol runs a shell command on the server and is not supported; use scp -O \
         for a server without SFTP",
    ),
    refused(
        'R',
        FlagValueKind::Nothing,
        "longhaul does not log in from one remote host to the other, nor does it keep paths as \
         rsync's -R does; leave -R out to copy through this machine",
    ),
    refused(
        '1',
        FlagValueKind::Nothing,
        "SSH protocol 1 is obsolete and insecure",
    ),
    refused(
        '2',
        FlagValueKind::Nothing,
        "SSH protocol 2 is the only one; leave -2 out (a port is given with -P 2222)",
    ),
    refused(
        'M',
        FlagValueKind::Value("MODE"),
        "SFTP is the only mode; leave -M out",
    ),
    refused('d', FlagValueKind::Nothing, SERVER_SIDE),
    refused(
        'f',
        FlagValueKind::Nothing,
        "longhaul cp always replaces files: leave -f out (scp's -f belongs to the remote side of \
         its old protocol)",
    ),
    refused(
        't',
        FlagValueKind::Nothing,
        "it starts the remote side of the old scp protocol, which is not supported; to keep times, \
         as rsync's -t does, use -p",
    ),
];

const SERVER_SIDE: &str = "it belongs to the remote side of the old scp protocol, which is not \
                           supported; to keep symlinks, as cp's -d does, use -a";

const fn refused(short: char, takes: FlagValueKind, reason: &'static str) -> Flag {
    Flag {
        short: Some(short),
        long: None,
        takes,
        help: "Refused",
        doc: reason,
        scp: ScpCompatibility::Refused(reason),
        group: FlagGroup::Copying,
        overrides: &[],
        set: |_, _| Ok(()),
    }
}
