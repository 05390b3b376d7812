use schedule::{Job, JobHint, JobId, RemotePath, TransferDirection};

use super::disk::LocalStandIn;
use super::remote_commands::RemoteCommandInstruction;

/// Command that a session's handle sends to the session loop.
#[expect(clippy::large_enum_variant, reason = "nearly all of them are jobs")]
pub(super) enum SessionCommand {
    Push(Job, JobHint),
    /// Replaces the local file of a job that is pushed next.
    Bind(JobId, LocalStandIn),
    Exec(RemoteCommandInstruction),
    /// Message to the direct server over its control channel.
    Control(Vec<u8>),
    Cancel(String),
    Leave(String),
    /// Announces this many files and bytes.
    Announce(TransferDirection, u64, u64),
    /// Announces an estimate of the files and bytes.
    Estimate(TransferDirection, u64, u64),
    /// Pauses or resumes tree listings.
    HoldLists(bool),
    /// Directory of the far end below which no symlink is followed, if the server can do so.
    HoldRoot(RemotePath),
    /// The handle was dropped.
    End,
}
