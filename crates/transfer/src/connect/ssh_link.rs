//! A session's link over our own engine: one connection, several channels.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::{Registry, Token};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sftp::{Output, ServerInfo};
use ssh::auth::AuthEvent;
use ssh::channel::{ChannelEvent, ChannelId as SshChannel, Request};
use ssh::transport::{Sealed, TransportEvent};
use ssh::{Connection, ConnectionConfig, Event};
use tracing::{debug, info};
use wire::Pool;

use super::gate::{Binding, Gate, Visit};
use super::stream::Stream;
use crate::session::{ChannelId, Link, LinkError, LinkEvent, Peer, Segments};

/// Sealed bytes waiting for the socket: enough for one large writev, little enough to be in the
/// cache still when it comes.
const BATCH: usize = 256 << 10;
/// Bytes written or read in a turn of the loop, so that neither direction starves the other.
const TURN: usize = 1 << 20;
/// Bytes a lane may queue on a channel ahead of what is sent. It is filled again when half of it
/// is gone, so that disk and loop wake each other once per megabyte and not once per write.
const QUEUE: usize = 2 << 20;
/// How often the kernel is asked for the round trip.
const RTT_INTERVAL: Duration = Duration::from_millis(50);
/// SSH_DISCONNECT_BY_APPLICATION.
const BY_APPLICATION: u32 = 11;

/// What is known of a connection, for people and programs.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Address and port of a TCP connection.
    pub address: Option<String>,
    /// The server's identification.
    pub banner: Option<String>,
    /// The key exchange.
    pub kex: Option<String>,
    /// The host key algorithm.
    pub host_key: Option<String>,
    /// The cipher from here to there.
    pub cipher: Option<String>,
    /// The method that authenticated.
    pub method: Option<String>,
    /// The key exchange was guessed, and guessed right.
    pub guessed: bool,
}

/// Opens the socket; again when a connection has to begin anew.
pub type Opener = Box<dyn FnMut() -> Result<Stream, String> + Send>;

/// What an [`SshLink`] is made with.
pub struct LinkConfig {
    /// The host as the user wrote it.
    pub name: String,
    /// Of the engine.
    pub connection: ConnectionConfig,
    /// What was learned of the server last time: its identification and its SFTP server.
    pub remembered: Option<(String, ServerInfo)>,
    /// Variables to send (SendEnv, SetEnv).
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bound for everything up to authentication (ConnectTimeout).
    pub timeout: Option<Duration>,
    /// Told once authentication has succeeded.
    pub opened: Option<Arc<dyn Fn(Facts) + Send + Sync>>,
}

/// One connection of our own engine. See [`Link`].
pub struct SshLink {
    config: LinkConfig,
    open: Opener,
    gate: Box<dyn Gate>,
    stream: Stream,
    conn: Connection,
    pool: Pool,
    segments: Segments,
    sending: VecDeque<Sealed>,
    sending_len: usize,
    registered: Option<(Registry, Token)>,
    readable: bool,
    writable: bool,
    ended: bool,
    channels: BTreeMap<u32, Far>,
    visit: Visit,
    /// Key and algorithm of the last signature; `None` once anything else was used too.
    signed: Option<(usize, String)>,
    other_method: bool,
    /// Nothing is predicted on this connection: a prediction has failed.
    step_by_step: bool,
    rtt_asked: Option<Instant>,
}

/// The far end of a channel, as far as it is worth telling.
#[derive(Default)]
struct Far {
    granted: bool,
    errors: Vec<u8>,
    status: Option<u32>,
}

impl SshLink {
    /// Opens the socket and readies identification and KEXINIT. Nothing is awaited but the TCP
    /// connection.
    pub fn connect(
        config: LinkConfig,
        mut open: Opener,
        gate: Box<dyn Gate>,
    ) -> Result<Self, LinkError> {
        let pool = Pool::new(32 << 10, 2 * QUEUE / (32 << 10));
        let stream = open().map_err(LinkError)?;
        let conn = engine(&config.connection, &pool)?;
        let link = Self {
            config,
            open,
            gate,
            stream,
            conn,
            pool,
            segments: Segments::default(),
            sending: VecDeque::new(),
            sending_len: 0,
            registered: None,
            readable: true,
            writable: true,
            ended: false,
            channels: BTreeMap::new(),
            visit: Visit::default(),
            signed: None,
            other_method: false,
            step_by_step: false,
            rtt_asked: None,
        };
        link.nonblocking()?;
        Ok(link)
    }

    fn nonblocking(&self) -> Result<(), LinkError> {
        self.stream.set_nonblocking().map_err(|e| broken(&e))
    }

    /// Waits until authentication has succeeded.
    pub fn establish(&mut self) -> Result<(), LinkError> {
        let deadline = self.config.timeout.map(|t| Instant::now() + t);
        let mut events = Vec::new();
        loop {
            let now = Instant::now();
            self.flush(now)?;
            if self.conn.is_authenticated() {
                return Ok(());
            }
            let left = deadline.map(|d| d.saturating_duration_since(now));
            // Once a person may be asked, time is theirs.
            let left = left.filter(|_| self.conn.binding().is_none());
            if left.is_some_and(|l| l.is_zero()) {
                return Err(error("no answer in time (ConnectTimeout)"));
            }
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, !self.sending.is_empty());
            let timeout = left.and_then(|l| Timespec::try_from(l).ok());
            let mut fds = [PollFd::new(&self.stream, flags)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(broken(&e.into())),
            }
            self.readable = true;
            self.writable = true;
            self.receive(now, &mut events)?;
            for event in events.drain(..) {
                if let LinkEvent::Says(text) = event {
                    self.gate
                        .banner(&crate::escape::text(text.as_bytes()).to_string());
                }
            }
        }
    }

    fn facts(&self) -> Facts {
        let chosen = self.conn.negotiated();
        let method = match &self.signed {
            Some(_) if !self.other_method => "publickey",
            _ => "password or keyboard-interactive",
        };
        Facts {
            address: self.stream.address(),
            banner: self.conn.peer().map(|p| p.as_str().to_owned()),
            kex: chosen.map(|n| n.kex.name.to_owned()),
            host_key: chosen.map(|n| n.host_key.clone()),
            cipher: chosen.map(|n| n.c2s.cipher.name.to_owned()),
            method: self.conn.is_authenticated().then(|| method.to_owned()),
            guessed: self.config.connection.transport.guess
                && chosen.is_some_and(|n| n.guess_right),
        }
    }

    /// Has the server connect to `host` and `port`; the channel carries that connection's bytes.
    pub(super) fn open_direct_tcpip(&mut self, host: &str, port: u16) -> ChannelId {
        let id = self.conn.channels().open_direct_tcpip(host, port);
        self.channels.insert(id.0, Far::default());
        ChannelId(id.0)
    }

    /// The socket, to wait for.
    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether sealed bytes wait for the socket.
    pub(super) fn has_output(&self) -> bool {
        !self.sending.is_empty()
    }

    /// Begins anew, without predictions: what was sent early was refused.
    fn restart(&mut self, events: &mut Vec<LinkEvent>, why: &str) -> Result<(), LinkError> {
        info!("{}: {why}; connecting again step by step", self.config.name);
        self.gate.forget();
        self.step_by_step = true;
        if let Some((registry, _)) = &self.registered {
            let _ = self.stream.deregister(registry);
        }
        self.stream = (self.open)().map_err(LinkError)?;
        self.conn = engine(&self.config.connection, &self.pool)?;
        let limit = self.segments.limit();
        self.segments = Segments::default();
        self.segments.set_limit(limit);
        self.sending.clear();
        self.sending_len = 0;
        self.signed = None;
        self.other_method = false;
        self.ended = false;
        self.readable = true;
        self.writable = true;
        for id in std::mem::take(&mut self.channels).into_keys() {
            events.push(LinkEvent::Closed(ChannelId(id), Some(why.to_owned())));
        }
        self.nonblocking()?;
        if let Some((registry, token)) = &self.registered {
            self.stream
                .register(registry, *token)
                .map_err(|e| broken(&e))?;
        }
        Ok(())
    }

    /// Handles what the engine has to tell.
    fn pump(&mut self, now: Instant, events: &mut Vec<LinkEvent>) -> Result<(), LinkError> {
        while let Some(event) = self.conn.poll_event() {
            match event {
                Event::Transport(event) => self.handle_transport(now, event)?,
                Event::Auth(event) => {
                    if self.handle_auth(event, events)? {
                        return Ok(());
                    }
                }
                Event::Channel(ChannelEvent::PredictionFailed(_)) => {
                    return self.restart(events, "the server numbers its channels otherwise");
                }
                Event::Channel(event) => self.handle_channel(now, event, events),
            }
        }
        Ok(())
    }

    fn handle_transport(&mut self, now: Instant, event: TransportEvent) -> Result<(), LinkError> {
        match event {
            TransportEvent::Identified(ident) => {
                debug!("{}: {}", self.config.name, ident.as_str());
                self.visit.banner = ident.as_str().to_owned();
            }
            TransportEvent::Negotiated { chosen, favourites } => {
                debug!(
                    "{}: kex {}, host key {}, cipher {} and {}{}",
                    self.config.name,
                    chosen.kex.name,
                    chosen.host_key,
                    chosen.c2s.cipher.name,
                    chosen.s2c.cipher.name,
                    if chosen.guess_right {
                        ", guessed right"
                    } else {
                        ""
                    },
                );
                self.visit.kex = favourites.0;
                self.visit.host_key_algorithm = favourites.1;
            }
            TransportEvent::HostKey(blob) => self.handle_host_key(now, &blob)?,
            TransportEvent::Keys { first: false } => debug!("{}: new keys", self.config.name),
            TransportEvent::Debug(text) => debug!("{} says: {text}", self.config.name),
            TransportEvent::Keys { .. } | TransportEvent::Extensions | TransportEvent::Pong => {}
        }
        Ok(())
    }

    fn handle_host_key(&mut self, now: Instant, blob: &Bytes) -> Result<(), LinkError> {
        self.gate.host_key(blob).map_err(LinkError)?;
        self.visit.host_key = blob.to_vec();
        let done = self
            .conn
            .accept_host_key()
            // NEWKEYS and EXT_INFO mostly come together with the reply, and the latter says which
            // signatures the server takes.
            .and_then(|()| self.conn.handle_input(now, self.segments.received()));
        done.map_err(|e| engine_error(&e))?;
        let Some((session_id, host_key, signature)) = self.conn.binding() else {
            return Ok(());
        };
        let binding = Binding {
            host_key: &host_key,
            session_id: &session_id,
            signature: &signature,
        };
        let credentials = self.gate.credentials(binding).map_err(LinkError)?;
        let early = credentials.proven && self.predicts();
        let config = credentials.config(binding, self.conn.extensions());
        self.conn
            .start_auth(config, early)
            .map_err(|e| engine_error(&e))
    }

    /// Whether a channel's number and window may be counted on.
    fn predicts(&self) -> bool {
        !self.step_by_step && self.conn.peer().is_some_and(|p| p.openssh().is_some())
    }

    /// True when the connection was begun anew.
    fn handle_auth(
        &mut self,
        event: AuthEvent,
        events: &mut Vec<LinkEvent>,
    ) -> Result<bool, LinkError> {
        match event {
            AuthEvent::Sign {
                identity,
                algorithm,
                data,
            } => {
                let signature = self.gate.sign(identity, &algorithm, &data);
                self.other_method |= self.signed.is_some() && !self.conn.is_early();
                self.signed = Some((identity, algorithm));
                if let Some(auth) = self.conn.auth() {
                    auth.sign(signature.as_deref());
                }
            }
            AuthEvent::Password { attempt } => {
                let password = self.gate.password(attempt);
                self.other_method = true;
                if let Some(auth) = self.conn.auth() {
                    auth.password(password.as_ref());
                }
            }
            AuthEvent::Prompts {
                name,
                instruction,
                prompts,
            } => {
                let answers = self.gate.answers(&name, &instruction, &prompts);
                self.other_method = true;
                if let Some(auth) = self.conn.auth() {
                    auth.answers(answers.as_deref());
                }
            }
            AuthEvent::Banner(text) => self.gate.banner(&text),
            AuthEvent::Success => {
                info!("{}: authenticated", self.config.name);
                let key = self.signed.as_ref().filter(|_| !self.other_method);
                self.gate
                    .authenticated(key.map(|(i, a)| (*i, a.as_str())), &self.visit);
                if let Some(opened) = &self.config.opened {
                    opened(self.facts());
                }
            }
            AuthEvent::Failed { server, why } => {
                if self.conn.is_early() {
                    self.restart(events, "the key that worked before was refused")?;
                    return Ok(true);
                }
                let mut text =
                    why.unwrap_or_else(|| format!("permission denied ({})", server.join(",")));
                for reason in self.gate.refusal() {
                    text.push_str("; ");
                    text.push_str(&reason);
                }
                return Err(LinkError(text));
            }
        }
        Ok(false)
    }

    fn handle_channel(&mut self, now: Instant, event: ChannelEvent, events: &mut Vec<LinkEvent>) {
        match event {
            ChannelEvent::Data(id, bytes) => {
                // A lane asks for no more than it has room for, so what came is as good as gone.
                self.conn.channels().consumed(now, id, bytes.len());
                events.push(LinkEvent::Data(ChannelId(id.0), bytes));
            }
            ChannelEvent::ExtendedData(id, bytes) => {
                self.conn.channels().consumed(now, id, bytes.len());
                if let Some(far) = self.channels.get_mut(&id.0) {
                    far.hear(&bytes, events);
                }
            }
            ChannelEvent::RequestSucceeded(id) => {
                if let Some(far) = self.channels.get_mut(&id.0) {
                    far.granted = true;
                }
            }
            ChannelEvent::RequestFailed(id) => {
                self.end_channel(id, "the server has no SFTP subsystem", events);
            }
            ChannelEvent::OpenFailed {
                id, description, ..
            } => {
                self.end_channel(
                    id,
                    &format!("the server refused a channel: {description}"),
                    events,
                );
            }
            ChannelEvent::ExitStatus(id, status) => {
                if let Some(far) = self.channels.get_mut(&id.0) {
                    far.status = Some(status);
                }
            }
            ChannelEvent::ExitSignal(id, signal) => {
                let why = format!("the SFTP server was ended by signal {signal}");
                self.end_channel(id, &why, events);
            }
            ChannelEvent::Eof(id) | ChannelEvent::Closed(id) => {
                let status = self.channels.get(&id.0).and_then(|far| far.status);
                let why = match status {
                    Some(status) => format!("the SFTP server ended with status {status}"),
                    None => "the server closed the SFTP channel".to_owned(),
                };
                // After EOF the exit status is still to come; CLOSE ends it for good.
                if matches!(event, ChannelEvent::Closed(_)) {
                    self.end_channel(id, &why, events);
                }
            }
            ChannelEvent::AgentOpened(id) => {
                self.conn.channels().reject(id, "no agent is forwarded");
            }
            ChannelEvent::Opened(_)
            | ChannelEvent::Alive
            | ChannelEvent::PredictionFailed(_)
            | ChannelEvent::SessionOpened(_)
            | ChannelEvent::Request { .. } => {}
        }
    }

    fn end_channel(&mut self, id: SshChannel, why: &str, events: &mut Vec<LinkEvent>) {
        if let Some(mut far) = self.channels.remove(&id.0) {
            far.hear(b"\n", events);
            self.conn.channels().close(id);
            // The lowest free number is no longer the count of those opened.
            self.step_by_step = true;
            events.push(LinkEvent::Closed(ChannelId(id.0), Some(why.to_owned())));
        }
    }

    fn ask_rtt(&mut self, now: Instant) {
        if self
            .rtt_asked
            .is_none_or(|at| now.duration_since(at) >= RTT_INTERVAL)
        {
            self.rtt_asked = Some(now);
            if let Some(rtt) = self.stream.rtt() {
                self.conn.channels().set_rtt(rtt);
            }
        }
    }

    fn read(&mut self, now: Instant, events: &mut Vec<LinkEvent>) -> Result<bool, LinkError> {
        let mut total = 0;
        let turn = self.segments.limit().unwrap_or(TURN).min(TURN);
        while self.readable && !self.ended && total < turn {
            match self.segments.read(&self.stream, self.conn.wanted()) {
                Ok(0) => {
                    self.ended = true;
                    return Err(error("the server closed the connection"));
                }
                Ok(n) => total += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    break;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(broken(&e)),
            }
            let handled = self.conn.handle_input(now, self.segments.received());
            self.pump(now, events)?;
            handled.map_err(|e| engine_error(&e))?;
        }
        if total > 0 {
            self.ask_rtt(now);
        }
        Ok(self.readable && !self.ended)
    }
}

impl Link for SshLink {
    fn register(&mut self, registry: &Registry, first: Token) -> io::Result<()> {
        self.stream.register(registry, first)?;
        self.registered = Some((registry.try_clone()?, first));
        // What arrived before the registration is announced by no event.
        self.readable = true;
        self.writable = true;
        Ok(())
    }

    fn peer(&self) -> Option<Peer> {
        let ident = self.conn.peer()?;
        let remembered = self.config.remembered.as_ref();
        let same = remembered.filter(|(banner, _)| banner == ident.as_str());
        Some(Peer {
            openssh: ident.openssh().is_some(),
            remembered: same
                .filter(|_| !self.step_by_step)
                .map(|(_, info)| info.clone()),
        })
    }

    fn pool(&self) -> Pool {
        self.pool.clone()
    }

    fn server_seen(&mut self, info: &ServerInfo) {
        self.gate.server(info);
    }

    fn open_channel(&mut self) -> Option<ChannelId> {
        let predicted = self.predicts();
        let channels = self.conn.channels();
        let id = match predicted {
            true => channels.open_session_predicted(),
            false => channels.open_session(),
        };
        for (name, value) in &self.config.env {
            channels.request(id, Request::Env(name.clone(), value.clone()), false);
        }
        channels.request(id, Request::Subsystem(b"sftp".to_vec()), true);
        self.channels.insert(id.0, Far::default());
        Some(ChannelId(id.0))
    }

    fn close_channel(&mut self, channel: ChannelId) {
        if self.channels.remove(&channel.0).is_some() {
            self.step_by_step = true;
            self.conn.channels().close(SshChannel(channel.0));
        }
    }

    fn ready(&mut self, _: Token, readable: bool, writable: bool) {
        self.readable |= readable;
        self.writable |= writable;
    }

    fn receive(&mut self, now: Instant, events: &mut Vec<LinkEvent>) -> Result<bool, LinkError> {
        match self.read(now, events) {
            // A server that is not OpenSSH behind OpenSSH's banner, or one whose key was taken
            // away, ends a connection that says too much too early.
            Err(e) if self.conn.is_early() => {
                self.restart(events, &e.0)?;
                Ok(true)
            }
            done => done,
        }
    }

    fn limit_receive(&mut self, bytes: usize) {
        self.segments.set_limit(Some(bytes));
    }

    fn room(&self, channel: ChannelId) -> usize {
        match self.channels.contains_key(&channel.0) {
            true => match self.conn.queued(SshChannel(channel.0)) {
                queued if queued > QUEUE / 2 => 0,
                queued => QUEUE - queued,
            },
            false => 0,
        }
    }

    fn send(&mut self, channel: ChannelId, output: Output) {
        let id = SshChannel(channel.0);
        match output {
            Output::Bytes(bytes) => self.conn.channels().write(id, &bytes),
            Output::Block(block) => self.conn.channels().write_block(id, block),
        }
    }

    fn flush(&mut self, _: Instant) -> Result<bool, LinkError> {
        let mut total = 0;
        while total < TURN {
            while self.sending_len < BATCH {
                let sealed = match self.conn.poll_output() {
                    Ok(Some(output)) => output.seal(),
                    Ok(None) => break,
                    Err(e) => Err(e),
                };
                let sealed = sealed.map_err(|e| engine_error(&e))?;
                self.sending_len += sealed.remaining().len();
                self.sending.push_back(sealed);
            }
            if self.sending.is_empty() || !self.writable {
                break;
            }
            let slices: Vec<IoSlice<'_>> = self
                .sending
                .iter()
                .take(64)
                .map(|s| IoSlice::new(s.remaining()))
                .collect();
            match self.stream.write(&slices) {
                Ok(n) => {
                    total += n;
                    self.sent(n);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                // Why it broke may be in what is still to be read: a DISCONNECT.
                Err(e) if self.readable => {
                    debug!("{}: {e}", self.config.name);
                    self.writable = false;
                }
                Err(e) => return Err(broken(&e)),
            }
        }
        Ok(total > 0)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.conn.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), LinkError> {
        self.conn.handle_timeout(now).map_err(|e| engine_error(&e))
    }

    fn finish(mut self: Box<Self>) {
        if self.conn.disconnect(BY_APPLICATION, "done").is_ok() {
            self.writable = true;
            let _ = self.flush(Instant::now());
        }
    }
}

impl SshLink {
    fn sent(&mut self, mut n: usize) {
        self.sending_len -= n.min(self.sending_len);
        while let Some(front) = self.sending.front_mut() {
            n -= front.advance(n);
            if !front.remaining().is_empty() {
                return;
            }
            self.sending.pop_front();
        }
    }
}

impl Far {
    /// Standard error, line by line; a line without an end is shown at 1,000 bytes.
    fn hear(&mut self, bytes: &[u8], events: &mut Vec<LinkEvent>) {
        for part in bytes.split_inclusive(|b| *b == b'\n') {
            self.errors.extend_from_slice(part);
            if part.ends_with(b"\n") || self.errors.len() > 1000 {
                let line = std::mem::take(&mut self.errors);
                let text = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
                if !text.is_empty() {
                    events.push(LinkEvent::Says(text));
                }
            }
        }
    }
}

fn error(what: &str) -> LinkError {
    LinkError(what.to_owned())
}

fn broken(e: &io::Error) -> LinkError {
    let why = crate::disk::os_words(e);
    LinkError(format!("the connection broke: {why}"))
}

fn engine_error(e: &ssh::Error) -> LinkError {
    LinkError(e.to_string())
}

fn engine(config: &ConnectionConfig, pool: &Pool) -> Result<Connection, LinkError> {
    let random = Box::new(|to: &mut [u8]| {
        aws_lc_rs::rand::fill(to).expect("the system's random numbers");
    });
    Connection::client(config.clone(), pool.clone(), random).map_err(|e| LinkError(e.to_string()))
}
