//! Opens a connection to a host as ssh_config and the command line describe it.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use socket2::SockRef;
use ssh::ConnectionConfig;
use ssh::channel::ChannelsConfig;
use ssh::key::{HOST_KEY_ALGORITHMS, PublicKey};
use ssh::transport::{AlgorithmProposal, DisabledProtection, TransportConfig};
use sys::{Keepalive, SocketTuning};
use tracing::{debug, info, warn};

use super::error::{ConnectError, ConnectStep};
use super::host_auth_handler::{HostAuthHandler, SharedPrompt, memory_name};
use super::jump;
use super::master;
use super::passing::passed_socket;
use super::preopened_connections::{ConnectionHold, PlannedUpload};
use super::proposing::{AlgorithmProposalReasons, propose, remembered};
use super::proxy_process::ProxyProcess;
use super::remote_use::{self, RemoteLonghaulPolicy};
use super::segments;
use super::server_kind::DetectedServerKind;
use super::ssh_link::{
    BulkDirection, ConnectionFacts, LinkRole, LoginLimits, SocketOpener, SshLink, SshLinkSettings,
};
use super::stream::ConnectedStream;
use super::tcp::{AllowedAddressFamilies, TcpConnectSettings};
use crate::config::{
    AddressFamily, ConnectTimeout, ForwardAgent, HostConfig, ProxyMethod, SshOptionFlags,
};
use crate::escape;
use crate::known_hosts::{
    HostKeyLookupPurpose, HostName, KnownHosts, KnownHostsError, RevokedKeys,
};
use crate::memory::{HostMemory, HostMemoryStore};
use crate::operand::SshDestination;
use crate::prompt::NoPrompt;
use crate::report::{CompressibilitySample, ZlibReason};
use crate::session::{RemoteLonghaulKnowledge, StallNotice};
use crate::timeline::Timeline;

/// The maximum number of ProxyJump hops. OpenSSH has no limit; a loop in a configuration would
/// never end.
const MAX_HOPS: usize = 16;

/// Finds the configuration of a host.
pub type HostConfigResolver =
    dyn Fn(&SshDestination) -> Result<HostConfig, ConnectError> + Send + Sync;

/// Samples the data that will be sent to a host; the error is the reason why that is impossible.
pub type DataSampler = dyn Fn() -> Result<CompressibilitySample, ZlibReason> + Send + Sync;

/// The way in which a connection is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptSettings {
    /// True if the first connection is returned after its login even where an earlier visit would
    /// allow requests before, so that a refused login is this call's error.
    pub awaits_login: bool,
    /// True if remembered and measured settings are ignored, because a connection with such a
    /// setting failed.
    pub plain: bool,
    /// True for connections to the relaying hosts of `--via`, which are named so in messages.
    pub relaying: bool,
}

/// The settings for connections that all hosts of a run share.
#[derive(Clone)]
pub struct SharedConnectSettings {
    /// The prompt for questions to the user.
    pub prompt: SharedPrompt,
    /// The host memory; `None` disables it.
    pub memories: Option<HostMemoryStore>,
    /// Forward the agent (`-A`). As with scp, ForwardAgent in ssh_config has no effect.
    pub forward_agent: bool,
    /// The DSCP value of packets, 0 to 63.
    pub dscp: u8,
    /// TCP congestion control of local sockets; the system's default if `None`.
    pub congestion: Option<String>,
    /// The protections (encryption, MAC) that are dropped after login if the server has the same
    /// setting; not for jump hosts.
    pub renounced: DisabledProtection,
    /// True if channel windows follow the round trip and the socket buffer, which are polled from
    /// the kernel.
    pub window_poll: bool,
    /// Called from any thread once a host's connection is open; not for jump hosts.
    pub opened: Arc<dyn Fn(ConnectionFacts) + Send + Sync>,
    /// True if data connections may go directly to a longhaul at the far end.
    pub direct: bool,
    /// Finds the configuration of a ProxyJump host.
    pub hop: Arc<HostConfigResolver>,
    /// The use of a longhaul at the far end.
    pub far: RemoteLonghaulPolicy,
    /// True if every remote path is absolute, so that the remote working directory does not matter.
    pub absolute: bool,
    /// Samples the data to send, to decide about zlib without a request by the user; `None`
    /// disables that. Not for jump hosts.
    pub look: Option<Arc<DataSampler>>,
    /// Direction of the data for which the congestion window is opened during the login; not for
    /// jump hosts.
    pub bulk: BulkDirection,
    /// The planned upload, for which further connections may be opened before the first has logged
    /// in.
    pub sends: Option<PlannedUpload>,
    /// The properties of the first connection to the same host, if this is a further one.
    pub beside: Option<FirstConnectionMatch>,
    /// The way in which a connection is opened.
    pub attempt: AttemptSettings,
    /// Record of the copy's steps, for `--explain=timeline`; not for jump hosts.
    pub timeline: Option<Arc<Timeline>>,
    /// Sockets of open connections of ssh that carry connections, since a login of our own was
    /// refused.
    pub masters: Arc<Mutex<BTreeSet<PathBuf>>>,
}

/// The properties that a further connection must share with the first.
#[derive(Clone, Debug)]
pub struct FirstConnectionMatch {
    /// The address of a TCP connection: one name may resolve to several hosts.
    pub address: Option<IpAddr>,
    /// The host key.
    pub host_key: FirstHostKey,
    /// The kind of SFTP server.
    pub serving: DetectedServerKind,
    /// The round trip, if a smaller maximum segment size is worth a faster login
    /// (`connect/segments.rs`).
    pub rtt: Option<Duration>,
}

/// Host key of the first connection, which further connections must have as well.
#[derive(Clone, Debug)]
pub enum FirstHostKey {
    /// The host key blob.
    Known(Vec<u8>),
    /// The host key is not known before the connection is allowed to log in.
    Awaited(Arc<ConnectionHold>),
}

pub(super) fn establish(link: &mut SshLink, host: &str, early: bool) -> Result<(), ConnectError> {
    let name = escape::name(host.as_bytes());
    link.establish(early).map_err(|e| e.about(name))
}

/// A link that is being opened to a host.
pub(super) struct OpeningLink {
    pub link: SshLink,
    /// The host memory has a key that was accepted here before.
    pub proven: bool,
}

/// Opens a connection to a host up to the TCP connection, `hops` ProxyJump hosts from the target.
pub(super) fn start(
    config: HostConfig,
    around: &SharedConnectSettings,
    hops: usize,
) -> Result<OpeningLink, ConnectError> {
    if hops > MAX_HOPS {
        let text = format!(
            "{}: the ProxyJump chain is longer than {MAX_HOPS} hosts; check ssh_config for a loop",
            config.host
        );
        return Err(ConnectError::configuration(text));
    }
    tell_once(&config, around);
    let mut known = known_hosts(&config);
    if !config.revoked_host_keys.is_empty() {
        let revoked = RevokedKeys::load(&config.revoked_host_keys);
        known.revoke(revoked?);
    }
    let aged = around
        .memories
        .as_ref()
        .and_then(|m| m.load_aged(memory_name(&config), SystemTime::now()));
    let aged = aged.as_ref().map(|(memory, age)| (memory, *age));
    let trusted = aged.filter(|_| !around.attempt.plain);
    let look = around
        .look
        .as_ref()
        .filter(|_| hops == 0 && !around.attempt.plain);
    let preferred = match hops {
        // A further connection prefers the algorithms of the first one's key, see below.
        0 if around.beside.is_some() => Cow::Borrowed(&known),
        _ => with_command_output(
            &config,
            &known,
            HostKeyLookupPurpose::Order,
            &HostAuthHandler::name(&config),
            None,
        )?,
    };
    let (mut proposal, reasons) = propose(&config, &preferred, trusted, around, look)?;
    drop(preferred);
    let memory = aged.map(|(memory, _)| memory.clone());
    let beside = around.beside.as_ref().filter(|_| hops == 0);
    if let Some(FirstHostKey::Known(blob)) = beside.map(|beside| &beside.host_key) {
        prefer_type_of(blob, &mut proposal);
    }
    let rtt = match beside {
        Some(beside) => beside.rtt,
        None => memory.as_ref().and_then(HostMemory::rtt),
    };
    let (kex, host_key) = (proposal.kex.first(), proposal.host_key.first());
    let mss = segments::asked(reasons.guess(), kex, host_key, rtt);
    let proven = memory.as_ref().is_some_and(|m| m.accepted_key.is_some());
    let link = link_config(&config, around, hops, memory.as_ref(), (proposal, reasons));
    let open = opener(&config, around, hops, mss)?;
    let auth_handler = HostAuthHandler::new(
        config,
        known,
        around.prompt.clone(),
        around.memories.clone(),
        memory,
        beside.map(|b| b.host_key.clone()),
    );
    let link = SshLink::connect(link, open, Box::new(auth_handler))?;
    Ok(OpeningLink { link, proven })
}

/// Shows the warnings and notes of the configuration, unless this is a further connection, whose
/// first one has shown them.
fn tell_once(config: &HostConfig, around: &SharedConnectSettings) {
    if around.beside.is_some() {
        return;
    }
    for warning in &config.warnings {
        warn_user(config, around, warning);
    }
    for note in &config.notes {
        debug!("{note}");
    }
}

/// Moves algorithms for this host key to the front: a host has keys of several types, and a further
/// connection must see the first connection's key.
fn prefer_type_of(blob: &[u8], proposal: &mut AlgorithmProposal) {
    let Ok(key) = PublicKey::from_blob(blob) else {
        return;
    };
    let plain_type = |name: &String| {
        let row = HOST_KEY_ALGORITHMS.iter().find(|a| a.name == name);
        row.map(|a| a.plain_type)
    };
    let other = |name: &String| plain_type(name) != Some(key.key_type());
    proposal.host_key.sort_by_key(other);
}

/// Returns the settings of a link. A jump host gets none that concern the transfer.
fn link_config(
    config: &HostConfig,
    around: &SharedConnectSettings,
    hops: usize,
    memory: Option<&HostMemory>,
    (proposal, reasons): (AlgorithmProposal, AlgorithmProposalReasons),
) -> SshLinkSettings {
    let target = hops == 0;
    let far = || remote_use::known(around.far, around.absolute, memory, SystemTime::now());
    SshLinkSettings {
        name: escape::name(config.host.as_bytes()).to_string(),
        port: Some(config.port),
        connection: ConnectionConfig {
            transport: TransportConfig {
                software: concat!("longhaul_", env!("CARGO_PKG_VERSION")).to_owned(),
                proposal,
                guess: reasons.guess(),
                rekey_bytes: config.rekey.bytes,
                rekey_time: config.rekey.time,
                host_keys: Vec::new(),
            },
            channels: ChannelsConfig::default(),
            alive_interval: config.alive_interval,
            alive_count: config.alive_count_max,
        },
        remembered: memory.and_then(remembered),
        far: match target {
            true => far(),
            false => RemoteLonghaulKnowledge::default(),
        },
        served_by: remote_use::command(remote_use::placed(memory)),
        env: environment(config),
        limits: LoginLimits::new(
            config.connect_timeout,
            matches!(config.proxy, ProxyMethod::Command(_)),
        ),
        renounced: match target {
            true => around.renounced,
            false => DisabledProtection::Nothing,
        },
        window_poll: around.window_poll,
        role: match &around.beside {
            Some(_) => LinkRole::Further,
            None => LinkRole::First,
        },
        serving: around.beside.as_ref().map(|b| b.serving.clone()),
        bulk: match target && !around.attempt.plain {
            true => around.bulk,
            false => BulkDirection::Neither,
        },
        chose_zlib: reasons.chose_zlib(),
        forward: match &config.forward_agent {
            _ if !around.forward_agent || !target => None,
            ForwardAgent::No => None,
            ForwardAgent::Yes => Some(config.agent.clone()),
            ForwardAgent::Socket(socket) => Some(socket.clone()),
        },
        opened: target.then(|| reasons.told_to(&around.opened)),
        track: around
            .timeline
            .as_ref()
            .filter(|_| target)
            .map(Timeline::connection),
    }
}

/// Loads all known_hosts files.
pub(super) fn known_hosts(config: &HostConfig) -> KnownHosts {
    let mut known = KnownHosts::load(&config.user_known_hosts, &config.global_known_hosts);
    if config.has(SshOptionFlags::HOMELESS) {
        known.take_unrecorded();
    }
    known
}

/// Returns `known` with what KnownHostsCommand prints for this lookup.
pub(super) fn with_command_output<'a>(
    config: &HostConfig,
    known: &'a KnownHosts,
    lookup: HostKeyLookupPurpose,
    name: &HostName,
    key: Option<&PublicKey>,
) -> Result<Cow<'a, KnownHosts>, KnownHostsError> {
    let Some(command) = &config.known_hosts_command else {
        return Ok(Cow::Borrowed(known));
    };
    let mut both = known.clone();
    both.add_command_output(&command.run(&config.tokens, lookup, name, key)?);
    Ok(Cow::Owned(both))
}

fn warn_user(config: &HostConfig, around: &SharedConnectSettings, text: &str) {
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

/// Returns the function that opens the socket, and that can be called again for a new attempt.
fn opener(
    config: &HostConfig,
    around: &SharedConnectSettings,
    hops: usize,
    mss: Option<u16>,
) -> Result<SocketOpener, ConnectError> {
    let name = escape::name(config.host.as_bytes()).to_string();
    let (host, port) = (config.host_name.clone(), config.port);
    match config.proxy.clone() {
        ProxyMethod::Direct => direct_opener(config, around, hops, mss),
        ProxyMethod::Command(command) if config.has(SshOptionFlags::PROXY_USE_FDPASS) => {
            let tuning = socket_tuning(config, around);
            let patience = LoginLimits::new(config.connect_timeout, true).handshake();
            Ok(Box::new(move || {
                passed_by(&name, &command, patience, &tuning)
            }))
        }
        ProxyMethod::Command(command) => Ok(Box::new(move || {
            let (ours, child) = run_proxy(&name, &command)?;
            Ok(ConnectedStream::Command(ours, child))
        })),
        ProxyMethod::Jump(through) | ProxyMethod::Via(through) => {
            let mut around = around.clone();
            around.attempt.relaying =
                matches!(config.proxy, ProxyMethod::Via(_)) || around.attempt.relaying && hops > 0;
            Ok(Box::new(move || {
                jump_through(&through, &host, port, &around, hops)
            }))
        }
    }
}

/// Opens a TCP connection to the host of `config`. The parameters are those of [`opener`].
fn direct_opener(
    config: &HostConfig,
    around: &SharedConnectSettings,
    hops: usize,
    mss: Option<u16>,
) -> Result<SocketOpener, ConnectError> {
    let name = escape::name(config.host.as_bytes()).to_string();
    let (host, port) = (config.host_name.clone(), config.port);
    let bind = config.bind_address.as_ref().map(|text| {
        text.parse().map_err(|_| {
            let why = format!("BindAddress {text} is not an IP address");
            ConnectError::configuration(why).about(&name)
        })
    });
    let bind = bind.transpose()?;
    let dial = TcpConnectSettings {
        family: address_families(config.family),
        bind,
        timeout: config.connect_timeout,
        attempts: config.connection_attempts,
        tuning: SocketTuning {
            mss,
            ..socket_tuning(config, around)
        },
    };
    let beside = around.beside.as_ref().filter(|_| hops == 0);
    let host = match beside.and_then(|b| b.address) {
        Some(address) => address.to_string(),
        None => host,
    };
    let cannot = match (hops, around.attempt.relaying) {
        (0, _) => cannot_connect(&name, &host, port),
        (_, true) => format!("cannot connect to this relaying host at port {port}"),
        (_, false) => format!("cannot connect to this jump host at port {port}"),
    };
    let shown = match host.eq_ignore_ascii_case(&config.host) {
        true => "the host name".to_owned(),
        false => escape::name(host.as_bytes()).to_string(),
    };
    // A further connection is opened while the first one is in use.
    let tells = config.tells() && around.beside.is_none();
    let prompt = Arc::clone(&around.prompt);
    let is_first = around.beside.is_none();
    Ok(Box::new(move || {
        // Another host may be asking the user a question.
        if let Some(mut prompt) = prompt.try_lock().ok().filter(|_| is_first) {
            prompt.note_wait("an answer to the TCP connection");
        }
        let mut tell = |notice: StallNotice| {
            if tells && let Ok(mut prompt) = prompt.lock() {
                prompt.show(&format!("{name}: {notice}"));
            }
        };
        let stream = dial.connect_with_notices(&host, port, &mut tell);
        let stream = stream.map(ConnectedStream::Tcp);
        stream
            .map_err(|e| ConnectError::not_connected(&e, e.sentence(&shown, &cannot)).about(&name))
    }))
}

fn socket_tuning(config: &HostConfig, around: &SharedConnectSettings) -> SocketTuning {
    SocketTuning {
        dscp: around.dscp,
        keepalive: Keepalive::with_kernel_times(config.has(SshOptionFlags::TCP_KEEP_ALIVE)),
        congestion: around.congestion.clone(),
        ..SocketTuning::default()
    }
}

fn address_families(family: AddressFamily) -> AllowedAddressFamilies {
    match family {
        AddressFamily::Any => AllowedAddressFamilies::Any,
        AddressFamily::Inet => AllowedAddressFamilies::V4,
        AddressFamily::Inet6 => AllowedAddressFamilies::V6,
    }
}

/// Begins the message about a host that cannot be reached, after the name of the host in the operand:
/// that is `name`, and `host` its HostName, which is named only if it differs.
fn cannot_connect(name: &str, host: &str, port: u16) -> String {
    let host = escape::name(host.as_bytes()).to_string();
    match host.eq_ignore_ascii_case(name) {
        true => format!("cannot connect to port {port}"),
        false => format!("cannot connect to {host} port {port}"),
    }
}

/// Starts a ProxyCommand.
fn run_proxy(name: &str, command: &str) -> Result<(UnixStream, ProxyProcess), ConnectError> {
    ProxyProcess::start(command).map_err(|e| {
        let why = format!("cannot run the ProxyCommand: {e}");
        ConnectError::this_machine(ConnectStep::Reach, why).about(name)
    })
}

/// Runs a ProxyCommand with ProxyUseFdpass: the command connects a socket, passes it over and ends.
fn passed_by(
    name: &str,
    command: &str,
    patience: ConnectTimeout,
    tuning: &SocketTuning,
) -> Result<ConnectedStream, ConnectError> {
    let (ours, child) = run_proxy(name, command)?;
    let socket = passed_socket(&ours, Some(patience.time())).map_err(|error| {
        let why = match error.kind() {
            io::ErrorKind::UnexpectedEof => child.why_ended(),
            io::ErrorKind::InvalidData => "it passed no socket: correct it, or set \
                ProxyUseFdpass=no"
                .to_owned(),
            io::ErrorKind::TimedOut => format!(
                "the ProxyCommand passed no socket within {} s{}",
                patience.time().as_secs_f32(),
                patience.hint()
            ),
            _ => error.to_string(),
        };
        child.kill();
        let _ = child.wait();
        ConnectError::unreachable(format!(
            "cannot get a socket from the ProxyCommand (ProxyUseFdpass): {why}"
        ))
        .about(name)
    })?;
    // ssh blocks until the command exits; here a thread waits for it.
    std::thread::spawn(move || child.wait());
    let address = SockRef::from(&socket).local_addr();
    match address.map(|address| address.as_socket()) {
        Ok(Some(_)) => {
            let stream = TcpStream::from(socket);
            // Tuning is optional: the command may have tuned the socket. A closed socket shows at
            // the next read.
            let _ = tuning.accepted(&stream);
            Ok(ConnectedStream::Tcp(stream))
        }
        _ => Ok(ConnectedStream::Jump(UnixStream::from(socket), None)),
    }
}

/// Connects through ProxyJump hosts: each hop carries the connection to the next.
fn jump_through(
    hops: &[SshDestination],
    host: &str,
    port: u16,
    around: &SharedConnectSettings,
    depth: usize,
) -> Result<ConnectedStream, ConnectError> {
    let Some((last, before)) = hops.split_last() else {
        let why = "ProxyJump names no host; correct it in ssh_config, or use -J HOST";
        return Err(ConnectError::configuration(why).about(host));
    };
    let mut config = (around.hop)(last)?;
    if !before.is_empty() {
        // As with `ssh -J`, the listed hops override the proxy settings of the last one.
        config.proxy = ProxyMethod::Jump(before.to_vec());
    }
    let name = config.host.clone();
    let local =
        |e: io::Error| ConnectError::this_machine(ConnectStep::Reach, e.to_string()).about(host);
    let master = config.control_master.take();
    let Some(socket) = master else {
        let outer = log_in(config, around, depth + 1)?;
        return jump::through(outer, &name, host, port).map_err(local);
    };
    let masters = || {
        around
            .masters
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    };
    // A refused login is not repeated: the server may count them.
    if !masters().contains(&socket) {
        // A login that asks is not needed beside an open connection.
        config.switches.insert(SshOptionFlags::BATCH_MODE);
        let silent = SharedConnectSettings {
            prompt: Arc::new(Mutex::new(NoPrompt)),
            ..around.clone()
        };
        match log_in(config, &silent, depth + 1) {
            Ok(outer) => return jump::through(outer, &name, host, port).map_err(local),
            Err(own) if own.allows_shared_connection() => {
                tell_of_master(&name, &socket, &own, around);
                masters().insert(socket.clone());
            }
            Err(own) => return Err(own),
        }
    }
    let (ours, ssh) = master::through(&socket, &name, host, port).map_err(local)?;
    Ok(ConnectedStream::Command(ours, ssh))
}

/// Logs in to a host that carries connections to others.
fn log_in(
    config: HostConfig,
    around: &SharedConnectSettings,
    hops: usize,
) -> Result<SshLink, ConnectError> {
    let name = config.host.clone();
    let mut link = start(config, around, hops)?.link;
    establish(&mut link, &name, false)?;
    Ok(link)
}

/// Tells the user that an open connection of ssh carries the connections.
fn tell_of_master(name: &str, socket: &Path, own: &ConnectError, around: &SharedConnectSettings) {
    info!("{own}");
    let text = format!(
        "{}: connecting through ssh's open connection (ControlPath) at {}, because a login without \
         prompts was refused",
        escape::name(name.as_bytes()),
        escape::path(socket)
    );
    warn!("{text}");
    if let Ok(mut prompt) = around.prompt.lock() {
        prompt.show(&format!("Warning: {text}"));
    }
}
