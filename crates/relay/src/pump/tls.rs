//! TLS on a leg.
//!
//! Records are received into memory that the connections of a worker share and are decrypted there
//! straight into the reader's buffer. All complete records are decrypted at once. What remains is a
//! partial record, and plaintext that did not fit, at most one record of it. No event announces
//! that plaintext, so that `holds` has to be asked before waiting for events.

mod engine;

use std::io;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;

use engine::{RecordPayload, TlsEngine, TlsReceiveResult, wrong};

use super::pages::{LazyPageBuffer, lend};
use crate::tls::{TlsClientSettings, TlsServerSettings, has_name};

/// Maximum plaintext of one record in bytes (RFC 8446 section 5.1).
pub(super) const RECORD: usize = 16 << 10;
/// Maximum overhead of a record in bytes (RFC 5246 section 6.2.3).
const AROUND: usize = 5 + 2048;
/// Maximum ciphertext received at once, in bytes.
const CIPHER: usize = 256 << 10;
/// Size of the buffer for records that are sealed together, in bytes.
const SEALED: usize = 256 << 10;

thread_local! {
    static CIPHERS: LazyPageBuffer = LazyPageBuffer::default();
    static SEALEDS: LazyPageBuffer = LazyPageBuffer::default();
}

/// TLS session of a leg with the bytes between its stages: received ciphertext, decrypted
/// plaintext, plaintext to seal, and sealed records to send.
#[derive(Debug)]
pub(super) struct TlsState {
    engine: TlsEngine,
    /// Received bytes that are not decrypted: a partial record.
    part: Vec<u8>,
    /// `part` may hold complete records: its bytes were received before TLS started.
    begun: bool,
    /// Decrypted bytes.
    plain: Vec<u8>,
    /// Number of bytes of `plain` that were read.
    read: usize,
    /// Plaintext for the next record.
    open: Vec<u8>,
    /// Sealed records.
    sealed: Vec<u8>,
    /// Number of bytes of `sealed` that were sent.
    sent: usize,
    /// End of the incoming stream: by close_notify, or without it.
    end: Option<CloseNotifyState>,
    /// Names of which the peer's certificate must contain one.
    names: Arc<[ServerName<'static>]>,
    checked: bool,
    closing: bool,
}

/// Kind of end of the incoming stream: with close_notify it is a regular end (RFC 8446 section
/// 6.1), without it the stream may be truncated and the read fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseNotifyState {
    Sent,
    NotSent,
}

/// Result of a read of decrypted bytes.
pub(super) enum TlsReadResult {
    Bytes(usize),
    /// close_notify has been received.
    End,
    /// More ciphertext has to be received.
    Empty,
}

impl TlsState {
    pub(super) fn server(server: &TlsServerSettings) -> io::Result<Self> {
        let (config, names) = server.settings();
        let engine = UnbufferedServerConnection::new(config).map_err(wrong)?;
        Self::new(TlsEngine::Server(Box::new(engine)), names)
    }

    pub(super) fn client(client: &TlsClientSettings, host: &str) -> io::Result<Self> {
        let name = client.name_for(host).map_err(io::Error::other)?;
        let engine = UnbufferedClientConnection::new(client.config(), name).map_err(wrong)?;
        Self::new(TlsEngine::Client(Box::new(engine)), Arc::new([]))
    }

    fn new(engine: TlsEngine, names: Arc<[ServerName<'static>]>) -> io::Result<Self> {
        let mut tls = Self {
            engine,
            part: Vec::new(),
            begun: false,
            plain: Vec::new(),
            read: 0,
            open: Vec::new(),
            sealed: Vec::new(),
            sent: 0,
            end: None,
            names,
            checked: false,
            closing: false,
        };
        // The client sends the first message.
        tls.decrypt(&mut [], &mut [])?;
        Ok(tls)
    }

    /// Reports if there is something to read that no event announces.
    pub(super) fn holds(&self) -> bool {
        self.begun || self.read < self.plain.len() || self.end.is_some()
    }

    /// Reports if more may be written: the handshake is complete and all sealed records were sent.
    pub(super) fn takes(&self) -> bool {
        !self.is_handshaking() && self.sealed.is_empty()
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.engine.state().is_handshaking()
    }

    /// Takes bytes that were received before TLS started.
    pub(super) fn begin_with(&mut self, bytes: &[u8]) {
        (self.part, self.begun) = (bytes.to_vec(), true);
    }

    /// Reads bytes that are already decrypted.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<TlsReadResult> {
        let rest = self.plain.get(self.read..).unwrap_or_default();
        if let (Some((to, _)), Some((from, _))) = {
            let n = rest.len().min(into.len());
            (into.split_at_mut_checked(n), rest.split_at_checked(n))
        } && !from.is_empty()
        {
            to.copy_from_slice(from);
            let n = from.len();
            self.read += n;
            if self.read == self.plain.len() {
                // An idle connection keeps no memory for plaintext.
                (self.plain, self.read) = (Vec::new(), 0);
            }
            return Ok(TlsReadResult::Bytes(n));
        }
        match self.end {
            None => Ok(TlsReadResult::Empty),
            Some(CloseNotifyState::Sent) => Ok(TlsReadResult::End),
            Some(CloseNotifyState::NotSent) => {
                let why = "the connection was closed without TLS's end mark (close_notify): the \
                           end of the data may be missing";
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, why))
            }
        }
    }

    /// Receives ciphertext by `receive` and decrypts complete records into `into`. Plaintext
    /// without room, at most one record, is kept for [`Self::read`]. Returns the result of
    /// `receive` and the number of bytes in `into`.
    pub(super) fn receive<T>(
        &mut self,
        into: &mut [u8],
        receive: impl FnOnce(&mut [u8]) -> io::Result<(T, usize)>,
    ) -> io::Result<(T, usize)> {
        let part = std::mem::take(&mut self.part);
        // A handshake message may span several records, which stay in memory until it is complete.
        let one = (RECORD + AROUND).max(part.len() + AROUND);
        let len = CIPHER.max(one);
        CIPHERS.with(|ciphers| {
            lend(ciphers, len, |memory| {
                let most = into.len().min(memory.len()).max(one);
                let memory = memory.get_mut(..most).unwrap_or_default();
                let Some((kept, free)) = memory.split_at_mut_checked(part.len()) else {
                    return Err(io::ErrorKind::InvalidInput.into());
                };
                kept.copy_from_slice(&part);
                let received = receive(free);
                let Ok((said, n @ 1..)) = received else {
                    self.part = part;
                    return received.map(|(said, _)| (said, 0));
                };
                let whole = memory.get_mut(..part.len() + n).unwrap_or_default();
                let plain = self.decrypt(whole, into)?;
                Ok((said, plain))
            })
        })
    }

    /// Reports if bytes were received before TLS started and are not processed yet.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Processes the bytes that were received before TLS started.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.begun) {
            let mut part = std::mem::take(&mut self.part);
            self.decrypt(&mut part, &mut [])?;
        }
        Ok(())
    }

    /// Decrypts complete records and keeps the partial rest. Returns the number of bytes in `into`;
    /// plaintext without room is kept as well.
    fn decrypt(&mut self, cipher: &mut [u8], into: &mut [u8]) -> io::Result<usize> {
        let mut there = 0;
        let mut at = 0;
        loop {
            let plain = &mut self.plain;
            let mut take = |payload: &[u8]| {
                let room = into.get_mut(there..).unwrap_or_default();
                let n = payload.len().min(room.len());
                if let (Some(room), Some(taken)) = (room.get_mut(..n), payload.get(..n)) {
                    room.copy_from_slice(taken);
                    there += n;
                }
                plain.extend_from_slice(payload.get(n..).unwrap_or_default());
            };
            let rest = cipher.get_mut(at..).unwrap_or_default();
            let (gone, step) = self.engine.step(rest, &mut self.sealed, &mut take);
            at += gone;
            match step {
                Ok(TlsReceiveResult::Continue) => {}
                Ok(TlsReceiveResult::Ended) => self.end = Some(CloseNotifyState::Sent),
                Ok(TlsReceiveResult::Blocked) => break,
                Err(e) => {
                    // Let the library queue the alert for the peer.
                    let rest = cipher.get_mut(at..).unwrap_or_default();
                    let _ = self.engine.step(rest, &mut self.sealed, &mut |_| {});
                    return Err(wrong(e));
                }
            }
            if !self.checked && !self.is_handshaking() {
                self.check()?;
            }
        }
        let rest = cipher.get(at..).unwrap_or_default();
        if !rest.is_empty() {
            self.part = rest.to_vec();
        }
        Ok(there)
    }

    fn check(&mut self) -> io::Result<()> {
        self.checked = true;
        if self.names.is_empty() {
            return Ok(());
        }
        let certificates = self.engine.state().peer_certificates().unwrap_or_default();
        match certificates
            .first()
            .is_some_and(|own| has_name(own, &self.names))
        {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the client's certificate has none of the names in --client-name: add its name \
                 there, or give the client another certificate",
            )),
        }
    }

    /// Records that the peer has closed its socket.
    pub(super) fn hung_up(&mut self) {
        self.end.get_or_insert(CloseNotifyState::NotSent);
    }

    /// Takes all of the bytes for sending. Unless `more` follow at once, they are sealed and passed
    /// to `send`, which returns how many bytes it accepted.
    pub(super) fn write(
        &mut self,
        bytes: &[u8],
        more: bool,
        send: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        if self.open.is_empty() && !more {
            return self.seal(bytes, send);
        }
        self.open.extend_from_slice(bytes);
        match more && self.open.len() < RECORD {
            true => Ok(()),
            false => self.seal_open(send),
        }
    }

    /// Seals the pending plaintext into records.
    pub(super) fn seal_open(
        &mut self,
        send: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        match std::mem::take(&mut self.open) {
            open if open.is_empty() => Ok(()),
            open => self.seal(&open, send),
        }
    }

    fn seal(
        &mut self,
        bytes: &[u8],
        mut send: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        SEALEDS.with(|memory| {
            lend(memory, SEALED, |memory| {
                let mut records = bytes.chunks(RECORD).peekable();
                let mut end = 0;
                while let Some(record) = records.next() {
                    let room = memory.get_mut(end..).unwrap_or_default();
                    end += self
                        .engine
                        .seal(RecordPayload::Bytes(record), &mut self.part, room)?;
                    let is_full = memory.len() - end < RECORD + 2 * AROUND;
                    if is_full || records.peek().is_none() {
                        let all = memory.get(..end).unwrap_or_default();
                        // Records that are already waiting go first.
                        let gone = match self.sealed.is_empty() {
                            true => send(all)?,
                            false => 0,
                        };
                        let rest = all.get(gone..).unwrap_or_default();
                        self.sealed.extend_from_slice(rest);
                        end = 0;
                    }
                }
                Ok(())
            })
        })
    }

    /// Queues close_notify behind all that was written.
    pub(super) fn close(&mut self) -> io::Result<()> {
        self.seal_open(|_| Ok(0))?;
        if !self.closing {
            self.closing = true;
            let mut notify = [0; AROUND];
            let notifies = RecordPayload::CloseNotify;
            let n = self.engine.seal(notifies, &mut self.part, &mut notify)?;
            self.sealed
                .extend_from_slice(notify.get(..n).unwrap_or_default());
        }
        Ok(())
    }

    /// Sends pending records; true if none are left.
    pub(super) fn flush(
        &mut self,
        send: impl FnOnce(&[u8]) -> io::Result<usize>,
    ) -> io::Result<bool> {
        let rest = self.sealed.get(self.sent..).unwrap_or_default();
        if !rest.is_empty() {
            self.sent += send(rest)?;
        }
        let is_gone = self.sent >= self.sealed.len();
        if is_gone {
            (self.sealed, self.sent) = (Vec::new(), 0);
        }
        Ok(is_gone)
    }

    /// Returns the certificate or raw public key of the peer.
    pub(super) fn peer(&self) -> Option<&[u8]> {
        let shown = self.engine.state().peer_certificates()?;
        shown.first().map(AsRef::as_ref)
    }

    /// Returns the TLS version, for the log.
    pub(super) fn shown(&self) -> String {
        let version = self.engine.state().protocol_version();
        version.map_or_else(String::new, |version| format!("{version:?}"))
    }
}

#[cfg(test)]
mod tests;
