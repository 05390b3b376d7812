//! A host as ssh_config and the command line describe it, reached and ready for a session.

use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use socket2::SockRef;
use ssh::ConnectionConfig;
use ssh::channel::ChannelsConfig;
use ssh::key::{HOST_KEY_ALGORITHMS, PublicKey};
use ssh::transport::{DisabledProtection, TransportConfig};
use sys::Tuning;
use tracing::{debug, warn};

use super::host_auth_handler::{HostAuthHandler, SharedPrompt, memory_name};
use super::jump;
use super::passing::passed_socket;
use super::preconnect::{ConnectionHold, PlannedUpload};
use super::proposing::{propose, remembered};
use super::proxy_process::ProxyProcess;
use super::remote_use::{self, RemoteServerUse};
use super::segments;
use super::serving::Serving;
use super::ssh_link::{Facts, LinkConfig, Opener, SshLink};
use super::stream::Stream;
use super::tcp::{Dial, Family};
use crate::config::{AddressFamily, ForwardAgent, HostConfig, Proxy};
use crate::escape;
use crate::known_hosts::{KnownHosts, RevokedKeys};
use crate::memory::{HostMemory, MemoryStore};
use crate::operand::Destination;
use crate::report::{Sample, ZlibWhy};
use crate::session::{Known, LinkError};

/// Hops of ProxyJump at most; OpenSSH has no bound, a loop in a configuration has no end.
const MAX_HOPS: usize = 16;

/// Finds the configuration of a host.
pub type Resolve = dyn Fn(&Destination) -> Result<HostConfig, String> + Send + Sync;

/// Takes a quick look at the data that are to be sent to a host; why not, where it cannot.
pub type Look = dyn Fn() -> Result<Sample, ZlibWhy> + Send + Sync;

/// What all hosts of a run share.
#[derive(Clone)]
pub struct Surroundings {
    /// Who is asked.
    pub prompt: SharedPrompt,
    /// What is remembered of hosts.
    pub memories: Option<MemoryStore>,
    /// Forward the agent (`-A`); as for scp, what ssh_config says does not.
    pub forward_agent: bool,
    /// The mark on packets, 0 to 63.
    pub dscp: u8,
    /// TCP's congestion control on this end's sockets; the system's own if not set.
    pub congestion: Option<String>,
    /// What is done without behind the login, where the server was told the same; not with hosts
    /// that are only passed through.
    pub renounced: DisabledProtection,
    /// Windows follow the round trip and the socket, of which the kernel is asked now and then.
    pub window_poll: bool,
    /// Told once a host's connection is open; not of hosts that are only passed through. From any
    /// thread.
    pub opened: Arc<dyn Fn(Facts) + Send + Sync>,
    /// Whether data connections may go straight to a longhaul at the far end.
    pub direct: bool,
    /// The configuration of a host of ProxyJump.
    pub hop: Arc<Resolve>,
    /// Whether a longhaul at the far end is used.
    pub far: RemoteServerUse,
    /// Every path there is absolute: it is no matter where relative ones begin.
    pub absolute: bool,
    /// Where zlib may be asked for by itself: with what is to be sent looked at first. Not with
    /// hosts that are only passed through.
    pub look: Option<Arc<Look>>,
    /// As much will be sent ([`crate::sample::is_much`]) as makes TCP's slow start worth beginning
    /// before the login is over; not over hosts that are only passed through.
    pub sends_much: bool,
    /// What will be sent, for which further connections may be begun before the first one has logged in.
    pub sends: Option<PlannedUpload>,
    /// The connection beside which another is made, to the same host.
    pub beside: Option<RequiredMatch>,
    /// Nothing is chosen by what is remembered or measured: a connection with such a choice failed.
    pub plain: bool,
}

/// What a further connection must have in common with the first.
#[derive(Clone, Debug)]
pub struct RequiredMatch {
    /// The address, where it was a TCP connection: a name may have several, of several hosts.
    pub address: Option<IpAddr>,
    /// The host key.
    pub host_key: FirstHostKey,
    /// What serves there.
    pub serving: Serving,
    /// The round trip, where one less for a login is worth more than what data lose by it
    /// (`connect/segments.rs`).
    pub rtt: Option<Duration>,
}

/// The first connection's host key.
#[derive(Clone, Debug)]
pub enum FirstHostKey {
    /// Its blob.
    Known(Vec<u8>),
    /// It is told when it is time to log in.
    Awaited(Arc<ConnectionHold>),
}

pub(super) fn establish(link: &mut SshLink, host: &str, early: bool) -> Result<(), String> {
    let name = escape::name(host.as_bytes());
    link.establish(early).map_err(|e| format!("{name}: {e}"))
}

pub(super) fn start(
    config: HostConfig,
    around: &Surroundings,
    hops: usize,
) -> Result<(SshLink, bool), String> {
    if hops > MAX_HOPS {
        return Err(format!(
            "{}: more than {MAX_HOPS} hops (ProxyJump)",
            config.host
        ));
    }
    // Beside another connection all of it was said before.
    let again = around.beside.is_some();
    for warning in config.warnings.iter().filter(|_| !again) {
        warn_user(&config, around, warning);
    }
    for note in config.notes.iter().filter(|_| !again) {
        debug!("{note}");
    }
    let mut known = known_hosts(&config);
    if !config.revoked_host_keys.is_empty() {
        known.revoke(RevokedKeys::load(&config.revoked_host_keys)?);
    }
    let aged = around
        .memories
        .as_ref()
        .and_then(|m| m.load_aged(memory_name(&config), SystemTime::now()));
    let aged = aged.as_ref().map(|(memory, age)| (memory, *age));
    let trusted = aged.filter(|_| !around.plain);
    let look = around.look.as_ref().filter(|_| hops == 0 && !around.plain);
    let (mut proposal, reasons) = propose(&config, &known, trusted, around, look)?;
    let guess = reasons.guess;
    let memory = aged.map(|(memory, _)| memory.clone());
    if let Some(beside) = around.beside.as_ref().filter(|_| hops == 0)
        && let FirstHostKey::Known(blob) = &beside.host_key
        && let Ok(key) = PublicKey::from_blob(blob)
    {
        // A host has keys of several types, and the first connection's must come again.
        let plain_type = |name: &String| {
            let row = HOST_KEY_ALGORITHMS.iter().find(|a| a.name == name);
            row.map(|a| a.plain_type)
        };
        let other = |name: &String| plain_type(name) != Some(key.key_type());
        proposal.host_key.sort_by_key(other);
    }
    let rtt = match &around.beside {
        Some(beside) if hops == 0 => beside.rtt,
        _ => memory.as_ref().and_then(HostMemory::rtt),
    };
    let mss = segments::asked(guess, proposal.kex.first(), proposal.host_key.first(), rtt);
    let proven = memory.as_ref().is_some_and(|m| m.accepted_key.is_some());
    let link = LinkConfig {
        name: escape::name(config.host.as_bytes()).to_string(),
        connection: ConnectionConfig {
            transport: TransportConfig {
                software: concat!("longhaul_", env!("CARGO_PKG_VERSION")).to_owned(),
                proposal,
                guess,
                rekey_bytes: config.rekey.bytes,
                rekey_time: config.rekey.time,
                host_keys: Vec::new(),
            },
            channels: ChannelsConfig::default(),
            alive_interval: config.alive_interval,
            alive_count: config.alive_count_max,
        },
        remembered: memory.as_ref().and_then(remembered),
        far: match hops {
            0 => remote_use::known(
                around.far,
                around.absolute,
                memory.as_ref(),
                SystemTime::now(),
            ),
            _ => Known::default(),
        },
        served_by: remote_use::command(remote_use::placed(memory.as_ref())),
        env: environment(&config),
        timeout: config.connect_timeout,
        renounced: match hops {
            0 => around.renounced,
            _ => DisabledProtection::Nothing,
        },
        window_poll: around.window_poll,
        again,
        serving: around.beside.as_ref().map(|b| b.serving.clone()),
        straight: false,
        sends_much: hops == 0 && around.sends_much && !around.plain,
        chose_zlib: reasons.chose_zlib(),
        forward: match &config.forward_agent {
            _ if !around.forward_agent || hops > 0 => None,
            ForwardAgent::No => None,
            ForwardAgent::Yes => Some(config.agent.clone()),
            ForwardAgent::Socket(socket) => Some(socket.clone()),
        },
        opened: (hops == 0).then(|| reasons.told_to(&around.opened)),
    };
    let open = opener(&config, around, hops, mss)?;
    let beside = around.beside.as_ref().filter(|_| hops == 0);
    let gate = HostAuthHandler::new(
        config,
        known,
        around.prompt.clone(),
        around.memories.clone(),
        memory,
        beside.map(|b| b.host_key.clone()),
    );
    let link = SshLink::connect(link, open, Box::new(gate)).map_err(LinkError::into_words)?;
    Ok((link, proven))
}

/// The lines of all known_hosts files.
pub(super) fn known_hosts(config: &HostConfig) -> KnownHosts {
    let mut known = KnownHosts::load(&config.user_known_hosts, &config.global_known_hosts);
    if config.is_homeless {
        known.take_unrecorded();
    }
    known
}

fn warn_user(config: &HostConfig, around: &Surroundings, text: &str) {
    warn!("{text}");
    if config.tells()
        && let Ok(mut prompt) = around.prompt.lock()
    {
        prompt.show(&format!("Warning: {text}"));
    }
}

fn environment(config: &HostConfig) -> Vec<(Vec<u8>, Vec<u8>)> {
    use std::os::unix::ffi::OsStringExt;
    let sent = std::env::vars_os()
        .filter(|(name, _)| name.to_str().is_some_and(|n| config.sends(n)))
        .map(|(name, value)| (name.into_vec(), value.into_vec()));
    let set = config
        .set_env
        .iter()
        .map(|(n, v)| (n.clone().into_bytes(), v.clone().into_bytes()));
    sent.chain(set).collect()
}

/// How the socket is opened, each time anew.
fn opener(
    config: &HostConfig,
    around: &Surroundings,
    hops: usize,
    mss: Option<u16>,
) -> Result<Opener, String> {
    let name = escape::name(config.host.as_bytes()).to_string();
    let (host, port) = (config.host_name.clone(), config.port);
    match config.proxy.clone() {
        Proxy::Direct => {
            let bind = match &config.bind_address {
                Some(text) => Some(
                    text.parse()
                        .map_err(|_| format!("{name}: BindAddress {text} is no address"))?,
                ),
                None => None,
            };
            let dial = Dial {
                family: match config.family {
                    AddressFamily::Any => Family::Any,
                    AddressFamily::Inet => Family::V4,
                    AddressFamily::Inet6 => Family::V6,
                },
                bind,
                timeout: config.connect_timeout,
                attempts: config.connection_attempts,
                tuning: Tuning {
                    dscp: around.dscp,
                    keepalive: config.tcp_keep_alive,
                    congestion: around.congestion.clone(),
                    mss,
                    ..Tuning::default()
                },
            };
            let beside = around.beside.as_ref().filter(|_| hops == 0);
            let host = match beside.and_then(|b| b.address) {
                Some(address) => address.to_string(),
                None => host,
            };
            Ok(Box::new(move || {
                let stream = dial.connect(&host, port);
                stream
                    .map(Stream::Tcp)
                    .map_err(|e| format!("cannot connect to {name} port {port}: {e}"))
            }))
        }
        Proxy::Command(command) if config.proxy_passes_socket => {
            let tuning = Tuning {
                dscp: around.dscp,
                keepalive: config.tcp_keep_alive,
                congestion: around.congestion.clone(),
                ..Tuning::default()
            };
            let patience = config.connect_timeout;
            Ok(Box::new(move || {
                passed_by(&name, &command, patience, &tuning)
            }))
        }
        Proxy::Command(command) => Ok(Box::new(move || {
            let (ours, child) = run_proxy(&name, &command)?;
            Ok(Stream::Command(ours, child))
        })),
        Proxy::Jump(through) => {
            let around = around.clone();
            Ok(Box::new(move || {
                jump_through(&through, &host, port, &around, hops)
            }))
        }
    }
}

/// Starts a ProxyCommand.
fn run_proxy(name: &str, command: &str) -> Result<(UnixStream, ProxyProcess), String> {
    ProxyProcess::start(command).map_err(|e| format!("{name}: ProxyCommand cannot be run: {e}"))
}

/// ProxyCommand with ProxyUseFdpass: it has connected a socket, hands it over and ends.
fn passed_by(
    name: &str,
    command: &str,
    patience: Option<Duration>,
    tuning: &Tuning,
) -> Result<Stream, String> {
    let (ours, child) = run_proxy(name, command)?;
    let socket = passed_socket(&ours, patience).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::UnexpectedEof => child.why_ended(),
            io::ErrorKind::InvalidData => "the ProxyCommand has sent something else".to_owned(),
            io::ErrorKind::TimedOut => "none came in time (ConnectTimeout)".to_owned(),
            _ => error.to_string(),
        };
        child.kill();
        let _ = child.wait();
        format!("{name}: a socket was to be passed (ProxyUseFdpass): {why}")
    })?;
    // ssh waits for it as well; here nothing else has to.
    std::thread::spawn(move || child.wait());
    let address = SockRef::from(&socket).local_addr();
    match address.map(|address| address.as_socket()) {
        Ok(Some(_)) => {
            let stream = TcpStream::from(socket);
            // Whoever made it may have tuned it already, and it may be gone, which shows soon.
            let _ = tuning.accepted(&stream);
            Ok(Stream::Tcp(stream))
        }
        _ => Ok(Stream::Jump(UnixStream::from(socket), None)),
    }
}

/// ProxyJump: each hop carries the connection to the next.
fn jump_through(
    hops: &[Destination],
    host: &str,
    port: u16,
    around: &Surroundings,
    depth: usize,
) -> Result<Stream, String> {
    let Some((last, before)) = hops.split_last() else {
        return Err(format!("{host}: ProxyJump names no host"));
    };
    let mut config = (around.hop)(last)?;
    if !before.is_empty() {
        // As `ssh -J`: the hops before lead to the last one, whatever is configured for it.
        config.proxy = Proxy::Jump(before.to_vec());
    }
    let name = config.host.clone();
    let (mut outer, _) = start(config, around, depth + 1)?;
    establish(&mut outer, &name, false)?;
    jump::through(outer, &name, host, port).map_err(|e| format!("{host}: {e}"))
}
