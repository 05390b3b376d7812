//! Encodes and decodes the SOCKS 5 handshake (RFC 1928), without any I/O.

use core::net::{IpAddr, SocketAddr};

use crate::rules::plain;

/// Greeting: version 5, one method, no authentication.
pub const GREETING: [u8; 3] = [5, 1, 0];
/// The proxy's answer to [`GREETING`].
pub const WELCOME: [u8; 2] = [5, 0];
/// Longest remainder of a reply: a name of 255 bytes and a port.
pub const REST: usize = 257;

/// Encoded CONNECT request (RFC 1928 section 4) to an IP address, at most 22 bytes.
pub struct SocksRequest {
    bytes: [u8; 22],
    len: usize,
}

impl SocksRequest {
    /// Requests a connection to `to`.
    pub fn new(to: SocketAddr) -> Self {
        let mut request = Self {
            bytes: [0; 22],
            len: 0,
        };
        request.put(&[5, 1, 0]);
        match plain(to.ip()) {
            IpAddr::V4(ip) => {
                request.put(&[1]);
                request.put(&ip.octets());
            }
            IpAddr::V6(ip) => {
                request.put(&[4]);
                request.put(&ip.octets());
            }
        }
        request.put(&to.port().to_be_bytes());
        request
    }

    /// The encoded request.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    fn put(&mut self, bytes: &[u8]) {
        let places = self.bytes.iter_mut().skip(self.len);
        for (to, from) in places.zip(bytes) {
            *to = *from;
            self.len += 1;
        }
    }
}

/// Number of bytes after the first five of a reply; `None` if the reply is a refusal or invalid.
pub fn rest(head: [u8; 5]) -> Option<usize> {
    match head {
        [5, 0, 0, 1, _] => Some(4 + 2 - 1),
        [5, 0, 0, 3, len] => Some(usize::from(len) + 2),
        [5, 0, 0, 4, _] => Some(16 + 2 - 1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_the_rfc_has_them() {
        let v4 = SocksRequest::new("192.0.2.1:258".parse().unwrap());
        assert_eq!(v4.bytes(), [5, 1, 0, 1, 192, 0, 2, 1, 1, 2]);
        let mapped = SocksRequest::new("[::ffff:192.0.2.1]:258".parse().unwrap());
        assert_eq!(mapped.bytes(), v4.bytes());
        let v6 = SocksRequest::new("[2001:db8::7]:65535".parse().unwrap());
        assert_eq!(v6.bytes().len(), 22);
        assert_eq!(v6.bytes()[..6], [5, 1, 0, 4, 0x20, 1]);
        assert_eq!(v6.bytes()[19..], [7, 255, 255]);
    }

    #[test]
    fn replies_are_measured_and_refusals_are_none() {
        assert_eq!(rest([5, 0, 0, 1, 9]), Some(5));
        assert_eq!(rest([5, 0, 0, 3, 255]), Some(REST));
        assert_eq!(rest([5, 0, 0, 4, 0]), Some(17));
        for refused in [
            [5, 1, 0, 1, 0],
            [4, 0, 0, 1, 0],
            [5, 0, 0, 2, 0],
            [5, 0, 1, 1, 0],
        ] {
            assert_eq!(rest(refused), None);
        }
    }
}
