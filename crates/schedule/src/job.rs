use std::borrow::Cow;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sftp::xattrs::Xattr;
use sftp::{ExpectedEntry, MetadataFlags, Parts};

use crate::attributes::OWNER_WRITE;
use crate::byte_ranges::ByteRanges;
use crate::{Attributes, FileCheckpoint, LocalTargetPath, TempDir};
#[cfg(doc)]
use crate::{FileCopyState, LaneEvent};

/// Identifies a job for the duration of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub u64);

/// A path at the far end, as bytes of SFTP; not always UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RemotePath(pub Vec<u8>);

/// Returns the path of the directory that contains `path`, ending in `/.` so that a symlink to a
/// directory is resolved.
pub fn directory_of(path: &[u8]) -> Vec<u8> {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
    let path = path.get(..end).unwrap_or_default();
    let at = path.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
    [path.get(..at).unwrap_or_default(), b"."].concat()
}

/// One unit of work for a lane; serializable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Identifier of the job in events.
    pub id: JobId,
    /// Work to do.
    pub kind: JobKind,
}

/// Work of a [`Job`], with its paths and options. A lane carries it out and reports its end by one
/// last [`LaneEvent`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobKind {
    /// Uploads one file to `target`. The disk side knows the source by this job's id.
    Put {
        /// Path that [`crate::DiskRequest::OpenSource`] opens.
        source: PathBuf,
        /// Final name of the file.
        target: RemotePath,
        /// Options of the copy.
        options: FileCopyOptions,
    },
    /// Uploads one file by delta: unchanged parts are copied from an older version at the far end.
    /// Ends with [`LaneEvent::Abandoned`], leaving nothing behind, if a `Put` is to be done
    /// instead: there is no basis file, a delta does not pay, or the server cannot do it.
    PutDelta {
        /// Path that [`crate::DiskRequest::OpenSource`] opens.
        source: PathBuf,
        /// Final name of the file.
        target: RemotePath,
        /// Options of the copy.
        options: FileCopyOptions,
        /// Use a delta even if the path is faster than the work at both ends.
        always: bool,
    },
    /// Downloads one file from `source` to the local `target`.
    Get {
        /// Remote file to read.
        source: RemotePath,
        /// Final name of the local file.
        target: LocalTargetPath,
        /// Attributes from the listing or STAT; `None` makes the lane ask for them.
        known: Option<Attributes>,
        /// Options of the copy.
        options: FileCopyOptions,
    },
    /// Downloads one file by delta: unchanged parts are taken from the older version at `target`.
    /// Ends with [`LaneEvent::Abandoned`], leaving nothing behind, if a `Get` is to be done
    /// instead: there is no basis file, a delta does not pay, or the server cannot do it.
    GetDelta {
        /// Remote file to read.
        source: RemotePath,
        /// Final name of the local file.
        target: LocalTargetPath,
        /// Attributes from the listing or STAT; `None` makes the lane ask for them.
        known: Option<Attributes>,
        /// Options of the copy.
        options: FileCopyOptions,
        /// Use a delta even if the path is faster than the work at both ends.
        always: bool,
    },
    /// Requests the checksum of a range of a file, at most [`sftp::blocks::MOST_HASHED`] bytes
    /// long. [`LaneEvent::Sum`] comes before `Done`. Fails if the server computes no checksums.
    Sum {
        /// Remote file to hash.
        path: RemotePath,
        /// Range to hash; it has a length.
        span: ByteRange,
        /// Expected size of the file in bytes; the job fails if it differs.
        size: Option<u64>,
    },
    /// Creates a directory. An existing directory counts as success, and its
    /// [`LaneEvent::Attributes`] come before `Done`.
    MakeDir {
        /// Path of the directory.
        path: RemotePath,
        /// Permission bits to create it with; the server's umask applies.
        mode: u32,
        /// Accept a symlink to a directory as an existing one.
        follow: bool,
    },
    /// Sets the given attributes by SETSTAT, or by lsetstat if `follow` is false and `path` is a
    /// symlink.
    SetAttributes {
        /// Path of the file.
        path: RemotePath,
        /// Attributes to set; `size` is ignored.
        attributes: Attributes,
        /// Follow a symlink.
        follow: bool,
        /// Extended attributes and access control lists to set.
        xattrs: Option<Box<Xattrs>>,
        /// Entry that may be changed, for servers that check it (expect@longhaul).
        expected: ExpectedEntry,
    },
    /// Gives the owner write permission for a directory, or takes it, through an open handle: the
    /// other permissions stay as they are at that moment. Fails for anything but a directory.
    SetOwnerWrite {
        /// Path of the directory.
        path: RemotePath,
        /// The change.
        change: OwnerWrite,
    },
    /// Creates a hard link, replacing a file or symlink of that name by rename.
    MakeHardLink {
        /// Path of the new link.
        path: RemotePath,
        /// Path of the existing file.
        of: RemotePath,
        /// Number from which the temporary's name is made, as for [`Self::MakeSymlink`].
        tag: Option<u64>,
    },
    /// Requests extended attributes and access control lists; answered by [`LaneEvent::Xattrs`].
    GetXattrs {
        /// Path of the file.
        path: RemotePath,
        /// Kinds to return, and the choice to follow a symlink.
        flags: MetadataFlags,
    },
    /// Requests the names of users and groups; answered by [`LaneEvent::Names`].
    Names {
        /// Numeric user ids.
        users: Vec<u32>,
        /// Numeric group ids.
        groups: Vec<u32>,
    },
    /// Requests the numeric IDs of users and groups; answered by [`LaneEvent::Ids`].
    Ids {
        /// User names.
        users: Vec<Vec<u8>>,
        /// Group names.
        groups: Vec<Vec<u8>>,
    },
    /// Creates a symlink, replacing a symlink or file of that name by rename.
    MakeSymlink {
        /// Path of the symlink.
        path: RemotePath,
        /// Target text of the symlink.
        points_to: Vec<u8>,
        /// Number from which the temporary's name is made, if it must not be random: an entry of that
        /// name is a leftover of an interrupted run, and is removed. The name is random if that fails.
        tag: Option<u64>,
    },
    /// Reads a symlink.
    ReadSymlink {
        /// Path of the symlink.
        path: RemotePath,
    },
    /// Lists a directory; entries are reported as [`LaneEvent::Entries`] as they arrive. A lane
    /// that predicts handles ends the job with [`LaneEvent::Abandoned`] if the directory is too
    /// long for one flight. The lane that lists it next reports the first entries again, as after a
    /// lost lane.
    List {
        /// Path of the directory.
        path: RemotePath,
        /// Number of entries beyond which the listing fails: an owner that looks for a few names does
        /// not read a directory of millions.
        most: Option<usize>,
    },
    /// Lists a directory and everything below it on servers with list-tree@longhaul. Results come
    /// as [`LaneEvent::Tree`], from the beginning again after a lost lane. Symlinks are not
    /// followed.
    ListTree {
        /// Ask for an estimate of the total number of files and bytes as well.
        count: bool,
        /// Do not enter directories on other file systems than the topmost one.
        same_device: bool,
        /// Path of the topmost directory.
        path: RemotePath,
    },
    /// Requests the attributes of a file.
    Stat {
        /// Path of the file.
        path: RemotePath,
        /// Follow a symlink.
        follow: bool,
    },
    /// Requests the canonical path; `~` and `~user` are resolved by expand-path@openssh.com.
    RealPath {
        /// Path to resolve.
        path: RemotePath,
    },
    /// Asks for the identity of the file system that holds a path, on servers with
    /// statvfs@openssh.com.
    FileSystem {
        /// Path on the file system.
        path: RemotePath,
    },
    /// Makes files durable, and directories with the names in them, on servers with
    /// fsync-set@longhaul; does nothing on others. At most [`sftp::MOST_SYNCED`] paths, in one
    /// message.
    MakeDurable {
        /// Paths to sync. A symlink in the last component is not followed.
        paths: Vec<RemotePath>,
    },
    /// Removes a file.
    Remove {
        /// Path of the file.
        path: RemotePath,
    },
    /// Removes an empty directory.
    RemoveDir {
        /// Path of the directory.
        path: RemotePath,
    },
    /// Gives a file, symlink or directory another name. Fails if something has that name already.
    Rename {
        /// Present path.
        from: RemotePath,
        /// New path.
        to: RemotePath,
    },
    /// First part of an upload over several lanes: looks at the target as a `Put` does, creates the
    /// temporary beside it and writes the first bytes of the source that job `file` has open.
    /// [`LaneEvent::Temp`] comes as soon as other lanes may write into the temporary; from then on
    /// those lanes must remove it. `Done` without this event means that the target must be written
    /// in place by a `Put`, and that nothing was left behind.
    CreateTemp {
        /// Job that opened the source ([`crate::DiskRequest::Join`]).
        file: JobId,
        /// Final name of the file.
        target: RemotePath,
        /// Attributes of the source from fstat.
        attributes: Attributes,
        /// Number of bytes to write, from the start of the file.
        len: u64,
        /// Set the attributes as well, since no other job opens the file.
        alone: bool,
        /// Options of the copy.
        options: FileCopyOptions,
    },
    /// Further part of an upload: opens the temporary without CREAT or TRUNC and writes a range.
    PutRange {
        /// Job that opened the source ([`crate::DiskRequest::Join`]).
        file: JobId,
        /// Size and times of the source, as far as known.
        attributes: Attributes,
        /// Path of the temporary.
        temp: RemotePath,
        /// Range to write.
        span: ByteRange,
    },
    /// Last part of an upload, sent after the CLOSE of every other part was answered: sets size,
    /// mode and times, syncs if requested, and renames. On failure the temporary has been removed,
    /// or the error says where the data are. [`LaneEvent::Abandoned`] means that the server lets no
    /// temporary take this name, and that the file must be written in place.
    FinishTemp {
        /// Temporary from [`LaneEvent::Temp`].
        temp: UploadTemp,
        /// Attributes of the source from fstat.
        attributes: Attributes,
        /// Size in bytes to truncate to; `None` if nothing was written beyond the end.
        cut: Option<u64>,
        /// The lane that wrote the file has already set its attributes.
        set: bool,
        /// Options of the copy.
        options: FileCopyOptions,
    },
    /// Checks if the temporary of an earlier run can be resumed, and which file its rename will
    /// replace. `Done` without [`LaneEvent::Temp`] means that it cannot be resumed.
    AdoptTemp {
        /// Final name of the file.
        target: RemotePath,
        /// Path of the temporary.
        temp: RemotePath,
        /// Ranges of the temporary that the journal lists.
        left: PartialFile,
        /// Size of the source in bytes. A longer temporary would keep its end, which no part writes.
        size: Option<u64>,
        /// Treatment of an entry that exists at the target.
        existing: ExistingTargetPolicy,
    },
    /// Creates the temporary of a file that several processes write, with its final size, or finds
    /// an existing one. Nothing in it is changed.
    CreateShared {
        /// Path of the temporary.
        path: RemotePath,
        /// Size in bytes.
        size: u64,
    },
    /// Makes the data of a temporary durable if the server can sync; [`FileCopyState::Synced`] reports
    /// success. The attributes come as [`LaneEvent::Attributes`].
    SyncTemp {
        /// Path of the temporary.
        temp: RemotePath,
    },
    /// Part of a download, written into the target that job `file` created. Attributes of the open
    /// remote file come as [`LaneEvent::Attributes`], empty if the server sends none.
    GetRange {
        /// Job that created the target ([`crate::DiskRequest::Join`]).
        file: JobId,
        /// Remote file to read.
        source: RemotePath,
        /// Known attributes of the source, with a size.
        known: Attributes,
        /// Range to read.
        span: ByteRange,
        /// Ask the server for holes.
        sparse: bool,
        /// As [`FileCopyOptions::local_end`].
        local_end: LocalEnd,
    },
}

impl JobKind {
    /// Returns the remote path of the job, if it has one.
    pub fn remote_path(&self) -> Option<&RemotePath> {
        match self {
            Self::Put { target, .. } | Self::PutDelta { target, .. } => Some(target),
            Self::Get { source, .. } | Self::GetDelta { source, .. } => Some(source),
            Self::GetRange { source, .. } => Some(source),
            Self::PutRange { temp, .. } => Some(temp),
            Self::Rename { from, .. } => Some(from),
            Self::MakeDir { path, .. }
            | Self::SetAttributes { path, .. }
            | Self::SetOwnerWrite { path, .. }
            | Self::List { path, .. }
            | Self::ListTree { path, .. }
            | Self::Stat { path, .. }
            | Self::RealPath { path }
            | Self::FileSystem { path }
            | Self::Remove { path }
            | Self::RemoveDir { path }
            | Self::CreateShared { path, .. }
            | Self::Sum { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Returns the options with which the job stores a file, if it stores one whole.
    pub(crate) fn put_options(&self) -> Option<&FileCopyOptions> {
        match self {
            Self::Put { options, .. } | Self::Get { options, .. } => Some(options),
            _ => None,
        }
    }

    /// Returns true for jobs answered by one packet at once, which delay no job behind them.
    fn is_question(&self) -> bool {
        matches!(
            self,
            Self::Stat { .. } | Self::RealPath { .. } | Self::FileSystem { .. }
        )
    }
}

/// Returns the queue position for a new listing: behind waiting questions (stat, realpath) and
/// before all else, since the whole tree waits for the listing. Answers come in order, and the
/// parts of a tree are 20 ms of a slow start.
pub(crate) fn place_of_listing<'a>(waiting: impl Iterator<Item = &'a Job>) -> usize {
    waiting.take_while(|job| job.kind.is_question()).count()
}

/// Range of bytes of a file that a job copies or hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes; `None` extends to the end of the file at the time of reading.
    pub len: Option<u64>,
}

impl ByteRange {
    /// Returns the first offset after the range, if it has a length.
    pub fn end(&self) -> Option<u64> {
        self.len.map(|len| self.offset.saturating_add(len))
    }
}

/// Failure of a [`JobKind::MakeDir`] with `follow` at a symlink that leads to nothing, or in a circle.
pub const SYMLINK_LEADS_NOWHERE: &str =
    "the symlink there leads nowhere: remove it, or make the directory to which it leads";

/// Failure of a [`JobKind::MakeDir`] without `follow` where a symlink stands.
pub const SYMLINK_IN_THE_WAY: &str = "a symlink is in the way and is not followed: remove it";

/// Change of the owner's write permission for a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerWrite {
    /// The owner may write afterwards.
    pub granted: bool,
    /// Permission bits without which nothing is changed: another directory may stand there.
    pub only: Option<u32>,
}

impl OwnerWrite {
    /// Returns the permission bits for a directory that has those of `mode`; `None` if they stay.
    pub fn changed(self, mode: u32) -> Option<u32> {
        let mode = mode & 0o7777;
        let wanted = match self.granted {
            true => mode | OWNER_WRITE,
            false => mode & !OWNER_WRITE,
        };
        let is_known = self.only.is_none_or(|only| only == mode);
        (wanted != mode && is_known).then_some(wanted)
    }
}

/// Warning text for a file that is copied a second time.
pub const SOURCE_CHANGED: &str = "changed while it was being read: copying it again";

/// Warning for a source that is larger at the end of its copy than when it was opened.
pub const SOURCE_GREW: &str = "the source grew while it was copied: unless it was only \
    appended to, the copy may mix two versions; copy it again";

/// Message for a source that ended before the size that it had when it was opened.
pub const SOURCE_SHRANK: &str = "the file shrank while it was being read";

/// Failure of a file whose shared temporary cannot be used. Another try does not help.
pub const SHARED_TEMP_LOST: &str = "the unfinished copy of this file was removed or changed, so the \
    shards cannot complete it: make a new plan of the same SRC and DST in another folder and copy \
    its shards; complete files are not sent again";

/// Temporary of an upload, and the file that its rename will replace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadTemp {
    /// Path of the temporary.
    pub temp: RemotePath,
    /// Final name: the target, or the file that the target symlink points to.
    pub target: RemotePath,
    /// True if a regular file exists at `target`.
    pub replaces: bool,
    /// Permission bits of the existing file, if the server sends them; they are kept.
    pub mode: Option<u32>,
    /// Owner and group of the existing file, if the server sends them; they are kept if permitted.
    pub owner: Option<(u32, u32)>,
}

/// Options for the copy of one file in either direction, from the user's flags and the state of its
/// target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileCopyOptions {
    /// Keep modification and access times and permissions (`-p`).
    pub preserve: bool,
    /// Size in bytes beyond which a download fails; `None` without a bound. For files that answer a
    /// question, and not for those that the user copies.
    pub most: Option<u64>,
    /// Write directly under the final name, without temporary and rename.
    pub inplace: bool,
    /// Make the data durable before the rename.
    pub fsync: bool,
    /// The entry that may exist at the target.
    pub existing: ExistingTargetPolicy,
    /// Directory for the temporary, instead of the target's own.
    #[serde(default)]
    pub temp_dir: Option<TempDir>,
    /// Set when the copy is in the journal and can be resumed.
    pub keep: Option<Box<ResumeData>>,
    /// Keep holes of the source as holes of the target.
    pub sparse: bool,
    /// Metadata to set in addition to `preserve`.
    pub beyond: ExtraMetadata,
    /// Source or receiver of the data on this machine.
    #[serde(default)]
    pub local_end: LocalEnd,
}

/// End of a transfer on this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LocalEnd {
    /// A file.
    #[default]
    File,
    /// A buffer between two hosts. Data that wait for room there hold up their download and no other
    /// one of its lane. An upload cannot read them twice, so that it looks at its target first.
    OtherHost,
}

/// Treatment of an entry that may exist at the target of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExistingTargetPolicy {
    /// The target cannot exist, since this run created its directory; skips the check of the
    /// target.
    pub fresh: bool,
    /// Replace a symlink at the target instead of following it, and a FIFO, socket or device instead
    /// of writing to it. Below the path that the user named, another user or an earlier copy may
    /// have created it, and would decide through it which file is written (CVE-2019-6111) or who
    /// gets the data.
    pub replace_node: bool,
    /// Treatment of a file that its owner may not write.
    #[serde(default)]
    pub read_only: ReadOnlyFilePolicy,
}

/// Treatment of a file at the target that its owner may not write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadOnlyFilePolicy {
    /// The server decides if the file may be written, as for scp.
    #[default]
    AskServer,
    /// Replace a file of this size in bytes, which an interrupted run of the same copy may have stored.
    ReplaceOfSize(u64),
    /// Replace any file, as rsync does: the rename needs write permission of the directory only.
    Replace,
}

impl ReadOnlyFilePolicy {
    /// Returns true if a read-only file of `size` bytes is replaced.
    pub(crate) fn replaces(self, size: Option<u64>) -> bool {
        match self {
            Self::AskServer => false,
            Self::ReplaceOfSize(own) => size == Some(own),
            Self::Replace => true,
        }
    }
}

impl ExistingTargetPolicy {
    /// The target cannot exist.
    pub const FRESH: Self = Self {
        fresh: true,
        replace_node: false,
        read_only: ReadOnlyFilePolicy::AskServer,
    };
    /// A symlink at the target is replaced.
    pub const REPLACED_NODE: Self = Self {
        fresh: false,
        replace_node: true,
        read_only: ReadOnlyFilePolicy::AskServer,
    };
}

/// Metadata that a copy does not keep by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraMetadata {
    /// Owner and group, as numeric ids of the receiving end.
    pub owner: Option<(u32, u32)>,
    /// Extended attributes and access control lists.
    pub xattrs: Option<Box<Xattrs>>,
    /// Keep setuid, setgid and sticky bits along with permissions that are kept. scp drops them in
    /// both directions, since the owner that they act for is not kept (sftp-client.c,
    /// sftp_download).
    pub special_bits: bool,
}

impl ExtraMetadata {
    /// Returns true if there is nothing to set besides permissions.
    pub fn is_empty(&self) -> bool {
        self.owner.is_none() && self.xattrs.is_none()
    }
}

/// Extended attributes and access control lists of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xattrs {
    /// Kinds that the list covers; entries of these kinds that are not in the list are removed.
    pub kinds: MetadataFlags,
    /// Names and values.
    pub list: Vec<Xattr>,
}

impl Xattrs {
    /// Returns the kinds of metadata that are lost if the list cannot be set.
    pub fn parts(&self) -> Parts {
        let of = |kind| {
            let is = |(name, _): &Xattr| sftp::xattrs::kind(name, true) == Some(kind);
            self.list.iter().any(is)
        };
        Parts::default()
            .with(Parts::XATTRS, of(MetadataFlags::XATTRS))
            .with(Parts::ACLS, of(MetadataFlags::ACLS))
    }
}

/// Data by which an interrupted copy of one file is resumed: the tag of its temporary in the
/// journal, and the progress of an earlier run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeData {
    /// Number from which the temporary's name is made ([`crate::tagged_name`]).
    pub tag: u64,
    /// Number of restarts of this file. Each restart uses other names: requests that a lost
    /// connection has sent may still be executed, and must not rename a file that is only being
    /// written.
    pub again: u8,
    /// Progress of an earlier run.
    pub left: Option<PartialFile>,
    /// Set if other processes write other ranges of the same temporary. It exists already, has its
    /// final size, and is neither created nor removed; the file fails if it cannot be used.
    #[serde(default)]
    pub shared: Option<SharedTemp>,
}

/// Work of one process on a temporary that several processes fill. [`ResumeData::left`] lists all
/// other ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SharedTemp {
    /// Write the bytes from the first offset up to the second, exclusive, and leave the temporary
    /// without a rename.
    Range(u64, u64),
    /// Set the attributes of the complete temporary, and rename it.
    Seal,
}

impl SharedTemp {
    /// Returns the bytes of this process.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Range(from, to) => to.saturating_sub(from),
            Self::Seal => 0,
        }
    }
}

/// Result of an earlier run for one file: a temporary and the ranges that are known to be good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialFile {
    /// Ranges in order, as first byte and first byte after the range.
    pub ranges: Vec<(u64, u64)>,
    /// Modification time of the temporary at that checkpoint, in nanoseconds since 1970; 0 if
    /// unknown.
    pub mtime: u64,
    /// Size in bytes and modification time in nanoseconds of the source at that time; 0 if unknown.
    pub source: (u64, u64),
}

/// Number of restarts after which names repeat.
const AGAIN: u8 = 5;
/// Number of names that one attempt may try.
const TRIES: u64 = 3;

impl PartialFile {
    /// Returns the number of bytes from the start of the file without a gap.
    pub fn prefix(&self) -> u64 {
        let first = self.ranges.first().filter(|(from, _)| *from == 0);
        first.map_or(0, |(_, to)| *to)
    }

    /// Adds a checkpoint of the running copy.
    pub fn add(&mut self, kept: &FileCheckpoint) {
        let mut all = ByteRanges::default();
        for (from, to) in self.ranges.iter().chain(&kept.ranges) {
            all.insert(*from, *to);
        }
        self.ranges = all.iter().collect();
        self.mtime = self.mtime.max(kept.mtime);
    }

    /// Returns only the bytes from the start of the file without a gap, as a copy between two hosts
    /// continues them. The source is compared when it is opened.
    #[must_use]
    pub fn into_prefix(self) -> Self {
        let end = self.prefix();
        Self {
            ranges: (end > 0).then_some((0, end)).into_iter().collect(),
            source: (0, 0),
            ..self
        }
    }
}

impl ResumeData {
    /// Returns the temporary's path beside `target` for try number `tries` of this attempt.
    pub fn temporary(&self, target: &[u8], tries: u8) -> Vec<u8> {
        let try_of_these = u64::from(tries) % TRIES;
        crate::tagged_name(target, self.letters().wrapping_add(try_of_these))
    }

    /// Returns the number from which this attempt's first name is made; further tries count up from
    /// it, as in [`ResumeData::temporary`].
    pub(crate) fn letters(&self) -> u64 {
        self.tag.wrapping_add(8 * u64::from(self.again % AGAIN))
    }

    /// Returns every name that the temporary may have.
    pub fn names(target: &[u8], tag: u64) -> impl Iterator<Item = Vec<u8>> {
        let both = |again| (0..TRIES as u8).map(move |tries| (again, tries));
        let named = move |(again, tries)| {
            let names = Self {
                tag,
                again,
                ..Self::default()
            };
            names.temporary(target, tries)
        };
        (0..AGAIN).flat_map(both).map(named)
    }

    /// Returns true if the temporary of a file with this tag may have the name `path`, in any
    /// directory and beside any file.
    pub fn may_be_named(path: &[u8], tag: u64) -> bool {
        let at = path.iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
        let (dir, name) = path.split_at(at);
        let Some(target) = sftp::final_name_in(name) else {
            return false;
        };
        Self::names(&[dir, target].concat(), tag).any(|name| name == path)
    }
}

impl FileCopyOptions {
    /// Returns true if the file was not started over, so that its temporary has no other names.
    pub(crate) fn is_first_attempt(&self) -> bool {
        self.keep.as_ref().is_none_or(|keep| keep.again == 0)
    }

    /// Returns the work on a temporary that other processes write as well.
    pub fn shared(&self) -> Option<SharedTemp> {
        self.keep.as_ref()?.shared
    }

    /// Returns the path beside which the temporary of `target` is created: `target` itself, or a
    /// path in the directory for temporaries.
    pub fn temporary_place<'a>(&self, target: &'a [u8]) -> Cow<'a, [u8]> {
        match &self.temp_dir {
            Some(dir) => Cow::Owned(dir.place_of(target)),
            None => Cow::Borrowed(target),
        }
    }

    /// Returns the mode bits of `source` that are kept.
    pub fn kept_mode(&self, source: u32) -> u32 {
        source
            & if self.beyond.special_bits {
                0o7777
            } else {
                0o777
            }
    }

    /// Returns `source` with only the mode bits that are kept.
    pub fn kept(&self, source: Attributes) -> Attributes {
        Attributes {
            mode: source.mode.map(|mode| self.kept_mode(mode)),
            ..source
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_goes_before_files_and_behind_the_questions_before_them() {
        let path = || RemotePath(b"p".to_vec());
        let kinds = [
            JobKind::RealPath { path: path() },
            JobKind::Stat {
                path: path(),
                follow: true,
            },
            JobKind::List {
                path: path(),
                most: None,
            },
            JobKind::Stat {
                path: path(),
                follow: true,
            },
        ];
        let numbered = kinds.into_iter().enumerate();
        let jobs: Vec<Job> = numbered
            .map(|(n, kind)| Job {
                id: JobId(n as u64),
                kind,
            })
            .collect();
        assert_eq!(place_of_listing(jobs.iter()), 2);
        assert_eq!(place_of_listing(jobs[2..].iter()), 0);
        assert_eq!(place_of_listing([].iter()), 0);
    }
}
