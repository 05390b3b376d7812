use std::ops::RangeInclusive;
use std::path::PathBuf;

use lab::path::Dscp;
use ssh::transport::DisabledProtection;
use transfer::connect::RemoteLonghaulPolicy;
use transfer::operand::SshDestination;

use crate::flags::argument_error::ArgumentError;
use crate::flags::flag::{Flag, FlagGroup, FlagValueKind, ScpCompatibility};
use crate::flags::low::{AddressFamilyArg, TerminalSetting, ViaHosts};
use crate::flags::rate::RateLimitArg;

/// The largest limit that scp takes, in kbit/s: 100 Gbit/s.
const MAX_LIMIT: u64 = 100 * 1024 * 1024;

/// Values of the flag; without a value it means the first.
const COMPRESS: &[&str] = &["always", "auto", "never"];

fn number(text: &str, range: RangeInclusive<u32>) -> Result<u32, ArgumentError> {
    let number = text.parse::<u32>().ok().filter(|n| range.contains(n));
    number
        .ok_or_else(|| format!("is not a number from {} to {}", range.start(), range.end()).into())
}

/// Parses bytes with scp's units, which are powers of 1024.
fn buffer(text: &str) -> Result<u32, ArgumentError> {
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
        .ok_or_else(|| "has a buffer outside 1024 bytes to 1g".into())
}

/// Flags for reaching the host.
pub(super) const ROWS: &[Flag] = &[
    Flag {
        short: Some('P'),
        long: Some("port"),
        takes: FlagValueKind::Value("PORT"),
        help: "Connect to this port",
        doc: "Connect to this port of the remote host. A port in an scp:// or sftp:// address \
              takes precedence.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Connection,
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
        takes: FlagValueKind::Values("FILE"),
        help: "Authenticate with this private key; may be repeated",
        doc: "Authenticate with the private key in this file. May be repeated; the keys are tried \
              in the order given, before those of ssh_config.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, given| {
            args.identities = given.values.into_iter().map(PathBuf::from).collect();
            Ok(())
        },
    },
    Flag {
        short: Some('J'),
        long: Some("jump"),
        takes: FlagValueKind::Value("HOSTS"),
        help: "Reach the host through these jump hosts, separated by commas",
        doc: "Reach the host through these jump hosts, [user@]host[:port], separated by commas, in \
              the order from this machine to the host. Equivalent to -o ProxyJump=HOSTS.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, given| {
            let hosts = given.text()?;
            if hosts.contains(['{', '}']) {
                let what = "braces stand for several hosts in the operands of longhaul cp only: \
                            write the names out, with commas";
                return Err(what.into());
            }
            args.jump = Some(hosts);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("via"),
        takes: FlagValueKind::Value("HOSTS"),
        help: "Relay all connections through these hosts, or through the best (auto)",
        doc: "Relay all connections to the hosts of the copy through these hosts, \
              [user@]host[:port], separated by commas, in the order from this machine on. Each \
              connection is split at each relaying host into two TCP connections with shorter \
              round trips, which recover faster from losses. A relaying host needs an SSH server \
              that permits TCP forwarding, and nothing else; it stores nothing and sees encrypted \
              data only. Keys and host keys are checked as always, on this machine. ssh_config \
              applies to the relaying hosts; a ProxyJump or ProxyCommand of the hosts of the copy \
              is not used. auto: measure the hosts that longhaul's config.toml lists \
              (via = [\"HOST\", ...]), and relay through the best one if it should be at least 1.3 \
              times as fast as the direct way. The result is remembered for a day. A copy between \
              two remote hosts goes through this machine then.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, given| {
            args.via = Some(match given.text()?.as_str() {
                "auto" => ViaHosts::Auto,
                hosts => ViaHosts::Through(
                    SshDestination::parse_list(hosts)
                        .map_err(|e| format!("is not a list of hosts: {e}"))?,
                ),
            });
            Ok(())
        },
    },
    Flag {
        short: Some('F'),
        long: Some("config"),
        takes: FlagValueKind::Value("FILE"),
        help: "Read this file instead of ~/.ssh/config",
        doc: "Read this ssh_config file instead of the user's and the system's. \"none\" reads no \
              file.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, given| {
            args.config = Some(given.os().into());
            Ok(())
        },
    },
    Flag {
        short: Some('o'),
        long: Some("option"),
        takes: FlagValueKind::Values("OPTION"),
        help: "Set an option of ssh_config(5); may be repeated",
        doc: "Set an option in the format of ssh_config(5), such as -o ConnectTimeout=10. May be \
              repeated; the first value of an option counts. A warning names each option that \
              longhaul does not support and that would weaken or change the connection.",
        scp: ScpCompatibility::Differs("IPQoS is ignored, both here and in ssh_config; use --dscp"),
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, given| {
            args.options = given.texts()?;
            Ok(())
        },
    },
    Flag {
        short: Some('c'),
        long: Some("cipher"),
        takes: FlagValueKind::Value("CIPHERS"),
        help: "Use the first of these ciphers that the server supports",
        doc: "Use the first of these ciphers, separated by commas, that the server supports. \
              Equivalent to -o Ciphers=CIPHERS.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, given| {
            args.ciphers = Some(given.text()?);
            Ok(())
        },
    },
    Flag {
        short: Some('C'),
        long: Some("compress"),
        takes: FlagValueKind::OptionalChoice("WHEN", COMPRESS),
        help: "Compress data on the connection: always (-C), auto (default) or never",
        doc: "Compress data on the connection. always, or the flag without a value, uses zlib. \
              Compression helps on slow links with data that compresses well, and slows the copy \
              down on fast links. If the far end is longhaul, data is compressed with zstd \
              instead, block by block, and only blocks that become smaller; zlib is then not used \
              on a host that is known to run longhaul. auto, the default, compresses where it \
              pays: zstd over long paths, if a trial shows that the rate rises; zlib for the \
              upload of a single file to a host whose path was slow before, if a sample of the \
              file compresses well. With the flag given, auto also compresses copies of several \
              files, whose lengths on the wire can then reveal something about each other's \
              contents, and it overrides Compression in ssh_config. never uses neither.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, given| {
            args.compress = Some(TerminalSetting::of(&given.text()?));
            Ok(())
        },
    },
    Flag {
        short: Some('l'),
        long: None,
        takes: FlagValueKind::Value("KBIT"),
        help: "Limit the rate to this many kbit/s, as scp does; see also --limit",
        doc: "Limit the rate of file data to this many kbit/s. A kbit is 1024 bits, as in scp. \
              --limit takes other units.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, given| {
            let limit = given.text()?.parse::<u64>().ok();
            let limit = limit.filter(|limit| (1..=MAX_LIMIT).contains(limit));
            args.limit_kbit =
                Some(limit.ok_or_else(|| format!("is not a limit from 1 to {MAX_LIMIT} kbit/s"))?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("limit"),
        takes: FlagValueKind::Value("RATE"),
        help: "Limit the rate per second, such as 10MB, 10MiB or 80Mbit",
        doc: "Limit the total rate of all connections to this many bytes or bits per second: 10MB, \
              9.5MiB, 500kB, 80Mbit, 1Gbit. k, M and G are powers of 1000; Ki, Mi and Gi are \
              powers of 1024; a bare number is in bytes, from 1000 on. In a copy between two remote hosts the \
              limit applies separately to each direction, into and out of this machine. Cannot be \
              combined with -l.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, given| {
            args.limit = Some(given.text()?.parse::<RateLimitArg>()?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("background"),
        takes: FlagValueKind::Nothing,
        help: "Yield to all other traffic, and to other programs on this machine",
        doc: "Yield to all other traffic: use only the capacity that it leaves. The copy uses one \
              connection, holds the queueing delay that it adds to the path to 25 ms (as LEDBAT \
              does, RFC 6817), and runs at the lowest processor and disk priority on this machine. \
              The delay is taken from TCP's round-trip time, which includes the queues of both \
              directions, whatever traffic fills them. On a path that other traffic keeps full all \
              the time, the copy moves 16 kB/s. Add --dscp LE to mark the packets for networks \
              that support that class (RFC 8622). Cannot be combined with -S or -D.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, _| {
            args.background = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("connections"),
        takes: FlagValueKind::Value("N"),
        help: "Use this many TCP connections, 1 to 64 (default: as many as pay)",
        doc: "Use this many TCP connections to each host, 1 to 64. By default a copy starts with \
              those that its size, the round trip and the buffers call for, at most seven. It \
              adds connections while they raise the rate, closes those that do not, and \
              remembers the number for the next copy. Each connection is a separate login; if a \
              login needs a password, a code or a touch, only one connection is used.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, given| {
            args.connections = Some(number(&given.text()?, 1..=64)?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("channels"),
        takes: FlagValueKind::Value("N"),
        help: "Use this many channels on each connection, 1 to 10 (default: as many as pay)",
        doc: "Use this many SFTP channels on each connection, 1 to 10. An sshd allows 10 unless \
              its MaxSessions was changed. Each channel has its own window and its own sftp-server \
              process. The default is as many as pay. If the server allows fewer, fewer are used.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, given| {
            args.channels = Some(number(&given.text()?, 1..=10)?);
            Ok(())
        },
    },
    Flag {
        short: Some('X'),
        long: None,
        takes: FlagValueKind::Value("OPTION"),
        help: "Limit SFTP requests: nrequests=N in flight, buffer=BYTES each",
        doc: "Limit SFTP requests. nrequests=N: at most N requests in flight on a channel. \
              buffer=BYTES: at most that many bytes in a READ or WRITE; k, m and g multiply by \
              1024, 1024^2 and 1024^3. By default both follow the path and the limits of the \
              server. Use this for a server that drops requests when its queue is full.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, given| {
            let text = given.text()?;
            match text.split_once('=') {
                Some(("nrequests", n)) => args.requests = Some(number(n, 1..=65_536)?.into()),
                Some(("buffer", bytes)) => args.buffer = Some(buffer(bytes)?),
                _ => return Err("is neither nrequests=N nor buffer=BYTES".into()),
            }
            Ok(())
        },
    },
    Flag {
        short: Some('4'),
        long: Some("ipv4"),
        takes: FlagValueKind::Nothing,
        help: "Use IPv4 addresses only",
        doc: "Use IPv4 addresses only. If both -4 and -6 are given, the last one counts.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Connection,
        overrides: &["ipv6"],
        set: |args, _| {
            args.family = AddressFamilyArg::V4;
            Ok(())
        },
    },
    Flag {
        short: Some('6'),
        long: Some("ipv6"),
        takes: FlagValueKind::Nothing,
        help: "Use IPv6 addresses only",
        doc: "Use IPv6 addresses only. If both -4 and -6 are given, the last one counts.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Connection,
        overrides: &["ipv4"],
        set: |args, _| {
            args.family = AddressFamilyArg::V6;
            Ok(())
        },
    },
    Flag {
        short: Some('B'),
        long: Some("batch"),
        takes: FlagValueKind::Nothing,
        help: "Never ask for a password or passphrase, or to confirm a host key",
        doc: "Never ask for a password, for a passphrase or to confirm a host key: anything that \
              needs an answer fails. Equivalent to -o BatchMode=yes.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, _| {
            args.batch = true;
            Ok(())
        },
    },
    Flag {
        short: Some('A'),
        long: Some("forward-agent"),
        takes: FlagValueKind::Nothing,
        help: "Let the program of -S forward the SSH agent",
        doc: "Let the program of -S forward the SSH agent. Without -S the flag has no effect, \
              since longhaul runs no program on the remote host that could use the agent.",
        scp: ScpCompatibility::Differs("only with -S"),
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, _| {
            args.forward_agent = true;
            Ok(())
        },
    },
    Flag {
        short: Some('S'),
        long: Some("program"),
        takes: FlagValueKind::Value("PROGRAM"),
        help: "Use this program as the connection; it must accept ssh's arguments",
        doc: "Use this program as the connection instead of longhaul's own SSH client. It must \
              accept the arguments of ssh(1). -S ssh uses the system's ssh: for Kerberos, smart \
              cards and anything else that longhaul does not support.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, given| {
            args.program = Some(given.os());
            Ok(())
        },
    },
    Flag {
        short: Some('D'),
        long: Some("sftp-server"),
        takes: FlagValueKind::Value("PATH"),
        help: "Run this local SFTP server instead of connecting to a host",
        doc: "Run this local SFTP server program instead of connecting to a host. The host name is \
              then ignored. For tests.",
        scp: ScpCompatibility::Same,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, given| {
            args.sftp_server = Some(given.os());
            Ok(())
        },
    },
    Flag {
        short: Some('s'),
        long: None,
        takes: FlagValueKind::Nothing,
        help: "Use the SFTP protocol (always on)",
        doc: "Use the SFTP protocol. It is the only protocol that longhaul uses, so the flag has \
              no effect.",
        scp: ScpCompatibility::NoEffect("SFTP is the only protocol"),
        group: FlagGroup::Connection,
        overrides: &[],
        set: |_, _| Ok(()),
    },
    Flag {
        short: Some('T'),
        long: None,
        takes: FlagValueKind::Nothing,
        help: "Accept scp's flag without effect: names from a server are always checked",
        doc: "Accepted for compatibility and without effect. In scp the flag turns off the check \
              of file names that the server sends. longhaul always checks them. scp \
              itself has no use for the flag over SFTP.",
        scp: ScpCompatibility::NoEffect("names from a server are always checked"),
        group: FlagGroup::Connection,
        overrides: &[],
        set: |_, _| Ok(()),
    },
    Flag {
        short: None,
        long: Some("dscp"),
        takes: FlagValueKind::Value("VALUE"),
        help: "Mark packets with this DSCP: a name (CS1, AF21, EF, LE, ...) or 0 to 63",
        doc: "Mark packets with this DSCP: a name (CS0 to CS7, AF11 to AF43, VA, EF, LE, none) or \
              a number from 0 to 63. By default packets are not marked, because some networks slow \
              the classes that OpenSSH uses down to a trickle.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, given| {
            args.dscp = given.text()?.parse::<Dscp>()?;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("congestion"),
        takes: FlagValueKind::Value("NAME"),
        help: "Use this TCP congestion control (cubic, bbr, ...) if the kernel permits it",
        doc: "Use this TCP congestion control algorithm of the kernel for the whole copy: one of \
              those that `sysctl net.ipv4.tcp_allowed_congestion_control` lists, or, for root, any \
              that the kernel has. It controls how this machine sends, so it matters for uploads; \
              it has no effect on the connection of a ProxyCommand. By default the system's own \
              algorithm is used, and BBR if packets are lost during an upload and the kernel \
              permits it.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, given| {
            args.congestion = Some(given.text()?);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("far-end"),
        takes: FlagValueKind::Choice("WHICH", &["auto", "stock", "exec", "direct"]),
        help: "Choose the server program on the host: its SFTP server or longhaul",
        doc: "Choose the server at the far end. auto, the default: if longhaul is on the PATH of \
              the remote account, it is started by a command through the SSH server and used \
              instead of the host's SFTP server; if it is not, the host's SFTP server is used and \
              longhaul is looked for again beside the next copy that begins ten minutes later or \
              more, which takes no time (a copy between two hosts looks again after a day). stock: use the host's SFTP server and do \
              not look for longhaul. exec: like auto, but always look, however small the copy and \
              whatever is remembered; if all remote paths are absolute, wait for the result before \
              starting; if longhaul could not be used, report the reason at the end. direct: \
              longhaul at the far end also opens a port for data connections, each of which needs \
              no login, and all data waits until it is known whether that port can be reached; if \
              it cannot, behave like exec. The closing line says when longhaul was used at the far \
              end.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, given| {
            args.far = match given.text()?.as_str() {
                "stock" => RemoteLonghaulPolicy::Stock,
                "exec" => RemoteLonghaulPolicy::Exec,
                "direct" => RemoteLonghaulPolicy::Direct,
                _ => RemoteLonghaulPolicy::Auto,
            };
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("bootstrap"),
        takes: FlagValueKind::Nothing,
        help: "Install this program on hosts that lack it, and use it there",
        doc: "Install this program on hosts of the same platform that do not have it yet, as \
              longhaul bootstrap does, and use it there. If it cannot be installed or started \
              (another platform, or a home that is full, read-only or noexec), a warning says so \
              and the host's SFTP server is used. Without this flag nothing is ever installed.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, _| {
            args.bootstrap = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("no-window-poll"),
        takes: FlagValueKind::Nothing,
        help: "Keep the initial size of channel windows, whatever the path",
        doc: "Keep channel windows at their initial size of 2 MiB, except for data that was \
              requested and is still to come. By default they follow the round-trip time and the \
              window of the socket, which longhaul asks the kernel for.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, _| {
            args.no_window_poll = true;
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("insecure-none-cipher"),
        takes: FlagValueKind::Nothing,
        help: "DANGER: send data unencrypted, if the server also allows that",
        doc: "DANGER: do not encrypt data after the login, if the server allows that as well \
              (longhaul serve --insecure-none-cipher, or HPN-SSH's NoneEnabled). Anyone on the \
              path can read everything that is copied. The login is still encrypted, and data is \
              still authenticated. A message on standard error says so each time; it also says if \
              the server does not agree, in which case data stays encrypted.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Connection,
        overrides: &[],
        set: |args, _| {
            args.renounced = args.renounced.max(DisabledProtection::Cipher);
            Ok(())
        },
    },
    Flag {
        short: None,
        long: Some("insecure-none-mac"),
        takes: FlagValueKind::Nothing,
        help: "DANGER: like --insecure-none-cipher, and do not authenticate data either",
        doc: "DANGER: like --insecure-none-cipher, and do not authenticate data either, if the \
              server allows that as well (HPN-SSH's NoneMacEnabled). Anyone on the path can also \
              change everything that is copied, and issue requests in your name.",
        scp: ScpCompatibility::Ours,
        group: FlagGroup::Connection,
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
            assert_eq!(buffer(text).unwrap(), bytes);
        }
        for bad in ["", "k", "0", "1023", "2g", "32kk", "-1", "1x"] {
            assert!(buffer(bad).is_err(), "{bad}");
        }
    }
}
