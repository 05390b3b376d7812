use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sftp::Parts;
use sftp::blocks::BlockSumKey;
use wire::PayloadBlock;

use crate::delta::{BasisIndex, BasisRangeComparison, MatchedRange};

use crate::{Attributes, ExtraMetadata, JobId, LaneEvent, LocalTargetPath, RemotePath, ResumeData};

/// Bytes of a file that have arrived from one host when its upload to another host begins; of a
/// smaller file all have. An upload that waits for its source takes room on a lane. If the lane of
/// its download waited in turn for room in the buffer of another file, whose upload is queued behind
/// that one, both would wait for ever.
pub const UPLOAD_BEGINS: u64 = 256 << 10;

/// A local file operation that a lane requests. The disk side answers each with one [`DiskReply`]
/// for the same job. Operations of one job run in request order, except that reads (and writes) of
/// one file may run in parallel.
#[derive(Debug)]
pub enum DiskRequest {
    /// Opens the source for reading, calls fstat and reads the first bytes into `first` (up to its
    /// room, see [`PayloadBlock::grow`]; the block is truncated to what was read). A file that ends
    /// within `first` is closed at once (`eof` in the reply). With no room in `first`, the source
    /// is only opened and stat'ed and stays open. Requested again for the same job when an upload
    /// starts over after its source was closed.
    OpenSource {
        /// Job that the operation belongs to.
        job: JobId,
        /// Path of the source file.
        path: PathBuf,
        /// Empty block with the room to fill.
        first: PayloadBlock,
        /// Report holes of a sparse source as [`DiskReply::Hole`]; a read ends where a hole begins.
        sparse: bool,
        /// Compress the first bytes as `ReadPacked` does, if the file is at least this many bytes
        /// long or does not end within `first`. `None`: do not compress.
        pack: Option<u64>,
    },
    /// Lets this job use the open source or target of job `file`: reads and writes go to the same
    /// open file, in parallel with those of other jobs. `CloseSource` and `Discard` of this job
    /// only drop its reference; the file is closed with `file`'s own. `file` may belong to another
    /// lane or connection.
    Join {
        /// Job that the operation belongs to.
        job: JobId,
        /// Job that opened the file.
        file: JobId,
    },
    /// Waits until the source has data to send, or has none. A local file always has; a file that
    /// comes from another host may have to wait for its download.
    AwaitSource {
        /// Job that the operation belongs to.
        job: JobId,
    },
    /// Reads up to `len` bytes at `offset` into `block`.
    Read {
        /// Job that the operation belongs to.
        job: JobId,
        /// Byte offset to read from.
        offset: u64,
        /// Number of bytes to read.
        len: usize,
        /// Empty block with room for `len` bytes.
        block: PayloadBlock,
    },
    /// Reads up to `len` bytes at `offset` into `block` and compresses them if that makes them
    /// smaller; answered by [`DiskReply::Packed`].
    ReadPacked {
        /// Job that the operation belongs to.
        job: JobId,
        /// Byte offset to read from.
        offset: u64,
        /// Number of bytes to read.
        len: usize,
        /// Empty block with room for `len` bytes.
        block: PayloadBlock,
    },
    /// Decompresses `packed` and writes the resulting `len` bytes at `offset`; fails if the length
    /// differs. Answered as a `Write`.
    WritePacked {
        /// Job that the operation belongs to.
        job: JobId,
        /// Byte offset to write to.
        offset: u64,
        /// Length in bytes after decompression, as claimed by the server.
        len: u32,
        /// Compressed data, as received.
        packed: Bytes,
    },
    /// Reads up to `len` bytes of the source at `offset` and compares them, block by block, with
    /// the sums of the basis file at that offset ([`crate::delta::compare`]).
    Compare {
        /// Job that the operation belongs to.
        job: JobId,
        /// Key of the block sums.
        key: BlockSumKey,
        /// Block size in bytes.
        block: u32,
        /// Byte offset to read from, at the start of a block.
        offset: u64,
        /// Number of bytes to read.
        len: usize,
        /// Block sums in wire form, as received.
        basis: Bytes,
    },
    /// Searches the whole basis file for the source's bytes from `from` to `to`
    /// ([`BasisIndex::search`]).
    Search {
        /// Job that the operation belongs to.
        job: JobId,
        /// Index of the basis file's block sums.
        basis: Arc<BasisIndex>,
        /// First byte of the range.
        from: u64,
        /// First byte after the range.
        to: u64,
        /// Size of the source in bytes.
        size: u64,
    },
    /// Opens the file at `target` for reading as the basis file of a delta and creates the
    /// temporary beside it as `CreateTarget` does. `Compare` and `Search` of this job read the
    /// basis file; writes go to the temporary. Nothing is opened when the file is no usable basis:
    /// not a regular file, too small, not writable by the user, or in a directory where no
    /// temporary can be created.
    OpenBasis {
        /// Job that the operation belongs to.
        job: JobId,
        /// Final name of the file.
        target: LocalTargetPath,
        /// Set when the journal has the temporary's name.
        keep: Option<Box<ResumeData>>,
        /// Store blocks of zeros as holes (sparse file).
        sparse: bool,
    },
    /// Copies `len` bytes at `from` of the basis file to `at` of the temporary.
    CopyBasis {
        /// Job that the operation belongs to.
        job: JobId,
        /// Byte offset in the basis file.
        from: u64,
        /// Byte offset in the temporary.
        at: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Reads `len` bytes of the temporary at `offset` and compares their block sums with `sums`
    /// ([`sftp::blocks::BlockSumKind::Rolling`], in wire form).
    CheckRebuilt {
        /// Job that the operation belongs to.
        job: JobId,
        /// Key of the block sums.
        key: BlockSumKey,
        /// Block size in bytes.
        block: u32,
        /// Byte offset to read from, at the start of a block.
        offset: u64,
        /// Number of bytes to read.
        len: usize,
        /// Block sums in wire form, as received.
        sums: Bytes,
    },
    /// Leaves `len` bytes of zeros at `offset`, as a hole if the target supports holes.
    Skip {
        /// Job that the operation belongs to.
        job: JobId,
        /// Byte offset to write to.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Closes the source; succeeds if it is closed already.
    CloseSource {
        /// Job that the operation belongs to.
        job: JobId,
    },
    /// Creates the temporary for `target` beside it (O_EXCL, random name, mode 0600), or opens the
    /// target itself when `inplace` is set or the target exists and is not a regular file. A
    /// symlink in the part of the path that the user named ([`LocalTargetPath`]) is followed first, as
    /// open(2) would; a symlink below that part is replaced.
    CreateTarget {
        /// Job that the operation belongs to.
        job: JobId,
        /// Final name of the file.
        target: LocalTargetPath,
        /// Write directly under the final name.
        inplace: bool,
        /// Size in bytes if known, to preallocate the file.
        size: Option<u64>,
        /// Set when the journal has the temporary's name. A resumable temporary of an earlier run
        /// is opened unchanged ([`DiskReply::Adopted`]).
        keep: Option<Box<ResumeData>>,
        /// Keep the temporary when this process ends; only `Discard` removes it.
        stays: bool,
        /// Store blocks of zeros as holes (sparse file).
        sparse: bool,
    },
    /// Makes the data written so far durable (fsync).
    SyncTarget {
        /// Job that the operation belongs to.
        job: JobId,
    },
    /// Closes the open files of the job and keeps the temporary.
    Leave {
        /// Job that the operation belongs to.
        job: JobId,
        /// Make the data durable before (fsync).
        fsync: bool,
    },
    /// Writes `pieces` consecutively, starting at `offset`.
    Write {
        /// Job that the operation belongs to.
        job: JobId,
        /// Byte offset to write to.
        offset: u64,
        /// Data: slices of the receive segments.
        pieces: Vec<Bytes>,
    },
    /// Completes a target after its last write: truncates it to `size`, sets owner, extended
    /// attributes, mode, access control lists and times in this order (each step would undo a later
    /// one), syncs if requested, closes it and renames it to the final name. Requested right after
    /// the last write, without waiting for its reply: if a write of this job failed, this must fail
    /// too.
    ///
    /// Without `preserve`, the mode is what open(2) gives: `mode & 0777` for a new file, less the
    /// umask or the directory's default access control list; an existing target keeps its own bits.
    /// Metadata that the file system refuses to set is reported and does not fail the job.
    FinishTarget {
        /// Job that the operation belongs to.
        job: JobId,
        /// Final size in bytes.
        size: u64,
        /// Attributes of the source file.
        attributes: Attributes,
        /// Keep the times and the whole mode of the source.
        preserve: bool,
        /// fsync(2) the file and its directory.
        fsync: bool,
        /// Owner, extended attributes and access control lists to set.
        beyond: ExtraMetadata,
    },
    /// Stores a small file in one step: `CreateTarget` (whose fields these are), one `Write` of
    /// `pieces` and `FinishTarget`. On failure nothing is left behind. Saves small files two of
    /// three turns of a disk thread.
    StoreTarget {
        /// Job that the operation belongs to.
        job: JobId,
        /// Final name of the file.
        target: LocalTargetPath,
        /// Write directly under the final name.
        inplace: bool,
        /// This run created the directory, so nothing exists at `target`.
        fresh: bool,
        /// Set when the journal has the temporary's name.
        keep: Option<Box<ResumeData>>,
        /// All bytes of the file, in order.
        pieces: Vec<Bytes>,
        /// `pieces` are compressed and decompress to this many bytes; a different length fails the
        /// job. `None`: not compressed.
        packed: Option<u32>,
        /// Attributes of the source file.
        attributes: Attributes,
        /// Keep the times and the whole mode of the source.
        preserve: bool,
        /// fsync(2) the file and its directory.
        fsync: bool,
        /// Owner, extended attributes and access control lists to set.
        beyond: ExtraMetadata,
        /// Store blocks of zeros as holes (sparse file).
        sparse: bool,
    },
    /// Gives the job up: closes its open files and removes its temporary; succeeds if there is
    /// neither.
    Discard {
        /// Job that the operation belongs to.
        job: JobId,
    },
}

/// Result of a [`DiskRequest`]. The owner of the lanes hands it to the lane that has the job.
#[derive(Debug)]
pub enum DiskReply {
    /// `OpenSource` is done.
    Opened {
        /// Job that the operation belongs to.
        job: JobId,
        /// Attributes of the open file.
        meta: SourceFileMeta,
        /// First bytes of the file.
        first: PayloadBlock,
        /// Decompressed length in bytes of `first`; `None` if it is not compressed.
        packed: Option<u64>,
        /// The file ended within `first` and is closed.
        eof: bool,
    },
    /// `AwaitSource` is done.
    SourceReady {
        /// Job that the operation belongs to.
        job: JobId,
    },
    /// `Read` is done. A block shorter than requested means that the file ends there or, with
    /// `sparse`, that a hole follows; a read of the rest tells which.
    Read {
        /// Job that the operation belongs to.
        job: JobId,
        /// Byte offset to read from.
        offset: u64,
        /// Data read.
        block: PayloadBlock,
    },
    /// `Read` or `ReadPacked` found a hole of the source at `offset`; it may be shorter or longer
    /// than the requested range.
    Hole {
        /// Job that the operation belongs to.
        job: JobId,
        /// Byte offset to read from.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// `ReadPacked` is done.
    Packed {
        /// Job that the operation belongs to.
        job: JobId,
        /// Byte offset to read from.
        offset: u64,
        /// Length in bytes of the source range before compression; less than requested if the file
        /// ends there.
        len: u64,
        /// True if `block` is compressed ([`sftp::packed`]); false if it holds the bytes unchanged.
        smaller: bool,
        /// Data to send.
        block: PayloadBlock,
    },
    /// `Compare` is done.
    Compared {
        /// Job that the operation belongs to.
        job: JobId,
        /// Byte offset to read from.
        offset: u64,
        /// Number of source bytes read, in bytes.
        len: u64,
        /// Blocks that match and ranges that differ.
        compared: BasisRangeComparison,
    },
    /// `Search` is done.
    Searched {
        /// Job that the operation belongs to.
        job: JobId,
        /// First byte of the range.
        from: u64,
        /// First byte after the range.
        to: u64,
        /// Matches found in the basis file, in order; the last may extend beyond `to`.
        found: Vec<MatchedRange>,
    },
    /// `OpenBasis` is done.
    BasisOpened {
        /// Job that the operation belongs to.
        job: JobId,
        /// Size of the basis file in bytes; `None` if there is no usable one.
        size: Option<u64>,
    },
    /// `CopyBasis` is done.
    Copied {
        /// Job that the operation belongs to.
        job: JobId,
        /// Byte offset to write to.
        at: u64,
        /// Length in bytes.
        len: u64,
        /// True if all requested bytes were copied; false if the basis file is shorter or
        /// unreadable.
        whole: bool,
    },
    /// `CheckRebuilt` is done.
    Checked {
        /// Job that the operation belongs to.
        job: JobId,
        /// Byte offset to read from.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// True if the block sums of the temporary match.
        same: bool,
    },
    /// `CreateTarget` is done.
    Created {
        /// Job that the operation belongs to.
        job: JobId,
        /// True if writes may come in any order; false for a FIFO, device or terminal.
        seekable: bool,
    },
    /// `CreateTarget` is done: the temporary of an earlier run is open and seekable.
    Adopted {
        /// Job that the operation belongs to.
        job: JobId,
    },
    /// `SyncTarget` is done.
    Synced {
        /// Job that the operation belongs to.
        job: JobId,
        /// Modification time of the file in nanoseconds since 1970.
        mtime: u64,
    },
    /// `Join` is done.
    Joined {
        /// Job that the operation belongs to.
        job: JobId,
    },
    /// `Write` is done.
    Written {
        /// Job that the operation belongs to.
        job: JobId,
        /// Byte offset to write to.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// `Skip` is done.
    Skipped {
        /// Job that the operation belongs to.
        job: JobId,
        /// Byte offset to write to.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// `FinishTarget` or `StoreTarget` is done: the file exists under its final name.
    Finished {
        /// Job that the operation belongs to.
        job: JobId,
        /// Deviations to report, such as metadata that could not be set.
        stored: StoredTarget,
    },
    /// `CloseSource`, `Discard` or `Leave` is done.
    Released {
        /// Job that the operation belongs to.
        job: JobId,
    },
    /// The operation failed.
    Failed {
        /// Job that the operation belongs to.
        job: JobId,
        /// Reason of the failure.
        fault: JobFailure,
    },
}

impl DiskRequest {
    /// Returns the job of the request.
    pub fn job(&self) -> JobId {
        match self {
            Self::OpenSource { job, .. }
            | Self::Join { job, .. }
            | Self::AwaitSource { job }
            | Self::Read { job, .. }
            | Self::ReadPacked { job, .. }
            | Self::WritePacked { job, .. }
            | Self::Compare { job, .. }
            | Self::Search { job, .. }
            | Self::OpenBasis { job, .. }
            | Self::CopyBasis { job, .. }
            | Self::CheckRebuilt { job, .. }
            | Self::Skip { job, .. }
            | Self::CloseSource { job }
            | Self::CreateTarget { job, .. }
            | Self::SyncTarget { job }
            | Self::Leave { job, .. }
            | Self::Write { job, .. }
            | Self::FinishTarget { job, .. }
            | Self::StoreTarget { job, .. }
            | Self::Discard { job } => *job,
        }
    }
}

impl DiskReply {
    /// Returns the job of the reply.
    pub fn job(&self) -> JobId {
        match self {
            Self::Opened { job, .. }
            | Self::Read { job, .. }
            | Self::Packed { job, .. }
            | Self::Compared { job, .. }
            | Self::Searched { job, .. }
            | Self::BasisOpened { job, .. }
            | Self::Copied { job, .. }
            | Self::Checked { job, .. }
            | Self::Created { job, .. }
            | Self::Adopted { job }
            | Self::Synced { job, .. }
            | Self::Joined { job }
            | Self::SourceReady { job }
            | Self::Hole { job, .. }
            | Self::Written { job, .. }
            | Self::Skipped { job, .. }
            | Self::Finished { job, .. }
            | Self::Released { job }
            | Self::Failed { job, .. } => *job,
        }
    }
}

/// Result of fstat(2) on an open source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFileMeta {
    /// Size, mode and times.
    pub attributes: Attributes,
    /// True if the source is not a regular file: its size is meaningless, and it is read to the
    /// end.
    pub stream: bool,
}

/// Result of storing a target under its final name, with all deviations to report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredTarget {
    /// Metadata that could not be set, and the reason for each.
    pub not_kept: Vec<(Parts, String)>,
    /// The file was written in place, without a temporary.
    pub in_place: bool,
    /// Reason why the file was written in place, unless the user has asked for that.
    pub why_in_place: Option<String>,
    /// Numeric owner and group of the replaced file, if they could not be kept.
    pub belonged: Option<(u32, u32)>,
    /// Number of other hard links of the replaced file; these keep the old contents.
    pub other_names: u64,
}

impl StoredTarget {
    /// Converts the result to the events of `job`.
    pub(crate) fn events(self, job: JobId) -> impl Iterator<Item = LaneEvent> {
        let not_kept = self.not_kept.into_iter();
        let not_kept = not_kept.map(move |(parts, why)| LaneEvent::NotKept(job, parts, why));
        let in_place = self.in_place.then_some(LaneEvent::InPlace(job));
        let belonged = self.belonged.map(|owner| LaneEvent::Belonged(job, owner));
        let names = (self.other_names > 0).then_some(LaneEvent::OtherNames(job, self.other_names));
        let why = self.why_in_place.map(|why| LaneEvent::WhyInPlace(job, why));
        let others = [why, in_place, belonged, names];
        not_kept.chain(others.into_iter().flatten())
    }
}

/// Failure of a [`JobKind::MakeDir`](crate::JobKind::MakeDir) where a file stands, at either end.
pub const FILE_IN_THE_WAY: &str = "a file with this name is there already: remove or rename it, or \
    choose another destination";

/// Reason why a file is written in place: its directory allows no new names.
pub const UNWRITABLE: &str = "the directory is not writable";

/// Returns the reason why a file is written in place that could not be replaced, because of `why`.
pub fn not_replaced(why: impl fmt::Display) -> String {
    format!("the file at the target cannot be replaced ({why})")
}

/// Reason why a job failed: one sentence that names the file, to be escaped for a terminal when
/// shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFailure {
    /// Failure without the path, such as `permission denied` or `no space left on device`.
    pub what: String,
    /// True if the failure happened at the far end.
    pub remote: bool,
    /// Cause, for the code that decides what follows; the sentence is for people only.
    #[serde(default)]
    pub kind: JobFailureKind,
    /// State of the job's temporary.
    #[serde(default)]
    pub temporary: FailedTemporary,
    /// True if the sentence says that the file under the final name may be incomplete.
    #[serde(default)]
    pub tells_incomplete: bool,
}

/// State of the temporary of a failed job, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FailedTemporary {
    /// There was none, it stays for another attempt, or nothing was reported.
    #[default]
    Unknown,
    /// Removed, so that nothing of the file can be continued.
    Removed,
    /// Left at the far end, unless the server removed it after the connection was lost.
    MayBeLeft,
}

/// Cause of a failed job, as far as the owner of the job treats it in another way than any other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobFailureKind {
    /// Any cause without a variant of its own.
    #[default]
    Other,
    /// The file or directory does not exist. SFTP has the same code for a path through a file and
    /// for a loop of symlinks.
    NotFound,
    /// The account may not do this.
    PermissionDenied,
    /// The disk is full, the quota is used up, or the file is too large for the file system.
    NoSpace,
    /// The server does not support the operation.
    Unsupported,
    /// A listing was stopped because it would never have been complete.
    EndlessListing,
    /// A symlink stands where a directory is needed, and is not followed.
    SymlinkInTheWay,
    /// The connection was lost while the job copied between two hosts. The temporary stays, and
    /// another job continues it.
    ConnectionLost,
    /// The job at the other one of two hosts ended early. The temporary stays until the owner knows
    /// why.
    OtherHost,
    /// A copy between two hosts cannot continue the temporary, because the source has changed or the
    /// server does not continue files: another job copies the file from its start.
    StartOver,
    /// The upload of a copy between two hosts begins again after it has taken data: another job reads
    /// the source again.
    ReadAgain,
    /// As `ReadAgain`, and the file has to be written under its final name.
    ReadAgainInPlace,
    /// The temporary that several processes write cannot be used. Another try does not help.
    SharedTemp,
}

impl JobFailure {
    /// Returns the failure of an upload that begins again after it has taken data of another host.
    pub fn data_are_gone(kind: JobFailureKind) -> Self {
        let what = "the file has to be written again, and its data are gone";
        Self::new(what, true).of_kind(kind)
    }

    /// Returns a failure without a kind of its own; `remote` if it happened at the far end.
    pub fn new(what: impl Into<String>, remote: bool) -> Self {
        Self {
            what: what.into(),
            remote,
            kind: JobFailureKind::Other,
            temporary: FailedTemporary::Unknown,
            tells_incomplete: false,
        }
    }

    /// Returns true if the failed upload of a file between two hosts leaves its temporary, if the
    /// journal has the file.
    pub fn leaves_temporary(&self) -> bool {
        matches!(
            self.kind,
            JobFailureKind::ConnectionLost | JobFailureKind::OtherHost
        )
    }

    /// Adds that the temporary at `path` may be left at the far end.
    pub fn leaves(&mut self, path: &RemotePath) {
        let name = sftp::printable(&path.0, 4096);
        self.what.push_str(&format!(
            "; the temporary file {name} may be left at the far end"
        ));
        self.note_temporary(FailedTemporary::MayBeLeft);
    }

    /// Notes what became of the temporary; that it may be left outweighs that it was removed.
    pub fn note_temporary(&mut self, became: FailedTemporary) {
        self.temporary = self.temporary.max(became);
    }

    /// Returns the failure with this kind.
    #[must_use]
    pub fn of_kind(self, kind: JobFailureKind) -> Self {
        Self { kind, ..self }
    }
}
