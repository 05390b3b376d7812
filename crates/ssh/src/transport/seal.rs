//! Outgoing direction: sequence numbers, padding, keys, and jobs that seal packets.

use std::sync::Arc;

use wire::{BorrowPolicy, MissingPayloadError, OutputPart, PacketBuf};

use crate::cipher::{PacketPosition, SealingKey};
use crate::compress::Deflate;
use crate::crypto_offload::OffloadJob;
use crate::error::{Error, Local};
use crate::msg::Disconnect;

/// Bytes in front of the payload: packet_length and padding_length (RFC 4253 section 6).
const HEAD: usize = 5;

/// SSH_DISCONNECT_CONNECTION_LOST (RFC 4253 section 11.1).
const CONNECTION_LOST: u32 = 10;

const MISSED: &str = "a file was truncated, or became unreadable, while it was sent: copy it again";

/// Multiple in bytes to which a packet with a secret is padded (OpenSSH's sshconnect2.c).
const HIDDEN_MULTIPLE: usize = 64;

/// Job to seal a packet, on any thread and in any order; the results must be written in the order
/// in which the jobs were created.
#[derive(Debug)]
pub struct SealJob {
    key: Arc<SealingKey>,
    at: PacketPosition,
    packet: PacketBuf,
    padding: [u8; 32],
    /// Padding beyond the minimum; empty except for secrets.
    more: Vec<u8>,
}

impl SealJob {
    /// Builds the packet around its payload and seals it in place. If borrowed payload is no longer
    /// available, the result is a DISCONNECT instead, and the last packet.
    ///
    /// # Errors
    /// The layout does not suit the key.
    pub fn seal(mut self) -> Result<SealedPacket, Error> {
        let framing = self.key.framing();
        let mut missed = None;
        if self.packet.lies_outside() && !self.key.is_free() {
            if self.seal_from_outside()? {
                return Ok(self.sealed(None));
            }
            if let Err(error) = self.packet.gather() {
                let farewell = Disconnect {
                    reason: CONNECTION_LOST,
                    // The peer need not know the name of the file.
                    description: MISSED.as_bytes(),
                    language: b"",
                };
                self.packet = PacketBuf::from_payload(&farewell.to_bytes());
                missed = Some(error);
            }
        }
        let (payload, inside) = (self.packet.len(), self.packet.inside());
        let (padding, more) = (framing.padding(payload), self.more.len());
        let head = framing.head_padded(payload, more).map_err(Local::Seal)?;
        let back = padding + more + framing.tag_len();
        let bytes = self.packet.with_room(HEAD, back);
        bytes[..HEAD].copy_from_slice(&head);
        bytes[HEAD + inside..][..padding].copy_from_slice(&self.padding[..padding]);
        bytes[HEAD + inside + padding..][..more].copy_from_slice(&self.more);
        if inside == payload {
            self.key.seal(self.at, bytes).map_err(Local::Seal)?;
        }
        Ok(self.sealed(missed))
    }

    /// Seals borrowed payload straight from its source; returns false if it has to be copied into
    /// the packet first. The bytes behind it in the source become the padding, which is arbitrary.
    ///
    /// A result that turns out to be invalid was not sent, so another packet may take its position.
    fn seal_from_outside(&mut self) -> Result<bool, Error> {
        if !self.key.seals_from_elsewhere() || !self.more.is_empty() {
            return Ok(false);
        }
        let framing = self.key.framing();
        let padding = framing.padding(self.packet.len());
        let head = framing.head(self.packet.len()).map_err(Local::Seal)?;
        let mut sealed = Ok(());
        let (key, at) = (&self.key, self.at);
        let taken = self
            .packet
            .take_in(HEAD, (padding, framing.tag_len()), |front, from, to| {
                front[..HEAD].copy_from_slice(&head);
                sealed = key.seal_from(at, front, from, to);
            });
        sealed.map_err(Local::Seal)?;
        Ok(taken)
    }

    fn sealed(self, missed: Option<MissingPayloadError>) -> SealedPacket {
        let framing = self.key.framing();
        let padding = framing.padding(self.packet.len()) + self.more.len();
        SealedPacket {
            packet: self.packet,
            front: HEAD,
            back: padding + framing.tag_len(),
            written: 0,
            missed,
        }
    }
}

/// A sealed packet on its way to the socket.
#[derive(Debug)]
pub struct SealedPacket {
    packet: PacketBuf,
    front: usize,
    back: usize,
    written: usize,
    missed: Option<MissingPayloadError>,
}

impl SealedPacket {
    /// Returns unsealed bytes, for the identification line.
    pub(crate) fn raw(bytes: &[u8]) -> Self {
        Self {
            packet: PacketBuf::from_payload(bytes),
            front: 0,
            back: 0,
            written: 0,
            missed: None,
        }
    }

    /// Returns a sentence for the user if borrowed payload was no longer available; no packet may
    /// follow this one.
    pub fn missed(&self) -> Option<&MissingPayloadError> {
        self.missed.as_ref()
    }

    /// Returns the parts that are still to be written, in order.
    pub fn parts(&self) -> impl Iterator<Item = OutputPart<'_>> {
        let mut written = self.written;
        let parts = self.packet.parts(self.front, self.back).into_iter();
        let left = parts.map(move |part| {
            let behind = part.behind(written);
            written = written.saturating_sub(part.len());
            behind
        });
        left.filter(|part| !part.is_empty())
    }

    /// Returns the number of bytes still to be written.
    pub fn remaining(&self) -> usize {
        let whole = self.front + self.packet.len() + self.back;
        whole - self.written
    }

    /// Returns a copy of the bytes still to be written; `None` if borrowed payload is no longer
    /// available.
    pub fn to_vec(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.remaining());
        for part in self.parts() {
            bytes.extend(part.to_vec()?);
        }
        Some(bytes)
    }

    /// Reports that `n` bytes were written; returns how many of them belong to this packet.
    pub fn advance(&mut self, n: usize) -> usize {
        let n = n.min(self.remaining());
        self.written += n;
        n
    }
}

/// Output of the transport in the order of sending. The owner of the connection seals the packets
/// and writes all of it to the socket.
#[derive(Debug)]
pub enum TransportOutput {
    /// A packet to seal.
    Packet(SealJob),
    /// Bytes before the first packet: the identification line.
    Raw(Vec<u8>),
}

impl TransportOutput {
    /// Returns the number of payload bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Packet(job) => job.packet.len(),
            Self::Raw(bytes) => bytes.len(),
        }
    }

    /// Seals the output on this thread.
    ///
    /// # Errors
    /// The layout does not suit the key.
    pub fn seal(self) -> Result<SealedPacket, Error> {
        match self {
            Self::Packet(job) => job.seal(),
            Self::Raw(bytes) => Ok(SealedPacket::raw(&bytes)),
        }
    }
}

impl OffloadJob for TransportOutput {
    type Done = Result<SealedPacket, Error>;

    fn carry_out(self) -> Self::Done {
        self.seal()
    }
}

/// Outgoing direction of a transport: its key, stream position, compression and source of random
/// padding.
pub(crate) struct OutboundState {
    key: Arc<SealingKey>,
    at: PacketPosition,
    since_keys: u64,
    deflate: Option<Deflate>,
    random: PaddingSource,
}

/// Random bytes for padding, drawn in bulk: one system call per packet would cost more than sealing
/// a small one.
struct PaddingSource {
    bytes: [u8; 512],
    used: usize,
}

impl OutboundState {
    pub(crate) fn new() -> Self {
        Self {
            key: Arc::new(SealingKey::plain()),
            at: PacketPosition::default(),
            since_keys: 0,
            deflate: None,
            random: PaddingSource {
                bytes: [0; 512],
                used: 512,
            },
        }
    }

    /// Assigns the next position in the stream to a packet.
    ///
    /// # Errors
    /// Borrowed payload is no longer available, or compression fails.
    pub(crate) fn job(
        &mut self,
        mut packet: PacketBuf,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<SealJob, Error> {
        let packet = match &mut self.deflate {
            Some(deflate) => {
                packet.gather().map_err(Local::ExternalPayload)?;
                let mut small = Vec::new();
                deflate
                    .deflate(packet.payload(), &mut small)
                    .map_err(Local::Compression)?;
                PacketBuf::from_payload(&small)
            }
            None => packet,
        };
        Ok(self.place(packet, Vec::new(), fill))
    }

    /// Assigns the next position to a secret and pads it, so that the packet's length reveals only
    /// roughly the secret's.
    pub(crate) fn hidden_job(
        &mut self,
        secret: &[u8],
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<SealJob, Error> {
        if self.deflate.is_some() {
            // Only authentication sends secrets, and zlib@openssh.com starts after it.
            return self.job(PacketBuf::from_payload(secret), fill);
        }
        let framing = self.key.framing();
        let mut more = vec![0; framing.more_padding(secret.len(), HIDDEN_MULTIPLE)];
        fill(&mut more);
        let packet = PacketBuf::with_tail(secret, more.len());
        Ok(self.place(packet, more, fill))
    }

    fn place(
        &mut self,
        packet: PacketBuf,
        more: Vec<u8>,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> SealJob {
        let framing = self.key.framing();
        let mut padding = [0; 32];
        self.random
            .take(&mut padding[..framing.padding(packet.len())], fill);
        let at = self.at;
        let whole = framing.packet_len(packet.len()) + more.len();
        framing.advance(&mut self.at, whole);
        self.since_keys += whole as u64;
        SealJob {
            key: Arc::clone(&self.key),
            at,
            packet,
            padding,
            more,
        }
    }

    /// Switches to the new key after our NEWKEYS.
    pub(crate) fn rekey(&mut self, key: SealingKey, strict: bool) {
        self.key = Arc::new(key);
        self.at = self.at.rekeyed(strict);
        self.since_keys = 0;
    }

    /// Returns the position of the next packet.
    pub(super) fn position(&self) -> PacketPosition {
        self.at
    }

    /// Continues at the key and position of a handed-over transport.
    pub(super) fn go_on(&mut self, key: SealingKey, at: PacketPosition, since_keys: u64) {
        self.key = Arc::new(key);
        self.at = at;
        self.since_keys = since_keys;
    }

    pub(crate) fn start_compression(&mut self) {
        if self.deflate.is_none() {
            self.deflate = Some(Deflate::new());
        }
    }

    pub(crate) fn stop_compression(&mut self) {
        self.deflate = None;
    }

    /// Returns true if sealing costs nothing.
    pub(crate) fn is_free(&self) -> bool {
        self.key.is_free()
    }

    /// Returns how long sent packets may borrow their payload.
    pub(crate) fn borrow_policy(&self) -> BorrowPolicy {
        match self.deflate {
            Some(_) => BorrowPolicy::Never,
            None if self.is_free() => BorrowPolicy::UntilSent,
            None if self.key.seals_from_elsewhere() => BorrowPolicy::UntilSealed,
            None => BorrowPolicy::Never,
        }
    }

    /// Returns the bytes and the packets sealed since NEWKEYS.
    pub(crate) fn since_keys(&self) -> (u64, u64) {
        (self.since_keys, self.at.packets)
    }
}

impl PaddingSource {
    fn take(&mut self, to: &mut [u8], fill: &mut dyn FnMut(&mut [u8])) {
        if self.used + to.len() > self.bytes.len() {
            fill(&mut self.bytes);
            self.used = 0;
        }
        to.copy_from_slice(&self.bytes[self.used..self.used + to.len()]);
        self.used += to.len();
    }
}
