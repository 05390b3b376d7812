//! A session with a host: a loop on its own thread that drives lanes over a link.
//!
//! [`Session::start`] takes a [`Link`] (a program's pipes, or an SSH connection) and gives a
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

use self::driver::Driver;
use crate::disk::{Check, DirectoryCache, Relay};
use crate::report::{Decision, FarEnd, SessionReport};
use crate::sums::Ledger;

pub use ask::Questions;
pub(crate) use concurrency::{are_small, growth_config};
pub(crate) use direct::lasts_for_straight;
pub use direct::{ControlMessage, Heard};
pub use exec::{RemoteCommandEvent, RemoteCommandId};
pub use link::{
    ChannelId, ConnectionSource, DirectConnect, Known, Link, LinkError, LinkEvent, LinkSample,
    NoMoreConnections, Peer, Seen, SendWindow,
};
pub use raw::RawLink;
pub use raw_connect::{RawConnect, RawHost, ssh_arguments};
pub use send_queue::SendQueue;

/// Jobs and held items that a copy has under way before sources are asked for more. The path of a gigabit
/// at 114 ms holds some 3,500 files of 4 KiB, and each is on it twice, the second time for its name.
/// With 4,096, a quarter of them on lanes that had not begun them, 100,000 went at 10,500 a second; with
/// 8,192 ten lanes in slow start held what the quick ones had no more of.
pub const MOST_JOBS: usize = 16384;

/// Choices of a session.
#[derive(Clone)]
pub struct SessionOptions {
    /// Threads for local files. Two overlap reading with opening; more help only on disks that
    /// take several requests at once.
    pub disk_threads: usize,
    /// Bytes a second of all connections, both directions together.
    pub limit: Option<u64>,
    /// Predict handles where the server allows it.
    pub predict: bool,
    /// How more connections to the host are made; without it there is one.
    pub reach: Option<Arc<dyn ConnectionSource>>,
    /// So many connections, and not as many as pay.
    pub connections: Option<u32>,
    /// So many channels on each, and not as many as pay.
    pub channels: Option<u32>,
    /// Most requests in flight on a channel (`-X nrequests=`).
    pub requests: Option<u64>,
    /// Most bytes of a READ and a WRITE (`-X buffer=`).
    pub buffer: Option<u32>,
    /// Where packets are lost, ask for a congestion control that bears it.
    pub bear_losses: bool,
    /// Silence after which the user is told what is waited for, and requests are repeated that a server may have
    /// dropped.
    pub patience: Duration,
    /// Yield to all other traffic ([`schedule::Background`]). One connection is meant to go with it:
    /// each further one would take a share of its own.
    pub background: bool,
    /// Make data smaller for the way.
    pub pack: PackingMode,
    /// Takes the sums of all files that pass.
    pub ledger: Option<Arc<Ledger>>,
    /// What a longhaul at the far end is to tell of files beside what SFTP does.
    pub told: Told,
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
        }
    }
}

/// What a session tells, in the order it happened.
#[derive(Debug)]
pub enum SessionEvent {
    /// Of a job.
    Lane(LaneEvent),
    /// The job's channel was lost: it is done again from its beginning.
    Restarted(JobId),
    /// Of a command at the far end.
    Exec(RemoteCommandId, RemoteCommandEvent),
    /// Connected again after all connections were lost or had fallen silent: what comes now comes
    /// over another one, perhaps from a machine that has started anew.
    Rejoined,
    /// It is known what serves at the far end ([`Session::far_info`]).
    Settled,
    /// A line from the other side for the user, not escaped.
    Says(String),
    /// Nothing moves: a line for the user that says what is waited for.
    Stalled(String),
    /// It will be lost, for this reason: what was under way fails next, and [`SessionEvent::Lost`] follows.
    Losing(String),
    /// The session is over, one sentence why; a `Failed` for each unfinished job came before.
    Lost(String),
}

/// How a session went.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// How the bytes went, where files were copied long enough to measure.
    pub report: Option<SessionReport>,
    /// What served at the far end.
    pub far: FarEnd,
    /// What was decided on the way.
    pub decisions: Vec<Decision>,
}

#[expect(clippy::large_enum_variant, reason = "nearly all of them are jobs")]
enum Command {
    Push(Job, Hint),
    /// A further connection that was asked for.
    Joined(Result<Box<dyn Link>, NoMoreConnections>),
    /// The same after all were lost, or have fallen silent.
    Rejoined(Result<Box<dyn Link>, NoMoreConnections>),
    Bind(JobId, Arc<Relay>),
    Check(JobId, Arc<Check>),
    Exec(exec::Order),
    /// For the far end of what starts connections that go straight.
    Straight(Vec<u8>),
    Cancel(String),
    /// So many files with so many bytes will follow.
    Expect(Direction, u64, u64),
    Foresee(Direction, u64, u64),
    Leave(String),
    /// Nothing more is asked for of trees, or again.
    HoldLists(bool),
    /// The handle is gone.
    End,
}

/// A session with a host. When it is dropped, jobs end where they are, temporaries at this end
/// are removed, and the link is closed.
pub struct Session {
    commands: Sender<Command>,
    events: Receiver<SessionEvent>,
    bell: Arc<LoopWaker>,
    server: Arc<OnceLock<ServerInfo>>,
    far: Arc<RemoteServerInfo>,
    reach: Option<Arc<dyn ConnectionSource>>,
    directories: Arc<DirectoryCache>,
    expects_trees: bool,
    thread: Option<JoinHandle<Ended>>,
}

/// What serves at the far end, once that is known.
#[derive(Debug, Default)]
pub(super) struct RemoteServerInfo {
    /// A longhaul.
    pub(super) ours: OnceLock<ServerInfo>,
    pub(super) settled: AtomicBool,
}

/// Wakes the loop, once however often it is rung before the loop looks.
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
    /// Starts the loop on `link`.
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
        let ends = driver::Ends {
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
        let mut driver = Driver::new(poll, options, ends, Arc::clone(&directories))?;
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

    /// Resolves the targets of its jobs on this machine.
    pub(crate) fn directories(&self) -> &Arc<DirectoryCache> {
        &self.directories
    }

    /// Gives the session a job. It never blocks: how many jobs are under way is for the caller
    /// to bound. Their events come from [`Session::events`], ending in `Done` or `Failed`. `size`
    /// is that of the file it is about, where that is known: a large one is cut over lanes.
    pub fn submit(&self, job: Job, size: Option<u64>) {
        let hint = Hint {
            size,
            relayed: false,
        };
        self.command(Command::Push(job, hint));
    }

    /// Gives the session a job whose local file is `relay`: the target of a Get, or the source
    /// of a Put. Such a job is not done again when its channel is lost, but fails.
    pub fn submit_relayed(&self, job: Job, relay: Arc<Relay>) {
        self.command(Command::Bind(job.id, relay));
        let hint = Hint {
            size: None,
            relayed: true,
        };
        self.command(Command::Push(job, hint));
    }

    /// Gives the session a Get whose bytes are compared and written nowhere. It is not done again
    /// when its channel is lost, but fails.
    pub(crate) fn submit_check(&self, job: Job, check: Arc<Check>) {
        self.command(Command::Check(job.id, check));
        let hint = Hint {
            size: None,
            relayed: true,
        };
        self.command(Command::Push(job, hint));
    }

    /// Runs `command` at the far end, by the account's shell. What it says comes as
    /// [`SessionEvent::Exec`], ending in [`RemoteCommandEvent::Over`].
    pub(crate) fn exec(&self, id: RemoteCommandId, command: Vec<u8>) {
        self.command(Command::Exec(exec::Order::Run(id, command)));
    }

    /// More for the standard input of a command. What was not read yet is held: how much that is,
    /// is for the caller to bound.
    pub(crate) fn exec_input(&self, id: RemoteCommandId, bytes: Vec<u8>) {
        self.command(Command::Exec(exec::Order::Input(id, bytes)));
    }

    /// A command's standard input ends.
    pub(crate) fn exec_end(&self, id: RemoteCommandId) {
        self.command(Command::Exec(exec::Order::End(id)));
    }

    /// Closes a command's channel; nothing more is told of it.
    pub(crate) fn exec_stop(&self, id: RemoteCommandId) {
        self.command(Command::Exec(exec::Order::Stop(id)));
    }

    /// Announces `files` with `bytes` in all before their jobs are there, so that further
    /// connections can be begun in time.
    pub fn expect(&self, direction: Direction, files: u64, bytes: u64) {
        self.command(Command::Expect(direction, files, bytes));
    }

    /// The same of what there probably is, which has to be known to be begun with, and may be wrong.
    pub fn foresee(&self, direction: Direction, files: u64, bytes: u64) {
        self.command(Command::Foresee(direction, files, bytes));
    }

    /// Asks for no more of the trees that are being listed, or goes on: what they bring is for the
    /// caller to hold.
    pub fn hold_lists(&self, hold: bool) {
        self.command(Command::HoldLists(hold));
    }

    /// Fails every job with `reason`, removing temporaries at both ends; each is told.
    pub fn cancel(&self, reason: &str) {
        self.command(Command::Cancel(reason.to_owned()));
    }

    /// The same, but temporaries of large files whose copies are written down stay.
    pub fn leave(&self, reason: &str) {
        self.command(Command::Leave(reason.to_owned()));
    }

    /// What happens. Disconnected when the loop has ended.
    pub fn events(&self) -> &Receiver<SessionEvent> {
        &self.events
    }

    /// What the SFTP server said of itself, once it has; worth remembering for the next time.
    pub fn server_info(&self) -> Option<&ServerInfo> {
        self.server.get()
    }

    /// What more connections to the host are made with, if they can be.
    pub(crate) fn reach(&self) -> Option<&Arc<dyn ConnectionSource>> {
        self.reach.as_ref()
    }

    /// What the server said on which new lanes are opened, a longhaul at the far end where there is
    /// one. Does not change once [`Session::is_settled`], unless a longhaul is asked for later.
    pub(crate) fn far_info(&self) -> Option<&ServerInfo> {
        self.far.ours.get().or_else(|| self.server.get())
    }

    /// Whether the server lists whole trees, or is expected to before it has said anything.
    pub(crate) fn lists_trees(&self) -> bool {
        self.far_info()
            .map_or(self.expects_trees, |info| info.has("list-tree@longhaul"))
    }

    /// Whether it is known what serves at the far end; [`SessionEvent::Settled`] tells.
    pub(crate) fn is_settled(&self) -> bool {
        self.far.settled.load(Ordering::Acquire)
    }

    /// Ends it, as dropping does, and tells how it went. The host's name is left to the caller.
    pub fn finish(mut self) -> Ended {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<Ended> {
        let thread = self.thread.take()?;
        self.command(Command::End);
        thread.join().ok()
    }

    fn command(&self, command: Command) {
        // A loop that has ended said so by an event.
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
