use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{VNET_LEN, VnetHeader};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Maximum number of IPv6 extension headers before the transport header, so that a crafted chain
/// costs no time.
const MAX_EXTENSIONS: usize = 8;

/// The header fields that the emulator needs. Packets that are truncated or not IP have only those
/// that could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHeaders {
    /// IP version: 4, 6, or 0 for other packets.
    pub version: u8,
    /// DSCP, 0 to 63.
    pub dscp: u8,
    /// Source and destination.
    pub addresses: Option<(IpAddr, IpAddr)>,
    /// Source and destination port of TCP or UDP; none in later fragments.
    pub ports: Option<(u16, u16)>,
    /// The TCP header, if it is complete.
    pub tcp: Option<TcpHeader>,
}

/// Fields of a TCP header (RFC 9293 section 3.1) and its place in the packet; offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpHeader {
    /// Offset of the TCP header from the IP header.
    pub at: usize,
    /// Offset of the payload from the IP header.
    pub payload_at: usize,
    /// Sequence number of the first byte.
    pub seq: u32,
    /// Acknowledgment number, if the ACK flag is set.
    pub ack: Option<u32>,
    /// CWR, ECE, URG, ACK, PSH, RST, SYN, FIN, from the highest bit.
    pub flags: u8,
}

impl TcpHeader {
    pub(crate) const FIN: u8 = 0x01;
    pub(crate) const SYN: u8 = 0x02;
    pub(crate) const RST: u8 = 0x04;
    pub(crate) const PSH: u8 = 0x08;
    pub(crate) const ACK: u8 = 0x10;
    pub(crate) const CWR: u8 = 0x80;

    /// Returns true if all of `flags` are set.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// The sequence number after a packet of `len` IP bytes.
    pub fn next_seq(&self, len: usize) -> u32 {
        let payload = len.saturating_sub(self.payload_at) as u32;
        let signs = u32::from(self.has(Self::SYN)) + u32::from(self.has(Self::FIN));
        self.seq.wrapping_add(payload).wrapping_add(signs)
    }
}

impl PacketHeaders {
    /// Reads the headers of a frame.
    pub fn read(frame: &[u8]) -> Self {
        let packet = frame.get(VNET_LEN..).unwrap_or_default();
        match packet.first().map(|byte| byte >> 4) {
            Some(4) => ipv4(packet),
            Some(6) => ipv6(packet),
            _ => None,
        }
        .unwrap_or(Self {
            version: 0,
            dscp: 0,
            addresses: None,
            ports: None,
            tcp: None,
        })
    }

    /// Payload bytes of each segment but the last, if the frame is a TCP super-packet with
    /// consistent headers.
    pub(super) fn segment_size(&self, frame: &[u8]) -> Option<(TcpHeader, usize)> {
        let vnet = VnetHeader::read(frame)?;
        let tcp = self.tcp?;
        let len = frame.len() - VNET_LEN;
        let announced = match self.version {
            4 => usize::from(word(frame, VNET_LEN + 2)?),
            _ => usize::from(word(frame, VNET_LEN + 4)?) + 40,
        };
        let sound = vnet.tcp_super_packet() == Some(self.version)
            && usize::from(vnet.csum_start) == tcp.at
            && vnet.csum_offset == 16
            && announced == len;
        let size = usize::from(vnet.gso_size);
        (sound && size > 0 && len - tcp.payload_at > size).then_some((tcp, size))
    }
}

fn ipv4(packet: &[u8]) -> Option<PacketHeaders> {
    let fixed: &[u8; 20] = packet.first_chunk()?;
    let header_len = usize::from(fixed[0] & 15) * 4;
    let address = |at: usize| {
        let four: [u8; 4] = [fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]];
        IpAddr::from(Ipv4Addr::from(four))
    };
    let mut headers = PacketHeaders {
        version: 4,
        dscp: fixed[1] >> 2,
        addresses: Some((address(12), address(16))),
        ports: None,
        tcp: None,
    };
    let later_fragment = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x1fff != 0;
    if header_len >= 20 && !later_fragment {
        headers.transport(packet, fixed[9], header_len);
    }
    Some(headers)
}

fn ipv6(packet: &[u8]) -> Option<PacketHeaders> {
    let fixed: &[u8; 40] = packet.first_chunk()?;
    let address = |at: usize| {
        let mut sixteen = [0; 16];
        sixteen.copy_from_slice(&fixed[at..at + 16]);
        IpAddr::from(Ipv6Addr::from(sixteen))
    };
    let mut headers = PacketHeaders {
        version: 6,
        dscp: (fixed[0] & 15) << 2 | fixed[1] >> 6,
        addresses: Some((address(8), address(24))),
        ports: None,
        tcp: None,
    };
    if let Some((protocol, at)) = after_extensions(packet, fixed[6]) {
        headers.transport(packet, protocol, at);
    }
    Some(headers)
}

/// Protocol and offset of the transport header, after hop-by-hop options, routing, destination
/// options and the header of a first fragment (RFC 8200 section 4).
fn after_extensions(packet: &[u8], next: u8) -> Option<(u8, usize)> {
    let (mut next, mut at) = (next, 40);
    for _ in 0..MAX_EXTENSIONS {
        match next {
            0 | 43 | 60 => {
                let len = 8 + 8 * usize::from(*packet.get(at + 1)?);
                next = *packet.get(at)?;
                at += len;
            }
            44 if word(packet, at + 2)? & 0xfff8 == 0 => {
                next = *packet.get(at)?;
                at += 8;
            }
            44 => return None,
            protocol => return Some((protocol, at)),
        }
    }
    None
}

impl PacketHeaders {
    fn transport(&mut self, packet: &[u8], protocol: u8, at: usize) {
        if protocol == TCP || protocol == UDP {
            self.ports = word(packet, at).zip(word(packet, at + 2));
        }
        if protocol == TCP {
            self.tcp = tcp(packet, at);
        }
    }
}

fn tcp(packet: &[u8], at: usize) -> Option<TcpHeader> {
    let fixed: &[u8; 20] = packet.get(at..)?.first_chunk()?;
    let payload_at = at + usize::from(fixed[12] >> 4) * 4;
    let number =
        |at: usize| u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
    let flags = fixed[13];
    (payload_at >= at + 20 && payload_at <= packet.len()).then_some(TcpHeader {
        at,
        payload_at,
        seq: number(4),
        ack: (flags & TcpHeader::ACK != 0).then(|| number(8)),
        flags,
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|word| u16::from_be_bytes(*word))
}
