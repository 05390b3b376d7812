//! A session with a host: a loop on its own thread that drives lanes over a link.
//!
//! [`Session::start`] takes a [`Link`] (a program's pipes, or an SSH connection) and returns a
//! handle: [`schedule::Job`]s go in, [`SessionEvent`]s come out.

mod ask;
mod background_pacer;
mod concurrency;
mod connections;
mod decisions;
mod direct;
mod driver;
mod due;
mod event_batcher;
mod exec;
mod explain;
mod flight;
mod lanes;
mod link;
mod losses;
mod pending_disk_ops;
mod raw;
mod raw_connect;
mod reconnect;
mod remote_server;
mod send_queue;
mod stalls;
mod throttle;
mod timeline;

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use mio::{Poll, Waker};
use schedule::{Direction, Hint, Job, JobId, LaneEvent, PackingMode, Told};
use sftp::ServerInfo;

use self::driver::SessionLoop;
use crate::disk::{DirectoryCache, HostToHostBuffer, ReadBackCheck};
use crate::report::{Decision, FarEnd, SessionReport};
use crate::sums::Ledger;
use crate::timeline::Timeline;

pub use ask::Questions;
pub(crate) use concurrency::{are_small, growth_config};
pub(crate) use direct::lasts_for_straight;
pub use direct::{ControlMessage, Heard};
pub use exec::{RemoteCommandEvent, RemoteCommandId};
pub use link::{
    ChannelId, ConnectionSource, DirectConnect, Link, LinkError, LinkEvent, LinkSample,
    NoMoreConnections, Peer, ProbeResult, RemoteKnowledge, SendWindow,
};
pub use raw::RawLink;
pub use raw_connect::{RawConnect, RawHost, ssh_arguments};
pub use send_queue::SendQueue;

/// Jobs and held items of a copy in flight before its sources are asked for more.
///
/// A path of 1 Gbit/s at 114 ms holds some 3,500 files of 4 KiB, each of which needs two passes,
/// one of them for the rename. With 4,096 jobs, a quarter of them on lanes that had not started
/// them, 100,000 files went at 10,500 per second. With 8,192 jobs, ten lanes in slow start held
/// jobs that the fast lanes could have done.
pub const MOST_JOBS: usize = 16384;

/// Options of a session.
#[derive(Clone)]
pub struct SessionOptions {
    /// Threads for local files. Two overlap reading with opening; more help only on disks that
    /// serve several requests at once.
    pub disk_threads: usize,
    /// Rate limit in bytes per second for all connections and both directions together.
    pub limit: Option<u64>,
    /// Predict handles if the server allows it.
    pub predict: bool,
    /// Source of further connections to the host; `None` limits the session to one.
    pub reach: Option<Arc<dyn ConnectionSource>>,
    /// Fixed number of connections, instead of as many as pay.
    pub connections: Option<u32>,
    /// Fixed number of channels on each connection, instead of as many as pay.
    pub channels: Option<u32>,
    /// Largest number of requests in flight on a channel (`-X nrequests=`).
    pub requests: Option<u64>,
    /// Largest READ and WRITE in bytes (`-X buffer=`).
    pub buffer: Option<u32>,
    /// Switch to a congestion control that tolerates losses when packets are lost.
    pub bear_losses: bool,
    /// Silence after which the user is told what the session waits for, and after which requests
    /// are repeated if the server may have dropped them.
    pub patience: Duration,
    /// Yield to all other traffic ([`schedule::Background`]). Use it with one connection: each
    /// further one would take its own share of the path.
    pub background: bool,
    /// Compress data for the transfer.
    pub pack: PackingMode,
    /// Takes checksums of all files that pass.
    pub ledger: Option<Arc<Ledger>>,
    /// File properties beyond SFTP that a longhaul at the far end should report.
    pub told: Told,
    /// Record of the copy's steps, for `--explain=timeline`.
    pub timeline: Option<Arc<Timeline>>,
}

impl fmt::Debug for SessionOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionOptions")
            .field("disk_threads", &self.disk_threads)
            .field("limit", &self.limit)
            .field("connections", &self.connections)
            .field("channels", &self.channels)
            .finish_non_exhaustive()
    }
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            disk_threads: 2,
            limit: None,
            predict: true,
            reach: None,
            connections: None,
            channels: None,
            requests: None,
            buffer: None,
            patience: Duration::from_secs(10),
            bear_losses: true,
            background: false,
            pack: PackingMode::default(),
            ledger: None,
            told: Told::default(),
            timeline: None,
        }
    }
}

/// Event of a session, in the order in which it happened.
#[derive(Debug)]
pub enum SessionEvent {
    /// Event of a job.
    Lane(LaneEvent),
    /// The job's channel was lost, and the job starts over.
    Restarted(JobId),
    /// Event of a command at the far end.
    Exec(RemoteCommandId, RemoteCommandEvent),
    /// A new connection replaced all earlier ones, which were lost or silent. The far end may have
    /// restarted.
    Rejoined,
    /// The server that handles the lanes is known from now on ([`Session::far_info`]).
    Settled,
    /// Line for the user from the other side, not escaped.
    Says(String),
    /// The transfer stalls: a line for the user that says what it waits for.
    Stalled(String),
    /// The session is about to be lost for this reason. Jobs in flight fail next, and
    /// [`SessionEvent::Lost`] follows.
    Losing(String),
    /// The session is over, with the reason in one sentence. A `Failed` event for each unfinished
    /// job came before.
    Lost(String),
}

/// Summary of a finished session.
#[derive(Clone, Debug, Default)]
pub struct SessionSummary {
    /// Rate and limiter, if files were copied long enough to measure.
    pub report: Option<SessionReport>,
    /// Server that handled the lanes at the far end.
    pub far: FarEnd,
    /// Decisions of the session and their origins.
    pub decisions: Vec<Decision>,
}

#[expect(clippy::large_enum_variant, reason = "nearly all of them are jobs")]
enum Command {
    Push(Job, Hint),
    /// Result of opening a further connection.
    Joined(Result<Box<dyn Link>, NoMoreConnections>),
    /// Result of connecting again after all connections were lost or fell silent.
    Rejoined(Result<Box<dyn Link>, NoMoreConnections>),
    Bind(JobId, Arc<HostToHostBuffer>),
    Check(JobId, Arc<ReadBackCheck>),
    Exec(exec::RemoteCommandOrder),
    /// Message to the direct server over its control channel.
    Straight(Vec<u8>),
    Cancel(String),
    /// Announces this many files and bytes.
    Expect(Direction, u64, u64),
    Foresee(Direction, u64, u64),
    Leave(String),
    /// Pauses or resumes tree listings.
    HoldLists(bool),
    /// The handle was dropped.
    End,
}

/// A session with a host. Dropping it ends jobs where they are, removes temporaries at this end and
/// closes the link.
pub struct Session {
    commands: Sender<Command>,
    events: Receiver<SessionEvent>,
    bell: Arc<LoopWaker>,
    server: Arc<OnceLock<ServerInfo>>,
    far: Arc<RemoteServerInfo>,
    reach: Option<Arc<dyn ConnectionSource>>,
    directories: Arc<DirectoryCache>,
    expects_trees: bool,
    thread: Option<JoinHandle<SessionSummary>>,
}

/// Server that handles the lanes at the far end, once known.
#[derive(Debug, Default)]
pub(super) struct RemoteServerInfo {
    /// Version and extensions of a remote longhaul.
    pub(super) ours: OnceLock<ServerInfo>,
    pub(super) settled: AtomicBool,
}

/// Wakes the loop. Further calls before the loop looks have no effect.
struct LoopWaker {
    waker: Waker,
    rung: AtomicBool,
}

impl LoopWaker {
    fn ring(&self) {
        if !self.rung.swap(true, Ordering::SeqCst) {
            let _ = self.waker.wake();
        }
    }

    fn answer(&self) {
        self.rung.store(false, Ordering::SeqCst);
    }
}

impl Session {
    /// Starts the session's loop on `link`.
    ///
    /// # Errors
    ///
    /// Fails if the poll or the thread cannot be created, or the link cannot be registered.
    pub fn start(link: Box<dyn Link>, options: SessionOptions) -> io::Result<Self> {
        let poll = Poll::new()?;
        let bell = Arc::new(LoopWaker {
            waker: Waker::new(poll.registry(), driver::WAKER)?,
            rung: AtomicBool::new(false),
        });
        let (commands, orders) = unbounded();
        let (tell, events) = unbounded();
        let server = Arc::new(OnceLock::new());
        let far = Arc::new(RemoteServerInfo::default());
        let ends = driver::LoopChannels {
            far: Arc::clone(&far),
            commands: orders,
            orders: commands.clone(),
            events: tell,
            bell: Arc::clone(&bell),
            server: Arc::clone(&server),
        };
        let reach = options.reach.clone();
        // Of this session alone: what a copy has named may be another directory in the next one.
        let directories: Arc<DirectoryCache> = Arc::default();
        let mut driver = SessionLoop::new(poll, options, ends, Arc::clone(&directories))?;
        let expects_trees = link.expects_trees();
        driver.adopt(link)?;
        let thread = std::thread::Builder::new()
            .name("session".to_owned())
            .spawn(move || driver.run())?;
        Ok(Self {
            commands,
            events,
            bell,
            server,
            far,
            reach,
            directories,
            expects_trees,
            thread: Some(thread),
        })
    }

    /// Cache that resolves the targets of this session's jobs on this machine.
    pub(crate) fn directories(&self) -> &Arc<DirectoryCache> {
        &self.directories
    }

    /// Submits a job. Never blocks: the caller bounds the number of jobs in flight. Events of the
    /// job arrive through [`Session::events`] and end with `Done` or `Failed`. `size` is the size
    /// of the file in bytes, if known; a large file is divided among lanes.
    pub fn submit(&self, job: Job, size: Option<u64>) {
        let hint = Hint {
            size,
            relayed: false,
        };
        self.command(Command::Push(job, hint));
    }

    /// Submits a job whose local file is `relay`: the target of a Get, or the source of a Put. Such
    /// a job fails when its channel is lost, instead of starting over.
    pub fn submit_relayed(&self, job: Job, relay: Arc<HostToHostBuffer>) {
        self.command(Command::Bind(job.id, relay));
        let hint = Hint {
            size: None,
            relayed: true,
        };
        self.command(Command::Push(job, hint));
    }

    /// Submits a Get whose data is compared and not stored. Such a job fails when its channel is
    /// lost, instead of starting over.
    pub(crate) fn submit_check(&self, job: Job, check: Arc<ReadBackCheck>) {
        self.command(Command::Check(job.id, check));
        let hint = Hint {
            size: None,
            relayed: true,
        };
        self.command(Command::Push(job, hint));
    }

    /// Runs `command` at the far end with the account's shell. Output arrives as
    /// [`SessionEvent::Exec`], ending with [`RemoteCommandEvent::Over`].
    pub(crate) fn exec(&self, id: RemoteCommandId, command: Vec<u8>) {
        self.command(Command::Exec(exec::RemoteCommandOrder::Run(id, command)));
    }

    /// Sends bytes to the standard input of a command. Unread bytes are held in memory, so the
    /// caller bounds their number.
    pub(crate) fn exec_input(&self, id: RemoteCommandId, bytes: Vec<u8>) {
        self.command(Command::Exec(exec::RemoteCommandOrder::Input(id, bytes)));
    }

    /// Ends the standard input of a command.
    pub(crate) fn exec_end(&self, id: RemoteCommandId) {
        self.command(Command::Exec(exec::RemoteCommandOrder::End(id)));
    }

    /// Closes the channel of a command; no more events of it arrive.
    pub(crate) fn exec_stop(&self, id: RemoteCommandId) {
        self.command(Command::Exec(exec::RemoteCommandOrder::Stop(id)));
    }

    /// Announces `files` with `bytes` in all before their jobs are submitted, so that further
    /// connections can be opened in time.
    pub fn expect(&self, direction: Direction, files: u64, bytes: u64) {
        self.command(Command::Expect(direction, files, bytes));
    }

    /// Announces an estimate of the copy's files and bytes, which may be wrong, early enough to
    /// decide about connections.
    pub fn foresee(&self, direction: Direction, files: u64, bytes: u64) {
        self.command(Command::Foresee(direction, files, bytes));
    }

    /// Pauses or resumes the tree listings in progress. The caller must hold the names that still
    /// arrive.
    pub fn hold_lists(&self, hold: bool) {
        self.command(Command::HoldLists(hold));
    }

    /// Fails every job with `reason` and removes temporaries at both ends. Each job reports a
    /// `Failed` event.
    pub fn cancel(&self, reason: &str) {
        self.command(Command::Cancel(reason.to_owned()));
    }

    /// Fails every job with `reason`, but keeps temporaries of large files that the journal can
    /// resume.
    pub fn leave(&self, reason: &str) {
        self.command(Command::Leave(reason.to_owned()));
    }

    /// Receiver of the session's events. Disconnected when the loop has ended.
    pub fn events(&self) -> &Receiver<SessionEvent> {
        &self.events
    }

    /// Version and extensions of the SFTP server, once received; worth storing for the next run.
    pub fn server_info(&self) -> Option<&ServerInfo> {
        self.server.get()
    }

    /// Source of further connections to the host, if there is one.
    pub(crate) fn reach(&self) -> Option<&Arc<dyn ConnectionSource>> {
        self.reach.as_ref()
    }

    /// Version and extensions of the server that new lanes use: the remote longhaul if there is
    /// one. Stable once [`Session::is_settled`], unless a longhaul is probed later.
    pub(crate) fn far_info(&self) -> Option<&ServerInfo> {
        self.far.ours.get().or_else(|| self.server.get())
    }

    /// True if the server lists whole trees, or is expected to before it has answered.
    pub(crate) fn lists_trees(&self) -> bool {
        self.far_info()
            .map_or(self.expects_trees, |info| info.has("list-tree@longhaul"))
    }

    /// True once it is known which server handles the lanes ([`SessionEvent::Settled`]).
    pub(crate) fn is_settled(&self) -> bool {
        self.far.settled.load(Ordering::Acquire)
    }

    /// Ends the session as dropping does, and returns its summary. The caller fills in the host
    /// name.
    pub fn finish(mut self) -> SessionSummary {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<SessionSummary> {
        let thread = self.thread.take()?;
        self.command(Command::End);
        thread.join().ok()
    }

    fn command(&self, command: Command) {
        // A loop that has ended has already sent its last event.
        let _ = self.commands.send(command);
        self.bell.ring();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("server", &self.server.get())
            .finish_non_exhaustive()
    }
}
