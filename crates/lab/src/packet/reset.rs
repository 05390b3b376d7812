use std::net::IpAddr;

use super::checksum::{checksum, sum};
use super::{FramePool, TcpHeader, TunFrame, VNET_LEN};

/// TCP segment with RST set that the path sends to one end in the name of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetSegment {
    /// Address and port of the apparent sender.
    pub from: (IpAddr, u16),
    /// Address and port of the receiver.
    pub to: (IpAddr, u16),
    /// The exact sequence number that the receiver expects next. Any other in its window is
    /// answered with a challenge ACK (RFC 5961 section 3.2).
    pub seq: u32,
    /// Acknowledgment number, which a receiver in SYN-SENT requires (RFC 9293 section 3.10.7.3).
    pub ack: Option<u32>,
}

/// The frame of a reset; `None` if the two addresses have different IP versions.
pub fn reset(pool: &mut FramePool, reset: &ResetSegment) -> Option<TunFrame> {
    let mut tcp = [0; 20];
    tcp[0..2].copy_from_slice(&reset.from.1.to_be_bytes());
    tcp[2..4].copy_from_slice(&reset.to.1.to_be_bytes());
    tcp[4..8].copy_from_slice(&reset.seq.to_be_bytes());
    tcp[8..12].copy_from_slice(&reset.ack.unwrap_or(0).to_be_bytes());
    tcp[12] = 5 << 4;
    tcp[13] = TcpHeader::RST
        | if reset.ack.is_some() {
            TcpHeader::ACK
        } else {
            0
        };

    let mut bytes = [0; VNET_LEN + 40 + 20];
    let packet = &mut bytes[VNET_LEN..];
    let (header_len, pseudo) = match (reset.from.0, reset.to.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            packet[0] = 0x45;
            packet[3] = 40;
            packet[6] = 0x40; // Don't Fragment
            packet[8] = 64;
            packet[9] = 6;
            packet[12..16].copy_from_slice(&from.octets());
            packet[16..20].copy_from_slice(&to.octets());
            let header = checksum(0, &packet[..20]);
            packet[10..12].copy_from_slice(&header.to_be_bytes());
            (20, sum(&packet[12..20]))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            packet[0] = 0x60;
            packet[5] = 20;
            packet[6] = 6;
            packet[7] = 64;
            packet[8..24].copy_from_slice(&from.octets());
            packet[24..40].copy_from_slice(&to.octets());
            (40, sum(&packet[8..40]))
        }
        _ => return None,
    };
    let total = checksum(pseudo + 6 + 20, &tcp);
    tcp[16..18].copy_from_slice(&total.to_be_bytes());
    packet[header_len..header_len + 20].copy_from_slice(&tcp);
    Some(pool.filled(&bytes[..VNET_LEN + header_len + 20]))
}
