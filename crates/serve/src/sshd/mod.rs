//! An SSH server for file transfers: it accepts connections, authorizes keys by authorized_keys,
//! and serves only the SFTP subsystem, scp's old protocol and allowed programs.
//!
//! A confined process ([`mod@preauth`]) reads client input before the login. After the login a
//! process of the account ([`account`]) does, or a thread of this process if that has no more
//! rights than the account. A [`monitor`] stands between them: docs/design/0007-accounts.md.
//!
//! Each connection has its own thread: their number is bounded, and file systems block anyway.

mod account;
mod accounts;
mod authorized;
#[cfg(test)]
mod bytes_tests;
mod confine;
mod connection;
mod connection_limiter;
mod dialed;
mod disconnect;
mod engine;
mod expiry;
mod figures;
mod fork_server;
mod host_key;
mod keys;
mod limits;
mod losses;
mod message;
mod monitor;
mod monitor_message_socket;
mod once;
mod once_keys;
mod once_source;
mod options;
mod orphaned_sessions;
mod patterns;
mod preauth;
mod process;
mod program;
mod refusal;
mod rules;
mod served;
mod serving;
mod session;
mod signing;
mod spare_processes;
mod untrusted_log;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit, setrlimit};
use ssh::key::PrivateKey;
use sys::SocketTuning;
use tracing::{field, info, info_span, warn};

use crate::error::ConnectionEndCause;
use connection_limiter::{ConnectionLimiter, ConnectionPermit};
use dialed::{DialedConnectionSender, DialedConnections};
use disconnect::LingeringRefusedClients;
use figures::ServerCounters;
use keys::LoginKey;
use losses::LossDetector;
use monitor::MonitoredConnection;
use preauth::PreauthProcessConfig;
use rules::Account;
use spare_processes::{ConnectionProcesses, SpareProcesses};

pub use account::{AccountLogSender, AccountProcess};
pub use accounts::{AccessPolicy, unknown_token};
pub use confine::hide_memory;
pub use engine::{OfferedAlgorithms, SupportedAlgorithms};
pub use fork_server::ForkServer;
pub use host_key::{generate, generate_pair, keep_new};
pub use keys::is_fingerprint;
pub use limits::ConnectionLimits;
pub use once::{OneLoginServerEnd, SingleCopyServerSettings, SshConnectionError, own_addresses};
pub use preauth::main as preauth;
pub use process::ProcessRole;
pub use program::{AllowedProgram, ProgramAccount, ProgramError};
pub use rules::AccountRules;
pub use served::{ServedClientSettings, ServedPaths};

pub use crate::words::{CommandSplitError, split_command};

/// Time after which accepting is tried again when the process has no descriptor left.
const EXHAUSTED: Duration = Duration::from_millis(100);
/// Backlog of the listening socket; the system may allow less. With the standard library's 128 an
/// honest client's SYN was dropped once per two hundred connections of a flood, and the client
/// retried a second later.
const QUEUE: i32 = 4096;

/// Settings of a server: files, access policy, algorithms, limits and host keys.
#[derive(Debug)]
pub struct ServerSettings {
    /// Files and programs that logged-in clients are served.
    pub served: ServedClientSettings,
    /// Accounts and keys that may log in.
    pub entrance: AccessPolicy,
    /// Settings that replace `served` for a key, by its fingerprint.
    pub keys: BTreeMap<String, ServedClientSettings>,
    /// Algorithms offered to clients.
    pub algorithms: OfferedAlgorithms,
    /// Algorithms that `--old-clients` would have offered, if the flag is not set. A client without
    /// a common algorithm is told whether the flag would admit it.
    pub to_old_clients: Option<SupportedAlgorithms>,
    /// Limits on the number of connections.
    pub limits: ConnectionLimits,
    /// Time from accept(2) to the end of the login (LoginGraceTime of sshd is 120 s).
    pub login_time: Duration,
    /// Host keys, the preferred one first: the first of each type signs key exchanges, and all are
    /// announced to logged-in clients.
    pub host_keys: Vec<Arc<PrivateKey>>,
}

impl ServerSettings {
    /// Files for a login: the settings for its key, else for the authority of its certificate, else
    /// the general ones.
    fn served(&self, entrant: &LoginKey, account: &Account) -> ServedClientSettings {
        let of = |fingerprint: &str| self.keys.get(fingerprint);
        let authority = || of(entrant.certificate()?.0);
        let served = of(entrant.key()).or_else(authority);
        served.unwrap_or(&self.served).for_account(account)
    }

    /// Settings that a preauth process needs before its client connects.
    fn preauth_task(&self) -> PreauthProcessConfig {
        PreauthProcessConfig {
            host_keys: self.host_key_blobs(),
            algorithms: self.algorithms.clone(),
            to_old_clients: self.to_old_clients.clone(),
            becomes: self.entrance.preauth_user(),
            chroot_dir: self.entrance.preauth_folder(),
            login_milliseconds: self.login_time.as_millis() as u64,
        }
    }

    fn host_key_blobs(&self) -> Vec<Vec<u8>> {
        let keys = self.host_keys.iter();
        keys.map(|key| key.public_blob().to_vec()).collect()
    }
}

/// Settings that can be replaced at runtime: new connections use the new ones, and existing
/// connections keep theirs.
#[derive(Clone, Debug)]
pub struct LiveSettings(Arc<RwLock<Arc<ServerSettings>>>);

impl LiveSettings {
    fn get(&self) -> Arc<ServerSettings> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the settings.
    pub fn replace(&self, settings: ServerSettings) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }
}

/// A server that is bound to its addresses.
#[derive(Debug)]
pub struct SshServer {
    /// Listening sockets; the first one is reported by [`SshServer::address`].
    listeners: Vec<TcpListener>,
    /// Connections that this process has opened itself.
    dialed: Option<DialedConnections>,
    settings: LiveSettings,
    limiter: ConnectionLimiter,
    shared: Arc<ServerShared>,
}

/// Data shared by all connections of a server.
#[derive(Debug, Default)]
struct ServerShared {
    figures: ServerCounters,
    /// Used only if all connections belong to one client.
    losses: LossDetector,
}

/// Ends a [`SshServer`] when dropped: no new connections, running transfers finish.
#[derive(Debug)]
pub struct ServerGuard(#[allow(dead_code, reason = "its end is seen at the other end")] OwnedFd);

/// Becomes readable (end of file) once the [`ServerGuard`] of the same pair is dropped.
#[derive(Clone, Debug)]
pub struct StopSignal(Arc<OwnedFd>);

/// Creates the pair of handles that stops a server.
///
/// # Errors
/// No descriptors are left.
pub fn stopping() -> io::Result<(ServerGuard, StopSignal)> {
    let (read, write) = io::pipe()?;
    Ok((ServerGuard(write.into()), StopSignal(Arc::new(read.into()))))
}

impl SshServer {
    /// Listens on the first of `addresses` that can be bound.
    ///
    /// Raises the process's limit of open descriptors to the hard limit: each connection and each
    /// open file needs one.
    ///
    /// # Errors
    /// The port is in use, or this user may not listen on it.
    pub fn bind(addresses: &[SocketAddr], settings: ServerSettings) -> io::Result<Self> {
        let listener = TcpListener::bind(addresses)?;
        rustix::net::listen(&listener, QUEUE)?;
        Self::with_listener(listener, settings)
    }

    /// Serves on a socket that is already listening, passed by another process.
    ///
    /// # Errors
    /// The socket cannot be set up.
    pub fn with_listener(listener: TcpListener, settings: ServerSettings) -> io::Result<Self> {
        // Descriptors must not leak into the processes of connections. An old kernel cannot close
        // them at exec.
        let _ = sys::keep_descriptors();
        hide_memory()?;
        listener.set_nonblocking(true)?;
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // A lower limit means less room and nothing else.
        let _ = setrlimit(Resource::Nofile, limit);
        Ok(Self {
            listeners: vec![listener],
            dialed: None,
            settings: LiveSettings(Arc::new(RwLock::new(Arc::new(settings)))),
            limiter: ConnectionLimiter::default(),
            shared: Arc::default(),
        })
    }

    /// Listens on a further address, if the machine has it.
    ///
    /// # Errors
    /// The port is in use, or this user may not listen on it.
    pub fn listen_beside(&mut self, address: SocketAddr) -> io::Result<()> {
        let listener = match TcpListener::bind(address) {
            Err(e) if is_missing(&e) => return Ok(()),
            listener => listener?,
        };
        rustix::net::listen(&listener, QUEUE)?;
        listener.set_nonblocking(true)?;
        self.listeners.push(listener);
        Ok(())
    }

    /// Also serves the connections that this machine opens; they are handed over through the
    /// returned sender.
    ///
    /// # Errors
    /// No descriptors are left.
    fn serve_dialed(&mut self) -> io::Result<DialedConnectionSender> {
        let (streams, sender) = dialed::channel()?;
        self.dialed = Some(streams);
        Ok(sender)
    }

    /// Handle to the settings that can be replaced while the server runs.
    pub fn settings(&self) -> LiveSettings {
        self.settings.clone()
    }

    /// Function that formats the counters for Prometheus.
    pub fn metrics(&self) -> impl Fn() -> String + Send + 'static {
        let (shared, limiter) = (Arc::clone(&self.shared), self.limiter.clone());
        move || {
            let (connected, unauthenticated) = limiter.counted();
            shared.figures.text(connected, unauthenticated)
        }
    }

    /// Address of the first listening socket, with the port that the system chose for port 0.
    ///
    /// # Errors
    /// The system does not report the address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        let first = self.listeners.first();
        first.map_or_else(
            || Err(io::ErrorKind::NotFound.into()),
            TcpListener::local_addr,
        )
    }

    /// Serves until `stopping` is readable, then finishes running transfers.
    ///
    /// # Errors
    /// The listening socket fails.
    pub fn run(self, stopping: &StopSignal) -> io::Result<()> {
        let mut ready = SpareProcesses::new(stopping, &self.settings.get());
        let mut refused = LingeringRefusedClients::default();
        loop {
            let mut fds = vec![PollFd::new(&*stopping.0, PollFlags::IN)];
            let listeners = self.listeners.iter();
            fds.extend(listeners.map(|listener| PollFd::new(listener, PollFlags::IN)));
            let dialed = self.dialed.as_ref();
            fds.extend(dialed.map(|dialed| PollFd::new(dialed, PollFlags::IN)));
            let others = fds.len();
            fds.extend(
                ready
                    .watched()
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
            );
            let forget = refused.forget(Instant::now());
            let forget = forget.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut fds, forget.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let is = |fd: &PollFd<'_>| !fd.revents().is_empty();
            let stops = is(&fds[0]);
            let waiting: Vec<bool> = fds[1..=self.listeners.len()].iter().map(is).collect();
            let handed = fds[1 + self.listeners.len()..others].iter().any(is);
            let ended = fds[others..].iter().any(is);
            if stops {
                break;
            }
            if ended {
                ready.replace_ended(&self.settings.get());
            }
            let dialed = self.dialed.as_ref().filter(|_| handed);
            for (stream, peer) in dialed.iter().flat_map(|dialed| dialed.take()) {
                let queues = (&mut ready, &mut refused);
                self.welcome(stream, as_ipv4(peer), queues, stopping);
            }
            for (listener, _) in self
                .listeners
                .iter()
                .zip(waiting)
                .filter(|(_, waits)| *waits)
            {
                match listener.accept() {
                    Ok((stream, peer)) => {
                        let queues = (&mut ready, &mut refused);
                        self.welcome(stream, as_ipv4(peer), queues, stopping);
                    }
                    Err(e) if is_passing(&e) => {}
                    Err(e) if is_exhausted(&e) => {
                        warn!("cannot accept connections, trying again: {e}");
                        thread::sleep(EXHAUSTED);
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        drop(self.listeners);
        ready.end();
        info!("shutting down: no new connections, finishing running transfers");
        self.limiter.wait_until_empty();
        Ok(())
    }

    fn welcome(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        (ready, refused): (&mut SpareProcesses, &mut LingeringRefusedClients),
        stopping: &StopSignal,
    ) {
        let (settings, now) = (self.settings.get(), Instant::now());
        let entered = match settings.entrance.is_open(now) {
            true => self.limiter.enter(peer.ip(), now, &settings.limits),
            false => {
                Err("no login is expected now, because all one-time keys were used or have expired")
            }
        };
        let (place, instead_of) = match entered {
            Ok(entered) => entered,
            Err(why) => {
                self.shared.figures.turned_away();
                warn!(%peer, "refused: {why}");
                refused.tell(stream, why, now);
                return;
            }
        };
        if let Some(gone) = instead_of {
            self.shared.figures.turned_away();
            if let Ok(peer) = gone.peer_addr().map(as_ipv4) {
                warn!(
                    %peer,
                    "closed: too many connections that have not logged in: the limit is the \
                     option unauthenticated"
                );
            }
            // The preauth process sees the end of the connection and exits.
            let _ = gone.shutdown(Shutdown::Both);
        }
        if let Ok(stream) = stream.try_clone() {
            place.is_at(stream);
        }
        self.shared.figures.connected();
        let taken = match ready.take(&settings) {
            Ok(taken) => taken,
            Err(e) => {
                warn!(
                    %peer,
                    "refused: cannot start a process: {e}; check the limits of this machine \
                     (ulimit -u, memory)"
                );
                refused.tell(stream, "cannot start processes for new connections", now);
                return;
            }
        };
        let (shared, stopping) = (Arc::clone(&self.shared), stopping.clone());
        let thread = thread::Builder::new().name("connection".to_owned());
        let come_to = Arc::clone(&settings);
        let started = thread.spawn(move || {
            serve(&come_to, &shared, (stream, peer), place, taken, &stopping);
        });
        if let Err(e) = started {
            warn!(
                %peer,
                "refused: cannot start a thread: {e}; check the limits of this machine \
                 (ulimit -u, memory)"
            );
        }
        ready.refill(&settings);
    }
}

fn serve(
    settings: &ServerSettings,
    shared: &ServerShared,
    (stream, peer): (TcpStream, SocketAddr),
    place: ConnectionPermit,
    taken: ConnectionProcesses,
    stopping: &StopSignal,
) {
    let _span = info_span!("connection", %peer, user = field::Empty).entered();
    if let Err(e) = SocketTuning::default().accepted(&stream) {
        warn!("the connection broke: {e}");
        return;
    }
    match MonitoredConnection::new(settings, shared, (stream, peer), place).run(taken, stopping) {
        Ok(()) | Err(ConnectionEndCause::Gone | ConnectionEndCause::Stopped) => {
            info!("disconnected")
        }
        Err(why) => warn!("the connection ended with an error: {why}"),
    }
}

/// Converts ::ffff:192.0.2.1, which a dual-stack socket reports for IPv4, to the form that readers
/// of the log search for.
fn as_ipv4(peer: SocketAddr) -> SocketAddr {
    match peer.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, peer.port()),
        IpAddr::V6(_) => peer,
    }
}

/// True for the errors of an address that this machine does not have, as IPv6 without an IPv6
/// stack.
fn is_missing(e: &io::Error) -> bool {
    let errno = Errno::from_io_error(e);
    matches!(errno, Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT))
}

/// True for errors of one connection, which is gone then (accept(2)).
fn is_passing(e: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        e.kind(),
        Kind::WouldBlock
            | Kind::Interrupted
            | Kind::ConnectionAborted
            | Kind::ConnectionReset
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
    )
}

fn is_exhausted(e: &io::Error) -> bool {
    let errno = Errno::from_io_error(e);
    matches!(
        errno,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}
