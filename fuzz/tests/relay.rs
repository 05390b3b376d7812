//! Fuzzes the requests of a relay's clients, and the socket options of its command line.

use fuzz::{Corpus, parse};
use relay::entry::proxy::{ProxyAddresses, ProxyVersion, header};
use relay::entry::{HandshakeParseResult, http, proxy, socks};
use relay::sockopt::SocketOptionSettings;

fn headers() -> Corpus {
    let ends = |source: &str, destination: &str| {
        Some(ProxyAddresses {
            source: source.parse().expect("an address"),
            destination: destination.parse().expect("an address"),
        })
    };
    let v4 = ends("192.0.2.1:5", "198.51.100.1:22");
    let v6 = ends("[2001:db8::1]:5", "[2001:db8::2]:22");
    Corpus(vec![
        ("line", header(ProxyVersion::V1, v4)),
        ("line of IPv6", header(ProxyVersion::V1, v6)),
        ("binary", header(ProxyVersion::V2, v4)),
        ("binary of IPv6", header(ProxyVersion::V2, v6)),
        ("local", header(ProxyVersion::V2, None)),
    ])
}

/// A complete message stays the same whatever follows it, and no parser waits forever.
fn is_settled<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    longest: usize,
    read: fn(&[u8]) -> HandshakeParseResult<T>,
) {
    let first = read(bytes);
    if let HandshakeParseResult::Done(_, len) = &first {
        assert!(*len <= bytes.len());
        assert_eq!(read(&[bytes, b"more"].concat()), first);
    }
    let mut long = bytes.to_vec();
    long.resize(longest.max(bytes.len()) + 16, b'x');
    assert_ne!(read(&long), HandshakeParseResult::Incomplete);
}

#[test]
fn proxy_headers() {
    let corpus = headers();
    parse(600, |u| {
        is_settled(&corpus.mutant(u)?, proxy::LONGEST, proxy::parse);
        Ok(())
    });
}

#[test]
fn requests() {
    let corpus = Corpus(vec![
        ("IPv4", vec![5, 1, 0, 1, 192, 0, 2, 1, 0, 22]),
        ("name", b"\x05\x01\x00\x03\x04host\x00\x16".to_vec()),
        ("greeting", vec![5, 2, 0, 1]),
        (
            "CONNECT",
            b"CONNECT host:22 HTTP/1.1\r\nHost: host\r\n\r\n".to_vec(),
        ),
    ]);
    parse(600, |u| {
        let bytes = corpus.mutant(u)?;
        is_settled(&bytes, 300, socks::greeting);
        is_settled(&bytes, 300, socks::request);
        is_settled(&bytes, http::LONGEST, http::request);
        Ok(())
    });
}

#[test]
fn socket_options() {
    let corpus = Corpus(vec![
        ("case 1", b"buffsize:1024kic+1024kos".to_vec()),
        (
            "map",
            b"buffsize:64kis:tcprelay:*.example.com,!h:[2001:db8::/32]".to_vec(),
        ),
        ("others", b"keepalive+share+reuse".to_vec()),
    ]);
    parse(300, |u| {
        let bytes = corpus.mutant(u)?;
        let mut sockopts = SocketOptionSettings::default();
        if sockopts.add(&String::from_utf8_lossy(&bytes)).is_ok() {
            sockopts.for_all();
            sockopts.for_connection("a.example.com", "::1".parse().ok(), None);
        }
        Ok(())
    });
}
