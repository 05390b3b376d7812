//! Direct connections to a `longhaul serve --once` that was started over a login of the server's
//! sshd: docs/design/0010-direct.md.

mod auth_handler;
mod between;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sftp::ServerInfo;
use ssh::ConnectionConfig;
use ssh::channel::ChannelsConfig;
use ssh::direct_control::{
    self, DirectControlError, DirectMessageSplitter, DirectServerMessage, DirectStartRequest,
    MoreLoginKeysRequest, VERSION,
};
use ssh::key::{PrivateKey, PublicKey};
use ssh::transport::{DisabledProtection, KexGuess, TransportConfig};
use sys::{Keepalive, SocketTuning};
use tracing::debug;

use self::auth_handler::DirectAuthHandler;
use self::between::HostToHostDialer;
pub use self::between::{HostToHostConnector, HostToHostSettings, SourceConnectionInfo};
use super::error::{ConnectError, ConnectStep, ResponsibleParty};
use super::host::SharedConnectSettings;
use super::proposing::AlgorithmPreferences;
use super::remote_use::{self, RemoteLonghaulPolicy};
use super::ssh_link::{
    BulkDirection, FirstJobTime, LinkRole, LoginLimits, SshLink, SshLinkSettings,
};
use super::stream::ConnectedStream;
use super::tcp::{DialError, TcpConnectSettings};
use crate::config::{ConnectTimeout, HostConfig, RekeyLimit, SshOptionFlags};
use crate::escape;
use crate::memory::HostMemory;
use crate::session::{
    ControlSender, DirectServerLauncher, DirectServerStatus, FurtherConnectionError, Link,
    RemoteLonghaulKnowledge,
};

/// The number of keys registered at first: a copy starts with at most that many connections.
const FIRST_KEYS: usize = 4;
/// Time for which a registered key is used. The far end forgets a key after 30 s, and the login
/// needs part of that time.
const KEY_LIFE: Duration = Duration::from_secs(20);
/// Time in which the far end must confirm further keys.
const TAKEN: Duration = Duration::from_secs(10);
/// The base of the connect timeout, to which three round trips are added. A packet filter that
/// drops is noticed this way; a lost first SYN is repeated after one second.
const CONNECT: Duration = Duration::from_secs(1);
const CONNECT_ROUND_TRIPS: u32 = 3;
/// The base of the login timeout, to which [`LOGIN_ROUND_TRIPS`] round trips are added.
const LOGIN: Duration = Duration::from_secs(5);
const LOGIN_ROUND_TRIPS: u32 = 8;

/// The version of this program.
const VERSION_HERE: &str = env!("CARGO_PKG_VERSION");

/// Called with true when a direct connection succeeded, and with false when the host or the path to
/// it does not allow one.
pub(super) type DirectOutcomeHook = Box<dyn Fn(bool) + Send + Sync>;

/// The settings for direct connections.
#[derive(Clone, Debug)]
pub(super) struct DirectConnectionConfig {
    /// The host as the user wrote it.
    name: String,
    tuning: SocketTuning,
    /// The allowed algorithms, equal to those of the login connection.
    secured: AlgorithmPreferences,
    /// The RekeyLimit setting.
    rekey: RekeyLimit,
    /// The BindAddress setting.
    bind: Option<IpAddr>,
    window_poll: bool,
    /// True if the far end's sockets may use a loss-tolerant congestion control.
    bear_losses: bool,
    /// The user requires direct connections.
    insisted: bool,
    /// The checksum of the program that `longhaul bootstrap` sent to the host.
    placed: Option<String>,
}

impl DirectConnectionConfig {
    /// Settings beside a login with these settings, whose connection may use the algorithms
    /// `secured`. `memory` is what is remembered about the host.
    pub(super) fn beside(
        config: &HostConfig,
        around: &SharedConnectSettings,
        secured: AlgorithmPreferences,
        memory: Option<&HostMemory>,
    ) -> Self {
        let bind = config.bind_address.as_ref();
        Self {
            secured,
            rekey: config.rekey,
            name: escape::name(config.host.as_bytes()).to_string(),
            tuning: SocketTuning {
                dscp: around.dscp,
                keepalive: Keepalive::with_kernel_times(config.has(SshOptionFlags::TCP_KEEP_ALIVE)),
                congestion: around.congestion.clone(),
                ..SocketTuning::default()
            },
            window_poll: around.window_poll,
            bind: bind.and_then(|text| text.parse().ok()),
            bear_losses: around.congestion.is_none(),
            insisted: around.far == RemoteLonghaulPolicy::Direct,
            placed: remote_use::placed(memory).map(str::to_owned),
        }
    }
}

/// Opens direct connections; see [`DirectServerLauncher`].
pub(super) struct DirectConnector {
    config: DirectConnectionConfig,
    /// Returns the address of the login's TCP connection once it is known. The far end's own
    /// statement about its address is not used.
    peer: Box<dyn Fn() -> Option<SocketAddr> + Send + Sync>,
    noted: DirectOutcomeHook,
    state: Mutex<DirectServerState>,
    changed: Condvar,
    /// Opens the connections of a copy between two hosts.
    opener: Option<Arc<HostToHostDialer>>,
}

#[derive(Default)]
struct DirectServerState {
    outlet: Option<ControlSender>,
    frames: Option<DirectMessageSplitter>,
    server: Option<DirectServerInfo>,
    /// Keys that the far end has confirmed, with the time of registration.
    keys: Vec<(PrivateKey, Instant)>,
    /// Numbers of the key messages that the far end has answered.
    taken: BTreeSet<u32>,
    /// The number of the last key message that was sent.
    number: u32,
    /// The reason why no further direct connection is tried.
    failed: Option<String>,
}

#[derive(Clone)]
struct DirectServerInfo {
    address: SocketAddr,
    user: String,
    host_key: PublicKey,
    software: String,
    rtt: Duration,
}

impl DirectConnector {
    pub(super) fn new(
        config: DirectConnectionConfig,
        peer: Box<dyn Fn() -> Option<SocketAddr> + Send + Sync>,
        noted: DirectOutcomeHook,
    ) -> Self {
        Self {
            config,
            peer,
            noted,
            state: Mutex::default(),
            changed: Condvar::new(),
            opener: None,
        }
    }

    /// True if another direct connection can be opened.
    pub(super) fn is_open(&self) -> bool {
        let state = self.lock();
        state.server.is_some() && state.failed.is_none()
    }

    /// Opens one more connection and authenticates it.
    pub(super) fn connect(&self) -> Result<Box<dyn Link>, FurtherConnectionError> {
        let tried = self
            .key()
            .and_then(|(server, key)| self.log_in(server, key));
        match tried {
            Ok(link) => {
                (self.noted)(true);
                Ok(Box::new(link))
            }
            Err(error) => {
                // A failure of this machine says nothing about the host.
                let is_local = error.fault() == ResponsibleParty::ThisMachine;
                if self.fail(&error.to_string()) && !is_local {
                    (self.noted)(false);
                }
                Err(FurtherConnectionError::Connection(error.into()))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, DirectServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops direct connections for the rest of this copy; true if they had not been stopped
    /// before.
    fn fail(&self, why: &str) -> bool {
        let mut state = self.lock();
        let new = state.failed.is_none();
        if new {
            debug!("{}: no direct connection: {why}", self.config.name);
            state.failed = Some(why.to_owned());
        }
        state.keys.clear();
        self.changed.notify_all();
        new
    }

    /// Returns a key that the far end has confirmed, waiting for one if necessary.
    fn key(&self) -> Result<(DirectServerInfo, PrivateKey), ConnectError> {
        let mut state = self.lock();
        if let Some(why) = &state.failed {
            return Err(not_served(why.as_str()));
        }
        let server = state.server.clone();
        let server = server.ok_or_else(|| not_served("the far end has not answered yet"))?;
        let fresh = |(_, since): &(PrivateKey, Instant)| since.elapsed() < KEY_LIFE;
        state.keys.retain(fresh);
        if let Some((key, _)) = state.keys.pop() {
            return Ok((server, key));
        }
        let key = new_key()?;
        state.number += 1;
        let number = state.number;
        let keys = direct_control::write_keys([key.public_blob()]);
        let message = direct_control::framed(
            &MoreLoginKeysRequest {
                number,
                keys: &keys,
            }
            .to_bytes(),
        );
        let outlet = state.outlet.as_ref();
        let outlet =
            outlet.ok_or_else(|| not_served("the control channel to the far end was closed"))?;
        outlet(message);
        let until = Instant::now() + TAKEN;
        while !state.taken.remove(&number) {
            if let Some(why) = &state.failed {
                return Err(not_served(why.as_str()));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(not_served(
                    "longhaul at the far end did not confirm the direct connection in time",
                ));
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok((server, key))
    }

    fn log_in(&self, server: DirectServerInfo, key: PrivateKey) -> Result<SshLink, ConnectError> {
        let (dial, address) = (self.dial(server.rtt), server.address);
        let between = self.opener.clone();
        let open = Box::new(move || {
            if let Some(opener) = &between {
                return opener.open().map(ConnectedStream::Tcp);
            }
            let (host, port) = (address.ip().to_string(), address.port());
            let stream = match address {
                // The socket address keeps the IPv6 scope ID.
                SocketAddr::V6(_) => dial.connect_to(&[address]),
                SocketAddr::V4(_) => dial.connect(&host, port),
            };
            let failed = |e| ConnectError::not_connected(&e, unreached(&e, address));
            stream.map(ConnectedStream::Tcp).map_err(failed)
        });
        let login = LOGIN + server.rtt * LOGIN_ROUND_TRIPS;
        let config = self.link(&server, login);
        let auth_handler = DirectAuthHandler::new(server.user, server.host_key, key);
        let mut link = SshLink::connect(config, open, Box::new(auth_handler))?;
        link.try_once(FirstJobTime::WithLogin);
        // The host key was announced over the login connection, and the far end knows the client
        // key, so requests can follow authentication without waiting for its result. Between two
        // hosts the copy begins only once the way is known to work.
        link.establish(self.opener.is_none())?;
        Ok(link)
    }

    fn dial(&self, rtt: Duration) -> TcpConnectSettings {
        TcpConnectSettings {
            timeout: Some(ConnectTimeout::Fixed(CONNECT + rtt * CONNECT_ROUND_TRIPS)),
            tuning: self.config.tuning.clone(),
            bind: self.config.bind,
            ..TcpConnectSettings::default()
        }
    }

    /// Builds the link's configuration: the far end's properties are known, and the algorithms are
    /// those that the user allows.
    fn link(&self, server: &DirectServerInfo, login: Duration) -> SshLinkSettings {
        let owned = |name: &str| name.to_owned();
        let host_key = &server.host_key;
        // A server of exactly this version sends the same identification and accepts the same
        // features.
        let same = server.software == VERSION_HERE;
        let banner = concat!("SSH-2.0-longhaul_", env!("CARGO_PKG_VERSION"));
        let host_key = host_key.algorithms().into_iter().map(owned).collect();
        let proposal = self.config.secured.propose(host_key);
        SshLinkSettings {
            name: self.config.name.clone(),
            port: None,
            connection: ConnectionConfig {
                transport: TransportConfig {
                    software: concat!("longhaul_", env!("CARGO_PKG_VERSION")).to_owned(),
                    proposal,
                    guess: KexGuess::Remembered,
                    rekey_bytes: self.config.rekey.bytes,
                    rekey_time: self.config.rekey.time,
                    host_keys: Vec::new(),
                },
                channels: ChannelsConfig::default(),
                alive_interval: None,
                alive_count: 3,
            },
            remembered: same.then(|| (owned(banner), ServerInfo::of_longhaul())),
            far: RemoteLonghaulKnowledge::Server,
            served_by: Vec::new(),
            env: Vec::new(),
            limits: LoginLimits::new(Some(ConnectTimeout::Fixed(login)), false),
            renounced: DisabledProtection::Nothing,
            window_poll: self.config.window_poll,
            role: LinkRole::Direct,
            serving: None,
            bulk: BulkDirection::Neither,
            chose_zlib: false,
            forward: None,
            opened: None,
            track: None,
        }
    }

    fn answered(&self, message: &[u8], rtt: Duration) -> Result<bool, ConnectError> {
        match DirectServerMessage::decode(message).map_err(|e| not_served(e.to_string()))? {
            DirectServerMessage::Listening {
                port,
                user,
                host_key,
                software,
            } => {
                let peer = (self.peer)();
                let mut address =
                    peer.ok_or_else(|| not_served("the address of the host is unknown"))?;
                address.set_port(port);
                if let Some(opener) = &self.opener {
                    opener.listens(port);
                }
                let mut state = self.lock();
                if state.server.is_some() {
                    return Err(not_served(
                        "protocol error: longhaul at the far end answered twice",
                    ));
                }
                debug!("{}: direct connections to {address}", self.config.name);
                state.server = Some(DirectServerInfo {
                    address,
                    user,
                    host_key,
                    software,
                    rtt,
                });
                Ok(true)
            }
            DirectServerMessage::Refused(why) => {
                Err(not_served(escape::text(why.as_bytes()).to_string()))
            }
            DirectServerMessage::KeysAccepted(number) => {
                let mut state = self.lock();
                if number > 0 && number <= state.number {
                    state.taken.insert(number);
                    self.changed.notify_all();
                }
                Ok(false)
            }
            DirectServerMessage::Addresses(own) => {
                if let Some(opener) = &self.opener {
                    opener.learn_addresses(&own);
                }
                Ok(false)
            }
            DirectServerMessage::Dialed(number, why) => {
                if let Some(opener) = &self.opener {
                    let why = why.map(|why| escape::text(why.as_bytes()).to_string());
                    opener.dialed(number, why);
                }
                Ok(false)
            }
        }
    }
}

impl DirectServerLauncher for DirectConnector {
    fn begin(&self, outlet: ControlSender) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut state = self.lock();
        if state.failed.is_some() {
            return None;
        }
        let keys = (0..FIRST_KEYS).map(|_| new_key().map(|key| (key, Instant::now())));
        let keys: Vec<_> = keys.collect::<Result<_, _>>().ok()?;
        let blobs = direct_control::write_keys(keys.iter().map(|(key, _)| key.public_blob()));
        let begin = DirectStartRequest {
            version: VERSION,
            first_port: 0,
            last_port: 0,
            bear_losses: self.config.bear_losses,
            keys: &blobs,
        };
        *state = DirectServerState {
            outlet: Some(outlet),
            frames: Some(DirectMessageSplitter::of_server()),
            keys,
            ..DirectServerState::default()
        };
        let placed = self.config.placed.as_deref();
        Some((
            remote_use::command_once(placed),
            direct_control::framed(&begin.to_bytes()),
        ))
    }

    fn insists(&self) -> bool {
        self.config.insisted
    }

    fn heard(&self, bytes: &[u8], rtt: Duration) -> DirectServerStatus {
        let mut listens = false;
        let Some(mut frames) = self.lock().frames.take() else {
            return DirectServerStatus::Nothing;
        };
        let wrong = |e: DirectControlError| not_served(e.to_string());
        let mut read = || -> Result<(), ConnectError> {
            frames.push(bytes).map_err(wrong)?;
            while let Some(message) = frames.next_message().map_err(wrong)? {
                listens |= self.answered(&message, rtt)?;
            }
            Ok(())
        };
        match read() {
            Ok(()) => {
                self.lock().frames = Some(frames);
                match listens {
                    true => DirectServerStatus::Listening,
                    false => DirectServerStatus::Nothing,
                }
            }
            Err(error) => {
                let why = String::from(error);
                self.fail(&why);
                DirectServerStatus::Failed(why)
            }
        }
    }

    fn control_closed(&self, why: &str) {
        self.fail(why);
    }

    fn lost(&self) {
        *self.lock() = DirectServerState::default();
        self.changed.notify_all();
    }

    fn life_sign(&self) -> Vec<u8> {
        let more = MoreLoginKeysRequest {
            number: 0,
            keys: b"",
        };
        direct_control::framed(&more.to_bytes())
    }

    fn failed(&self) -> Option<String> {
        self.lock().failed.clone()
    }

    fn software(&self) -> Option<String> {
        let state = self.lock();
        Some(state.server.as_ref()?.software.clone())
    }
}

fn new_key() -> Result<PrivateKey, ConnectError> {
    let key = PrivateKey::generate_ed25519();
    key.map_err(|e| ConnectError::this_machine(ConnectStep::Configuration, e.to_string()))
}

/// Returns the error for a far end that does not serve direct connections.
fn not_served(text: impl Into<String>) -> ConnectError {
    ConnectError::new(ResponsibleParty::Host, ConnectStep::Session, text)
}

fn unreached(e: &DialError, address: SocketAddr) -> String {
    match e {
        DialError::TimedOut(after) => format!(
            "{address} did not answer within {:.1} s; a firewall may drop the packets",
            after.time().as_secs_f64()
        ),
        DialError::Unreachable(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
            format!(
                "{address} refused the connection; a firewall or address translation may block it"
            )
        }
        DialError::Unreachable(e) => format!("cannot connect to {address}: {e}"),
        DialError::Unresolved(_) | DialError::NoAddress(_) => e.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// Returns the outcomes that are remembered of a connection to a port of this machine.
    fn remembered(bind: Option<IpAddr>, address: SocketAddr) -> Vec<bool> {
        let algorithms = r#"{"kex":["curve25519-sha256"],"ciphers":["aes128-gcm@openssh.com"],
            "macs":["hmac-sha2-256"]}"#;
        let config = DirectConnectionConfig {
            name: "host".to_owned(),
            tuning: SocketTuning::default(),
            secured: serde_json::from_str(algorithms).unwrap(),
            rekey: RekeyLimit::default(),
            bind,
            window_poll: false,
            bear_losses: false,
            insisted: false,
            placed: None,
        };
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&outcomes);
        let noted = Box::new(move |is_possible| noted.lock().unwrap().push(is_possible));
        let direct = DirectConnector::new(config, Box::new(|| None), noted);
        *direct.lock() = DirectServerState {
            server: Some(DirectServerInfo {
                address,
                user: "user".to_owned(),
                host_key: new_key().unwrap().public().clone(),
                software: VERSION_HERE.to_owned(),
                rtt: Duration::ZERO,
            }),
            keys: vec![(new_key().unwrap(), Instant::now())],
            ..DirectServerState::default()
        };
        assert!(direct.connect().is_err());
        outcomes.lock().unwrap().clone()
    }

    /// Bug: a BindAddress that this machine does not have, or a lack of descriptors here, kept later
    /// copies from direct connections to the host for a day.
    #[test]
    fn a_failure_of_this_machine_was_remembered_of_the_host() {
        let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = closed.local_addr().unwrap();
        drop(closed);
        assert_eq!(remembered(None, address), [false]);
        let elsewhere = Ipv4Addr::new(192, 0, 2, 1).into();
        assert!(remembered(Some(elsewhere), address).is_empty());
    }
}
