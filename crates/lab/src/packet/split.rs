use std::ops::Range;

use super::checksum::{checksum, replace_in_sum, replace_word};
use super::headers::{PacketHeaders, TcpHeader};
use super::{FramePool, TunFrame, VNET_LEN, VnetHeader};

/// The division of a frame into segments as on a wire; an ordinary packet has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentLayout {
    /// Number of segments.
    pub(crate) count: usize,
    /// IP bytes of the whole frame, its headers counted once.
    len: usize,
    /// Set for a super-packet only.
    tcp: Option<TcpHeader>,
    /// Bytes of IP and TCP headers, which each segment repeats; 0 for an ordinary packet.
    head: usize,
    /// Payload bytes of each segment but the last.
    size: usize,
}

impl SegmentLayout {
    /// Divides a frame of at least [`VNET_LEN`] bytes.
    pub(crate) fn of(frame: &[u8], headers: &PacketHeaders) -> Self {
        let len = frame.len().saturating_sub(VNET_LEN);
        match headers.segment_size(frame) {
            Some((tcp, size)) => Self {
                count: (len - tcp.payload_at).div_ceil(size),
                len,
                tcp: Some(tcp),
                head: tcp.payload_at,
                size,
            },
            None => Self {
                count: 1,
                len,
                tcp: None,
                head: 0,
                size: len,
            },
        }
    }

    /// IP bytes of these segments on the wire, each with its own headers.
    pub(crate) fn bytes(&self, range: Range<usize>) -> u64 {
        let count = range.len() as u64;
        count * self.head as u64 + self.payload(&range).len() as u64
    }

    /// The range of all segments.
    pub(crate) fn all(&self) -> Range<usize> {
        0..self.count
    }

    /// Number of segments that take at most `bytes` on the wire; at least one.
    pub(crate) fn within(&self, bytes: u64) -> usize {
        let each = (self.head + self.size).max(1) as u64;
        usize::try_from(bytes / each).map_or(self.count, |count| count.clamp(1, self.count))
    }

    /// The payload of these segments, counted from the first segment's.
    fn payload(&self, range: &Range<usize>) -> Range<usize> {
        let most = self.len - self.head;
        let at = |segment: usize| segment.saturating_mul(self.size).min(most);
        at(range.start)..at(range.end)
    }
}

/// A new frame with these segments of `frame`.
pub(crate) fn copy_segments(
    pool: &mut FramePool,
    frame: &TunFrame,
    segments: &SegmentLayout,
    range: Range<usize>,
) -> TunFrame {
    let bytes = frame.bytes();
    let head = VNET_LEN + segments.head;
    let body = segments.payload(&range);
    let body = head + body.start..head + body.end;
    let len = head + body.len();
    let mut part = pool.take_for(len);
    let room = part.room();
    room[..head].copy_from_slice(&bytes[..head]);
    room[head..len].copy_from_slice(&bytes[body]);
    part.set_len(len);
    rewrite(part.bytes_mut(), segments, &range);
    part
}

/// Reduces `frame` to these segments, in place.
pub(crate) fn keep_segments(frame: &mut TunFrame, segments: &SegmentLayout, range: Range<usize>) {
    let head = VNET_LEN + segments.head;
    let body = segments.payload(&range);
    frame.narrow(head, head + body.start..head + body.end);
    rewrite(frame.bytes_mut(), segments, &range);
}

/// Corrects the headers of a part of the payload, as segmentation does: lengths, IPv4
/// identification (one more for each segment), sequence number, flags (CWR belongs to the first
/// segment, RFC 3168 section 6.1.2; PSH and FIN to the last) and checksums.
fn rewrite(frame: &mut [u8], segments: &SegmentLayout, range: &Range<usize>) {
    let Some(tcp) = segments.tcp else { return };
    let Some(mut vnet) = VnetHeader::read(frame) else {
        return;
    };
    if range.len() == 1 {
        vnet.single();
    }
    if range.start > 0 {
        vnet.without_first();
    }
    vnet.write(frame);

    let (_, packet) = frame.split_at_mut(VNET_LEN);
    let len = packet.len();
    match packet[0] >> 4 {
        4 => rewrite_ipv4(packet, tcp.at, range.start),
        _ => put(packet, 4, (len - 40) as u16),
    }

    let header = &mut packet[tcp.at..];
    let skipped = range.start.wrapping_mul(segments.size) as u32;
    header[4..8].copy_from_slice(&tcp.seq.wrapping_add(skipped).to_be_bytes());
    if range.start > 0 {
        header[13] &= !TcpHeader::CWR;
    }
    if range.end < segments.count {
        header[13] &= !(TcpHeader::FIN | TcpHeader::PSH);
    }
    // A partial checksum is the sum of the pseudo header, in which only the length has changed.
    let (old, new) = (segments.len - tcp.at, len - tcp.at);
    let sum = get(header, 16);
    put(header, 16, replace_in_sum(sum, old as u16, new as u16));
}

fn rewrite_ipv4(packet: &mut [u8], header_len: usize, skipped: usize) {
    put(packet, 2, packet.len() as u16);
    let id = get(packet, 4);
    put(packet, 4, id.wrapping_add(skipped as u16));
    put(packet, 10, 0);
    let header = checksum(0, &packet[..header_len]);
    put(packet, 10, header);
}

/// Clears the DSCP and keeps ECN (RFC 2474 section 3, RFC 3168 section 5). Only IPv4's header
/// checksum changes: an IPv6 header has none, and pseudo headers do not include the DSCP.
pub(crate) fn clear_dscp(frame: &mut TunFrame, headers: &PacketHeaders) {
    let packet = frame.bytes_mut().get_mut(VNET_LEN..).unwrap_or_default();
    match headers.version {
        4 => {
            let (old, checksum) = (get(packet, 0), get(packet, 10));
            packet[1] &= 0b11;
            put(packet, 10, replace_word(checksum, old, get(packet, 0)));
        }
        6 => {
            packet[0] &= 0xf0;
            packet[1] &= 0b0011_1111;
        }
        _ => {}
    }
}

fn get(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put(bytes: &mut [u8], at: usize, word: u16) {
    bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
}
