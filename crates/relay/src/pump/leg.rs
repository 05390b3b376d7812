//! One end of a connection: what can be read from it and written to it right now.

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
use super::tls::{Plain, Tls};
use crate::tls::{TlsClient, TlsServer};

/// One end of a connection. Readiness is remembered, since the kernel tells only what has changed:
/// it is set by events and cleared by a call that found nothing.
#[derive(Debug)]
pub(crate) struct Leg {
    channel: Channel,
    readable: bool,
    writable: bool,
    /// The other end has said that nothing more comes: a short read does not mean that nothing is
    /// left.
    hung: bool,
    /// Urgent data is about, which splice(2) does not pass and at which reads stop short.
    urgent: bool,
    /// The connection is broken; there may still be something to read.
    failed: Option<io::Error>,
    /// A part of a segment may wait for more.
    corked: bool,
    /// splice(2) has refused this descriptor.
    unspliceable: bool,
    /// It is a file, of which nothing is told: it is ready always.
    always: bool,
    tls: Option<Box<Tls>>,
    /// What breaks it is told to the other end in an alert, which a reset would overtake.
    alerts: bool,
}

#[derive(Debug)]
enum Channel {
    Socket {
        fd: OwnedFd,
        tcp: bool,
    },
    Streams {
        input: OwnedFd,
        output: Option<OwnedFd>,
    },
    /// Connections to the other half of a pair.
    Pair(Box<StripeSet>),
}

/// What came of reading.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Bytes(usize),
    /// The other end has finished.
    End,
    /// Nothing yet.
    Nothing,
}

impl Leg {
    /// A connected socket that does not block.
    pub(crate) fn socket(fd: OwnedFd, tcp: bool) -> Self {
        Self::new(Channel::Socket { fd, tcp })
    }

    /// Two streams that do not block, pipes or a socket.
    pub(crate) fn streams(input: OwnedFd, output: OwnedFd) -> Self {
        Self::new(Channel::Streams {
            input,
            output: Some(output),
        })
    }

    /// The legs of a pair.
    pub(crate) fn pair(bundle: StripeSet) -> Self {
        Self {
            unspliceable: true,
            ..Self::new(Channel::Pair(Box::new(bundle)))
        }
    }

    /// The legs of a pair, if it is one.
    pub(crate) fn bundle(&mut self) -> Option<&mut StripeSet> {
        match &mut self.channel {
            Channel::Pair(bundle) => Some(bundle),
            Channel::Socket { .. } | Channel::Streams { .. } => None,
        }
    }

    fn new(channel: Channel) -> Self {
        Self {
            channel,
            readable: true,
            writable: true,
            hung: false,
            urgent: false,
            failed: None,
            corked: false,
            unspliceable: false,
            always: false,
            tls: None,
            alerts: false,
        }
    }

    /// Has events told: with `token`, of what is written with `token + 1`.
    pub(crate) fn register(&mut self, registry: &Registry, token: usize) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE | Interest::PRIORITY;
        let add = |fd: &OwnedFd, token, interest| {
            registry.register(&mut SourceFd(&fd.as_raw_fd()), Token(token), interest)
        };
        match &self.channel {
            Channel::Socket { fd, .. } => add(fd, token, both),
            Channel::Streams { input, output } => {
                let told = match output {
                    Some(output) => add(output, token + 1, Interest::WRITABLE),
                    None => Ok(()),
                };
                for added in [add(input, token, Interest::READABLE), told] {
                    match added {
                        // epoll_ctl(2): files and directories.
                        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => self.always = true,
                        added => added?,
                    }
                }
                Ok(())
            }
            // Each of its legs is.
            Channel::Pair(_) => Ok(()),
        }
    }

    /// Has nothing told any more, so that another loop may.
    pub(crate) fn deregister(&self, registry: &Registry) {
        if let Channel::Socket { fd, .. } = &self.channel {
            // One that is not there needs no removal.
            let _ = registry.deregister(&mut SourceFd(&fd.as_raw_fd()));
        }
    }

    /// What the kernel has told.
    pub(crate) fn told(&mut self, event: &Event) {
        self.readable |= event.is_readable() || event.is_read_closed();
        self.writable |= event.is_writable() || event.is_write_closed();
        self.hung |= event.is_read_closed();
        self.urgent |= event.is_priority();
        // A pipe whose reader has gone has an error as well; writing tells.
        if event.is_error() && matches!(self.channel, Channel::Socket { .. }) {
            (self.readable, self.writable) = (true, true);
            if self.failed.is_none() {
                self.failed = Some(io::ErrorKind::ConnectionReset.into());
            }
        }
    }

    /// Why the connection is broken, if it is.
    pub(crate) fn failure(&self) -> Option<&io::Error> {
        self.failed.as_ref()
    }

    /// Notes that it is broken.
    pub(crate) fn fail(&mut self, why: io::Error) {
        self.failed = Some(why);
    }

    /// The address that the other end has come to.
    pub(crate) fn local(&self) -> Option<std::net::SocketAddr> {
        let name = rustix::net::getsockname(self.tcp()?).ok()?;
        name.try_into().ok()
    }

    /// The socket, where it is one of TCP.
    pub(crate) fn tcp(&self) -> Option<BorrowedFd<'_>> {
        match &self.channel {
            Channel::Socket { fd, tcp: true } => Some(fd.as_fd()),
            Channel::Pair(bundle) => bundle.tcp(),
            _ => None,
        }
    }

    fn input(&self) -> Result<BorrowedFd<'_>, Errno> {
        match &self.channel {
            Channel::Socket { fd, .. } => Ok(fd.as_fd()),
            Channel::Streams { input, .. } => Ok(input.as_fd()),
            Channel::Pair(_) => Err(Errno::BADF),
        }
    }

    fn output(&self) -> Result<BorrowedFd<'_>, Errno> {
        match &self.channel {
            Channel::Socket { fd, .. } => Ok(fd.as_fd()),
            Channel::Streams { output, .. } => {
                output.as_ref().map(OwnedFd::as_fd).ok_or(Errno::PIPE)
            }
            Channel::Pair(_) => Err(Errno::BADF),
        }
    }

    /// Whether bytes may pass from or to it without being looked at.
    pub(crate) fn splices(&self) -> bool {
        !self.urgent && !self.unspliceable && self.tls.is_none()
    }

    /// What is held of it in any case, where it is held: what is decrypted is as large as the record
    /// was.
    pub(super) fn holds_at_least(&self) -> usize {
        match self.tls {
            Some(_) => super::tls::RECORD,
            None => 0,
        }
    }

    /// Whether there may be something to read.
    pub(crate) fn is_readable(&self) -> bool {
        if let Channel::Pair(bundle) = &self.channel {
            return bundle.is_readable();
        }
        self.readable || self.tls.as_ref().is_some_and(|tls| tls.holds())
    }

    /// Whether something may be written.
    pub(crate) fn is_writable(&self) -> bool {
        if let Channel::Pair(bundle) = &self.channel {
            return bundle.is_writable();
        }
        self.writable && self.tls.as_ref().is_none_or(|tls| tls.takes())
    }

    /// Speaks TLS from here on, as the server; `begun` has come already.
    pub(crate) fn serve_tls(&mut self, server: &TlsServer, begun: &[u8]) -> io::Result<()> {
        let mut tls = Tls::server(server)?;
        if !begun.is_empty() {
            tls.begin_with(begun);
        }
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    /// Speaks TLS from here on, as the client of this host.
    pub(crate) fn ask_tls(&mut self, client: &TlsClient, host: &str) -> io::Result<()> {
        self.tls = Some(Box::new(Tls::client(client, host)?));
        Ok(())
    }

    /// Goes on with a handshake; whether it is over.
    pub(crate) fn shake(&mut self) -> io::Result<bool> {
        while self.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
            self.flush()?;
            if self.receive_cipher(&mut [])?.is_none() {
                return Ok(false);
            }
        }
        self.flush()
    }

    /// Tells the other end what it did wrong, as far as the kernel takes it now.
    fn alert(&mut self, why: io::Error) -> io::Error {
        self.alerts = true;
        // What is wrong is what counts.
        let _ = self.flush();
        why
    }

    /// Receives records and decrypts them, as far as there is room; how much of it there is, and `None`
    /// where nothing has come.
    fn receive_cipher(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(mut tls) = self.tls.take() else {
            return Ok(None);
        };
        let mut broken = false;
        let done = match tls.has_begun() {
            true => tls.begin().map(|()| (Received::Bytes(0), 0)),
            false => tls.receive(into, |free| {
                let received = self.receive_raw(free);
                broken = received.is_err();
                let n = match &received {
                    Ok(Received::Bytes(n)) => *n,
                    _ => 0,
                };
                Ok((received?, n))
            }),
        };
        let is_handshaking = tls.is_handshaking();
        if matches!(done, Ok((Received::End, _))) {
            tls.hung_up();
        }
        self.tls = Some(tls);
        match done {
            Ok((Received::Nothing, _)) => Ok(None),
            // Without close_notify before it, reading will say so.
            Ok((Received::End, _)) => match is_handshaking {
                true => Err(io::ErrorKind::UnexpectedEof.into()),
                false => Ok(Some(0)),
            },
            // Answers of a handshake, tickets and the like leave at once.
            Ok((Received::Bytes(_), there)) => self.flush().map(|_| Some(there)),
            Err(e) if broken => Err(e),
            Err(e) => Err(self.alert(e)),
        }
    }

    /// Writes records that wait; whether all are gone.
    fn flush(&mut self) -> io::Result<bool> {
        let Some(mut tls) = self.tls.take() else {
            return Ok(true);
        };
        let done = tls.flush(|records| self.send_raw(records, false));
        self.tls = Some(tls);
        done
    }

    /// Reads what is there.
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> io::Result<Received> {
        if let Channel::Pair(bundle) = &mut self.channel {
            return Ok(bundle.receive(into));
        }
        loop {
            let Some(tls) = &mut self.tls else {
                return self.receive_raw(into);
            };
            match tls.read(into) {
                Ok(Plain::Bytes(n)) => return Ok(Received::Bytes(n)),
                Ok(Plain::End) => return Ok(Received::End),
                Ok(Plain::Empty) => match self.receive_cipher(into)? {
                    None => return Ok(Received::Nothing),
                    // Something that the two say to each other.
                    Some(0) => {}
                    Some(n) => return Ok(Received::Bytes(n)),
                },
                Err(e) => return Err(self.alert(e)),
            }
        }
    }

    fn receive_raw(&mut self, into: &mut [u8]) -> io::Result<Received> {
        if !self.readable {
            return Ok(Received::Nothing);
        }
        let read = retry(|| match &self.channel {
            Channel::Socket { fd, .. } => {
                recv(fd, &mut *into, RecvFlags::DONTWAIT).map(|(read, _)| read)
            }
            _ => rustix::io::read(self.input()?, &mut *into),
        });
        match read {
            Ok(0) => self.end(),
            Ok(n) => {
                // Nothing is left behind a short read, but for an end that was already told, and
                // for urgent data, which reads stop at (tcp(7)).
                if n < into.len() && !self.hung && !self.urgent && !self.always {
                    self.readable = false;
                }
                Ok(Received::Bytes(n))
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                Ok(Received::Nothing)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// A broken connection has no end of file: the error may have been told already.
    fn end(&self) -> io::Result<Received> {
        match &self.failed {
            None => Ok(Received::End),
            Some(why) => Err(why.kind().into()),
        }
    }

    /// Moves what is there into an empty pipe, `most` bytes of it.
    pub(crate) fn splice_in(&mut self, pipe: &Pipe, most: usize) -> io::Result<Received> {
        if !self.readable {
            return Ok(Received::Nothing);
        }
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        match retry(|| splice(self.input()?, None, pipe.writer(), None, most, flags)) {
            Ok(0) => self.end(),
            Ok(n) => Ok(Received::Bytes(n)),
            // With an empty pipe it can only mean that there is nothing to read.
            Err(Errno::AGAIN) => {
                self.readable = false;
                Ok(Received::Nothing)
            }
            Err(Errno::INVAL) => {
                self.unspliceable = true;
                Ok(Received::Bytes(0))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Writes what can be written, and tells how much: less than all only where the kernel takes no
    /// more now. `more` follows at once.
    pub(crate) fn send(&mut self, bytes: &[u8], more: bool) -> io::Result<usize> {
        if let Channel::Pair(bundle) = &mut self.channel {
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
                Channel::Socket { fd, .. } => send(fd, rest, flags),
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

    /// Moves what is in the pipe, `held` bytes, as far as the kernel takes it now.
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
                // A pipe with bytes in it has no end.
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => sent += n,
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INVAL) => {
                    self.unspliceable = true;
                    break;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(sent)
    }

    /// No segment and no record waits any more for what follows.
    pub(crate) fn push(&mut self) -> io::Result<()> {
        if let Channel::Pair(bundle) = &mut self.channel {
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
                // Setting it again sends what waits (tcp(7), TCP_NODELAY).
                let _ = rustix::net::sockopt::set_tcp_nodelay(tcp, true);
            }
        }
        Ok(())
    }

    /// Tells the other end that nothing more comes; false if that has to wait.
    pub(crate) fn finish(&mut self) -> io::Result<bool> {
        if let Some(tls) = &mut self.tls {
            tls.close()?;
            if !self.flush()? {
                return Ok(false);
            }
        }
        match &mut self.channel {
            Channel::Socket { fd, .. } => shutdown(&*fd, Shutdown::Write)?,
            Channel::Streams { output, .. } => drop(output.take()),
            Channel::Pair(bundle) => return Ok(bundle.finish()),
        }
        Ok(true)
    }

    /// Which version of TLS is spoken, if it is.
    pub(crate) fn tls(&self) -> Option<String> {
        if let Channel::Pair(bundle) = &self.channel {
            return Some(bundle.shown());
        }
        self.tls.as_ref().map(|tls| tls.shown())
    }

    /// What the other end has shown of itself, its certificate or its key.
    pub(crate) fn peer(&self) -> Option<&[u8]> {
        self.tls.as_ref()?.peer()
    }

    /// Whether the other end was told in an alert what it did wrong.
    pub(crate) fn alerts(&self) -> bool {
        self.alerts
    }

    /// Both directions have come to their end: the kernel sends what it still has, and the leg may
    /// be dropped. Without this, a leg that is dropped is a reset.
    pub(crate) fn close_orderly(&mut self) {
        if let Channel::Pair(bundle) = &mut self.channel {
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
