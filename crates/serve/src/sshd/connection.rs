//! Serves one connection: moves bytes between its socket, the SSH engine and the sessions on its
//! channels.

mod zero_copy_write;

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use ssh::channel::{ChannelEvent, ChannelId, LARGE_DATA};
use ssh::key::HostKeySigner;
use ssh::transport::{Identification, TransportEvent};
use ssh::{ConnectionEvent, CryptoHelpers, SealedQueue};
use sys::{HelperThreads, ReceiveBuffers};
use tracing::{debug, warn};
use wire::PacketPool;
use zeroize::Zeroizing;

use super::disconnect::hear_out;
use super::engine::OfferedAlgorithms;
use super::losses::{LastLossCounters, LossDetector};
use super::orphaned_sessions::OrphanedSessions;
use super::session::{FINISHING, SessionChannel};
use super::{ServedClientSettings, StopSignal, engine};
use crate::error::ConnectionEndCause;
use crate::sftp::OpenFileLimit;
use crate::{ExportedTree, TransferCounters};
use zero_copy_write::ZeroCopyWrite;

/// Idle time after which a connection gives back its buffer memory.
const KEEPS_MEMORY: Duration = Duration::from_secs(5);
/// Maximum number of session channels of a connection (MaxSessions of sshd).
pub(super) const MOST_SESSIONS: usize = 10;
/// Idle time after which a connection ends while the server shuts down. A copy of many files is
/// briefly idle between two files.
const DRAIN_IDLE: Duration = Duration::from_secs(2);
/// Idle time at shutdown while a file is open: the client may be waiting for its own source, or may
/// have forgotten the file, as a mounted file system does.
const DRAIN_OPEN: Duration = Duration::from_secs(60);
/// Maximum sealed bytes that wait for the socket, enough for one large writev.
const BATCH: usize = 256 << 10;
/// Maximum bytes read or written in one turn, so that neither direction starves the other.
const TURN: usize = 1 << 20;
/// Interval at which the kernel is asked for the round trip, which windows follow.
const RTT_INTERVAL: Duration = Duration::from_millis(50);
/// Largest channel window towards clients whose buffers can hold it: 2.5 Gbit/s at 200 ms.
const LARGE_WINDOW: u32 = 64 << 20;
/// Number of packet buffers kept for reuse: 2 MiB.
const KEPT: usize = 8;

/// A connection whose client is logged in, as the preauth process hands it over.
pub(super) struct LoggedInConnection<'h> {
    host_keys: Vec<Arc<dyn HostKeySigner>>,
    algorithms: &'h OfferedAlgorithms,
    /// State from [`ssh::Connection::hand_over`]. It contains keys and is dropped once they are
    /// used.
    state: Zeroizing<Vec<u8>>,
    /// Bytes received and not handled yet.
    unread: Vec<u8>,
}

impl<'h> LoggedInConnection<'h> {
    /// Takes the state of the connection and the bytes that are not handled yet from a message.
    pub(super) fn new(
        host_keys: Vec<Arc<dyn HostKeySigner>>,
        algorithms: &'h OfferedAlgorithms,
        (state, unread): (&[u8], &[u8]),
    ) -> Self {
        Self {
            host_keys,
            algorithms,
            state: state.to_vec().into(),
            unread: unread.to_vec(),
        }
    }
}

/// Serves `stream` until the client leaves, or until the connection is idle once `stopping` is
/// readable. Passes the transfer counters of its sessions to `over`.
///
/// # Errors
/// The reason for an abnormal end, which is also sent to the client if possible.
pub(super) fn serve(
    (served, losses): (&ServedClientSettings, &LossDetector),
    stream: TcpStream,
    handed: LoggedInConnection<'_>,
    over: &dyn Fn(TransferCounters),
    stopping: &StopSignal,
) -> Result<(), ConnectionEndCause> {
    let LoggedInConnection {
        host_keys,
        algorithms,
        state,
        unread,
    } = handed;
    let (config, pool) = (
        engine::config(host_keys, algorithms),
        PacketPool::new(LARGE_DATA, KEPT),
    );
    let now = Instant::now();
    let mut conn = ssh::Connection::taken_over(config, pool, engine::random(), now, &state)?;
    drop(state);
    conn.renounce(served.renounced());
    HelperThreads::shared().expect(&stream);
    conn.set_helper(helper());
    match served.open() {
        Ok(export) => {
            conn.announce_host_keys();
            ServedConnection::new((served, &export, losses), stream, conn, unread, over)
                .run(stopping)
        }
        Err(e) => {
            let (why, mut last) = (ConnectionEndCause::Export(e), SealedQueue::default());
            if let Some((reason, words)) = why.farewell() {
                conn.disconnect(reason, &words)?;
            }
            last.fill(&mut conn, BATCH)?;
            // The reason is in the log as well.
            if sys::write_parts(&stream, last.parts()).is_ok() {
                hear_out(&stream);
            }
            Err(why)
        }
    }
}

/// One connection and the sessions on its channels.
pub(super) struct ServedConnection<'s> {
    export: &'s ExportedTree,
    served: &'s ServedClientSettings,
    over: &'s dyn Fn(TransferCounters),
    stream: TcpStream,
    conn: ssh::Connection,
    segments: ReceiveBuffers,
    sending: SealedQueue,
    passing: ZeroCopyWrite,
    sessions: BTreeMap<ChannelId, SessionChannel<'s>>,
    allowance: OpenFileLimit,
    departed: OrphanedSessions<'s>,
    /// The log already says that nothing is encrypted.
    told_clear: bool,
    rtt_asked: Option<Instant>,
    losses: &'s LossDetector,
    /// Counters last reported to `losses`; `None` once the socket uses a loss-tolerant algorithm.
    lost: Option<LastLossCounters>,
    /// Last time at which a request or transfer was active.
    busy: Instant,
    /// The buffer memory was given back since `busy`.
    trimmed: bool,
    /// Last time at which the client took bytes, or at which no bytes waited for it.
    moved: Instant,
    /// The socket can be read, or written, without blocking.
    readable: bool,
    writable: bool,
}

impl<'s> ServedConnection<'s> {
    fn new(
        (served, export, losses): (&'s ServedClientSettings, &'s ExportedTree, &'s LossDetector),
        stream: TcpStream,
        conn: ssh::Connection,
        unread: Vec<u8>,
        over: &'s dyn Fn(TransferCounters),
    ) -> Self {
        let mut sending = SealedQueue::default();
        sending.set_helper(helper());
        let mut segments = ReceiveBuffers::default();
        segments.received().extend_from_slice(&unread);
        let mut new = Self {
            export,
            served,
            over,
            stream,
            conn,
            segments,
            sending,
            passing: ZeroCopyWrite::default(),
            sessions: BTreeMap::new(),
            allowance: OpenFileLimit::of_connection(),
            departed: OrphanedSessions::default(),
            told_clear: false,
            rtt_asked: None,
            losses,
            lost: served.bear_losses.then(LastLossCounters::default),
            busy: Instant::now(),
            trimmed: false,
            moved: Instant::now(),
            readable: true,
            writable: true,
        };
        new.suit();
        new.update_borrow_policy();
        new
    }

    /// Serves until the client leaves, or until the connection is idle once `stopping` is readable.
    ///
    /// # Errors
    /// The reason for an abnormal end, which is also sent to the client if possible.
    fn run(mut self, stopping: &StopSignal) -> Result<(), ConnectionEndCause> {
        let done = self.serve(stopping);
        // All at once: each program has half a second from here to end.
        let sessions = self.sessions.values_mut();
        sessions.for_each(SessionChannel::terminate);
        let farewell = done.as_ref().err().map(ConnectionEndCause::farewell);
        if farewell == Some(None) {
            // The client has left.
            let until = Instant::now() + FINISHING;
            let sessions = self.sessions.values_mut();
            sessions.for_each(|session| session.finish(false, until));
        }
        self.sessions.values().for_each(|s| s.tell(self.over));
        if let Some((reason, words)) = farewell.flatten()
            && self.conn.disconnect(reason, &words).is_ok()
        {
            // The client may already be gone.
            let _ = self.write();
            if self.sending.is_empty() {
                hear_out(&self.stream);
            }
        }
        match done {
            Err(ConnectionEndCause::Stopped) => Ok(()),
            Err(e) if e.is_leave() => Ok(()),
            done => done,
        }
    }

    fn serve(&mut self, stopping: &StopSignal) -> Result<(), ConnectionEndCause> {
        let mut draining = false;
        // Handle the bytes that arrived behind the login.
        self.handle(Instant::now())?;
        loop {
            let now = Instant::now();
            let mut more = self.read(now)?;
            self.conn.handle_timeout(now)?;
            for session in self.sessions.values_mut() {
                session.turn(now, self.conn.channels());
            }
            self.departed.turn(now, self.conn.channels());
            more |= self.write()?;
            // Written bytes have made room for more answers.
            let channels = self.conn.channels();
            more |= self.sessions.values().any(|s| s.has_work(channels));
            self.check_time(now, draining)?;
            self.trim(now);
            draining |= self.wait(now, stopping, draining, more)?;
        }
    }

    /// Gives back buffer memory after [`KEEPS_MEMORY`] without activity.
    fn trim(&mut self, now: Instant) {
        let due = now >= self.busy + KEEPS_MEMORY;
        if due && !self.trimmed {
            self.segments.trim();
            self.passing.trim();
            self.conn.channels().pool().trim();
            self.sessions.values_mut().for_each(SessionChannel::trim);
            sys::give_back_memory();
        }
        self.trimmed = due;
    }

    /// Time at which the connection has been idle long enough to end with the server.
    fn drained(&self) -> Instant {
        let open = self.sessions.values().any(SessionChannel::has_open);
        self.busy + if open { DRAIN_OPEN } else { DRAIN_IDLE }
    }

    /// Ends the connection after a timeout.
    fn check_time(&mut self, now: Instant, draining: bool) -> Result<(), ConnectionEndCause> {
        let channels = self.conn.channels();
        let busy = |s: &SessionChannel<'_>| s.is_busy(channels);
        if self.sessions.values().any(busy) || !self.departed.is_empty() {
            self.busy = now;
        }
        let channels = self.conn.channels();
        let mut waiting = self.sessions.values().map(|s| s.waiting(channels));
        if self.sending.is_empty() && waiting.all(|bytes| bytes == 0) {
            self.moved = now;
        }
        if draining && now >= self.drained() {
            return Err(ConnectionEndCause::Stopped);
        }
        if now >= self.moved + self.served.slow {
            return Err(ConnectionEndCause::Slow);
        }
        match self.served.idle.is_some_and(|idle| now >= self.busy + idle) {
            true => Err(ConnectionEndCause::Idle),
            false => Ok(()),
        }
    }

    /// Waits for the socket, the next deadline or the shutdown of the server; returns true for the
    /// shutdown. Does not wait if there is `more` to do.
    fn wait(
        &mut self,
        now: Instant,
        stopping: &StopSignal,
        draining: bool,
        more: bool,
    ) -> Result<bool, ConnectionEndCause> {
        let mut until = self.conn.poll_timeout();
        let mut earlier = |at: Instant| until = Some(until.map_or(at, |u: Instant| u.min(at)));
        if draining {
            earlier(self.drained());
        }
        if !self.trimmed {
            earlier(self.busy + KEEPS_MEMORY);
        }
        if let Some(idle) = self.served.idle {
            earlier(self.busy + idle);
        }
        if self.moved < now {
            earlier(self.moved + self.served.slow);
        }
        let looks = self.sessions.values().filter_map(|s| s.look(now));
        if let Some(at) = looks.chain(self.departed.look(now)).min() {
            earlier(at);
        }
        let wait = match more {
            true => Some(Duration::ZERO),
            false => until.map(|at| at.saturating_duration_since(now)),
        };
        let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
        let mut wanted = PollFlags::IN;
        wanted.set(PollFlags::OUT, !self.sending.is_empty());
        let mut fds = vec![PollFd::new(&self.stream, wanted)];
        // The shutdown is reported only once.
        if !draining {
            fds.push(PollFd::new(&*stopping.0, PollFlags::IN));
        }
        let channels = self.conn.channels();
        let watched = self.sessions.values().flat_map(|s| s.watch(channels));
        let watched = watched.chain(self.departed.watch(channels));
        fds.extend(watched.map(|(fd, wanted)| PollFd::from_borrowed_fd(fd, wanted)));
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(io::Error::from(e).into()),
        }
        let socket = fds[0].revents();
        self.readable |= socket.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
        self.writable |= socket.intersects(PollFlags::OUT | PollFlags::HUP | PollFlags::ERR);
        Ok(!draining && !fds[1].revents().is_empty())
    }

    /// Reads and handles received bytes, at most [`TURN`]; true if there may be more.
    fn read(&mut self, now: Instant) -> Result<bool, ConnectionEndCause> {
        let mut total = 0;
        while self.readable && total < TURN && !self.is_behind() {
            if let Some(n) = self.pass_by(now)? {
                total += n;
                continue;
            }
            match self.segments.read(&self.stream, self.conn.wanted()) {
                Ok(0) => return Err(ConnectionEndCause::Gone),
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

    fn is_behind(&mut self) -> bool {
        let channels = self.conn.channels();
        self.sessions.values().any(|s| s.is_behind(channels))
    }

    pub(super) fn handle(&mut self, now: Instant) -> Result<(), ConnectionEndCause> {
        let handled = self.conn.handle_input(now, self.segments.received());
        while let Some(event) = self.conn.poll_event() {
            match event {
                ConnectionEvent::Channel(event) => self.handle_channel(event)?,
                ConnectionEvent::Transport(TransportEvent::Keys { first: false }) => {
                    self.update_borrow_policy();
                    self.tell_clear();
                }
                // Events of a client or of the login do not concern this side.
                _ => {}
            }
        }
        Ok(handled?)
    }

    /// Sets how packets may borrow file data from mappings, as the current keys allow.
    fn update_borrow_policy(&mut self) {
        let borrow_policy = self.conn.borrow_policy();
        self.conn.channels().pool().set_borrow_policy(borrow_policy);
        debug!("new session keys; file data is {borrow_policy}");
    }

    fn tell_clear(&mut self) {
        let chosen = self.conn.negotiated();
        let clear = chosen.filter(|n| n.c2s.cipher.is_none() || n.s2c.cipher.is_none());
        if let Some(n) = clear.filter(|_| !self.told_clear) {
            let mac = n.c2s.mac.zip(n.s2c.mac).map_or("none", |(mac, _)| mac.name);
            warn!(
                mac,
                "data is NOT ENCRYPTED: the client requested it and --insecure-none-cipher allows \
                 it"
            );
            self.told_clear = true;
        }
    }

    /// Allows larger packets and windows than OpenSSH's for clients that support them.
    fn suit(&mut self) {
        let peer = self.conn.peer();
        let large_packets = peer.is_some_and(Identification::is_longhaul);
        let large_windows = peer.is_some_and(Identification::takes_large_windows);
        self.passing.use_for(large_packets);
        let channels = self.conn.channels();
        if large_packets {
            channels.set_max_packet(LARGE_DATA as u32);
        }
        if large_windows {
            channels.set_max_window(LARGE_WINDOW);
        }
    }

    fn handle_channel(&mut self, event: ChannelEvent) -> Result<(), ConnectionEndCause> {
        let channels = self.conn.channels();
        match event {
            ChannelEvent::SessionOpened(id) if self.sessions.len() >= MOST_SESSIONS => {
                channels.reject(id, "too many sessions on this connection");
            }
            ChannelEvent::SessionOpened(id) => {
                channels.accept(id);
                self.sessions
                    .insert(id, SessionChannel::new(id, self.allowance.clone()));
            }
            ChannelEvent::Request {
                id,
                name,
                data,
                want_reply,
            } => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    let what = (self.served, self.export);
                    session.request(channels, what, &name, &data, want_reply);
                }
            }
            ChannelEvent::Data(id, bytes) => {
                self.busy = Instant::now();
                match self.sessions.get_mut(&id) {
                    Some(session) => session.data(bytes),
                    None => channels.consumed(Instant::now(), id, bytes.len()),
                }
            }
            ChannelEvent::ExtendedData(id, bytes) => {
                channels.consumed(Instant::now(), id, bytes.len());
            }
            ChannelEvent::Eof(id) => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.eof();
                }
            }
            ChannelEvent::Closed(id) => {
                if let Some(mut session) = self.sessions.remove(&id) {
                    // Seal this session's answers before the session is detached.
                    self.sending.settle(&mut self.conn)?;
                    session.finish(true, Instant::now() + FINISHING);
                    session.tell(self.over);
                    self.departed.add(Instant::now(), session);
                }
            }
            // Events of channels that the server would have opened; it opens none.
            _ => {}
        }
        Ok(())
    }

    /// Writes until the socket is full, at most [`TURN`]; true if it may take more of the remaining
    /// bytes.
    fn write(&mut self) -> Result<bool, ConnectionEndCause> {
        let mut total = 0;
        while self.writable && total < TURN {
            self.sending.fill(&mut self.conn, BATCH)?;
            if self.sending.is_empty() {
                // The remaining data wait for a window.
                self.sending.settle(&mut self.conn)?;
                return Ok(false);
            }
            match sys::write_parts(&self.stream, self.sending.parts()) {
                Ok(n) => {
                    self.moved = Instant::now();
                    total += n;
                    self.sending.written(n);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(e) => return Err(e.into()),
            }
        }
        if !self.writable {
            self.sending.settle(&mut self.conn)?;
        }
        Ok(self.writable)
    }

    fn ask_rtt(&mut self, now: Instant) {
        let asked = self.rtt_asked;
        if !self.served.window_poll || asked.is_some_and(|at| now.duration_since(at) < RTT_INTERVAL)
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
        let lost = self.lost.as_mut();
        if lost.is_some_and(|lost| self.losses.tell(now, lost, &tcp)) {
            self.lost = None;
            let borne = sys::set_congestion_control(&self.stream, "bbr");
            debug!(
                "packets to the client are lost: {}",
                if borne {
                    "switched to BBR"
                } else {
                    "BBR is not available"
                }
            );
        }
    }
}

/// Crypto helper threads, shared by all connections of this process.
fn helper() -> CryptoHelpers {
    let workers = HelperThreads::shared();
    CryptoHelpers::new(|| workers.are_idle(), |work| workers.help(work))
}
