//! Converts flags to the rules that the library reads. Host names are resolved here, since the
//! library does not use DNS.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};

use shim::rules::{NetworkRule, WrapRules};

use crate::flags::argument_error::ArgumentError;
use crate::flags::low::WrapArgs;

/// Prefix of a SOCKS proxy in a route.
const SOCKS: &str = "socks5://";

/// Returns true if a carrier is needed: for filters, and for non-blocking sockets over a proxy.
pub(super) fn need_a_carrier(args: &WrapArgs) -> bool {
    let by_proxy = |route: &String| route.contains(&["=", SOCKS].concat());
    !args.filters.is_empty() || args.routes.iter().any(by_proxy)
}

/// Builds the rules, without the one of the report; `carrier` is the carrier's rule.
///
/// # Errors
/// A rule is invalid; a sentence.
pub(super) fn build(args: &WrapArgs, carrier: Option<&str>) -> Result<String, ArgumentError> {
    let mut words = Vec::new();
    if args.no_tune {
        words.push("no-tune".to_owned());
    }
    if args.always {
        words.push("always".to_owned());
    }
    if args.dscp.value() != 0 {
        words.push(format!("dscp={}", args.dscp.value()));
    }
    if let Some(name) = &args.congestion {
        words.push(format!("congestion={name}"));
    }
    for route in &args.routes {
        let wrong = |why: ArgumentError| {
            format!("--route: '{}' {why}", wire::escape::name(route.as_bytes()))
        };
        let (to, via) = route
            .split_once('=')
            .ok_or_else(|| wrong("is not DEST=VIA, such as host:80=localhost:9080".into()))?;
        let (scheme, via) = match via.strip_prefix(SOCKS) {
            Some(via) => (SOCKS, via),
            None => ("", via),
        };
        let via = relay(via).map_err(wrong)?;
        for to in destinations(to).map_err(wrong)? {
            words.push(format!("route={to}={scheme}{via}"));
        }
    }
    for filter in &args.filters {
        let wrong = |why: ArgumentError| {
            format!(
                "--filter: '{}' {why}",
                wire::escape::name(filter.as_bytes())
            )
        };
        for to in destinations(filter).map_err(wrong)? {
            words.push(format!("filter={to}"));
        }
    }
    if let Some(carrier) = carrier {
        words.push(carrier.to_owned());
    }
    let text = words.join(",");
    match WrapRules::parse(&text) {
        Ok(_) => Ok(text),
        Err(error) => Err(format!(
            "'{}' {}",
            wire::escape::name(error.word.as_bytes()),
            error.why
        )
        .into()),
    }
}

/// Converts a destination to the library's form: one for each address of a name.
fn destinations(text: &str) -> Result<Vec<String>, ArgumentError> {
    if NetworkRule::parse(text).is_some() {
        return Ok(vec![text.to_owned()]);
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok_and(|port| port > 0) => (host, Some(port)),
        Some(_) => {
            return Err(
                "has an invalid port: use HOST, HOST:PORT or a network such as 10.0.0.0/8".into(),
            );
        }
        None => (text, None),
    };
    let shown = |ip: IpAddr| match (ip, port) {
        (IpAddr::V6(ip), Some(port)) => format!("[{ip}]:{port}"),
        (IpAddr::V4(ip), Some(port)) => format!("{ip}:{port}"),
        (ip, None) => ip.to_string(),
    };
    let mut all: Vec<_> = resolve(host, 0)?.map(|at| shown(at.ip())).collect();
    all.sort();
    all.dedup();
    Ok(all)
}

fn relay(text: &str) -> Result<SocketAddr, ArgumentError> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let named = text.rsplit_once(':');
    let named = named.and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = named.ok_or("has an invalid relay: use HOST:PORT")?;
    // An IPv6 socket can reach IPv4, but not the reverse.
    let mut all: Vec<_> = resolve(host, port)?.collect();
    all.sort_by_key(SocketAddr::is_ipv6);
    let first = all.first().copied();
    first.ok_or_else(|| {
        format!(
            "names the relay {}, which has no IP address: check the name",
            wire::escape::name(host.as_bytes())
        )
        .into()
    })
}

fn resolve(host: &str, port: u16) -> Result<impl Iterator<Item = SocketAddr>, ArgumentError> {
    let found = (host, port).to_socket_addrs();
    found.map_err(|e| {
        format!(
            "names {}, which cannot be resolved: {e}",
            wire::escape::name(host.as_bytes())
        )
        .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(routes: &[&str]) -> Result<String, ArgumentError> {
        let args = WrapArgs {
            routes: routes.iter().map(|route| (*route).to_owned()).collect(),
            ..WrapArgs::default()
        };
        build(&args, None)
    }

    #[test]
    fn flags_become_the_words_that_the_library_reads() {
        let args = WrapArgs {
            always: true,
            dscp: lab::path::Dscp::new(10),
            congestion: Some("reno".to_owned()),
            routes: vec!["192.0.2.0/24:22=127.0.0.1:9".to_owned()],
            ..WrapArgs::default()
        };
        let text = "always,dscp=10,congestion=reno,route=192.0.2.0/24:22=127.0.0.1:9";
        assert_eq!(build(&args, None).unwrap(), text);
        assert_eq!(built(&[]).unwrap(), "");
    }

    #[test]
    fn a_filter_or_a_proxy_needs_somebody_who_carries() {
        let filtering = WrapArgs {
            filters: vec!["192.0.2.1".to_owned(), "*:80".to_owned()],
            ..WrapArgs::default()
        };
        assert!(need_a_carrier(&filtering));
        let text = build(&filtering, Some("carrier=a@1")).unwrap();
        assert_eq!(text, "filter=192.0.2.1,filter=*:80,carrier=a@1");
        let routed = |route: &str| WrapArgs {
            routes: vec![route.to_owned()],
            ..WrapArgs::default()
        };
        assert!(need_a_carrier(&routed("*=socks5://127.0.0.1:1")));
        assert!(!need_a_carrier(&routed("*=127.0.0.1:1")));
        let wrong = WrapArgs {
            filters: vec!["no-such-host.invalid".to_owned()],
            ..WrapArgs::default()
        };
        assert!(
            build(&wrong, None)
                .unwrap_err()
                .to_string()
                .contains("--filter: 'no-such")
        );
    }

    #[test]
    fn names_become_addresses() {
        let text = built(&["localhost:80=localhost:9", "*=socks5://[::1]:5"]).unwrap();
        assert!(text.contains("route=127.0.0.1:80=127.0.0.1:9"), "{text}");
        assert!(text.ends_with("route=*=socks5://[::1]:5"), "{text}");
    }

    #[test]
    fn what_cannot_be_is_a_sentence() {
        for (route, says) in [
            ("x", "is not DEST=VIA"),
            (
                "127.0.0.1:x=127.0.0.1:1",
                "has an invalid port: use HOST, HOST:PORT or a network such as 10.0.0.0/8",
            ),
            ("127.0.0.1=y", "has an invalid relay"),
            ("127.0.0.1=127.0.0.1:0", "port 0"),
            ("no-such-host.invalid=127.0.0.1:1", "cannot be resolved"),
        ] {
            let why = built(&[route]).expect_err(route).to_string();
            assert!(why.contains(says), "{route}: {why}");
        }
        assert!(
            built(&["*=127.0.0.1:1"; 40])
                .unwrap_err()
                .to_string()
                .contains("is one route too many")
        );
    }
}
