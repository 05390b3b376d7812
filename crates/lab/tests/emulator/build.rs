//! Builds frames in the form of a TUN device, and checks those that the emulator returns.

use std::net::{Ipv4Addr, Ipv6Addr};

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const CWR: u8 = 0x80;

pub(crate) const NEAR: (u8, u16) = (1, 40_000);
pub(crate) const FAR: (u8, u16) = (2, 22);

/// A TCP packet, to be built or read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) v6: bool,
    /// Last byte of the address, and port.
    pub(crate) from: (u8, u16),
    pub(crate) to: (u8, u16),
    pub(crate) traffic_class: u8,
    pub(crate) id: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) payload: usize,
    /// Payload of a segment; 0 except for a super-packet.
    pub(crate) gso_size: u16,
    pub(crate) gso_ecn: bool,
}

impl Packet {
    /// A packet from near to far.
    pub(crate) fn data(seq: u32, payload: usize) -> Self {
        Self {
            v6: false,
            from: NEAR,
            to: FAR,
            traffic_class: 0,
            id: 7,
            seq,
            ack: 1,
            flags: ACK,
            payload,
            gso_size: 0,
            gso_ecn: false,
        }
    }

    /// A super-packet from near to far, with segments of 1,448 bytes.
    pub(crate) fn bundle(seq: u32, payload: usize) -> Self {
        Self {
            gso_size: 1448,
            ..Self::data(seq, payload)
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let tcp_len = 32 + self.payload;
        let ip_len = if self.v6 { 40 } else { 20 };
        let mut frame = vec![0; 10];
        frame[0] = 1;
        if self.gso_size > 0 {
            frame[1] = if self.v6 { 4 } else { 1 } | if self.gso_ecn { 0x80 } else { 0 };
        }
        frame[2..4].copy_from_slice(&(ip_len as u16 + 32).to_ne_bytes());
        frame[4..6].copy_from_slice(&self.gso_size.to_ne_bytes());
        frame[6..8].copy_from_slice(&(ip_len as u16).to_ne_bytes());
        frame[8..10].copy_from_slice(&16u16.to_ne_bytes());
        frame.extend(match self.v6 {
            true => self.ipv6(tcp_len),
            false => self.ipv4(tcp_len),
        });
        let mut tcp = [0; 32];
        tcp[0..2].copy_from_slice(&self.from.1.to_be_bytes());
        tcp[2..4].copy_from_slice(&self.to.1.to_be_bytes());
        tcp[4..8].copy_from_slice(&self.seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.ack.to_be_bytes());
        tcp[12] = 8 << 4;
        tcp[13] = self.flags;
        tcp[20..24].copy_from_slice(&[1, 1, 8, 10]);
        let sum = pseudo(&frame[10..], tcp_len);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        frame.extend(tcp);
        frame.extend((0..self.payload).map(|i| content(self.seq.wrapping_add(i as u32))));
        frame
    }

    fn ipv4(&self, tcp_len: usize) -> Vec<u8> {
        let mut ip = vec![0; 20];
        ip[0] = 0x45;
        ip[1] = self.traffic_class;
        ip[2..4].copy_from_slice(&(20 + tcp_len as u16).to_be_bytes());
        ip[4..6].copy_from_slice(&self.id.to_be_bytes());
        ip[8] = 64;
        ip[9] = 6;
        ip[12..16].copy_from_slice(&Ipv4Addr::new(10, 0, 0, self.from.0).octets());
        ip[16..20].copy_from_slice(&Ipv4Addr::new(10, 0, 0, self.to.0).octets());
        let check = !fold(&ip);
        ip[10..12].copy_from_slice(&check.to_be_bytes());
        ip
    }

    fn ipv6(&self, tcp_len: usize) -> Vec<u8> {
        let mut ip = vec![0; 40];
        ip[0] = 0x60 | self.traffic_class >> 4;
        ip[1] = self.traffic_class << 4 | 3;
        ip[4..6].copy_from_slice(&(tcp_len as u16).to_be_bytes());
        ip[6] = 6;
        ip[7] = 64;
        let address = |last: u8| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).octets();
        ip[8..24].copy_from_slice(&address(self.from.0));
        ip[24..40].copy_from_slice(&address(self.to.0));
        ip
    }

    /// Reads a frame and checks it like a receiver: lengths, full checksums, and the content for
    /// its sequence numbers.
    pub(crate) fn checked(frame: &[u8]) -> Self {
        let native = |at: usize| u16::from_ne_bytes([frame[at], frame[at + 1]]);
        let ip = &frame[10..];
        let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
        let v6 = ip[0] >> 4 == 6;
        let at = if v6 { 40 } else { 20 };
        let traffic_class = match v6 {
            true => ip[0] << 4 | ip[1] >> 4,
            false => ip[1],
        };
        match v6 {
            true => assert_eq!(usize::from(word(4)), ip.len() - 40, "payload length"),
            false => {
                assert_eq!(usize::from(word(2)), ip.len(), "total length");
                assert_eq!(fold(&ip[..20]), 0xffff, "header checksum");
            }
        }
        let tcp = &ip[at..];
        let number =
            |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
        let pseudo = pseudo(ip, tcp.len());
        match frame[0] {
            1 => {
                assert_eq!(word(at + 16), pseudo, "partial checksum");
                assert_eq!((native(6), native(8)), (at as u16, 16));
            }
            _ => assert_eq!(
                fold(&[&pseudo.to_be_bytes(), tcp].concat()),
                0xffff,
                "checksum"
            ),
        }
        let header = usize::from(tcp[12] >> 4) * 4;
        let packet = Self {
            v6,
            from: (ip[at - if v6 { 17 } else { 5 }], word(at)),
            to: (ip[at - 1], word(at + 2)),
            traffic_class,
            id: if v6 { 7 } else { word(4) },
            seq: number(4),
            ack: number(8),
            flags: tcp[13],
            payload: tcp.len() - header,
            gso_size: native(4),
            gso_ecn: frame[1] & 0x80 != 0,
        };
        for (i, byte) in tcp[header..].iter().enumerate() {
            let seq = packet.seq.wrapping_add(i as u32);
            assert_eq!(*byte, content(seq), "content at {seq}");
        }
        match packet.gso_size {
            0 => assert_eq!(frame[1], 0, "no type without a size"),
            size => {
                assert!(packet.payload > usize::from(size), "more than one segment");
                assert_eq!(frame[1] & 0x7f, if v6 { 4 } else { 1 });
            }
        }
        packet
    }

    /// First sequence numbers of the segments.
    pub(crate) fn segments(&self) -> Vec<u32> {
        let size = match self.gso_size {
            0 => self.payload.max(1),
            size => size.into(),
        };
        (0..self.payload.max(1))
            .step_by(size)
            .map(|offset| self.seq.wrapping_add(offset as u32))
            .collect()
    }
}

/// The content of the stream at a sequence number.
fn content(seq: u32) -> u8 {
    (seq % 251) as u8
}

/// The folded sum of the pseudo header (RFC 9293 section 3.1, RFC 8200 section 8.1).
fn pseudo(ip: &[u8], tcp_len: usize) -> u16 {
    let addresses = if ip[0] >> 4 == 6 {
        &ip[8..40]
    } else {
        &ip[12..20]
    };
    let mut bytes = addresses.to_vec();
    bytes.extend((tcp_len as u32).to_be_bytes());
    bytes.extend([0, 6]);
    fold(&bytes)
}

fn fold(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|word| u64::from(u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)])));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
