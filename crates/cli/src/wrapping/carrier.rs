//! The process beside the program. It carries the bytes of connections that a filter names, and of
//! connections over a proxy whose sockets are non-blocking. The library sends it messages
//! (shim::ipc) and passes sockets; only processes of this user or root are served.

mod owner;
mod pump;
mod socks;

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use shim::ipc::{DONE, HEAD, IpcMessageHeader, IpcRequestKind};
use socket2::SockRef;
use sys::SocketTuning;
use transfer::connect::{pass_socket, passed_socket};

use self::pump::{ConnectionPump, DirectionStats, PumpOutcome};
use super::events::{self, CarriedConnection, CarriedConnectionReason, CarriedWaits};

/// Time limit for a message to arrive, and for a connection after its announcement.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of connections carried at once: each has a thread and two buffers.
const MOST: usize = 2048;
/// Buffer size of each direction, in bytes.
const PIECE: usize = 64 << 10;

/// Carries connections until the program and all of them have ended.
pub(super) struct CarrierServer {
    shared: Arc<CarrierShared>,
    name: String,
    port: u16,
}

/// State that the accepting thread and the threads of carried connections share.
struct CarrierShared {
    state: Mutex<CarrierState>,
    changed: Condvar,
    /// The file of the report.
    report: Option<PathBuf>,
    /// Socket options of our own connections, and the permission to set a congestion control on far
    /// ones.
    tuning: SocketTuning,
    tunes: bool,
}

/// Connections that the carrier knows of, from the library's announcement to the end.
#[derive(Default)]
struct CarrierState {
    /// Carried connections, by the cookie of the program's socket.
    live: HashMap<u64, LiveConnection>,
    /// Errors of lost connections that the program has not seen yet.
    lost: HashMap<u64, Errno>,
    /// Announced connections, by the program's port.
    announced_requests: HashMap<u16, CarryConnectionRequest>,
    /// Number of threads, including those about to start.
    threads: usize,
}

/// Carried connection that has not ended.
#[derive(Default)]
struct LiveConnection {
    /// The socket to the network, once connected.
    net: Option<Arc<OwnedFd>>,
    /// The library's report line for this connection.
    line: Option<Vec<u8>>,
}

/// Message of the preloaded library about a connection, and its sender.
#[derive(Clone)]
struct CarryConnectionRequest {
    header: IpcMessageHeader,
    program: String,
    pid: u32,
    since: Instant,
}

impl CarrierServer {
    /// Starts listening.
    ///
    /// # Errors
    /// The sockets cannot be created.
    pub(super) fn start(
        report: Option<PathBuf>,
        tuning: SocketTuning,
        tunes: bool,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let name = format!("longhaul-wrap-{}-{port}", std::process::id());
        let letters = UnixListener::bind_addr(&UnixAddr::from_abstract_name(&name)?)?;
        let shared = Arc::new(CarrierShared {
            state: Mutex::default(),
            changed: Condvar::new(),
            report,
            tuning,
            tunes,
        });
        let reading = Arc::clone(&shared);
        thread::Builder::new().spawn(move || {
            for stream in letters.incoming().map_while(Result::ok) {
                // An incomplete message has no effect.
                let _ = reading.read(&stream);
            }
        })?;
        let leading = Arc::clone(&shared);
        thread::Builder::new().spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                leading.enter(|shared| shared.carry_announced(stream));
            }
        })?;
        Ok(Self { shared, name, port })
    }

    /// The rule that tells the library how to reach this process.
    pub(super) fn rule(&self) -> String {
        format!("carrier={}@{}", self.name, self.port)
    }

    /// Waits until all connections have ended.
    pub(super) fn finish(self) {
        let mut state = self.shared.lock();
        loop {
            let now = Instant::now();
            state
                .announced_requests
                .retain(|_, request| now - request.since < PATIENCE);
            if state.threads == 0 && state.announced_requests.is_empty() {
                return;
            }
            let waited = self.shared.changed.wait_timeout(state, PATIENCE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl CarrierShared {
    fn lock(&self) -> MutexGuard<'_, CarrierState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a task on a new thread. Returns false if there are too many.
    fn enter(self: &Arc<Self>, run: impl FnOnce(&Self) + Send + 'static) -> bool {
        {
            let mut state = self.lock();
            if state.threads >= MOST {
                return false;
            }
            state.threads += 1;
        }
        let shared = Arc::clone(self);
        let started = thread::Builder::new().spawn(move || {
            run(&shared);
            shared.leave();
        });
        if started.is_err() {
            self.leave();
        }
        started.is_ok()
    }

    fn leave(&self) {
        self.lock().threads -= 1;
        self.changed.notify_all();
    }

    /// Reads one message and answers it.
    fn read(self: &Arc<Self>, mut stream: &UnixStream) -> io::Result<()> {
        let other = socket_peercred(stream)?;
        if other.uid != rustix::process::geteuid() && !other.uid.is_root() {
            return Ok(());
        }
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut head = [0; HEAD];
        stream.read_exact(&mut head)?;
        let header = IpcMessageHeader::read(&head).ok_or(io::ErrorKind::InvalidData)?;
        let mut text = vec![0; header.text];
        stream.read_exact(&mut text)?;
        let request = || CarryConnectionRequest {
            header,
            program: String::from_utf8_lossy(&text).into_owned(),
            pid: other.pid.as_raw_nonzero().get().cast_unsigned(),
            since: Instant::now(),
        };
        match header.kind {
            IpcRequestKind::TakeOver => {
                let program = passed_socket(stream, Some(PATIENCE))?;
                let net = Arc::new(passed_socket(stream, Some(PATIENCE))?);
                let (request, socket) = (request(), Arc::clone(&net));
                self.lock().live.entry(header.key).or_default().net = Some(net);
                let taken = self.enter(move |shared| shared.filter(&request, &program, &socket));
                if !taken {
                    self.lock().live.remove(&header.key);
                }
                let answer = if taken { DONE } else { refusal(Errno::MFILE) };
                stream.write_all(&[answer])
            }
            IpcRequestKind::ConnectVia => {
                self.lock()
                    .announced_requests
                    .insert(header.port, request());
                self.changed.notify_all();
                Ok(())
            }
            IpcRequestKind::LendSocket => {
                let state = self.lock();
                let net = state
                    .live
                    .get(&header.key)
                    .and_then(|live| live.net.clone());
                let lost = state.lost.get(&header.key).copied();
                drop(state);
                match (lost, net) {
                    (Some(error), _) => stream.write_all(&[refusal(error)]),
                    (None, Some(net)) => pass_socket(stream, net.as_fd()),
                    (None, None) => stream.write_all(&[DONE]),
                }
            }
            IpcRequestKind::ReportLine => {
                if let Some(live) = self.lock().live.get_mut(&header.key) {
                    live.line = Some(text);
                }
                stream.write_all(&[DONE])
            }
        }
    }

    /// Carries bytes between the program's end of a socket pair and the network socket.
    fn filter(&self, request: &CarryConnectionRequest, program: &OwnedFd, net: &Arc<OwnedFd>) {
        let socket = SockRef::from(net);
        // Until the end is orderly, closing must reset: this process may be killed.
        let linger = socket.linger().ok().flatten();
        let _ = socket.set_linger(Some(Duration::ZERO));
        if self.carry(request, program, net, CarriedConnectionReason::Filter) {
            let _ = socket.set_linger(linger);
        }
    }

    /// Connects to a proxy, or to the original destination if the proxy refuses, and carries the
    /// connection.
    fn carry_announced(&self, program: TcpStream) {
        if !owner::is_ours(&program).unwrap_or(false) {
            return;
        }
        let Some(request) = self.announced(&program) else {
            return;
        };
        let key = request.header.key;
        let socket = SockRef::from(&program);
        let _ = (
            socket.set_linger(Some(Duration::ZERO)),
            socket.set_tcp_nodelay(true),
        );
        self.lock().live.entry(key).or_default();
        let Ok((net, how)) = socks::connect(&request.header, &self.tuning, self.tunes) else {
            // Dropping the accepted connection resets it.
            self.lock().live.remove(&key);
            return;
        };
        let net = Arc::new(OwnedFd::from(net));
        if self.carry(&request, &program.as_fd(), &net, how) {
            sys::close_orderly(&*net);
            sys::close_orderly(&program);
        }
    }

    /// Waits for the message about a connection, which arrives after it.
    fn announced(&self, program: &TcpStream) -> Option<CarryConnectionRequest> {
        let port = program.peer_addr().ok().as_ref().map(SocketAddr::port)?;
        let until = Instant::now() + PATIENCE;
        let mut state = self.lock();
        loop {
            if let Some(request) = state.announced_requests.remove(&port) {
                return Some(request);
            }
            let left = until.checked_duration_since(Instant::now())?;
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Carries a connection to its end. Returns true if that was orderly.
    fn carry(
        &self,
        request: &CarryConnectionRequest,
        program: &impl AsFd,
        net: &Arc<OwnedFd>,
        how: CarriedConnectionReason,
    ) -> bool {
        let key = request.header.key;
        let do_not_wait = |fd: &SockRef<'_>| fd.set_nonblocking(true);
        let ready =
            do_not_wait(&SockRef::from(program)).and_then(|()| do_not_wait(&SockRef::from(net)));
        let pump = ConnectionPump::new(program, net, PIECE);
        let carried = ready.and_then(|()| {
            pump.run(|error| {
                // Only needed for a socket pair, which cannot be reset.
                if how == CarriedConnectionReason::Filter {
                    self.lock().lost.insert(key, error);
                }
            })
        });
        let tcp = sys::tcp_info(net);
        let live = self.lock().live.remove(&key).unwrap_or_default();
        let Ok((up, down, end)) = carried else {
            return false;
        };
        self.report(request, live.line, tcp.as_ref(), how, (up, down));
        end == PumpOutcome::Closed
    }

    fn report(
        &self,
        request: &CarryConnectionRequest,
        line: Option<Vec<u8>>,
        tcp: Option<&sys::TcpInfo>,
        how: CarriedConnectionReason,
        (up, down): (DirectionStats, DirectionStats),
    ) {
        let Some(file) = &self.report else {
            return;
        };
        let connection = CarriedConnection {
            program: &request.program,
            pid: request.pid,
            peer: request.header.peer,
            via: (how == CarriedConnectionReason::Socks).then_some(request.header.via),
            lasted: request.since.elapsed(),
            bytes: (up.bytes, down.bytes),
        };
        let carried = CarriedWaits {
            how,
            program_wrote: up.for_source.into(),
            network_took: up.for_sink.into(),
            network_sent: down.for_source.into(),
            program_read: down.for_sink.into(),
        };
        events::append(file, line.as_deref(), &connection, tcp, &carried);
    }
}

/// Encodes an error as an answer's byte.
fn refusal(error: Errno) -> u8 {
    u8::try_from(error.raw_os_error()).unwrap_or(u8::MAX)
}

impl From<pump::WaitTotals> for events::WaitMicros {
    fn from(waited: pump::WaitTotals) -> Self {
        let us = |time: Duration| time.as_micros() as u64;
        Self {
            total_us: us(waited.total),
            longest_us: us(waited.longest),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::*;

    /// Bug: every user could connect, hold a thread for ten seconds, and get the connection of a
    /// program that had the same port number at another loopback address.
    #[test]
    fn a_connection_of_another_user_is_closed_at_once() {
        const NOBODY: u32 = 65_534;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let carrier = CarrierServer::start(None, SocketTuning::default(), false).unwrap();
        // read fails with 1 at the end of the stream, and with more than 128 after the time limit.
        let script = "exec 3<>/dev/tcp/127.0.0.1/$0 || exit 2; read -t 5 -u 3; exit $?";
        let mut other = Command::new("/bin/bash");
        other.args(["-c", script, &carrier.port.to_string()]);
        let ended = other.uid(NOBODY).current_dir("/").status().unwrap();
        assert_eq!(ended.code(), Some(1));
    }
}
