/// Bytes of a `virtio_net_hdr` (linux/virtio_net.h), which a TUN device with `IFF_VNET_HDR` puts
/// before each packet unless told another length (TUNSETVNETHDRSZ).
pub const VNET_LEN: usize = 10;

const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_ECN: u8 = 0x80;

/// `virtio_net_hdr`, in the machine's own byte order, as TUN devices have it by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// `VIRTIO_NET_HDR_F_*`
    pub flags: u8,
    /// `VIRTIO_NET_HDR_GSO_*`
    pub gso_type: u8,
    /// Bytes of all headers of a super-packet. A hint, which Linux does not always fill.
    pub hdr_len: u16,
    /// Payload bytes of each segment but the last.
    pub gso_size: u16,
    /// Where the bytes begin that the checksum covers, counted from the IP header.
    pub csum_start: u16,
    /// Where the checksum goes, counted from `csum_start`.
    pub csum_offset: u16,
}

impl VnetHeader {
    /// The header of a frame; `None` when the frame is shorter.
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

    /// Puts the header at the front of a frame, when it has the room.
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

    /// Whether the transport checksum is still to be completed: its field holds the sum of the
    /// pseudo header only.
    pub fn partial_checksum(&self) -> bool {
        self.flags & NEEDS_CSUM != 0
    }

    /// The IP version of a super-packet of TCP.
    pub(super) fn tcp_super_packet(&self) -> Option<u8> {
        match self.gso_type & !GSO_ECN {
            GSO_TCPV4 if self.partial_checksum() => Some(4),
            GSO_TCPV6 if self.partial_checksum() => Some(6),
            _ => None,
        }
    }

    /// No longer a super-packet: one segment is left.
    pub(super) fn single(&mut self) {
        self.gso_type = 0;
        self.gso_size = 0;
    }

    /// The first segment, which alone carries CWR, is not in it.
    pub(super) fn without_first(&mut self) {
        self.gso_type &= !GSO_ECN;
    }
}
