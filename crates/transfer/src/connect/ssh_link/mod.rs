//! A session's link over this project's SSH engine: one connection with several channels.

mod channels;
mod early_close;
mod events;
mod login;
mod login_timer;
mod moving;
mod opening;
mod restarts;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sftp::ServerInfo;
use ssh::channel::{ChannelId as SshChannel, LARGE_DATA, OutgoingRequest};
use ssh::transport::{DisabledProtection, KexGuess, PeerOffers};
use ssh::{
    Connection, ConnectionConfig, CryptoHelpers, EndpointRole, PeerIncompatible, PeerMisbehaved,
    SealedQueue,
};
use sys::{HelperThreads, ReceiveBuffers};
use tracing::info;
use wire::PacketPool;

use self::channels::{ChannelProgram, ChannelTable, FirstChannel, RemoteChannelState};
use self::early_close::EarlyCloseRetries;
use self::login::{LoginEffect, UsedLoginMethods};
pub use self::login_timer::LoginLimits;
use self::login_timer::{LoginProgress, LoginTimer};
pub use self::opening::BulkDirection;
use self::opening::CongestionWindowOpener;
use self::restarts::RestartState;
use super::agent_channels::AgentChannels;
use super::auth_handler::{AuthHandler, ServerFacts};
use super::error::{ConnectError, ConnectStep, ResponsibleParty};
use super::remote_use;
use super::server_kind::DetectedServerKind;
use super::stream::ConnectedStream;
use crate::agent::AgentChoice;
use crate::report::Decision;
use crate::session::{Link, LinkChannelId, LinkError, LinkEvent, RemoteLonghaulKnowledge};
use crate::timeline::{ConnectionTimeline, TimelineStep};

/// Bytes that a lane may queue on a channel ahead of the socket. The queue is refilled when half
/// empty, so that the disk threads and the loop wake each other once per megabyte instead of once
/// per write.
const QUEUE: usize = 2 << 20;

/// The facts about a connection, for messages and reports.
#[derive(Clone, Debug, Default)]
pub struct ConnectionFacts {
    /// Address and port of the TCP connection.
    pub address: Option<String>,
    /// The server's identification string.
    pub banner: Option<String>,
    /// The key exchange method.
    pub kex: Option<String>,
    /// The host key algorithm.
    pub host_key: Option<String>,
    /// The cipher from client to server.
    pub cipher: Option<String>,
    /// The authentication method that succeeded.
    pub method: Option<String>,
    /// True if the key exchange was guessed correctly.
    pub guessed: bool,
    /// True if the first channel and its INIT were sent together with the login.
    pub channel_with_login: bool,
    /// The host key blob.
    pub host_key_blob: Vec<u8>,
    /// The TCP round trip.
    pub rtt: Option<Duration>,
    /// The local and the server's address of a TCP connection.
    pub addresses: Option<(IpAddr, IpAddr)>,
    /// The user's part in the login.
    pub user_input: LoginUserInput,
    /// The algorithms that the server offers.
    pub offers: PeerOffers,
    /// True if zlib is used in both directions after the login.
    pub compressed: bool,
    /// The settings selected for this connection, with reasons.
    pub decisions: Vec<Decision>,
}

impl ConnectionFacts {
    /// Returns true if the login required the user.
    pub fn asked_user(&self) -> bool {
        self.user_input == LoginUserInput::Asked
    }
}

/// The user's part in a login.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoginUserInput {
    /// Neither this login nor another one needs the user.
    #[default]
    None,
    /// This login did not need the user, but another one may.
    NextLogin,
    /// This login required the user, and another one would again.
    Asked,
}

/// Opens the socket; called again if the connection has to restart.
pub type SocketOpener = Box<dyn FnMut() -> Result<ConnectedStream, ConnectError> + Send>;

/// The settings of an [`SshLink`].
pub struct SshLinkSettings {
    /// The host as the user wrote it.
    pub name: String,
    /// The TCP port of the host, for messages about a server that is no SSH server.
    pub port: Option<u16>,
    /// The engine's settings.
    pub connection: ConnectionConfig,
    /// The server's identification and SFTP server as remembered from an earlier visit.
    pub remembered: Option<(String, ServerInfo)>,
    /// Knowledge about a longhaul at the far end; ignored if the SSH server itself is a longhaul.
    pub far: RemoteLonghaulKnowledge,
    /// The command that starts the remote longhaul.
    pub served_by: Vec<u8>,
    /// Environment variables to send (SendEnv, SetEnv).
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Time limits up to authentication.
    pub limits: LoginLimits,
    /// Protections to drop after login if the server has the same setting.
    pub renounced: DisabledProtection,
    /// True if channel windows follow the round trip and the socket buffer.
    pub window_poll: bool,
    /// The connection's place among those to the host.
    pub role: LinkRole,
    /// Kind of SFTP server in use, shared with the first connection.
    pub serving: Option<DetectedServerKind>,
    /// Direction of the data for which the congestion window is opened during the login.
    pub bulk: BulkDirection,
    /// True if zlib is offered although the user has not requested it.
    pub chose_zlib: bool,
    /// The agent to forward.
    pub forward: Option<AgentChoice>,
    /// Called once authentication has succeeded.
    pub opened: Option<Arc<dyn Fn(ConnectionFacts) + Send + Sync>>,
    /// Record of the connection's steps.
    pub track: Option<ConnectionTimeline>,
}

/// Role of a connection among those to its host: the first, a further one, or one to a server that
/// was started over another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkRole {
    /// The first connection.
    First,
    /// A further connection, whose messages the first has already shown.
    Further,
    /// A connection to a server that was started over another connection.
    Direct,
}

/// The earliest time at which a connection beside the first one sends jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstJobTime {
    /// In the flight of the login, if the key is one that worked before.
    WithLogin,
    /// After the login.
    AfterLogin,
}

/// One connection of this project's SSH engine, a [`Link`].
pub struct SshLink {
    config: SshLinkSettings,
    open: SocketOpener,
    auth_handler: Box<dyn AuthHandler>,
    stream: ConnectedStream,
    conn: Connection,
    pool: PacketPool,
    /// Packet buffers for a peer that accepts larger packets.
    large: PacketPool,
    segments: ReceiveBuffers,
    sending: SealedQueue,
    registered: Option<(Registry, Token)>,
    readiness: SocketReadiness,
    input: InputState,
    output: OutputState,
    channels: ChannelTable,
    server_facts: ServerFacts,
    offers: PeerOffers,
    login: UsedLoginMethods,
    login_effect: LoginEffect,
    /// True if the login was refused; the error text is then complete.
    denied: bool,
    /// The party at fault and the step at which this end went no further, if it did.
    refused: Option<(ResponsibleParty, ConnectStep)>,
    restarts: RestartState,
    early_closes: EarlyCloseRetries,
    first_jobs: FirstJobTime,
    rtt_asked: Option<Instant>,
    window: CongestionWindowOpener,
    /// Bytes sent through the socket.
    sent_bytes: u64,
    received_bytes: u64,
    /// Answers to keepalives.
    alive_answers: u64,
    agents: Option<AgentChannels>,
    first: FirstChannel,
    /// Reason code (RFC 4254 section 5.1) and description of the last refused channel.
    refused_channel: Option<(u32, String)>,
}

/// Readiness of the socket, remembered until a read or write would block.
#[derive(Clone, Copy, Debug)]
struct SocketReadiness {
    readable: bool,
    writable: bool,
}

impl SocketReadiness {
    /// Readiness is unknown: a read and a write are attempted.
    const UNKNOWN: Self = Self {
        readable: true,
        writable: true,
    };
}

/// State of the direction from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputState {
    Open,
    /// The server has closed the connection.
    Ended,
}

/// State of the direction to the server.
#[derive(Debug)]
enum OutputState {
    Open,
    /// This error ended writing. The reason may be in unread input.
    Failed(io::Error),
    /// The last write was faulty: nothing may follow it.
    Corrupted,
}

impl SshLink {
    /// Opens the socket and prepares identification and KEXINIT. Waits for the TCP connection only.
    pub fn connect(
        config: SshLinkSettings,
        mut open: SocketOpener,
        mut auth_handler: Box<dyn AuthHandler>,
    ) -> Result<Self, ConnectError> {
        let began = Instant::now();
        let pool = PacketPool::new(32 << 10, 2 * QUEUE / (32 << 10));
        // The crypto library's first random bytes take 40 ms of processor time and are per thread,
        // so this thread draws them while the SYN is on its way.
        let (stream, conn) = thread::scope(|scope| {
            let opening = scope.spawn(&mut open);
            let conn = engine(&config, &pool);
            (opening.join(), conn)
        });
        let this_machine = |why| ConnectError::this_machine(ConnectStep::Reach, why);
        let failed = || {
            Err(this_machine(
                "internal error: the connecting thread has failed".to_owned(),
            ))
        };
        let stream = stream.unwrap_or_else(|_| failed());
        let (stream, early_closes) = match stream {
            Err(error) if error.is_reset() && config.role == LinkRole::First => {
                open_again(&config.name, &mut open, &mut *auth_handler, (began, error))?
            }
            stream => (stream?, EarlyCloseRetries::new(began)),
        };
        let conn = conn.map_err(|e| this_machine(e.into_words()))?;
        stream.expect_data();
        let agents = config.forward.clone().map(AgentChannels::new);
        let link = Self {
            window: CongestionWindowOpener::new(config.bulk),
            config,
            open,
            auth_handler,
            stream,
            conn,
            pool,
            large: PacketPool::new(LARGE_DATA, 2 * QUEUE / LARGE_DATA),
            segments: ReceiveBuffers::default(),
            sending: helped_queue(),
            registered: None,
            readiness: SocketReadiness::UNKNOWN,
            input: InputState::Open,
            output: OutputState::Open,
            channels: ChannelTable::default(),
            server_facts: ServerFacts::default(),
            offers: PeerOffers::default(),
            login: UsedLoginMethods::default(),
            login_effect: LoginEffect::default(),
            denied: false,
            refused: None,
            restarts: RestartState::default(),
            early_closes,
            first_jobs: FirstJobTime::WithLogin,
            rtt_asked: None,
            sent_bytes: 0,
            received_bytes: 0,
            alive_answers: 0,
            agents,
            first: FirstChannel::default(),
            refused_channel: None,
        };
        let done = link.nonblocking();
        done.map_err(|e| this_machine(e.into_words()))?;
        link.mark(TimelineStep::Connected);
        Ok(link)
    }

    /// Records a step of the connection, if that is wanted.
    fn mark(&self, step: TimelineStep) {
        if let Some(track) = &self.config.track {
            track.mark(step);
        }
    }

    fn nonblocking(&self) -> Result<(), LinkError> {
        self.stream.set_nonblocking().map_err(|e| broken(&e))
    }

    /// Waits until authentication has succeeded; with `early`, only until the host key is accepted
    /// if requests may leave in one flight with authentication.
    pub fn establish(&mut self, early: bool) -> Result<(), ConnectError> {
        let done = self.log_in(early);
        let begun = self.conn.auth().is_some() && !self.conn.is_authenticated();
        done.map_err(|e| {
            let text = match e {
                LinkError::Lost(why) if begun && !self.denied => {
                    let login = self.auth_handler.login();
                    format!("{why} (while logging in {login})")
                }
                other => other.into_words(),
            };
            let (fault, check) = self.failed_check();
            ConnectError::new(fault, check, text)
        })
    }

    /// Step that the connection has not completed, and whoever can help if it failed.
    fn failed_check(&self) -> (ResponsibleParty, ConnectStep) {
        if let Some(refused) = self.refused {
            return refused;
        }
        match (self.conn.peer(), self.conn.binding()) {
            (None, _) => (ResponsibleParty::Path, ConnectStep::Reach),
            (Some(_), None) => (ResponsibleParty::Host, ConnectStep::HostKey),
            (Some(_), Some(_)) if self.denied => (ResponsibleParty::User, ConnectStep::Login),
            (Some(_), Some(_)) => (ResponsibleParty::Host, ConnectStep::Login),
        }
    }

    /// Logs in as [`SshLink::log_in_once`] does, and again where the server closes the connection
    /// before the key exchange is complete.
    fn log_in(&mut self, early: bool) -> Result<(), LinkError> {
        let mut result = self.log_in_once(early);
        while let Err(error) = result {
            // A proxy or a jump host would be logged in to again.
            let is_direct = matches!(self.stream, ConnectedStream::Tcp(_));
            let retries = is_direct && self.restarts.are_allowed();
            let retries = retries && self.config.role == LinkRole::First;
            let name = &self.config.name;
            let handler = &mut *self.auth_handler;
            if !retries || !waits_for_retry(&mut self.early_closes, handler, (name, &error)) {
                return Err(self.early_closes.describe_loss(Instant::now(), error));
            }
            // No request left before the key exchange.
            self.login_effect = LoginEffect::default();
            result = match self.try_reopen() {
                Ok(()) => self.log_in_once(early),
                Err(error) => {
                    self.early_closes.note_unreached(&error);
                    Err(self.unnamed(error))
                }
            };
        }
        Ok(())
    }

    /// Waits on this connection until authentication has succeeded, or as `early` says.
    fn log_in_once(&mut self, early: bool) -> Result<(), LinkError> {
        let timer = LoginTimer::new(self.config.limits, Instant::now());
        let mut timer = timer.at_port(self.config.port);
        let mut events = Vec::new();
        let mut told = None;
        loop {
            if early && self.conn.is_early() {
                return Ok(());
            }
            let now = Instant::now();
            self.open_early();
            self.flush(now)?;
            if self.conn.is_authenticated() {
                return Ok(());
            }
            let left = timer.left(now, self.login_progress())?;
            let awaited = timer.awaited(self.conn.peer().is_some());
            if told.replace(awaited) != Some(awaited) {
                self.auth_handler.waits_for(awaited);
            }
            if let Some(notice) = timer.notice(now, self.conn.peer().is_some()) {
                let line = format!("{}: {notice}", self.config.name);
                self.auth_handler.banner(&line);
            }
            let left = left.min(timer.until_notice(now));
            self.stream.acknowledge_at_once();
            self.conn.prepare().map_err(|e| engine_error(&e))?;
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, !self.sending.is_empty());
            let left = match self.segments.holds_more() {
                true => Duration::ZERO,
                false => left,
            };
            let timeout = Timespec::try_from(left).ok();
            let mut fds = [PollFd::new(&self.stream, flags)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(broken(&e.into())),
            }
            self.readiness = SocketReadiness::UNKNOWN;
            self.receive(now, &mut events)?;
            for event in events.drain(..) {
                if let LinkEvent::Message(text) = event {
                    self.auth_handler
                        .banner(&crate::escape::text(text.as_bytes()).to_string());
                }
            }
        }
    }

    fn login_progress(&self) -> LoginProgress {
        let is_verified = self.conn.binding().is_some();
        LoginProgress::new(self.restarts.count(), self.received_bytes, is_verified)
    }

    /// Declares that a session will use this connection, with an SFTP server on its first channel.
    pub(super) fn set_for_session(&mut self) {
        self.first = FirstChannel::Wanted;
    }

    /// Opens the first channel together with authentication if that is allowed.
    fn open_early(&mut self) {
        if self.conn.is_opening()
            && self.first.may_open()
            && let Some(program) = self.first_program()
        {
            let id = self.open(program);
            self.conn.channels().write(SshChannel(id.0), &sftp::INIT);
            self.first.open(id, program);
        }
    }

    /// Program on the first channel; `None` on a further connection while that is not known.
    fn first_program(&self) -> Option<ChannelProgram> {
        let known = self.known();
        let begins = matches!(
            known,
            Some(RemoteLonghaulKnowledge::SeenBefore(_) | RemoteLonghaulKnowledge::UserAsserted)
        );
        let served = match &self.config.serving {
            None => begins,
            Some(serving) => serving.is_ours().or_else(|| match known? {
                RemoteLonghaulKnowledge::SeenBefore(_) => Some(true),
                // The first connection made the same choice.
                RemoteLonghaulKnowledge::Never(_)
                | RemoteLonghaulKnowledge::Unknown { insists: false } => Some(false),
                _ => None,
            })?,
        };
        Some(match served {
            true => ChannelProgram::Served,
            false => ChannelProgram::Sftp,
        })
    }

    /// True if more was sent early than a server other than OpenSSH accepts.
    pub(super) fn says_much_early(&self) -> bool {
        self.conn.is_early() || self.conn.is_opening() && self.first.is_open()
    }

    /// Returns the early channel if this is the session's first request and it leads to this
    /// program; closes it otherwise.
    fn take_opened_early(&mut self, program: ChannelProgram) -> Option<LinkChannelId> {
        let (id, fits) = self.first.take(program)?;
        if !fits {
            self.close_channel(id);
        }
        fits.then_some(id)
    }

    /// Returns the knowledge about a longhaul at the far end; `None` until the server's
    /// identification has arrived.
    fn known(&self) -> Option<RemoteLonghaulKnowledge> {
        let ident = self.conn.peer()?;
        let restarted = self.restarts.count() > 0;
        Some(remote_use::at_server(&self.config.far, ident, restarted))
    }

    /// Makes the connection fail instead of restarting without predictions, and says when its first
    /// jobs may leave.
    pub(super) fn try_once(&mut self, jobs: FirstJobTime) {
        self.restarts.forbid();
        self.first_jobs = jobs;
    }

    fn facts(&self) -> ConnectionFacts {
        let chosen = self.conn.negotiated();
        ConnectionFacts {
            address: self.stream.address(),
            banner: self.conn.peer().map(|p| p.as_str().to_owned()),
            kex: chosen.map(|n| n.kex.name.to_owned()),
            host_key: chosen.map(|n| n.host_key.clone()),
            cipher: chosen.map(|n| n.c2s.cipher.name.to_owned()),
            method: self
                .conn
                .is_authenticated()
                .then(|| self.login.name().to_owned()),
            guessed: chosen.is_some_and(|n| n.guess_right)
                && match self.config.connection.transport.guess {
                    KexGuess::Never => false,
                    KexGuess::Remembered => true,
                    KexGuess::ByVersion => {
                        self.conn.peer().is_some_and(|p| p.usual_kex().is_some())
                    }
                },
            channel_with_login: self.first.is_open(),
            user_input: match self.auth_handler.needs_person() {
                true => LoginUserInput::Asked,
                false if self.login.is_more_than_a_key() => LoginUserInput::NextLogin,
                false => LoginUserInput::None,
            },
            offers: self.offers.clone(),
            host_key_blob: self
                .conn
                .binding()
                .map(|(_, host_key, _)| host_key.to_vec())
                .unwrap_or_default(),
            rtt: self.stream.tcp_info().map(|tcp| tcp.min_rtt),
            addresses: self.stream.addresses(),
            compressed: chosen.is_some_and(|n| n.c2s.compress && n.s2c.compress),
            decisions: Vec::new(),
        }
    }

    /// Opens a direct-tcpip channel to `host` and `port`.
    pub(super) fn open_direct_tcpip(&mut self, host: &str, port: u16) -> LinkChannelId {
        let id = self.conn.channels().open_direct_tcpip(host, port);
        self.channels.insert(id, RemoteChannelState::default());
        LinkChannelId(id.0)
    }

    /// Takes the reason code and the description of the last refused channel.
    pub(super) fn take_refused_channel(&mut self) -> Option<(u32, String)> {
        self.refused_channel.take()
    }

    /// Opens a channel to a program that serves SFTP.
    fn open(&mut self, program: ChannelProgram) -> LinkChannelId {
        let id = self.open_session();
        let channels = self.conn.channels();
        if self.agents.is_some() && self.auth_handler.may_forward() {
            channels.request(id, OutgoingRequest::AgentForwarding, false);
        }
        for (name, value) in &self.config.env {
            channels.request(id, OutgoingRequest::Env(name.clone(), value.clone()), false);
        }
        let request = match program {
            ChannelProgram::Served => OutgoingRequest::Exec(self.config.served_by.clone()),
            ChannelProgram::Sftp | ChannelProgram::Command => {
                OutgoingRequest::Subsystem(b"sftp".to_vec())
            }
        };
        channels.request(id, request, true);
        self.channels.insert(id, RemoteChannelState::new(program));
        LinkChannelId(id.0)
    }

    fn open_session(&mut self) -> SshChannel {
        // MaxSessions may be 1, and sshd ends a connection that makes requests on a refused
        // channel. Before authentication only a login is lost by that.
        let predicts = self.predicts();
        let alone = self.channels.is_empty() || self.conn.is_early();
        let channels = self.conn.channels();
        match predicts {
            true if alone => channels.open_session_predicted(),
            true => channels.open_session_counting(),
            false => channels.open_session(),
        }
    }

    /// Returns the socket, for polling.
    pub(super) fn stream(&self) -> &ConnectedStream {
        &self.stream
    }

    /// True if sealed bytes wait for the socket.
    pub(super) fn has_output(&self) -> bool {
        !self.sending.is_empty()
    }

    /// True if a restart may help because a setting was used that the user had not requested: a key
    /// exchange guessed from the last visit, or zlib.
    fn may_begin_plainly(&self) -> bool {
        let guessed = self.config.connection.transport.guess == KexGuess::Remembered;
        let in_vain = guessed && self.conn.binding().is_none();
        self.conn.peer().is_some()
            && self.restarts.is_first_login()
            && (in_vain || self.uses_chosen_zlib())
    }

    /// True if zlib is in use without a request by the user.
    pub(super) fn uses_chosen_zlib(&self) -> bool {
        let compresses =
            |n: &ssh::transport::NegotiatedAlgorithms| n.c2s.compress || n.s2c.compress;
        self.config.chose_zlib
            && self.conn.is_authenticated()
            && self.conn.negotiated().is_some_and(compresses)
    }

    /// Removes settings that the user did not request from the next attempt.
    fn choose_nothing(&mut self) {
        if self.uses_chosen_zlib() {
            self.auth_handler.zlib_failed();
        }
        let transport = &mut self.config.connection.transport;
        transport.proposal.compress &= !self.config.chose_zlib;
        self.config.chose_zlib = false;
        transport.guess = KexGuess::Never;
    }

    /// Returns the loss of the connection by an error, without the host, which callers name.
    fn unnamed(&self, error: ConnectError) -> LinkError {
        LinkError::Lost(error.said_of(&self.config.name))
    }

    /// Opens the socket again and begins the connection anew.
    fn try_reopen(&mut self) -> Result<(), ConnectError> {
        self.stream = (self.open)()?;
        let this_machine =
            |e: LinkError| ConnectError::this_machine(ConnectStep::Reach, e.into_words());
        self.conn = engine(&self.config, &self.pool).map_err(this_machine)?;
        let limit = self.segments.limit();
        self.segments = ReceiveBuffers::default();
        self.segments.set_limit(limit);
        self.sending = helped_queue();
        self.login = UsedLoginMethods::default();
        self.first.forget();
        self.input = InputState::Open;
        self.output = OutputState::Open;
        self.readiness = SocketReadiness::UNKNOWN;
        self.nonblocking().map_err(this_machine)
    }

    /// Restarts the connection without predictions, because the server refused early data.
    fn restart(&mut self, events: &mut Vec<LinkEvent>, why: &str) -> Result<(), LinkError> {
        info!(
            "{}: {why}; connecting again without sending ahead of the server's answers",
            self.config.name
        );
        self.choose_nothing();
        self.auth_handler.forget();
        self.restarts.restarted();
        self.login_effect.restarted();
        if let Some((registry, _)) = &self.registered {
            let _ = self.stream.deregister(registry);
        }
        self.try_reopen().map_err(|e| self.unnamed(e))?;
        events.push(LinkEvent::Restarted);
        self.channels.restart(why, events);
        if let Some((registry, token)) = &self.registered {
            self.stream
                .register(registry, *token)
                .map_err(|e| broken(&e))?;
        }
        Ok(())
    }
}

/// Opens the socket again after the server has reset a connection as soon as it had accepted it, as
/// one without room for another login may do. `(began, error)` has the time and the error of the
/// first attempt.
fn open_again(
    name: &str,
    open: &mut SocketOpener,
    auth_handler: &mut dyn AuthHandler,
    (began, mut error): (Instant, ConnectError),
) -> Result<(ConnectedStream, EarlyCloseRetries), ConnectError> {
    let mut retries = EarlyCloseRetries::new(began);
    loop {
        retries.note_unreached(&error);
        let why = error.clone().said_of(name);
        if !waits_for_retry(&mut retries, auth_handler, (name, &why)) {
            let what = retries.describe(Instant::now(), &why);
            return Err(ConnectError::new(error.fault(), error.check(), what).about(name));
        }
        match open() {
            Ok(stream) => return Ok((stream, retries)),
            Err(next) => error = next,
        }
    }
}

/// Wait between two attempts, as shown beside the host.
const NEXT_TRY: &str = "another try, since the server closed the connection";

/// Waits until the next attempt to connect to the host `name`, and says so with the first. `why` is
/// the reason why the last one failed. Returns false if there is no further one.
fn waits_for_retry(
    retries: &mut EarlyCloseRetries,
    auth_handler: &mut dyn AuthHandler,
    (name, why): (&str, &dyn fmt::Display),
) -> bool {
    let Some(pause) = retries.next(Instant::now(), random_byte()) else {
        return false;
    };
    if retries.is_first() {
        auth_handler.banner(&format!("{name}: {why}; trying again for up to 10 s"));
    }
    auth_handler.waits_for(NEXT_TRY);
    thread::sleep(pause);
    true
}

/// Returns a random byte, or zero if the system has none.
fn random_byte() -> u8 {
    let mut random = [0];
    let _ = aws_lc_rs::rand::fill(&mut random);
    random[0]
}

fn error(what: &str) -> LinkError {
    LinkError::Lost(what.to_owned())
}

fn broken(e: &io::Error) -> LinkError {
    let why = crate::disk::os_words(e);
    LinkError::Lost(format!("the connection broke: {why}"))
}

fn engine_error(e: &ssh::Error) -> LinkError {
    let mut text = e.seen_by(EndpointRole::Client).to_string();
    if let ssh::Error::PeerIncompatible(PeerIncompatible::NoCommon { .. }) = e {
        text.push_str(
            "; update the server, or use -S ssh: the system's ssh may support one of them (ssh \
             -Q)",
        );
    }
    match e.is_truncated() {
        true => LinkError::SourceTruncated(text),
        false => LinkError::Lost(text),
    }
}

/// Converts an error in what was received from a server at `port`.
fn input_error(e: &ssh::Error, port: Option<u16>) -> LinkError {
    match (e, port) {
        (ssh::Error::PeerMisbehaved(PeerMisbehaved::NoIdentification), Some(port)) => {
            LinkError::Lost(format!(
                "the server did not send an SSH version: check that an SSH server has port {port}"
            ))
        }
        _ => engine_error(e),
    }
}

/// Returns access to this process's worker threads, which all connections share.
fn helper() -> CryptoHelpers {
    let workers = HelperThreads::shared();
    CryptoHelpers::new(|| workers.are_idle(), |work| workers.help(work))
}

fn helped_queue() -> SealedQueue {
    let mut queue = SealedQueue::default();
    queue.set_helper(helper());
    queue
}

fn engine(config: &SshLinkSettings, pool: &PacketPool) -> Result<Connection, LinkError> {
    let random = Box::new(|to: &mut [u8]| {
        aws_lc_rs::rand::fill(to).expect("cannot read random numbers from the system");
    });
    let conn = Connection::client(config.connection.clone(), pool.clone(), random);
    let mut conn = conn.map_err(|e| LinkError::Lost(e.to_string()))?;
    conn.renounce(config.renounced);
    conn.set_helper(helper());
    Ok(conn)
}
