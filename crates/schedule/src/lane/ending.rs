use std::fmt;

use crate::{DiskRequest, Job, JobId, RemotePath};

/// Why a lane is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneError {
    /// The server is not what the prediction took it for: close this channel, and do what is
    /// unfinished on another with prediction off.
    Surprise(&'static str),
    /// The server broke the protocol.
    Protocol(sftp::Error),
    /// The channel was closed.
    Closed(String),
}

impl fmt::Display for LaneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Surprise(what) => write!(f, "{what}; going on without prediction"),
            Self::Protocol(error) => error.fmt(f),
            Self::Closed(reason) => write!(f, "the server closed the SFTP channel: {reason}"),
        }
    }
}

impl std::error::Error for LaneError {}

/// What a lane leaves when it ends before its jobs.
#[derive(Debug, Default)]
pub struct Unfinished {
    /// To be done on another lane, in the order of their ids.
    pub jobs: Vec<Job>,
    /// Names at the far end that may exist and belong to nobody now: to be removed.
    pub temporaries: Vec<(JobId, RemotePath)>,
    /// What the disk must do to forget these jobs. Its replies, and those still on their way,
    /// are nobody's; let them come in before the jobs are pushed again.
    pub releases: Vec<DiskRequest>,
}
