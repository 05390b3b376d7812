use std::time::Duration;

use lab::path::Dscp;

use crate::flags::argument_error::ArgumentError;
use crate::flags::flag::{Flag, FlagGroup, FlagInput, FlagValueKind};
use crate::flags::low::{AddressFamilyArg, DialArgs, SshConfigArgs, TerminalSetting};

/// The flags of `longhaul dial`.
pub(super) const ROWS: &[Flag<DialArgs>] = &[
    Flag::ours(
        FlagGroup::Connection,
        (
            "fdpass",
            FlagValueKind::Choice("WHEN", &["auto", "always", "never"]),
        ),
        "Pass the socket to ssh instead of relaying: auto, always or never",
        "Pass the connected socket over standard output, as ssh's ProxyUseFdpass expects it. auto, \
         the default, does so if ssh started this program for that; always does so in any case; \
         never relays the bytes instead.",
        |args, given| {
            args.fdpass = TerminalSetting::of(&given.text()?);
            Ok(())
        },
    ),
    Flag {
        short: Some('4'),
        overrides: &["ipv6"],
        ..Flag::ours(
            FlagGroup::Connection,
            ("ipv4", FlagValueKind::Nothing),
            "Use IPv4 addresses only",
            "Use IPv4 addresses only.",
            |args, _| {
                args.family = AddressFamilyArg::V4;
                Ok(())
            },
        )
    },
    Flag {
        short: Some('6'),
        overrides: &["ipv4"],
        ..Flag::ours(
            FlagGroup::Connection,
            ("ipv6", FlagValueKind::Nothing),
            "Use IPv6 addresses only",
            "Use IPv6 addresses only.",
            |args, _| {
                args.family = AddressFamilyArg::V6;
                Ok(())
            },
        )
    },
    Flag::ours(
        FlagGroup::Connection,
        ("bind", FlagValueKind::Value("ADDR")),
        "Connect from this local address",
        "Connect from this local address.",
        |args, given| {
            let address = given.text()?.parse();
            args.bind = Some(address.map_err(|_| "is not an IP address".to_owned())?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Connection,
        ("connect-timeout", FlagValueKind::Value("SECONDS")),
        "Give up after this many seconds (default 20)",
        "Give up after this many seconds, 20 by default. The addresses of a host are tried a \
         quarter of a second apart, and the first that answers is used.",
        |args, given| {
            let seconds: u32 = number(&given)?;
            args.timeout = Duration::from_secs(seconds.into());
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Connection,
        ("attempts", FlagValueKind::Value("N")),
        "Try this many times, one second apart (default 1)",
        "Try this many times, one second apart, within the time of --connect-timeout. The default \
         is once.",
        |args, given| {
            args.attempts = number(&given)?;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Connection,
        ("dscp", FlagValueKind::Value("VALUE")),
        "Mark packets with this DSCP: a name (CS1, AF21, EF, LE, ...) or 0 to 63",
        "Mark packets with this DSCP: a name (CS0 to CS7, AF11 to AF43, VA, EF, LE, none) or a \
         number from 0 to 63. By default packets are not marked. ssh sets its own mark later \
         unless it has IPQoS none.",
        |args, given| {
            args.dscp = given.text()?.parse::<Dscp>()?;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Connection,
        ("congestion", FlagValueKind::Value("NAME")),
        "Use this TCP congestion control (cubic, bbr, ...) if the kernel permits it",
        "Use this TCP congestion control algorithm of the kernel: one of those that `sysctl \
         net.ipv4.tcp_allowed_congestion_control` lists, or, for root, any that the kernel has. By \
         default BBR is used if the round trip is 4 ms or more and the kernel permits it, \
         otherwise the system's own.",
        |args, given| {
            args.congestion = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Pair,
        ("via", FlagValueKind::Value("HOSTS")),
        "Go through relays on these hosts, started over ssh",
        "Go to HOST through these hosts, [user@]host[:port], separated by commas. A relay is \
         started on each over ssh, each two neighbours form a pair, and the last one connects to \
         HOST. Equivalent to longhaul relay --via HOSTS - HOST:PORT. The bytes are relayed, so ssh \
         needs ProxyUseFdpass no.",
        |args, given| {
            args.via = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Pair,
        ("pair", FlagValueKind::Value("RELAY")),
        "Go through the pair with the relay at RELAY (host:port)",
        "Form a pair with the relay at RELAY, host:port. The TARGET of that relay decides where \
         the connection ends; it should lead to HOST, which ssh checks by the host key. The keys \
         are those of longhaul relay: our own key in $XDG_STATE_HOME/longhaul/pair_key, and the \
         relay's in $XDG_CONFIG_HOME/longhaul/known_pairs. The bytes are relayed, so ssh needs \
         ProxyUseFdpass no.",
        |args, given| {
            args.pair = Some(given.text()?);
            Ok(())
        },
    ),
    Flag {
        short: Some('F'),
        ..Flag::ours(
            FlagGroup::Pair,
            ("ssh-config", FlagValueKind::Value("FILE")),
            "With --via: read this file instead of ~/.ssh/config",
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
        FlagGroup::Connection,
        ("write", FlagValueKind::Nothing),
        "Append the lines to ~/.ssh/config, after asking",
        "Append the lines to ~/.ssh/config, after asking. Existing lines are not changed, and take \
         precedence over the new ones, because ssh uses the first value that it finds.",
        |args, _| {
            args.write = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Connection,
        ("yes", FlagValueKind::Nothing),
        "Do not ask for confirmation",
        "With --write, do not ask for confirmation.",
        |args, _| {
            args.yes = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Connection,
        ("file", FlagValueKind::Value("FILE")),
        "Write to FILE instead of ~/.ssh/config",
        "Write to FILE instead of ~/.ssh/config.",
        |args, given| {
            args.file = Some(given.os().into());
            Ok(())
        },
    ),
];

fn number(given: &FlagInput) -> Result<u32, ArgumentError> {
    match given.text()?.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("is not a number above zero".into()),
    }
}
