//! The arguments of `longhaul relay`.

use std::ffi::OsString;
use std::fmt::Display;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use lab::path::Dscp;

use super::{OPERANDS, UsageError, from_rows, given, usage_of};
use crate::flags::argument_error::ArgumentError;
use crate::flags::rate::RateLimitArg;
use crate::flags::table::{PairArgs, relay_rows};

/// The flags and operands of `longhaul relay`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RelayArgs {
    pub(crate) allow: Vec<String>,
    pub(crate) buffer: Option<usize>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) half_timeout: Option<Duration>,
    pub(crate) max_connections: Option<usize>,
    pub(crate) max_per_source: Option<usize>,
    pub(crate) source_block: Option<sys::SourcePrefixLengths>,
    pub(crate) rate: Option<RateLimitArg>,
    pub(crate) rate_all: Option<RateLimitArg>,
    pub(crate) threads: Option<usize>,
    pub(crate) sockopts: relay::sockopt::SocketOptionSettings,
    pub(crate) dscp: Dscp,
    pub(crate) congestion: Option<String>,
    pub(crate) notsent_lowat: Option<u32>,
    pub(crate) keepalive: Option<String>,
    pub(crate) tls: relay::tls::TlsFiles,
    pub(crate) pair: PairArgs,
    pub(crate) permits: Vec<String>,
    pub(crate) entry_timeout: Option<Duration>,
    pub(crate) mptcp: bool,
    pub(crate) fastopen: bool,
    pub(crate) bind: Vec<IpAddr>,
    pub(crate) interface: Vec<String>,
    pub(crate) keep_address: bool,
    pub(crate) verbose: u8,
    pub(crate) quiet: bool,
    pub(crate) health: Option<Duration>,
    /// The configuration file.
    pub(crate) config: Option<PathBuf>,
    pub(crate) status: Option<String>,
    pub(crate) metrics: Option<String>,
    pub(crate) handover: Option<PathBuf>,
    pub(crate) drain_timeout: Option<Duration>,
    /// The action, if it is not relaying.
    pub(crate) instead: Option<RelayAction>,
    pub(crate) entrance: String,
    pub(crate) targets: Vec<String>,
}

/// Actions of `longhaul relay` other than relaying.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RelayAction {
    /// `check FILE`: checks a configuration file.
    Check(PathBuf),
    /// `top ADDRESS:PORT`: shows a relay's status in the terminal.
    Top(String),
    /// `half`: runs the relay of a pair that was started over ssh.
    Half,
    /// `rules`: prints or changes the kernel's rules for the relay that the other words describe.
    Rules(RelayRulesAction),
}

/// Use of the firewall rules by `longhaul relay rules`, from the word behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayRulesAction {
    /// Print the rules.
    Print,
    /// Install the rules.
    Add,
    /// Remove the rules.
    Remove,
}

pub(super) fn relay_args(matches: &ArgMatches) -> Result<RelayArgs, UsageError> {
    let mut args: RelayArgs =
        from_rows(relay_rows(), matches).map_err(|what| relay_usage(&what))?;
    let words = matches.get_many::<OsString>(OPERANDS).unwrap_or_default();
    let words = words.map(|word| {
        let word = word.to_str().map(str::to_owned);
        word.ok_or_else(|| relay_usage("an operand is not valid UTF-8"))
    });
    let words = words.collect::<Result<Vec<_>, _>>()?;
    match words.as_slice() {
        [check, file] if check == "check" => args.instead = Some(RelayAction::Check(file.into())),
        [top, address] if top == "top" => args.instead = Some(RelayAction::Top(address.clone())),
        [half] if half == "half" => args.instead = Some(RelayAction::Half),
        [word, ..] if word == "check" => {
            return Err(relay_usage(
                "check takes one operand: longhaul relay check FILE",
            ));
        }
        [word, ..] if word == "top" => {
            return Err(relay_usage(
                "top takes one operand: longhaul relay top ADDRESS:PORT",
            ));
        }
        [rules, what, entrance, targets @ ..] if rules == "rules" && args.config.is_none() => {
            args.instead = Some(RelayAction::Rules(match what.as_str() {
                "print" => RelayRulesAction::Print,
                "add" => RelayRulesAction::Add,
                "remove" => RelayRulesAction::Remove,
                _ => return Err(relay_usage(RULES)),
            }));
            args.entrance = entrance.clone();
            args.targets = targets.to_vec();
        }
        [word, ..] if word == "rules" => return Err(relay_usage(RULES)),
        words if args.config.is_some() => {
            only_of_all(words, matches).map_err(|w| relay_usage(&w))?
        }
        [] => {
            return Err(relay_usage(
                "no LISTEN and TARGET given, such as: longhaul relay 9022 host:22",
            ));
        }
        [entrance, targets @ ..] => {
            args.entrance = entrance.clone();
            args.targets = targets.to_vec();
        }
    }
    Ok(args)
}

/// The message for an incomplete `rules` command.
const RULES: &str =
    "rules takes an action and LISTEN: longhaul relay rules print|add|remove [flags] LISTEN";

/// Refuses words and flags that describe a single relay, since the file of `--config` does that.
fn only_of_all(words: &[String], matches: &ArgMatches) -> Result<(), ArgumentError> {
    if let Some(word) = words.first() {
        let word = word.escape_debug();
        return Err(
            format!("'{word}' cannot be combined with --config: set it in the file").into(),
        );
    }
    let mut rows = relay_rows().filter(|flag| !flag.group.is_of_all());
    match rows.find(|flag| given(flag, matches).is_some()) {
        None => Ok(()),
        Some(flag) => Err(format!(
            "{} cannot be combined with --config: set it in the file",
            flag.spelled()
        )
        .into()),
    }
}

/// A usage error of `longhaul relay`.
pub(crate) fn relay_usage(what: impl Display) -> UsageError {
    usage_of("relay", "[flags] LISTEN TARGET...|--config FILE", what)
}
