use std::fmt;

/// Why a packet of ours could not be sealed: a mistake in laying it out, never the peer's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealError {
    /// The buffer is no packet of this cipher: too short, too long, not a multiple of the block,
    /// or its packet_length says otherwise.
    BadLayout {
        /// Bytes in the buffer.
        len: usize,
    },
    /// The key, IV or MAC key has the wrong length for the cipher.
    BadKeyMaterial,
    /// The cipher library refused.
    Failed,
}

impl fmt::Display for SealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadLayout { len } => {
                write!(f, "{len} bytes to seal are not laid out as a packet")
            }
            Self::BadKeyMaterial => f.write_str("key material of a wrong length for the cipher"),
            Self::Failed => f.write_str("the cipher library failed to seal a packet"),
        }
    }
}

impl std::error::Error for SealError {}

/// Why a packet from the peer could not be opened. Each ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Fewer bytes than the call needs.
    Short {
        /// Bytes needed.
        needed: usize,
        /// Bytes there.
        got: usize,
    },
    /// packet_length is outside of what may be, or no multiple of the cipher's block. After
    /// enciphering began this is also what a damaged or displaced packet looks like.
    BadLength {
        /// What the packet says.
        packet_length: u32,
    },
    /// The tag is wrong: damaged, forged or out of order.
    BadTag,
    /// padding_length is below 4 or longer than the packet (RFC 4253 section 6).
    BadPadding {
        /// What the packet says.
        padding_length: u8,
    },
    /// The cipher library refused.
    Failed,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { needed, got } => {
                write!(f, "{got} bytes of a packet where {needed} are needed")
            }
            Self::BadLength { packet_length } => {
                write!(f, "the peer sent a packet with bad length {packet_length}")
            }
            Self::BadTag => f.write_str("the peer sent a packet with a wrong authentication tag"),
            Self::BadPadding { padding_length } => {
                write!(
                    f,
                    "the peer sent a packet with bad padding {padding_length}"
                )
            }
            Self::Failed => f.write_str("the cipher library failed to open a packet"),
        }
    }
}

impl std::error::Error for OpenError {}
