//! A connection in either role: transport, authentication and channels as one machine.

mod alive;
mod partial_packet;
mod proofs;
mod sealed;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use wire::{BorrowPolicy, Pool};

pub use partial_packet::{DATA_HEAD, Front};
pub use sealed::SealedQueue;

use self::alive::KeepAlive;
use self::partial_packet::PartialPacket;
use self::proofs::Proofs;
use crate::Role;
use crate::auth::{AuthConfig, AuthEvent, Login, LoginEvent, UserAuth};
use crate::channel::{ChannelEvent, ChannelId, Channels, ChannelsConfig};
use crate::crypto_offload::Helper;
use crate::error::{Error, PeerMisbehaved};
use crate::msg::{GlobalRequest, UserauthFailure};
use crate::transport::{
    DisabledProtection, Extensions, Handover, Ident, Negotiated, Output, Proposal, Random,
    Transport, TransportConfig, TransportEvent,
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
    /// Authentication's, of a client.
    Auth(AuthEvent),
    /// Authentication's, of a server.
    Login(LoginEvent),
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

/// One side of an SSH connection, without I/O and without a clock.
///
/// Contract, in the order a loop does it:
///
/// 1. [`Connection::handle_input`] with what was received, [`Connection::handle_timeout`] when
///    the time of [`Connection::poll_timeout`] has come.
/// 2. [`Connection::poll_event`] until it is empty, answering as each event asks
///    ([`Connection::accept_host_key`], [`Connection::start_auth`], [`Connection::auth`],
///    [`Connection::decide`], [`Connection::channels`]). After [`Connection::accept_host_key`]
///    and [`Connection::decide`], go back to 1 with what is left of the input: nothing is read
///    past an unapproved key.
/// 3. [`Connection::poll_output`] while the caller wants more: each packet is sealed by the
///    caller, on any thread, and written in order.
///
/// An error ends the connection; send nothing but what [`Connection::poll_output`] still holds.
pub struct Connection {
    role: Role,
    transport: Transport,
    auth: Authentication,
    channels: Channels,
    /// A packet of data that was begun, and whose end has not come.
    coming: Option<PartialPacket>,
    authenticated: bool,
    /// A client that does without a cipher has to ask for it.
    asks_for_none: bool,
    /// Authentication was asked for, ahead of its start.
    asked_service: bool,
    early: Early,
    /// Messages of channels that left before authentication had succeeded.
    sent_early: u32,
    alive: KeepAlive,
    proofs: Proofs,
    events: VecDeque<Event>,
}

/// Who proves what.
enum Authentication {
    /// Nothing has been said yet.
    Unbegun,
    /// We, to the server.
    Ours(UserAuth),
    /// The client, to us.
    Theirs(Login),
    /// The client has, to another process.
    Over,
}

impl Connection {
    /// A client's connection with identification and KEXINIT ready to be sent.
    ///
    /// # Errors
    /// The settings make no sense.
    pub fn client(config: ConnectionConfig, pool: Pool, random: Random) -> Result<Self, Error> {
        Self::new(Role::Client, config, pool, random)
    }

    /// A server's, the same.
    ///
    /// # Errors
    /// The settings make no sense.
    pub fn server(config: ConnectionConfig, pool: Pool, random: Random) -> Result<Self, Error> {
        Self::new(Role::Server, config, pool, random)
    }

    fn new(
        role: Role,
        config: ConnectionConfig,
        pool: Pool,
        random: Random,
    ) -> Result<Self, Error> {
        Ok(Self {
            role,
            transport: Transport::new(role, config.transport, random)?,
            auth: Authentication::Unbegun,
            channels: Channels::new(role, config.channels, pool),
            coming: None,
            authenticated: false,
            asks_for_none: false,
            asked_service: false,
            early: Early::Nothing,
            sent_early: 0,
            alive: KeepAlive::new(config.alive_interval, config.alive_count),
            proofs: Proofs::default(),
            events: VecDeque::new(),
        })
    }

    /// Keeps what keys are made of, for [`Connection::hand_over`].
    pub fn keep_keys(&mut self) {
        self.transport.keep_keys();
    }

    /// A server's connection as bytes, right behind [`LoginEvent::Success`] and once
    /// [`Connection::poll_output`] has nothing more; what was received and not handled goes with
    /// it. `None` at any other time, and without [`Connection::keep_keys`] at the beginning.
    pub fn hand_over(&self, now: Instant) -> Option<Handover> {
        self.transport.hand_over(now)
    }

    /// A server's connection that goes on where another was handed over.
    ///
    /// # Errors
    /// The settings make no sense, or the bytes are no such connection.
    pub fn taken_over(
        config: ConnectionConfig,
        pool: Pool,
        random: Random,
        now: Instant,
        bytes: &[u8],
    ) -> Result<Self, Error> {
        let mut alive = KeepAlive::new(config.alive_interval, config.alive_count);
        alive.hear(now);
        Ok(Self {
            role: Role::Server,
            transport: Transport::taken_over(config.transport, random, now, bytes)?,
            auth: Authentication::Over,
            channels: Channels::new(Role::Server, config.channels, pool),
            coming: None,
            authenticated: true,
            asks_for_none: false,
            asked_service: false,
            early: Early::Nothing,
            sent_early: 0,
            alive,
            proofs: Proofs::default(),
            events: VecDeque::new(),
        })
    }

    /// Handles received bytes; takes whole packets from the front of `buf` and leaves the rest.
    pub fn handle_input(&mut self, now: Instant, buf: &mut BytesMut) -> Result<(), Error> {
        self.alive.hear(now);
        while self.goes_on(buf)
            && !self.waits()
            && let Some(payload) = self.transport.next_payload(now, buf)?
        {
            self.handle_payload(now, payload)?;
        }
        self.rekey_in_time(now)?;
        self.drain_events();
        Ok(())
    }

    /// A key of the client's waits for [`Connection::decide`]: what it sends next may be legal
    /// only once that is done.
    fn waits(&self) -> bool {
        matches!(&self.auth, Authentication::Theirs(login) if login.waits())
    }

    fn handle_payload(&mut self, now: Instant, payload: Bytes) -> Result<(), Error> {
        let number = payload.first().copied().unwrap_or_default();
        if let (Role::Server, Authentication::Unbegun) = (self.role, &self.auth)
            && let (Some(id), Some(key)) = (self.transport.session_id(), self.transport.host_key())
        {
            self.auth = Authentication::Theirs(Login::new(id.clone(), key.clone()));
        }
        match (number, &mut self.auth) {
            (0..=79, Authentication::Ours(auth)) => {
                auth.handle(&payload)?;
                if number == UserauthFailure::NUMBER {
                    self.retract();
                }
                self.drain_auth();
                Ok(())
            }
            (0..=79, Authentication::Theirs(login)) => {
                let handled = login.handle(&payload);
                self.drain_login(handled)
            }
            (GlobalRequest::NUMBER, _) if self.authenticated && self.role == Role::Server => {
                match self.answer_about_keys(&payload)? {
                    Some(answer) => self.channels.answer_global(answer),
                    None => self.channels.handle(now, payload),
                }
            }
            (80..=127, _) if self.authenticated => self.channels.handle(now, payload),
            _ => Err(PeerMisbehaved::Unexpected(number).into()),
        }
    }

    /// The answer to [`LoginEvent::Key`]: whether the account may be entered with that key.
    ///
    /// # Errors
    /// The client has tried too often.
    pub fn decide(&mut self, allowed: bool) -> Result<(), Error> {
        let Authentication::Theirs(login) = &mut self.auth else {
            return Ok(());
        };
        let decided = login.decide(allowed);
        self.drain_login(decided)
    }

    /// Takes over what a login says. Its messages go to the transport at once, where
    /// compression and the next phase begin right behind its success.
    fn drain_login(&mut self, done: Result<(), Error>) -> Result<(), Error> {
        let Authentication::Theirs(login) = &mut self.auth else {
            return done;
        };
        while let Some(message) = login.poll_message() {
            let packet = wire::PacketBuf::from_payload(&message);
            self.transport.send(packet)?;
        }
        while let Some(event) = login.poll_event() {
            if matches!(event, LoginEvent::Success { .. }) {
                self.authenticated = true;
                self.transport.set_authenticated();
            }
            self.events.push_back(Event::Login(event));
        }
        done
    }

    /// As OpenSSH (packet.c, ssh_packet_need_rekeying), neither side begins a key exchange before
    /// authentication is done: a client's KEXINIT could cross the success with which compression
    /// starts.
    fn rekey_in_time(&mut self, now: Instant) -> Result<(), Error> {
        if !self.authenticated {
            return Ok(());
        }
        if self.asks_for_none && self.transport.rekey()? {
            self.asks_for_none = false;
        }
        self.transport.handle_timeout(now)
    }

    /// Does without a cipher, or without cipher and MAC, after authentication, if the peer was told
    /// the same; [`Connection::negotiated`] tells.
    pub fn renounce(&mut self, renounced: DisabledProtection) {
        self.asks_for_none = self.role == Role::Client && renounced != DisabledProtection::Nothing;
        self.transport.renounce(renounced);
    }

    /// All that this server could offer, where it offers less:
    /// [`crate::PeerIncompatible::NoCommon`] says whether that would have done.
    pub fn set_could_offer(&mut self, all: Proposal) {
        self.transport.set_could_offer(all);
    }

    /// Has others help with opening what comes.
    pub fn set_helper(&mut self, helper: Helper) {
        self.transport.set_helper(helper);
    }

    /// How long what is sent may stay where it lies: until it is sent where it is neither sealed nor
    /// compressed.
    pub fn outlying(&self) -> BorrowPolicy {
        self.transport.outlying()
    }

    /// Whether what is sent needs no sealing.
    pub(super) fn sends_clear(&self) -> bool {
        self.transport.sends_clear()
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
        while let Some(event) = self.auth().and_then(UserAuth::poll_event) {
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
            if let (TransportEvent::Extensions, Authentication::Ours(auth)) =
                (&event, &mut self.auth)
            {
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
            if let Some(message) = self.auth().and_then(UserAuth::poll_message) {
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
        self.rekey_in_time(now)?;
        if self.authenticated && self.alive.due(now)? {
            self.channels.send_keepalive();
        }
        Ok(())
    }

    /// When [`Connection::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let alive = self.alive.deadline().filter(|_| self.authenticated);
        let rekey = self.transport.poll_timeout().filter(|_| self.authenticated);
        match (alive, rekey) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The owner trusts the key of [`TransportEvent::HostKey`].
    pub fn accept_host_key(&mut self) -> Result<(), Error> {
        self.transport.accept_host_key()
    }

    /// Sends `len` bytes that mean nothing, where that may be: once our authentication has begun,
    /// in no key exchange, and with zlib@openssh.com only behind the login; returns whether it did.
    pub fn ignore(&mut self, len: usize) -> Result<bool, Error> {
        let known = matches!(self.auth, Authentication::Ours(_));
        Ok(known && self.transport.ignore(len)?)
    }

    /// Asks for authentication ahead of [`Connection::start_auth`], which may be long in coming; no input may be handled
    /// in between. The host key must have been accepted.
    ///
    /// sshd leaves Nagle's algorithm on (RFC 9293 section 3.7.4): behind an answer to this that is not acknowledged
    /// yet, that of authentication waits for a round trip.
    pub fn request_service(&mut self) -> Result<(), Error> {
        self.asked_service = true;
        let request = UserAuth::service_request();
        self.transport.send(wire::PacketBuf::from_payload(&request))
    }

    /// Starts authentication; the host key must have been accepted.
    pub fn start_auth(&mut self, config: AuthConfig, early: Early) -> Result<(), Error> {
        let mut auth = UserAuth::new(config);
        match self.asked_service {
            true => auth.start_after_service(),
            false => auth.start(),
        }
        self.auth = Authentication::Ours(auth);
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

    /// A client's authentication, to answer its events.
    pub fn auth(&mut self) -> Option<&mut UserAuth> {
        match &mut self.auth {
            Authentication::Ours(auth) => Some(auth),
            _ => None,
        }
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
        self.transport.rekey().map(|_| ())
    }

    /// What a server has said before its identification: [`crate::transport::Transport::preamble`].
    pub fn preamble(&self) -> &[u8] {
        self.transport.preamble()
    }

    /// The peer's identification.
    pub fn peer(&self) -> Option<&Ident> {
        self.transport.peer()
    }

    /// The first exchange hash, once there is one.
    pub fn session_id(&self) -> Option<&Bytes> {
        self.transport.session_id()
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
