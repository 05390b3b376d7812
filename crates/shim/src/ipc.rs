//! What the library tells the process that carries bytes for it, and asks of it, as bytes. One
//! letter goes with each connection to that process; descriptors follow it.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::rules::{mapped, plain};

/// The length of a letter without its text.
pub const HEAD: usize = 64;
/// The longest text: a line of a report.
pub const TEXT: usize = 1024;

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connected socket and one end of a pair follow: bytes go between them from now on. The text
    /// is the program's name. Answered.
    Take,
    /// A connection from `port` of this machine is to be led to `peer` by the proxy at `via`. The
    /// text is the program's name. Not answered.
    Lead,
    /// The socket of a connection that was taken is wanted for a moment. Answered with it.
    Lend,
    /// The program closes a connection: the text is its line of the report. Answered, so that it
    /// is there before the end.
    Line,
}

/// A letter without its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcMessage {
    /// What is wanted.
    pub kind: Kind,
    /// The cookie of the socket that the program has.
    pub key: u64,
    /// The port that the program's socket has on this machine; of [`Kind::Lead`] alone.
    pub port: u16,
    /// Where the program connected to.
    pub peer: SocketAddr,
    /// The proxy; of [`Kind::Lead`] alone.
    pub via: SocketAddr,
    /// How many bytes of text follow.
    pub text: usize,
}

/// Answered to what was done; anything else is the number of an error.
pub const DONE: u8 = 0;

/// No address.
pub const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

impl IpcMessage {
    /// As bytes.
    pub fn bytes(&self) -> [u8; HEAD] {
        let mut bytes = [0; HEAD];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            for (to, from) in bytes.iter_mut().skip(at).zip(part) {
                *to = *from;
            }
            at += part.len();
        };
        let kind = match self.kind {
            Kind::Take => 1,
            Kind::Lead => 2,
            Kind::Lend => 3,
            Kind::Line => 4,
        };
        put(&[kind, 0]);
        put(&self.port.to_be_bytes());
        put(&self.key.to_be_bytes());
        for address in [self.peer, self.via] {
            put(&mapped(address).octets());
            put(&address.port().to_be_bytes());
        }
        put(&(self.text.min(TEXT) as u16).to_be_bytes());
        bytes
    }

    /// From bytes; `None` where they are no letter.
    pub fn read(bytes: &[u8; HEAD]) -> Option<Self> {
        let kind = match bytes[0] {
            1 => Kind::Take,
            2 => Kind::Lead,
            3 => Kind::Lend,
            4 => Kind::Line,
            _ => return None,
        };
        let u16_at = |at: usize| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let address = |at: usize| {
            let ip: [u8; 16] = *bytes.get(at..)?.first_chunk()?;
            let ip = plain(IpAddr::V6(Ipv6Addr::from(ip)));
            Some(SocketAddr::new(ip, u16_at(at + 16)?))
        };
        let text = usize::from(u16_at(48)?);
        if text > TEXT {
            return None;
        }
        Some(Self {
            kind,
            key: u64::from_be_bytes(*bytes.get(4..)?.first_chunk()?),
            port: u16_at(2)?,
            peer: address(12)?,
            via: address(30)?,
            text,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_is_read_as_it_was_written() {
        for (kind, peer, via) in [
            (Kind::Take, "192.0.2.1:22", "[::]:0"),
            (Kind::Lead, "[2001:db8::1]:65535", "127.0.0.1:1080"),
            (Kind::Lend, "[::]:0", "[::]:0"),
            (Kind::Line, "[::1]:1", "[::2]:2"),
        ] {
            let letter = IpcMessage {
                kind,
                key: u64::MAX - 7,
                port: 40_000,
                peer: peer.parse().unwrap(),
                via: via.parse().unwrap(),
                text: TEXT,
            };
            assert_eq!(IpcMessage::read(&letter.bytes()), Some(letter));
        }
    }

    #[test]
    fn what_is_no_letter_is_none() {
        assert_eq!(IpcMessage::read(&[0; HEAD]), None);
        assert_eq!(IpcMessage::read(&[255; HEAD]), None);
        let mut long = [0; HEAD];
        long[0] = 4;
        assert!(IpcMessage::read(&long).is_some());
        long[48] = 255;
        assert_eq!(IpcMessage::read(&long), None);
    }
}
