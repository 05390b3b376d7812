//! Firewall and routing rules that divert connections to a relay: the nft(8) and ip(8) commands
//! that add and remove them. This module only composes the commands; others run them.
//!
//! All rules of a listener are in one nftables table of their own, so that other tables stay
//! untouched and all rules are removed at once.

use std::fmt::{self, Write as _};
use std::net::IpAddr;

use crate::address::RelayEndpoint;
use crate::settings::{RedirectKind, RelaySettings};

/// Packet mark of the relay's own connections, which the rules never divert back to it.
pub(crate) const OWN_MARK: u32 = 0x6c68_0000;

/// One call of nft(8) or ip(8), which is composed here and run or printed by `longhaul relay
/// rules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirewallCommand {
    /// Program and arguments.
    pub words: Vec<String>,
    /// Standard input.
    pub input: Option<String>,
}

/// Commands that divert connections to one listener, and the commands that undo them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerRules {
    /// Commands that add the rules.
    pub add: Vec<FirewallCommand>,
    /// Commands that remove the rules.
    pub remove: Vec<FirewallCommand>,
}

/// nftables names and constants of one address family.
struct AddressFamilyNames {
    /// Name of the family in nft.
    nft: &'static str,
    ip: &'static str,
    loopback: &'static str,
    is: fn(&IpAddr) -> bool,
}

const FAMILIES: [AddressFamilyNames; 2] = [
    AddressFamilyNames {
        nft: "ip",
        ip: "-4",
        loopback: "127.0.0.1",
        is: IpAddr::is_ipv4,
    },
    AddressFamilyNames {
        nft: "ip6",
        ip: "-6",
        loopback: "::1",
        is: IpAddr::is_ipv6,
    },
];

/// Reason why there are no rules for a relay that listens at this place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerRulesError {
    /// The kernel chooses the port.
    NoFixedPort(RelayEndpoint),
    /// The place has no IP address.
    NoAddress(RelayEndpoint),
    /// The relay diverts nothing and keeps no addresses.
    NotNeeded(RelayEndpoint),
}

impl fmt::Display for ListenerRulesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFixedPort(place) => {
                write!(
                    f,
                    "{place}: rules need a fixed port: write one instead of 0"
                )
            }
            Self::NoAddress(place) => {
                write!(f, "{place}: rules need an IP address or a port alone")
            }
            Self::NotNeeded(place) => write!(
                f,
                "{place}: no rules needed: only redirect, tproxy and --keep-address need them"
            ),
        }
    }
}

impl std::error::Error for ListenerRulesError {}

impl ListenerRules {
    /// Composes the rules that a relay needs, for the address families that this machine has.
    ///
    /// # Errors
    /// Returns an error if the relay needs no rules, or if its port is not fixed.
    pub fn of(relay: &RelaySettings, has_ipv6: bool) -> Result<Self, ListenerRulesError> {
        let place = &relay.entrance.place;
        let addresses = match place {
            RelayEndpoint::Tcp { port: 0, .. } => {
                Err(ListenerRulesError::NoFixedPort(place.clone()))
            }
            place => place
                .addresses()
                .ok_or_else(|| ListenerRulesError::NoAddress(place.clone())),
        }?;
        if relay.speaks.diverted.is_none() && !relay.keep_address {
            return Err(ListenerRulesError::NotNeeded(place.clone()));
        }
        let port = addresses.first().map_or(0, |at| at.port());
        let ips: Vec<IpAddr> = addresses.iter().map(|at| at.ip()).collect();
        let families: Vec<&AddressFamilyNames> = FAMILIES
            .iter()
            .filter(|family| ips.iter().any(family.is) && (has_ipv6 || family.nft == "ip"))
            .collect();
        let table = NftTableBuilder { relay, port, ips };
        let name = format!("longhaul_{port}");
        let mark = format!("{:#x}", OWN_MARK | u32::from(port));
        let mut add = vec![nft(table.text(&name, &mark, &families))];
        let mut remove = vec![nft(format!("delete table inet {name}\n"))];
        if relay.speaks.diverted == Some(RedirectKind::Tproxy) || relay.keep_address {
            for family in families {
                let ip = |text: String| FirewallCommand {
                    words: text.split(' ').map(str::to_owned).collect(),
                    input: None,
                };
                let own = |text: &str| ip(format!("ip {} {text}", family.ip));
                let (rule, route) = (
                    format!("fwmark {mark} lookup {mark}"),
                    format!("local default dev lo table {mark}"),
                );
                add.push(own(&format!("rule add {rule}")));
                add.push(own(&format!("route add {route}")));
                remove.push(own(&format!("rule del {rule}")));
                remove.push(own(&format!("route del {route}")));
            }
        }
        Ok(Self { add, remove })
    }
}

fn nft(input: String) -> FirewallCommand {
    FirewallCommand {
        words: ["nft", "-f", "-"].map(str::to_owned).to_vec(),
        input: Some(input),
    }
}

/// Composer of the nftables table of a relay.
struct NftTableBuilder<'a> {
    relay: &'a RelaySettings,
    port: u16,
    ips: Vec<IpAddr>,
}

impl NftTableBuilder<'_> {
    fn text(&self, name: &str, mark: &str, families: &[&AddressFamilyNames]) -> String {
        // `create` fails if the table exists already, so that rules are never added twice.
        let mut text = format!("create table inet {name}\ntable inet {name} {{\n");
        let mut chain = |name: &str, lines: &[String]| {
            let _ = writeln!(text, "\tchain {name} {{");
            for line in lines {
                let _ = writeln!(text, "\t\t{line}");
            }
            text.push_str("\t}\n");
        };
        let hook = |text: &str| format!("type {text}; policy accept;");
        // Connections to this machine's own addresses are never diverted.
        let own = "fib daddr type local return".to_owned();
        let jump = "jump clients".to_owned();
        let diverted = self.relay.speaks.diverted;
        if diverted == Some(RedirectKind::Tproxy) || self.relay.keep_address {
            let known = "meta l4proto tcp socket wildcard 0 socket transparent 1";
            chain(
                "known",
                &[
                    hook("filter hook prerouting priority mangle - 1"),
                    format!("{known} meta mark set {mark} accept"),
                ],
            );
        }
        match diverted {
            None => {}
            Some(RedirectKind::Tproxy) => chain(
                "from_others",
                &[
                    hook("filter hook prerouting priority mangle"),
                    format!("meta mark {mark} return"),
                    own,
                    jump,
                ],
            ),
            Some(RedirectKind::Redirect) => {
                if !self.ips.iter().all(IpAddr::is_loopback) {
                    let hook = hook("nat hook prerouting priority dstnat");
                    chain("from_others", &[hook, own.clone(), jump.clone()]);
                }
                if self
                    .ips
                    .iter()
                    .any(|ip| ip.is_loopback() || ip.is_unspecified())
                {
                    let hook = hook("nat hook output priority -100");
                    let relays = format!("meta mark {OWN_MARK:#x} return");
                    chain("from_here", &[hook, relays, own, jump]);
                }
            }
        }
        if diverted.is_some() {
            chain("clients", &self.clients(families));
            chain("targets", &self.targets(mark, families));
        }
        text.push_str("}\n");
        text
    }

    /// Rules for the clients that may be diverted (`--allow`).
    fn clients(&self, families: &[&AddressFamilyNames]) -> Vec<String> {
        if self.relay.allow.is_empty() {
            return vec!["jump targets".to_owned()];
        }
        let of = |network: &crate::IpNetwork| {
            let mut families = families.iter();
            let family = families.find(|family| (family.is)(&network.address()))?;
            Some(format!("{} saddr {network} jump targets", family.nft))
        };
        self.relay.allow.iter().filter_map(of).collect()
    }

    /// Rules for the targets to which connections are diverted (`--to`).
    fn targets(&self, mark: &str, families: &[&AddressFamilyNames]) -> Vec<String> {
        let mut lines = Vec::new();
        for permit in &self.relay.permits {
            let (network, port) = permit.addresses();
            for family in families {
                let to = match network {
                    Some(network) if !(family.is)(&network.address()) => continue,
                    Some(network) => format!("{} daddr {network}", family.nft),
                    None if family.nft == "ip" => "meta nfproto ipv4".to_owned(),
                    None => "meta nfproto ipv6".to_owned(),
                };
                let what = match port {
                    Some(port) => format!("tcp dport {port}"),
                    None => "meta l4proto tcp".to_owned(),
                };
                lines.push(format!("{to} {what} {}", self.verdict(mark, family)));
            }
        }
        lines
    }

    fn verdict(&self, mark: &str, family: &AddressFamilyNames) -> String {
        let port = self.port;
        if self.relay.speaks.diverted == Some(RedirectKind::Redirect) {
            return format!("redirect to :{port}");
        }
        let own = self.ips.iter().find(|ip| (family.is)(ip));
        let ip = match own.filter(|ip| !ip.is_unspecified()) {
            Some(ip) => ip.to_string(),
            None => family.loopback.to_owned(),
        };
        let ip = if family.nft == "ip6" {
            format!("[{ip}]")
        } else {
            ip
        };
        format!(
            "tproxy {} to {ip}:{port} meta mark set {mark} accept",
            family.nft
        )
    }
}
