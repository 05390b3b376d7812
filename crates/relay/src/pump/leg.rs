//! Leg of a connection: one socket, pair of streams or stripe set, and its non-blocking I/O.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use rustix::pipe::{SpliceFlags, splice};

use super::pipes::Pipe;
use super::stripe_set::StripeSet;
use super::tls::{TlsReadResult, TlsState};
use crate::tls::{TlsClientSettings, TlsServerSettings};

/// One end of a relayed connection. Readiness is stored, since edge-triggered epoll reports only
/// changes: events set it, and a call that returns EAGAIN clears it.
#[derive(Debug)]
pub(crate) struct Leg {
    channel: LegTransport,
    readable: bool,
    writable: bool,
    short_read: ShortReadMeaning,
    transfer: TransferMethod,
    /// Error of a broken connection; there may still be data to read.
    failed: Option<io::Error>,
    /// The kernel may hold a partial segment back until more data follows.
    corked: bool,
    tls: Option<Box<TlsState>>,
    /// Errors are reported to the peer in a TLS alert, so that no reset may be sent, which would
    /// overtake the alert.
    alerts: bool,
}

/// Meaning of a read that returns fewer bytes than asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShortReadMeaning {
    /// Nothing more is available now; epoll will report the next data.
    Empty,
    /// Nothing: the end of the stream was already reported, reads stop short at urgent data
    /// (tcp(7)), or the descriptor is a regular file, which epoll does not support and which is
    /// always ready.
    Unknown,
}

/// Method by which bytes are moved from and to a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransferMethod {
    /// With splice(2), if the leg has no TLS.
    Splice,
    /// Only through memory: splice(2) refuses the descriptor, or does not pass its urgent data.
    Copy,
}

/// File descriptors under a leg. `Socket` is a TCP or UNIX socket; `Streams` are standard input and
/// output, whose output is closed to pass on the end.
#[derive(Debug)]
enum LegTransport {
    Socket {
        fd: OwnedFd,
        tcp: bool,
    },
    Streams {
        input: OwnedFd,
        output: Option<OwnedFd>,
    },
    /// Stripes to the peer relay of a pair.
    Pair(Box<StripeSet>),
}

/// Result of a read or splice that does not block; errors of the socket are returned beside it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LegReadResult {
    Bytes(usize),
    /// The peer has ended its stream.
    End,
    /// No data is available yet.
    Nothing,
}

impl Leg {
    /// Creates a leg from a connected non-blocking socket.
    pub(crate) fn socket(fd: OwnedFd, tcp: bool) -> Self {
        Self::new(LegTransport::Socket { fd, tcp })
    }

    /// Creates a leg from two non-blocking streams, pipes or a socket.
    pub(crate) fn streams(input: OwnedFd, output: OwnedFd) -> Self {
        Self::new(LegTransport::Streams {
            input,
            output: Some(output),
        })
    }

    /// Creates a leg from the stripes of a pair.
    pub(crate) fn pair(bundle: StripeSet) -> Self {
        Self {
            transfer: TransferMethod::Copy,
            ..Self::new(LegTransport::Pair(Box::new(bundle)))
        }
    }

    /// Returns the stripes, if the leg is a pair.
    pub(crate) fn bundle(&mut self) -> Option<&mut StripeSet> {
        match &mut self.channel {
            LegTransport::Pair(bundle) => Some(bundle),
            LegTransport::Socket { .. } | LegTransport::Streams { .. } => None,
        }
    }

    fn new(channel: LegTransport) -> Self {
        Self {
            channel,
            readable: true,
            writable: true,
            short_read: ShortReadMeaning::Empty,
            transfer: TransferMethod::Splice,
            failed: None,
            corked: false,
            tls: None,
            alerts: false,
        }
    }

    /// Registers the leg for events under `token`; a separate output stream gets `token + 1`.
    pub(crate) fn register(&mut self, registry: &Registry, token: usize) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE | Interest::PRIORITY;
        let add = |fd: &OwnedFd, token, interest| {
            registry.register(&mut SourceFd(&fd.as_raw_fd()), Token(token), interest)
        };
        match &self.channel {
            LegTransport::Socket { fd, .. } => add(fd, token, both),
            LegTransport::Streams { input, output } => {
                let told = match output {
                    Some(output) => add(output, token + 1, Interest::WRITABLE),
                    None => Ok(()),
                };
                for added in [add(input, token, Interest::READABLE), told] {
                    match added {
                        // epoll_ctl(2) returns EPERM for regular files and directories.
                        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                            self.short_read = ShortReadMeaning::Unknown;
                        }
                        added => added?,
                    }
                }
                Ok(())
            }
            // Each stripe is registered by itself.
            LegTransport::Pair(_) => Ok(()),
        }
    }

    /// Removes the leg from this event loop, so that another loop can register it.
    pub(crate) fn deregister(&self, registry: &Registry) {
        if let LegTransport::Socket { fd, .. } = &self.channel {
            // An error means that the descriptor was not registered.
            let _ = registry.deregister(&mut SourceFd(&fd.as_raw_fd()));
        }
    }

    /// Updates the stored readiness from an event.
    pub(crate) fn told(&mut self, event: &Event) {
        self.readable |= event.is_readable() || event.is_read_closed();
        self.writable |= event.is_writable() || event.is_write_closed();
        if event.is_read_closed() || event.is_priority() {
            self.short_read = ShortReadMeaning::Unknown;
        }
        if event.is_priority() {
            self.transfer = TransferMethod::Copy;
        }
        // A pipe whose reader has closed reports an error too; the next write returns it.
        if event.is_error() && matches!(self.channel, LegTransport::Socket { .. }) {
            (self.readable, self.writable) = (true, true);
            if self.failed.is_none() {
                self.failed = Some(io::ErrorKind::ConnectionReset.into());
            }
        }
    }

    /// Returns the error of a broken connection.
    pub(crate) fn failure(&self) -> Option<&io::Error> {
        self.failed.as_ref()
    }

    /// Marks the connection as broken.
    pub(crate) fn fail(&mut self, why: io::Error) {
        self.failed = Some(why);
    }

    /// Returns the local address, which is the one that the peer has connected to.
    pub(crate) fn local(&self) -> Option<std::net::SocketAddr> {
        let name = rustix::net::getsockname(self.tcp()?).ok()?;
        name.try_into().ok()
    }

    /// Returns the socket, if it is TCP.
    pub(crate) fn tcp(&self) -> Option<BorrowedFd<'_>> {
        match &self.channel {
            LegTransport::Socket { fd, tcp: true } => Some(fd.as_fd()),
            LegTransport::Pair(bundle) => bundle.tcp(),
            _ => None,
        }
    }

    fn input(&self) -> Result<BorrowedFd<'_>, Errno> {
        match &self.channel {
            LegTransport::Socket { fd, .. } => Ok(fd.as_fd()),
            LegTransport::Streams { input, .. } => Ok(input.as_fd()),
            LegTransport::Pair(_) => Err(Errno::BADF),
        }
    }

    fn output(&self) -> Result<BorrowedFd<'_>, Errno> {
        match &self.channel {
            LegTransport::Socket { fd, .. } => Ok(fd.as_fd()),
            LegTransport::Streams { output, .. } => {
                output.as_ref().map(OwnedFd::as_fd).ok_or(Errno::PIPE)
            }
            LegTransport::Pair(_) => Err(Errno::BADF),
        }
    }

    /// Reports if splice(2) can move bytes from or to this leg: no urgent data, no TLS, and not
    /// refused before.
    pub(crate) fn splices(&self) -> bool {
        self.transfer == TransferMethod::Splice && self.tls.is_none()
    }

    /// Minimum buffer for reads from this leg, in bytes: a TLS record is decrypted as a whole.
    pub(super) fn holds_at_least(&self) -> usize {
        match self.tls {
            Some(_) => super::tls::RECORD,
            None => 0,
        }
    }

    /// Reports if a read may return data.
    pub(crate) fn is_readable(&self) -> bool {
        if let LegTransport::Pair(bundle) = &self.channel {
            return bundle.is_readable();
        }
        self.readable || self.tls.as_ref().is_some_and(|tls| tls.holds())
    }

    /// Reports if a write may succeed.
    pub(crate) fn is_writable(&self) -> bool {
        if let LegTransport::Pair(bundle) = &self.channel {
            return bundle.is_writable();
        }
        self.writable && self.tls.as_ref().is_none_or(|tls| tls.takes())
    }

    /// Starts TLS as the server; `begun` holds bytes that were already received.
    pub(crate) fn serve_tls(&mut self, server: &TlsServerSettings, begun: &[u8]) -> io::Result<()> {
        let mut tls = TlsState::server(server)?;
        if !begun.is_empty() {
            tls.begin_with(begun);
        }
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    /// Starts TLS as a client of this host.
    pub(crate) fn ask_tls(&mut self, client: &TlsClientSettings, host: &str) -> io::Result<()> {
        self.tls = Some(Box::new(TlsState::client(client, host)?));
        Ok(())
    }

    /// Continues the TLS handshake; true once it is complete.
    pub(crate) fn shake(&mut self) -> io::Result<bool> {
        while self.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
            self.flush()?;
            if self.receive_cipher(&mut [])?.is_none() {
                return Ok(false);
            }
        }
        self.flush()
    }

    /// Sends the alert for a TLS error, as far as the socket accepts it now, and returns the error.
    fn alert(&mut self, why: io::Error) -> io::Error {
        self.alerts = true;
        // The TLS error is reported; a write error adds nothing.
        let _ = self.flush();
        why
    }

    /// Receives and decrypts TLS records, as far as there is room. Returns the number of plaintext
    /// bytes, or `None` if nothing was received.
    fn receive_cipher(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(mut tls) = self.tls.take() else {
            return Ok(None);
        };
        let mut broken = false;
        let done = match tls.has_begun() {
            true => tls.begin().map(|()| (LegReadResult::Bytes(0), 0)),
            false => tls.receive(into, |free| {
                let received = self.receive_raw(free);
                broken = received.is_err();
                let n = match &received {
                    Ok(LegReadResult::Bytes(n)) => *n,
                    _ => 0,
                };
                Ok((received?, n))
            }),
        };
        let is_handshaking = tls.is_handshaking();
        if matches!(done, Ok((LegReadResult::End, _))) {
            tls.hung_up();
        }
        self.tls = Some(tls);
        match done {
            Ok((LegReadResult::Nothing, _)) => Ok(None),
            // If no close_notify has come before, the next read reports a truncated stream.
            Ok((LegReadResult::End, _)) => match is_handshaking {
                true => Err(io::ErrorKind::UnexpectedEof.into()),
                false => Ok(Some(0)),
            },
            // Handshake messages, tickets and other replies are sent at once.
            Ok((LegReadResult::Bytes(_), there)) => self.flush().map(|_| Some(there)),
            Err(e) if broken => Err(e),
            Err(e) => Err(self.alert(e)),
        }
    }

    /// Writes the pending TLS records; true if none are left.
    fn flush(&mut self) -> io::Result<bool> {
        let Some(mut tls) = self.tls.take() else {
            return Ok(true);
        };
        let done = tls.flush(|records| self.send_raw(records, false));
        self.tls = Some(tls);
        done
    }

    /// Reads available bytes into the buffer, decrypted if the leg has TLS.
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> io::Result<LegReadResult> {
        if let LegTransport::Pair(bundle) = &mut self.channel {
            return Ok(bundle.receive(into));
        }
        loop {
            let Some(tls) = &mut self.tls else {
                return self.receive_raw(into);
            };
            match tls.read(into) {
                Ok(TlsReadResult::Bytes(n)) => return Ok(LegReadResult::Bytes(n)),
                Ok(TlsReadResult::End) => return Ok(LegReadResult::End),
                Ok(TlsReadResult::Empty) => match self.receive_cipher(into)? {
                    None => return Ok(LegReadResult::Nothing),
                    // A record without payload, such as a session ticket or a key update.
                    Some(0) => {}
                    Some(n) => return Ok(LegReadResult::Bytes(n)),
                },
                Err(e) => return Err(self.alert(e)),
            }
        }
    }

    fn receive_raw(&mut self, into: &mut [u8]) -> io::Result<LegReadResult> {
        if !self.readable {
            return Ok(LegReadResult::Nothing);
        }
        let read = retry(|| match &self.channel {
            LegTransport::Socket { fd, .. } => {
                recv(fd, &mut *into, RecvFlags::DONTWAIT).map(|(read, _)| read)
            }
            _ => rustix::io::read(self.input()?, &mut *into),
        });
        match read {
            Ok(0) => self.end(),
            Ok(n) => {
                if n < into.len() && self.short_read == ShortReadMeaning::Empty {
                    self.readable = false;
                }
                Ok(LegReadResult::Bytes(n))
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                Ok(LegReadResult::Nothing)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Result of a read of 0 bytes: end of stream, or the error of a broken connection, which an
    /// earlier call may have consumed.
    fn end(&self) -> io::Result<LegReadResult> {
        match &self.failed {
            None => Ok(LegReadResult::End),
            Some(why) => Err(why.kind().into()),
        }
    }

    /// Splices at most `most` bytes from the socket into an empty pipe.
    pub(crate) fn splice_in(&mut self, pipe: &Pipe, most: usize) -> io::Result<LegReadResult> {
        if !self.readable {
            return Ok(LegReadResult::Nothing);
        }
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        match retry(|| splice(self.input()?, None, pipe.writer(), None, most, flags)) {
            Ok(0) => self.end(),
            Ok(n) => Ok(LegReadResult::Bytes(n)),
            // The pipe is empty, so that EAGAIN can only mean that the socket has no data.
            Err(Errno::AGAIN) => {
                self.readable = false;
                Ok(LegReadResult::Nothing)
            }
            Err(Errno::INVAL) => {
                self.transfer = TransferMethod::Copy;
                Ok(LegReadResult::Bytes(0))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Writes bytes and returns how many were accepted: fewer than given only if the kernel's
    /// buffer is full. `more` announces that further bytes follow at once.
    pub(crate) fn send(&mut self, bytes: &[u8], more: bool) -> io::Result<usize> {
        if let LegTransport::Pair(bundle) = &mut self.channel {
            return Ok(bundle.send(bytes));
        }
        if self.tls.is_some() && !self.is_writable() {
            self.flush()?;
            if !self.is_writable() {
                return Ok(0);
            }
        }
        let Some(mut tls) = self.tls.take() else {
            return self.send_raw(bytes, more);
        };
        let done = tls.write(bytes, more, |records| self.send_raw(records, false));
        self.tls = Some(tls);
        done.map(|()| bytes.len())
    }

    fn send_raw(&mut self, bytes: &[u8], more: bool) -> io::Result<usize> {
        let mut sent = 0;
        let flags = match more {
            true => SendFlags::DONTWAIT | SendFlags::NOSIGNAL | SendFlags::MORE,
            false => SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        };
        while self.writable && sent < bytes.len() {
            let rest = bytes.get(sent..).unwrap_or_default();
            let wrote = retry(|| match &self.channel {
                LegTransport::Socket { fd, .. } => send(fd, rest, flags),
                _ => rustix::io::write(self.output()?, rest),
            });
            match wrote {
                Ok(n) => {
                    sent += n;
                    self.corked = more;
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(sent)
    }

    /// Splices the `held` bytes of the pipe into the socket, as far as the kernel accepts them;
    /// returns how many were moved.
    pub(crate) fn splice_out(&mut self, pipe: &Pipe, held: usize) -> io::Result<usize> {
        let mut sent = 0;
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        while self.writable && sent < held {
            let moved = retry(|| {
                splice(
                    pipe.reader(),
                    None,
                    self.output()?,
                    None,
                    held - sent,
                    flags,
                )
            });
            match moved {
                // 0 from a pipe that holds bytes is not an end of file.
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => sent += n,
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INVAL) => {
                    self.transfer = TransferMethod::Copy;
                    break;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(sent)
    }

    /// Sends the partial segment or TLS record that was held back for more data.
    pub(crate) fn push(&mut self) -> io::Result<()> {
        if let LegTransport::Pair(bundle) = &mut self.channel {
            bundle.flush();
        }
        if let Some(mut tls) = self.tls.take() {
            let done = tls.seal_open(|records| self.send_raw(records, false));
            self.tls = Some(tls);
            done?;
            self.flush()?;
        }
        if self.corked {
            self.corked = false;
            if let Some(tcp) = self.tcp() {
                // Setting TCP_NODELAY again sends the pending segment (tcp(7)).
                let _ = rustix::net::sockopt::set_tcp_nodelay(tcp, true);
            }
        }
        Ok(())
    }

    /// Ends the outgoing stream; false if pending TLS records have to be written first.
    pub(crate) fn finish(&mut self) -> io::Result<bool> {
        if let Some(tls) = &mut self.tls {
            tls.close()?;
            if !self.flush()? {
                return Ok(false);
            }
        }
        match &mut self.channel {
            LegTransport::Socket { fd, .. } => shutdown(&*fd, Shutdown::Write)?,
            LegTransport::Streams { output, .. } => drop(output.take()),
            LegTransport::Pair(bundle) => return Ok(bundle.finish()),
        }
        Ok(true)
    }

    /// Returns the TLS version, or a summary of the stripes, for the log.
    pub(crate) fn tls(&self) -> Option<String> {
        if let LegTransport::Pair(bundle) = &self.channel {
            return Some(bundle.shown());
        }
        self.tls.as_ref().map(|tls| tls.shown())
    }

    /// Returns the certificate or raw public key that the peer has presented.
    pub(crate) fn peer(&self) -> Option<&[u8]> {
        self.tls.as_ref()?.peer()
    }

    /// Reports if a TLS alert was sent because of an error of the peer.
    pub(crate) fn alerts(&self) -> bool {
        self.alerts
    }

    /// Prepares an orderly close after both directions have ended: the kernel still sends its
    /// buffer after the leg is dropped. Without this call, dropping a leg resets the connection.
    pub(crate) fn close_orderly(&mut self) {
        if let LegTransport::Pair(bundle) = &mut self.channel {
            bundle.close();
            return;
        }
        if let Some(tcp) = self.tcp() {
            sys::close_orderly(tcp);
        }
    }
}

pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}
