//! Operations on names at one end of a sync, many at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, chownat, linkat, mkdirat, renameat_with, unlinkat,
};
use rustix::io::Errno;
use schedule::{
    Attributes, ByteRange, EntryKind, ExtraMetadata, Job, JobId, JobKind, LaneEvent, MetadataFlags,
    OwnerWrite, RemotePath, Xattrs,
};
use sftp::xattrs::Xattr;
use sync::parent_path;

use super::settle::OperationRunner;
use crate::copy::{PlannedCopy, PlannedCopySide};
use crate::disk::{
    LostMetadata, NameInDirectory, OpenDirectoryCache, before_mode, behind_mode, kind_of, os_words,
    timestamps,
};
use crate::escape;
use crate::file_error::FileError;
use crate::report::{CopyEvent, CopySummary, EscapedName};
use crate::walk::{join, local_path};

/// Operations in flight at a server.
const IN_FLIGHT: usize = 2048;
/// Requests for extended attributes in flight at a server.
const XATTRS_IN_FLIGHT: usize = 4096;
/// Number of the first job, above those of the copy and the listings.
const FIRST_JOB: u64 = 1 << 41;

/// Result of [`SyncFileOperation::Lstat`] for a directory.
pub(super) const DIRECTORY: &[u8] = b"directory";

/// Operation on one name. Paths are those of the end, not relative to its root.
#[derive(Clone, Debug)]
pub(crate) enum SyncFileOperation {
    /// Removes a file or symlink. One that does not exist counts as removed.
    Remove(Vec<u8>),
    /// Removes an empty directory.
    RemoveDir(Vec<u8>),
    /// Creates a directory, or finds an existing one.
    MakeDir { path: Vec<u8>, mode: u32 },
    /// Creates a directory that the user named, or finds an existing one through symlinks.
    MakeNamedDir {
        path: Vec<u8>,
        mode: u32,
        /// Nothing existed there when the command began, so that no symlink is followed.
        is_new: bool,
    },
    /// Renames to a name that does not exist.
    Rename { from: Vec<u8>, to: Vec<u8> },
    /// Creates the temporary of a file that several processes write, or finds an existing one.
    CreateShared { path: Vec<u8>, size: u64 },
    /// Sets permissions, times and the owner, if it is given, of a file or directory.
    Set(Vec<u8>, Attributes),
    /// Sets attributes as [`SyncFileOperation::Set`] does, and extended attributes and access
    /// control lists.
    SetWithXattrs(Vec<u8>, Attributes, Box<Xattrs>),
    /// Sets user and group of a symlink.
    SetSymlinkOwner(Vec<u8>, (u32, u32)),
    /// Gives the owner write permission for a directory, or takes it. Anything else that stands
    /// there stays as it is, and so do the other permissions.
    SetOwnerWrite { dir: Vec<u8>, change: OwnerWrite },
    /// Finds an entry, which is not followed. The result has a text for a directory.
    Lstat(Vec<u8>),
    /// Reads the text of a symlink.
    ReadSymlink(Vec<u8>),
    /// Gives a file a second name, which does not exist.
    Link { of: Vec<u8>, to: Vec<u8> },
    /// Makes `to` a name of the file `of`, in place of a file or symlink of that name.
    ReplaceByLink { of: Vec<u8>, to: Vec<u8> },
    /// Computes the BLAKE3 checksum of a range of a file of `size` bytes.
    Sum {
        path: Vec<u8>,
        range: Range<u64>,
        size: u64,
    },
}

impl SyncFileOperation {
    /// Creates a directory whose mode the umask alone restricts, or finds an existing one.
    pub(crate) fn make_dir(path: Vec<u8>) -> Self {
        Self::MakeDir { path, mode: 0o777 }
    }
}

/// Result of an operation: the text of a symlink or a checksum, or the reason of a failure.
pub(crate) type FileOperationResult = Result<Option<Vec<u8>>, FileError>;

/// Numbers the jobs of operations.
#[derive(Debug)]
pub(crate) struct OperationCounter {
    next: u64,
}

impl Default for OperationCounter {
    fn default() -> Self {
        Self { next: FIRST_JOB }
    }
}

impl OperationCounter {
    /// Carries out `ops` in any order and returns their results in the order of `ops`. After a
    /// cancel or the loss of the session the rest fail.
    pub(crate) async fn carry_out(
        &mut self,
        run: &mut PlannedCopy<'_>,
        end: PlannedCopySide,
        ops: Vec<SyncFileOperation>,
    ) -> Vec<FileOperationResult> {
        if run.is_local(end) {
            return ops.iter().map(|op| local(run, op)).collect();
        }
        let lost = "internal error: the operation was not carried out";
        let mut results = vec![Err(lost.into()); ops.len()];
        let first = self.next;
        self.next += ops.len() as u64;
        let jobs = ops.into_iter().zip(first..).map(|(op, number)| Job {
            id: JobId(number),
            kind: job(op),
        });
        let mut told: BTreeMap<JobId, Vec<u8>> = BTreeMap::new();
        let heard = |event| take(event, first, &mut told, &mut results);
        run.carry_out(end, jobs, IN_FLIGHT, heard).await;
        results
    }
}

/// Both ends of a sync: the copy that connects them, and the operations on names there.
pub(super) struct SyncEnds<'a> {
    copy: PlannedCopy<'a>,
    operations: OperationCounter,
}

impl<'a> SyncEnds<'a> {
    pub(super) fn new(copy: PlannedCopy<'a>) -> Self {
        Self {
            copy,
            operations: OperationCounter::default(),
        }
    }

    /// Ends the copy; returns its summary.
    pub(super) fn finish(self) -> CopySummary {
        self.copy.finish()
    }

    /// Carries out `ops` at an end as [`OperationCounter::carry_out`] does.
    pub(super) async fn operate(
        &mut self,
        end: PlannedCopySide,
        ops: Vec<SyncFileOperation>,
    ) -> Vec<FileOperationResult> {
        match ops.is_empty() {
            true => Vec::new(),
            false => self.operations.carry_out(&mut self.copy, end, ops).await,
        }
    }

    /// Carries out `ops` at the target.
    pub(super) async fn at_target(
        &mut self,
        ops: Vec<SyncFileOperation>,
    ) -> Vec<FileOperationResult> {
        self.operate(PlannedCopySide::Target, ops).await
    }

    /// Reads the extended attributes of files and directories of an end, and passes the list or the
    /// failure of each on by its position, in any order. Ends early after a cancel or the loss of
    /// the session.
    pub(super) async fn read_xattrs(
        &mut self,
        end: PlannedCopySide,
        paths: Vec<Vec<u8>>,
        kinds: MetadataFlags,
        mut heard: impl FnMut(usize, Result<Vec<Xattr>, FileError>),
    ) {
        if self.is_local(end) {
            for (at, path) in paths.iter().enumerate() {
                if self.stopped() {
                    return;
                }
                heard(at, self.xattrs_here(end, path, kinds));
            }
            return;
        }
        let first = self.operations.next;
        self.operations.next += paths.len() as u64;
        let root = self.root(end).to_vec();
        let jobs = paths.into_iter().zip(first..).map(|(path, number)| Job {
            id: JobId(number),
            kind: JobKind::GetXattrs {
                // The user named the root.
                flags: kinds.with(MetadataFlags::FOLLOW, path == root),
                path: RemotePath(path),
            },
        });
        let position = |id: JobId| usize::try_from(id.0.checked_sub(first)?).ok();
        let tell = |event| match event {
            LaneEvent::Xattrs(id, list) => {
                if let Some(at) = position(id) {
                    heard(at, Ok(list));
                }
            }
            LaneEvent::Failed(id, fault) => {
                if let Some(at) = position(id) {
                    heard(at, Err(fault.into()));
                }
            }
            _ => {}
        };
        self.copy.carry_out(end, jobs, XATTRS_IN_FLIGHT, tell).await;
    }

    /// Returns the comparison of what the listings do not tell.
    pub(super) fn settling(&mut self) -> OperationRunner<'_, 'a> {
        OperationRunner::new(&mut self.copy, &mut self.operations)
    }

    /// Creates directories below `root` at the target, each after the one that contains it.
    pub(super) async fn make_directories(&mut self, root: &[u8], paths: Vec<Vec<u8>>) {
        let mut all = BTreeSet::new();
        for path in paths {
            let mut at = path.as_slice();
            while !at.is_empty() && all.insert(at.to_vec()) {
                at = parent_path(at);
            }
        }
        let depth = |path: &[u8]| path.iter().filter(|byte| **byte == b'/').count();
        let mut levels: BTreeMap<usize, Vec<SyncFileOperation>> = BTreeMap::new();
        for path in all {
            let level = levels.entry(depth(&path)).or_default();
            level.push(SyncFileOperation::make_dir(join(root, &path)));
        }
        for ops in levels.into_values() {
            // A failure shows in what is put into the directory.
            self.at_target(ops).await;
        }
    }

    /// Reports the operations on paths of the target that failed. `what` says what was not done.
    pub(super) fn report_failures(
        &mut self,
        paths: &[Vec<u8>],
        results: &[FileOperationResult],
        what: &str,
    ) {
        if self.stopped() {
            return;
        }
        for (path, result) in paths.iter().zip(results) {
            if let Err(why) = result {
                let name = self.shown(PlannedCopySide::Target, path);
                self.fail(name, why.clone().with_prefix(what));
            }
        }
    }

    /// Reports a warning, about a path if there is one.
    pub(super) fn warn(&mut self, path: Option<EscapedName>, message: String) {
        self.tell(CopyEvent::Warning { path, message });
    }
}

impl<'a> Deref for SyncEnds<'a> {
    type Target = PlannedCopy<'a>;

    fn deref(&self) -> &Self::Target {
        &self.copy
    }
}

impl DerefMut for SyncEnds<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.copy
    }
}

/// Records a job's result or its end. The jobs' numbers begin at `first`.
fn take(
    event: LaneEvent,
    first: u64,
    told: &mut BTreeMap<JobId, Vec<u8>>,
    results: &mut [FileOperationResult],
) {
    let (id, failed) = match event {
        LaneEvent::Path(id, text) | LaneEvent::Sum(id, text) => {
            told.insert(id, text);
            return;
        }
        LaneEvent::Attributes(id, attributes) if attributes.kind() == EntryKind::Directory => {
            told.insert(id, DIRECTORY.to_vec());
            return;
        }
        LaneEvent::Done(id) => (id, None),
        LaneEvent::Failed(id, fault) => (id, Some(fault)),
        _ => return,
    };
    let text = told.remove(&id);
    let at =
        id.0.checked_sub(first)
            .and_then(|at| usize::try_from(at).ok());
    if let Some(result) = at.and_then(|at| results.get_mut(at)) {
        *result = failed.map_or(Ok(text), |fault| Err(fault.into()));
    }
}

fn job(op: SyncFileOperation) -> JobKind {
    match op {
        SyncFileOperation::Remove(path) => JobKind::Remove {
            path: RemotePath(path),
        },
        SyncFileOperation::RemoveDir(path) => JobKind::RemoveDir {
            path: RemotePath(path),
        },
        SyncFileOperation::MakeDir { path, mode } => JobKind::MakeDir {
            path: RemotePath(path),
            mode,
            follow: false,
        },
        SyncFileOperation::MakeNamedDir { path, mode, is_new } => JobKind::MakeDir {
            path: RemotePath(path),
            mode,
            follow: !is_new,
        },
        SyncFileOperation::Rename { from, to } => JobKind::Rename {
            from: RemotePath(from),
            to: RemotePath(to),
        },
        SyncFileOperation::CreateShared { path, size } => JobKind::CreateShared {
            path: RemotePath(path),
            size,
        },
        SyncFileOperation::Set(path, attributes) => JobKind::SetAttributes {
            path: RemotePath(path),
            attributes,
            follow: false,
            xattrs: None,
        },
        SyncFileOperation::SetWithXattrs(path, attributes, xattrs) => JobKind::SetAttributes {
            path: RemotePath(path),
            attributes,
            follow: false,
            xattrs: Some(xattrs),
        },
        SyncFileOperation::SetSymlinkOwner(path, owner) => JobKind::SetAttributes {
            path: RemotePath(path),
            attributes: Attributes {
                owner: Some(owner),
                ..Attributes::default()
            },
            follow: false,
            xattrs: None,
        },
        SyncFileOperation::SetOwnerWrite { dir, change } => JobKind::SetOwnerWrite {
            path: RemotePath(dir),
            change,
        },
        SyncFileOperation::Lstat(path) => JobKind::Stat {
            path: RemotePath(path),
            follow: false,
        },
        SyncFileOperation::ReadSymlink(path) => JobKind::ReadSymlink {
            path: RemotePath(path),
        },
        SyncFileOperation::Link { of, to } | SyncFileOperation::ReplaceByLink { of, to } => {
            JobKind::MakeHardLink {
                path: RemotePath(to),
                of: RemotePath(of),
            }
        }
        SyncFileOperation::Sum { path, range, size } => JobKind::Sum {
            path: RemotePath(path),
            span: ByteRange {
                offset: range.start,
                len: Some(range.end - range.start),
            },
            size: Some(size),
        },
    }
}

fn local(run: &mut PlannedCopy<'_>, op: &SyncFileOperation) -> FileOperationResult {
    if run.stopped() {
        return Err("interrupted".into());
    }
    if let SyncFileOperation::ReadSymlink(path) = op {
        let text = std::fs::read_link(local_path(path))?;
        return Ok(Some(text.as_os_str().as_bytes().to_vec()));
    }
    if let SyncFileOperation::Sum { path, range, size } = op {
        let sum = sum_of(run, path, range, *size)?;
        return Ok(Some(sum));
    }
    if let SyncFileOperation::ReplaceByLink { of, to } = op {
        return run.make_hard_link(to, of).map(|()| None);
    }
    let directories = run.directories();
    if let SyncFileOperation::Lstat(path) = op {
        let found = directories.locate(&run.local_target(path));
        return match found.and_then(|at| at.look()) {
            Ok(Some(stat)) => {
                Ok((kind_of(&stat) == FileType::Directory).then(|| DIRECTORY.to_vec()))
            }
            Ok(None) => Err(Errno::NOENT.into()),
            Err(error) => Err(error.into()),
        };
    }
    let at = |path: &[u8]| directories.locate(&run.local_target(path));
    let done: io::Result<()> = match op {
        SyncFileOperation::Remove(path) => at(path).and_then(|at| match at.remove() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }),
        SyncFileOperation::RemoveDir(path) => at(path).and_then(|at| {
            directories.forget(&run.local_target(path));
            Ok(unlinkat(&at.dir, &at.name, AtFlags::REMOVEDIR)?)
        }),
        SyncFileOperation::MakeDir { path, mode } => at(path).and_then(|at| make_dir(&at, *mode)),
        SyncFileOperation::MakeNamedDir { path, mode, is_new } => {
            make_named_dir(&directories, &local_path(path), *mode, *is_new)
        }
        SyncFileOperation::Rename { from, to } => {
            at(from).and_then(|from| rename_to_free_name(&from, &at(to)?))
        }
        SyncFileOperation::CreateShared { path, size } => {
            at(path).and_then(|at| create_shared(&at, *size))
        }
        SyncFileOperation::Set(path, attributes) => at(path)
            .and_then(|at| set(&at, attributes, None))
            .map(|lost| note_lost(run, lost)),
        SyncFileOperation::SetWithXattrs(path, attributes, xattrs) => at(path)
            .and_then(|at| set(&at, attributes, Some(xattrs.clone())))
            .map(|lost| note_lost(run, lost)),
        SyncFileOperation::SetSymlinkOwner(path, (user, group)) => at(path).map(|at| {
            let (user, group) = sys::chown_ids(*user, *group);
            let itself = AtFlags::SYMLINK_NOFOLLOW;
            if let Err(why) = chownat(&at.dir, &at.name, user, group, itself) {
                run.note_lost_owner(&os_words(&why.into()));
            }
        }),
        SyncFileOperation::SetOwnerWrite { dir, change } => {
            let dir = directories.directory(&run.local_target(dir));
            dir.and_then(|dir| Ok(dir.set_owner_write(*change)?))
        }
        SyncFileOperation::Link { of, to } => at(of).and_then(|of| {
            let to = at(to)?;
            let flags = AtFlags::empty();
            Ok(linkat(&of.dir, &of.name, &to.dir, &to.name, flags)?)
        }),
        SyncFileOperation::Lstat(_)
        | SyncFileOperation::ReadSymlink(_)
        | SyncFileOperation::ReplaceByLink { .. }
        | SyncFileOperation::Sum { .. } => Ok(()),
    };
    Ok(done.map(|()| None)?)
}

/// Creates a directory that the user named, or finds an existing one, through symlinks unless it
/// was missing when the command began.
fn make_named_dir(
    directories: &OpenDirectoryCache,
    path: &Path,
    mode: u32,
    is_new: bool,
) -> io::Result<()> {
    if is_new {
        return directories.make_or_adopt(path, mode).map(drop);
    }
    match directories.make_named(path, mode) {
        Err(_) if path.is_dir() => Ok(()),
        made => made,
    }
}

/// Creates a directory, or finds an existing one.
fn make_dir(at: &NameInDirectory, mode: u32) -> io::Result<()> {
    match mkdirat(&at.dir, &at.name, Mode::from_raw_mode(mode)) {
        Err(Errno::EXIST) => match at.look()? {
            Some(stat) if kind_of(&stat) == FileType::Directory => Ok(()),
            Some(stat) if kind_of(&stat) == FileType::Symlink => {
                Err(io::Error::other(schedule::SYMLINK_IN_THE_WAY))
            }
            _ => Err(Errno::EXIST.into()),
        },
        made => Ok(made?),
    }
}

/// Creates a file of this size that several processes write, or finds the one that another process
/// has created. Nothing in it is changed.
fn create_shared(at: &NameInDirectory, size: u64) -> io::Result<()> {
    let exclusive = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = match at.open(exclusive, 0o600) {
        Err(Errno::EXIST) => at.open(OFlags::WRONLY | OFlags::NONBLOCK, 0)?,
        opened => opened?,
    };
    let file = std::fs::File::from(file);
    let meta = file.metadata()?;
    // A second hard link would be written too, and another owner could still write the file.
    let own = meta.nlink() == 1 && meta.uid() == rustix::process::geteuid().as_raw();
    if !meta.is_file() || !own || meta.len() > size {
        let name = escape::os(&at.name);
        return Err(io::Error::other(format!(
            "{name} has the name of the temporary file, and is not a regular file of yours with \
                one hard link and at most {size} bytes: check it, then remove it"
        )));
    }
    match meta.len() == size {
        true => Ok(()),
        false => file.set_len(size),
    }
}

fn rename_to_free_name(from: &NameInDirectory, to: &NameInDirectory) -> io::Result<()> {
    let flags = RenameFlags::NOREPLACE;
    match renameat_with(&from.dir, &from.name, &to.dir, &to.name, flags) {
        // Some file systems have no such flag.
        Err(Errno::INVAL | Errno::NOSYS) => match to.look()? {
            Some(_) => Err(Errno::EXIST.into()),
            None => Ok(from.rename(to)?),
        },
        done => Ok(done?),
    }
}

fn note_lost(run: &mut PlannedCopy<'_>, lost: LostMetadata) {
    for (parts, why) in lost {
        run.note_lost(parts, &why);
    }
}

/// Sets attributes of a file or directory. Returns those that could not be set and are not needed.
fn set(
    at: &NameInDirectory,
    attributes: &Attributes,
    xattrs: Option<Box<Xattrs>>,
) -> io::Result<LostMetadata> {
    let flags = match attributes.kind() {
        EntryKind::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
        // Setting needs no permission to read: a file of mode 0200 is opened for writing.
        _ => OFlags::RDONLY,
    };
    let nonblocking = flags | OFlags::NONBLOCK;
    let file = match at.open(nonblocking, 0) {
        Err(Errno::ACCESS) => at.open(OFlags::WRONLY | OFlags::NONBLOCK, 0)?,
        opened => opened?,
    };
    let file = std::fs::File::from(file);
    let meta = rustix::fs::fstat(&file)?;
    // Another process may have put a file with other data there.
    let size = u64::try_from(meta.st_size).ok();
    if kind_of(&meta) == FileType::RegularFile
        && attributes.size.is_some_and(|own| Some(own) != size)
    {
        return Err(io::Error::other("its size has changed since it was listed"));
    }
    let mut lost = LostMetadata::new();
    let beyond = ExtraMetadata {
        owner: attributes.owner,
        xattrs,
        ..ExtraMetadata::default()
    };
    before_mode(&file, &beyond, &mut lost);
    if let Some(mode) = attributes.mode {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o7777))?;
    }
    behind_mode(&file, &beyond, &mut lost);
    if let Some(times) = timestamps(attributes) {
        rustix::fs::futimens(&file, &times)?;
    }
    Ok(lost)
}

fn sum_of(
    run: &mut PlannedCopy<'_>,
    path: &[u8],
    range: &Range<u64>,
    size: u64,
) -> io::Result<Vec<u8>> {
    const PART: usize = 1 << 20;
    // Another process may have put a FIFO there, which must not block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(local_path(path), flags, Mode::empty())?;
    let file = std::fs::File::from(file);
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("it is no longer a regular file"));
    }
    if meta.len() != size {
        return Err(io::Error::other("its size has changed since it was listed"));
    }
    let mut hasher = blake3::Hasher::new();
    let mut part = vec![0; PART];
    let mut at = range.start;
    while at < range.end && !run.stopped() {
        let left = usize::try_from(range.end - at).unwrap_or(PART).min(PART);
        let read = file.read_at(part.get_mut(..left).unwrap_or_default(), at)?;
        if read == 0 {
            break;
        }
        hasher.update(part.get(..read).unwrap_or_default());
        at += read as u64;
    }
    Ok(hasher.finalize().as_bytes().to_vec())
}
