/// Point of the connection at which a message can be injected; each is reached once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// After the server's first NEWKEYS and EXT_INFO.
    Keys,
    /// After SERVICE_ACCEPT.
    ServiceAccept,
    /// After USERAUTH_PK_OK.
    PkOk,
    /// Before the first answer to an authentication request.
    Answer,
    /// After USERAUTH_SUCCESS.
    Success,
    /// After the channel confirmation.
    Confirmed,
    /// After the answer to the subsystem request.
    Subsystem,
    /// After the first data of the SFTP server.
    Data,
}

/// Change to a packet that is not encrypted yet.
#[derive(Clone, Debug)]
pub enum Edit {
    /// Inserts bytes before the packet.
    Before(Vec<u8>),
    /// Replaces the packet.
    Replace(Vec<u8>),
    /// Replaces one byte string by another of equal length.
    Swap(Vec<u8>, Vec<u8>),
    /// Drops the packet.
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

/// Builds an unencrypted packet, as sent before the first keys (RFC 4253 section 6).
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
