//! A server for one copy (`serve --once`): started over the user's own login, it accepts further
//! connections of that client, each with a key announced over that login, and ends with the login.
//! It stores nothing in files: docs/design/0010-direct.md.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ssh::direct_control::{
    self, DialReply, DirectClientMessage, DirectControlError, DirectListeningReply,
    DirectMessageSplitter, DirectRefusedReply, GrowingFileBlocks, KeysAccepted, MOST_ADDRESSES,
    ServerAddresses, TOKEN, VERSION,
};
use ssh::key::PrivateKey;
use tracing::info;

use super::accounts::AccessPolicy;
use super::connection_limiter::ConnectionLimiter;
use super::dialed::DialedConnectionSender;
use super::engine::OfferedAlgorithms;
use super::monitor_message_socket::readable;
use super::once_keys::OneLoginKeys;
use super::once_source::{self, DialError, ServedSources, SourceError};
use super::served::ServedPaths;
use super::{
    ConnectionLimits, ServedClientSettings, ServerSettings, SshServer, confine, hide_memory,
    stopping,
};
use crate::{Access, GrowingFileSpec};

/// Time in which the client that started the server must send its request.
const BEGIN: Duration = Duration::from_secs(30);
/// Time from the connection to the end of the login; equal to the life of a key.
const LOGIN: Duration = Duration::from_secs(30);
/// Time without connections after which the server ends. An sshd without keepalives keeps the
/// programs of a vanished client for hours.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Interval at which [`FORGOTTEN`] is checked.
const LOOK: Duration = Duration::from_secs(60);

/// Largest number of connections that are being opened at the same time.
const MOST_DIALS: usize = 16;

/// Limits for one copy, which has at most eight logins under way. Other clients may find the port too.
const LIMITS: ConnectionLimits = ConnectionLimits {
    connections: 64,
    unauthenticated: 16,
    unauthenticated_per_source: 10,
    source_block: sys::SourcePrefixLengths::DEFAULT,
    per_user: None,
    per_second: 64,
};

/// Settings of a server for one copy: the files, the port range and the address.
#[derive(Debug)]
pub struct SingleCopyServerSettings {
    /// Files that logged-in clients are served.
    pub served: ServedClientSettings,
    /// Port range in which to listen; any port if `None`.
    pub ports: Option<(u16, u16)>,
    /// SSH_CONNECTION as set by sshd.
    pub connection: Option<String>,
}

/// Reason why the server did not start or has ended. The reason was sent to the client if possible.
#[derive(Debug)]
pub enum OneLoginServerEnd {
    /// The client's request is invalid.
    Client(DirectControlError),
    /// The client sent no request in time.
    ClientTimeout,
    /// SSH_CONNECTION does not yield an address to listen on.
    Address(SshConnectionError),
    /// No port can be bound at this address.
    Port(IpAddr, io::Error),
    /// The allowed port range and the requested one do not overlap.
    Range((u16, u16), (u16, u16)),
    /// Too many keys are waiting to be used.
    Keys(&'static str),
    /// A local resource is missing.
    Local(String),
    /// The sources of a copy between two hosts cannot be served on their own.
    Source(SourceError),
}

impl fmt::Display for OneLoginServerEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(e) => write!(f, "serve --once: malformed message from the client: {e}"),
            Self::ClientTimeout => write!(
                f,
                "serve --once: no message from the client for {} s",
                BEGIN.as_secs()
            ),
            Self::Address(why) => why.fmt(f),
            Self::Port(at, e) => write!(f, "cannot listen on any port of {at}: {e}"),
            Self::Range((a, b), (from, to)) => write!(
                f,
                "the client requests ports {from} to {to}, but --port-range allows {a} to {b}"
            ),
            Self::Keys(why) => f.write_str(why),
            Self::Local(why) => f.write_str(why),
            Self::Source(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for OneLoginServerEnd {}

impl SingleCopyServerSettings {
    /// Serves until `input` ends or `output` is closed. The caller must exit then, because the
    /// threads of connections keep running.
    ///
    /// # Errors
    /// The reason why the server did not start or ended early.
    pub fn serve(self, input: File, output: File) -> Result<(), OneLoginServerEnd> {
        let mut control = ControlChannel {
            input,
            output,
            frames: DirectMessageSplitter::of_client(),
            marked: false,
            dialed: None,
            dialing: Arc::default(),
        };
        match self.serve_over(&mut control) {
            Err(why) => {
                let words = why.to_string();
                let refused = DirectRefusedReply {
                    version: VERSION,
                    why: words.as_bytes(),
                };
                // The client may have stopped reading.
                let _ = control.say(&refused.to_bytes());
                Err(why)
            }
            done => done,
        }
    }

    fn serve_over(mut self, control: &mut ControlChannel) -> Result<(), OneLoginServerEnd> {
        let local = |e: io::Error| OneLoginServerEnd::Local(e.to_string());
        hide_memory().map_err(local)?;
        confine::leave_no_core().map_err(local)?;
        let until = Instant::now() + BEGIN;
        let Some(asked) = control.first(until)? else {
            return Ok(());
        };
        let (asked, source) = self.take_source(control, asked, until)?;
        let Some(asked) = asked else {
            return Ok(());
        };
        let DirectClientMessage::Start {
            ports,
            bear_losses,
            keys,
        } = asked
        else {
            return Err(OneLoginServerEnd::Client(DirectControlError::Unexpected(
                direct_control::MoreLoginKeysRequest::NUMBER,
            )));
        };
        self.served.bear_losses = bear_losses;
        // Report a root that cannot be opened now, and not to each connection.
        let opened = self.served.open();
        drop(opened.map_err(|e| OneLoginServerEnd::Local(e.to_string()))?);
        let address = address(self.connection.as_deref()).map_err(OneLoginServerEnd::Address)?;
        let ports = both(self.ports, ports)?;
        let listener = match source {
            true => listen_anywhere(ports)?,
            false => listen(address, ports)?,
        };
        let port = listener.local_addr().map_err(local)?.port();
        let once = Arc::new(OneLoginKeys::default());
        once.add(Instant::now(), keys)
            .map_err(OneLoginServerEnd::Keys)?;
        let settings = settings(self.served, &once)?;
        let user = settings.entrance.name().unwrap_or_default().to_owned();
        let host_key = settings.host_key_blobs().concat();
        let mut server = SshServer::with_listener(listener, settings).map_err(local)?;
        if source {
            control.dialed = Some(server.serve_dialed().map_err(local)?);
            if control.tell_own_addresses().is_err() {
                return Ok(());
            }
        }
        let limiter = server.limiter.clone();
        let ended = accept(server).map_err(local)?;
        let listening = DirectListeningReply {
            version: VERSION,
            port: port.into(),
            user: user.as_bytes(),
            host_key: &host_key,
            software: env!("CARGO_PKG_VERSION").as_bytes(),
        };
        if control.say(&listening.to_bytes()).is_err() {
            return Ok(());
        }
        info!(%address, port, "waiting for connections of the client");
        control.follow(&ended, &once, &limiter)
    }
}

impl SingleCopyServerSettings {
    /// Takes the request to serve sources only, if `asked` is one. Returns the request behind it,
    /// and true if there was one.
    fn take_source(
        &mut self,
        control: &mut ControlChannel,
        asked: DirectClientMessage,
        until: Instant,
    ) -> Result<(Option<DirectClientMessage>, bool), OneLoginServerEnd> {
        let DirectClientMessage::Source {
            root,
            names,
            follow,
        } = asked
        else {
            return Ok((Some(asked), false));
        };
        let sources = once_source::check(&root, &names, follow);
        self.confine(sources.map_err(OneLoginServerEnd::Source)?, follow)?;
        match control.first(until)? {
            Some(DirectClientMessage::Growing(asked)) => {
                self.grow(asked)?;
                Ok((control.first(until)?, true))
            }
            next => Ok((next, true)),
        }
    }

    /// Limits the served files to the sources, read-only, in addition to the limits set by this
    /// machine's options. With `follows`, symlinks below the sources are followed.
    fn confine(&mut self, sources: ServedSources, follows: bool) -> Result<(), OneLoginServerEnd> {
        if self.served.root.is_some() || self.served.access == Access::WriteOnly {
            return Err(OneLoginServerEnd::Source(SourceError::Limited));
        }
        self.served.root = Some(sources.root);
        self.served.only = Some(ServedPaths {
            paths: sources.paths,
            follows,
        });
        self.served.access = Access::ReadOnly;
        Ok(())
    }
}

impl SingleCopyServerSettings {
    /// Serves the only source before it is complete.
    fn grow(&mut self, asked: GrowingFileBlocks) -> Result<(), OneLoginServerEnd> {
        let spec = GrowingFileSpec {
            size: asked.size,
            mode: asked.mode,
            mtime: asked.mtime,
            block: asked.block,
            hashes: asked.hashes,
        };
        let one = self
            .served
            .only
            .as_ref()
            .is_some_and(|only| only.paths.len() == 1);
        if !one || !spec.is_valid() {
            return Err(OneLoginServerEnd::Source(SourceError::Growing));
        }
        self.served.growing = Some(spec);
        Ok(())
    }
}

/// Accepts connections in a thread; the returned pipe closes when that thread ends.
fn accept(server: SshServer) -> io::Result<OwnedFd> {
    let (ended, ends) = io::pipe()?;
    let (running, never) = stopping()?;
    let thread = thread::Builder::new().name("accept".to_owned());
    thread.spawn(move || {
        let _ends = (ends, running);
        if let Err(e) = server.run(&never) {
            tracing::warn!("cannot accept direct connections: {e}");
        }
    })?;
    Ok(ended.into())
}

fn settings(
    mut served: ServedClientSettings,
    keys: &Arc<OneLoginKeys>,
) -> Result<ServerSettings, OneLoginServerEnd> {
    let local = |e: &dyn fmt::Display| OneLoginServerEnd::Local(e.to_string());
    // The root is a literal path here, so `%` is escaped.
    let plain = |root: PathBuf| {
        let bytes = root.into_os_string().into_encoded_bytes();
        let doubled = bytes.iter().flat_map(|b| match b {
            b'%' => vec![b'%'; 2],
            b => vec![*b],
        });
        let bytes: Vec<u8> = doubled.collect();
        PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes))
    };
    served.root = served.root.map(plain);
    let host_key = PrivateKey::generate_ed25519().map_err(|e| local(&e))?;
    Ok(ServerSettings {
        served,
        entrance: AccessPolicy::once(Arc::clone(keys)).map_err(|e| local(&e))?,
        keys: BTreeMap::new(),
        // The client is a longhaul, which names the best algorithms first, and may have been told
        // to name only others.
        algorithms: OfferedAlgorithms::all(),
        to_old_clients: None,
        limits: LIMITS,
        login_time: LOGIN,
        host_keys: vec![Arc::new(host_key)],
    })
}

/// The channel over which the client started this process.
struct ControlChannel {
    input: File,
    output: File,
    frames: DirectMessageSplitter,
    /// Takes the connections that the client asks for.
    dialed: Option<DialedConnectionSender>,
    /// Number of connections that are being opened.
    dialing: Arc<AtomicUsize>,
    /// The marker has been written.
    marked: bool,
}

/// Result of waiting for the client's next message on the control channel.
enum ControlReadOutcome {
    Message(DirectClientMessage),
    /// The deadline passed before a whole message arrived.
    TimedOut,
    /// The channel has ended.
    Closed,
}

impl ControlChannel {
    /// Tells the client the addresses of this machine.
    fn tell_own_addresses(&mut self) -> io::Result<()> {
        let own: Vec<String> = own_addresses().iter().map(ToString::to_string).collect();
        let own = direct_control::write_list(own.iter().map(|ip| ip.as_bytes()));
        self.say(&ServerAddresses { addresses: &own }.to_bytes())
    }

    /// Receives the client's next message, until `deadline`; ends early if `beside` becomes
    /// readable.
    fn next(
        &mut self,
        beside: Option<&OwnedFd>,
        deadline: Option<Instant>,
    ) -> Result<ControlReadOutcome, OneLoginServerEnd> {
        if let Some(asked) = self.received()? {
            return Ok(ControlReadOutcome::Message(asked));
        }
        let input = self.input.as_fd();
        let other = beside.map_or(input, |fd| fd.as_fd());
        let waited = readable([input, other], deadline);
        let [said, ended] = waited.map_err(|e| OneLoginServerEnd::Local(e.to_string()))?;
        if beside.is_some() && ended {
            let why = "the listener for direct connections stopped after an error".to_owned();
            return Err(OneLoginServerEnd::Local(why));
        }
        if !said {
            return Ok(ControlReadOutcome::TimedOut);
        }
        let mut bytes = [0; 4096];
        let read = match self.input.read(&mut bytes) {
            Ok(0) => return Ok(ControlReadOutcome::Closed),
            Ok(n) => bytes.get(..n).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                return Ok(ControlReadOutcome::TimedOut);
            }
            Err(_) => return Ok(ControlReadOutcome::Closed),
        };
        self.frames.push(read).map_err(OneLoginServerEnd::Client)?;
        Ok(self
            .received()?
            .map_or(ControlReadOutcome::TimedOut, ControlReadOutcome::Message))
    }

    /// Receives the next message that must come before `until`; `None` if the channel has ended.
    fn first(&mut self, until: Instant) -> Result<Option<DirectClientMessage>, OneLoginServerEnd> {
        loop {
            match self.next(None, Some(until))? {
                ControlReadOutcome::Message(asked) => return Ok(Some(asked)),
                ControlReadOutcome::TimedOut if Instant::now() >= until => {
                    return Err(OneLoginServerEnd::ClientTimeout);
                }
                ControlReadOutcome::TimedOut => {}
                ControlReadOutcome::Closed => return Ok(None),
            }
        }
    }

    fn received(&mut self) -> Result<Option<DirectClientMessage>, OneLoginServerEnd> {
        let message = self
            .frames
            .next_message()
            .map_err(OneLoginServerEnd::Client)?;
        let asked = message.map(|message| DirectClientMessage::decode(&message));
        asked.transpose().map_err(OneLoginServerEnd::Client)
    }

    fn say(&mut self, message: &[u8]) -> io::Result<()> {
        let mut bytes = match self.marked {
            true => Vec::new(),
            false => direct_control::marker().to_vec(),
        };
        self.marked = true;
        bytes.extend_from_slice(&direct_control::framed(message));
        self.output.write_all(&bytes)
    }

    /// Accepts further keys until the channel ends.
    fn follow(
        &mut self,
        ended: &OwnedFd,
        keys: &OneLoginKeys,
        limiter: &ConnectionLimiter,
    ) -> Result<(), OneLoginServerEnd> {
        let mut used = Instant::now();
        loop {
            let now = Instant::now();
            if limiter.counted().0 > 0 {
                used = now;
            }
            if now >= used + FORGOTTEN {
                let why = "no direct connection was made for a long time, so this server ends; a \
                    firewall may block its port"
                    .to_owned();
                return Err(OneLoginServerEnd::Local(why));
            }
            match self.next(Some(ended), Some(now + LOOK))? {
                ControlReadOutcome::TimedOut => {}
                ControlReadOutcome::Closed => return Ok(()),
                ControlReadOutcome::Message(DirectClientMessage::MoreKeys {
                    number,
                    keys: more,
                }) => {
                    keys.add(Instant::now(), more)
                        .map_err(OneLoginServerEnd::Keys)?;
                    if self.say(&KeysAccepted { number }.to_bytes()).is_err() {
                        return Ok(());
                    }
                    used = Instant::now();
                }
                ControlReadOutcome::Message(DirectClientMessage::Dial {
                    number,
                    addresses,
                    token,
                }) if self.dialed.is_some() => {
                    used = Instant::now();
                    self.dial(number, addresses, token)?;
                }
                ControlReadOutcome::Message(other) => {
                    let number = match other {
                        DirectClientMessage::Source { .. } => {
                            direct_control::RestrictSourcesRequest::NUMBER
                        }
                        DirectClientMessage::Dial { .. } => direct_control::DialRequest::NUMBER,
                        DirectClientMessage::Growing(_) => direct_control::GrowingSource::NUMBER,
                        _ => direct_control::DirectStartRequest::NUMBER,
                    };
                    return Err(OneLoginServerEnd::Client(DirectControlError::Unexpected(
                        number,
                    )));
                }
            }
        }
    }
}

impl ControlChannel {
    /// Connects to the receiving host on a thread, which hands the connection to the server and
    /// answers.
    fn dial(
        &mut self,
        number: u32,
        addresses: Vec<SocketAddr>,
        token: [u8; TOKEN],
    ) -> Result<(), OneLoginServerEnd> {
        let local = |e: io::Error| OneLoginServerEnd::Local(e.to_string());
        let Some(dialed) = &self.dialed else {
            return Ok(());
        };
        if self.dialing.load(Ordering::SeqCst) >= MOST_DIALS {
            let refused = DialReply {
                number,
                why: b"this machine is opening too many connections at once",
            };
            return self.say(&refused.to_bytes()).map_err(local);
        }
        let dialed = dialed.try_clone().map_err(local)?;
        let mut output = self.output.try_clone().map_err(local)?;
        let count = Arc::clone(&self.dialing);
        count.fetch_add(1, Ordering::SeqCst);
        let one_machine = once_source::came_over_loopback();
        let thread = thread::Builder::new().name("dial".to_owned());
        thread
            .spawn(move || {
                let done = once_source::dial(&addresses, &token, one_machine).and_then(
                    |(stream, peer)| {
                        let handed = dialed.hand_over(stream, peer);
                        handed.map_err(DialError::HandOver)
                    },
                );
                count.fetch_sub(1, Ordering::SeqCst);
                let why = done.err().map_or_else(String::new, |e| e.to_string());
                let reply = DialReply {
                    number,
                    why: why.as_bytes(),
                };
                // One write below PIPE_BUF does not mix with the messages of the other thread. A
                // client that has gone needs no answer.
                let _ = output.write_all(&direct_control::framed(&reply.to_bytes()));
            })
            .map_err(local)?;
        Ok(())
    }
}

/// Listens on all addresses of this machine.
fn listen_anywhere(ports: Option<(u16, u16)>) -> Result<TcpListener, OneLoginServerEnd> {
    listen((Ipv6Addr::UNSPECIFIED, 0).into(), ports)
        .or_else(|_| listen((Ipv4Addr::UNSPECIFIED, 0).into(), ports))
}

/// Returns the address at which sshd was reached, if this process was started through one, and the
/// others of this machine.
pub fn own_addresses() -> Vec<IpAddr> {
    let connection = env::var("SSH_CONNECTION").ok();
    let reached = address(connection.as_deref()).ok().map(|at| at.ip());
    let mut all: Vec<IpAddr> = Vec::new();
    for ip in reached
        .into_iter()
        .chain(sys::own_addresses(MOST_ADDRESSES))
    {
        if all.len() < MOST_ADDRESSES && !all.contains(&ip) {
            all.push(ip);
        }
    }
    all
}

/// Intersects the port range that this end allows with the requested one.
fn both(
    here: Option<(u16, u16)>,
    asked: Option<(u16, u16)>,
) -> Result<Option<(u16, u16)>, OneLoginServerEnd> {
    let (Some(a), Some(b)) = (here, asked) else {
        return Ok(here.or(asked));
    };
    let common = (a.0.max(b.0), a.1.min(b.1));
    match common.0 <= common.1 {
        true => Ok(Some(common)),
        false => Err(OneLoginServerEnd::Range(a, b)),
    }
}

/// Binds a random port of the range, or one that the system chooses if there is no range.
fn listen(at: SocketAddr, ports: Option<(u16, u16)>) -> Result<TcpListener, OneLoginServerEnd> {
    let with = |port: u16| {
        let mut at = at;
        at.set_port(port);
        TcpListener::bind(at)
    };
    let Some((first, last)) = ports else {
        return with(0).map_err(|e| OneLoginServerEnd::Port(at.ip(), e));
    };
    // Start at a random port, so that two simultaneous clients do not try the same ones.
    let mut random = [0; 2];
    let _ = aws_lc_rs::rand::fill(&mut random);
    let count = u32::from(last - first) + 1;
    let start = u32::from(u16::from_ne_bytes(random)) % count;
    let mut why = io::Error::from(io::ErrorKind::AddrInUse);
    for offset in 0..count {
        // The result fits in 16 bits because it is below the size of the range.
        let port = first + ((start + offset) % count) as u16;
        match with(port) {
            Ok(listener) => return Ok(listener),
            Err(e) => why = e,
        }
    }
    Err(OneLoginServerEnd::Port(at.ip(), why))
}

/// Reason why SSH_CONNECTION does not yield an address to listen on.
#[derive(Debug, PartialEq, Eq)]
pub enum SshConnectionError {
    /// The variable is not set.
    Missing,
    /// The variable has this value, shortened.
    Unusable(String),
}

impl fmt::Display for SshConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str(
                "SSH_CONNECTION is not set: serve --once must be started through an sshd",
            ),
            Self::Unusable(value) => write!(
                f,
                "SSH_CONNECTION has no valid server address: {}",
                wire::escape::name(value.as_bytes())
            ),
        }
    }
}

/// Address that sshd was reached at: the third word of SSH_CONNECTION (ssh(1)).
fn address(connection: Option<&str>) -> Result<SocketAddr, SshConnectionError> {
    let connection = connection.ok_or(SshConnectionError::Missing)?;
    let wrong = || SshConnectionError::Unusable(connection.chars().take(200).collect());
    let word = connection.split_ascii_whitespace().nth(2);
    let word = word.ok_or_else(wrong)?;
    if let Ok(ip) = word.parse::<IpAddr>() {
        return Ok((ip, 0).into());
    }
    // A link-local address has the name of its interface appended. A string with a colon is not
    // sent to a name server.
    let (ip, link) = word.split_once('%').ok_or_else(wrong)?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if !ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) || !link.bytes().all(plain) {
        return Err(wrong());
    }
    let found = (word, 0).to_socket_addrs().map_err(|_| wrong())?.next();
    found.ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_waits_where_its_sshd_was_reached() {
        let at = |text| address(Some(text)).map(|at| at.to_string());
        assert_eq!(
            at("198.51.100.7 50000 192.0.2.2 22").unwrap(),
            "192.0.2.2:0"
        );
        assert_eq!(
            at("2001:db8::1 50000 2001:db8::2 22").unwrap(),
            "[2001:db8::2]:0"
        );
        assert!(
            at("fe80::1%lo 50000 fe80::2%lo 22")
                .unwrap()
                .starts_with("[fe80::2%")
        );
        for wrong in [
            "",
            "UNKNOWN 65535 UNKNOWN 65535",
            "1.2.3.4 1",
            "1.2.3.4 1 example.org 22",
            "1.2.3.4 1 192.0.2.2%lo 22",
            "fe80::1 1 fe80::2%l/o 22",
        ] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
        assert!(address(None).is_err());
    }

    #[test]
    fn ports_are_those_that_both_ends_want() {
        assert_eq!(both(None, None).unwrap(), None);
        assert_eq!(both(Some((1, 2)), None).unwrap(), Some((1, 2)));
        assert_eq!(both(None, Some((1, 2))).unwrap(), Some((1, 2)));
        assert_eq!(both(Some((1, 5)), Some((4, 9))).unwrap(), Some((4, 5)));
        assert!(both(Some((1, 3)), Some((4, 9))).is_err());
    }

    #[test]
    fn a_port_that_is_taken_is_passed_over() {
        let here = SocketAddr::from(([127, 0, 0, 1], 0));
        let taken = TcpListener::bind(here).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert!(matches!(
            listen(here, Some((port, port))),
            Err(OneLoginServerEnd::Port(..))
        ));
        let range = (port.saturating_sub(20), port.saturating_add(20));
        let found = listen(here, Some(range)).unwrap();
        let found = found.local_addr().unwrap().port();
        assert!(found != port && (range.0..=range.1).contains(&found));
    }
}
