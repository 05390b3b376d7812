use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sftp::xattrs::Xattr;
use sftp::{Link, MetadataFlags, Parts};

use crate::{Fault, LocalPath, Refusals};

/// Names a job for as long as a run lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub u64);

/// A path at the far end: bytes, as SFTP carries them; not always UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RemotePath(pub Vec<u8>);

/// The directory that `path` lies in, where it stands or where a symlink leads to it.
pub fn directory_of(path: &[u8]) -> Vec<u8> {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
    let path = path.get(..end).unwrap_or_default();
    let at = path.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
    [path.get(..at).unwrap_or_default(), b"."].concat()
}

/// A piece of work: can be written down and read back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Names it in events.
    pub id: JobId,
    /// What to do.
    pub kind: JobKind,
}

/// What a [`Job`] does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobKind {
    /// Copies one file from the source that the disk side knows as this job, to `target`.
    Put {
        /// Opened by [`crate::DiskRequest::OpenSource`].
        source: PathBuf,
        /// The final name.
        target: RemotePath,
        /// How.
        options: PutOptions,
    },
    /// The same for a file of which the far end may have an older form: what is the same is copied
    /// there. Ends with [`LaneEvent::Abandoned`], and nothing left of it, where a `Put` is to be
    /// done instead, be it that there is no older form, that it does not pay or that the server
    /// cannot do it.
    PutDelta {
        /// As of a `Put`.
        source: PathBuf,
        /// The final name.
        target: RemotePath,
        /// How.
        options: PutOptions,
        /// Also over a path that is faster than what it takes at both ends.
        always: bool,
    },
    /// Copies one file from `source` to the local `target`.
    Get {
        /// The file to read.
        source: RemotePath,
        /// The final name.
        target: LocalPath,
        /// What the listing or STAT said; `None` makes the lane ask.
        known: Option<Attributes>,
        /// How.
        options: PutOptions,
    },
    /// The same for a file that stands at `target` in an older form: what is the same is taken from
    /// there. Ends with [`LaneEvent::Abandoned`], and nothing left of it, where a `Get` is to be done
    /// instead, be it that there is no older form, that it does not pay or that the server cannot do
    /// it.
    GetDelta {
        /// The file to read.
        source: RemotePath,
        /// The final name.
        target: LocalPath,
        /// What the listing or STAT said; `None` makes the lane ask.
        known: Option<Attributes>,
        /// How.
        options: PutOptions,
        /// Also over a path that is faster than what it takes at both ends.
        always: bool,
    },
    /// Asks for the sum of a range of a file, of at most [`sftp::blocks::MOST_HASHED`] bytes; its
    /// [`LaneEvent::Sum`] comes before `Done`. Fails where the server makes no sums.
    Sum {
        /// Of what.
        path: RemotePath,
        /// Which bytes; a length is given.
        span: ByteRange,
        /// It fails where the file is not as long as this, in bytes.
        size: Option<u64>,
    },
    /// Creates a directory; one that exists already is success, and its
    /// [`LaneEvent::Attributes`] come before `Done`.
    MakeDir {
        /// Its path.
        path: RemotePath,
        /// Permission bits to create it with; the server's umask applies.
        mode: u32,
        /// A symlink to a directory counts as one that exists.
        follow: bool,
    },
    /// Sets what is given, as SETSTAT (or lsetstat when `follow` is false and it is a symlink).
    SetAttributes {
        /// Of what.
        path: RemotePath,
        /// What to set; `size` is ignored.
        attributes: Attributes,
        /// Follow a symlink.
        follow: bool,
        /// What it is to have of these.
        xattrs: Option<Box<Xattrs>>,
    },
    /// Makes another name of a file, replacing a file or symlink of that name by rename.
    MakeHardLink {
        /// The name.
        path: RemotePath,
        /// A name that it has.
        of: RemotePath,
    },
    /// Asks for extended attributes and access control lists: [`LaneEvent::Xattrs`].
    GetXattrs {
        /// Of what.
        path: RemotePath,
        /// Which, and whether a symlink is followed.
        flags: MetadataFlags,
    },
    /// Asks for the names of users and groups: [`LaneEvent::Names`].
    Names {
        /// Numbers of users.
        users: Vec<u32>,
        /// Numbers of groups.
        groups: Vec<u32>,
    },
    /// Asks for the numbers of users and groups: [`LaneEvent::Ids`].
    Ids {
        /// Names of users.
        users: Vec<Vec<u8>>,
        /// Names of groups.
        groups: Vec<Vec<u8>>,
    },
    /// Creates a symlink, replacing a symlink or file of that name by rename.
    MakeSymlink {
        /// Where it is.
        path: RemotePath,
        /// What it says.
        points_to: Vec<u8>,
    },
    /// Reads a symlink.
    ReadSymlink {
        /// Which.
        path: RemotePath,
    },
    /// Lists a directory; entries come as [`LaneEvent::Entries`], as they arrive. A lane that
    /// predicts handles ends it with [`LaneEvent::Abandoned`] where the directory is too long for
    /// one flight; the first entries are told again by the lane that lists it then, as they are
    /// when a lane is lost.
    List {
        /// Which.
        path: RemotePath,
    },
    /// Lists a directory and all below it, where the server has list-tree@longhaul; what is found
    /// comes as [`LaneEvent::Tree`], from the beginning again when a lane is lost. Symlinks are not
    /// followed.
    ListTree {
        /// What there probably is in all is wanted as well.
        count: bool,
        /// Which.
        path: RemotePath,
    },
    /// Asks for attributes.
    Stat {
        /// Of what.
        path: RemotePath,
        /// Follow a symlink.
        follow: bool,
    },
    /// Asks for the canonical path; `~` and `~user` go through expand-path@openssh.com.
    RealPath {
        /// Of what.
        path: RemotePath,
    },
    /// Makes these durable, directories with the names in them, where the server has
    /// fsync-set@longhaul; elsewhere nothing is done. At most [`sftp::MOST_SYNCED`], in one message.
    MakeDurable {
        /// What. A symlink in the last place is not followed.
        paths: Vec<RemotePath>,
    },
    /// Removes a file.
    Remove {
        /// Which.
        path: RemotePath,
    },
    /// The first part of an upload over several lanes: looks at the target as a `Put` does,
    /// creates the temporary beside it and writes the first bytes of the source that `file` has
    /// open. [`LaneEvent::Temp`] comes as soon as others may write into it; from then on it is
    /// theirs to remove. `Done` without it: the target is to be written where it is, which is a
    /// `Put`'s work, and nothing was left behind.
    CreateTemp {
        /// Whose source: [`crate::DiskRequest::Join`].
        file: JobId,
        /// The final name.
        target: RemotePath,
        /// What fstat said of the source.
        attributes: Attributes,
        /// How many of the first bytes to write.
        len: u64,
        /// Set the attributes as well: no other job opens the file.
        alone: bool,
        /// How.
        options: PutOptions,
    },
    /// Another part of an upload: opens the temporary without CREAT or TRUNC and writes.
    PutRange {
        /// Whose source: [`crate::DiskRequest::Join`].
        file: JobId,
        /// Size and times of the source, as far as they are known.
        attributes: Attributes,
        /// Where to: the temporary.
        temp: RemotePath,
        /// Which bytes.
        span: ByteRange,
    },
    /// The last part of an upload, sent when the CLOSE of every other part was answered:
    /// size, mode, times, fsync where asked, and the rename. When it fails it has removed the
    /// temporary, or the text says where the data are. [`LaneEvent::Abandoned`]: the server lets no
    /// temporary take this name, and the file is to be written in place.
    FinishTemp {
        /// What [`LaneEvent::Temp`] told.
        temp: Temp,
        /// What fstat said of the source.
        attributes: Attributes,
        /// Cut to this size; `None` where nothing was written behind the end.
        cut: Option<u64>,
        /// The lane that wrote the file has set its attributes.
        set: bool,
        /// How.
        options: PutOptions,
    },
    /// Looks whether the temporary of an earlier run can be gone on with, and what its name will
    /// replace. `Done` without [`LaneEvent::Temp`]: it cannot.
    AdoptTemp {
        /// The final name.
        target: RemotePath,
        /// The temporary.
        temp: RemotePath,
        /// What is proven of it.
        left: Left,
        /// As [`PutOptions::replace_link`].
        replace_link: bool,
    },
    /// Makes what was written into a temporary durable, where the server can be asked to:
    /// [`FileState::Synced`] says so. Its attributes come as [`LaneEvent::Attributes`].
    SyncTemp {
        /// The temporary.
        temp: RemotePath,
    },
    /// A part of a download, written into the target that `file` has created. The attributes
    /// that the open file has come as [`LaneEvent::Attributes`], empty where the server tells none.
    GetRange {
        /// Whose target: [`crate::DiskRequest::Join`].
        file: JobId,
        /// The file to read.
        source: RemotePath,
        /// What is known of it; has a size.
        known: Attributes,
        /// Which bytes.
        span: ByteRange,
        /// Ask for holes.
        sparse: bool,
    },
}

impl JobKind {
    /// The path at the far end that it is about, where it has one.
    pub fn remote_path(&self) -> Option<&RemotePath> {
        match self {
            Self::Put { target, .. } | Self::PutDelta { target, .. } => Some(target),
            Self::Get { source, .. } | Self::GetDelta { source, .. } => Some(source),
            Self::GetRange { source, .. } => Some(source),
            Self::PutRange { temp, .. } => Some(temp),
            Self::MakeDir { path, .. }
            | Self::SetAttributes { path, .. }
            | Self::List { path }
            | Self::ListTree { path, .. }
            | Self::Stat { path, .. }
            | Self::RealPath { path }
            | Self::Remove { path }
            | Self::Sum { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Whether its answer is one packet at once, behind which others do not wait.
    fn is_question(&self) -> bool {
        matches!(self, Self::Stat { .. } | Self::RealPath { .. })
    }
}

/// Where a listing goes among jobs that wait: everything in a tree waits for it, and it for nothing but questions
/// that were there before. Answers come in order, and the parts of a tree are 20 ms of a slow start.
pub(crate) fn place_of_listing<'a>(waiting: impl Iterator<Item = &'a Job>) -> usize {
    waiting.take_while(|job| job.kind.is_question()).count()
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteRange {
    /// The first.
    pub offset: u64,
    /// How many; `None` is all up to where the file ends when it is read.
    pub len: Option<u64>,
}

impl ByteRange {
    /// The first byte behind it, if it has a length.
    pub fn end(&self) -> Option<u64> {
        self.len.map(|len| self.offset.saturating_add(len))
    }
}

/// An upload's temporary, and what the rename will replace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Temp {
    /// Its name.
    pub temp: RemotePath,
    /// The final name: the target, or what it points to.
    pub target: RemotePath,
    /// A regular file stands there.
    pub replaces: bool,
    /// Its permission bits, if the server has any; they stay.
    pub mode: Option<u32>,
    /// Its owner and group, if the server tells them; they stay where that is permitted.
    pub owner: Option<(u32, u32)>,
}

/// How a file is copied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutOptions {
    /// Keep modification and access times and permissions (`-p`).
    pub preserve: bool,
    /// With `preserve`, keep setuid, setgid and sticky bits as well. scp leaves them out both
    /// ways, since the owner they would act for is not kept (sftp-client.c, sftp_download).
    pub special_bits: bool,
    /// Write under the final name at once, without temporary and rename.
    pub inplace: bool,
    /// Make it durable before the rename.
    pub fsync: bool,
    /// The target does not exist as far as this run can know (a directory that it created), so
    /// it need not be looked at first.
    pub fresh: bool,
    /// A symlink under the target's name is replaced and not followed: inside a tree whose
    /// symlinks are kept, the source may have made it in this run or an earlier one, and would
    /// choose through it what is written (CVE-2019-6111).
    pub replace_link: bool,
    /// The copy is written down, so that it can be gone on with.
    pub keep: Option<Box<Keep>>,
    /// Holes of the source are holes of the target.
    pub sparse: bool,
    /// What it is to have beside what `preserve` keeps.
    pub beyond: ExtraMetadata,
}

/// What a file is to have that a copy does not keep by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraMetadata {
    /// Owner and group, as the receiving end counts them.
    pub owner: Option<(u32, u32)>,
    /// Extended attributes and access control lists.
    pub xattrs: Option<Box<Xattrs>>,
}

impl ExtraMetadata {
    /// Whether there is nothing to set.
    pub fn is_empty(&self) -> bool {
        self.owner.is_none() && self.xattrs.is_none()
    }
}

/// Extended attributes and access control lists of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xattrs {
    /// Which of both it is about: of those, what is not in the list is removed.
    pub kinds: MetadataFlags,
    /// Names and values.
    pub list: Vec<Xattr>,
}

impl Xattrs {
    /// What is lost where they cannot be set.
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

/// What the journal of a copy knows of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// The temporary's name has these letters ([`crate::tagged_name`]).
    pub tag: u64,
    /// How often the file was begun anew. Each time the name is another: what a lost connection
    /// has sent may still be carried out, and must not rename what is only being written.
    pub again: u8,
    /// What an earlier run has left.
    pub left: Option<Left>,
}

/// What an earlier run has left of a file: a temporary of which these bytes are proven.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// First bytes, and those behind the last, in order.
    pub ranges: Vec<(u64, u64)>,
    /// The temporary's modification time when that was written down, nanoseconds; 0 if unknown.
    pub mtime: u64,
    /// Size and modification time, nanoseconds, of the source that they are of; 0 if unknown.
    pub source: (u64, u64),
}

/// Times that a file is begun anew before names come again.
const AGAIN: u8 = 5;
/// Names that one attempt may try.
const TRIES: u64 = 3;

impl Keep {
    /// The temporary's path beside `target`, at the `tries`-th try of this attempt.
    pub fn temporary(&self, target: &[u8], tries: u8) -> Vec<u8> {
        let try_of_these = u64::from(tries) % TRIES;
        crate::tagged_name(target, self.letters().wrapping_add(try_of_these))
    }

    /// The letters of this attempt's first name; whoever finds it taken counts up, as
    /// [`Keep::temporary`] does.
    pub(crate) fn letters(&self) -> u64 {
        self.tag.wrapping_add(8 * u64::from(self.again % AGAIN))
    }

    /// Every name that the temporary may have had.
    pub fn names(target: &[u8], tag: u64) -> impl Iterator<Item = Vec<u8>> {
        let both = |again| (0..TRIES as u8).map(move |tries| (again, tries));
        let named = move |(again, tries)| {
            let left = None;
            Self { tag, again, left }.temporary(target, tries)
        };
        (0..AGAIN).flat_map(both).map(named)
    }

    /// Whether `path` is a name that the temporary of a file with this tag may have had, in
    /// whatever directory and beside whatever file.
    pub fn may_be_named(path: &[u8], tag: u64) -> bool {
        let at = path.iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
        let (dir, name) = path.split_at(at);
        let Some(target) = sftp::final_name_in(name) else {
            return false;
        };
        Self::names(&[dir, target].concat(), tag).any(|name| name == path)
    }
}

impl PutOptions {
    /// The mode bits of `source` that are kept.
    pub fn kept_mode(&self, source: u32) -> u32 {
        source & if self.special_bits { 0o7777 } else { 0o777 }
    }

    /// `source` with the mode bits that are kept.
    pub fn kept(&self, source: Attributes) -> Attributes {
        Attributes {
            mode: source.mode.map(|mode| self.kept_mode(mode)),
            ..source
        }
    }
}

/// Attributes of a file, local or remote. Absent ones are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Bytes.
    pub size: Option<u64>,
    /// `st_mode`: type and permission bits.
    pub mode: Option<u32>,
    /// Owner and group.
    pub owner: Option<(u32, u32)>,
    /// Access and modification time, seconds since 1970 (SFTP v3 has no finer).
    pub times: Option<(u32, u32)>,
    /// What the times have beyond that, where both ends can tell.
    pub nanoseconds: Option<(u32, u32)>,
    /// Which file it is, of a regular one that has several names.
    pub link: Option<Link>,
}

/// The type of a directory entry, from its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, socket, FIFO or what the server did not tell.
    Other,
}

impl Attributes {
    /// The type; [`EntryKind::Other`] when there is no mode.
    pub fn kind(&self) -> EntryKind {
        match self.mode.map(|m| m & 0o170_000) {
            Some(0o100_000) => EntryKind::File,
            Some(0o040_000) => EntryKind::Directory,
            Some(0o120_000) => EntryKind::Symlink,
            _ => EntryKind::Other,
        }
    }
}

/// How far a file has come. One type for every part that must know: lanes, closing line, journal.
///
/// `Written` and all before it prove nothing after a crash; only `Synced` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileState {
    /// Known, nothing sent.
    Planned,
    /// The temporary exists: its OPEN with CREAT|EXCL was answered OK.
    Created,
    /// Every WRITE was answered OK.
    Written,
    /// Attributes are set and CLOSE was answered OK.
    Closed,
    /// The data are durable (fsync answered OK).
    Synced,
    /// It stands under its final name.
    Renamed,
}

/// What became of a job, in the order it happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaneEvent {
    /// A file went a step further.
    State(JobId, FileState),
    /// Bytes of file data that the receiving side confirmed.
    Progress(JobId, u64),
    /// Of the bytes told by [`LaneEvent::Progress`], so many were at the receiving end already.
    Reused(JobId, u64),
    /// Entries of a listing: name and attributes. Names are checked: not empty, no `/`, no NUL,
    /// not `.` or `..`.
    Entries(JobId, Vec<(Vec<u8>, Attributes)>),
    /// A name in a listing that no file can have, and that is not among `Entries`.
    LeftOut(JobId, Vec<u8>),
    /// Steps of a [`JobKind::ListTree`]; names are checked as those of `Entries`.
    Tree(JobId, Vec<TreeStep>),
    /// The answer of a Stat, or what stood there already for a MakeDir. For a Put, what the source was
    /// when it was opened, where it is read in several pieces.
    Attributes(JobId, Attributes),
    /// The answer of a RealPath or ReadSymlink. For a Put, where the old file is until the new one
    /// has its name, which a server without posix-rename@openssh.com gives only to one that is free.
    Path(JobId, Vec<u8>),
    /// The temporary of a [`JobKind::CreateTemp`] exists and may be written into.
    Temp(JobId, Temp),
    /// The source of a range ended at this offset, before the range did or because the range
    /// went to the end.
    Ended(JobId, u64),
    /// These bytes of a part were answered OK: offset and length.
    Written(JobId, u64, u64),
    /// Worth writing down: what the receiving end has of a file that is cut.
    Kept(JobId, Kept),
    /// All bytes from the first offset to the one before the second have been copied, and every
    /// handle that they were written through is closed without an error; more than was told before.
    /// Nothing that is under way writes them once more. Only of files that are cut.
    Safe(JobId, u64, u64),
    /// Something to tell the user that does not fail the job.
    Warning(JobId, String),
    /// The answer of a GetXattrs: names are those that were asked for.
    Xattrs(JobId, Vec<Xattr>),
    /// The answer of a Names: in the order of the numbers, empty where there is none.
    Names(JobId, Vec<Vec<u8>>, Vec<Vec<u8>>),
    /// The answer of an Ids: in the order of the names, `u32::MAX` where there is none.
    Ids(JobId, Vec<u32>, Vec<u32>),
    /// The answer of a Sum: 32 bytes, BLAKE3 of the range, or of what of it the file has; none of a
    /// range without a length.
    Sum(JobId, Vec<u8>),
    /// These parts of its metadata could not be kept, the first of them for this reason.
    NotKept(JobId, Parts, String),
    /// The server refuses these whatever the file, for this reason; empty where an earlier lane has
    /// found it.
    Refused(JobId, Refusals, String),
    /// It was written under its final name, without a temporary.
    InPlace(JobId),
    /// The file that it has replaced was of this owner and group, which could not be kept.
    Belonged(JobId, (u32, u32)),
    /// The file that it has replaced has so many other names, which keep the old contents.
    OtherNames(JobId, u64),
    /// The job is done; no event with its id follows.
    Done(JobId),
    /// The job failed; no event with its id follows. Temporaries were removed, or the text says
    /// that they could not be.
    Failed(JobId, Fault),
    /// It was given up ([`crate::Lane::abandon`]) and nothing of it was refused; no event with
    /// its id follows.
    Abandoned(JobId),
}

/// A step of a walk through a tree, which begins in its topmost directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TreeStep {
    /// Something in the current directory that is not walked into: a directory, if it is one, has to
    /// be listed by another job.
    Entry(Vec<u8>, Attributes),
    /// A directory in the current one, which is the current one from here on.
    Enter(Vec<u8>, Attributes),
    /// The current directory is at its end, and the one above is the current one again.
    Leave,
    /// The current directory cannot be listed, or not to its end.
    Failed(String),
    /// What there probably is in the whole tree, as the server says.
    Count {
        /// Regular files.
        files: u64,
        /// Their lengths.
        bytes: u64,
    },
}

/// What the receiving end has of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// It was synced; else the receiving machine's memory may have it alone.
    pub durable: bool,
    /// The temporary's modification time, nanoseconds; 0 if unknown.
    pub mtime: u64,
    /// First bytes, and those behind the last.
    pub ranges: Vec<(u64, u64)>,
}

impl LaneEvent {
    /// The job it is about.
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
            | Self::Temp(id, _)
            | Self::Ended(id, _)
            | Self::Written(id, ..)
            | Self::Kept(id, _)
            | Self::Safe(id, ..)
            | Self::Warning(id, _)
            | Self::Xattrs(id, _)
            | Self::Names(id, ..)
            | Self::Ids(id, ..)
            | Self::NotKept(id, ..)
            | Self::Sum(id, _)
            | Self::Refused(id, ..)
            | Self::InPlace(id)
            | Self::Belonged(id, _)
            | Self::OtherNames(id, _)
            | Self::Done(id)
            | Self::Abandoned(id)
            | Self::Failed(id, _) => *id,
        }
    }

    /// Whether no event of its job follows.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Failed(..) | Self::Abandoned(_))
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
            JobKind::List { path: path() },
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
