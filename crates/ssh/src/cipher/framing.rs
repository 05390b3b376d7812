use super::{CipherSpec, MacSpec, OpenError, SealError};

/// The longest packet_length accepted and sent: OpenSSH's PACKET_MAX_SIZE (packet.c).
pub const MAX_PACKET_LENGTH: usize = 256 * 1024;

/// Bytes of the packet_length field.
pub(super) const LENGTH_FIELD: usize = 4;
/// Bytes in front of the payload.
const HEAD: usize = LENGTH_FIELD + 1;
/// RFC 4253 section 6.
pub(crate) const MIN_PADDING: usize = 4;
const MIN_PACKET: usize = 16;

/// Where a packet stands in its direction's stream.
///
/// The connection holds one for the next packet of each direction and moves it on with
/// [`Framing::advance`]. At NEWKEYS `packets` and `bytes` start again at 0; `sequence` does so
/// too only under strict KEX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The packet's sequence number; wraps around (RFC 4253 section 6.4).
    pub sequence: u32,
    /// Packets since NEWKEYS: the invocation counter of AES-GCM.
    pub packets: u64,
    /// Enciphered bytes since NEWKEYS: the counter of AES-CTR. The tag is not counted, nor is a
    /// packet_length that travels in the clear.
    pub bytes: u64,
}

impl Position {
    /// The position after NEWKEYS: counters at 0, the sequence number too under strict KEX.
    #[must_use]
    pub fn rekeyed(self, strict: bool) -> Self {
        Self {
            sequence: if strict { 0 } else { self.sequence },
            ..Self::default()
        }
    }
}

/// How packets are laid out under a cipher and MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    block_len: usize,
    tag_len: usize,
    aligned_from: usize,
}

impl Framing {
    pub(super) fn new(cipher: &CipherSpec, mac: Option<&MacSpec>) -> Self {
        // chacha20-poly1305 enciphers the length, but under a key of its own and apart from
        // what is aligned (OpenSSH PROTOCOL.chacha20poly1305).
        let apart = cipher.is_aead() || mac.is_some_and(|m| m.etm);
        Self {
            block_len: cipher.block_len,
            tag_len: mac.map_or(cipher.tag_len, |m| m.tag_len),
            aligned_from: if apart { LENGTH_FIELD } else { 0 },
        }
    }

    /// What the aligned part of a packet is a multiple of, in bytes.
    pub fn block_len(&self) -> usize {
        self.block_len
    }

    /// Bytes of tag behind the padding.
    pub fn tag_len(&self) -> usize {
        self.tag_len
    }

    /// Leading bytes outside of the alignment: 4 for AEAD and encrypt-then-MAC, where
    /// packet_length is not enciphered with the rest, 0 otherwise.
    pub fn aligned_from(&self) -> usize {
        self.aligned_from
    }

    /// The least padding that is legal behind `payload_len` bytes: at least 4, to the next
    /// block, and no packet under 16 bytes. Never more than 31.
    pub fn padding(&self, payload_len: usize) -> usize {
        let aligned = HEAD - self.aligned_from + payload_len;
        let mut padding = self.block_len - aligned % self.block_len;
        while padding < MIN_PADDING || HEAD + payload_len + padding < MIN_PACKET {
            padding += self.block_len;
        }
        padding
    }

    /// Padding beyond [`Framing::padding`] that brings the aligned part to a multiple of
    /// `multiple` bytes, itself a multiple of every block: hides how long a payload is
    /// (OpenSSH's sshpkt_add_padding).
    pub fn more_padding(&self, payload_len: usize, multiple: usize) -> usize {
        let aligned = HEAD - self.aligned_from + payload_len + self.padding(payload_len);
        aligned.next_multiple_of(multiple) - aligned
    }

    /// Bytes on the wire of a packet with `payload_len` bytes: head, payload, padding and tag.
    pub fn packet_len(&self, payload_len: usize) -> usize {
        HEAD + payload_len + self.padding(payload_len) + self.tag_len
    }

    /// packet_length and padding_length for `payload_len` bytes, to stand in front of them.
    pub fn head(&self, payload_len: usize) -> Result<[u8; 5], SealError> {
        self.head_padded(payload_len, 0)
    }

    /// The same with `more` bytes of padding than the least.
    pub fn head_padded(&self, payload_len: usize, more: usize) -> Result<[u8; 5], SealError> {
        let padding = self.padding(payload_len) + more;
        let packet_length = 1 + payload_len + padding;
        match (u32::try_from(packet_length), u8::try_from(padding)) {
            (Ok(length), Ok(padding)) if packet_length <= MAX_PACKET_LENGTH => {
                let [a, b, c, d] = length.to_be_bytes();
                Ok([a, b, c, d, padding])
            }
            _ => Err(SealError::BadLayout { len: payload_len }),
        }
    }

    /// Moves `at` behind a packet of `packet_len` bytes on the wire, tag included: `sequence`
    /// and `packets` by one, `bytes` by what the cipher enciphered of it.
    pub fn advance(&self, at: &mut Position, packet_len: usize) {
        at.sequence = at.sequence.wrapping_add(1);
        at.packets = at.packets.wrapping_add(1);
        let enciphered = packet_len.saturating_sub(self.tag_len + self.aligned_from);
        at.bytes = at.bytes.wrapping_add(enciphered as u64);
    }

    /// Bytes on the wire of the packet that says `packet_length`, tag included; the bound on
    /// what a peer can make us receive.
    pub(super) fn check_length(&self, packet_length: u32) -> Result<usize, OpenError> {
        let bad = OpenError::BadLength { packet_length };
        let length = usize::try_from(packet_length).map_err(|_| bad)?;
        let whole = LENGTH_FIELD + length.min(MAX_PACKET_LENGTH);
        let aligned = (whole - self.aligned_from).is_multiple_of(self.block_len);
        if (1 + MIN_PADDING..=MAX_PACKET_LENGTH).contains(&length) && aligned {
            Ok(whole + self.tag_len)
        } else {
            Err(bad)
        }
    }

    /// Checks that `packet` is laid out as [`Framing::head`] says; returns where its tag starts.
    pub(super) fn check_layout(&self, packet: &[u8]) -> Result<usize, SealError> {
        self.tag_at(packet, packet.len())
    }

    /// The same for a packet of `len` bytes that begins like this.
    pub(super) fn tag_at(&self, front: &[u8], len: usize) -> Result<usize, SealError> {
        let bad = SealError::BadLayout { len };
        let head = front.first_chunk::<LENGTH_FIELD>().ok_or(bad)?;
        match self.check_length(u32::from_be_bytes(*head)) {
            Ok(says) if says == len => Ok(len - self.tag_len),
            _ => Err(bad),
        }
    }
}
