//! Events by which a lane reports the progress and the result of a job.

use serde::{Deserialize, Serialize};
use sftp::Parts;
use sftp::xattrs::Xattr;

use crate::{Attributes, JobFailure, JobId, RefusedOperations, UploadTemp};

/// Progress of a file, shared by lanes, the closing line and the journal.
///
/// `Written` and all states before it prove nothing after a crash; only `Synced` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileCopyState {
    /// The file is known and nothing has been sent.
    Planned,
    /// The temporary exists: its OPEN with CREAT|EXCL was answered OK.
    Created,
    /// Every WRITE was answered OK.
    Written,
    /// Attributes are set and CLOSE was answered OK.
    Closed,
    /// The data are durable (fsync answered OK).
    Synced,
    /// The file exists under its final name.
    Renamed,
}

/// Event of a job; events come in the order in which things happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaneEvent {
    /// The file reached the next state.
    State(JobId, FileCopyState),
    /// Number of bytes of file data that the receiving side has confirmed.
    Progress(JobId, u64),
    /// Number of bytes reported by [`LaneEvent::Progress`] that were already at the receiving end.
    Reused(JobId, u64),
    /// Entries of a listing, as name and attributes. Names are checked: not empty, no `/`, no NUL,
    /// not `.` or `..`.
    Entries(JobId, Vec<(Vec<u8>, Attributes)>),
    /// Invalid name in a listing, omitted from `Entries`.
    LeftOut(JobId, Vec<u8>),
    /// Steps of a [`ListTree`](crate::JobKind::ListTree); names are checked as for `Entries`.
    Tree(JobId, Vec<TreeWalkStep>),
    /// Answer of a Stat, or attributes of the existing directory for a MakeDir. For a Put whose
    /// source is read in several pieces: the source's attributes when it was opened. For a Get: those
    /// at the end, if the source was changed after it was opened.
    Attributes(JobId, Attributes),
    /// Answer of a RealPath or ReadSymlink. For a Put: the path of the old file while the new one
    /// gets its name, on a server without posix-rename@openssh.com, which renames only to a free
    /// name.
    Path(JobId, Vec<u8>),
    /// Identity of the file system that a [`FileSystem`](crate::JobKind::FileSystem) asked for.
    FileSystem(JobId, u64),
    /// The temporary of a [`CreateTemp`](crate::JobKind::CreateTemp) exists and other lanes may
    /// write into it.
    Temp(JobId, UploadTemp),
    /// The source ended at this offset, before the end of the range or because the range extends to
    /// the end of the file.
    Ended(JobId, u64),
    /// Offset and length of bytes of a part that were answered OK.
    Written(JobId, u64, u64),
    /// Checkpoint of a cut file for the journal: data at the receiving end.
    Kept(JobId, FileCheckpoint),
    /// Bytes from the first offset up to the second, exclusive, are copied, and every handle that
    /// wrote them was closed without an error; grows with each event. No request in flight writes
    /// these bytes again. Only for files that are cut.
    Safe(JobId, u64, u64),
    /// Message for the user that does not fail the job.
    Warning(JobId, String),
    /// The source ended before the size that it had when it was opened; no failure of the job.
    SourceShrank(JobId),
    /// The source was larger at the end of the job than when it was opened; no failure of the job.
    SourceGrew(JobId),
    /// Answer of a GetXattrs, with the requested names.
    Xattrs(JobId, Vec<Xattr>),
    /// Answer of a Names, in the order of the numbers; empty for an unknown number.
    Names(JobId, Vec<Vec<u8>>, Vec<Vec<u8>>),
    /// Answer of an Ids, in the order of the names; `u32::MAX` for an unknown name.
    Ids(JobId, Vec<u32>, Vec<u32>),
    /// Answer of a Sum: 32 bytes of BLAKE3 of the range, or of the part of it that the file has;
    /// empty for a range without a length.
    Sum(JobId, Vec<u8>),
    /// Metadata that could not be kept, with the reason of the first.
    NotKept(JobId, Parts, String),
    /// Operations that the server refuses for every file, with the reason; the reason is empty if
    /// an earlier lane has found out.
    Refused(JobId, RefusedOperations, String),
    /// The temporary of an upload is being removed: nothing of it can be continued.
    RemovesTemp(JobId),
    /// The file is opened under its final name, without a temporary: until the job is done, the
    /// file there may be empty or incomplete. Only for uploads.
    OpensInPlace(JobId),
    /// The file was written directly under its final name, without a temporary.
    InPlace(JobId),
    /// Reason why the file is written so, unless the user has asked for it.
    WhyInPlace(JobId, String),
    /// Owner and group of the replaced file, which could not be kept.
    Belonged(JobId, (u32, u32)),
    /// Number of other hard links of the replaced file; these keep the old contents.
    OtherNames(JobId, u64),
    /// The job is done; no event with its id follows.
    Done(JobId),
    /// The job failed; no event with its id follows. Temporaries were removed, or the text says
    /// that they could not be.
    Failed(JobId, JobFailure),
    /// The job was given up ([`crate::Lane::abandon`]) and the server refused none of it; no event
    /// with its id follows.
    Abandoned(JobId),
}

/// Step of a walk through a tree, which begins in its topmost directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TreeWalkStep {
    /// An entry of the current directory that the walk does not enter; if it is a directory,
    /// another job has to list it.
    Entry(Vec<u8>, Attributes),
    /// A subdirectory of the current directory, which becomes the current one.
    Enter(Vec<u8>, Attributes),
    /// The current directory ends, and its parent becomes the current one again.
    Leave,
    /// The current directory cannot be listed completely, for this reason.
    Failed(String),
    /// Server's estimate of the contents of the whole tree.
    Count {
        /// Number of regular files.
        files: u64,
        /// Total size of the files in bytes.
        bytes: u64,
    },
}

/// Checkpoint of a file at the receiving end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileCheckpoint {
    /// True if the data were synced; false if they may be only in the receiving machine's memory.
    pub durable: bool,
    /// Modification time of the temporary in nanoseconds since 1970; 0 if unknown.
    pub mtime: u64,
    /// Ranges as first byte and first byte after the range.
    pub ranges: Vec<(u64, u64)>,
}

impl LaneEvent {
    /// Returns the job of the event.
    pub fn job(&self) -> JobId {
        match self {
            Self::State(id, _)
            | Self::Progress(id, _)
            | Self::Reused(id, _)
            | Self::Entries(id, _)
            | Self::LeftOut(id, _)
            | Self::Tree(id, _)
            | Self::Attributes(id, _)
            | Self::Path(id, _)
            | Self::FileSystem(id, _)
            | Self::Temp(id, _)
            | Self::Ended(id, _)
            | Self::Written(id, ..)
            | Self::Kept(id, _)
            | Self::Safe(id, ..)
            | Self::Warning(id, _)
            | Self::SourceShrank(id)
            | Self::SourceGrew(id)
            | Self::Xattrs(id, _)
            | Self::Names(id, ..)
            | Self::Ids(id, ..)
            | Self::NotKept(id, ..)
            | Self::Sum(id, _)
            | Self::Refused(id, ..)
            | Self::RemovesTemp(id)
            | Self::OpensInPlace(id)
            | Self::InPlace(id)
            | Self::WhyInPlace(id, _)
            | Self::Belonged(id, _)
            | Self::OtherNames(id, _)
            | Self::Done(id)
            | Self::Abandoned(id)
            | Self::Failed(id, _) => *id,
        }
    }

    /// Returns true if no event of the job follows.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Failed(..) | Self::Abandoned(_))
    }
}
