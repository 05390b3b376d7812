//! Rules for the targets that SOCKS and HTTP clients may name.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use crate::address::{HostSpec, RelayEndpoint, TargetSpec};
use crate::network::IpNetwork;
use sys::is_special;

/// Rule `HOST:PORT` that permits a target: HOST is a name, `*.example.com`, a network or `*`; PORT
/// is a number or `*`. HOST is a name, `*.example.com`, a network or `*`; PORT is a number or `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermittedTargetRule {
    host: HostPattern,
    /// `None` permits every port.
    port: Option<u16>,
}

/// Host part of a [`PermittedTargetRule`].
#[derive(Clone, Debug, PartialEq, Eq)]
enum HostPattern {
    /// Any host except this machine's own addresses.
    All,
    Name(String),
    Subdomains(String),
    Network(IpNetwork),
}

/// Decision of the rules about the target that a SOCKS or HTTP client has named; the most
/// permissive rule wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetVerdict {
    /// The target may be connected to.
    Allowed,
    /// The target may be connected to unless it resolves to this machine or its link.
    AllowedUnlessLocal,
    /// The target is refused.
    Denied,
}

/// Checks a target against the rules.
pub fn verdict(permits: &[PermittedTargetRule], target: &TargetSpec) -> TargetVerdict {
    let RelayEndpoint::Tcp { host, port } = &target.place else {
        return TargetVerdict::Denied;
    };
    let of_port = permits
        .iter()
        .filter(|permit| permit.port.is_none_or(|own| own == *port));
    let verdicts = of_port.map(|permit| permit.host.verdict(host));
    verdicts.fold(TargetVerdict::Denied, |one, other| match (one, other) {
        (TargetVerdict::Allowed, _) | (_, TargetVerdict::Allowed) => TargetVerdict::Allowed,
        (TargetVerdict::AllowedUnlessLocal, _) | (_, TargetVerdict::AllowedUnlessLocal) => {
            TargetVerdict::AllowedUnlessLocal
        }
        _ => TargetVerdict::Denied,
    })
}

/// Reports if a rule names this address and port explicitly, even if it is one of this machine's
/// own. An address or a network counts; `*` and a network that is broader than any block do not.
pub(crate) fn names_address(permits: &[PermittedTargetRule], to: SocketAddr) -> bool {
    let named = |permit: &PermittedTargetRule| match &permit.host {
        HostPattern::Network(network) => !network.is_broad() && network.contains(to.ip()),
        _ => false,
    };
    let of_port = |permit: &&PermittedTargetRule| permit.port.is_none_or(|own| own == to.port());
    permits.iter().filter(of_port).any(named)
}

/// Reports if a name in a rule refers to this machine: `localhost` or its own host name.
///
/// The owner of a DNS zone can point any other permitted name at an address of this machine (DNS
/// rebinding), so that other names lead to other machines only.
fn is_own_name(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    if name == "localhost" || name.ends_with(".localhost") || name == "ip6-localhost" {
        return true;
    }
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().to_ascii_lowercase();
    let is_first_label = |long: &str, short: &str| {
        let rest = long.strip_prefix(short);
        !short.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    is_first_label(&name, &host) || is_first_label(&host, &name)
}

impl PermittedTargetRule {
    /// Returns the network and the port of the rule; `None` matches all of them. A rule with a name
    /// has no network.
    pub(crate) fn addresses(&self) -> (Option<&IpNetwork>, Option<u16>) {
        match &self.host {
            HostPattern::Network(network) => (Some(network), self.port),
            _ => (None, self.port),
        }
    }

    /// Reports if the rule names hosts rather than addresses.
    pub fn is_of_names(&self) -> bool {
        matches!(self.host, HostPattern::Name(_) | HostPattern::Subdomains(_))
    }
}

impl HostPattern {
    fn verdict(&self, host: &HostSpec) -> TargetVerdict {
        let yes = |is: bool| {
            if is {
                TargetVerdict::Allowed
            } else {
                TargetVerdict::Denied
            }
        };
        let elsewhere = |may: bool| match may {
            true => TargetVerdict::AllowedUnlessLocal,
            false => TargetVerdict::Denied,
        };
        match (self, host) {
            (Self::All, HostSpec::Address(ip)) => elsewhere(!is_special(*ip)),
            (Self::All, _) => TargetVerdict::AllowedUnlessLocal,
            (Self::Network(network), HostSpec::Address(ip)) if network.is_broad() => {
                elsewhere(network.contains(*ip) && !is_special(*ip))
            }
            (Self::Network(network), HostSpec::Address(ip)) => yes(network.contains(*ip)),
            (Self::Name(own), HostSpec::Name(name)) if own.eq_ignore_ascii_case(name) => {
                match is_own_name(own) {
                    true => TargetVerdict::Allowed,
                    false => TargetVerdict::AllowedUnlessLocal,
                }
            }
            (Self::Subdomains(end), HostSpec::Name(name)) => {
                elsewhere(name.to_ascii_lowercase().ends_with(end.as_str()))
            }
            _ => TargetVerdict::Denied,
        }
    }
}

/// A text that permits no target. The message completes a sentence that begins with the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermittedTargetRuleError;

impl fmt::Display for PermittedTargetRuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("is not HOST:PORT (* stands for any host or port)")
    }
}

impl std::error::Error for PermittedTargetRuleError {}

impl FromStr for PermittedTargetRule {
    type Err = PermittedTargetRuleError;

    fn from_str(text: &str) -> Result<Self, PermittedTargetRuleError> {
        let wrong = PermittedTargetRuleError;
        let (host, port) = text.rsplit_once(':').ok_or(wrong)?;
        let port = match port {
            "*" => None,
            port => Some(port.parse().map_err(|_| wrong)?),
        };
        let bare = host.trim_matches(['[', ']']);
        let host = match host.strip_prefix("*.") {
            _ if host == "*" => HostPattern::All,
            Some(end) => HostPattern::Subdomains(format!(".{}", end.to_ascii_lowercase())),
            None => match bare.parse() {
                Ok(network) => HostPattern::Network(network),
                Err(_) => match HostSpec::of_client(host) {
                    Some(HostSpec::Name(name)) => HostPattern::Name(name),
                    _ => return Err(wrong),
                },
            },
        };
        Ok(Self { host, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_listed_may_be_connected_to() {
        let permits = |texts: &[&str]| {
            texts
                .iter()
                .map(|t| t.parse().unwrap())
                .collect::<Vec<PermittedTargetRule>>()
        };
        for (list, target, expected) in [
            (
                &["host.example:22"][..],
                "host.example:22",
                TargetVerdict::AllowedUnlessLocal,
            ),
            (
                &["host.example:22"],
                "HOST.example:22",
                TargetVerdict::AllowedUnlessLocal,
            ),
            (&["host:22"], "host:23", TargetVerdict::Denied),
            (
                &["host.example:*"],
                "host.example:23",
                TargetVerdict::AllowedUnlessLocal,
            ),
            (
                &["*.example.com:22"],
                "a.example.com:22",
                TargetVerdict::AllowedUnlessLocal,
            ),
            (
                &["*.example.com:22"],
                "example.com:22",
                TargetVerdict::Denied,
            ),
            (
                &["*.example.com:22"],
                "evilexample.com:22",
                TargetVerdict::Denied,
            ),
            (&["10.0.0.0/8:22"], "10.1.2.3:22", TargetVerdict::Allowed),
            (&["10.0.0.0/8:22"], "11.1.2.3:22", TargetVerdict::Denied),
            (&["10.0.0.0/8:22"], "name:22", TargetVerdict::Denied),
            (
                &["[2001:db8::]/32:22"],
                "[2001:db8::7]:22",
                TargetVerdict::Allowed,
            ),
            (&["*:22"], "name:22", TargetVerdict::AllowedUnlessLocal),
            // The kernel decides at connect time if the address is this machine's own.
            (&["*:22"], "192.0.2.1:22", TargetVerdict::AllowedUnlessLocal),
            (
                &["0.0.0.0/0:22"],
                "192.0.2.1:22",
                TargetVerdict::AllowedUnlessLocal,
            ),
            (&["0.0.0.0/0:22"], "127.0.0.1:22", TargetVerdict::Denied),
            (&["[::]/0:22"], "[::1]:22", TargetVerdict::Denied),
            // Bug, found by attack: only a prefix of 0 counted as all addresses.
            (&["127.0.0.0/7:22"], "127.0.0.1:22", TargetVerdict::Denied),
            (&["0.0.0.0/1:22"], "127.0.0.1:22", TargetVerdict::Denied),
            (&["[::]/1:22"], "[::1]:22", TargetVerdict::Denied),
            (&["[::]/64:22"], "[::1]:22", TargetVerdict::Denied),
            (&["[::1]/128:22"], "[::1]:22", TargetVerdict::Allowed),
            (&["127.0.0.0/8:22"], "127.0.0.1:22", TargetVerdict::Allowed),
            (&["*:22"], "127.0.0.1:22", TargetVerdict::Denied),
            (&["*:22"], "[::1]:22", TargetVerdict::Denied),
            (&["*:22"], "[::ffff:127.0.0.1]:22", TargetVerdict::Denied),
            (
                &["*:22", "127.0.0.1:22"],
                "127.0.0.1:22",
                TargetVerdict::Allowed,
            ),
            (
                &["*:22", "localhost:22"],
                "localhost:22",
                TargetVerdict::Allowed,
            ),
            (&[], "host:22", TargetVerdict::Denied),
        ] {
            let target = target.parse().unwrap();
            assert_eq!(
                verdict(&permits(list), &target),
                expected,
                "{list:?} {target}"
            );
        }
    }

    #[test]
    fn an_own_address_is_let_in_by_a_rule_that_names_it() {
        let permits = |texts: &[&str]| {
            let parsed = texts.iter().map(|text| text.parse().unwrap());
            parsed.collect::<Vec<PermittedTargetRule>>()
        };
        for (list, to, named) in [
            (&["192.0.2.1:22"][..], "192.0.2.1:22", true),
            (&["192.0.2.0/24:*"], "192.0.2.1:22", true),
            (&["192.0.2.0/24:23"], "192.0.2.1:22", false),
            (&["*:22", "host:22"], "192.0.2.1:22", false),
            (&["0.0.0.0/0:22"], "192.0.2.1:22", false),
            (&["192.0.2.0/24:22"], "[::ffff:192.0.2.1]:22", true),
        ] {
            assert_eq!(
                names_address(&permits(list), to.parse().unwrap()),
                named,
                "{list:?}"
            );
        }
        assert!(is_own_name("localhost.") && is_own_name("a.LOCALHOST"));
        assert!(!is_own_name("localhost.example.com"));
        let host = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        assert!(is_own_name(&host) && is_own_name(&format!("{host}.example.com")));
        assert!(!is_own_name(&format!("{host}s")));
    }

    #[test]
    fn what_is_no_permit() {
        for text in ["", "host", "host:", "a b:22", ":22", "host:x", "-x:22"] {
            assert!(text.parse::<PermittedTargetRule>().is_err(), "{text}");
        }
    }
}
