//! Everything that a copy needs from outside: time, random numbers, sessions with hosts, this
//! machine's files and the journal's file.
//!
//! The copy itself never blocks and calls no clock. It is one future: it states in a
//! [`WaitConditions`] what it waits for and returns; the owner of the environment polls it again
//! when that has happened. [`super::threads`] is the environment of a real copy. A simulation has
//! one in virtual time.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use schedule::{Job, RemotePath, TransferDirection};
use sftp::ServerInfo;

use super::HostId;
use super::equal_names::NamedSource;
use super::limits::CopyLimits;
use super::local_file_ops::LocalFileOps;
use super::transfer_estimate::{FileCountThread, TransferEstimate};
use super::wait_conditions::WaitConditions;
use crate::connect::ConnectError;
use crate::disk::{HostToHostBuffer, ReadBackCheck};
use crate::journal::JournalStore;
use crate::session::{RemoteCommandId, RemoteCommandStart, SessionEvent, SessionSummary};
use crate::sums::ChecksumLedger;

/// Everything that a copy needs from outside: time, random numbers, sessions, local files and the
/// journal's file.
pub(super) trait CopyEnvironment {
    /// Current time.
    fn now(&self) -> Instant;

    /// Sizes that decide how the copy proceeds.
    fn limits(&self) -> CopyLimits {
        CopyLimits::default()
    }

    /// Random number for the name of a temporary; it only avoids collisions.
    fn random(&self) -> u64;

    /// True once the user has interrupted the run.
    fn is_cancelled(&self) -> bool;

    /// Opens a session with `host`, to which `coming` will be sent.
    ///
    /// # Errors
    ///
    /// One sentence that says why there is no session.
    fn connect(
        &self,
        host: HostId,
        coming: Option<TransferEstimate>,
    ) -> Result<ConnectedSession, ConnectError>;

    /// Called once all sources are known, before anything is copied, as
    /// [`super::SessionConnector::admit`].
    fn admit(&self, sources: &[NamedSource], differ: bool) -> bool;

    /// Host name as the user wrote it.
    fn name(&self, host: HostId) -> String;

    /// Host name with all that distinguishes it from others, such as the port.
    fn identity(&self, host: HostId) -> String;

    /// True if the two hosts are one, as [`super::SessionConnector::are_one`].
    fn are_one(&self, one: HostId, other: HostId) -> bool;

    /// Ledger in which the sessions collect checksums.
    fn ledger(&self) -> Option<Arc<ChecksumLedger>>;

    /// Files of this machine, for a copy whose target no session resolves.
    fn local(&self) -> Rc<dyn LocalFileOps>;

    /// Counts the files at `paths` while a connection is being made.
    fn count(&self, paths: &[Vec<u8>], recursive: bool) -> FileCountThread;

    /// Journal of the copy that `command` identifies; `target` is a local target.
    fn journal(
        &self,
        command: &[u8],
        target: Option<&Path>,
        folder: Option<&Path>,
    ) -> Box<dyn JournalStore>;

    /// Boot ID of this machine's kernel; empty if unknown.
    fn boot(&self) -> Vec<u8>;

    /// Stores what the copy waits for before it returns.
    fn conditions(&self, conditions: WaitConditions);
}

/// Session with a host, and how to use it.
pub(super) struct ConnectedSession {
    pub remote: Box<dyn RemoteSession>,
    /// Number of the session in a [`WaitConditions`].
    pub number: usize,
    /// Files of this machine, as this session's jobs resolve them.
    pub local: Rc<dyn LocalFileOps>,
    /// Account that logged in, if known.
    pub login: Option<String>,
}

/// Session with a host: jobs go in, events come out.
pub(super) trait RemoteSession {
    /// Submits a job for a file of `size` bytes, if known.
    fn submit(&self, job: Job, size: Option<u64>);
    /// Submits a job whose local file is `relay`; it fails when its channel is lost. `size` is the
    /// size of the file in bytes if another job can continue its temporary.
    fn submit_relayed(&self, job: Job, relay: Arc<HostToHostBuffer>, size: Option<u64>);
    /// Submits a Get whose data is compared; it fails when its channel is lost.
    fn submit_check(&self, job: Job, check: Arc<ReadBackCheck>);
    /// Does something with a command at the far end.
    fn command(&self, id: RemoteCommandId, step: RemoteCommandStep);
    /// Announces files before their jobs are submitted.
    fn expect(&self, direction: TransferDirection, files: u64, bytes: u64);
    /// Announces an estimate of the whole copy.
    fn foresee(&self, direction: TransferDirection, files: u64, bytes: u64);
    /// Pauses or resumes tree listings.
    fn hold_lists(&self, hold: bool);
    /// Has a longhaul at the far end follow no symlink below this directory, for all jobs that are
    /// submitted later.
    fn hold_root(&self, root: RemotePath);
    /// Fails every job with `reason` and removes temporaries.
    fn cancel(&self, reason: &str);
    /// Fails every job with `reason`, but keeps temporaries that the journal can resume.
    fn cancel_resumable(&self, reason: &str);
    /// Time at which the host's servers sent something last.
    fn heard(&self) -> Option<Instant>;
    /// Version and extensions of the host's SFTP server, once known.
    fn server_info(&self) -> Option<&ServerInfo>;
    /// Version and extensions of the server that new lanes use, once known.
    fn far_info(&self) -> Option<&ServerInfo>;
    /// True if that server lists whole trees, or is expected to.
    fn lists_trees(&self) -> bool;
    /// True once it is known which server handles the lanes.
    fn is_settled(&self) -> bool;
    /// True if an earlier copy found a file at `path`.
    fn was_file(&self, path: &[u8]) -> bool;
    /// Notes for later copies if `path` is a file.
    fn note_place(&self, path: &[u8], file: bool);
    /// Takes the next event.
    fn next_event(&self) -> NextEventResult;
    /// Ends the session.
    fn finish(self: Box<Self>) -> SessionSummary;
}

/// Step of a command at the far end.
#[derive(Debug)]
pub(crate) enum RemoteCommandStep {
    /// Runs a command with the account's shell.
    Run(RemoteCommandStart),
    /// Sends bytes to its standard input.
    Input(Vec<u8>),
    /// Ends its standard input.
    EndInput,
    /// Closes its channel.
    Stop,
}

/// Result of [`RemoteSession::next_event`].
#[derive(Debug)]
pub(super) enum NextEventResult {
    Event(SessionEvent),
    /// There is no event now.
    Pending,
    /// The session has ended, and no event follows.
    Ended,
}
