//! Where a server listens, as it is written.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs as _};

/// Whether it is `HOST:PORT` or `:PORT`; there may be no such host.
pub(crate) fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
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

/// `HOST:PORT`, or `:PORT` for all addresses of this machine, IPv4 alone where there is no IPv6.
pub(super) fn resolve(address: &str) -> io::Result<Vec<SocketAddr>> {
    let named = match address.strip_prefix(':') {
        Some(port) => vec![format!("[::]:{port}"), format!("0.0.0.0:{port}")],
        None => vec![address.to_owned()],
    };
    let mut all = Vec::new();
    for name in named {
        all.extend(name.to_socket_addrs()?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port() {
        for right in [
            ":2222",
            "127.0.0.1:0",
            "host.example:22",
            "[::1]:22",
            "[fe80::1%eth0]:22",
        ] {
            assert!(is_address(right), "{right}");
        }
        for wrong in [
            "",
            ":",
            "2222",
            "127.0.0.1",
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
