//! HTTP CONNECT (RFC 9110 section 9.3.6) as spoken by clients of the relay.

use super::{HandshakeParseResult, named};
use crate::address::{HostSpec, TargetSpec};

/// Maximum length of a request with its headers, in bytes.
pub const LONGEST: usize = 8 << 10;

/// Status code of the reply to an HTTP CONNECT request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpConnectStatus {
    /// 200: the target is connected.
    Established,
    /// 400: the request is malformed.
    BadRequest,
    /// 403: no rule permits the target.
    Forbidden,
    /// 405: the method is not CONNECT.
    NoSuchMethod,
    /// 502: the target cannot be reached.
    BadGateway,
}

/// Parses a request into the target to connect to, or the status to reply with.
pub fn request(bytes: &[u8]) -> HandshakeParseResult<Result<TargetSpec, HttpConnectStatus>> {
    let within = bytes.get(..bytes.len().min(LONGEST)).unwrap_or_default();
    let Some(end) = within.windows(4).position(|end| end == b"\r\n\r\n") else {
        let printable = |b: &u8| matches!(b, b'\r' | b'\n' | b'\t' | 0x20..=0x7e | 0x80..);
        return if bytes.len() >= LONGEST {
            HandshakeParseResult::Invalid("the HTTP request is too long or incomplete")
        } else if bytes.iter().all(printable) {
            HandshakeParseResult::Incomplete
        } else {
            HandshakeParseResult::Invalid("the client did not send an HTTP request")
        };
    };
    let line = within.split(|b| *b == b'\r').next().unwrap_or_default();
    let whole = end + 4;
    let Ok(line) = std::str::from_utf8(line) else {
        return HandshakeParseResult::Done(Err(HttpConnectStatus::BadRequest), whole);
    };
    let words: Vec<&str> = line.split(' ').collect();
    let answer = match words.as_slice() {
        ["CONNECT", authority, version] if version.starts_with("HTTP/1.") => {
            target(authority).ok_or(HttpConnectStatus::BadRequest)
        }
        [_, _, version] if version.starts_with("HTTP/1.") => Err(HttpConnectStatus::NoSuchMethod),
        _ => Err(HttpConnectStatus::BadRequest),
    };
    HandshakeParseResult::Done(answer, whole)
}

fn target(authority: &str) -> Option<TargetSpec> {
    let (host, port) = authority.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let host = match host.strip_prefix('[') {
        Some(host) => HostSpec::Address(host.strip_suffix(']')?.parse().ok()?),
        None if host.contains(':') => return None,
        None => HostSpec::of_client(host)?,
    };
    Some(named(host, port))
}

/// Encodes the reply to a request.
pub fn reply(status: HttpConnectStatus) -> Vec<u8> {
    let line = match status {
        // Section 9.3.6: a successful CONNECT has no headers and no body, only the empty line.
        HttpConnectStatus::Established => {
            return b"HTTP/1.1 200 Connection established\r\n\r\n".to_vec();
        }
        HttpConnectStatus::BadRequest => "400 Bad Request",
        HttpConnectStatus::Forbidden => "403 Forbidden",
        HttpConnectStatus::NoSuchMethod => "405 Method Not Allowed\r\nAllow: CONNECT",
        HttpConnectStatus::BadGateway => "502 Bad Gateway",
    };
    format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back_from_any_cut() {
        let bytes = b"CONNECT host:22 HTTP/1.1\r\nHost: host:22\r\n\r\n";
        for cut in 0..bytes.len() {
            assert_eq!(
                request(&bytes[..cut]),
                HandshakeParseResult::Incomplete,
                "{cut}"
            );
        }
        let more = [&bytes[..], b"SSH\r\n\r\n"].concat();
        let HandshakeParseResult::Done(Ok(target), len) = request(&more) else {
            panic!("it is whole");
        };
        assert_eq!(
            (target.to_string(), len),
            ("host:22".to_owned(), bytes.len())
        );
    }

    #[test]
    fn what_is_asked_otherwise_is_answered_so() {
        for (line, status) in [
            ("GET / HTTP/1.1", HttpConnectStatus::NoSuchMethod),
            ("CONNECT host HTTP/1.1", HttpConnectStatus::BadRequest),
            ("CONNECT host:0 HTTP/1.1", HttpConnectStatus::BadRequest),
            ("CONNECT :22 HTTP/1.1", HttpConnectStatus::BadRequest),
            ("CONNECT ::1:22 HTTP/1.1", HttpConnectStatus::BadRequest),
            ("CONNECT h:22", HttpConnectStatus::BadRequest),
            ("CONNECT  h:22 HTTP/1.1", HttpConnectStatus::BadRequest),
            ("CONNECT h:22 HTTP/2", HttpConnectStatus::BadRequest),
            ("", HttpConnectStatus::BadRequest),
        ] {
            let bytes = format!("{line}\r\n\r\n").into_bytes();
            assert_eq!(
                request(&bytes),
                HandshakeParseResult::Done(Err(status), bytes.len()),
                "{line}"
            );
        }
        let v6 = b"CONNECT [2001:db8::1]:22 HTTP/1.0\r\n\r\n";
        assert!(matches!(request(v6), HandshakeParseResult::Done(Ok(_), _)));
        assert!(matches!(
            request(&[5, 1, 0]),
            HandshakeParseResult::Invalid(_)
        ));
        assert!(matches!(
            request(&[b'a'; LONGEST]),
            HandshakeParseResult::Invalid(_)
        ));
    }
}
