use std::ops::RangeInclusive;
use std::path::PathBuf;

use lab::path::Dscp;
use ssh::transport::DisabledProtection;
use transfer::connect::RemoteServerUse;

use crate::flags::flag::{Flag, Group, Scp, ValueKind};
use crate::flags::low::{Family, When};
use crate::flags::rate::Rate;

/// The largest limit that scp takes, in kbit/s: 100 Gbit/s.
const MAX_LIMIT: u64 = 100 * 1024 * 1024;

/// Values of the flag; without a value it means the first.
const COMPRESS: &[&str] = &["always", "auto", "never"];

fn number(text: &str, range: RangeInclusive<u32>) -> Result<u32, String> {
    let number = text.parse::<u32>().ok().filter(|n| range.contains(n));
    number.ok_or_else(|| format!("is not a number from {} to {}", range.start(), range.end()))
}

/// Parses bytes with scp's units, which are powers of 1024.
fn buffer(text: &str) -> Result<u32, String> {
    let units = [('k', 10), ('m', 20), ('g', 30)];
    let unit = |c: char| units.iter().find(|(unit, _)| unit.eq_ignore_ascii_case(&c));
    let shift = text.chars().last().and_then(unit).map(|(_, shift)| *shift);
    let digits = match shift {
        Some(_) => text.get(..text.len().saturating_sub(1)),
        None => Some(text),
    };
    let bytes = digits.and_then(|digits| digits.parse::<u64>().ok());
    let bytes = bytes.and_then(|bytes| bytes.checked_mul(1 << shift.unwrap_or(0)));
    let bytes = bytes.filter(|bytes| (1024..=1 << 30).contains(bytes));
    bytes
        .and_then(|bytes| u32::try_from(bytes).ok())
        .ok_or_else(|| "has no buffer from 1024 bytes to 1g".to_owned())
}

/// Flags for reaching the host.
pub(super) const ROWS: &[Flag] = &[
    Flag {
        short: Some('P'),
        long: Some("port"),
        takes: ValueKind::Value("PORT"),
        help: "Connect to this port",
        doc: "Connect to this port of the remote host. A port in an scp:// or sftp:// address \
              goes before it.",
        scp: Scp::Same,
        group: Group::Connection,
        overrides: &[],
        set: |args, given| {
            let port = given.text()?.parse::<u16>().ok().filter(|port| *port != 0);
            args.port =
                Some(port.ok_or("is not a port (1 to 65535); rsync's -P is --progress here")?);
            Ok(())
        },
    },
    Flag {
        short: Some('i'),
        long: Some("identity"),
        takes: ValueKind::Values("FILE"),
        help: "Authenticate with this private key; may be repeated",
        doc: "Authenticate with the private key in this file. May be repeated; the keys are tried \
              in the order given, before those of ssh_config.",
        scp: Scp::Same,
        group: Group::Connection,
        overrides: &[],
        set: |args, given| {
            args.identities = given.values.into_iter().map(PathBuf::from).collect();
            Ok(())
        },
    },
    Flag {
        short: Some('J'),
        long: Some("jump"),
        takes: ValueKind::Value("HOSTS"),
        help: "Reach the host through these jump hosts, separated by commas",
        doc: "Reach the host through these jump hosts, [user@]host[:port], separated by commas, \
              in the order in which they are passed. The same as -o ProxyJump=HOSTS.",
        scp: Scp::Same,
        group: Group::Connection,
        overrides: &[],
        set: |args, given| {
            args.jump = Some(given.text()?);
            Ok(())
        },
    },
    Flag {
        short: Some('F'),
        long: Some("config"),
        takes: ValueKind::Value("FILE"),
        help: "Read this instead of ~/.ssh/config",
        doc: "Read this ssh_config file instead of the user's and the system's. \"none\" reads \
              none.",
        scp: Scp::Same,
        group: Group::Connection,
        overrides: &[],
        set: |args, given| {
            args.config = Some(given.os().into());
            Ok(())
        },
    },
    Flag {
        short: Some('o'),
        long: Some("option"),
        takes: ValueKind::Values("OPTION"),
        help: "An option as in ssh_config(5); may be repeated",
        doc: "An option in the format of ssh_config(5), such as -o ConnectTimeout=10. May be \
              repeated; the first value of an option counts. An option that longhaul does not \
              support and that would weaken or change the connection is named in a warning.",
        scp: Scp::Differs("IPQoS is not taken from here or from ssh_config; see --dscp"),
        group: Group::Connection,
        overrides: &[],
        set: |args, given| {
            args.options = given.texts()?;
            Ok(())
        },
    },
    Flag {
        short: Some('c'),
        long: Some("cipher"),
        takes: ValueKind::Value("CIPHERS"),
        help: "Use these ciphers, the first that the server has",
        doc: "Use these ciphers, separated by commas: the first that the server has too. The same \
              as -o Ciphers=CIPHERS.",
        scp: Scp::Same,
        group: Group::Connection,
        overrides: &[],
        set: |args, given| {
            args.ciphers = Some(given.text()?);
            Ok(())
        },
    },
    Flag {
        short: Some('C'),
        long: Some("compress"),
        takes: ValueKind::OptionalChoice("WHEN", COMPRESS),
        help: "Compress on the wire: always (-C), auto or never",
        doc: "Compress on the wire. always, or no value, does so with zlib. It helps on slow links \
              and with data that compress well; on fast links it slows the copy down. Where the far \
              end is longhaul, data are packed with zstd, block by block and only where they become \
              smaller, and that takes zlib's place on a host that is known to be longhaul. auto, \
              the default, does so where it pays: zstd over long paths, and where trying shows \
              that more gets through; zlib for the upload of a file to a host to which the path was \
              seen to be slow, where a quick look at the file says that it becomes small enough. \
              With the flag it does so for several files too, whose lengths on the wire then tell \
              of one what another holds, and whatever Compression in ssh_config says. never does \
              neither.",
        scp: Scp::Same,
        group: Group::Connection,
        overrides: &[],
        set: |args, given| {
            args.compress = Some(When::of(&given.text()?));
            Ok(())
        },
    },
    Flag {
        short: Some('l'),
        long: None,
        takes: ValueKind::Value("KBIT"),
        help: "Hold the rate to this many kbit/s, as scp does; see --limit",
        doc: "Hold the rate of file data to this many kbit/s. A kbit is 1024 bits here, as scp \
              counts it. --limit takes other units.",
        scp: Scp::Same,
        group: Group::Connection,
        overrides: &[],
        set: |args, given| {
            let limit = given.text()?.parse::<u64>().ok();
            let limit = limit.filter(|limit| (1..=MAX_LIMIT).contains(limit));
            args.limit_kbit =
                Some(limit.ok_or_else(|| format!("is not a limit: 1 to {MAX_LIMIT} kbit/s"))?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("limit"),
        takes: ValueKind::Value("RATE"),
        help: "Hold the rate to this: 10MB, 10MiB, 80Mbit, ... a second",
        doc: "Hold the rate of all connections together to this many bytes or bits a second: \
              10MB, 9.5MiB, 500kB, 80Mbit, 1Gbit. k, M and G are powers of 1000, Ki, Mi and Gi of \
              1024; a bare number is bytes. Between two remote hosts it holds for each of the two \
              ways, in and out of this machine. Not together with -l.",
        scp: Scp::Ours,
        group: Group::Connection,
        overrides: &[],
        set: |args, given| {
            args.limit = Some(given.text()?.parse::<Rate>()?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("background"),
        takes: ValueKind::Nothing,
        help: "Yield to all other traffic, and to other programs on this machine",
        doc: "Yield to all other traffic: take what it leaves of the path, by keeping the delay \
              that queues on the way add to 25 ms (as LEDBAT does, RFC 6817), on one connection, \
              and at the lowest priority for this machine's processors and disks. It goes by \
              TCP's round trips, which hold the queues of both directions, whoever fills them; \
              on a path that others keep full all the time it moves 16 kB/s. --dscp LE marks the \
              packets as well, for networks that know what it means (RFC 8622). Not with -S or \
              -D.",
        scp: Scp::Ours,
        group: Group::Connection,
        overrides: &[],
        set: |args, _| {
            args.background = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("connections"),
        takes: ValueKind::Value("N"),
        help: "Use this many TCP connections, 1 to 64, not as many as pay",
        doc: "Use this many TCP connections to each host, 1 to 64. Without it a copy begins with \
              one, adds more while they bring something, gives back what brings nothing, and \
              remembers for the next time what paid. Each is a login of its own; where a login \
              takes a password, a code or a touch there is one connection only.",
        scp: Scp::Ours,
        group: Group::Connection,
        overrides: &[],
        set: |args, given| {
            args.connections = Some(number(&given.text()?, 1..=64)?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("channels"),
        takes: ValueKind::Value("N"),
        help: "Use this many channels on each connection, 1 to 10",
        doc: "Use this many SFTP channels on each connection, 1 to 10, which is the most that an \
              sshd allows unless its MaxSessions was changed. Each has its own window and its own \
              sftp-server. Without it there are as many as pay. A server that allows fewer gets \
              fewer.",
        scp: Scp::Ours,
        group: Group::Connection,
        overrides: &[],
        set: |args, given| {
            args.channels = Some(number(&given.text()?, 1..=10)?);
            Ok(())
        },
    },
    Flag {
        short: Some('X'),
        long: None,
        takes: ValueKind::Value("OPTION"),
        help: "Bound SFTP requests: nrequests=N in flight, buffer=BYTES each",
        doc: "Bound SFTP requests. nrequests=N: at most N requests in flight on a channel. \
              buffer=BYTES: at most that many bytes in a READ or WRITE; k, m and g multiply by \
              1024, 1024^2 and 1024^3. Without it both follow the path and the limits of the \
              server. Use it for a server that drops requests beyond a queue of its own.",
        scp: Scp::Same,
        group: Group::Connection,
        overrides: &[],
        set: |args, given| {
            let text = given.text()?;
            match text.split_once('=') {
                Some(("nrequests", n)) => args.requests = Some(number(n, 1..=65_536)?.into()),
                Some(("buffer", bytes)) => args.buffer = Some(buffer(bytes)?),
                _ => return Err("is neither nrequests=N nor buffer=BYTES".to_owned()),
            }
            Ok(())
        },
    },
    Flag {
        short: Some('4'),
        long: Some("ipv4"),
        takes: ValueKind::Nothing,
        help: "Use IPv4 addresses only",
        doc: "Use IPv4 addresses only. Of -4 and -6 the last one given counts.",
        scp: Scp::Same,
        group: Group::Connection,
        overrides: &["ipv6"],
        set: |args, _| {
            args.family = Family::V4;
            Ok(())
        },
    },
    Flag {
        short: Some('6'),
        long: Some("ipv6"),
        takes: ValueKind::Nothing,
        help: "Use IPv6 addresses only",
        doc: "Use IPv6 addresses only. Of -4 and -6 the last one given counts.",
        scp: Scp::Same,
        group: Group::Connection,
        overrides: &["ipv4"],
        set: |args, _| {
            args.family = Family::V6;
            Ok(())
        },
    },
    Flag {
        short: Some('B'),
        long: Some("batch"),
        takes: ValueKind::Nothing,
        help: "Never ask for a password, a passphrase or a host key",
        doc: "Never ask for a password, a passphrase or whether a host key is right: what would \
              need an answer fails. The same as -o BatchMode=yes.",
        scp: Scp::Same,
        group: Group::Connection,
        overrides: &[],
        set: |args, _| {
            args.batch = true;
            Ok(())
        },
    },
    Flag {
        short: Some('A'),
        long: Some("forward-agent"),
        takes: ValueKind::Nothing,
        help: "Allow agent forwarding by the program of -S",
        doc: "Allow agent forwarding by the program of -S. Without -S it changes nothing: no \
              program that could use an agent runs on the remote host.",
        scp: Scp::Differs("only with -S"),
        group: Group::Connection,
        overrides: &[],
        set: |args, _| {
            args.forward_agent = true;
            Ok(())
        },
    },
    Flag {
        short: Some('S'),
        long: Some("program"),
        takes: ValueKind::Value("PROGRAM"),
        help: "Run this program as the connection; it must take ssh's arguments",
        doc: "Run this program as the connection instead of longhaul's own SSH. It must take the \
              arguments of ssh(1). -S ssh uses the system's ssh: for Kerberos, smart cards and \
              whatever else longhaul lacks.",
        scp: Scp::Same,
        group: Group::Connection,
        overrides: &[],
        set: |args, given| {
            args.program = Some(given.os());
            Ok(())
        },
    },
    Flag {
        short: Some('D'),
        long: Some("sftp-server"),
        takes: ValueKind::Value("PATH"),
        help: "Run this local SFTP server instead of connecting to a host",
        doc: "Run this local SFTP server program instead of connecting to a host, whose name then \
              means nothing. For tests.",
        scp: Scp::Same,
        group: Group::Connection,
        overrides: &[],
        set: |args, given| {
            args.sftp_server = Some(given.os());
            Ok(())
        },
    },
    Flag {
        short: Some('s'),
        long: None,
        takes: ValueKind::Nothing,
        help: "Use the SFTP protocol (always so)",
        doc: "Use the SFTP protocol. It is the only one, so the flag changes nothing.",
        scp: Scp::NoEffect("SFTP is the only protocol"),
        group: Group::Connection,
        overrides: &[],
        set: |_, _| Ok(()),
    },
    Flag {
        short: Some('T'),
        long: None,
        takes: ValueKind::Nothing,
        help: "Understood for scp's sake; names from a server are always checked",
        doc: "In scp, switches the check of file names from the server off. Understood, but it \
              changes nothing: names from a server are always checked. scp over SFTP has no use \
              for it either.",
        scp: Scp::NoEffect("names from a server are always checked"),
        group: Group::Connection,
        overrides: &[],
        set: |_, _| Ok(()),
    },
    Flag {
        short: None,
        long: Some("dscp"),
        takes: ValueKind::Value("VALUE"),
        help: "Mark packets with this DSCP: a name (CS1, AF21, EF, LE, ...) or 0 to 63",
        doc: "Mark packets with this DSCP: a name (CS0 to CS7, AF11 to AF43, VA, EF, LE, none) or \
              a number from 0 to 63. Without it packets are not marked, since some networks hold \
              the classes that OpenSSH uses to a trickle.",
        scp: Scp::Ours,
        group: Group::Connection,
        overrides: &[],
        set: |args, given| {
            args.dscp = given.text()?.parse::<Dscp>()?;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("congestion"),
        takes: ValueKind::Value("NAME"),
        help: "Use this TCP congestion control: cubic, bbr, ... as the kernel permits",
        doc: "Use this congestion control of the kernel's for TCP, and no other, whatever happens \
              on the way: one of those that `sysctl net.ipv4.tcp_allowed_congestion_control` \
              lists, or for root any that the kernel has. It decides how this end sends, so it \
              counts for uploads; of a ProxyCommand's connection it decides nothing. Without it \
              the system's own is used, and BBR where packets are lost on the way up and the \
              kernel permits it.",
        scp: Scp::Ours,
        group: Group::Connection,
        overrides: &[],
        set: |args, given| {
            args.congestion = Some(given.text()?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("far-end"),
        takes: ValueKind::Choice("WHICH", &["auto", "stock", "exec", "direct"]),
        help: "What serves at the far end: its own SFTP server, or a longhaul there",
        doc: "What serves at the far end. auto, which is what happens without it: a longhaul on the \
              PATH of the account there is found and used by itself, started by a command through \
              the SSH server in place of its SFTP server; where there is none, the server's own is \
              used, and it is asked again after a day. stock: the server's own SFTP server, \
              and nothing is asked. exec: as auto, but it is asked however little is copied and \
              whatever was remembered, nothing else is begun with where all paths there are \
              absolute, and it is said at the end why it was not used. direct: a \
              longhaul there waits at a port of its own for data connections, each of which takes \
              no login, and all data wait until it is known whether it can be reached; where it \
              cannot, it is as with exec. The closing line says when one was used.",
        scp: Scp::Ours,
        group: Group::Connection,
        overrides: &[],
        set: |args, given| {
            args.far = match given.text()?.as_str() {
                "stock" => RemoteServerUse::Stock,
                "exec" => RemoteServerUse::Exec,
                "direct" => RemoteServerUse::Direct,
                _ => RemoteServerUse::Auto,
            };
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("bootstrap"),
        takes: ValueKind::Nothing,
        help: "Send this program ahead to hosts that have none, and use it there",
        doc: "Send this program ahead to hosts of the same platform that have none of it yet, as \
              longhaul bootstrap does, and use it there. Where it cannot be sent or started \
              (another platform, a home that is full, read-only or noexec), a warning says so, and \
              the server's own SFTP server is used. Nothing is ever sent without this flag.",
        scp: Scp::Ours,
        group: Group::Connection,
        overrides: &[],
        set: |args, _| {
            args.bootstrap = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("no-window-poll"),
        takes: ValueKind::Nothing,
        help: "Leave the windows of channels as they begin, whatever the path is like",
        doc: "Do not ask the kernel for the round trip and the window of the socket, which the \
              windows of channels follow otherwise: they stay as they begin, at 2 MiB, but for \
              what is asked for at once.",
        scp: Scp::Ours,
        group: Group::Connection,
        overrides: &[],
        set: |args, _| {
            args.no_window_poll = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("insecure-none-cipher"),
        takes: ValueKind::Nothing,
        help: "DANGER: send data without encryption, to a server that was told the same",
        doc: "DANGER: do not encrypt data once the login is done, where the server was told the same \
              (longhaul serve --insecure-none-cipher, or HPN-SSH's NoneEnabled): whoever is on \
              the path can read all that is copied. The login itself is encrypted, and what is \
              sent is still authenticated. It is said on standard error each time, as is that a \
              server does not agree, with which encryption stays.",
        scp: Scp::Ours,
        group: Group::Connection,
        overrides: &[],
        set: |args, _| {
            args.renounced = args.renounced.max(DisabledProtection::Cipher);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("insecure-none-mac"),
        takes: ValueKind::Nothing,
        help: "DANGER: like --insecure-none-cipher, and without authentication of data",
        doc: "DANGER: --insecure-none-cipher, and no authentication of data either, where the server was \
              told that too (HPN-SSH's NoneMacEnabled): whoever is on the path can also change \
              all that is copied, and give requests in your name.",
        scp: Scp::Ours,
        group: Group::Connection,
        overrides: &[],
        set: |args, _| {
            args.renounced = DisabledProtection::CipherAndMac;
            Ok(())
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_the_units_of_scp() {
        for (text, bytes) in [("1024", 1024), ("32k", 32 << 10), ("2M", 2 << 20)] {
            assert_eq!(buffer(text), Ok(bytes));
        }
        for bad in ["", "k", "0", "1023", "2g", "32kk", "-1", "1x"] {
            assert!(buffer(bad).is_err(), "{bad}");
        }
    }
}
