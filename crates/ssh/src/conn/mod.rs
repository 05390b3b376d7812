//! A client's connection: transport, authentication and channels as one machine.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use wire::Pool;

use crate::Role;
use crate::auth::{AuthConfig, AuthEvent, UserAuth};
use crate::channel::{ChannelEvent, ChannelId, Channels, ChannelsConfig};
use crate::error::{Error, PeerMisbehaved};
use crate::msg::UserauthFailure;
use crate::transport::{
    Extensions, Ident, Negotiated, Output, Random, Transport, TransportConfig, TransportEvent,
};

/// Settings of a [`Connection`].
#[derive(Clone)]
pub struct ConnectionConfig {
    /// Identification, algorithms, rekeying.
    pub transport: TransportConfig,
    /// Windows and packets of channels.
    pub channels: ChannelsConfig,
    /// Ask the peer for a sign of life after this long without one (ServerAliveInterval).
    pub alive_interval: Option<Duration>,
    /// Give up after this many unanswered in a row (ServerAliveCountMax).
    pub alive_count: u32,
}

/// What a [`Connection`] tells its owner.
#[derive(Debug)]
pub enum Event {
    /// The transport's.
    Transport(TransportEvent),
    /// Authentication's.
    Auth(AuthEvent),
    /// A channel's.
    Channel(ChannelEvent),
    /// Authentication was not what the channel that was opened with it had hoped for: there is
    /// no such channel, and its events were the last.
    Retracted,
}

/// What leaves before authentication has succeeded. Never anything with compression, whose start
/// both ends tie to the success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Early {
    /// Authentication.
    #[default]
    Nothing,
    /// What opens a channel, and so many bytes of its data that they are a greeting and nothing of
    /// the user's. After a refusal sshd answers each message with UNIMPLEMENTED (auth2.c,
    /// dispatch_protocol_error), and authentication goes on: [`Event::Retracted`].
    Opening(u32),
    /// Everything. Only for a key that has worked on this host key before: a refusal then ends the
    /// connection, and the owner connects again without.
    Everything,
}

/// The client's side of an SSH connection, without I/O and without a clock.
///
/// Contract, in the order a loop does it:
///
/// 1. [`Connection::handle_input`] with what was received, [`Connection::handle_timeout`] when
///    the time of [`Connection::poll_timeout`] has come.
/// 2. [`Connection::poll_event`] until it is empty, answering as each event asks
///    ([`Connection::accept_host_key`], [`Connection::start_auth`], [`Connection::auth`],
///    [`Connection::channels`]). After [`Connection::accept_host_key`], go back to 1 with what
///    is left of the input: nothing is read past an unapproved key.
/// 3. [`Connection::poll_output`] while the caller wants more: each packet is sealed by the
///    caller, on any thread, and written in order.
///
/// An error ends the connection; send nothing but what [`Connection::poll_output`] still holds.
pub struct Connection {
    transport: Transport,
    auth: Option<UserAuth>,
    channels: Channels,
    authenticated: bool,
    early: Early,
    /// Messages of channels that left before authentication had succeeded.
    sent_early: u32,
    alive: Alive,
    events: VecDeque<Event>,
}

/// ServerAliveInterval: silence is measured, not time.
struct Alive {
    interval: Option<Duration>,
    count: u32,
    heard: Option<Instant>,
    asked: Option<Instant>,
    unanswered: u32,
}

impl Connection {
    /// A client's connection with identification and KEXINIT ready to be sent.
    pub fn client(config: ConnectionConfig, pool: Pool, random: Random) -> Result<Self, Error> {
        Ok(Self {
            transport: Transport::new(Role::Client, config.transport, random)?,
            auth: None,
            channels: Channels::new(Role::Client, config.channels, pool),
            authenticated: false,
            early: Early::Nothing,
            sent_early: 0,
            alive: Alive {
                interval: config.alive_interval,
                count: config.alive_count,
                heard: None,
                asked: None,
                unanswered: 0,
            },
            events: VecDeque::new(),
        })
    }

    /// Handles received bytes; takes whole packets from the front of `buf` and leaves the rest.
    pub fn handle_input(&mut self, now: Instant, buf: &mut BytesMut) -> Result<(), Error> {
        self.alive.hear(now);
        while let Some(payload) = self.transport.next_payload(now, buf)? {
            self.handle_payload(now, payload)?;
        }
        self.transport.handle_timeout(now)?;
        self.drain_events();
        Ok(())
    }

    fn handle_payload(&mut self, now: Instant, payload: Bytes) -> Result<(), Error> {
        let number = payload.first().copied().unwrap_or_default();
        match (number, &mut self.auth) {
            (0..=79, Some(auth)) => {
                auth.handle(&payload)?;
                if number == UserauthFailure::NUMBER {
                    self.retract();
                }
                self.drain_auth();
                Ok(())
            }
            (80..=127, _) => self.channels.handle(now, payload),
            _ => Err(PeerMisbehaved::Unexpected(number).into()),
        }
    }

    /// What was sent on the hope that this request would be the last was for nothing.
    fn retract(&mut self) {
        if let Early::Opening(_) = self.early {
            self.early = Early::Nothing;
            self.transport
                .forgive_unimplemented(std::mem::take(&mut self.sent_early));
            self.channels.retract();
            self.events.push_back(Event::Retracted);
        }
    }

    fn drain_auth(&mut self) {
        while let Some(event) = self.auth.as_mut().and_then(UserAuth::poll_event) {
            if matches!(event, AuthEvent::Success) {
                self.authenticated = true;
                self.channels.set_assumed(None);
                self.transport.set_authenticated();
            }
            self.events.push_back(Event::Auth(event));
        }
    }

    fn drain_events(&mut self) {
        while let Some(event) = self.transport.poll_event() {
            if let (TransportEvent::Extensions, Some(auth)) = (&event, &mut self.auth) {
                let extensions = self.transport.extensions();
                auth.set_extensions(extensions.hostbound, extensions.sig_algs.clone());
            }
            self.events.push_back(Event::Transport(event));
        }
        self.drain_auth();
        while let Some(event) = self.channels.poll_event() {
            self.events.push_back(Event::Channel(event));
        }
    }

    /// Does what takes long while the peer is waited for; see [`Transport::prepare`].
    pub fn prepare(&mut self) -> Result<(), Error> {
        self.transport.prepare()
    }

    /// What happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.drain_events();
        self.events.pop_front()
    }

    /// The next packet to seal and write. Call only while there is room for it: what is not
    /// taken stays with its channel, where a key exchange or a closed window can hold it.
    pub fn poll_output(&mut self) -> Result<Option<Output>, Error> {
        loop {
            if let Some(output) = self.transport.poll_output() {
                return Ok(Some(output));
            }
            if !self.transport.may_send() {
                return Ok(None);
            }
            if let Some(message) = self.auth.as_mut().and_then(UserAuth::poll_message) {
                match message.is_secret() {
                    true => self.transport.send_hidden(&message)?,
                    false => self
                        .transport
                        .send(wire::PacketBuf::from_payload(&message))?,
                }
                continue;
            }
            if !self.authenticated && self.early == Early::Nothing {
                return Ok(None);
            }
            match self.channels.poll_packet() {
                Some(packet) => {
                    self.sent_early += u32::from(!self.authenticated);
                    self.transport.send(packet)?;
                }
                None => return Ok(None),
            }
        }
    }

    /// Time has come: keepalives, rekeying by time.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), Error> {
        self.transport.handle_timeout(now)?;
        if self.authenticated && self.alive.due(now)? {
            self.channels.send_keepalive();
        }
        Ok(())
    }

    /// When [`Connection::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let alive = self.alive.deadline().filter(|_| self.authenticated);
        match (alive, self.transport.poll_timeout()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The owner trusts the key of [`TransportEvent::HostKey`].
    pub fn accept_host_key(&mut self) -> Result<(), Error> {
        self.transport.accept_host_key()
    }

    /// Starts authentication; the host key must have been accepted.
    pub fn start_auth(&mut self, config: AuthConfig, early: Early) -> Result<(), Error> {
        let mut auth = UserAuth::new(config);
        auth.start();
        self.auth = Some(auth);
        let compress = self
            .transport
            .negotiated()
            .is_some_and(|n| n.c2s.compress || n.s2c.compress);
        if !compress {
            self.early = early;
        }
        if let Early::Opening(bytes) = self.early {
            self.channels.set_assumed(Some(bytes));
        }
        self.drain_auth();
        Ok(())
    }

    /// Whether everything goes out before authentication has succeeded.
    pub fn is_early(&self) -> bool {
        self.early == Early::Everything && !self.authenticated
    }

    /// Whether a channel may be opened before authentication has succeeded, and no more.
    pub fn is_opening(&self) -> bool {
        matches!(self.early, Early::Opening(_)) && !self.authenticated
    }

    /// Authentication, to answer its events.
    pub fn auth(&mut self) -> Option<&mut UserAuth> {
        self.auth.as_mut()
    }

    /// The channels.
    pub fn channels(&mut self) -> &mut Channels {
        &mut self.channels
    }

    /// Bytes written to a channel that have not been sent.
    pub fn queued(&self, id: ChannelId) -> usize {
        self.channels.queued(id)
    }

    /// Whether authentication has succeeded.
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// Room the packet that is arriving needs in one piece.
    pub fn wanted(&self) -> usize {
        self.transport.wanted()
    }

    /// Tells the peer that we leave.
    pub fn disconnect(&mut self, reason: u32, text: &str) -> Result<(), Error> {
        self.transport.disconnect(reason, text)
    }

    /// Starts a key exchange now.
    pub fn rekey(&mut self) -> Result<(), Error> {
        self.transport.rekey()
    }

    /// The peer's identification.
    pub fn peer(&self) -> Option<&Ident> {
        self.transport.peer()
    }

    /// What was negotiated last.
    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.transport.negotiated()
    }

    /// What EXT_INFO said so far.
    pub fn extensions(&self) -> &Extensions {
        self.transport.extensions()
    }

    /// Session id, host key and the server's signature over it: what an agent is bound to
    /// (session-bind@openssh.com).
    pub fn binding(&self) -> Option<(Bytes, Bytes, Bytes)> {
        Some((
            self.transport.session_id()?.clone(),
            self.transport.host_key()?.clone(),
            self.transport.host_signature()?.clone(),
        ))
    }
}

impl Alive {
    fn hear(&mut self, now: Instant) {
        self.heard = Some(now);
        self.asked = None;
        self.unanswered = 0;
    }

    fn deadline(&self) -> Option<Instant> {
        let from = self.asked.or(self.heard)?;
        from.checked_add(self.interval.filter(|i| !i.is_zero())?)
    }

    fn due(&mut self, now: Instant) -> Result<bool, Error> {
        if self.deadline().is_none_or(|at| now < at) {
            return Ok(false);
        }
        if self.unanswered >= self.count {
            return Err(PeerMisbehaved::Silent.into());
        }
        self.unanswered += 1;
        self.asked = Some(now);
        Ok(true)
    }
}
