use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sftp::Parts;
use sftp::blocks::SumKey;
use wire::Block;

use crate::delta::{Basis, Compared, Found};

use crate::{Attributes, ExtraMetadata, JobId, Keep, LaneEvent, LocalPath};

/// A local file operation that a lane wants done. Each is answered by one [`DiskReply`] with the
/// same job; those of one job run in the order they were asked for, except that reads (and
/// writes) of one file may run side by side.
#[derive(Debug)]
pub enum DiskRequest {
    /// Opens the source for reading, stats the open file and reads its first bytes into
    /// `first` ([`Block::grow`] to the room it has, then truncate to what there was).
    /// A file that ended inside `first` is closed at once (`eof` in the reply). May come again
    /// for a job whose source was closed: its upload begins anew. A `first` without room asks
    /// for opening and stat alone, and the file stays open.
    OpenSource {
        /// For which job.
        job: JobId,
        /// The source.
        path: PathBuf,
        /// Empty block with the room to fill.
        first: Block,
        /// Of a file with holes they are told ([`DiskReply::Hole`]), and a read ends where one
        /// begins.
        sparse: bool,
        /// What was read is made smaller where that can be done, as by `ReadPacked`, if it is at
        /// least so many bytes or the file does not end within it.
        pack: Option<u64>,
    },
    /// What `file` has open, as source or target, is this job's as well: its reads and writes
    /// go to the same open file, side by side with those of others. `CloseSource` and `Discard`
    /// of this job let go of it and no more; the file ends with `file`'s own. `file` may belong
    /// to another lane, on another connection.
    Join {
        /// For which job.
        job: JobId,
        /// Whose file.
        file: JobId,
    },
    /// Reads up to `len` bytes at `offset` into `block`.
    Read {
        /// For which job.
        job: JobId,
        /// Where from.
        offset: u64,
        /// How much.
        len: usize,
        /// Empty block with room for it.
        block: Block,
    },
    /// The same, for a block that is to be made smaller, where it can be: [`DiskReply::Packed`].
    ReadPacked {
        /// For which job.
        job: JobId,
        /// Where from.
        offset: u64,
        /// How much.
        len: usize,
        /// Empty block with room for it.
        block: Block,
    },
    /// Writes at `offset` the `len` bytes that `packed` unpacks to; fails where it does not.
    /// Answered as a `Write`.
    WritePacked {
        /// For which job.
        job: JobId,
        /// Where to.
        offset: u64,
        /// How many bytes it claims to be.
        len: u32,
        /// As they came.
        packed: Bytes,
    },
    /// Reads up to `len` bytes of the source at `offset` and compares them, block by block, to the
    /// sums that a basis has there ([`crate::delta::compare`]).
    Compare {
        /// For which job.
        job: JobId,
        /// The sums' key.
        key: SumKey,
        /// Bytes of a block.
        block: u32,
        /// Where from: a block's beginning.
        offset: u64,
        /// How much.
        len: usize,
        /// The sums as they came.
        basis: Bytes,
    },
    /// Looks everywhere in a basis for what the source has from `from` to `to`
    /// ([`Basis::search`]).
    Search {
        /// For which job.
        job: JobId,
        /// Where in.
        basis: Arc<Basis>,
        /// The first byte.
        from: u64,
        /// The one behind the last.
        to: u64,
        /// The source's size.
        size: u64,
    },
    /// Opens what stands at `target` for reading, as the older form of a file that is to be rebuilt,
    /// and creates the temporary beside it as `CreateTarget` does. `Compare` and `Search` of this
    /// job read the older form, and writes go to the temporary. Where that is nothing to build upon
    /// (no regular file, a small one, one that is not the user's to write, a directory where nothing
    /// can be made), nothing is open.
    OpenOlder {
        /// For which job.
        job: JobId,
        /// The final name.
        target: LocalPath,
        /// The temporary's name was written down.
        keep: Option<Box<Keep>>,
        /// Blocks of zeros become holes.
        sparse: bool,
    },
    /// Copies `len` bytes at `from` of the older form to `at` of the temporary.
    CopyOlder {
        /// For which job.
        job: JobId,
        /// Where from, in the older form.
        from: u64,
        /// Where to.
        at: u64,
        /// How many bytes.
        len: u64,
    },
    /// Reads `len` bytes of the temporary at `offset` and says whether their blocks have these sums
    /// ([`sftp::blocks::SumKind::Rolling`], as they came).
    CheckRebuilt {
        /// For which job.
        job: JobId,
        /// The sums' key.
        key: SumKey,
        /// Bytes of a block.
        block: u32,
        /// Where from: a block's beginning.
        offset: u64,
        /// How much.
        len: usize,
        /// The sums as they came.
        sums: Bytes,
    },
    /// There is nothing but zeros in `len` bytes at `offset`: they become a hole where the target can
    /// have one.
    Skip {
        /// For which job.
        job: JobId,
        /// Where to.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// Closes the source; fine where it is closed already.
    CloseSource {
        /// For which job.
        job: JobId,
    },
    /// Creates the temporary for `target` beside it (exclusively, random name, mode 0600), or
    /// opens the target itself when `inplace` is set or it exists and is not a regular file.
    /// A symlink is followed first, as open(2) would, where the user has named the target
    /// ([`LocalPath`]); below that it is replaced.
    CreateTarget {
        /// For which job.
        job: JobId,
        /// The final name.
        target: LocalPath,
        /// Write under the final name.
        inplace: bool,
        /// Size if known, for early allocation.
        size: Option<u64>,
        /// The temporary's name was written down. Where an earlier run has left one that can be
        /// gone on with, it is opened as it is ([`DiskReply::Adopted`]).
        keep: Option<Box<Keep>>,
        /// The temporary stays when this process ends; only `Discard` removes it.
        stays: bool,
        /// Blocks of zeros become holes.
        sparse: bool,
    },
    /// Makes durable what was written so far.
    SyncTarget {
        /// For which job.
        job: JobId,
    },
    /// Closes what is open; a temporary stays.
    Leave {
        /// For which job.
        job: JobId,
    },
    /// Writes `pieces` one after the other at `offset`.
    Write {
        /// For which job.
        job: JobId,
        /// Where to.
        offset: u64,
        /// What: slices of the receive segments.
        pieces: Vec<Bytes>,
    },
    /// All data are written: cuts the file to `size`, sets owner, extended attributes, mode, access
    /// control lists and times (each undoes what it would if it came later), syncs when asked, closes, renames to the final name. Asked for behind the last write, not behind its reply:
    /// when a write of this job failed, this must fail too.
    ///
    /// Mode without `preserve` is as open(2) gives it: `mode & 0777` for a new file, less the umask or
    /// what the directory's default access control list withholds; an existing target's own bits
    /// otherwise. What the file system refuses to set is told and does not fail the job.
    FinishTarget {
        /// For which job.
        job: JobId,
        /// The final size.
        size: u64,
        /// What the source has.
        attributes: Attributes,
        /// Keep times and all of mode.
        preserve: bool,
        /// fsync file and directory.
        fsync: bool,
        /// What else it is to have.
        beyond: ExtraMetadata,
    },
    /// All of it at once: `CreateTarget` (whose fields these are), one `Write` of `pieces` and
    /// `FinishTarget`. Nothing is left of it where it fails. For small files, each of which would
    /// else be three turns of a disk thread.
    StoreTarget {
        /// For which job.
        job: JobId,
        /// The final name.
        target: LocalPath,
        /// Write under the final name.
        inplace: bool,
        /// The directory was made by this run, so that nothing stands there.
        fresh: bool,
        /// The temporary's name was written down.
        keep: Option<Box<Keep>>,
        /// All bytes of the file, in order.
        pieces: Vec<Bytes>,
        /// They are packed, and unpack to so many; it fails where they do not.
        packed: Option<u32>,
        /// What the source has.
        attributes: Attributes,
        /// Keep times and all of mode.
        preserve: bool,
        /// fsync file and directory.
        fsync: bool,
        /// What else it is to have.
        beyond: ExtraMetadata,
        /// Blocks of zeros become holes.
        sparse: bool,
    },
    /// Gives the job up: closes what is open, removes the temporary; fine where neither is.
    Discard {
        /// For which job.
        job: JobId,
    },
}

/// What a [`DiskRequest`] came to.
#[derive(Debug)]
pub enum DiskReply {
    /// `OpenSource` is done.
    Opened {
        /// For which job.
        job: JobId,
        /// The open file's attributes.
        meta: FileMeta,
        /// The first bytes.
        first: Block,
        /// How many bytes of the file those in `first` unpack to, where they were made smaller.
        packed: Option<u64>,
        /// The file ended within `first` and is closed already.
        eof: bool,
    },
    /// `Read` is done; a block shorter than asked for means that the file ends there, or that there is
    /// a hole behind it (`sparse`): whoever asks for the rest is told.
    Read {
        /// For which job.
        job: JobId,
        /// Where from.
        offset: u64,
        /// What.
        block: Block,
    },
    /// `Read` or `ReadPacked` is done: from there on the source has a hole, which may be shorter or
    /// longer than what was asked for.
    Hole {
        /// For which job.
        job: JobId,
        /// Where from.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// `ReadPacked` is done.
    Packed {
        /// For which job.
        job: JobId,
        /// Where from.
        offset: u64,
        /// How many bytes of the source it is; fewer than asked for mean that the file ends there.
        len: u64,
        /// It is what they became ([`sftp::packed`]); else they are in `block` as they are.
        smaller: bool,
        /// What is to be sent.
        block: Block,
    },
    /// `Compare` is done.
    Compared {
        /// For which job.
        job: JobId,
        /// Where from.
        offset: u64,
        /// How many bytes there were.
        len: u64,
        /// What was found.
        compared: Compared,
    },
    /// `Search` is done.
    Searched {
        /// For which job.
        job: JobId,
        /// The first byte.
        from: u64,
        /// The one behind the last.
        to: u64,
        /// What the basis has of it, in order; the last may end behind it.
        found: Vec<Found>,
    },
    /// `OpenOlder` is done.
    Older {
        /// For which job.
        job: JobId,
        /// Bytes of the older form, if there is one.
        size: Option<u64>,
    },
    /// `CopyOlder` is done.
    Copied {
        /// For which job.
        job: JobId,
        /// Where to.
        at: u64,
        /// How many bytes.
        len: u64,
        /// As many as were asked for; else the older form ends before, or cannot be read.
        whole: bool,
    },
    /// `CheckRebuilt` is done.
    Checked {
        /// For which job.
        job: JobId,
        /// Where from.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// They are what the sums are of.
        same: bool,
    },
    /// `CreateTarget` is done.
    Created {
        /// For which job.
        job: JobId,
        /// Writes may come in any order: it is no FIFO, device or terminal.
        seekable: bool,
    },
    /// `CreateTarget` is done: the temporary of an earlier run is open, and seekable.
    Adopted {
        /// For which job.
        job: JobId,
    },
    /// `SyncTarget` is done.
    Synced {
        /// For which job.
        job: JobId,
        /// The file's modification time, nanoseconds.
        mtime: u64,
    },
    /// `Join` is done.
    Joined {
        /// For which job.
        job: JobId,
    },
    /// `Write` is done.
    Written {
        /// For which job.
        job: JobId,
        /// Where to.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// `Skip` is done.
    Skipped {
        /// For which job.
        job: JobId,
        /// Where to.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// `FinishTarget` or `StoreTarget` is done: the file stands under its final name.
    Finished {
        /// For which job.
        job: JobId,
        /// What there is to tell of it.
        stored: StoredTarget,
    },
    /// `CloseSource`, `Discard` or `Leave` is done.
    Released {
        /// For which job.
        job: JobId,
    },
    /// The operation failed.
    Failed {
        /// For which job.
        job: JobId,
        /// Why.
        fault: Fault,
    },
}

impl DiskRequest {
    /// The job it is for.
    pub fn job(&self) -> JobId {
        match self {
            Self::OpenSource { job, .. }
            | Self::Join { job, .. }
            | Self::Read { job, .. }
            | Self::ReadPacked { job, .. }
            | Self::WritePacked { job, .. }
            | Self::Compare { job, .. }
            | Self::Search { job, .. }
            | Self::OpenOlder { job, .. }
            | Self::CopyOlder { job, .. }
            | Self::CheckRebuilt { job, .. }
            | Self::Skip { job, .. }
            | Self::CloseSource { job }
            | Self::CreateTarget { job, .. }
            | Self::SyncTarget { job }
            | Self::Leave { job }
            | Self::Write { job, .. }
            | Self::FinishTarget { job, .. }
            | Self::StoreTarget { job, .. }
            | Self::Discard { job } => *job,
        }
    }
}

impl DiskReply {
    /// The job it is about.
    pub fn job(&self) -> JobId {
        match self {
            Self::Opened { job, .. }
            | Self::Read { job, .. }
            | Self::Packed { job, .. }
            | Self::Compared { job, .. }
            | Self::Searched { job, .. }
            | Self::Older { job, .. }
            | Self::Copied { job, .. }
            | Self::Checked { job, .. }
            | Self::Created { job, .. }
            | Self::Adopted { job }
            | Self::Synced { job, .. }
            | Self::Joined { job }
            | Self::Hole { job, .. }
            | Self::Written { job, .. }
            | Self::Skipped { job, .. }
            | Self::Finished { job, .. }
            | Self::Released { job }
            | Self::Failed { job, .. } => *job,
        }
    }
}

/// What fstat said of an open source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMeta {
    /// Size, mode and times.
    pub attributes: Attributes,
    /// Not a regular file: its size means nothing, read to the end.
    pub stream: bool,
}

/// What there is to tell of a target that stands under its final name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredTarget {
    /// What of the rest could not be set, and why.
    pub not_kept: Vec<(Parts, String)>,
    /// It was written there, without a temporary.
    pub in_place: bool,
    /// It was since nothing can be made beside it.
    pub unwritable: bool,
    /// Why the file that stood there could not be replaced, and was written into.
    pub written_over: Option<String>,
    /// Owner and group of the file that it has replaced, where those could not be kept.
    pub belonged: Option<(u32, u32)>,
    /// How many other names the file has that it has replaced: they keep the old contents.
    pub other_names: u64,
}

impl StoredTarget {
    /// What a job is told of it.
    pub(crate) fn events(self, job: JobId) -> impl Iterator<Item = LaneEvent> {
        let not_kept = self.not_kept.into_iter();
        let not_kept = not_kept.map(move |(parts, why)| LaneEvent::NotKept(job, parts, why));
        let warning = || LaneEvent::Warning(job, UNWRITABLE.to_owned());
        let in_place = self.in_place.then_some(LaneEvent::InPlace(job));
        let belonged = self.belonged.map(|owner| LaneEvent::Belonged(job, owner));
        let names = (self.other_names > 0).then_some(LaneEvent::OtherNames(job, self.other_names));
        let over = |why: String| LaneEvent::Warning(job, written_over(&why));
        let over = self.written_over.map(over);
        let others = [
            over,
            self.unwritable.then(warning),
            in_place,
            belonged,
            names,
        ];
        not_kept.chain(others.into_iter().flatten())
    }
}

/// Why a file was written in place that was to be replaced.
pub const UNWRITABLE: &str = "the directory is not writable: written in place";

/// Tells of a file that could not be replaced, for this reason.
pub fn written_over(why: &str) -> String {
    format!("it cannot be replaced ({why}): written in place")
}

/// Why a job failed: one sentence that names the file, escaped for a terminal when shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// `permission denied`, `no space left on device`, ...: what, without the path.
    pub what: String,
    /// At which end.
    pub remote: bool,
}
