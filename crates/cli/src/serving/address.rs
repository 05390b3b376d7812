//! Parses the address that a server listens at.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs as _};

/// Returns true if the text has the form `HOST:PORT`, `:PORT`, `*:PORT` or a port alone; the host
/// need not exist.
pub(crate) fn is_address(text: &str) -> bool {
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host = match bare {
        Some(bare) => bare.contains(':'),
        None => {
            let plain = !host.contains([':', '[', ']', '/']) && !host.contains(char::is_whitespace);
            plain || host.parse::<Ipv6Addr>().is_ok()
        }
    };
    host && digits && port.parse::<u16>().is_ok()
}

/// Resolves the candidate addresses; the server listens at the first that is available.
///
/// `:PORT` and `*:PORT` mean all addresses of this machine, IPv4 alone without IPv6. A port alone
/// means loopback, as with `longhaul relay`: see [`ipv6_loopback`].
pub(super) fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    let named = match (
        address
            .strip_prefix('*')
            .unwrap_or(address)
            .strip_prefix(':'),
        address.contains(':'),
    ) {
        (Some(port), _) => vec![format!("[::]:{port}"), format!("0.0.0.0:{port}")],
        (None, true) => vec![address.to_owned()],
        (None, false) => vec![format!("127.0.0.1:{address}")],
    };
    let mut all = Vec::new();
    for name in named {
        all.extend(name.to_socket_addrs()?);
    }
    Ok(all)
}

/// The second address to listen at, if it exists: for a port alone that is `::1`.
pub(super) fn ipv6_loopback(address: &str, port: u16) -> Option<SocketAddr> {
    (!address.contains(':')).then(|| SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_this_machine_alone() {
        let all = resolve("2222").unwrap();
        assert_eq!(all, ["127.0.0.1:2222".parse().unwrap()]);
        assert_eq!(ipv6_loopback("2222", 2222), "[::1]:2222".parse().ok());
        assert_eq!(ipv6_loopback("127.0.0.1:2222", 2222), None);
        for text in [":2222", "*:2222"] {
            assert_eq!(resolve(text).unwrap()[0], "[::]:2222".parse().unwrap());
            assert_eq!(ipv6_loopback(text, 2222), None);
        }
    }

    #[test]
    fn an_address_has_a_port() {
        for right in [
            ":2222",
            "127.0.0.1:0",
            "host.example:22",
            "[::1]:22",
            "[fe80::1%eth0]:22",
            "2222",
            "0",
            "*:22",
        ] {
            assert!(is_address(right), "{right}");
        }
        for wrong in [
            "",
            ":",
            "22222222",
            "127.0.0.1",
            "host",
            ":x",
            ":65536",
            ":+1",
            "host:",
            "[::1]",
            "::1",
            "[]:22",
            "a b:22",
        ] {
            assert!(!is_address(wrong), "{wrong}");
        }
    }
}
