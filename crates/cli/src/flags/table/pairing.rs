use std::path::PathBuf;

use super::relay::size;
use super::serve::ports;
use crate::flags::flag::{Flag, FlagGroup, FlagValueKind};
use crate::flags::low::RelayArgs;

/// Maximum number of stripes of one relayed connection.
const MOST: usize = 16;

/// The flags of `longhaul relay` about pairs.
pub(super) const ROWS: &[Flag<RelayArgs>] = &[
    Flag::ours(
        FlagGroup::Pair,
        ("pair-key", FlagValueKind::Value("FILE")),
        "For pair: our private key (PEM), created on the first start",
        "For pair: the private key of this relay (PEM, PKCS#8). The default is \
         $XDG_STATE_HOME/longhaul/pair_key. A missing file is created on the first start. The \
         relay reports the fingerprint of its key on each start.",
        |args, given| {
            args.pair.key = Some(given.os().into());
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Pair,
        ("pair-allow", FlagValueKind::Values("KEY")),
        "For pair: accept this fingerprint, or those in this file; may be repeated",
        "For pair: accept the peer whose key has this fingerprint (SHA256:...), or one of the \
         fingerprints in this file, one at the start of each line; may be repeated. The \
         fingerprints in $XDG_CONFIG_HOME/longhaul/known_pairs are accepted too. Both relays check \
         each other, and no other peer is accepted.",
        |args, given| {
            args.pair.allow = given.texts()?;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Pair,
        ("pair-accept-new", FlagValueKind::Nothing),
        "For pair: accept and remember a target's key if none is known yet",
        "For pair: accept the first key that a target shows if no key is known at all, and write \
         it to $XDG_CONFIG_HOME/longhaul/known_pairs. An attacker on the path at that moment can \
         stay in the middle from then on. This applies to targets only: incoming peers must be \
         known already.",
        |args, _| {
            args.pair.accept_new = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Pair,
        ("stripes", FlagValueKind::Value("N")),
        "For pair: use N stripes per connection (default 1, up to 8 while it pays)",
        "For pair: spread each connection over N stripes (TCP connections), 1 to 16. By default it \
         starts with one, and the number doubles, up to 8, as long as that carries 15 % more. The \
         relay that connects decides.",
        |args, given| {
            let text = given.text()?;
            let stripes = text.parse().ok().filter(|n| (1..=MOST).contains(n));
            args.pair.stripes = Some(stripes.ok_or("is not a number between 1 and 16")?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Pair,
        ("explain", FlagValueKind::Nothing),
        "For pair: log the choice of stripes for each connection, and the reason",
        "For pair: log how many stripes each connection starts with, the reason, and the rates \
         measured with different numbers. The result for a target is kept for a month in \
         $XDG_CACHE_HOME/longhaul/hosts and used as long as the round trip to it is the same.",
        |args, _| {
            args.pair.explain = true;
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Pair,
        ("pair-buffer", FlagValueKind::Value("SIZE")),
        "For pair: buffer at most SIZE per direction of a connection (default 64MiB)",
        "For pair: buffer at most SIZE per direction of a connection in each relay, at least \
         64KiB; the default is 64MiB. This covers data that arrived and was not read yet, and data \
         that was sent and may have to be sent again. A path carries no more than this in one \
         round trip plus the time that a loss takes to be repaired. The buffer starts at 4MiB and \
         grows while the reader keeps up, so a slow reader never fills all of it.",
        |args, given| {
            let size = size(&given.text()?)?;
            match size >= 64 << 10 {
                true => args.pair.buffer = Some(size),
                false => return Err("is less than 64KiB".into()),
            }
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Pair,
        (
            "pair-zstd",
            FlagValueKind::Choice("WHEN", &["auto", "never"]),
        ),
        "For pair: compress data that waits for the path: auto or never",
        "For pair: compress data that waits for the path, with zstd. auto, the default, measures \
         whether it pays, and skips data that does not compress or that the path carries faster \
         than the processor compresses. never turns it off.",
        |args, given| {
            args.pair.plain = given.text()? == "never";
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Pair,
        ("via", FlagValueKind::Value("HOSTS")),
        "Go through relays on these hosts, started over ssh",
        "Go to TARGET through these hosts, [user@]host[:port], separated by commas, in the order \
         from this machine to TARGET. A relay is started on each over ssh, each two neighbours \
         form a pair, and the last one connects to TARGET. `ssh://HOST/TARGET` is equivalent to \
         TARGET with --via HOST. Each host needs longhaul (see longhaul bootstrap). Data goes to a \
         separate TCP port, or over the ssh connection if that port cannot be reached. \
         docs/design/0018 explains when a host in the middle helps.",
        |args, given| {
            args.pair.via = Some(given.text()?);
            Ok(())
        },
    ),
    Flag::ours(
        FlagGroup::Pair,
        ("port-range", FlagValueKind::Value("A-B")),
        "With --via and ssh://: listen for data on a port from A to B there",
        "With --via and ssh://: let the relays on those hosts listen for data on one of the ports \
         A to B, such as those that a firewall lets through, instead of a port that the system \
         chooses. If none of them is free, data goes over the ssh connection.",
        |args, given| {
            args.pair.ports = Some(ports(&given.text()?)?);
            Ok(())
        },
    ),
    Flag {
        short: Some('F'),
        ..Flag::ours(
            FlagGroup::Pair,
            ("ssh-config", FlagValueKind::Value("FILE")),
            "With --via and ssh://: read this file instead of ~/.ssh/config",
            "With --via and ssh://: read this ssh_config file instead of the user's and the \
             system's. \"none\" reads no file.",
            |args, given| {
                args.pair.ssh_config = Some(given.os().into());
                Ok(())
            },
        )
    },
    Flag {
        short: Some('o'),
        ..Flag::ours(
            FlagGroup::Pair,
            ("ssh-option", FlagValueKind::Values("OPTION")),
            "With --via and ssh://: set an option of ssh_config(5); may be repeated",
            "With --via and ssh://: set an option in the format of ssh_config(5), such as -o \
             ConnectTimeout=10. May be repeated; the first value of an option counts.",
            |args, given| {
                args.pair.ssh_options = given.texts()?;
                Ok(())
            },
        )
    },
];

/// Arguments of `longhaul relay` and `longhaul dial` about the peer relay and the connection's
/// stripes.
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
    /// Hosts on the way, on which relays are started over ssh.
    pub(crate) via: Option<String>,
    /// The ports that relays started over ssh may listen on.
    pub(crate) ports: Option<(u16, u16)>,
    pub(crate) ssh_config: Option<PathBuf>,
    pub(crate) ssh_options: Vec<String>,
}
