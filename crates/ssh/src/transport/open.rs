//! The incoming direction: framing, keys, and the jobs that open.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::cipher::{MAX_PACKET_LENGTH, OpeningKey, Position};
use crate::compress::Inflate;
use crate::error::{Error, PeerMisbehaved};

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
            .map_err(PeerMisbehaved::BadPacket)?;
        Ok(Opened {
            sequence: self.at.sequence,
            payload: self.packet.freeze().slice(payload),
        })
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
    /// Bytes of the packet that is arriving, so that its length is deciphered once.
    whole: Option<usize>,
    inflate: Option<Inflate>,
}

impl Inbound {
    pub(crate) fn new() -> Self {
        Self {
            key: Arc::new(OpeningKey::plain()),
            at: Position::default(),
            since_keys: 0,
            whole: None,
            inflate: None,
        }
    }

    /// Takes the next packet from the front of `buf` if all of it is there.
    pub(crate) fn next_job(&mut self, buf: &mut BytesMut) -> Result<Option<OpenJob>, Error> {
        let whole = match self.whole {
            Some(whole) => whole,
            None => {
                let Some(head) = buf.get(..self.key.head_len()) else {
                    return Ok(None);
                };
                *self.whole.insert(
                    self.key
                        .peek_length(self.at, head)
                        .map_err(PeerMisbehaved::BadPacket)?,
                )
            }
        };
        if buf.len() < whole {
            return Ok(None);
        }
        self.whole = None;
        let packet = buf.split_to(whole);
        let at = self.at;
        self.key.framing().advance(&mut self.at, whole);
        self.since_keys += whole as u64;
        Ok(Some(OpenJob {
            key: Arc::clone(&self.key),
            at,
            packet,
        }))
    }

    /// How many bytes the packet at the front of the buffer needs in all, when that is known.
    pub(crate) fn wanted(&self) -> Option<usize> {
        self.whole
    }

    /// Undoes compression.
    pub(crate) fn inflate(&mut self, payload: Bytes) -> Result<Bytes, Error> {
        let Some(inflate) = &mut self.inflate else {
            return Ok(payload);
        };
        let mut whole = Vec::new();
        inflate
            .inflate(&payload, &mut whole)
            .map_err(PeerMisbehaved::BadCompression)?;
        Ok(Bytes::from(whole))
    }

    /// Takes new keys into use: what follows the peer's NEWKEYS.
    pub(crate) fn rekey(&mut self, key: OpeningKey, strict: bool) {
        self.key = Arc::new(key);
        self.at = self.at.rekeyed(strict);
        self.since_keys = 0;
    }

    /// Where the next packet stands.
    pub(super) fn position(&self) -> Position {
        self.at
    }

    /// Goes on where another has stopped.
    pub(super) fn go_on(&mut self, key: OpeningKey, at: Position, since_keys: u64) {
        self.key = Arc::new(key);
        self.at = at;
        self.since_keys = since_keys;
    }

    pub(crate) fn start_compression(&mut self) {
        if self.inflate.is_none() {
            self.inflate = Some(Inflate::new(MAX_PACKET_LENGTH));
        }
    }

    pub(crate) fn stop_compression(&mut self) {
        self.inflate = None;
    }

    /// As if so many packets had come.
    #[cfg(test)]
    pub(super) fn skip_to(&mut self, sequence: u32) {
        self.at.sequence = sequence;
    }

    pub(crate) fn since_keys(&self) -> (u64, u64) {
        (self.since_keys, self.at.packets)
    }
}
