use super::checksum::replace_word;
use super::{PacketHeaders, TcpHeader, TunFrame, VNET_LEN, VnetHeader};
use crate::path::TcpHandshakeChanges;

/// Kinds of TCP options (RFC 9293 section 3.2, RFC 7323, RFC 2018).
const END: u8 = 0;
const PADDING: u8 = 1;
const SEGMENT: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const TIMESTAMPS: u8 = 8;

/// Changes the TCP options of a SYN packet; other frames pass unchanged.
pub(crate) fn rewrite_handshake(
    frame: &mut TunFrame,
    headers: &PacketHeaders,
    changes: &TcpHandshakeChanges,
) {
    let Some(tcp) = headers.tcp.filter(|tcp| tcp.has(TcpHeader::SYN)) else {
        return;
    };
    let partial = VnetHeader::read(frame.bytes()).is_some_and(|vnet| vnet.partial_checksum());
    let (from, to) = (VNET_LEN + tcp.at, VNET_LEN + tcp.payload_at);
    let Some(header) = frame.bytes_mut().get_mut(from..to) else {
        return;
    };
    // A partial checksum is the sum of the pseudo header, which has no options.
    let before = header.to_vec();
    let Some((fixed, options)) = header.split_at_mut_checked(20) else {
        return;
    };
    change(options, changes);
    if partial {
        return;
    }
    let word = |pair: &[u8]| u16::from_be_bytes([pair[0], pair[1]]);
    let mut checksum = word(&fixed[16..18]);
    for (old, new) in before[20..].chunks_exact(2).zip(options.chunks_exact(2)) {
        checksum = replace_word(checksum, word(old), word(new));
    }
    fixed[16..18].copy_from_slice(&checksum.to_be_bytes());
}

fn change(options: &mut [u8], changes: &TcpHandshakeChanges) {
    let mut at = 0;
    while let Some(kind) = options.get(at).copied().filter(|kind| *kind != END) {
        if kind == PADDING {
            at += 1;
            continue;
        }
        let len = usize::from(options.get(at + 1).copied().unwrap_or(0));
        let Some(option) = options.get_mut(at..at + len).filter(|o| o.len() >= 2) else {
            return;
        };
        let remove = match kind {
            WINDOW_SCALE => changes.no_window_scaling,
            SACK_PERMITTED => changes.no_sack,
            TIMESTAMPS => changes.no_timestamps,
            _ => false,
        };
        if remove {
            option.fill(PADDING);
        } else if let (SEGMENT, [_, _, size @ ..], Some(most)) =
            (kind, &mut *option, changes.largest_segment)
            && let Some(size) = size.first_chunk_mut::<2>()
        {
            *size = u16::from_be_bytes(*size).min(most).to_be_bytes();
        }
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::super::FramePool;
    use super::super::checksum::{checksum, fold, sum};
    use super::*;

    const OPTIONS: [u8; 20] = [
        2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7,
    ];

    /// A SYN of IPv4 with these options, and a full or a partial checksum.
    fn syn(partial: bool) -> Vec<u8> {
        let mut frame = vec![0; VNET_LEN];
        frame[0] = u8::from(partial);
        let mut ip = [0; 20];
        (ip[0], ip[3], ip[9]) = (0x45, 60, 6);
        ip[12..20].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
        let mut tcp = [0; 40];
        (tcp[12], tcp[13]) = (10 << 4, TcpHeader::SYN);
        tcp[20..].copy_from_slice(&OPTIONS);
        let pseudo = sum(&ip[12..20]) + 6 + 40;
        let field = match partial {
            true => fold(pseudo),
            false => checksum(pseudo, &tcp),
        };
        tcp[16..18].copy_from_slice(&field.to_be_bytes());
        frame.extend(ip);
        frame.extend(tcp);
        frame
    }

    fn rewritten(frame: &[u8], changes: &TcpHandshakeChanges) -> Vec<u8> {
        let mut frame = FramePool::new().filled(frame);
        let headers = PacketHeaders::read(frame.bytes());
        rewrite_handshake(&mut frame, &headers, changes);
        frame.bytes().to_vec()
    }

    #[test]
    fn options_are_removed_or_lowered_with_a_correct_checksum() {
        let all = TcpHandshakeChanges {
            no_window_scaling: true,
            no_sack: true,
            no_timestamps: true,
            largest_segment: Some(1360),
        };
        let mut padded = [PADDING; 20];
        padded[..4].copy_from_slice(&[2, 4, 5, 80]);
        for partial in [false, true] {
            let frame = rewritten(&syn(partial), &all);
            let tcp = &frame[VNET_LEN + 20..];
            assert_eq!(tcp[20..], padded);
            let pseudo = sum(&frame[VNET_LEN + 12..VNET_LEN + 20]) + 6 + 40;
            match partial {
                true => assert_eq!(tcp[16..18], fold(pseudo).to_be_bytes()),
                false => assert_eq!(checksum(pseudo, tcp), 0),
            }
        }
        let larger = TcpHandshakeChanges {
            largest_segment: Some(9000),
            ..TcpHandshakeChanges::default()
        };
        assert_eq!(rewritten(&syn(false), &larger), syn(false));
    }

    #[test]
    fn damaged_options_and_other_packets_pass_unchanged() {
        let all = TcpHandshakeChanges {
            no_window_scaling: true,
            no_sack: true,
            ..TcpHandshakeChanges::default()
        };
        for (at, byte) in [(20, 0), (21, 0), (21, 255), (21, 1), (13, TcpHeader::ACK)] {
            let mut frame = syn(true);
            frame[VNET_LEN + 20 + at] = byte;
            assert_eq!(rewritten(&frame, &all), frame, "{at} {byte}");
        }
    }
}
