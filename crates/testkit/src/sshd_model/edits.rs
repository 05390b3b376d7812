/// Where a message can be slipped in; each is reached once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Behind our first NEWKEYS and EXT_INFO.
    Keys,
    /// Behind SERVICE_ACCEPT.
    ServiceAccept,
    /// Behind the answer that a key would do.
    PkOk,
    /// In front of the first answer to an authentication request.
    Answer,
    /// Behind USERAUTH_SUCCESS.
    Success,
    /// Behind the confirmation of the channel.
    Confirmed,
    /// Behind the answer to the subsystem request.
    Subsystem,
    /// Behind the first data of the SFTP server.
    Data,
}

/// A change to a packet that is not enciphered yet.
#[derive(Clone, Debug)]
pub enum Edit {
    /// Bytes in front of it.
    Before(Vec<u8>),
    /// Bytes in its place.
    Replace(Vec<u8>),
    /// One byte string replaced by another of the same length.
    Swap(Vec<u8>, Vec<u8>),
    /// Nothing in its place.
    Drop,
}

impl Edit {
    pub(super) fn apply(&self, packet: &mut Vec<u8>) {
        match self {
            Self::Before(bytes) => {
                packet.splice(0..0, bytes.iter().copied());
            }
            Self::Replace(bytes) => packet.clone_from(bytes),
            Self::Swap(from, to) => {
                let at = packet.windows(from.len()).position(|w| w == from);
                let at = at.expect("what is to be replaced is there");
                packet[at..at + from.len()].copy_from_slice(to);
            }
            Self::Drop => packet.clear(),
        }
    }
}

/// A packet as it is before the first keys (RFC 4253 section 6).
pub fn plain_packet(payload: &[u8]) -> Vec<u8> {
    let padding = 4 + (8 - (payload.len() + 9) % 8) % 8;
    let mut packet = ((1 + payload.len() + padding) as u32)
        .to_be_bytes()
        .to_vec();
    packet.push(padding as u8);
    packet.extend_from_slice(payload);
    packet.resize(packet.len() + padding, 0);
    packet
}
