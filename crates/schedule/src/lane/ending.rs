use std::fmt;

use crate::{DiskRequest, Job, JobId, RemotePath};

/// Reason why a lane cannot be used any more; the scheduler gives its unfinished jobs to other
/// lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneError {
    /// The server behaves differently from the prediction: close this channel and repeat unfinished
    /// jobs on another one without prediction.
    Misprediction(&'static str),
    /// The server violated the protocol.
    Protocol(sftp::Error),
    /// The server closed the channel.
    Closed(String),
    /// The connection of the channel was lost.
    ConnectionLost(String),
    /// This end closed the channel: the server did not answer, or is not the expected program.
    GivenUp(String),
    /// This end closed the channel, since no longhaul is at the far end: another program, or none,
    /// answered the command that starts one.
    NoLonghaul(String),
    /// This end closed the channel, since other lanes had to do its work ([`crate::LaneOrder::Close`]).
    Stalled,
    /// The server announces hold-root@longhaul, and refused to hold a directory: a symlink below it
    /// could lead requests elsewhere.
    RootRefused(String),
}

impl fmt::Display for LaneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misprediction(what) => write!(
                f,
                "{what}; copying the files concerned again, without sending requests ahead of \
                 answers"
            ),
            Self::Protocol(error) => error.fmt(f),
            Self::RootRefused(status) => {
                write!(
                    f,
                    "the server cannot keep the target directory open: {status}"
                )
            }
            // The reason is a sentence about the SFTP server or its channel.
            Self::Closed(reason) | Self::ConnectionLost(reason) => f.write_str(reason),
            Self::GivenUp(reason) | Self::NoLonghaul(reason) => {
                write!(f, "longhaul closed the SFTP channel: {reason}")
            }
            Self::Stalled => f.write_str(
                "the server stopped answering on an SFTP channel, which longhaul closed",
            ),
        }
    }
}

impl std::error::Error for LaneError {}

/// Work that is left when a lane ends before its jobs.
#[derive(Debug, Default)]
pub struct UnfinishedWork {
    /// Jobs for another lane, in the order of their ids.
    pub jobs: Vec<Job>,
    /// Remote temporaries that may exist and must be removed.
    pub temporaries: Vec<(JobId, RemotePath)>,
    /// Requests that make the disk side release these jobs. Their replies, and those still pending,
    /// must be received and dropped before the jobs are pushed again.
    pub releases: Vec<DiskRequest>,
}
