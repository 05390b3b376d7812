//! The part of a session that has threads, sockets and a clock: the handle and its loop.

mod machine;
mod questions;
mod raw;
mod raw_connect;
mod send_queue;
mod session_loop;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, unbounded};
use mio::{Poll, Waker};
use schedule::{Job, JobHint, RemotePath, TransferDirection};
use sftp::ServerInfo;

use self::session_loop::{LoopMessageQueues, SessionLoop, SessionLoopInput, WAKER};
use super::command::SessionCommand;
use super::disk::LocalStandIn;
use super::remote_commands::RemoteCommandInstruction;
use super::server_facts::SessionServerFacts;
use super::{
    ConnectionOpener, Link, RemoteCommandId, RemoteCommandStart, SessionEvent, SessionOptions,
    SessionSummary,
};
use crate::disk::{HostToHostBuffer, OpenDirectoryCache, ReadBackCheck};

pub(crate) use machine::this_machine;
pub use questions::FarEndQuerySession;
pub(crate) use questions::log_notice;
pub use raw::SftpProgramLink;
pub use raw_connect::{ProgramConnectedHost, ProgramConnector, ssh_arguments};
pub use send_queue::SendQueue;

/// A session with a host. Dropping it ends jobs where they are, removes temporaries at this end and
/// closes the link.
pub struct Session {
    orders: Sender<SessionLoopInput>,
    events: Receiver<SessionEvent>,
    waker: Arc<LoopWaker>,
    facts: Arc<SessionServerFacts>,
    connection_source: Option<Arc<dyn ConnectionOpener>>,
    directories: Arc<OpenDirectoryCache>,
    expects_trees: bool,
    thread: Option<JoinHandle<SessionSummary>>,
}

/// Wakes the loop. Further calls before the loop looks have no effect.
struct LoopWaker {
    waker: Waker,
    rung: AtomicBool,
}

impl LoopWaker {
    fn wake(&self) {
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
        let waker = Arc::new(LoopWaker {
            waker: Waker::new(poll.registry(), WAKER)?,
            rung: AtomicBool::new(false),
        });
        let (orders, received) = unbounded();
        let (tell, events) = unbounded();
        let facts = Arc::new(SessionServerFacts::default());
        let channels = LoopMessageQueues {
            received,
            orders: orders.clone(),
            events: tell,
            waker: Arc::clone(&waker),
        };
        let connection_source = options.connection_source.clone();
        // Of this session alone: what a copy has named may be another directory in the next one.
        let directories: Arc<OpenDirectoryCache> = Arc::default();
        let shared = (Arc::clone(&facts), Arc::clone(&directories));
        let expects_trees = link.expects_trees();
        let session = SessionLoop::new(poll, options, channels, shared, link)?;
        let thread = std::thread::Builder::new()
            .name("session".to_owned())
            .spawn(move || session.run())?;
        Ok(Self {
            orders,
            events,
            waker,
            facts,
            connection_source,
            directories,
            expects_trees,
            thread: Some(thread),
        })
    }

    /// Cache that resolves the targets of this session's jobs on this machine.
    pub(crate) fn directories(&self) -> &Arc<OpenDirectoryCache> {
        &self.directories
    }

    /// Submits a job. Never blocks: the caller bounds the number of jobs in flight. Events of the
    /// job arrive through [`Session::events`] and end with `Done` or `Failed`. `size` is the size
    /// of the file in bytes, if known; a large file is divided among lanes.
    pub fn submit(&self, job: Job, size: Option<u64>) {
        let hint = JobHint {
            size,
            relayed: false,
        };
        self.command(SessionCommand::Push(job, hint));
    }

    /// Submits a job whose local file is `relay`: the target of a Get, or the source of a Put. Such
    /// a job fails when its channel is lost, instead of starting over. `size` is the size of the
    /// file in bytes if the journal has it: another job can continue its temporary.
    pub fn submit_relayed(&self, job: Job, relay: Arc<HostToHostBuffer>, size: Option<u64>) {
        self.command(SessionCommand::Bind(job.id, LocalStandIn::Relay(relay)));
        let hint = JobHint {
            size,
            relayed: true,
        };
        self.command(SessionCommand::Push(job, hint));
    }

    /// Submits a Get whose data is compared and not stored. Such a job fails when its channel is
    /// lost, instead of starting over.
    pub(crate) fn submit_check(&self, job: Job, check: Arc<ReadBackCheck>) {
        self.command(SessionCommand::Bind(job.id, LocalStandIn::Check(check)));
        let hint = JobHint {
            size: None,
            relayed: true,
        };
        self.command(SessionCommand::Push(job, hint));
    }

    /// Runs `command` at the far end with the account's shell. Output arrives as
    /// [`SessionEvent::Exec`], ending with `RemoteCommandEvent::Ended`.
    pub(crate) fn exec(&self, id: RemoteCommandId, start: RemoteCommandStart) {
        self.command(SessionCommand::Exec(RemoteCommandInstruction::Run(
            id, start,
        )));
    }

    /// Sends bytes to the standard input of a command. Unread bytes are held in memory, so the
    /// caller bounds their number.
    pub(crate) fn exec_input(&self, id: RemoteCommandId, bytes: Vec<u8>) {
        self.command(SessionCommand::Exec(RemoteCommandInstruction::Input(
            id, bytes,
        )));
    }

    /// Ends the standard input of a command.
    pub(crate) fn exec_end(&self, id: RemoteCommandId) {
        self.command(SessionCommand::Exec(RemoteCommandInstruction::End(id)));
    }

    /// Closes the channel of a command; no more events of it arrive.
    pub(crate) fn exec_stop(&self, id: RemoteCommandId) {
        self.command(SessionCommand::Exec(RemoteCommandInstruction::Stop(id)));
    }

    /// Announces `files` with `bytes` in all before their jobs are submitted, so that further
    /// connections can be opened in time.
    pub fn expect(&self, direction: TransferDirection, files: u64, bytes: u64) {
        self.command(SessionCommand::Announce(direction, files, bytes));
    }

    /// Announces an estimate of the copy's files and bytes, which may be wrong, early enough to
    /// decide about connections.
    pub fn foresee(&self, direction: TransferDirection, files: u64, bytes: u64) {
        self.command(SessionCommand::Estimate(direction, files, bytes));
    }

    /// Pauses or resumes the tree listings in progress. The caller must hold the names that still
    /// arrive.
    pub fn hold_lists(&self, hold: bool) {
        self.command(SessionCommand::HoldLists(hold));
    }

    /// Has a longhaul at the far end follow no symlink below `root`, a directory that the user
    /// named, for all jobs that are submitted later.
    pub fn hold_root(&self, root: RemotePath) {
        self.command(SessionCommand::HoldRoot(root));
    }

    /// Fails every job with `reason` and removes temporaries at both ends. Each job reports a
    /// `Failed` event.
    pub fn cancel(&self, reason: &str) {
        self.command(SessionCommand::Cancel(reason.to_owned()));
    }

    /// Fails every job with `reason`, but keeps temporaries of large files that the journal can
    /// resume.
    pub fn cancel_resumable(&self, reason: &str) {
        self.command(SessionCommand::Leave(reason.to_owned()));
    }

    /// Receiver of the session's events. Disconnected when the loop has ended.
    pub fn events(&self) -> &Receiver<SessionEvent> {
        &self.events
    }

    /// Version and extensions of the SFTP server, once received; worth storing for the next run.
    pub fn server_info(&self) -> Option<&ServerInfo> {
        self.facts.first()
    }

    /// Time at which the host's servers sent something on a channel last.
    pub(crate) fn heard(&self) -> Option<Instant> {
        self.facts.heard()
    }

    /// Source of further connections to the host, if there is one.
    pub(crate) fn connection_source(&self) -> Option<&Arc<dyn ConnectionOpener>> {
        self.connection_source.as_ref()
    }

    /// Version and extensions of the server that new lanes use: the remote longhaul if there is
    /// one. Stable once [`Session::is_settled`], unless a longhaul is probed later.
    pub(crate) fn far_info(&self) -> Option<&ServerInfo> {
        self.facts.ours().or_else(|| self.facts.first())
    }

    /// True if the server lists whole trees, or is expected to before it has answered.
    pub(crate) fn lists_trees(&self) -> bool {
        self.far_info()
            .map_or(self.expects_trees, |info| info.has("list-tree@longhaul"))
    }

    /// True once it is known which server handles the lanes ([`SessionEvent::ServerKnown`]).
    pub(crate) fn is_settled(&self) -> bool {
        self.facts.is_settled()
    }

    /// Ends the session as dropping does, and returns its summary. The caller fills in the host
    /// name.
    pub fn finish(mut self) -> SessionSummary {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<SessionSummary> {
        let thread = self.thread.take()?;
        self.command(SessionCommand::End);
        thread.join().ok()
    }

    fn command(&self, command: SessionCommand) {
        // A loop that has ended has already sent its last event.
        let _ = self.orders.send(SessionLoopInput::Command(command));
        self.waker.wake();
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
            .field("server", &self.facts.first())
            .finish_non_exhaustive()
    }
}
