use lab::path::Dscp;

use crate::flags::flag::{Flag, Group, ValueKind};
use crate::flags::low::{Report, WrapArgs};

/// The flags of `longhaul wrap`.
pub(super) const ROWS: &[Flag<WrapArgs>] = &[
    Flag::ours(
        Group::Sockets,
        ("always", ValueKind::Nothing),
        "Tune every connection, near ones too, when it begins",
        "Tune every connection when it begins, those of this machine and its network too. \
         Without it the first write decides, when the handshake has told the round trip: under \
         1 ms a connection is left alone.",
        |args, _| {
            args.always = true;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Sockets,
        ("no-tune", ValueKind::Nothing),
        "Tune none: for --route and --report alone",
        "Tune no connection: for --route and --report alone.",
        |args, _| {
            args.no_tune = true;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Sockets,
        ("dscp", ValueKind::Value("VALUE")),
        "Mark packets with this DSCP: a name (CS1, AF21, EF, LE, ...) or 0 to 63",
        "Mark packets of tuned connections with this DSCP in place of the program's: a name (CS0 \
         to CS7, AF11 to AF43, VA, EF, LE, none) or a number from 0 to 63. Without it packets \
         are not marked.",
        |args, given| {
            args.dscp = given.text()?.parse::<Dscp>()?;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Sockets,
        ("congestion", ValueKind::Value("NAME")),
        "Use this TCP congestion control: cubic, bbr, ... as the kernel permits",
        "Use this congestion control of the kernel's for connections that have sent 4 MiB over a \
         round trip of 4 ms or more: one of those that `sysctl \
         net.ipv4.tcp_allowed_congestion_control` lists, or for root any that the kernel has. \
         Without it BBR is used where the kernel permits it.",
        |args, given| {
            args.congestion = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Wrapping,
        ("route", ValueKind::Values("DEST=VIA")),
        "Lead connections to DEST to the relay at VIA instead",
        "Lead connections to DEST to the relay at VIA instead; may be repeated, and the first \
         that fits counts. DEST is HOST[:PORT], ADDR[/BITS][:PORT] (IPv6 in brackets where a port \
         follows) or *[:PORT], VIA is HOST:PORT, an entrance of longhaul relay that leads to DEST, \
         or socks5://HOST:PORT. Names are resolved when the program is started. Where the relay \
         refuses, the connection is made without it.",
        |args, given| {
            args.routes = given.texts()?;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Wrapping,
        ("filter", ValueKind::Values("DEST")),
        "Carry connections to DEST, to see whether the program is slow with its own",
        "Carry the bytes of connections to DEST (as in --route) between the program and its socket, \
         which is this process's then, and the program has one end of a socketpair; may be \
         repeated. What is faster with it than without is slow by the program's own way with its \
         socket; --report says who waited for whom. It is for finding out and not for use: each \
         byte is copied twice more. longhaul stays until the last of these connections has ended.",
        |args, given| {
            args.filters = given.texts()?;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Output,
        ("report", ValueKind::OptionalValue("FILE")),
        "Say what the connections did, at the end; or append it to FILE as JSON",
        "Say at the end what each connection of the program did, on standard error, or append it \
         to FILE as JSON, one a line, as connections end: bytes, round trip, segments sent again, \
         the mark that the program wanted, what was changed, and waits over 10 ms.",
        |args, given| {
            let file = given.os();
            args.report = Some(match file.is_empty() {
                true => Report::Shown,
                false => Report::Written(file.into()),
            });
            Ok(())
        },
    ),
    Flag::ours(
        Group::Wrapping,
        ("check", ValueKind::Nothing),
        "Say whether PROGRAM can be wrapped, and run nothing",
        "Say whether PROGRAM can be wrapped, and what to use where it cannot; run nothing.",
        |args, _| {
            args.check = true;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Wrapping,
        ("anyway", ValueKind::Nothing),
        "Run the program though it cannot be wrapped",
        "Run the program though it cannot be wrapped: programs that it starts may be.",
        |args, _| {
            args.anyway = true;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Wrapping,
        ("library", ValueKind::Nothing),
        "Print where the library is, for LD_PRELOAD",
        "Print where the library is, for LD_PRELOAD, with the rules in LONGHAUL_WRAP.",
        |args, _| {
            args.library = true;
            Ok(())
        },
    ),
];
