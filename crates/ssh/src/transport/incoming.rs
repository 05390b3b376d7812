//! Processing of transport messages after their packets were opened.

use std::time::Instant;

use bytes::Bytes;
use wire::{FieldReader, PacketBuf};

use super::{DecryptedPacket, Transport, TransportEvent, TransportOutput};
use crate::error::{Error, PeerMisbehaved};
use crate::msg::{
    self, ConnectionPhase, Debug, Disconnect, ExtInfo, KexInit, Ping, Pong, Unimplemented,
};

/// Maximum number of queued packets while the peer causes further replies.
const MAX_ANSWERS: usize = 1024;
/// Maximum bytes of queued replies; one PONG can have 256 KiB (CVE-2025-26466).
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Maximum number of name/value pairs read from an EXT_INFO; OpenSSH sends three.
const MAX_EXTENSIONS: u32 = 64;

impl Transport {
    pub(super) fn handle_packet(
        &mut self,
        now: Instant,
        opened: DecryptedPacket,
    ) -> Result<Option<Bytes>, Error> {
        let payload = self.inbound.inflate(opened.payload)?;
        let number = *payload.first().ok_or(PeerMisbehaved::EmptyPacket)?;
        if opened.sequence == u32::MAX && self.keys_since.is_none() {
            return Err(PeerMisbehaved::SequenceWrapped.into());
        }
        let phase = self.phase();
        // A client with early data sends messages of the connection protocol before it may.
        let hopeful = phase == ConnectionPhase::Auth && (80..=127).contains(&number);
        if !(hopeful && self.hears_early) {
            msg::legal(number, phase, self.role.other())?;
        }
        if self.strict_first() && number == KexInit::NUMBER && opened.sequence != 0 {
            return Err(PeerMisbehaved::StrictKex(number).into());
        }
        match number {
            Disconnect::NUMBER => {
                let m = Disconnect::decode(&payload)?;
                return Err(Error::disconnected(m.reason, m.description));
            }
            msg::Ignore::NUMBER => {}
            Debug::NUMBER => {
                let m = Debug::decode(&payload)?;
                if m.always_display {
                    let text = crate::text::escape(m.text);
                    self.events.push_back(TransportEvent::Debug(text));
                }
            }
            Unimplemented::NUMBER => {
                let m = Unimplemented::decode(&payload)?;
                if let Some(left) = self.forgiven.checked_sub(1) {
                    self.forgiven = left;
                    return Ok(None);
                }
                return Err(PeerMisbehaved::Unimplemented(m.sequence).into());
            }
            Ping::NUMBER => {
                let pong = Pong {
                    data: Ping::decode(&payload)?.data,
                }
                .to_bytes();
                self.ping_answer(&pong)?;
            }
            Pong::NUMBER => self.events.push_back(TransportEvent::Pong),
            ExtInfo::NUMBER => self.handle_ext_info(&payload)?,
            20..=49 => self.handle_exchange(now, number, payload)?,
            _ if msg::lookup(number).is_none() => {
                self.bound_answers()?;
                let answer = Unimplemented {
                    sequence: opened.sequence,
                };
                if self.may_send_unasked() {
                    self.send_message(&answer.to_bytes())?;
                }
            }
            _ => return Ok(Some(payload)),
        }
        Ok(None)
    }

    /// Returns the phase of the peer's messages for the table of messages.
    pub(super) fn phase(&self) -> ConnectionPhase {
        // The first exchange ends with the peer's NEWKEYS: after its KEX_ECDH_REPLY there is a
        // session identifier, but its packets are still unencrypted.
        match (self.keys_since, self.exchange.peer_bound()) {
            (None, _) if self.strict => ConnectionPhase::StrictKeyExchange,
            (None, _) => ConnectionPhase::KeyExchange,
            (Some(_), true) => ConnectionPhase::Rekey,
            (Some(_), false) if self.authenticated => ConnectionPhase::Connection,
            (Some(_), false) => ConnectionPhase::Auth,
        }
    }

    fn strict_first(&self) -> bool {
        self.strict && self.keys_since.is_none()
    }

    /// Answers a PING, as OpenSSH does (packet.c, ssh_packet_read_poll2): not before authentication
    /// nor during a key exchange, and also not afterwards for PINGs from that time.
    fn ping_answer(&mut self, pong: &[u8]) -> Result<(), Error> {
        self.bound_answers()?;
        if self.authenticated && self.may_send() {
            self.send(PacketBuf::from_payload(pong))?;
        }
        Ok(())
    }

    /// Fails if too many replies are queued: a peer that causes replies without reading them would
    /// fill our memory.
    fn bound_answers(&self) -> Result<(), Error> {
        let bytes: usize = self.ready.iter().map(TransportOutput::len).sum();
        match self.ready.len() > MAX_ANSWERS || bytes > MAX_ANSWER_BYTES {
            true => Err(PeerMisbehaved::TooMany("pings without reading the replies").into()),
            false => Ok(()),
        }
    }

    fn handle_ext_info(&mut self, payload: &[u8]) -> Result<(), Error> {
        let m = ExtInfo::decode(payload)?;
        if m.count > MAX_EXTENSIONS {
            return Err(PeerMisbehaved::TooMany("extensions").into());
        }
        let mut r = FieldReader::new(m.pairs.0);
        for _ in 0..m.count {
            let (name, value) = (r.string()?, r.string()?);
            match name {
                b"server-sig-algs" => {
                    let list = std::str::from_utf8(value).unwrap_or_default();
                    self.extensions.sig_algs = Some(list.split(',').map(str::to_owned).collect());
                }
                b"publickey-hostbound@openssh.com" => self.extensions.hostbound = value == b"0",
                b"ping@openssh.com" => self.extensions.ping = value == b"0",
                _ => {}
            }
        }
        r.finish()?;
        self.events.push_back(TransportEvent::Extensions);
        Ok(())
    }
}
