//! An SSH connection in either role: transport, authentication and channels as one state machine.

mod alive;
mod learning;
mod partial_data_packet;
mod proofs;
mod sealed;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use wire::{BorrowPolicy, PacketPool};

pub use partial_data_packet::{DATA_HEAD, DataPacketStart};
pub use sealed::SealedQueue;

use self::alive::SshKeepaliveTimer;
use self::learning::HostKeyLearning;
use self::partial_data_packet::PartialDataPacket;
use self::proofs::HostKeyAnnouncementState;
use crate::EndpointRole;
use crate::auth::{AuthConfig, ClientAuthEvent, ServerAuth, ServerAuthEvent, UserAuth};
use crate::channel::{ChannelEvent, ChannelId, Channels, ChannelsConfig};
use crate::crypto_offload::CryptoHelpers;
use crate::error::{Error, PeerMisbehaved};
use crate::key::{KeyError, PublicKey};
use crate::msg::{GlobalRequest, UserauthFailure};
use crate::transport::{
    AlgorithmProposal, DisabledProtection, Identification, NegotiatedAlgorithms, PeerExtensions,
    RandomFill, Transport, TransportConfig, TransportEvent, TransportHandover, TransportOutput,
};

/// Settings of a [`Connection`] for its transport, its channels and its keepalives.
#[derive(Clone)]
pub struct ConnectionConfig {
    /// Identification, algorithms and rekeying.
    pub transport: TransportConfig,
    /// Window and packet sizes of channels.
    pub channels: ChannelsConfig,
    /// Time without data from the peer after which a keepalive is sent (ServerAliveInterval).
    pub alive_interval: Option<Duration>,
    /// Unanswered keepalives after which the connection is given up (ServerAliveCountMax).
    pub alive_count: u32,
}

/// Event of a [`Connection`] for its owner.
#[derive(Debug)]
pub enum ConnectionEvent {
    /// Transport event.
    Transport(TransportEvent),
    /// Authentication event of a client.
    Auth(ClientAuthEvent),
    /// Authentication event of a server.
    Login(ServerAuthEvent),
    /// Channel event.
    Channel(ChannelEvent),
    /// The server announced its host keys, as blobs without duplicates: untrusted, and emitted at
    /// most once. [`Connection::ask_for_proofs`] requests proofs of those to learn.
    HostKeysAnnounced(Vec<Bytes>),
    /// The server's answer to [`Connection::ask_for_proofs`]: the proven keys, or the reason why
    /// none may be learned.
    HostKeysProven(Result<Vec<PublicKey>, KeyError>),
    /// Authentication failed at the request with which a channel was opened early
    /// ([`EarlyMessages::Opening`]). The channel does not exist, and has no further events.
    Retracted,
}

/// Messages that a client sends before authentication has succeeded. With compression there are
/// none, since both ends start it at the success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyMessages {
    /// Authentication messages only.
    #[default]
    Nothing,
    /// Messages that open a channel, and this number of bytes of its data, which are a greeting and
    /// no user data. After a refusal sshd answers each of them with UNIMPLEMENTED (auth2.c,
    /// dispatch_protocol_error), and authentication continues: [`ConnectionEvent::Retracted`].
    Opening(u32),
    /// All messages. Only for a key that has worked with this host key before: a refusal ends the
    /// connection, and the owner connects again without early data.
    Everything,
}

/// One side of an SSH connection, without I/O and without a clock.
///
/// Contract, in the order of an event loop:
///
/// 1. Call [`Connection::handle_input`] with received data, and [`Connection::handle_timeout`] at
///    the time that [`Connection::poll_timeout`] returns.
/// 2. Call [`Connection::poll_event`] until it returns `None`, and answer each event
///    ([`Connection::accept_host_key`], [`Connection::start_auth`], [`Connection::auth`],
///    [`Connection::decide`], [`Connection::channels`]). After [`Connection::accept_host_key`] and
///    [`Connection::decide`], return to 1 with the rest of the input: nothing is read past an
///    unapproved key.
/// 3. Call [`Connection::poll_output`] while there is room to write: the caller seals each packet,
///    on any thread, and writes them in order.
///
/// An error ends the connection; after it, send only what [`Connection::poll_output`] still
/// returns.
pub struct Connection {
    role: EndpointRole,
    transport: Transport,
    auth: AuthState,
    channels: Channels,
    /// Data packet whose data is passed on as it arrives, and whose end has not arrived.
    coming: Option<PartialDataPacket>,
    authenticated: bool,
    /// True if this client has still to start the rekey that disables encryption.
    asks_for_none: bool,
    /// True if the service request was sent before authentication started.
    asked_service: bool,
    early: EarlyMessages,
    /// Number of channel messages sent before authentication succeeded.
    sent_early: u32,
    alive: SshKeepaliveTimer,
    proofs: HostKeyAnnouncementState,
    learning: HostKeyLearning,
    events: VecDeque<ConnectionEvent>,
}

/// State of authentication.
enum AuthState {
    /// Authentication has not started.
    NotStarted,
    /// We authenticate to the server.
    Client(UserAuth),
    /// The client authenticates to us.
    Server(ServerAuth),
    /// The client has authenticated to another process.
    DoneElsewhere,
}

impl Connection {
    /// Creates a client's connection with identification and KEXINIT queued.
    ///
    /// # Errors
    /// The settings are invalid.
    pub fn client(
        config: ConnectionConfig,
        pool: PacketPool,
        random: RandomFill,
    ) -> Result<Self, Error> {
        Self::new(EndpointRole::Client, config, pool, random)
    }

    /// Creates a server's connection with identification and KEXINIT queued.
    ///
    /// # Errors
    /// The settings are invalid.
    pub fn server(
        config: ConnectionConfig,
        pool: PacketPool,
        random: RandomFill,
    ) -> Result<Self, Error> {
        Self::new(EndpointRole::Server, config, pool, random)
    }

    fn new(
        role: EndpointRole,
        config: ConnectionConfig,
        pool: PacketPool,
        random: RandomFill,
    ) -> Result<Self, Error> {
        Ok(Self {
            role,
            transport: Transport::new(role, config.transport, random)?,
            auth: AuthState::NotStarted,
            channels: Channels::new(role, config.channels, pool),
            coming: None,
            authenticated: false,
            asks_for_none: false,
            asked_service: false,
            early: EarlyMessages::Nothing,
            sent_early: 0,
            alive: SshKeepaliveTimer::new(config.alive_interval, config.alive_count),
            proofs: HostKeyAnnouncementState::default(),
            learning: HostKeyLearning::default(),
            events: VecDeque::new(),
        })
    }

    /// Keeps the key material, which [`Connection::hand_over`] needs.
    pub fn keep_keys(&mut self) {
        self.transport.keep_keys();
    }

    /// Serializes a server's connection, unprocessed input included. Call it right after
    /// [`ServerAuthEvent::Success`], once [`Connection::poll_output`] returns nothing. `None` at
    /// any other time, and without an early [`Connection::keep_keys`].
    pub fn hand_over(&self, now: Instant) -> Option<TransportHandover> {
        self.transport.hand_over(now)
    }

    /// Continues a server's connection that another process has serialized with
    /// [`Connection::hand_over`].
    ///
    /// # Errors
    /// The settings are invalid, or the bytes are malformed.
    pub fn taken_over(
        config: ConnectionConfig,
        pool: PacketPool,
        random: RandomFill,
        now: Instant,
        bytes: &[u8],
    ) -> Result<Self, Error> {
        let mut alive = SshKeepaliveTimer::new(config.alive_interval, config.alive_count);
        alive.hear(now);
        Ok(Self {
            role: EndpointRole::Server,
            transport: Transport::taken_over(config.transport, random, now, bytes)?,
            auth: AuthState::DoneElsewhere,
            channels: Channels::new(EndpointRole::Server, config.channels, pool),
            coming: None,
            authenticated: true,
            asks_for_none: false,
            asked_service: false,
            early: EarlyMessages::Nothing,
            sent_early: 0,
            alive,
            proofs: HostKeyAnnouncementState::default(),
            learning: HostKeyLearning::default(),
            events: VecDeque::new(),
        })
    }

    /// Processes received bytes: takes whole packets from the front of `buf` and leaves the rest.
    ///
    /// # Errors
    /// Any violation of the protocol, which ends the connection.
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

    /// Returns true while a key of the client waits for [`Connection::decide`]: the decision
    /// determines which messages are legal next.
    fn waits(&self) -> bool {
        matches!(&self.auth, AuthState::Server(login) if login.waits())
    }

    fn handle_payload(&mut self, now: Instant, payload: Bytes) -> Result<(), Error> {
        let number = payload.first().copied().unwrap_or_default();
        if let (EndpointRole::Server, AuthState::NotStarted) = (self.role, &self.auth)
            && let (Some(id), Some(key)) = (self.transport.session_id(), self.transport.host_key())
        {
            self.auth = AuthState::Server(ServerAuth::new(id.clone(), key.clone()));
        }
        match (number, &mut self.auth) {
            (0..=79, AuthState::Client(auth)) => {
                auth.handle(&payload)?;
                if number == UserauthFailure::NUMBER {
                    self.retract();
                }
                self.drain_auth();
                Ok(())
            }
            (0..=79, AuthState::Server(login)) => {
                let handled = login.handle(&payload);
                self.drain_login(handled)
            }
            (GlobalRequest::NUMBER, _) if self.authenticated => {
                if self.note_announcement(&payload)? {
                    return Ok(());
                }
                match self.answer_about_keys(&payload)? {
                    Some(answer) => self.channels.answer_global(answer),
                    None => self.channels.handle(now, payload),
                }
            }
            (80..=127, _) if self.authenticated => self.channels.handle(now, payload),
            _ => Err(PeerMisbehaved::Unexpected(number).into()),
        }
    }

    /// Answers [`ServerAuthEvent::Key`]: true if the key may log in to the account.
    ///
    /// # Errors
    /// The client has reached the limit of refused requests.
    pub fn decide(&mut self, allowed: bool) -> Result<(), Error> {
        let AuthState::Server(login) = &mut self.auth else {
            return Ok(());
        };
        let decided = login.decide(allowed);
        self.drain_login(decided)
    }

    /// Moves the login's messages and events to the transport and the owner. Messages go to the
    /// transport at once, since compression and the next phase start right after USERAUTH_SUCCESS.
    fn drain_login(&mut self, done: Result<(), Error>) -> Result<(), Error> {
        let AuthState::Server(login) = &mut self.auth else {
            return done;
        };
        while let Some(message) = login.poll_message() {
            let packet = wire::PacketBuf::from_payload(&message);
            self.transport.send(packet)?;
        }
        while let Some(event) = login.poll_event() {
            if matches!(event, ServerAuthEvent::Success { .. }) {
                self.authenticated = true;
                self.transport.set_authenticated();
            }
            self.events.push_back(ConnectionEvent::Login(event));
        }
        done
    }

    /// Starts a key exchange if one is due and authentication is done, as OpenSSH does (packet.c,
    /// ssh_packet_need_rekeying): an earlier KEXINIT of the client could cross the success at which
    /// compression starts.
    fn rekey_in_time(&mut self, now: Instant) -> Result<(), Error> {
        if !self.authenticated {
            return Ok(());
        }
        if self.asks_for_none && self.transport.rekey()? {
            self.asks_for_none = false;
        }
        self.transport.handle_timeout(now)
    }

    /// Disables encryption, or encryption and MAC, after authentication, if the peer was told to do
    /// so too; [`Connection::negotiated`] shows the result.
    pub fn renounce(&mut self, renounced: DisabledProtection) {
        self.asks_for_none =
            self.role == EndpointRole::Client && renounced != DisabledProtection::Nothing;
        self.transport.renounce(renounced);
    }

    /// Sets everything that this server could offer while it offers less, so that
    /// [`crate::PeerIncompatible::NoCommon`] can tell if that would have sufficed.
    pub fn set_could_offer(&mut self, all: AlgorithmProposal) {
        self.transport.set_could_offer(all);
    }

    /// Lets helper threads open received packets.
    pub fn set_helper(&mut self, helper: CryptoHelpers) {
        self.transport.set_helper(helper);
    }

    /// Returns how long sent packets may borrow their payload: until they are sent if they are
    /// neither sealed nor compressed.
    pub fn borrow_policy(&self) -> BorrowPolicy {
        self.transport.borrow_policy()
    }

    /// Returns true if sent packets need no sealing.
    pub(super) fn sends_clear(&self) -> bool {
        self.transport.sends_clear()
    }

    /// Discards the early channel messages after a refused authentication request.
    fn retract(&mut self) {
        if let EarlyMessages::Opening(_) = self.early {
            self.early = EarlyMessages::Nothing;
            self.transport
                .forgive_unimplemented(std::mem::take(&mut self.sent_early));
            self.channels.retract();
            self.events.push_back(ConnectionEvent::Retracted);
        }
    }

    fn drain_auth(&mut self) {
        while let Some(event) = self.auth().and_then(UserAuth::poll_event) {
            if matches!(event, ClientAuthEvent::Success) {
                self.authenticated = true;
                self.channels.set_assumed(None);
                self.transport.set_authenticated();
            }
            self.events.push_back(ConnectionEvent::Auth(event));
        }
    }

    fn drain_events(&mut self) {
        while let Some(event) = self.transport.poll_event() {
            if let (TransportEvent::Extensions, AuthState::Client(auth)) = (&event, &mut self.auth)
            {
                let extensions = self.transport.extensions();
                auth.set_extensions(extensions.hostbound, extensions.sig_algs.clone());
            }
            self.events.push_back(ConnectionEvent::Transport(event));
        }
        self.drain_auth();
        while let Some(event) = self.channels.poll_event() {
            let event = match event {
                ChannelEvent::ProofsAnswered(answer) => self.check_proofs(answer.as_ref()),
                event => ConnectionEvent::Channel(event),
            };
            self.events.push_back(event);
        }
    }

    /// Does slow computations while waiting for the peer; see [`Transport::prepare`].
    pub fn prepare(&mut self) -> Result<(), Error> {
        self.transport.prepare()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<ConnectionEvent> {
        self.drain_events();
        self.events.pop_front()
    }

    /// Returns the next packet to seal and write. Call it only while there is room to write: other
    /// data stays with its channel, where a key exchange or a closed window can hold it back.
    pub fn poll_output(&mut self) -> Result<Option<TransportOutput>, Error> {
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
            if !self.authenticated && self.early == EarlyMessages::Nothing {
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

    /// Handles expired timers: keepalives and rekeying by time.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), Error> {
        self.rekey_in_time(now)?;
        if self.authenticated && self.alive.due(now)? {
            self.channels.send_keepalive();
        }
        Ok(())
    }

    /// Returns the time at which to call [`Connection::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let alive = self.alive.deadline().filter(|_| self.authenticated);
        let rekey = self.transport.poll_timeout().filter(|_| self.authenticated);
        match (alive, rekey) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Reports that the owner trusts the key of [`TransportEvent::HostKey`].
    pub fn accept_host_key(&mut self) -> Result<(), Error> {
        self.transport.accept_host_key()
    }

    /// Sends IGNORE with `len` bytes if that is permitted: after our authentication has started,
    /// outside of a key exchange, and with zlib@openssh.com only after login. Returns true if it
    /// was sent.
    pub fn ignore(&mut self, len: usize) -> Result<bool, Error> {
        let known = matches!(self.auth, AuthState::Client(_));
        Ok(known && self.transport.ignore(len)?)
    }

    /// Requests the ssh-userauth service before [`Connection::start_auth`], which may come much
    /// later; no input may be processed in between. The host key must have been accepted.
    ///
    /// sshd keeps Nagle's algorithm on (RFC 9293 section 3.7.4): while its answer to the service
    /// request is not acknowledged, its answer to the authentication request waits for a round
    /// trip.
    pub fn request_service(&mut self) -> Result<(), Error> {
        self.asked_service = true;
        let request = UserAuth::service_request();
        self.transport.send(wire::PacketBuf::from_payload(&request))
    }

    /// Starts authentication, with the messages of `early` sent before its success; the host key
    /// must have been accepted.
    pub fn start_auth(&mut self, config: AuthConfig, early: EarlyMessages) -> Result<(), Error> {
        let mut auth = UserAuth::new(config);
        match self.asked_service {
            true => auth.start_after_service(),
            false => auth.start(),
        }
        self.auth = AuthState::Client(auth);
        let compress = self
            .transport
            .negotiated()
            .is_some_and(|n| n.c2s.compress || n.s2c.compress);
        if !compress {
            self.early = early;
        }
        if let EarlyMessages::Opening(bytes) = self.early {
            self.channels.set_assumed(Some(bytes));
        }
        self.drain_auth();
        Ok(())
    }

    /// Returns true if all messages are sent before authentication has succeeded.
    pub fn is_early(&self) -> bool {
        self.early == EarlyMessages::Everything && !self.authenticated
    }

    /// Returns true if opening a channel, and nothing else, is sent before authentication has
    /// succeeded.
    pub fn is_opening(&self) -> bool {
        matches!(self.early, EarlyMessages::Opening(_)) && !self.authenticated
    }

    /// Returns a client's authentication, to answer its events.
    pub fn auth(&mut self) -> Option<&mut UserAuth> {
        match &mut self.auth {
            AuthState::Client(auth) => Some(auth),
            _ => None,
        }
    }

    /// Returns the channels.
    pub fn channels(&mut self) -> &mut Channels {
        &mut self.channels
    }

    /// Returns the bytes written to a channel and not yet sent.
    pub fn queued(&self, id: ChannelId) -> usize {
        self.channels.queued(id)
    }

    /// Returns true if authentication has succeeded.
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// Returns the contiguous room in bytes that the arriving packet needs.
    pub fn wanted(&self) -> usize {
        self.transport.wanted()
    }

    /// Sends DISCONNECT to the peer.
    pub fn disconnect(&mut self, reason: u32, text: &str) -> Result<(), Error> {
        self.transport.disconnect(reason, text)
    }

    /// Starts a key exchange now.
    pub fn rekey(&mut self) -> Result<(), Error> {
        self.transport.rekey().map(|_| ())
    }

    /// Returns what the server sent before its identification:
    /// [`crate::transport::Transport::preamble`].
    pub fn preamble(&self) -> &[u8] {
        self.transport.preamble()
    }

    /// Returns the peer's identification.
    pub fn peer(&self) -> Option<&Identification> {
        self.transport.peer()
    }

    /// Returns the session identifier: the exchange hash of the first key exchange.
    pub fn session_id(&self) -> Option<&Bytes> {
        self.transport.session_id()
    }

    /// Returns the algorithms of the most recent negotiation.
    pub fn negotiated(&self) -> Option<&NegotiatedAlgorithms> {
        self.transport.negotiated()
    }

    /// Returns the content of the peer's EXT_INFO messages so far.
    pub fn extensions(&self) -> &PeerExtensions {
        self.transport.extensions()
    }

    /// Returns session identifier, host key and the server's signature, to which an agent is bound
    /// (session-bind@openssh.com).
    pub fn binding(&self) -> Option<(Bytes, Bytes, Bytes)> {
        Some((
            self.transport.session_id()?.clone(),
            self.transport.host_key()?.clone(),
            self.transport.host_signature()?.clone(),
        ))
    }
}
