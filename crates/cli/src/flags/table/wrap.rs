use lab::path::Dscp;

use crate::flags::flag::{Flag, FlagGroup, FlagValueKind};
use crate::flags::low::{ReportDestination, WrapArgs};

/// The flags of `longhaul wrap`.
pub(super) const ROWS: &[Flag<WrapArgs>] = &[
    Flag::ours(
        FlagGroup::Sockets,
        ("always", FlagValueKind::Nothing),
        "Tune every connection at its start, including nearby ones",
        "Tune every connection at its start, including those within this machine and its network. \
         By default the decision is made at the first write, when the handshake has shown the \
         round-trip time: connections below 1 ms are left alone.",
        |args, _| {
            args.always = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Sockets,
        ("no-tune", FlagValueKind::Nothing),
        "Tune no connection: only use --route and --report",
        "Tune no connection: only use --route and --report.",
        |args, _| {
            args.no_tune = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Sockets,
        ("dscp", FlagValueKind::Value("VALUE")),
        "Mark packets with this DSCP: a name (CS1, AF21, EF, LE, ...) or 0 to 63",
        "Mark packets of tuned connections with this DSCP instead of the program's: a name (CS0 to \
         CS7, AF11 to AF43, VA, EF, LE, none) or a number from 0 to 63. By default packets are not \
         marked.",
        |args, given| {
            args.dscp = given.text()?.parse::<Dscp>()?;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Sockets,
        ("congestion", FlagValueKind::Value("NAME")),
        "Use this TCP congestion control (cubic, bbr, ...) if the kernel permits it",
        "Use this TCP congestion control algorithm of the kernel for connections that have sent 4 \
         MiB over a round trip of 4 ms or more: one of those that `sysctl \
         net.ipv4.tcp_allowed_congestion_control` lists, or, for root, any that the kernel has. By \
         default BBR is used if the kernel permits it.",
        |args, given| {
            args.congestion = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Wrapping,
        ("route", FlagValueKind::Values("DEST=VIA")),
        "Redirect connections to DEST to the relay at VIA",
        "Redirect connections to DEST to the relay at VIA; may be repeated, and the first match \
         counts. DEST is HOST[:PORT], ADDR[/BITS][:PORT] (IPv6 in brackets if a port follows) or \
         *[:PORT]. VIA is HOST:PORT, the LISTEN address of a longhaul relay that leads to DEST, or \
         socks5://HOST:PORT. Names are resolved when the program starts. If the relay refuses the \
         connection, it is made directly.",
        |args, given| {
            args.routes = given.texts()?;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Wrapping,
        ("filter", FlagValueKind::Values("DEST")),
        "Relay connections to DEST, to find delays in the program's socket use",
        "Relay the bytes of connections to DEST (as in --route) between the program and its \
         socket; may be repeated. longhaul holds the socket, and the program has one end of a \
         socketpair. If a transfer is faster this way, the program's use of its socket slows it \
         down; --report shows which side waited for the other. This is for diagnosis only: each \
         byte is copied twice more. longhaul stays until the last of these connections has ended.",
        |args, given| {
            args.filters = given.texts()?;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Output,
        ("report", FlagValueKind::OptionalValue("FILE")),
        "Report on all connections at the end, or append JSON to FILE",
        "Report on each connection of the program at the end, on standard error; or append the \
         report to FILE as JSON, one line per connection, when a connection ends. It holds the \
         bytes, the round-trip time, the retransmitted segments, the DSCP that the program wanted, \
         what was changed, and waits over 10 ms.",
        |args, given| {
            let file = given.os();
            args.report = Some(match file.is_empty() {
                true => ReportDestination::Shown,
                false => ReportDestination::Written(file.into()),
            });
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Wrapping,
        ("check", FlagValueKind::Nothing),
        "Check whether PROGRAM can be wrapped, and do not run it",
        "Check whether PROGRAM can be wrapped, say what to use instead if it cannot, and do not \
         run it.",
        |args, _| {
            args.check = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Wrapping,
        ("anyway", FlagValueKind::Nothing),
        "Run the program even if it cannot be wrapped",
        "Run the program even if it cannot be wrapped. Programs that it starts may still be.",
        |args, _| {
            args.anyway = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Wrapping,
        ("library", FlagValueKind::Nothing),
        "Print the path of the library, for LD_PRELOAD",
        "Print the path of the library, for LD_PRELOAD with the rules in LONGHAUL_WRAP.",
        |args, _| {
            args.library = true;
            Ok(())
        },
    ),
];
