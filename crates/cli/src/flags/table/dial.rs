use std::time::Duration;

use lab::path::Dscp;

use crate::flags::flag::{Flag, FlagInput, Group, ValueKind};
use crate::flags::low::{DialArgs, Family, SshConfigArgs, When};

/// The flags of `longhaul dial`.
pub(super) const ROWS: &[Flag<DialArgs>] = &[
    Flag::ours(
        Group::Connection,
        (
            "fdpass",
            ValueKind::Choice("WHEN", &["auto", "always", "never"]),
        ),
        "Hand the socket over: auto, always or never",
        "Hand the socket to whoever is at the other end of standard output, as ProxyUseFdpass has \
         it: auto, when ssh has started this program so; always; or never, and carry the bytes.",
        |args, given| {
            args.fdpass = When::of(&given.text()?);
            Ok(())
        },
    ),
    Flag {
        short: Some('4'),
        overrides: &["ipv6"],
        ..Flag::ours(
            Group::Connection,
            ("ipv4", ValueKind::Nothing),
            "Use IPv4 addresses only",
            "Use IPv4 addresses only.",
            |args, _| {
                args.family = Family::V4;
                Ok(())
            },
        )
    },
    Flag {
        short: Some('6'),
        overrides: &["ipv4"],
        ..Flag::ours(
            Group::Connection,
            ("ipv6", ValueKind::Nothing),
            "Use IPv6 addresses only",
            "Use IPv6 addresses only.",
            |args, _| {
                args.family = Family::V6;
                Ok(())
            },
        )
    },
    Flag::ours(
        Group::Connection,
        ("bind", ValueKind::Value("ADDR")),
        "Connect from this address of the machine",
        "Connect from this address of the machine.",
        |args, given| {
            let address = given.text()?.parse();
            args.bind = Some(address.map_err(|_| "is no address".to_owned())?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Connection,
        ("connect-timeout", ValueKind::Value("SECONDS")),
        "Give up after so many seconds (20)",
        "Give up after so many seconds, 20 without it. Addresses of a host are tried a quarter of \
         a second apart, and the first that answers counts.",
        |args, given| {
            let seconds: u32 = number(&given)?;
            args.timeout = Duration::from_secs(seconds.into());
            Ok(())
        },
    ),
    Flag::ours(
        Group::Connection,
        ("attempts", ValueKind::Value("N")),
        "Try so often, a second apart (1)",
        "Try so often, a second apart, within the same time; once without it.",
        |args, given| {
            args.attempts = number(&given)?;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Connection,
        ("dscp", ValueKind::Value("VALUE")),
        "Mark packets with this DSCP: a name (CS1, AF21, EF, LE, ...) or 0 to 63",
        "Mark packets with this DSCP: a name (CS0 to CS7, AF11 to AF43, VA, EF, LE, none) or a \
         number from 0 to 63. Without it packets are not marked. ssh marks them again later \
         unless it is told IPQoS none.",
        |args, given| {
            args.dscp = given.text()?.parse::<Dscp>()?;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Connection,
        ("congestion", ValueKind::Value("NAME")),
        "Use this TCP congestion control: cubic, bbr, ... as the kernel permits",
        "Use this congestion control of the kernel's for TCP: one of those that `sysctl \
         net.ipv4.tcp_allowed_congestion_control` lists, or for root any that the kernel has. \
         Without it BBR is used where the round trip is 4 ms or more and the kernel permits it, \
         else the system's own.",
        |args, given| {
            args.congestion = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Pair,
        ("via", ValueKind::Value("HOSTS")),
        "Go through a half of a pair at each of these hosts, started over ssh",
        "Go to HOST through these hosts, [user@]host[:port], separated by commas: at each a half of \
         a pair of relays is started over ssh, and the last connects to HOST. The same as longhaul \
         relay --via HOSTS - HOST:PORT. Bytes are carried then, so that ssh is told ProxyUseFdpass \
         no.",
        |args, given| {
            args.via = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Pair,
        ("pair", ValueKind::Value("RELAY")),
        "Go through the facing relay at RELAY (host:port), wherever that leads",
        "Go through the facing relay at RELAY, host:port. Where that leads its own TARGET says, \
         which should be HOST's: ssh finds out by the host key. Keys are those of longhaul relay: \
         $XDG_STATE_HOME/longhaul/pair_key is ours, $XDG_CONFIG_HOME/longhaul/known_pairs has the \
         relay's. Bytes are carried then, so that ssh is told ProxyUseFdpass no.",
        |args, given| {
            args.pair = Some(given.text()?);
            Ok(())
        },
    ),
    Flag {
        short: Some('F'),
        ..Flag::ours(
            Group::Pair,
            ("ssh-config", ValueKind::Value("FILE")),
            "With --via: read this instead of ~/.ssh/config",
            "With --via: read this ssh_config file instead of the user's and the system's.",
            |args, given| {
                args.ssh_config = Some(given.os().into());
                Ok(())
            },
        )
    },
];

/// The flags of `longhaul ssh-config`.
pub(super) const SSH_CONFIG: &[Flag<SshConfigArgs>] = &[
    Flag::ours(
        Group::Connection,
        ("write", ValueKind::Nothing),
        "Append the lines to ~/.ssh/config, after asking",
        "Append the lines to ~/.ssh/config, after asking. What stands there before counts more, \
         as ssh reads it, and nothing of it is changed.",
        |args, _| {
            args.write = true;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Connection,
        ("yes", ValueKind::Nothing),
        "Do not ask",
        "With --write, do not ask.",
        |args, _| {
            args.yes = true;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Connection,
        ("file", ValueKind::Value("FILE")),
        "Write to FILE rather than to ~/.ssh/config",
        "Write to FILE rather than to ~/.ssh/config.",
        |args, given| {
            args.file = Some(given.os().into());
            Ok(())
        },
    ),
];

fn number(given: &FlagInput) -> Result<u32, String> {
    match given.text()?.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("is no number above zero".to_owned()),
    }
}
