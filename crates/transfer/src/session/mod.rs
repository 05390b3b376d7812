//! A session with a host: lanes on connections that carry the jobs of a copy.
//!
//! [`Session::start`] takes a [`Link`] (a program's pipes, or an SSH connection) and returns a
//! handle: [`schedule::Job`]s go in, [`SessionEvent`]s come out.
//!
//! The files of this folder decide and have no socket, thread or clock: `SessionCore` takes
//! input and the time. `io` has the loop that owns the sockets and threads.

mod background_pacer;
mod command;
mod concurrency;
mod connection;
mod core;
mod decisions;
mod direct;
mod disk;
mod dispatcher;
mod event_batcher;
mod explain;
mod flight;
mod io;
mod lane;
mod lane_set;
mod link;
mod listing_pause_control;
mod losses;
mod machine;
mod nap;
mod next_turn;
mod pacing;
mod pending_disk_ops;
mod question;
mod reconnect;
mod remote_commands;
mod reopening;
mod server_facts;
mod sftp_server_selector;
mod stalls;
#[cfg(test)]
mod tests;
mod throttle;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use schedule::{CompressionMode, JobId, LaneEvent, Told};

use crate::report::{Decision, FarEndServerReport, SessionReport};
use crate::sums::ChecksumLedger;
use crate::timeline::Timeline;

pub(crate) use concurrency::{are_small, growth_config};
pub(crate) use direct::lasts_for_straight;
pub use direct::{ControlSender, DirectServerStatus};
pub use io::{
    FarEndQuerySession, ProgramConnectedHost, ProgramConnector, SendQueue, Session,
    SftpProgramLink, ssh_arguments,
};
pub(crate) use io::{log_notice, this_machine};
pub use link::{
    ConnectionOpener, DirectServerLauncher, FurtherConnectionError, InitialServerFacts, Link,
    LinkChannelId, LinkError, LinkEvent, LinkSample, LonghaulProbeResult, RemoteLonghaulKnowledge,
    RemoteWindowState,
};
pub use question::QuestionError;
pub(crate) use remote_commands::RemoteCommandStart;
pub use remote_commands::{RemoteCommandError, RemoteCommandEvent, RemoteCommandId};
pub(crate) use stalls::SilenceNotices;
pub use stalls::StallNotice;
pub use throttle::SharedRateLimit;

/// Jobs and held items of a copy in flight before its sources are asked for more.
///
/// A path of 1 Gbit/s at 114 ms holds some 3,500 files of 4 KiB, each of which needs two passes,
/// one of them for the rename. With 4,096 jobs, a quarter of them on lanes that had not started
/// them, 100,000 files went at 10,500 per second. With 8,192 jobs, ten lanes in slow start held
/// jobs that the fast lanes could have done.
pub const MOST_JOBS: usize = 16384;

/// Usual value of [`SessionOptions::resume_from`].
pub const RESUME_FROM: u64 = 4 << 20;

/// Silence after which the user is told what is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Options of a session.
#[derive(Clone)]
pub struct SessionOptions {
    /// Threads for local files. Two overlap reading with opening; more help only on disks that
    /// serve several requests at once.
    pub disk_threads: usize,
    /// Rate limit in bytes per second for all connections and both directions together.
    pub limit: Option<u64>,
    /// Limit that this session shares with others. When some of them are over, it is used instead of
    /// `limit`.
    pub shared_limit: Option<SharedRateLimit>,
    /// Predict handles if the server allows it.
    pub predict: bool,
    /// Source of further connections to the host; `None` limits the session to one.
    pub connection_source: Option<Arc<dyn ConnectionOpener>>,
    /// Fixed number of connections, instead of as many as pay.
    pub connections: Option<u32>,
    /// Fixed number of channels on each connection, instead of as many as pay.
    pub channels: Option<u32>,
    /// Largest number of requests in flight on a channel (`-X nrequests=`).
    pub requests: Option<u64>,
    /// Largest READ and WRITE in bytes (`-X buffer=`).
    pub buffer: Option<u32>,
    /// Lower bound of the bytes that a channel may have in flight, instead of 4 MiB. If the process
    /// is killed, its next run sends them again.
    pub min_in_flight: Option<u64>,
    /// Switch to a congestion control that tolerates losses when packets are lost.
    pub bear_losses: bool,
    /// Silence after which the session reports what it waits for, and repeats requests that the
    /// server may have dropped.
    pub patience: Duration,
    /// Bytes that the session must have moved before it connects again because the server is
    /// silent, since a server may be slow to begin. A lost connection is made again in any case.
    pub resume_from: u64,
    /// Set once all else of the run is done: a lost connection is then given up earlier.
    pub awaited: Option<Arc<AtomicBool>>,
    /// Yield to all other traffic ([`schedule::BackgroundRateControl`]). Use it with one
    /// connection: each further one would take its own share of the path.
    pub background: bool,
    /// Compress data for the transfer.
    pub pack: CompressionMode,
    /// Computes checksums of all transferred files.
    pub ledger: Option<Arc<ChecksumLedger>>,
    /// File attributes beyond SFTP's that a longhaul at the far end should report.
    pub told: Told,
    /// Record of the copy's steps, for `--explain=timeline`.
    pub timeline: Option<Arc<Timeline>>,
    /// Called with the figures so far, at most twice a second, for `longhaul doctor --watch`.
    pub live: Option<Arc<LiveFiguresCallback>>,
}

/// Takes the figures of a running session.
pub type LiveFiguresCallback = dyn Fn(SessionReport) + Send + Sync;

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
            shared_limit: None,
            predict: true,
            connection_source: None,
            connections: None,
            channels: None,
            requests: None,
            buffer: None,
            min_in_flight: None,
            patience: PATIENCE,
            resume_from: RESUME_FROM,
            awaited: None,
            bear_losses: true,
            background: false,
            pack: CompressionMode::default(),
            ledger: None,
            told: Told::default(),
            live: None,
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
    Reconnected,
    /// The server that handles the lanes is known from now on ([`Session::far_info`]).
    ServerKnown,
    /// Line for the user from the other side, not escaped.
    Message(String),
    /// The transfer stalls.
    Stalled(StallNotice),
    /// The session is about to be lost for this reason. Jobs in flight fail next, and
    /// [`SessionEvent::Lost`] follows.
    AboutToFail(String),
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
    pub far: FarEndServerReport,
    /// Decisions of the session and their origins.
    pub decisions: Vec<Decision>,
}
