//! The encoding of messages between the library and the carrier. Each message has its own
//! connection; descriptors follow it.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::rules::{mapped, plain};

/// Length of a message without its text.
pub const HEAD: usize = 64;
/// Longest text: a line of the report.
pub const TEXT: usize = 1024;

/// Request of a message, which decides the descriptors that follow it and the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpcRequestKind {
    /// Carry bytes between the connected socket and the end of a pair that follow. The text is the
    /// program's name. Answered.
    TakeOver,
    /// Connect to `peer` over the proxy at `via`, for the connection that arrives from local
    /// `port`. The text is the program's name. Not answered.
    ConnectVia,
    /// Lend the socket of a carried connection. Answered with the socket.
    LendSocket,
    /// The program closes a connection; the text is its report line. Answered, so that the carrier
    /// has it before the end.
    ReportLine,
}

/// Fixed part of a message, in front of its text and its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcMessageHeader {
    /// The kind of the message.
    pub kind: IpcRequestKind,
    /// Cookie of the program's socket.
    pub key: u64,
    /// Local port of the program's socket; only for [`IpcRequestKind::ConnectVia`].
    pub port: u16,
    /// The program's destination.
    pub peer: SocketAddr,
    /// The proxy; only for [`IpcRequestKind::ConnectVia`].
    pub via: SocketAddr,
    /// Length of the text that follows, in bytes.
    pub text: usize,
}

/// Answer for success; any other value is an errno.
pub const DONE: u8 = 0;

/// No address.
pub const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

impl IpcMessageHeader {
    /// Encodes the message.
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
            IpcRequestKind::TakeOver => 1,
            IpcRequestKind::ConnectVia => 2,
            IpcRequestKind::LendSocket => 3,
            IpcRequestKind::ReportLine => 4,
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

    /// Decodes a message; `None` if it is invalid.
    pub fn read(bytes: &[u8; HEAD]) -> Option<Self> {
        let kind = match bytes[0] {
            1 => IpcRequestKind::TakeOver,
            2 => IpcRequestKind::ConnectVia,
            3 => IpcRequestKind::LendSocket,
            4 => IpcRequestKind::ReportLine,
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
            (IpcRequestKind::TakeOver, "192.0.2.1:22", "[::]:0"),
            (
                IpcRequestKind::ConnectVia,
                "[2001:db8::1]:65535",
                "127.0.0.1:1080",
            ),
            (IpcRequestKind::LendSocket, "[::]:0", "[::]:0"),
            (IpcRequestKind::ReportLine, "[::1]:1", "[::2]:2"),
        ] {
            let header = IpcMessageHeader {
                kind,
                key: u64::MAX - 7,
                port: 40_000,
                peer: peer.parse().unwrap(),
                via: via.parse().unwrap(),
                text: TEXT,
            };
            assert_eq!(IpcMessageHeader::read(&header.bytes()), Some(header));
        }
    }

    #[test]
    fn what_is_no_letter_is_none() {
        assert_eq!(IpcMessageHeader::read(&[0; HEAD]), None);
        assert_eq!(IpcMessageHeader::read(&[255; HEAD]), None);
        let mut long = [0; HEAD];
        long[0] = 4;
        assert!(IpcMessageHeader::read(&long).is_some());
        long[48] = 255;
        assert_eq!(IpcMessageHeader::read(&long), None);
    }
}
