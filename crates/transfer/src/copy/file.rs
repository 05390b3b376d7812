//! State of a file that is copied.

mod active;
mod task;

use std::sync::Arc;

use schedule::journal::SourceFileStamp;
use schedule::{Attributes, ExtraMetadata, FileCopyState, JobFailure, SharedTemp};
use sftp::InodeId;

pub(super) use self::active::{ActiveFiles, FileStep};
use super::relayed::RelayedFileJobs;
use super::resume::ResumeTask;
use super::target_kind::{ReportedTargetKind, TargetGuess};
use super::tree::CopyDirectoryId;
use crate::file_error::FileError;
use crate::report::EscapedName;
use crate::sums::FileChecksums;

/// Identifies a file of the run, also in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CopyFileId(pub(super) u64);

/// Part of a file's copy that a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobRole {
    /// The whole copy.
    Whole,
    /// Reads the file from one host into the relay.
    RelayGet,
    /// Writes the file from the relay to the other host.
    RelayPut,
}

/// Temporary file that several processes write, and this process's part of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedTemporaryFile {
    /// Number from which the name of the temporary is made.
    tag: u64,
    /// Size of the file in bytes.
    size: u64,
    /// Work of this process.
    work: SharedTemp,
}

impl SharedTemporaryFile {
    /// A file of `size` bytes. `tag` is the number from which the name of the temporary is made.
    pub(crate) fn new(tag: u64, size: u64, work: SharedTemp) -> Self {
        Self { tag, size, work }
    }

    /// Number from which the name of the temporary is made.
    pub(crate) fn tag(&self) -> u64 {
        self.tag
    }

    /// Work of this process.
    pub(crate) fn work(&self) -> SharedTemp {
        self.work
    }

    /// Size of the file in bytes, and the range of it that this process writes: none if it gives
    /// the file its name.
    pub(crate) fn range(&self) -> (u64, (u64, u64)) {
        let range = match self.work {
            SharedTemp::Range(from, to) => (from, to),
            SharedTemp::Seal => (self.size, self.size),
        };
        (self.size, range)
    }
}

/// State of the file under the final name, if it is written there without a temporary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum InPlaceState {
    /// The file is the one from before the copy, if there was one.
    #[default]
    Untouched,
    /// The file is open, or its OPEN was refused.
    Opened,
    /// An attempt has ended before the file was whole.
    Incomplete,
    /// The whole file was written.
    Written,
}

/// Local file that may be written under its final name, as it was before.
#[derive(Clone, Copy, Debug)]
struct OverwrittenFile {
    /// `None` if nothing had the name.
    before: Option<SourceFileStamp>,
}

/// Version of a source, by which a change during its copy is seen.
#[derive(Debug, Default)]
enum SourceVersion {
    /// Not looked at, or read at once.
    #[default]
    Unknown,
    /// State of a local source when it was opened, which is read in several pieces.
    Opened(OpenedSourceState),
    /// A remote source was in another state at the end than when it was opened.
    Changed,
}

/// Size and modification time of a local source, which a writer changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenedSourceState {
    size: Option<u64>,
    modified: Option<u32>,
    nanoseconds: Option<u32>,
}

impl OpenedSourceState {
    fn new(of: &Attributes) -> Self {
        Self {
            size: of.size,
            modified: of.times.map(|(_, modified)| modified),
            nanoseconds: of.nanoseconds.map(|(_, modified)| modified),
        }
    }
}

/// File that is being copied.
#[derive(Debug)]
pub(super) struct FileTask {
    source: Vec<u8>,
    target: Vec<u8>,
    source_name: EscapedName,
    dir: Option<CopyDirectoryId>,
    attributes: Option<Attributes>,
    /// Identity and size of a local source as the walk saw it.
    identity: Option<SourceFileStamp>,
    size: Option<u64>,
    confirmed: u64,
    state: Option<FileCopyState>,
    in_place: InPlaceState,
    /// Local file that may be written under its final name; `None` at a host.
    overwritten: Option<OverwrittenFile>,
    /// The file was made durable before the rename.
    synced: bool,
    resume: ResumeTask,
    /// Bytes taken from the basis file at the receiver.
    reused: u64,
    relay: Option<Box<RelayedFileJobs>>,
    /// Name of the only complete copy at the target, if the server cannot rename over the old file,
    /// which has been removed.
    stranded: Option<Vec<u8>>,
    guess: Option<Box<GuessedTarget>>,
    /// Checksums of the data that passed, if checksums are wanted.
    sums: Option<Arc<FileChecksums>>,
    source_version: SourceVersion,
    /// The source changed during the copy, which was repeated for that reason.
    changed: bool,
    /// Number of repeated copies.
    repeats: u8,
    /// Metadata to set beyond mode and times, and true once extended attributes were queried.
    beyond: ExtraMetadata,
    xattrs_asked: bool,
    /// Work on a temporary that other processes write as well.
    shared: Option<SharedTemporaryFile>,
    /// Identity of a file of which other names will be hard links to this copy.
    link: Option<InodeId>,
}

#[derive(Debug)]
struct GuessedTarget {
    guess: TargetGuess,
    /// Target path as the user wrote it.
    target: Vec<u8>,
    /// Kind of the target, or the reason why the server did not report it, once it has answered.
    is: Option<Result<ReportedTargetKind, FileError>>,
    fault: Option<JobFailure>,
}
