use std::path::PathBuf;

use super::relay::size;
use super::serve::ports;
use crate::flags::flag::{Flag, Group, ValueKind};
use crate::flags::low::RelayArgs;

/// Most connections that one relayed connection may be spread over (`relay::facing`).
const MOST: usize = 16;

/// The flags of `longhaul relay` about facing relays.
pub(super) const ROWS: &[Flag<RelayArgs>] = &[
    Flag::ours(
        Group::Pair,
        ("pair-key", ValueKind::Value("FILE")),
        "For pair: our key (PEM), made at the first start",
        "For pair: the key of this half (PEM, PKCS#8), $XDG_STATE_HOME/longhaul/pair_key if it is \
              not given. A file that is missing is made at the first start. The fingerprint of the \
              key is said at each start.",
        |args, given| {
            args.pair.key = Some(given.os().into());
            Ok(())
        },
    ),
    Flag::ours(
        Group::Pair,
        ("pair-allow", ValueKind::Values("KEY")),
        "For pair: let in this fingerprint, or those in this file; may be repeated",
        "For pair: let in the half whose key has this fingerprint (SHA256:...), or one of those in \
              this file, one in front of each line; may be repeated. Those in \
              $XDG_CONFIG_HOME/longhaul/known_pairs are let in too. Both halves check each other, \
              and nobody else is let in.",
        |args, given| {
            args.pair.allow = given.texts()?;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Pair,
        ("pair-accept-new", ValueKind::Nothing),
        "For pair: let in a target's first key, if none is known, and remember it",
        "For pair: let in the first key that a target shows if no key is known at all, and write \
              it to $XDG_CONFIG_HOME/longhaul/known_pairs. Whoever is on the path at that time can \
              be in the middle for ever. It is about targets alone: who comes in has to be known.",
        |args, _| {
            args.pair.accept_new = true;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Pair,
        ("stripes", ValueKind::Value("N")),
        "For pair: spread a connection over N (1, and more while that pays, to 8)",
        "For pair: spread each connection over N of TCP, 1 to 16. Without it there is one, and \
              twice as many as long as that carries 15 % more, up to 8. The half that connects \
              decides.",
        |args, given| {
            let text = given.text()?;
            let stripes = text.parse().ok().filter(|n| (1..=MOST).contains(n));
            args.pair.stripes = Some(stripes.ok_or("is not a number between 1 and 16")?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Pair,
        ("explain", ValueKind::Nothing),
        "For pair: say what each connection begins with and finds, and why",
        "For pair: say in the log how many connections of TCP each connection begins with, what \
              that rests on, and what it finds: so many carried so much, and others so much. What \
              was found of a target is kept for a month and used while the path is as long as then \
              ($XDG_CACHE_HOME/longhaul/hosts).",
        |args, _| {
            args.pair.explain = true;
            Ok(())
        },
    ),
    Flag::ours(
        Group::Pair,
        ("pair-buffer", ValueKind::Value("SIZE")),
        "For pair: hold SIZE of each direction of a connection at most (64MiB)",
        "For pair: hold SIZE of each direction of a connection at most, in each half, 64KiB at \
              least and 64MiB if it is not given: what has come and was not read yet, and what was \
              sent and may have to be sent again. A path carries no more than this in a round trip \
              and the time that a loss takes to be repaired. It begins with 4MiB and grows as the \
              other end keeps up, so that a slow reader makes nobody hold all of it.",
        |args, given| {
            let size = size(&given.text()?)?;
            match size >= 64 << 10 {
                true => args.pair.buffer = Some(size),
                false => return Err("is less than 64KiB".to_owned()),
            }
            Ok(())
        },
    ),
    Flag::ours(
        Group::Pair,
        ("pair-zstd", ValueKind::Choice("WHEN", &["auto", "never"])),
        "For pair: compress what waits for the path: auto or never (auto)",
        "For pair: compress with zstd what waits for the path. auto measures whether it pays, and \
              leaves alone what does not compress and what the path carries faster than the \
              processor compresses; never does not try.",
        |args, given| {
            args.pair.plain = given.text()? == "never";
            Ok(())
        },
    ),
    Flag::ours(
        Group::Pair,
        ("via", ValueKind::Value("HOSTS")),
        "Go through a half of a pair at each of these hosts, started over ssh",
        "Go to TARGET through these hosts, [user@]host[:port], separated by commas, in the order in \
              which they are passed: at each a half of a pair is started over ssh, and the last \
              connects to TARGET. `ssh://HOST/TARGET` is the same as TARGET with --via HOST. There \
              has to be a longhaul at each (see longhaul bootstrap). Data go to a TCP port of their \
              own, or over the ssh connection where that cannot be reached. docs/design/0018 says \
              when a host in the middle helps.",
        |args, given| {
            args.pair.via = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        Group::Pair,
        ("port-range", ValueKind::Value("A-B")),
        "For hosts reached over ssh: take data at one of the ports A to B there",
        "For hosts reached over ssh (--via, ssh://): the half there takes data at one of the ports \
              A to B, which a firewall lets through, and not at one that the system chooses. Where \
              none of them is free, data go over the ssh connection.",
        |args, given| {
            args.pair.ports = Some(ports(&given.text()?)?);
            Ok(())
        },
    ),
    Flag {
        short: Some('F'),
        ..Flag::ours(
            Group::Pair,
            ("ssh-config", ValueKind::Value("FILE")),
            "For hosts reached over ssh: read this instead of ~/.ssh/config",
            "For hosts reached over ssh (--via, ssh://): read this ssh_config file instead of the \
              user's and the system's. \"none\" reads none.",
            |args, given| {
                args.pair.ssh_config = Some(given.os().into());
                Ok(())
            },
        )
    },
    Flag {
        short: Some('o'),
        ..Flag::ours(
            Group::Pair,
            ("ssh-option", ValueKind::Values("OPTION")),
            "For hosts reached over ssh: an option of ssh_config(5); may be repeated",
            "For hosts reached over ssh (--via, ssh://): an option in the format of ssh_config(5), \
              such as -o ConnectTimeout=10. May be repeated; the first value of an option counts.",
            |args, given| {
                args.pair.ssh_options = given.texts()?;
                Ok(())
            },
        )
    },
];

/// The arguments of facing relays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PairArgs {
    pub(crate) key: Option<PathBuf>,
    pub(crate) allow: Vec<String>,
    pub(crate) accept_new: bool,
    pub(crate) stripes: Option<usize>,
    pub(crate) buffer: Option<usize>,
    /// Turns compression off.
    pub(crate) plain: bool,
    /// Log the decisions.
    pub(crate) explain: bool,
    /// Hosts on the way, on which halves are started.
    pub(crate) via: Option<String>,
    /// The ports that halves started over ssh may listen on.
    pub(crate) ports: Option<(u16, u16)>,
    pub(crate) ssh_config: Option<PathBuf>,
    pub(crate) ssh_options: Vec<String>,
}
