/// Length of a `virtio_net_hdr` (linux/virtio_net.h), which a TUN device with `IFF_VNET_HDR` puts
/// before each packet unless another length is set (TUNSETVNETHDRSZ).
pub const VNET_LEN: usize = 10;

const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_ECN: u8 = 0x80;

/// `virtio_net_hdr` in native byte order, the default of TUN devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// `VIRTIO_NET_HDR_F_*`
    pub flags: u8,
    /// `VIRTIO_NET_HDR_GSO_*`
    pub gso_type: u8,
    /// Bytes of all headers of a super-packet, as a hint that Linux does not always set.
    pub hdr_len: u16,
    /// Payload bytes of each segment but the last.
    pub gso_size: u16,
    /// Offset of the first byte that the checksum covers, from the IP header.
    pub csum_start: u16,
    /// Offset of the checksum field from `csum_start`.
    pub csum_offset: u16,
}

impl VnetHeader {
    /// Reads the header of a frame; `None` if the frame is too short.
    pub fn read(frame: &[u8]) -> Option<Self> {
        let bytes: &[u8; VNET_LEN] = frame.first_chunk()?;
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Some(Self {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        })
    }

    /// Writes the header to the front of a frame, if there is room.
    pub fn write(&self, frame: &mut [u8]) {
        let Some(bytes) = frame.first_chunk_mut::<VNET_LEN>() else {
            return;
        };
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        let words = [
            self.hdr_len,
            self.gso_size,
            self.csum_start,
            self.csum_offset,
        ];
        for (word, at) in words.into_iter().zip((2..).step_by(2)) {
            bytes[at..at + 2].copy_from_slice(&word.to_ne_bytes());
        }
    }

    /// Returns true if the transport checksum is incomplete: its field has the sum of the pseudo
    /// header only.
    pub fn partial_checksum(&self) -> bool {
        self.flags & NEEDS_CSUM != 0
    }

    /// The IP version, if this is a TCP super-packet.
    pub(super) fn tcp_super_packet(&self) -> Option<u8> {
        match self.gso_type & !GSO_ECN {
            GSO_TCPV4 if self.partial_checksum() => Some(4),
            GSO_TCPV6 if self.partial_checksum() => Some(6),
            _ => None,
        }
    }

    /// Marks the frame as an ordinary packet, once a single segment is left.
    pub(super) fn single(&mut self) {
        self.gso_type = 0;
        self.gso_size = 0;
    }

    /// Notes that the first segment is missing, the only one with CWR.
    pub(super) fn without_first(&mut self) {
        self.gso_type &= !GSO_ECN;
    }
}
