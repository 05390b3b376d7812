use super::{CipherSpec, MacSpec, PacketOpenError, PacketSealError};

/// Maximum packet_length accepted and sent, in bytes: OpenSSH's PACKET_MAX_SIZE (packet.c).
pub const MAX_PACKET_LENGTH: usize = 256 * 1024;

/// Length of the packet_length field in bytes.
pub(super) const LENGTH_FIELD: usize = 4;
/// Bytes in front of the payload: packet_length and padding_length.
const HEAD: usize = LENGTH_FIELD + 1;
/// Minimum padding in bytes (RFC 4253 section 6).
pub(crate) const MIN_PADDING: usize = 4;
const MIN_PACKET: usize = 16;

/// Position of a packet in the stream of its direction.
///
/// The connection holds the position of the next packet for each direction and advances it with
/// [`PacketFraming::advance`]. At NEWKEYS `packets` and `bytes` restart at 0, and `sequence` only
/// under strict KEX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketPosition {
    /// Sequence number of the packet; it wraps around (RFC 4253 section 6.4).
    pub sequence: u32,
    /// Packets since NEWKEYS: the invocation counter of AES-GCM.
    pub packets: u64,
    /// Encrypted bytes since NEWKEYS: the counter of AES-CTR. Excludes the tag and an unencrypted
    /// packet_length.
    pub bytes: u64,
}

impl PacketPosition {
    /// Returns the position after NEWKEYS: counters at 0, and under strict KEX the sequence number
    /// too.
    #[must_use]
    pub fn rekeyed(self, strict: bool) -> Self {
        Self {
            sequence: if strict { 0 } else { self.sequence },
            ..Self::default()
        }
    }
}

/// Layout of packets for a cipher and MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketFraming {
    block_len: usize,
    tag_len: usize,
    aligned_from: usize,
}

impl PacketFraming {
    pub(super) fn new(cipher: &CipherSpec, mac: Option<&MacSpec>) -> Self {
        // chacha20-poly1305 encrypts the length too, but with a separate key and outside of the
        // alignment (OpenSSH PROTOCOL.chacha20poly1305).
        let apart = cipher.is_aead() || mac.is_some_and(|m| m.etm);
        Self {
            block_len: cipher.block_len,
            tag_len: mac.map_or(cipher.tag_len, |m| m.tag_len),
            aligned_from: if apart { LENGTH_FIELD } else { 0 },
        }
    }

    /// Returns the block length in bytes to which the aligned part of a packet is padded.
    pub fn block_len(&self) -> usize {
        self.block_len
    }

    /// Returns the length in bytes of the MAC or tag behind the padding.
    pub fn tag_len(&self) -> usize {
        self.tag_len
    }

    /// Returns the number of leading bytes outside of the alignment: 4 for AEAD and
    /// encrypt-then-MAC, which treat packet_length separately, else 0.
    pub fn aligned_from(&self) -> usize {
        self.aligned_from
    }

    /// Returns the least padding in bytes behind `payload_len` bytes: at least 4, up to the next
    /// block boundary, and no packet under 16 bytes. At most 31.
    pub fn padding(&self, payload_len: usize) -> usize {
        let aligned = HEAD - self.aligned_from + payload_len;
        let mut padding = self.block_len - aligned % self.block_len;
        while padding < MIN_PADDING || HEAD + payload_len + padding < MIN_PACKET {
            padding += self.block_len;
        }
        padding
    }

    /// Returns the padding in bytes beyond [`PacketFraming::padding`] that extends the aligned part
    /// to a multiple of `multiple`, which must be a multiple of the block length. It hides the
    /// payload's length (OpenSSH's sshpkt_add_padding).
    pub fn more_padding(&self, payload_len: usize, multiple: usize) -> usize {
        let aligned = HEAD - self.aligned_from + payload_len + self.padding(payload_len);
        aligned.next_multiple_of(multiple) - aligned
    }

    /// Returns the bytes on the wire of a packet with `payload_len` payload bytes: header, payload,
    /// padding and tag.
    pub fn packet_len(&self, payload_len: usize) -> usize {
        HEAD + payload_len + self.padding(payload_len) + self.tag_len
    }

    /// Returns packet_length and padding_length for a payload of `payload_len` bytes.
    pub fn head(&self, payload_len: usize) -> Result<[u8; 5], PacketSealError> {
        self.head_padded(payload_len, 0)
    }

    /// Returns packet_length and padding_length with `more` bytes of padding than the minimum.
    ///
    /// # Errors
    /// The packet or its padding would be too long.
    pub fn head_padded(&self, payload_len: usize, more: usize) -> Result<[u8; 5], PacketSealError> {
        let padding = self.padding(payload_len) + more;
        let packet_length = 1 + payload_len + padding;
        match (u32::try_from(packet_length), u8::try_from(padding)) {
            (Ok(length), Ok(padding)) if packet_length <= MAX_PACKET_LENGTH => {
                let [a, b, c, d] = length.to_be_bytes();
                Ok([a, b, c, d, padding])
            }
            _ => Err(PacketSealError::BadLayout { len: payload_len }),
        }
    }

    /// Advances `at` past a packet of `packet_len` bytes on the wire, tag included: `sequence` and
    /// `packets` by one, `bytes` by the number of encrypted bytes.
    pub fn advance(&self, at: &mut PacketPosition, packet_len: usize) {
        at.sequence = at.sequence.wrapping_add(1);
        at.packets = at.packets.wrapping_add(1);
        let enciphered = packet_len.saturating_sub(self.tag_len + self.aligned_from);
        at.bytes = at.bytes.wrapping_add(enciphered as u64);
    }

    /// Returns the bytes on the wire of a packet with this packet_length, tag included. The check
    /// bounds what a peer can make us receive.
    pub(super) fn check_length(&self, packet_length: u32) -> Result<usize, PacketOpenError> {
        let bad = PacketOpenError::BadLength { packet_length };
        let length = usize::try_from(packet_length).map_err(|_| bad)?;
        let whole = LENGTH_FIELD + length.min(MAX_PACKET_LENGTH);
        let aligned = (whole - self.aligned_from).is_multiple_of(self.block_len);
        if (1 + MIN_PADDING..=MAX_PACKET_LENGTH).contains(&length) && aligned {
            Ok(whole + self.tag_len)
        } else {
            Err(bad)
        }
    }

    /// Checks that the layout of `packet` matches [`PacketFraming::head`]; returns the offset of
    /// its tag.
    pub(super) fn check_layout(&self, packet: &[u8]) -> Result<usize, PacketSealError> {
        self.tag_at(packet, packet.len())
    }

    /// Checks a packet of `len` bytes that starts with `front`; returns the offset of its tag.
    pub(super) fn tag_at(&self, front: &[u8], len: usize) -> Result<usize, PacketSealError> {
        let bad = PacketSealError::BadLayout { len };
        let head = front.first_chunk::<LENGTH_FIELD>().ok_or(bad)?;
        match self.check_length(u32::from_be_bytes(*head)) {
            Ok(says) if says == len => Ok(len - self.tag_len),
            _ => Err(bad),
        }
    }
}
