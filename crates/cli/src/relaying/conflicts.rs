//! Finds settings of a relay that conflict with each other.

use std::borrow::Cow;
use std::net::ToSocketAddrs as _;

use relay::entry::permit::PermittedTargetRule;
use relay::{ClientProtocols, HostSpec, RedirectKind, RelayEndpoint};

use crate::flags::low::RelayArgs;
use crate::setting_error::SettingError;

/// Settings of a relay that are parsed and not yet checked against each other.
pub(super) struct ParsedRelaySettings<'a> {
    pub(super) args: &'a RelayArgs,
    /// Address that clients connect to.
    pub(super) place: &'a RelayEndpoint,
    pub(super) speaks: &'a ClientProtocols,
    /// Connections go over ssh (`--via`, `ssh://`).
    pub(super) is_routed: bool,
    /// One side is a pair.
    pub(super) has_pair: bool,
    pub(super) permits: &'a [PermittedTargetRule],
}

/// A rule that settings may break.
struct ConflictRule {
    /// The setting at fault, as the user wrote it.
    setting: fn(&ParsedRelaySettings<'_>) -> String,
    /// The reason, if the setting conflicts with another one.
    problem: fn(&ParsedRelaySettings<'_>) -> Option<Cow<'static, str>>,
}

/// The rules, in the order in which they are checked.
const CONFLICTS: &[ConflictRule] = &[
    ConflictRule {
        setting: entrance,
        problem: |settled| {
            let names = settled.speaks.pair || settled.speaks.names_target();
            (settled.is_routed && names).then_some(Cow::Borrowed(
                "conflicts with --via and ssh://: remove pair, socks5, http, redirect or tproxy \
                 from LISTEN",
            ))
        },
    },
    ConflictRule {
        setting: entrance,
        problem: |settled| {
            let lacks = settled.permits.is_empty() && settled.speaks.names_target();
            lacks.then_some(Cow::Borrowed(
                "needs --to HOST:PORT, which permits a target to the clients of socks5, http, redirect \
                 and tproxy",
            ))
        },
    },
    ConflictRule {
        setting: permits,
        problem: |settled| {
            let idle = !settled.permits.is_empty() && !settled.speaks.names_target();
            idle.then_some(Cow::Borrowed(
                "only limits targets that clients choose, and here TARGET is fixed: leave out --to, \
                 or leave out TARGET and add /socks5 or /http to LISTEN",
            ))
        },
    },
    ConflictRule {
        setting: permits,
        problem: |settled| {
            let by_name = settled.permits.iter().any(PermittedTargetRule::is_of_names);
            (settled.speaks.diverted.is_some() && by_name).then_some(Cow::Borrowed(
                "conflicts with redirect and tproxy: redirected connections carry an IP address, \
                 not a host name; use a network such as 10.0.0.0/8",
            ))
        },
    },
    ConflictRule {
        setting: entrance,
        problem: |settled| {
            let reachable = needs_allow(settled).then(|| reachable(settled.place));
            reachable.flatten().map(Cow::Owned)
        },
    },
    ConflictRule {
        setting: entrance,
        problem: |settled| {
            let tproxy = settled.speaks.diverted == Some(RedirectKind::Tproxy);
            (needs_allow(settled) && tproxy).then_some(Cow::Borrowed(
                "tproxy accepts connections to any address: name the permitted clients with \
                 --allow NETWORK",
            ))
        },
    },
    ConflictRule {
        setting: |_| "--keep-address".to_owned(),
        problem: |settled| {
            let address = settled.args.bind.first();
            let problem = match (settled.has_pair, address) {
                (true, _) => "conflicts with pair".into(),
                (false, Some(address)) => format!("conflicts with --bind {address}").into(),
                (false, None) => return None,
            };
            settled.args.keep_address.then_some(problem)
        },
    },
];

/// Checks that the settings do not conflict.
///
/// # Errors
/// The first conflict: the setting, and what it conflicts with.
pub(super) fn check(settled: &ParsedRelaySettings<'_>) -> Result<(), SettingError> {
    let broken = CONFLICTS.iter().find_map(|conflict| {
        let problem = (conflict.problem)(settled)?;
        Some(SettingError::written(&(conflict.setting)(settled), problem))
    });
    broken.map_or(Ok(()), Err)
}

fn entrance(settled: &ParsedRelaySettings<'_>) -> String {
    settled.args.entrance.clone()
}

fn permits(settled: &ParsedRelaySettings<'_>) -> String {
    let texts = settled.args.permits.iter();
    let texts = texts.map(|text| wire::escape::name(text.as_bytes()).to_string());
    let texts: Vec<String> = texts.collect();
    format!("--to {}", texts.join(" --to "))
}

/// Clients that prove a name or a key are known, so they need no --allow.
fn needs_allow(settled: &ParsedRelaySettings<'_>) -> bool {
    let speaks = settled.speaks;
    let proves_name = speaks.tls.is_some() && settled.args.tls.client_ca.is_some();
    settled.args.allow.is_empty() && !speaks.pair && !proves_name
}

/// The problem of an entrance that is reachable from other machines.
fn reachable(place: &RelayEndpoint) -> Option<String> {
    let remote = match place {
        RelayEndpoint::Tcp {
            host: HostSpec::Name(name),
            port,
        } => match (name.as_str(), *port).to_socket_addrs() {
            Ok(mut found) => found
                .find(|at| relay::is_reachable_remotely(at.ip()))
                .map(|at| at.ip()),
            Err(e) => return Some(format!("cannot resolve {name}: {e}")),
        },
        place => {
            let at = place.addresses().unwrap_or_default().into_iter();
            at.map(|at| at.ip())
                .find(|ip| relay::is_reachable_remotely(*ip))
        }
    };
    remote.map(|ip| {
        format!(
            "would relay for every client that reaches {ip}: name the permitted clients with \
             --allow NETWORK, or give a port alone to listen on this machine only"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::settle;
    use crate::flags::low::RelayArgs;

    fn problem(change: impl FnOnce(&mut RelayArgs)) -> String {
        let mut args = RelayArgs {
            entrance: "9022".to_owned(),
            targets: vec!["localhost:22".to_owned()],
            ..RelayArgs::default()
        };
        change(&mut args);
        settle(&args)
            .err()
            .map_or_else(String::new, |e| e.to_string())
    }

    #[test]
    fn each_conflict_names_the_setting_and_its_opponent() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        assert_eq!(problem(|_| {}), "");
        let kept = problem(|args| {
            args.keep_address = true;
            args.bind = vec!["127.0.0.2".parse().expect("an address")];
        });
        assert_eq!(kept, "--keep-address: conflicts with --bind 127.0.0.2");
        let open = problem(|args| args.entrance = "*:9022".to_owned());
        assert!(
            open.starts_with("*:9022: would relay for every client that reaches "),
            "{open}"
        );
        assert!(open.contains("--allow NETWORK"), "{open}");
        let idle = problem(|args| args.permits = texts(&["host:22"]));
        assert!(
            idle.starts_with("--to host:22: only limits targets that clients choose"),
            "{idle}"
        );
        let socks = |args: &mut RelayArgs| {
            args.entrance = "9022/socks5".to_owned();
            args.targets.clear();
        };
        let lacking = problem(socks);
        assert!(
            lacking.starts_with("9022/socks5: needs --to HOST:PORT"),
            "{lacking}"
        );
        let routed = problem(|args| {
            socks(args);
            args.targets = texts(&["ssh://host/localhost:22"]);
        });
        assert!(
            routed.starts_with("9022/socks5: conflicts with --via and ssh://"),
            "{routed}"
        );
        let named = problem(|args| {
            args.entrance = "9022/redirect".to_owned();
            args.targets.clear();
            args.permits = texts(&["host:22"]);
        });
        assert!(
            named.starts_with("--to host:22: conflicts with redirect"),
            "{named}"
        );
        let tproxy = problem(|args| {
            args.entrance = "9022/tproxy".to_owned();
            args.targets.clear();
            args.permits = texts(&["10.0.0.0/8:22"]);
        });
        assert!(
            tproxy.contains("tproxy accepts connections to any address"),
            "{tproxy}"
        );
    }
}
