//! Server side of SOCKS version 5 (RFC 1928), limited to CONNECT without authentication.

use super::{HandshakeParseResult, named};
use crate::address::{HostSpec, TargetSpec};

/// Answer to the greeting: version 5, no authentication.
pub const WELCOME: &[u8] = &[5, 0];
/// RFC 1928 section 3: answer if none of the offered methods is acceptable.
pub const NO_METHOD: &[u8] = &[5, 0xff];

/// Reply codes that the relay sends (RFC 1928 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocksReply {
    /// The target is connected.
    Succeeded = 0,
    /// General failure.
    Failed = 1,
    /// No rule permits the target.
    NotAllowed = 2,
    /// The target cannot be reached.
    Unreachable = 4,
    /// The command is not CONNECT.
    NoSuchCommand = 7,
}

/// Parses the greeting; true if the client offers "no authentication".
pub fn greeting(bytes: &[u8]) -> HandshakeParseResult<bool> {
    let [version, rest @ ..] = bytes else {
        return HandshakeParseResult::Incomplete;
    };
    if *version != 5 {
        return HandshakeParseResult::Invalid("the client did not send a SOCKS 5 request");
    }
    let [count, methods @ ..] = rest else {
        return HandshakeParseResult::Incomplete;
    };
    match methods.get(..usize::from(*count)) {
        None => HandshakeParseResult::Incomplete,
        Some(methods) => HandshakeParseResult::Done(methods.contains(&0), 2 + methods.len()),
    }
}

/// Parses the request into the target to connect to, or the reply to send.
pub fn request(bytes: &[u8]) -> HandshakeParseResult<Result<TargetSpec, SocksReply>> {
    let (command, kind, rest) = match bytes {
        [5, command, 0, kind, rest @ ..] => (*command, *kind, rest),
        [5, _, 0] | [5, _] | [5] | [] => return HandshakeParseResult::Incomplete,
        _ => return HandshakeParseResult::Invalid("the SOCKS request is malformed"),
    };
    let len = match (kind, rest) {
        (1, _) => 4,
        (4, _) => 16,
        (3, []) => return HandshakeParseResult::Incomplete,
        (3, [len, ..]) => 1 + usize::from(*len),
        _ => return HandshakeParseResult::Invalid("the SOCKS request has an unknown address type"),
    };
    let (Some(address), Some(port)) = (rest.get(..len), rest.get(len..len + 2)) else {
        return HandshakeParseResult::Incomplete;
    };
    let whole = 4 + len + 2;
    let host = match (kind, address) {
        (3, [_, name @ ..]) => match std::str::from_utf8(name).ok().and_then(HostSpec::of_client) {
            Some(host) => host,
            None => {
                return HandshakeParseResult::Invalid("the SOCKS request has an invalid host name");
            }
        },
        (1, _) => {
            <[u8; 4]>::try_from(address).map_or(HostSpec::All, |ip| HostSpec::Address(ip.into()))
        }
        _ => <[u8; 16]>::try_from(address).map_or(HostSpec::All, |ip| HostSpec::Address(ip.into())),
    };
    let port = <[u8; 2]>::try_from(port).map_or(0, u16::from_be_bytes);
    if command != 1 {
        return HandshakeParseResult::Done(Err(SocksReply::NoSuchCommand), whole);
    }
    match port {
        0 => HandshakeParseResult::Invalid("the SOCKS request has port 0"),
        port => HandshakeParseResult::Done(Ok(named(host, port)), whole),
    }
}

/// Encodes the reply to a request. The bound address is sent as 0.0.0.0:0, so that clients do not
/// learn the relay's own address.
pub fn reply(reply: SocksReply) -> Vec<u8> {
    vec![5, reply as u8, 0, 1, 0, 0, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(kind: u8, address: &[u8], port: u16) -> Vec<u8> {
        [&[5, 1, 0, kind], address, &port.to_be_bytes()].concat()
    }

    #[test]
    fn requests_come_back_from_any_cut() {
        for (bytes, shown) in [
            (connect(1, &[192, 0, 2, 1], 22), "192.0.2.1:22"),
            (connect(3, b"\x04host", 22), "host:22"),
            (connect(3, b"\x09192.0.2.1", 22), "192.0.2.1:22"),
            (
                connect(4, &[0xfe; 16], 65535),
                "[fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe]:65535",
            ),
        ] {
            for cut in 0..bytes.len() {
                assert_eq!(
                    request(&bytes[..cut]),
                    HandshakeParseResult::Incomplete,
                    "{shown} {cut}"
                );
            }
            let more = [&bytes[..], b"SSH"].concat();
            let HandshakeParseResult::Done(Ok(target), len) = request(&more) else {
                panic!("{shown}");
            };
            assert_eq!((target.to_string(), len), (shown.to_owned(), bytes.len()));
        }
        for cut in 0..4 {
            assert_eq!(
                greeting(&[5, 2, 1, 0][..cut]),
                HandshakeParseResult::Incomplete
            );
        }
        assert_eq!(
            greeting(&[5, 2, 1, 0, 9]),
            HandshakeParseResult::Done(true, 4)
        );
        assert_eq!(greeting(&[5, 1, 2]), HandshakeParseResult::Done(false, 3));
    }

    #[test]
    fn what_is_no_request() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            &[4, 1, 0, 22, 1, 2, 3, 4, 0],
            &[5, 1, 1, 1, 0, 0, 0, 0, 0, 1],
            &[5, 1, 0, 9, 0],
            &connect(3, b"\x00", 22),
            &connect(3, b"\x03a b", 22),
            &connect(3, b"\x02\xff\xfe", 22),
            &connect(1, &[1, 2, 3, 4], 0),
        ] {
            assert!(
                matches!(request(bytes), HandshakeParseResult::Invalid(_)),
                "{bytes:?}"
            );
        }
        let mut bind = connect(1, &[1, 2, 3, 4], 5);
        bind[1] = 2;
        assert_eq!(
            request(&bind),
            HandshakeParseResult::Done(Err(SocksReply::NoSuchCommand), 10)
        );
    }

    #[test]
    fn no_bytes_do_harm() {
        arbtest::arbtest(|u| {
            let mut bytes = vec![5, 1, 0];
            bytes.extend(u.arbitrary::<Vec<u8>>()?);
            if let HandshakeParseResult::Done(_, len) = request(&bytes) {
                assert!(len <= bytes.len());
            }
            if let HandshakeParseResult::Done(_, len) = greeting(&bytes) {
                assert!(len <= bytes.len());
            }
            bytes.resize(600, 7);
            assert_ne!(request(&bytes), HandshakeParseResult::Incomplete);
            Ok(())
        })
        .budget_ms(200);
    }
}
