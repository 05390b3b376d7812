//! Incoming direction: framing, keys, and jobs that open packets.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::cipher::{MAX_PACKET_LENGTH, OpeningKey, PacketOpenError, PacketPosition};
use crate::compress::Inflate;
use crate::crypto_offload::{CryptoHelpers, CryptoJobBatch, HelperJobOrder, OffloadJob};
use crate::error::{Error, Local, PeerMisbehaved};

/// Job to decrypt and verify a whole packet, on any thread.
#[derive(Debug)]
pub struct PacketDecryptionJob {
    key: Arc<OpeningKey>,
    at: PacketPosition,
    packet: BytesMut,
}

impl PacketDecryptionJob {
    /// Verifies and decrypts the packet in place; the payload is a slice of its receive segment.
    ///
    /// # Errors
    /// The packet is damaged, forged or malformed.
    pub fn open(mut self) -> Result<DecryptedPacket, Error> {
        let payload = self
            .key
            .open(self.at, &mut self.packet)
            .map_err(PeerMisbehaved::BadPacket)?;
        Ok(DecryptedPacket {
            sequence: self.at.sequence,
            payload: self.packet.freeze().slice(payload),
        })
    }
}

impl OffloadJob for PacketDecryptionJob {
    type Done = Result<DecryptedPacket, Error>;

    fn carry_out(self) -> Self::Done {
        self.open()
    }
}

/// Received bytes below which helpers gain nothing.
const WORTH_HELP: usize = 128 << 10;

/// Packet after decryption and verification, without its padding.
#[derive(Clone, Debug)]
pub struct DecryptedPacket {
    /// Sequence number of the packet.
    pub sequence: u32,
    /// Message number and fields; still compressed if compression is on.
    pub payload: Bytes,
}

/// Incoming direction of a transport: its key and stream position, and the packets that helpers
/// open ahead.
pub(crate) struct InboundState {
    key: Arc<OpeningKey>,
    at: PacketPosition,
    since_keys: u64,
    /// Length on the wire of the arriving packet, kept so that its length field is decrypted once.
    whole: Option<usize>,
    inflate: Option<Inflate>,
    helper: Option<CryptoHelpers>,
    /// Packets being opened ahead, and the index of the next one.
    ahead: Option<(Arc<CryptoJobBatch<PacketDecryptionJob>>, usize)>,
    /// Error found behind the packets being opened ahead.
    wrong: Option<Error>,
}

impl InboundState {
    pub(crate) fn new() -> Self {
        Self {
            key: Arc::new(OpeningKey::plain()),
            at: PacketPosition::default(),
            since_keys: 0,
            whole: None,
            inflate: None,
            helper: None,
            ahead: None,
            wrong: None,
        }
    }

    pub(crate) fn set_helper(&mut self, helper: CryptoHelpers) {
        self.helper = Some(helper);
    }

    /// Hands all whole packets in `buf` to helpers if enough is received and a helper is idle.
    /// Helpers start with the last packet while this thread opens and processes the first.
    pub(crate) fn look_ahead(&mut self, buf: &mut BytesMut) {
        if buf.len() < WORTH_HELP || self.is_ahead() || self.inflate.is_some() {
            return;
        }
        if self.key.is_free() {
            return;
        }
        if !self.helper.as_ref().is_some_and(CryptoHelpers::is_idle) {
            return;
        }
        let mut jobs = Vec::new();
        loop {
            match self.next_job(buf) {
                Ok(Some(job)) => jobs.push(job),
                Ok(None) => break,
                Err(e) => {
                    self.wrong = Some(e);
                    break;
                }
            }
        }
        // Perhaps only part of one large packet has arrived; a single packet needs no helper.
        let (none, several) = (jobs.is_empty(), jobs.len() > 1);
        if none {
            return;
        }
        let batch = Arc::new(CryptoJobBatch::new(jobs));
        if let Some(helper) = self.helper.as_ref().filter(|_| several) {
            helper.help(&batch, HelperJobOrder::Lifo);
        }
        self.ahead = Some((batch, 0));
    }

    /// Returns true while packets are opened ahead.
    pub(crate) fn is_ahead(&self) -> bool {
        self.ahead.is_some() || self.wrong.is_some()
    }

    /// Returns the next packet, opened.
    pub(crate) fn next_opened(
        &mut self,
        buf: &mut BytesMut,
    ) -> Result<Option<DecryptedPacket>, Error> {
        if let Some((batch, at)) = &mut self.ahead {
            let opened = batch.take(*at);
            *at += 1;
            if *at >= batch.len() {
                self.ahead = None;
            }
            return opened
                .unwrap_or_else(|| Err(Local::Helper.into()))
                .map(Some);
        }
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        self.next_job(buf)?
            .map(PacketDecryptionJob::open)
            .transpose()
    }

    /// Takes the next packet from the front of `buf` if it is complete.
    pub(crate) fn next_job(
        &mut self,
        buf: &mut BytesMut,
    ) -> Result<Option<PacketDecryptionJob>, Error> {
        let whole = match self.whole {
            Some(whole) => whole,
            None => {
                let Some(head) = buf.get(..self.key.head_len()) else {
                    return Ok(None);
                };
                let whole = self.whole_len(head).map_err(PeerMisbehaved::BadPacket)?;
                *self.whole.insert(whole)
            }
        };
        if buf.len() < whole {
            return Ok(None);
        }
        let packet = buf.split_to(whole);
        let at = self.at;
        self.pass(whole);
        Ok(Some(PacketDecryptionJob {
            key: Arc::clone(&self.key),
            at,
            packet,
        }))
    }

    /// Advances the position past a packet of `whole` bytes at the front.
    pub(super) fn pass(&mut self, whole: usize) {
        self.whole = None;
        self.key.framing().advance(&mut self.at, whole);
        self.since_keys += whole as u64;
    }

    /// Returns true if received bytes need no processing: neither cipher, MAC nor compression, and
    /// no packets being opened.
    pub(super) fn opens_free(&self) -> bool {
        self.key.is_free() && self.inflate.is_none() && !self.is_ahead()
    }

    /// Returns the length on the wire of the packet that starts with `head`.
    pub(super) fn whole_len(&self, head: &[u8]) -> Result<usize, PacketOpenError> {
        self.key.peek_length(self.at, head)
    }

    /// Returns the length on the wire of the packet at the front of the buffer, if it is known.
    pub(crate) fn wanted(&self) -> Option<usize> {
        self.whole
    }

    /// Decompresses a payload if compression is on.
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

    /// Switches to the new key after the peer's NEWKEYS.
    pub(crate) fn rekey(&mut self, key: OpeningKey, strict: bool) {
        self.key = Arc::new(key);
        self.at = self.at.rekeyed(strict);
        self.since_keys = 0;
    }

    /// Returns the position of the next packet.
    pub(super) fn position(&self) -> PacketPosition {
        self.at
    }

    /// Continues at the key and position of a handed-over transport.
    pub(super) fn go_on(&mut self, key: OpeningKey, at: PacketPosition, since_keys: u64) {
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

    /// Sets the sequence number of the next packet.
    #[cfg(test)]
    pub(super) fn skip_to(&mut self, sequence: u32) {
        self.at.sequence = sequence;
    }

    pub(crate) fn since_keys(&self) -> (u64, u64) {
        (self.since_keys, self.at.packets)
    }
}
