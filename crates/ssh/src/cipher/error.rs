use std::fmt;

use crate::error::PeerName;

/// Error of encrypting one of our packets: a bug in its layout, never the peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketSealError {
    /// The buffer is not a packet of this cipher: too short, too long, not a multiple of the block
    /// length, or its packet_length does not match.
    BadLayout {
        /// Length of the buffer in bytes.
        len: usize,
    },
    /// The key, IV or MAC key has the wrong length for the cipher.
    BadKeyMaterial,
    /// The cipher library failed.
    Failed,
}

impl fmt::Display for PacketSealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadLayout { len } => {
                write!(
                    f,
                    "internal error: {len} bytes to encrypt do not form a packet"
                )
            }
            Self::BadKeyMaterial => {
                f.write_str("internal error: key material has the wrong length for the cipher")
            }
            Self::Failed => f.write_str("the cipher library failed to encrypt a packet"),
        }
    }
}

impl std::error::Error for PacketSealError {}

/// Error of decrypting a packet from the peer. Each ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketOpenError {
    /// The buffer is shorter than the call needs.
    Short {
        /// Bytes needed.
        needed: usize,
        /// Bytes in the buffer.
        got: usize,
    },
    /// packet_length is out of range or not a multiple of the cipher's block length. Once packets
    /// are encrypted, a damaged or displaced packet causes this error too.
    BadLength {
        /// The packet_length field.
        packet_length: u32,
    },
    /// The MAC or tag is wrong: the packet is damaged, forged or out of order.
    BadTag,
    /// padding_length is below 4 or exceeds the packet (RFC 4253 section 6).
    BadPadding {
        /// The padding_length field.
        padding_length: u8,
    },
    /// The cipher library failed.
    Failed,
}

impl PacketOpenError {
    /// Writes the message, which calls the other side `peer`.
    pub(crate) fn describe(&self, peer: PeerName, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { needed, got } => {
                write!(
                    f,
                    "internal error: {got} bytes of a packet, {needed} needed"
                )
            }
            Self::BadLength { packet_length } => {
                write!(f, "{peer} sent a packet with bad length {packet_length}")
            }
            Self::BadTag => {
                f.write_str("MAC verification failed: the data was modified in transit")
            }
            Self::BadPadding { padding_length } => {
                write!(f, "{peer} sent a packet with bad padding {padding_length}")
            }
            Self::Failed => f.write_str("the cipher library failed to decrypt a packet"),
        }
    }
}

impl fmt::Display for PacketOpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(PeerName::default(), f)
    }
}

impl std::error::Error for PacketOpenError {}
