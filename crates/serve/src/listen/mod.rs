//! An SSH server for file transfers: it listens, lets users in with the keys of their
//! authorized_keys, and serves nothing but the SFTP subsystem, scp's old protocol, and programs
//! where they are allowed.
//!
//! What a client sends before it is logged in is read by a confined process ([`preauth`]); behind
//! the login by a process of the account ([`account`]), or by a thread of this one, where that has
//! no more rights. Between them stands a [`monitor`]: docs/design/0007-accounts.md.
//!
//! Each connection has a thread of its own: how many there may be is bounded, and file systems
//! block anyway.

mod account;
mod accounts;
mod authorized;
#[cfg(test)]
mod bytes_tests;
mod confine;
mod connection;
mod connection_limiter;
mod disconnect;
mod engine;
mod expiry;
mod figures;
mod fork_server;
mod host_key;
mod keys;
mod limits;
mod link;
mod losses;
mod message;
mod monitor;
mod once;
mod once_keys;
mod options;
mod orphaned_sessions;
mod patterns;
mod preauth;
mod process;
mod program;
mod rules;
mod served;
mod serving;
mod session;
mod signing;
mod spare_processes;
mod untrusted_log;
mod zero_copy_write;

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
use sys::Tuning;
use tracing::{field, info, info_span, warn};

use crate::error::ConnectionError;
use connection_limiter::{ConnectionLimiter, Place};
use disconnect::Refused;
use figures::{Figures, count};
use keys::LoginRequest;
use losses::LossDetector;
use monitor::Monitor;
use preauth::PreauthTask;
use rules::Account;
use spare_processes::{SpareProcesses, Taken};

pub use account::{AccountProcess, Log};
pub use accounts::{AccessPolicy, unknown_token};
pub use confine::hide_memory;
pub use engine::{Algorithms, Offer};
pub use fork_server::ForkServer;
pub use host_key::{generate, generate_pair, keep_new};
pub use keys::is_fingerprint;
pub use limits::Limits;
pub use once::{Once, OnceEnd};
pub use preauth::main as preauth;
pub use process::Role;
pub use program::{AllowedProgram, Owner};
pub use rules::Rules;
pub use served::ServedFiles;

pub use crate::words::split_command;

/// When the process has no descriptor left for a connection, it looks again after so long.
const EXHAUSTED: Duration = Duration::from_millis(100);
/// Connections that wait to be taken, or as many as the system allows. With the 128 of the standard
/// library it happened every two hundred connections of a flood that an honest client was not heard and
/// tried again a second later.
const QUEUE: i32 = 4096;

/// What is served to whom, and as which host.
#[derive(Debug)]
pub struct Settings {
    /// What whoever has logged in is served.
    pub served: ServedFiles,
    /// Who may log in.
    pub entrance: AccessPolicy,
    /// What is different for a key, by its fingerprint.
    pub keys: BTreeMap<String, ServedFiles>,
    /// What is offered to clients.
    pub algorithms: Algorithms,
    /// What `--old-clients` would have offered, where that was not said: a client that has nothing in
    /// common with what is offered is told whether it would have been let in.
    pub to_old_clients: Option<Offer>,
    /// How many may be there.
    pub limits: Limits,
    /// From accept(2) to the end of the login (LoginGraceTime of sshd has 120 s).
    pub login_time: Duration,
    /// What proves that it is this host, the preferred first: with the first of a type a key exchange is signed, and all
    /// are told to whoever is logged in.
    pub host_keys: Vec<Arc<PrivateKey>>,
}

impl Settings {
    /// What whoever has entered an account is served: what there is for the key, else for the
    /// authority of its certificate, else what there is for all.
    fn served(&self, entrant: &LoginRequest, account: &Account) -> ServedFiles {
        let of = |fingerprint: &String| self.keys.get(fingerprint);
        let authority = || of(&entrant.certificate.as_ref()?.authority);
        let served = of(&entrant.key).or_else(authority);
        served.unwrap_or(&self.served).for_account(account)
    }

    /// What a process has to know before a client has said anything.
    fn preauth_task(&self) -> PreauthTask {
        PreauthTask {
            host_keys: self.host_key_blobs(),
            algorithms: self.algorithms.clone(),
            to_old_clients: self.to_old_clients.clone(),
            becomes: self.entrance.preauth_user(),
            empty: self.entrance.preauth_folder(),
            login_milliseconds: self.login_time.as_millis() as u64,
        }
    }

    fn host_key_blobs(&self) -> Vec<Vec<u8>> {
        let keys = self.host_keys.iter();
        keys.map(|key| key.public_blob().to_vec()).collect()
    }
}

/// Settings that can be replaced: who comes from then on meets the new ones, who is there keeps
/// those it came to.
#[derive(Clone, Debug)]
pub struct LiveSettings(Arc<RwLock<Arc<Settings>>>);

impl LiveSettings {
    fn get(&self) -> Arc<Settings> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces them.
    pub fn replace(&self, settings: Settings) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    /// The first is the one that is told of.
    listeners: Vec<TcpListener>,
    settings: LiveSettings,
    crowd: ConnectionLimiter,
    shared: Arc<Shared>,
}

/// What all connections of a server have in common.
#[derive(Debug, Default)]
struct Shared {
    figures: Figures,
    /// Only where all are one client's.
    losses: LossDetector,
}

/// Ends a [`Server`] when it is dropped: nobody is let in any more, and whoever transfers
/// something is served to the end.
#[derive(Debug)]
pub struct Running(#[allow(dead_code, reason = "its end is seen at the other end")] OwnedFd);

/// Readable, at its end, once the [`Running`] of the same pair is gone.
#[derive(Clone, Debug)]
pub struct StopSignal(Arc<OwnedFd>);

/// Both ends of what stops a server.
///
/// # Errors
/// There are no descriptors left.
pub fn stopping() -> io::Result<(Running, StopSignal)> {
    let (read, write) = io::pipe()?;
    Ok((Running(write.into()), StopSignal(Arc::new(read.into()))))
}

impl Server {
    /// Listens at the first of `addresses` that can be had.
    ///
    /// The process may have as many descriptors from now on as it can ask for without a right to
    /// it: each connection has one, and each file that is open.
    ///
    /// # Errors
    /// The port is taken, or is not this user's to listen at.
    pub fn bind(addresses: &[SocketAddr], settings: Settings) -> io::Result<Self> {
        let listener = TcpListener::bind(addresses)?;
        rustix::net::listen(&listener, QUEUE)?;
        Self::with_listener(listener, settings)
    }

    /// Serves at a socket that listens already: somebody has handed it on.
    ///
    /// # Errors
    /// It is not that.
    pub fn with_listener(listener: TcpListener, settings: Settings) -> io::Result<Self> {
        // Processes of connections get what they are given. An old kernel has no way to say so.
        let _ = sys::keep_descriptors();
        hide_memory()?;
        listener.set_nonblocking(true)?;
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // Without it there is less room, and nothing else is wrong.
        let _ = setrlimit(Resource::Nofile, limit);
        Ok(Self {
            listeners: vec![listener],
            settings: LiveSettings(Arc::new(RwLock::new(Arc::new(settings)))),
            crowd: ConnectionLimiter::default(),
            shared: Arc::default(),
        })
    }

    /// Listens at a further address, if the machine has it.
    ///
    /// # Errors
    /// The port is taken there, or is not this user's to listen at.
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

    /// What can be replaced while it serves.
    pub fn settings(&self) -> LiveSettings {
        self.settings.clone()
    }

    /// Tells what it has done so far, for Prometheus.
    pub fn metrics(&self) -> impl Fn() -> String + Send + 'static {
        let (shared, crowd) = (Arc::clone(&self.shared), self.crowd.clone());
        move || {
            let (connected, strangers) = crowd.counted();
            shared.figures.text(connected, strangers)
        }
    }

    /// Where it listens: the port that the system chose, where it was to.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        let first = self.listeners.first();
        first.map_or_else(
            || Err(io::ErrorKind::NotFound.into()),
            TcpListener::local_addr,
        )
    }

    /// Serves until `stopping`, and then whoever transfers something to the end.
    ///
    /// # Errors
    /// The listening socket has broken.
    pub fn run(self, stopping: &StopSignal) -> io::Result<()> {
        let mut ready = SpareProcesses::new(stopping, &self.settings.get());
        let mut refused = Refused::default();
        loop {
            let mut fds = vec![PollFd::new(&*stopping.0, PollFlags::IN)];
            let listeners = self.listeners.iter();
            fds.extend(listeners.map(|listener| PollFd::new(listener, PollFlags::IN)));
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
            let ended = fds[1 + self.listeners.len()..].iter().any(is);
            if stops {
                break;
            }
            if ended {
                ready.replace_ended(&self.settings.get());
            }
            for (listener, _) in self
                .listeners
                .iter()
                .zip(waiting)
                .filter(|(_, waits)| *waits)
            {
                match listener.accept() {
                    Ok((stream, peer)) => {
                        let doors = (&mut ready, &mut refused);
                        self.welcome(stream, as_ipv4(peer), doors, stopping);
                    }
                    Err(e) if is_passing(&e) => {}
                    Err(e) if is_exhausted(&e) => {
                        warn!("no connection can be taken now: {e}");
                        thread::sleep(EXHAUSTED);
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        drop(self.listeners);
        ready.end();
        info!("nobody is let in any more; what is being transferred is served to the end");
        self.crowd.wait_until_empty();
        Ok(())
    }

    fn welcome(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        (ready, refused): (&mut SpareProcesses, &mut Refused),
        stopping: &StopSignal,
    ) {
        let (settings, now) = (self.settings.get(), Instant::now());
        let entered = match settings.entrance.is_open(now) {
            true => self.crowd.enter(peer.ip(), now, &settings.limits),
            false => Err("nobody is waited for"),
        };
        let (place, instead_of) = match entered {
            Ok(entered) => entered,
            Err(why) => {
                count(&self.shared.figures.turned_away);
                warn!(%peer, "turned away: {why}");
                refused.tell(stream, why, now);
                return;
            }
        };
        if let Some(gone) = instead_of {
            count(&self.shared.figures.turned_away);
            if let Ok(peer) = gone.peer_addr().map(as_ipv4) {
                warn!(%peer, "ended: too many are logging in at once, and it makes room for another");
            }
            // The process before the login hears that, and ends.
            let _ = gone.shutdown(Shutdown::Both);
        }
        if let Ok(stream) = stream.try_clone() {
            place.is_at(stream);
        }
        count(&self.shared.figures.connections);
        let taken = match ready.take(&settings) {
            Ok(taken) => taken,
            Err(e) => {
                warn!(%peer, "turned away: no process can be started: {e}");
                refused.tell(stream, "no process can be started for anybody now", now);
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
            warn!(%peer, "turned away: no thread can be started: {e}");
        }
        ready.refill(&settings);
    }
}

fn serve(
    settings: &Settings,
    shared: &Shared,
    (stream, peer): (TcpStream, SocketAddr),
    place: Place,
    taken: Taken,
    stopping: &StopSignal,
) {
    let _span = info_span!("connection", %peer, user = field::Empty).entered();
    if let Err(e) = Tuning::default().accepted(&stream) {
        warn!("ended: the connection broke: {e}");
        return;
    }
    match Monitor::new(settings, shared, (stream, peer), place).run(taken, stopping) {
        Ok(()) | Err(ConnectionError::Gone | ConnectionError::Stopped) => info!("gone"),
        Err(why) => warn!("ended: {why}"),
    }
}

/// A socket for both has IPv4 as ::ffff:192.0.2.1, which no reader of the log looks for.
fn as_ipv4(peer: SocketAddr) -> SocketAddr {
    match peer.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, peer.port()),
        IpAddr::V6(_) => peer,
    }
}

/// A machine without IPv6 has no such address.
fn is_missing(e: &io::Error) -> bool {
    let errno = Errno::from_io_error(e);
    matches!(errno, Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT))
}

/// Errors of one connection, which is gone then (accept(2)).
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
