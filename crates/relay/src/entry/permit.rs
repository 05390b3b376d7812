//! Where clients that say themselves where to go may go.

use std::net::IpAddr;
use std::str::FromStr;

use crate::address::{Host, Place, Target};
use crate::network::Network;

/// `HOST:PORT`, of which HOST is a name, `*.example.com`, a network or `*`, and PORT a number or `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    host: Pattern,
    /// Any, if there is none.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    /// All but what is this machine's own business.
    All,
    Name(String),
    Under(String),
    Net(Network),
}

/// What a target may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may be connected to.
    Yes,
    /// It may be, unless it turns out to be this machine or its link.
    Elsewhere,
    /// It may not.
    No,
}

/// Whether a target is among what may be connected to.
pub fn verdict(permits: &[Permit], target: &Target) -> Verdict {
    let Place::Tcp { host, port } = &target.place else {
        return Verdict::No;
    };
    let of_port = permits
        .iter()
        .filter(|permit| permit.port.is_none_or(|own| own == *port));
    let verdicts = of_port.map(|permit| permit.host.verdict(host));
    verdicts.fold(Verdict::No, |one, other| match (one, other) {
        (Verdict::Yes, _) | (_, Verdict::Yes) => Verdict::Yes,
        (Verdict::Elsewhere, _) | (_, Verdict::Elsewhere) => Verdict::Elsewhere,
        _ => Verdict::No,
    })
}

/// Whether an address is this machine, or a link of it that nobody else can reach.
pub fn is_own(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_unspecified() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unspecified() || ip.is_unicast_link_local(),
    }
}

impl Permit {
    /// The addresses and the port that it names, all where it names none; no addresses have names.
    pub(crate) fn addresses(&self) -> (Option<&Network>, Option<u16>) {
        match &self.host {
            Pattern::Net(network) => (Some(network), self.port),
            _ => (None, self.port),
        }
    }

    /// Whether it is about names.
    pub fn is_of_names(&self) -> bool {
        matches!(self.host, Pattern::Name(_) | Pattern::Under(_))
    }
}

impl Pattern {
    fn verdict(&self, host: &Host) -> Verdict {
        let yes = |is: bool| if is { Verdict::Yes } else { Verdict::No };
        match (self, host) {
            (Self::All, Host::Address(ip)) => match is_own(*ip) {
                true => Verdict::No,
                false => Verdict::Yes,
            },
            (Self::All, _) => Verdict::Elsewhere,
            (Self::Net(network), Host::Address(ip)) => yes(network.contains(*ip)),
            (Self::Name(own), Host::Name(name)) => yes(own.eq_ignore_ascii_case(name)),
            (Self::Under(end), Host::Name(name)) => {
                match name.to_ascii_lowercase().ends_with(end.as_str()) {
                    true => Verdict::Elsewhere,
                    false => Verdict::No,
                }
            }
            _ => Verdict::No,
        }
    }
}

impl FromStr for Permit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "is not HOST:PORT, with * for any".to_owned();
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = match port {
            "*" => None,
            port => Some(port.parse().map_err(|_| wrong())?),
        };
        let bare = host.trim_matches(['[', ']']);
        let host = match host.strip_prefix("*.") {
            _ if host == "*" => Pattern::All,
            Some(end) => Pattern::Under(format!(".{}", end.to_ascii_lowercase())),
            None => match bare.parse() {
                Ok(network) => Pattern::Net(network),
                Err(_) => match Host::of_client(host) {
                    Some(Host::Name(name)) => Pattern::Name(name),
                    _ => return Err(wrong()),
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
                .collect::<Vec<Permit>>()
        };
        for (list, target, expected) in [
            (&["host:22"][..], "host:22", Verdict::Yes),
            (&["host:22"], "HOST:22", Verdict::Yes),
            (&["host:22"], "host:23", Verdict::No),
            (&["host:*"], "host:23", Verdict::Yes),
            (
                &["*.example.com:22"],
                "a.example.com:22",
                Verdict::Elsewhere,
            ),
            (&["*.example.com:22"], "example.com:22", Verdict::No),
            (&["*.example.com:22"], "evilexample.com:22", Verdict::No),
            (&["10.0.0.0/8:22"], "10.1.2.3:22", Verdict::Yes),
            (&["10.0.0.0/8:22"], "11.1.2.3:22", Verdict::No),
            (&["10.0.0.0/8:22"], "name:22", Verdict::No),
            (&["[2001:db8::]/32:22"], "[2001:db8::7]:22", Verdict::Yes),
            (&["*:22"], "name:22", Verdict::Elsewhere),
            (&["*:22"], "192.0.2.1:22", Verdict::Yes),
            (&["*:22"], "127.0.0.1:22", Verdict::No),
            (&["*:22"], "[::1]:22", Verdict::No),
            (&["*:22"], "[::ffff:127.0.0.1]:22", Verdict::No),
            (&["*:22", "127.0.0.1:22"], "127.0.0.1:22", Verdict::Yes),
            (&["*:22", "localhost:22"], "localhost:22", Verdict::Yes),
            (&[], "host:22", Verdict::No),
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
    fn what_is_no_permit() {
        for text in ["", "host", "host:", "a b:22", ":22", "host:x", "-x:22"] {
            assert!(text.parse::<Permit>().is_err(), "{text}");
        }
    }
}
