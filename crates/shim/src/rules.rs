//! The rules in `LONGHAUL_WRAP`, separated by commas:
//!
//! | word | meaning |
//! |---|---|
//! | `tune` | tune far connections; this is the default |
//! | `no-tune` | tune no connections |
//! | `always` | tune all connections at their start, near ones too |
//! | `dscp=N` | DSCP that replaces the program's, 0 to 63; default 0 |
//! | `congestion=NAME` | congestion control of far connections; default BBR |
//! | `route=DEST=VIA` | connections to DEST go to VIA, a relay |
//! | `filter=DEST` | the carrier carries the bytes of connections to DEST, if there is one |
//! | `carrier=NAME@PORT` | the carrier's abstract UNIX socket and its port on 127.0.0.1 |
//! | `report=FILE` | append a line for each connection to FILE; last, since it may have commas |
//!
//! DEST is `ADDR[/BITS][:PORT]` (an IPv6 address before a port is in brackets) or `*[:PORT]`, VIA
//! is `ADDR:PORT` or `socks5://ADDR:PORT`.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Maximum number of routes.
pub const ROUTES: usize = 32;
/// Maximum number of filters.
pub const FILTERS: usize = 8;
/// Longest name of a carrier, in bytes.
pub const CARRIER: usize = 64;

/// The parsed rules, which borrow from the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrapRules<'a> {
    /// Tune far connections.
    pub tune: bool,
    /// Tune all connections, at their start.
    pub always: bool,
    /// The DSCP of tuned connections.
    pub dscp: u8,
    /// The congestion control of tuned connections.
    pub congestion: Option<&'a str>,
    /// The file of the report.
    pub report: Option<&'a str>,
    /// The carrier, if there is one.
    pub carrier: Option<CarrierAddress<'a>>,
    routes: [Option<RedirectRule>; ROUTES],
    filters: [Option<NetworkRule>; FILTERS],
}

/// The address of the process that carries bytes for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CarrierAddress<'a> {
    /// The carrier's abstract UNIX socket, for messages.
    pub name: &'a str,
    /// The carrier's port on 127.0.0.1, for connections over a proxy.
    pub port: u16,
}

/// A rule that sends connections to `to` over `via`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedirectRule {
    /// The destinations.
    pub to: NetworkRule,
    /// Address of the relay.
    pub via: SocketAddr,
    /// The relay is a SOCKS 5 proxy.
    pub socks: bool,
}

/// A network, at one port or any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkRule {
    /// Address and prefix length; `None` for any address.
    pub ip: Option<(IpAddr, u8)>,
    /// The port; `None` for any.
    pub port: Option<u16>,
}

/// Rule of `LONGHAUL_WRAP` that cannot be parsed, for the message to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrapRuleError<'a> {
    /// The rule.
    pub word: &'a str,
    /// The reason, without a full stop.
    pub why: &'static str,
}

impl Default for WrapRules<'_> {
    fn default() -> Self {
        Self {
            tune: true,
            always: false,
            dscp: 0,
            congestion: None,
            report: None,
            carrier: None,
            routes: [None; ROUTES],
            filters: [None; FILTERS],
        }
    }
}

impl<'a> WrapRules<'a> {
    /// Parses the rules.
    ///
    /// # Errors
    /// The first invalid rule.
    pub fn parse(text: &'a str) -> Result<Self, WrapRuleError<'a>> {
        let mut rules = Self::default();
        let mut rest = text;
        let mut routes = 0;
        while !rest.is_empty() {
            if let Some(file) = rest.strip_prefix("report=") {
                if !file.starts_with('/') {
                    return Err(wrong(rest, "is not an absolute path"));
                }
                rules.report = Some(file);
                break;
            }
            let (word, after) = rest.split_once(',').unwrap_or((rest, ""));
            rest = after;
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match (name, value) {
                ("", "") => {}
                ("tune", "") => rules.tune = true,
                ("no-tune", "") => rules.tune = false,
                ("always", "") => rules.always = true,
                ("dscp", mark) => {
                    rules.dscp = match mark.parse() {
                        Ok(mark @ 0..=63) => mark,
                        _ => return Err(wrong(word, "is not a number from 0 to 63")),
                    };
                }
                ("congestion", name) => {
                    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
                    if name.is_empty() || name.len() > 15 || !name.bytes().all(plain) {
                        return Err(wrong(word, "is not the name of a congestion control"));
                    }
                    rules.congestion = Some(name);
                }
                ("route", route) => {
                    let route = RedirectRule::parse(route).map_err(|why| wrong(word, why))?;
                    let Some(place) = rules.routes.get_mut(routes) else {
                        return Err(wrong(word, "is one route too many: use fewer"));
                    };
                    *place = Some(route);
                    routes += 1;
                }
                ("filter", net) => {
                    let net = NetworkRule::parse(net).ok_or_else(|| {
                        wrong(
                            word,
                            "is not a destination: use ADDR[/BITS][:PORT] or *[:PORT]",
                        )
                    })?;
                    let place = rules.filters.iter_mut().find(|place| place.is_none());
                    let place = place.ok_or_else(|| wrong(word, "exceeds the limit of filters"))?;
                    *place = Some(net);
                }
                ("carrier", carrier) => {
                    let carrier = CarrierAddress::parse(carrier);
                    let carrier =
                        carrier.ok_or_else(|| wrong(word, "is not a carrier: use NAME@PORT"))?;
                    rules.carrier = Some(carrier);
                }
                _ => return Err(wrong(word, "is not a rule")),
            }
        }
        if rules.always && !rules.tune {
            return Err(wrong(text, "has both always and no-tune: leave one out"));
        }
        if rules.filters[0].is_some() && rules.carrier.is_none() {
            return Err(wrong(
                text,
                "has a filter, which needs a process beside the program, and no environment \
                 variable starts one: run 'longhaul wrap --filter=DEST PROGRAM' instead, or \
                 'longhaul wrap --filter=DEST sh' for all programs of a shell",
            ));
        }
        Ok(rules)
    }

    /// Returns true if connections to this address are to be filtered.
    pub fn filters(&self, to: SocketAddr) -> bool {
        let mut filters = self.filters.iter().map_while(|net| *net);
        filters.any(|net| net.has(to))
    }

    /// The first route that matches this address.
    pub fn route(&self, to: SocketAddr) -> Option<RedirectRule> {
        let mut routes = self.routes.iter().map_while(|route| *route);
        routes.find(|route| route.to.has(to))
    }

    /// All routes.
    pub fn routes(&self) -> impl Iterator<Item = RedirectRule> + use<'_> {
        self.routes.iter().map_while(|route| *route)
    }
}

fn wrong<'a>(word: &'a str, why: &'static str) -> WrapRuleError<'a> {
    WrapRuleError { word, why }
}

impl<'a> CarrierAddress<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (name, port) = text.split_once('@')?;
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        let fits = !name.is_empty() && name.len() <= CARRIER && name.bytes().all(plain);
        let port = port.parse().ok().filter(|port| *port > 0 && fits)?;
        Some(Self { name, port })
    }
}

impl RedirectRule {
    /// Parses `DEST=VIA`.
    ///
    /// # Errors
    /// The reason, without a full stop.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (to, via) = text
            .split_once('=')
            .ok_or("is not DEST=VIA, such as 192.0.2.1:80=127.0.0.1:9080")?;
        let to = NetworkRule::parse(to)
            .ok_or("has an invalid destination: use ADDR[/BITS][:PORT] or *[:PORT]")?;
        let (socks, via) = match via.strip_prefix("socks5://") {
            Some(via) => (true, via),
            None => (false, via),
        };
        let via: SocketAddr = via
            .parse()
            .map_err(|_| "has an invalid relay: use ADDR:PORT or socks5://ADDR:PORT")?;
        match via.port() {
            0 => Err("has a relay with port 0"),
            _ => Ok(Self { to, via, socks }),
        }
    }
}

impl NetworkRule {
    /// Parses `ADDR[/BITS][:PORT]` or `*[:PORT]`.
    pub fn parse(text: &str) -> Option<Self> {
        let port = |text: &str| match text {
            "" => Some(None),
            text => {
                let port = text.strip_prefix(':')?.parse().ok().filter(|p| *p > 0)?;
                Some(Some(port))
            }
        };
        if let Some(rest) = text.strip_prefix('*') {
            let port = port(rest)?;
            return Some(Self { ip: None, port });
        }
        let (ip, rest) = match text.strip_prefix('[') {
            Some(text) => {
                let (ip, rest) = text.split_once(']')?;
                (IpAddr::V6(ip.parse().ok()?), rest)
            }
            None if text.bytes().filter(|b| *b == b':').count() > 1 => {
                let end = text.find('/').unwrap_or(text.len());
                let (ip, rest) = text.split_at_checked(end)?;
                (IpAddr::V6(ip.parse().ok()?), rest)
            }
            None => {
                let end = text.find(['/', ':']).unwrap_or(text.len());
                let (ip, rest) = text.split_at_checked(end)?;
                (IpAddr::V4(ip.parse().ok()?), rest)
            }
        };
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let (bits, rest) = match rest.strip_prefix('/') {
            None => (most, rest),
            Some(rest) => {
                let end = rest.find(':').unwrap_or(rest.len());
                let (bits, rest) = rest.split_at_checked(end)?;
                (bits.parse().ok().filter(|bits| *bits <= most)?, rest)
            }
        };
        let port = port(rest)?;
        let ip = Some((ip, bits));
        Some(Self { ip, port })
    }

    fn has(&self, to: SocketAddr) -> bool {
        if self.port.is_some_and(|port| port != to.port()) {
            return false;
        }
        let Some((net, bits)) = self.ip else {
            return true;
        };
        let (net, to, bits) = match (net, plain(to.ip())) {
            (IpAddr::V4(net), IpAddr::V4(to)) => {
                let wide = |ip: core::net::Ipv4Addr| u128::from(u32::from(ip)) << 96;
                (wide(net), wide(to), bits)
            }
            (IpAddr::V6(net), IpAddr::V6(to)) => (u128::from(net), u128::from(to), bits),
            _ => return false,
        };
        (net ^ to).leading_zeros() >= bits.into()
    }
}

/// Converts an IPv4-mapped IPv6 address to IPv4 (RFC 4291, 2.5.5.2).
pub(crate) fn plain(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

/// Converts an address to the form for an IPv6 socket.
pub(crate) fn mapped(to: SocketAddr) -> Ipv6Addr {
    match to.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::ToOwned as _;
    use std::string::String;
    use std::vec::Vec;

    #[test]
    fn words_in_any_order_and_the_report_at_the_end() {
        let text = "always,dscp=8,,congestion=bbr,route=*:443=127.0.0.1:9,report=/a,b";
        let rules = WrapRules::parse(text).unwrap();
        assert!(rules.tune && rules.always);
        assert_eq!((rules.dscp, rules.congestion), (8, Some("bbr")));
        assert_eq!(rules.report, Some("/a,b"));
        assert_eq!(rules.routes().count(), 1);
        assert_eq!(WrapRules::parse(""), Ok(WrapRules::default()));
    }

    #[test]
    fn what_is_no_rule_is_named() {
        for (text, word) in [
            ("tune,alwys", "alwys"),
            ("tune=1", "tune=1"),
            ("dscp=64", "dscp=64"),
            ("dscp", "dscp"),
            ("congestion=a b", "congestion=a b"),
            ("congestion=abcdefghijklmnop", "congestion=abcdefghijklmnop"),
            ("route=1.2.3.4", "route=1.2.3.4"),
            ("route=host=127.0.0.1:1", "route=host=127.0.0.1:1"),
            ("route=*=127.0.0.1:0", "route=*=127.0.0.1:0"),
            (
                "route=1.2.3.4/33=127.0.0.1:1",
                "route=1.2.3.4/33=127.0.0.1:1",
            ),
            ("report=x", "report=x"),
            ("always,no-tune", "always,no-tune"),
            ("carrier=a@1,filter=x", "filter=x"),
            ("filter=*", "filter=*"),
            ("carrier=a b@1", "carrier=a b@1"),
            ("carrier=a@0", "carrier=a@0"),
            ("carrier=a", "carrier=a"),
        ] {
            assert_eq!(WrapRules::parse(text).unwrap_err().word, word, "{text}");
        }
        let many: Vec<_> = (0..=ROUTES)
            .map(|_| String::from("route=*=127.0.0.1:1"))
            .collect();
        assert!(WrapRules::parse(&many[1..].join(",")).is_ok());
        assert!(WrapRules::parse(&many.join(",")).is_err());
    }

    #[test]
    fn what_is_filtered_is_named() {
        let rules = WrapRules::parse("filter=192.0.2.0/24,filter=*:80,carrier=a-1@9").unwrap();
        let carrier = CarrierAddress {
            name: "a-1",
            port: 9,
        };
        assert_eq!(rules.carrier, Some(carrier));
        for (to, is) in [
            ("192.0.2.1:1", true),
            ("[::1]:80", true),
            ("[::1]:81", false),
        ] {
            assert_eq!(rules.filters(to.parse().unwrap()), is, "{to}");
        }
        let many = "filter=*,".repeat(FILTERS) + "carrier=a@1";
        assert!(WrapRules::parse(&many).is_ok());
        assert!(WrapRules::parse(&("filter=*,".to_owned() + &many)).is_err());
    }

    #[test]
    fn the_first_route_that_fits_is_taken() {
        let text = "route=192.0.2.0/24:22=127.0.0.1:1,route=2001:db8::/32=127.0.0.1:2,\
                    route=[2001:db9::1]:80=[::1]:3,route=*:80=socks5://127.0.0.1:4";
        let rules = WrapRules::parse(text).unwrap();
        for (to, via) in [
            ("192.0.2.7:22", Some(1)),
            ("[::ffff:192.0.2.7]:22", Some(1)),
            ("192.0.2.7:23", None),
            ("192.0.3.7:22", None),
            ("[2001:db8:ffff::1]:5", Some(2)),
            ("[2001:db9::1]:80", Some(3)),
            ("[2001:db9::2]:80", Some(4)),
            ("10.0.0.1:80", Some(4)),
            ("10.0.0.1:81", None),
        ] {
            let route = rules.route(to.parse().unwrap());
            assert_eq!(route.map(|route| route.via.port()), via, "{to}");
            assert_eq!(route.is_some_and(|route| route.socks), via == Some(4));
        }
        let all = WrapRules::parse("route=0.0.0.0/0=127.0.0.1:1").unwrap();
        assert!(all.route("9.9.9.9:1".parse().unwrap()).is_some());
        assert!(all.route("[::1]:1".parse().unwrap()).is_none());
    }
}
