//! The incoming direction: framing, keys, and the jobs that open.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::cipher::{OpeningKey, Position};
use crate::compress::Inflate;
use crate::error::{Error, PeerMisbehaved};

/// Largest packet_length read, as OpenSSH's PACKET_MAX_SIZE (packet.h).
pub(crate) const MAX_PACKET: usize = 256 * 1024;

/// A whole packet that still has to be opened: may be done on any thread.
#[derive(Debug)]
pub struct OpenJob {
    key: Arc<OpeningKey>,
    at: Position,
    packet: BytesMut,
}

impl OpenJob {
    /// Verifies and decrypts in place; the payload is a slice of the segment it came in.
    pub fn open(mut self) -> Result<Opened, Error> {
        let payload = self
            .key
            .open(self.at, &mut self.packet)
            .map_err(|e| Error::from(PeerMisbehaved::BadPacket(e)))?;
        Ok(Opened { sequence: self.at.sequence, payload: self.packet.freeze().slice(payload) })
    }
}

/// An opened packet.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Its sequence number.
    pub sequence: u32,
    /// Message number and fields; compressed if compression is on.
    pub payload: Bytes,
}

/// State of the incoming direction.
pub(crate) struct Inbound {
    key: Arc<OpeningKey>,
    at: Position,
    since_keys: u64,
    /// packet_length of the packet that is arriving, so that it is decrypted once.
    length: Option<usize>,
    inflate: Option<Inflate>,
}

impl Inbound {
    pub(crate) fn new() -> Self {
        Self {
            key: Arc::new(OpeningKey::plain()),
            at: Position::default(),
            since_keys: 0,
            length: None,
            inflate: None,
        }
    }

    /// Takes the next packet from the front of `buf` if all of it is there.
    pub(crate) fn next_job(&mut self, buf: &mut BytesMut) -> Result<Option<OpenJob>, Error> {
        let length = match self.length {
            Some(length) => length,
            None => {
                let Some(head) = buf.get(..self.key.head_len()) else { return Ok(None) };
                let length = self.key.peek_length(self.at, head) as usize;
                // Smallest: padding_length, a message number, 4 bytes of padding, in a block of
                // at least 8 (RFC 4253 section 6).
                if !(6..=MAX_PACKET).contains(&length) {
                    return Err(PeerMisbehaved::PacketLength(length as u32).into());
                }
                self.length = Some(length);
                length
            }
        };
        let whole = 4 + length + self.key.tag_len();
        if buf.len() < whole {
            return Ok(None);
        }
        self.length = None;
        let packet = buf.split_to(whole);
        let at = self.at;
        self.key.advance(&mut self.at, 4 + length);
        self.since_keys += whole as u64;
        Ok(Some(OpenJob { key: Arc::clone(&self.key), at, packet }))
    }

    /// How many bytes the packet at the front of the buffer needs in all, when that is known.
    pub(crate) fn wanted(&self) -> Option<usize> {
        self.length.map(|length| 4 + length + self.key.tag_len())
    }

    /// Undoes compression.
    pub(crate) fn inflate(&mut self, payload: Bytes) -> Result<Bytes, Error> {
        match &mut self.inflate {
            Some(inflate) => inflate
                .decompress(&payload)
                .map(Bytes::from)
                .map_err(|_| PeerMisbehaved::BadCompression.into()),
            None => Ok(payload),
        }
    }

    /// Takes new keys into use: what follows the peer's NEWKEYS.
    pub(crate) fn rekey(&mut self, key: OpeningKey, reset_sequence: bool) {
        let sequence = if reset_sequence { 0 } else { self.at.sequence };
        self.key = Arc::new(key);
        self.at = Position { sequence, ..Position::default() };
        self.since_keys = 0;
    }

    pub(crate) fn start_compression(&mut self) {
        if self.inflate.is_none() {
            self.inflate = Some(Inflate::new(MAX_PACKET));
        }
    }

    pub(crate) fn stop_compression(&mut self) {
        self.inflate = None;
    }

    pub(crate) fn since_keys(&self) -> (u64, u64) {
        (self.since_keys, self.at.packets)
    }
}
