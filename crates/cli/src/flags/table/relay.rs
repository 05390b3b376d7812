use std::time::Duration;

use crate::flags::flag::{Flag, Group, Scp, ValueKind};
use crate::flags::low::RelayArgs;

/// The flags of `longhaul relay`, without those about pairs and about the whole process.
pub(super) const ROWS: &[Flag<RelayArgs>] = &[
    Flag::ours(
        Group::Relaying,
        ("allow", ValueKind::Values("CIDR")),
        "Let in whoever comes from this network; may be repeated",
        "Let in whoever comes from this network, as 192.0.2.0/24 or 2001:db8::/32, and nobody \
              else; may be repeated. Who comes from elsewhere is reset. An entrance that others \
              than this machine can come to is not opened without it.",
        |args, given| {
            args.allow = given.texts()?;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Relaying,
        ("buffer", ValueKind::Value("SIZE")),
        "Hold SIZE of each direction of a connection at most (256KiB)",
        "Hold SIZE of each direction of a connection at most, 256KiB if it is not given: what \
              a slow reader has not taken stays with the sender beyond that, and with the kernel. \
              Sizes are bytes, or have k, M, KiB or MiB.",
        |args, given| {
            args.buffer = Some(size(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Relaying,
        ("connect-timeout", ValueKind::Value("TIME")),
        "Give a target up after TIME, names included (10s)",
        "Give a target up after TIME, the look-up of its name included, and try the next; 10s \
              if it is not given. Times have ms, s, m or h.",
        |args, given| {
            args.connect_timeout = Some(time(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Relaying,
        ("idle-timeout", ValueKind::Value("TIME")),
        "Reset a connection on which nothing has moved for TIME",
        "Reset a connection on which nothing has moved for TIME, in either direction, neither \
              here nor in the kernel. Without it a connection may be idle for ever, as long as the \
              other ends answer (see --keepalive).",
        |args, given| {
            args.idle_timeout = Some(time(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Relaying,
        ("half-timeout", ValueKind::Value("TIME")),
        "The same for connections of which one end has finished (15m)",
        "Reset a connection of which one end has finished and on which nothing has moved for \
              TIME since, 15m if it is not given.",
        |args, given| {
            args.half_timeout = Some(time(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Relaying,
        ("max-connections", ValueKind::Value("N")),
        "Let in N at once at most (16384)",
        "Let in N connections at once at most, 16384 if it is not given; more are reset.",
        |args, given| {
            args.max_connections = Some(count(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Relaying,
        ("max-per-source", ValueKind::Value("N")),
        "Let in N from one address at once at most",
        "Let in N connections from one address at once at most; the addresses of a /56 of \
              IPv6 count as one, unless --source-block says otherwise.",
        |args, given| {
            args.max_per_source = Some(count(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Relaying,
        ("source-block", ValueKind::Value("BITS:BITS")),
        "Count addresses with the same first BITS as one, of IPv4 and of IPv6",
        "For --max-per-source, count addresses with the same first BITS as one: of IPv4, and of IPv6. \
              Without it 32:56. As PerSourceNetBlockSize of sshd_config(5).",
        |args, given| {
            args.source_block = Some(given.text()?.parse()?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Relaying,
        ("rate", ValueKind::Value("RATE")),
        "Move RATE at most in each direction of a connection",
        "Move RATE at most in each direction of a connection, as 10MB or 80Mbit, a second.",
        |args, given| {
            args.rate = Some(given.text()?.parse()?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Relaying,
        ("rate-all", ValueKind::Value("RATE")),
        "Move RATE at most in each direction of all together",
        "Move RATE at most in each direction of all connections together.",
        |args, given| {
            args.rate_all = Some(given.text()?.parse()?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Relaying,
        ("health", ValueKind::Value("TIME")),
        "Look after targets each TIME, whether anybody comes or not",
        "Connect to each target each TIME and go again, so that one that is dead is known before \
              somebody comes, and one that answers again is used at once. Without it a target that \
              has not answered is tried last for 10 s.",
        |args, given| {
            args.health = Some(time(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Sockets,
        ("sockopt", ValueKind::Values("OPTS")),
        "Buffers of the kernel, as DeleGate has them: buffsize:1024kic+1024kos",
        "Socket options as DeleGate has them, joined by + or repeated: \
              buffsize:SIZE[kiosc][:MAP], of SIZE bytes (k: KiB), to receive (i) or to send (o), \
              of the leg to the server (s) or to the client (c), both where neither is said, for \
              connections that PROTOCOL:DESTINATION:SOURCE fits, lists with names, .domain, \
              networks, * and !; keepalive, nokeepalive, share (others may listen at the port). \
              Without it the kernel tunes buffers by itself, which is better almost everywhere; a \
              warning tells where it would be or where the system cuts what is asked for.",
        |args, given| {
            for text in given.texts()? {
                args.sockopts.add(&text)?;
            }
            Ok(())
        },
    ),
    Flag::ours(
        Group::Sockets,
        ("dscp", ValueKind::Value("NAME")),
        "Mark packets of both legs so (CS0: none)",
        "Mark packets of both legs so, by name (CS1, AF11, EF) or number. Without it they \
              have no mark, whatever the client has set: some networks hold marked traffic down.",
        |args, given| {
            args.dscp = given.text()?.parse()?;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Sockets,
        ("congestion", ValueKind::Value("NAME")),
        "Use this congestion control on both legs",
        "Use this congestion control on both legs, of those that the system lets us have \
              (sysctl net.ipv4.tcp_allowed_congestion_control).",
        |args, given| {
            args.congestion = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Sockets,
        ("notsent-lowat", ValueKind::Value("SIZE")),
        "Let the kernel hold SIZE that is not sent yet (1MiB)",
        "Let the kernel hold SIZE that it has not sent yet, 1MiB if it is not given \
              (TCP_NOTSENT_LOWAT).",
        |args, given| {
            let size = size(&given.text()?)?;
            args.notsent_lowat = Some(u32::try_from(size).map_err(|_| "is too large".to_owned())?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Sockets,
        ("keepalive", ValueKind::Value("TIMES")),
        "Probe idle connections: IDLE[/INTERVAL/COUNT] (60s/10s/6), or off",
        "Probe connections that are idle for IDLE, each INTERVAL, and end those that COUNT \
              probes have brought no answer from; 60s/10s/6 if it is not given. off leaves dead \
              peers undetected.",
        |args, given| {
            args.keepalive = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Sockets,
        ("mptcp", ValueKind::Nothing),
        "Use Multipath TCP with whoever can",
        "Use Multipath TCP (RFC 8684) with whoever can, on both legs. Its bytes are copied, \
              not spliced, where the kernel cannot.",
        |args, _| {
            args.mptcp = true;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Sockets,
        ("fastopen", ValueKind::Nothing),
        "Send the first data with the SYN, where both ends can",
        "Send the first data with the SYN, where both ends can (RFC 7413) and where the \
              client speaks first. Data in a SYN may arrive twice.",
        |args, _| {
            args.fastopen = true;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Sockets,
        ("bind", ValueKind::Values("ADDRESS")),
        "Connect from this address of this machine; may be repeated",
        "Connect from this address of this machine, to targets of its family; may be repeated. Of \
              several, each connection of TCP has the next, and another where one cannot be had: \
              those of a pair leave by all of them at once, and carry what each of them takes. \
              Which way packets from an address leave by is the system's to know (ip-rule(8)).",
        |args, given| {
            let texts = given.texts()?.into_iter();
            let parsed = texts.map(|text| match text.parse() {
                Ok(address) => Ok(address),
                Err(_) => Err(format!(
                    "'{}' is no address",
                    wire::escape::name(text.as_bytes())
                )),
            });
            args.bind = parsed.collect::<Result<_, _>>()?;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Sockets,
        ("interface", ValueKind::Values("NAME")),
        "Connect by this interface; may be repeated",
        "Connect by this network interface (SO_BINDTODEVICE); may be repeated: several are used as \
              those of --bind are. With as many of --bind, the first goes with the first, and so on.",
        |args, given| {
            args.interface = given.texts()?;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Sockets,
        ("keep-address", ValueKind::Nothing),
        "Connect from the client's own address, as whoever may (Linux)",
        "Connect to targets from the client's own address, with a port of the kernel's choice \
              (IP_TRANSPARENT): it takes CAP_NET_ADMIN, answers that come back through this \
              machine, and rules that keep them here (longhaul relay rules).",
        |args, _| {
            args.keep_address = true;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Relaying,
        ("to", ValueKind::Values("HOST:PORT")),
        "Let clients that name their target themselves go there; may be repeated",
        "Let clients of an entrance with socks5, http, redirect or tproxy go there, and nowhere \
              else; may be repeated. HOST is a name, *.example.com, a network or *, PORT a number \
              or *. Addresses of this machine and its links are let in only by a HOST that is the address, a \
              network of it, localhost or the name of this machine; a * and a network of all addresses \
              lead to other machines.",
        |args, given| {
            args.permits = given.texts()?;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Relaying,
        ("entry-timeout", ValueKind::Value("TIME")),
        "Reset who has not said what comes before its bytes in TIME (10s)",
        "Reset a client that has not said what comes before its bytes (a PROXY header, a TLS \
              handshake, a request) in TIME, 10s if it is not given.",
        |args, given| {
            args.entry_timeout = Some(time(&given.text()?)?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Tls,
        ("cert", ValueKind::Value("FILE")),
        "For tls: our certificates (PEM), ours first",
        "For tls: our certificates (PEM), ours first. An entrance needs them; targets are \
              shown them if they ask.",
        |args, given| {
            args.tls.cert = Some(given.os().into());
            Ok(())
        },
    ),
    Flag::ours(
        Group::Tls,
        ("key", ValueKind::Value("FILE")),
        "For tls: the private key of our certificate (PEM)",
        "For tls: the private key of our certificate (PEM).",
        |args, given| {
            args.tls.key = Some(given.os().into());
            Ok(())
        },
    ),
    Flag::ours(
        Group::Tls,
        ("ca", ValueKind::Value("FILE")),
        "For tls: who vouches for targets (PEM; whoever the system trusts)",
        "For tls: who vouches for the certificates of targets (PEM); whoever the system \
              trusts, if it is not given. A target always has to prove its name.",
        |args, given| {
            args.tls.ca = Some(given.os().into());
            Ok(())
        },
    ),
    Flag::ours(
        Group::Tls,
        ("client-ca", ValueKind::Value("FILE")),
        "For tls: who vouches for clients, which need a certificate then",
        "For tls: who vouches for the certificates of clients (PEM). Without it clients need \
              none.",
        |args, given| {
            args.tls.client_ca = Some(given.os().into());
            Ok(())
        },
    ),
    Flag::ours(
        Group::Tls,
        ("client-name", ValueKind::Values("NAME")),
        "For tls: let in clients whose certificate has NAME; may be repeated",
        "For tls: let in clients whose certificate has NAME, a DNS name or an address among \
              its alternative names, and no others; may be repeated.",
        |args, given| {
            args.tls.client_names = given.texts()?;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Tls,
        ("server-name", ValueKind::Value("NAME")),
        "For tls: the name that a target has to have (that of TARGET)",
        "For tls: the name that a target is asked for and has to prove, that of TARGET if it \
              is not given.",
        |args, given| {
            args.tls.server_name = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Tls,
        ("alpn", ValueKind::Values("NAME")),
        "For tls: agree upon this protocol; may be repeated",
        "For tls: agree upon this protocol (ALPN); may be repeated, the preferred first.",
        |args, given| {
            args.tls.alpn = given.texts()?;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Tls,
        ("tls-min", ValueKind::Choice("VERSION", &["1.2", "1.3"])),
        "For tls: nothing older than VERSION: 1.2 or 1.3 (1.2)",
        "For tls: speak nothing older than VERSION, 1.2 or 1.3; 1.2 if it is not given.",
        |args, given| {
            args.tls.newest_only = given.text()? == "1.3";
            Ok(())
        },
    ),
    Flag {
        short: Some('q'),
        long: Some("quiet"),
        takes: ValueKind::Nothing,
        help: "Say nothing of connections that end",
        doc: "Say nothing of connections that end; what goes wrong is said.",
        scp: Scp::Ours,
        group: Group::Output,
        overrides: &[],
        set: |args, _| {
            args.quiet = true;
            Ok(())
        },
    },
    Flag {
        short: Some('v'),
        long: Some("verbose"),
        takes: ValueKind::Repeats,
        help: "Say more on standard error",
        doc: "Say more on standard error.",
        scp: Scp::Ours,
        group: Group::Output,
        overrides: &[],
        set: |args, given| {
            args.verbose = given.times;
            Ok(())
        },
    },
];

/// Parses a number of bytes: 4096, 64k, 256KiB, 1M.
pub(super) fn size(text: &str) -> Result<usize, String> {
    let wrong = || "is not a size such as 4096, 64KiB or 1MiB".to_owned();
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
        false => Err("is not between 1 byte and 1 GiB".to_owned()),
    }
}

/// Parses a span of time: 500ms, 10s, 15m, 2h; seconds without a unit.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let wrong = || "is not a time such as 500ms, 10s or 15m".to_owned();
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
        false => Err("is not between a millisecond and a year".to_owned()),
    }
}

pub(super) fn count(text: &str) -> Result<usize, String> {
    let count = text
        .parse()
        .ok()
        .filter(|count| (1..=1_000_000).contains(count));
    count.ok_or_else(|| "is not a number between 1 and 1000000".to_owned())
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
