//! PROXY protocol of haproxy (proxy-protocol.txt, 2020/03/05): a header in front of the payload
//! that names the original client and destination of a connection.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::HandshakeParseResult;

/// Section 2.2: signature of a binary header, which no text protocol begins with.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Section 2.1: maximum length of a version 1 line, including CRLF.
const LONGEST_LINE: usize = 107;
/// Maximum length of a version 2 header; its additions (TLVs) could make it up to 64 KiB long.
pub const LONGEST: usize = 4096;

/// Addresses of both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyAddresses {
    /// Address of the client.
    pub source: SocketAddr,
    /// Address that the client connected to.
    pub destination: SocketAddr,
}

/// Form of the PROXY header that a relay sends to its target, from the operand's word `proxy`,
/// `proxy1` or `proxy2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyVersion {
    /// Version 1: a line of text.
    V1,
    /// Version 2: binary.
    V2,
}

/// Parses a header of either version; `None` if it has no addresses (LOCAL, UNKNOWN).
pub fn parse(bytes: &[u8]) -> HandshakeParseResult<Option<ProxyAddresses>> {
    let begin = bytes.len().min(SIGNATURE.len());
    if bytes.get(..begin) == SIGNATURE.get(..begin) && begin > 1 {
        return parse_binary(bytes);
    }
    let line = b"PROXY ";
    let begin = bytes.len().min(line.len());
    let is_signature = bytes.first() == SIGNATURE.first() && bytes.len() < 2;
    if bytes.get(..begin) != line.get(..begin) && !is_signature {
        return HandshakeParseResult::Invalid(
            "the client did not send a PROXY header, which a LISTEN with proxy requires",
        );
    }
    let within = bytes
        .get(..bytes.len().min(LONGEST_LINE))
        .unwrap_or_default();
    match within.windows(2).position(|end| end == b"\r\n") {
        Some(at) => {
            let line = within.get(..at).unwrap_or_default();
            match parse_line(line) {
                Some(ends) => HandshakeParseResult::Done(ends, at + 2),
                None => HandshakeParseResult::Invalid("the PROXY header is malformed"),
            }
        }
        None if bytes.len() >= LONGEST_LINE => {
            HandshakeParseResult::Invalid("the PROXY header has no line end")
        }
        None => HandshakeParseResult::Incomplete,
    }
}

/// Parses a version 1 line without its CRLF: `PROXY TCP4 192.0.2.1 198.51.100.1 56324 443`.
fn parse_line(line: &[u8]) -> Option<Option<ProxyAddresses>> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split(' ').skip(1);
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(None);
    }
    let (source, destination) = (words.next()?, words.next()?);
    let ip = |text: &str| -> Option<IpAddr> {
        match family {
            "TCP4" => text.parse::<Ipv4Addr>().ok().map(Into::into),
            "TCP6" => text.parse::<Ipv6Addr>().ok().map(Into::into),
            _ => None,
        }
    };
    // Section 2.1: decimal digits only, without leading zeroes.
    let port = |text: &str| {
        let plain =
            text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
        text.parse::<u16>().ok().filter(|_| plain)
    };
    let ends = ProxyAddresses {
        source: SocketAddr::new(ip(source)?, port(words.next()?)?),
        destination: SocketAddr::new(ip(destination)?, port(words.next()?)?),
    };
    words.next().is_none().then_some(Some(ends))
}

fn parse_binary(bytes: &[u8]) -> HandshakeParseResult<Option<ProxyAddresses>> {
    let Some((head, rest)) = bytes.split_at_checked(16) else {
        return HandshakeParseResult::Incomplete;
    };
    let [.., version, family, high, low] = head else {
        return HandshakeParseResult::Incomplete;
    };
    let len = usize::from(u16::from_be_bytes([*high, *low]));
    if len + 16 > LONGEST {
        return HandshakeParseResult::Invalid("the PROXY header is too long");
    }
    let is_local = match version {
        0x20 => true,
        0x21 => false,
        _ => {
            return HandshakeParseResult::Invalid(
                "the PROXY header has an unknown version or command",
            );
        }
    };
    let Some(body) = rest.get(..len) else {
        return HandshakeParseResult::Incomplete;
    };
    if is_local {
        return HandshakeParseResult::Done(None, 16 + len);
    }
    let ends = match family {
        0x11 => ends_of::<4>(body),
        0x21 => ends_of::<16>(body),
        // Section 2.2: address families that the receiver does not know are skipped.
        _ => return HandshakeParseResult::Done(None, 16 + len),
    };
    match ends {
        Some(ends) => HandshakeParseResult::Done(Some(ends), 16 + len),
        None => HandshakeParseResult::Invalid("the PROXY header is too short for its addresses"),
    }
}

/// Parses two addresses of `N` bytes and two ports.
fn ends_of<const N: usize>(body: &[u8]) -> Option<ProxyAddresses> {
    let ip = |at: usize| -> Option<IpAddr> {
        let bytes = body.get(at..at + N)?;
        match N {
            4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
            _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        }
    };
    let port = |at: usize| Some(u16::from_be_bytes(body.get(at..at + 2)?.try_into().ok()?));
    Some(ProxyAddresses {
        source: SocketAddr::new(ip(0)?, port(2 * N)?),
        destination: SocketAddr::new(ip(N)?, port(2 * N + 2)?),
    })
}

/// Encodes a header; `None` yields one without addresses (UNKNOWN, LOCAL).
pub fn header(version: ProxyVersion, ends: Option<ProxyAddresses>) -> Vec<u8> {
    let ends = ends.map(same_family);
    match version {
        ProxyVersion::V1 => {
            let mut line = String::from("PROXY ");
            let _ = match ends {
                None => write!(line, "UNKNOWN"),
                Some(ProxyAddresses {
                    source,
                    destination,
                }) => write!(
                    line,
                    "{} {} {} {} {}",
                    if source.is_ipv4() { "TCP4" } else { "TCP6" },
                    source.ip(),
                    destination.ip(),
                    source.port(),
                    destination.port()
                ),
            };
            line.push_str("\r\n");
            line.into_bytes()
        }
        ProxyVersion::V2 => {
            let mut bytes = SIGNATURE.to_vec();
            let Some(ProxyAddresses {
                source,
                destination,
            }) = ends
            else {
                bytes.extend([0x20, 0, 0, 0]);
                return bytes;
            };
            let (family, len) = if source.is_ipv4() {
                (0x11, 12)
            } else {
                (0x21, 36)
            };
            bytes.extend([0x21, family, 0, len]);
            for ip in [source.ip(), destination.ip()] {
                match ip {
                    IpAddr::V4(ip) => bytes.extend(ip.octets()),
                    IpAddr::V6(ip) => bytes.extend(ip.octets()),
                }
            }
            bytes.extend(source.port().to_be_bytes());
            bytes.extend(destination.port().to_be_bytes());
            bytes
        }
    }
}

/// Converts both addresses to one family: if only one is IPv4, it is mapped to IPv6.
fn same_family(ends: ProxyAddresses) -> ProxyAddresses {
    let (source, destination) = (
        ends.source.ip().to_canonical(),
        ends.destination.ip().to_canonical(),
    );
    let (source, destination) = match (source, destination) {
        (IpAddr::V4(ip), to @ IpAddr::V6(_)) => (ip.to_ipv6_mapped().into(), to),
        (from @ IpAddr::V6(_), IpAddr::V4(ip)) => (from, ip.to_ipv6_mapped().into()),
        same => same,
    };
    ProxyAddresses {
        source: SocketAddr::new(source, ends.source.port()),
        destination: SocketAddr::new(destination, ends.destination.port()),
    }
}

#[cfg(test)]
mod tests {
    use arbitrary::{Arbitrary as _, Unstructured};

    use super::*;

    fn some_ends(u: &mut Unstructured<'_>) -> arbitrary::Result<Option<ProxyAddresses>> {
        let v6 = bool::arbitrary(u)?;
        let mut address = || -> arbitrary::Result<SocketAddr> {
            let ip: IpAddr = match v6 {
                // IPv4-mapped addresses are decoded as IPv4, so that the generator avoids them.
                true => Ipv6Addr::from(u.arbitrary::<u128>()? | 1 << 127).into(),
                false => Ipv4Addr::from(u.arbitrary::<u32>()?).into(),
            };
            Ok(SocketAddr::new(ip, u.arbitrary()?))
        };
        let ends = ProxyAddresses {
            source: address()?,
            destination: address()?,
        };
        Ok(u.arbitrary::<bool>()?.then_some(ends))
    }

    /// A header survives encoding and decoding: it is incomplete at every cut before its end, and
    /// no byte behind it is consumed.
    #[test]
    fn headers_come_back_from_any_cut() {
        arbtest::arbtest(|u| {
            let ends = some_ends(u)?;
            for version in [ProxyVersion::V1, ProxyVersion::V2] {
                let mut bytes = header(version, ends);
                let len = bytes.len();
                bytes.extend(b"SSH-2.0-x\r\n");
                for cut in 0..len {
                    assert_eq!(
                        parse(&bytes[..cut]),
                        HandshakeParseResult::Incomplete,
                        "{version:?} {cut}"
                    );
                }
                for cut in len..bytes.len() {
                    assert_eq!(parse(&bytes[..cut]), HandshakeParseResult::Done(ends, len));
                }
            }
            Ok(())
        })
        .budget_ms(300);
    }

    #[test]
    fn nothing_makes_it_wait_for_ever() {
        arbtest::arbtest(|u| {
            let mut bytes = match u.int_in_range(0..=2)? {
                0 => b"PROXY ".to_vec(),
                1 => [SIGNATURE, &[0x21, 0x11]].concat(),
                _ => Vec::new(),
            };
            bytes.extend(u.arbitrary::<Vec<u8>>()?);
            if let HandshakeParseResult::Done(_, len) = parse(&bytes) {
                assert!(len <= bytes.len());
            }
            bytes.resize(LONGEST + 16, b'x');
            assert_ne!(parse(&bytes), HandshakeParseResult::Incomplete);
            Ok(())
        })
        .budget_ms(300);
    }

    #[test]
    fn lines_of_the_specification() {
        let done = |text: &str| match parse(text.as_bytes()) {
            HandshakeParseResult::Done(ends, _) => ends,
            other => panic!("{text:?}: {other:?}"),
        };
        let ends = done("PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n").unwrap();
        assert_eq!(ends.source, "255.255.255.255:65535".parse().unwrap());
        assert_eq!(done("PROXY UNKNOWN\r\n"), None);
        assert_eq!(done("PROXY UNKNOWN ffff:f...f:ffff 65535\r\n"), None);
        for text in [
            "GET / HTTP/1.0\r\n",
            "SSH-2.0-OpenSSH\r\n",
            "PROXY \r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n",
            "PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n",
            "PROXY TCP4 ::1 ::1 1 2\r\n",
            "PROXY TCP5 1.2.3.4 1.2.3.4 1 2\r\n",
            "PROXY TCP4  1.2.3.4 1.2.3.4 1 2\r\n",
            "\r\nPROXY",
        ] {
            assert!(
                matches!(parse(text.as_bytes()), HandshakeParseResult::Invalid(_)),
                "{text:?}"
            );
        }
    }
}
