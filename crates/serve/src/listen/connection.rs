//! One connection: bytes between its socket, the engine and the sessions on its channels.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use ssh::auth::LoginEvent;
use ssh::channel::{ChannelEvent, ChannelId, ChannelsConfig, LARGE_DATA};
use ssh::cipher::{MACS, preferred_order};
use ssh::kex::KEX_METHODS;
use ssh::transport::{Guess, Ident, Proposal, TransportConfig, TransportEvent};
use ssh::{ConnectionConfig, Event, Helper, PeerMisbehaved, SealedQueue};
use sys::{Segments, Tuning, Workers};
use tracing::{debug, info, warn};
use wire::Pool;

use super::crowd::Place;
use super::session::Session;
use super::{Settings, Stopping};
use crate::error::ConnectionError;

/// From accept(2) to the end of the login (LoginGraceTime of sshd has 120 s).
const LOGIN_TIME: Duration = Duration::from_secs(60);
/// A client that has said nothing for so long is asked whether it is there, ...
const ALIVE_INTERVAL: Duration = Duration::from_secs(60);
/// ... and is given up after so many questions without an answer.
const ALIVE_COUNT: u32 = 3;
/// New keys after so long at the latest, as OpenSSH recommends for RekeyLimit; ciphers have limits
/// of bytes of their own.
const REKEY_TIME: Duration = Duration::from_secs(3600);
/// Channels of a connection (MaxSessions of sshd).
const MOST_SESSIONS: usize = 10;
/// When the server stops, a connection on which nothing has been under way for so long ends: a
/// copy of many files is between two of them now and then.
const DRAIN_IDLE: Duration = Duration::from_secs(2);
/// Sealed bytes that wait for the socket: one large writev.
const BATCH: usize = 256 << 10;
/// Bytes read or written in a turn, so that neither direction starves the other.
const TURN: usize = 1 << 20;
/// How often the kernel is asked for the round trip, which windows follow.
const RTT_INTERVAL: Duration = Duration::from_millis(50);
/// What the windows of a connection may grow to where the client's buffers bear it: 2.5 Gbit/s at
/// 200 ms.
const LARGE_WINDOW: u32 = 64 << 20;
/// Packets whose memory is kept for further ones: 2 MiB.
const KEPT: usize = 8;
/// What a client that is disconnected for its own fault is told as the reason
/// (SSH_DISCONNECT_PROTOCOL_ERROR), and what every other (SSH_DISCONNECT_BY_APPLICATION).
const PROTOCOL_ERROR: u32 = 2;
const BY_APPLICATION: u32 = 11;

/// One connection.
pub(super) struct Connection<'s> {
    settings: &'s Settings,
    stream: TcpStream,
    peer: SocketAddr,
    place: Place,
    conn: ssh::Connection,
    segments: Segments,
    sending: SealedQueue,
    sessions: BTreeMap<ChannelId, Session<'s>>,
    login_until: Instant,
    /// It was said that nothing is encrypted.
    told_clear: bool,
    rtt_asked: Option<Instant>,
    /// The last time that something was under way.
    busy: Instant,
    /// The socket may be read, or written, without waiting.
    readable: bool,
    writable: bool,
}

impl<'s> Connection<'s> {
    pub(super) fn new(
        settings: &'s Settings,
        stream: TcpStream,
        peer: SocketAddr,
        place: Place,
    ) -> Result<Self, ConnectionError> {
        stream.set_nonblocking(true)?;
        Tuning::default().accepted(&stream)?;
        let pool = Pool::new(LARGE_DATA, KEPT);
        let random = Box::new(|to: &mut [u8]| {
            // Without random numbers there is no security, and the library has no other end.
            aws_lc_rs::rand::fill(to).expect("the system gives random numbers");
        });
        let mut conn = ssh::Connection::server(engine(settings), pool, random)?;
        conn.renounce(settings.renounced);
        conn.set_helper(helper());
        let mut sending = SealedQueue::default();
        sending.set_helper(helper());
        let now = Instant::now();
        Ok(Self {
            settings,
            stream,
            peer,
            place,
            conn,
            segments: Segments::default(),
            sending,
            sessions: BTreeMap::new(),
            login_until: now + LOGIN_TIME,
            told_clear: false,
            rtt_asked: None,
            busy: now,
            readable: true,
            writable: true,
        })
    }

    /// Serves until the client goes, or until nothing is under way once `stopping` is readable.
    ///
    /// # Errors
    /// Why it ended otherwise, which the client is told where it can be.
    pub(super) fn run(mut self, stopping: &Stopping) -> Result<(), ConnectionError> {
        let done = self.serve(stopping);
        self.sessions.values().for_each(Session::tell);
        let (reason, words) = match &done {
            Ok(()) | Err(ConnectionError::Gone) => return Ok(()),
            Err(ConnectionError::Engine(ssh::Error::Disconnected {
                reason: BY_APPLICATION,
                ..
            })) => return Ok(()),
            Err(
                ConnectionError::Io(_) | ConnectionError::Engine(ssh::Error::Disconnected { .. }),
            ) => {
                return done;
            }
            // As sshd has it: clients know the words.
            Err(ConnectionError::Engine(ssh::Error::PeerMisbehaved(PeerMisbehaved::TooMany(
                _,
            )))) if !self.conn.is_authenticated() => (
                PROTOCOL_ERROR,
                "Too many authentication failures".to_owned(),
            ),
            Err(e @ ConnectionError::Engine(_)) => (PROTOCOL_ERROR, e.to_string()),
            Err(e) => (BY_APPLICATION, e.to_string()),
        };
        if self.conn.disconnect(reason, &words).is_ok() {
            // The client need not be there any more.
            let _ = self.write();
        }
        match done {
            Err(ConnectionError::Stopped) => Ok(()),
            done => done,
        }
    }

    fn serve(&mut self, stopping: &Stopping) -> Result<(), ConnectionError> {
        let mut draining = false;
        loop {
            let now = Instant::now();
            let mut more = self.read(now)?;
            self.conn.handle_timeout(now)?;
            for session in self.sessions.values_mut() {
                session.turn(now, self.conn.channels());
            }
            more |= self.write()?;
            // What was written has made room for more answers.
            let channels = self.conn.channels();
            more |= self.sessions.values().any(|s| s.has_work(channels));
            self.check_time(now, draining)?;
            draining |= self.wait(now, stopping, draining, more)?;
        }
    }

    /// Ends what has lasted too long.
    fn check_time(&mut self, now: Instant, draining: bool) -> Result<(), ConnectionError> {
        if !self.conn.is_authenticated() {
            return match now >= self.login_until {
                true => Err(ConnectionError::LoginTime),
                false if draining => Err(ConnectionError::Stopped),
                false => Ok(()),
            };
        }
        let channels = self.conn.channels();
        if self.sessions.values().any(|s| s.is_busy(channels)) {
            self.busy = now;
        }
        match draining && now >= self.busy + DRAIN_IDLE {
            true => Err(ConnectionError::Stopped),
            false => Ok(()),
        }
    }

    /// Waits for the socket, the next deadline or the end of the server, which it tells; not at
    /// all when there is `more` to do.
    fn wait(
        &mut self,
        now: Instant,
        stopping: &Stopping,
        draining: bool,
        more: bool,
    ) -> Result<bool, ConnectionError> {
        let mut until = self.conn.poll_timeout();
        let mut earlier = |at: Instant| until = Some(until.map_or(at, |u: Instant| u.min(at)));
        match (self.conn.is_authenticated(), draining) {
            (false, _) => earlier(self.login_until),
            (true, true) => earlier(self.busy + DRAIN_IDLE),
            (true, false) => {}
        }
        let wait = match more {
            true => Some(Duration::ZERO),
            false => until.map(|at| at.saturating_duration_since(now)),
        };
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let mut wanted = PollFlags::IN;
        wanted.set(PollFlags::OUT, !self.sending.is_empty());
        let mut fds = [
            PollFd::new(&self.stream, wanted),
            PollFd::new(&*stopping.0, PollFlags::IN),
        ];
        // The end of the server is seen once.
        let watched = if draining {
            &mut fds[..1]
        } else {
            &mut fds[..]
        };
        match poll(watched, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(io::Error::from(e).into()),
        }
        let socket = fds[0].revents();
        self.readable |= socket.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
        self.writable |= socket.intersects(PollFlags::OUT | PollFlags::HUP | PollFlags::ERR);
        Ok(!draining && !fds[1].revents().is_empty())
    }

    /// Reads and handles what has come, within a bound; true when there may be more.
    fn read(&mut self, now: Instant) -> Result<bool, ConnectionError> {
        let mut total = 0;
        while self.readable && total < TURN {
            match self.segments.read(&self.stream, self.conn.wanted()) {
                Ok(0) => return Err(ConnectionError::Gone),
                Ok(n) => total += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.into()),
            }
            self.handle(now)?;
        }
        if total > 0 {
            self.ask_rtt(now);
        }
        Ok(self.readable)
    }

    fn handle(&mut self, now: Instant) -> Result<(), ConnectionError> {
        loop {
            let handled = self.conn.handle_input(now, self.segments.received());
            let mut decided = false;
            while let Some(event) = self.conn.poll_event() {
                decided |= self.handle_event(event)?;
            }
            handled?;
            // What follows a key was not looked at before it was decided about.
            if !decided {
                return Ok(());
            }
        }
    }

    /// True when a key was decided about.
    fn handle_event(&mut self, event: Event) -> Result<bool, ConnectionError> {
        match event {
            Event::Transport(TransportEvent::Identified(ident)) => {
                debug!("{} connects", ident.as_str().escape_debug());
                self.suit(&ident);
            }
            Event::Transport(TransportEvent::Keys { first: false }) => {
                let chosen = self.conn.negotiated();
                let clear = chosen.filter(|n| n.c2s.cipher.is_none() || n.s2c.cipher.is_none());
                if let Some(n) = clear.filter(|_| !self.told_clear) {
                    let mac = n.c2s.mac.zip(n.s2c.mac).map_or("none", |(mac, _)| mac.name);
                    warn!(
                        mac,
                        "NOT ENCRYPTED: the client and this server were told to do without"
                    );
                    self.told_clear = true;
                }
            }
            Event::Login(LoginEvent::Key { user, key }) => {
                let users = &self.settings.users;
                let allowed = users.may_enter(&user, &key, self.peer.ip());
                if let Err(why) = &allowed {
                    let user = String::from_utf8_lossy(&user);
                    info!(user = %user.escape_debug(), key = key.fingerprint(), "refused: {why}");
                }
                self.conn.decide(allowed.is_ok())?;
                return Ok(true);
            }
            Event::Login(LoginEvent::Success { user, key }) => {
                let user = String::from_utf8_lossy(&user);
                info!(user = %user.escape_debug(), key = key.fingerprint(), "logged in");
                self.place.known();
                self.busy = Instant::now();
            }
            Event::Login(LoginEvent::Refused { user, method }) => {
                debug!(user, method, "refused");
            }
            Event::Channel(event) => self.handle_channel(event),
            // The client's side has authentication of that kind.
            Event::Transport(_) | Event::Auth(_) | Event::Retracted => {}
        }
        Ok(false)
    }

    /// Packets and windows beyond what OpenSSH takes, for those who take more.
    fn suit(&mut self, ident: &Ident) {
        let channels = self.conn.channels();
        if ident.is_longhaul() {
            channels.set_max_packet(LARGE_DATA as u32);
        }
        if ident.takes_large_windows() {
            channels.set_max_window(LARGE_WINDOW);
        }
    }

    fn handle_channel(&mut self, event: ChannelEvent) {
        let channels = self.conn.channels();
        match event {
            ChannelEvent::SessionOpened(id) if self.sessions.len() >= MOST_SESSIONS => {
                channels.reject(id, "too many sessions on this connection");
            }
            ChannelEvent::SessionOpened(id) => {
                channels.accept(id);
                self.sessions.insert(id, Session::new(id));
            }
            ChannelEvent::Request {
                id,
                name,
                data,
                want_reply,
            } => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.request(channels, &self.settings.export, &name, &data, want_reply);
                }
            }
            ChannelEvent::Data(id, bytes) => match self.sessions.get_mut(&id) {
                Some(session) => session.data(bytes),
                None => channels.consumed(Instant::now(), id, bytes.len()),
            },
            ChannelEvent::ExtendedData(id, bytes) => {
                channels.consumed(Instant::now(), id, bytes.len());
            }
            ChannelEvent::Eof(id) => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.eof();
                }
            }
            ChannelEvent::Closed(id) => {
                if let Some(session) = self.sessions.remove(&id) {
                    session.tell();
                }
            }
            // Of channels that we would have opened.
            _ => {}
        }
    }

    /// Writes what the socket takes, within a bound; true when it may take more of what there is.
    fn write(&mut self) -> Result<bool, ConnectionError> {
        let mut total = 0;
        while self.writable && total < TURN {
            self.sending.fill(&mut self.conn, BATCH)?;
            if self.sending.is_empty() {
                return Ok(false);
            }
            match rustix::io::writev(&self.stream, &self.sending.slices()) {
                Ok(n) => {
                    total += n;
                    self.sending.written(n);
                }
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(e) => return Err(io::Error::from(e).into()),
            }
        }
        Ok(self.writable)
    }

    fn ask_rtt(&mut self, now: Instant) {
        let asked = self.rtt_asked;
        if !self.settings.window_poll
            || asked.is_some_and(|at| now.duration_since(at) < RTT_INTERVAL)
        {
            return;
        }
        self.rtt_asked = Some(now);
        let Some(tcp) = sys::tcp_info(&self.stream) else {
            return;
        };
        let channels = self.conn.channels();
        if !tcp.rtt.is_zero() {
            channels.set_rtt(tcp.rtt);
        }
        channels.follow_socket(tcp.rcv_wnd);
    }
}

/// Threads that this process has for all connections.
fn helper() -> Helper {
    let workers = Workers::shared();
    Helper::new(|| workers.are_idle(), |work| workers.help(work))
}

fn engine(settings: &Settings) -> ConnectionConfig {
    let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
    let kex: Vec<&str> = KEX_METHODS.iter().map(|k| k.name).collect();
    let macs: Vec<&str> = MACS.iter().map(|m| m.name).collect();
    let host_key: Vec<&str> = settings
        .host_keys
        .iter()
        .flat_map(|key| key.public().algorithms())
        .collect();
    ConnectionConfig {
        transport: TransportConfig {
            software: concat!("longhaul_", env!("CARGO_PKG_VERSION")).to_owned(),
            proposal: Proposal {
                kex: owned(&kex),
                host_key: owned(&host_key),
                // Which of them is used is the client's to say.
                ciphers: owned(&preferred_order(true)),
                macs: owned(&macs),
                compress: false,
            },
            guess: Guess::Never,
            rekey_bytes: None,
            rekey_time: Some(REKEY_TIME),
            host_keys: settings.host_keys.clone(),
        },
        channels: ChannelsConfig::default(),
        alive_interval: Some(ALIVE_INTERVAL),
        alive_count: ALIVE_COUNT,
    }
}
