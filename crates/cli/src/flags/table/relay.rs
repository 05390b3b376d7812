use std::time::Duration;

use crate::flags::argument_error::ArgumentError;
use crate::flags::flag::{Flag, FlagGroup, FlagValueKind, ScpCompatibility};
use crate::flags::low::RelayArgs;

/// The flags of `longhaul relay`, without those about pairs and about the whole process.
pub(super) const ROWS: &[Flag<RelayArgs>] = &[
    Flag::ours(
        FlagGroup::Relaying,
        ("allow", FlagValueKind::Values("CIDR")),
        "Accept clients from this network only; may be repeated",
        "Accept clients from this network, such as 192.0.2.0/24 or 2001:db8::/32, and from no \
         other; may be repeated. Other clients are reset. A LISTEN address that other machines can \
         reach is refused without this flag.",
        |args, given| {
            args.allow = given.texts()?;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Relaying,
        ("buffer", FlagValueKind::Value("SIZE")),
        "Buffer at most SIZE per direction of a connection (default 256KiB)",
        "Buffer at most SIZE per direction of a connection; the default is 256KiB. Data beyond \
         that which a slow reader has not taken stays in the kernel and with the sender. Sizes are \
         in bytes, or end in k, M, KiB or MiB.",
        |args, given| {
            args.buffer = Some(size(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Relaying,
        ("connect-timeout", FlagValueKind::Value("TIME")),
        "Give up on a target after TIME, including its name lookup (default 10s)",
        "Give up on a target after TIME, including its name lookup, and try the next one. The \
         default is 10s. Times end in ms, s, m or h.",
        |args, given| {
            args.connect_timeout = Some(time(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Relaying,
        ("idle-timeout", FlagValueKind::Value("TIME")),
        "Reset a connection on which nothing has moved for TIME",
        "Reset a connection on which nothing has moved for TIME in either direction, in the relay \
         or in the kernel. By default a connection may be idle for ever, as long as both peers \
         answer (see --keepalive).",
        |args, given| {
            args.idle_timeout = Some(time(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Relaying,
        ("half-timeout", FlagValueKind::Value("TIME")),
        "Reset an idle connection that one end has finished (default 15m)",
        "Reset a connection that one end has finished and on which nothing has moved for TIME \
         since. The default is 15m.",
        |args, given| {
            args.half_timeout = Some(time(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Relaying,
        ("max-connections", FlagValueKind::Value("N")),
        "Accept at most N connections at once (default 16384)",
        "Accept at most N connections at once; the default is 16384. Further ones are reset.",
        |args, given| {
            args.max_connections = Some(count(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Relaying,
        ("max-per-source", FlagValueKind::Value("N")),
        "Accept at most N connections at once from one address",
        "Accept at most N connections at once from one address. All IPv6 addresses of a /56 count \
         as one, unless --source-block says otherwise.",
        |args, given| {
            args.max_per_source = Some(count(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Relaying,
        ("source-block", FlagValueKind::Value("BITS:BITS")),
        "Count addresses that share the first BITS as one, for IPv4 and IPv6",
        "For --max-per-source, count addresses that share the first BITS as one, for IPv4 and for \
         IPv6. The default is 32:56. Like PerSourceNetBlockSize in sshd_config(5).",
        |args, given| {
            args.source_block = Some(given.text()?.parse()?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Relaying,
        ("rate", FlagValueKind::Value("RATE")),
        "Limit each direction of a connection to RATE",
        "Limit each direction of a connection to RATE per second, such as 10MB or 80Mbit.",
        |args, given| {
            args.rate = Some(given.text()?.parse()?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Relaying,
        ("rate-all", FlagValueKind::Value("RATE")),
        "Limit each direction of all connections together to RATE",
        "Limit each direction of all connections together to RATE per second.",
        |args, given| {
            args.rate_all = Some(given.text()?.parse()?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Relaying,
        ("health", FlagValueKind::Value("TIME")),
        "Check targets every TIME, even without clients",
        "Connect to each target every TIME and close the connection again. A dead target is then \
         noticed before a client needs it, and one that answers again is used at once. By default \
         a target that has not answered is tried last for 10 s.",
        |args, given| {
            args.health = Some(time(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Sockets,
        ("sockopt", FlagValueKind::Values("OPTS")),
        "Set socket buffers in DeleGate's format: buffsize:1024kic+1024kos",
        "Set socket options in DeleGate's format, joined by + or repeated. \
         buffsize:SIZE[kiosc][:MAP] sets a buffer of SIZE bytes (k: KiB) for receiving (i) or \
         sending (o) on the leg to the server (s) or to the client (c); if a choice is left out, \
         both are set. MAP limits it to connections that match PROTOCOL:DESTINATION:SOURCE, lists \
         of names, .domain, networks, * and !. The other options are keepalive, nokeepalive and \
         share (other processes may listen on the port). By default the kernel sizes buffers \
         itself, which is almost always better; a warning says when it would be, and when the \
         system reduces the requested size.",
        |args, given| {
            for text in given.texts()? {
                args.sockopts.add(&text)?;
            }
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Sockets,
        ("dscp", FlagValueKind::Value("NAME")),
        "Mark packets of both legs with this DSCP (default CS0: none)",
        "Mark packets of both legs with this DSCP, a name (CS1, AF11, EF) or a number. By default \
         packets are not marked, whatever the client has set, because some networks slow marked \
         traffic down.",
        |args, given| {
            args.dscp = given.text()?.parse()?;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Sockets,
        ("congestion", FlagValueKind::Value("NAME")),
        "Use this TCP congestion control on both legs",
        "Use this TCP congestion control algorithm on both legs, one that the system permits \
         (sysctl net.ipv4.tcp_allowed_congestion_control).",
        |args, given| {
            args.congestion = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Sockets,
        ("notsent-lowat", FlagValueKind::Value("SIZE")),
        "Let the kernel hold at most SIZE of unsent data (default 1MiB)",
        "Let the kernel hold at most SIZE of unsent data (TCP_NOTSENT_LOWAT). The default is 1MiB.",
        |args, given| {
            let size = size(&given.text()?)?;
            args.notsent_lowat = Some(u32::try_from(size).map_err(|_| "is too large".to_owned())?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Sockets,
        ("keepalive", FlagValueKind::Value("TIMES")),
        "Probe idle connections: IDLE[/INTERVAL/COUNT], or off (default 60s/10s/6)",
        "Probe connections that were idle for IDLE, every INTERVAL, and end those that do not \
         answer COUNT probes. The default is 60s/10s/6. off leaves dead peers undetected.",
        |args, given| {
            args.keepalive = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Sockets,
        ("mptcp", FlagValueKind::Nothing),
        "Use Multipath TCP with peers that support it",
        "Use Multipath TCP (RFC 8684) on both legs, with peers that support it. Where the kernel \
         cannot splice such connections, their bytes are copied instead.",
        |args, _| {
            args.mptcp = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Sockets,
        ("fastopen", FlagValueKind::Nothing),
        "Use TCP Fast Open: send the first data with the SYN",
        "Use TCP Fast Open (RFC 7413): send the first data with the SYN, if both ends support it \
         and the client speaks first. Data in a SYN may arrive twice.",
        |args, _| {
            args.fastopen = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Sockets,
        ("bind", FlagValueKind::Values("ADDRESS")),
        "Connect to targets from this local address; may be repeated",
        "Connect to targets of this address's family from this local address; may be repeated. \
         With several addresses, each TCP connection uses the next one, and another if a \
         connection from it fails. The stripes of a pair thus leave from all addresses at once, \
         and each carries what its path can take. The system's routing rules decide which \
         interface an address uses (ip-rule(8)).",
        |args, given| {
            let texts = given.texts()?.into_iter();
            let parsed = texts.map(|text| text.parse().map_err(|_| "is not an IP address"));
            args.bind = parsed.collect::<Result<_, _>>()?;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Sockets,
        ("interface", FlagValueKind::Values("NAME")),
        "Connect to targets through this network interface; may be repeated",
        "Connect to targets through this network interface (SO_BINDTODEVICE); may be repeated. \
         Several interfaces are used in turn, like the addresses of --bind. With as many of \
         --bind, the first address goes with the first interface, and so on.",
        |args, given| {
            args.interface = given.texts()?;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Sockets,
        ("keep-address", FlagValueKind::Nothing),
        "Connect to targets from the client's own address (Linux, privileged)",
        "Connect to targets from the client's own address, with a port that the kernel chooses \
         (IP_TRANSPARENT). This needs CAP_NET_ADMIN, replies that return through this machine, and \
         firewall rules that keep them here (longhaul relay rules).",
        |args, _| {
            args.keep_address = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Relaying,
        ("to", FlagValueKind::Values("HOST:PORT")),
        "Allow this target for socks5, http, redirect and tproxy; may be repeated",
        "Allow clients of a LISTEN with socks5, http, redirect or tproxy to go to HOST:PORT and to \
         no other target; may be repeated. HOST is a name, *.example.com, a network or *; PORT is \
         a number or *. This machine's own addresses and link-local addresses are allowed only if \
         HOST is that address, a network of it, localhost or the name of this machine; * and \
         networks that hold all addresses cover other machines only.",
        |args, given| {
            args.permits = given.texts()?;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Relaying,
        ("entry-timeout", FlagValueKind::Value("TIME")),
        "Reset clients that do not finish their header within TIME (default 10s)",
        "Reset clients that do not finish what precedes their data (a PROXY header, a TLS \
         handshake, a request) within TIME. The default is 10s.",
        |args, given| {
            args.entry_timeout = Some(time(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Tls,
        ("cert", FlagValueKind::Value("FILE")),
        "For tls: our certificate chain (PEM), our own certificate first",
        "For tls: our certificate chain (PEM), our own certificate first. A LISTEN with tls needs \
         it; targets receive it if they ask for one.",
        |args, given| {
            args.tls.cert = Some(given.os().into());
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Tls,
        ("key", FlagValueKind::Value("FILE")),
        "For tls: the private key of our certificate (PEM)",
        "For tls: the private key of our certificate (PEM).",
        |args, given| {
            args.tls.key = Some(given.os().into());
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Tls,
        ("ca", FlagValueKind::Value("FILE")),
        "For tls: trust these authorities for targets (PEM; default: the system's)",
        "For tls: trust these authorities for the certificates of targets (PEM). The default is \
         those that the system trusts. A target must always prove its name.",
        |args, given| {
            args.tls.ca = Some(given.os().into());
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Tls,
        ("client-ca", FlagValueKind::Value("FILE")),
        "For tls: require client certificates signed by these authorities",
        "For tls: require client certificates that are signed by these authorities (PEM). By \
         default clients need no certificate.",
        |args, given| {
            args.tls.client_ca = Some(given.os().into());
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Tls,
        ("client-name", FlagValueKind::Values("NAME")),
        "For tls: accept only clients whose certificate has NAME; may be repeated",
        "For tls: accept only clients whose certificate has NAME, a DNS name or an address, among \
         its subject alternative names; may be repeated.",
        |args, given| {
            args.tls.client_names = given.texts()?;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Tls,
        ("server-name", FlagValueKind::Value("NAME")),
        "For tls: expect this name from the target (default: that of TARGET)",
        "For tls: ask the target for this name, which it must prove. The default is the name in \
         TARGET.",
        |args, given| {
            args.tls.server_name = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Tls,
        ("alpn", FlagValueKind::Values("NAME")),
        "For tls: negotiate this protocol (ALPN); may be repeated",
        "For tls: negotiate this protocol (ALPN); may be repeated, in order of preference.",
        |args, given| {
            args.tls.alpn = given.texts()?;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Tls,
        ("tls-min", FlagValueKind::Choice("VERSION", &["1.2", "1.3"])),
        "For tls: accept no version older than this: 1.2 or 1.3 (default 1.2)",
        "For tls: accept no version older than VERSION, 1.2 or 1.3. The default is 1.2.",
        |args, given| {
            args.tls.newest_only = given.text()? == "1.3";
            Ok(())
        },
    ),
    Flag {
        short: Some('q'),
        long: Some("quiet"),
        takes: FlagValueKind::Nothing,
        help: "Do not log each connection when it ends",
        doc: "Do not log each connection when it ends, however it ended; other errors are still logged.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Output,
        overrides: &[],
        set: |args, _| {
            args.quiet = true;
            Ok(())
        },
    },
    Flag {
        short: Some('v'),
        long: Some("verbose"),
        takes: FlagValueKind::Repeats,
        help: "Log more details on standard error",
        doc: "Log more details on standard error.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Output,
        overrides: &[],
        set: |args, given| {
            args.verbose = given.times;
            Ok(())
        },
    },
];

/// Parses a number of bytes: 4096, 64k, 256KiB, 1M.
pub(super) fn size(text: &str) -> Result<usize, ArgumentError> {
    let wrong = || ArgumentError::from("is not a size such as 4096, 64KiB or 1MiB");
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let number: usize = number.parse().map_err(|_| wrong())?;
    let unit = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "kb" => 1000,
        "m" | "mib" => 1 << 20,
        "mb" => 1_000_000,
        _ => return Err(wrong()),
    };
    let bytes = number.saturating_mul(unit);
    match (1..=1 << 30).contains(&bytes) {
        true => Ok(bytes),
        false => Err("is not between 1 byte and 1 GiB".into()),
    }
}

/// Parses a span of time: 500ms, 10s, 15m, 2h; seconds without a unit.
pub(crate) fn time(text: &str) -> Result<Duration, ArgumentError> {
    let wrong = || ArgumentError::from("is not a time such as 500ms, 10s or 15m");
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let unit = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    let milliseconds = number.saturating_mul(unit);
    match (1..=366 * 24 * 3_600_000).contains(&milliseconds) {
        true => Ok(Duration::from_millis(milliseconds)),
        false => Err("is not between a millisecond and a year".into()),
    }
}

pub(super) fn count(text: &str) -> Result<usize, ArgumentError> {
    let count = text
        .parse()
        .ok()
        .filter(|count| (1..=1_000_000).contains(count));
    count.ok_or_else(|| "is not a number between 1 and 1000000".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times() {
        for (text, bytes) in [
            ("1", 1),
            ("4096", 4096),
            ("64k", 65536),
            ("1MiB", 1 << 20),
            ("5kB", 5000),
        ] {
            assert_eq!(size(text).unwrap(), bytes, "{text}");
        }
        for text in [
            "",
            "0",
            "k",
            "-1",
            "2G",
            "1.5M",
            "9999999999999999999999",
            "2000MiB",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
        for (text, ms) in [
            ("500ms", 500),
            ("10", 10_000),
            ("10s", 10_000),
            ("15m", 900_000),
            ("2h", 7_200_000),
        ] {
            assert_eq!(time(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for text in ["", "0", "s", "1d", "-1s", "99999999999999h"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
