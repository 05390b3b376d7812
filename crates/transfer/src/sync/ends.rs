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
    Attributes, ByteRange, EntryKind, ExpectedEntry, ExtraMetadata, JobKind, LaneEvent,
    MetadataFlags, OwnerWrite, RemotePath, Xattrs,
};
use sftp::xattrs::Xattr;
use sync::parent_path;

use super::expected_file::ExpectedFile;
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
    /// Sets permissions, times and the owner of a file or directory, and its extended attributes and
    /// access control lists, as far as they are given.
    Set {
        path: Vec<u8>,
        attributes: Attributes,
        xattrs: Option<Box<Xattrs>>,
        expected: ExpectedFile,
    },
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

    /// Sets permissions, times and the owner of a directory, as far as they are given.
    pub(crate) fn set(path: Vec<u8>, attributes: Attributes) -> Self {
        Self::Set {
            path,
            attributes,
            xattrs: None,
            expected: ExpectedFile::default(),
        }
    }
}

/// Result of an operation: the text of a symlink or a checksum, or the reason of a failure.
pub(crate) type FileOperationResult = Result<Option<Vec<u8>>, FileError>;

/// Carries out `ops` in any order and returns their results in the order of `ops`. After a cancel
/// or the loss of the session the rest fail.
pub(crate) async fn carry_out(
    run: &mut PlannedCopy<'_>,
    end: PlannedCopySide,
    ops: Vec<SyncFileOperation>,
) -> Vec<FileOperationResult> {
    if run.is_local(end) {
        return ops.iter().map(|op| local(run, op)).collect();
    }
    let lost = "internal error: the operation was not carried out";
    let mut results = vec![Err(lost.into()); ops.len()];
    let mut told = BTreeMap::new();
    let heard = |at, event| take(at, event, &mut told, &mut results);
    let jobs = ops.into_iter().map(job);
    run.carry_out(end, jobs, IN_FLIGHT, heard).await;
    results
}

/// Both ends of a sync: the copy that connects them, and the operations on names there.
pub(super) struct SyncEnds<'a>(PlannedCopy<'a>);

impl<'a> SyncEnds<'a> {
    pub(super) fn new(copy: PlannedCopy<'a>) -> Self {
        Self(copy)
    }

    /// Ends the copy; returns its summary.
    pub(super) fn finish(self) -> CopySummary {
        self.0.finish()
    }

    /// Carries out `ops` at an end as [`carry_out`] does.
    pub(super) async fn operate(
        &mut self,
        end: PlannedCopySide,
        ops: Vec<SyncFileOperation>,
    ) -> Vec<FileOperationResult> {
        match ops.is_empty() {
            true => Vec::new(),
            false => carry_out(&mut self.0, end, ops).await,
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
        paths: &[Vec<u8>],
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
        let root = self.root(end).to_vec();
        let jobs = paths.iter().map(|path| JobKind::GetXattrs {
            // The user named the root.
            flags: kinds.with(MetadataFlags::FOLLOW, *path == root),
            path: RemotePath(path.clone()),
        });
        let tell = |at, event| match event {
            LaneEvent::Xattrs(_, list) => heard(at, Ok(list)),
            LaneEvent::Failed(_, fault) => heard(at, Err(fault.into())),
            _ => {}
        };
        self.0.carry_out(end, jobs, XATTRS_IN_FLIGHT, tell).await;
    }

    /// Returns the comparison of what the listings do not tell.
    pub(super) fn settling(&mut self) -> OperationRunner<'_, 'a> {
        OperationRunner::new(&mut self.0)
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
        &self.0
    }
}

impl DerefMut for SyncEnds<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// Records the result or the end of the job at this position.
fn take(
    at: usize,
    event: LaneEvent,
    told: &mut BTreeMap<usize, Vec<u8>>,
    results: &mut [FileOperationResult],
) {
    let failed = match event {
        LaneEvent::Path(_, text) | LaneEvent::Sum(_, text) => {
            told.insert(at, text);
            return;
        }
        LaneEvent::Attributes(_, attributes) if attributes.kind() == EntryKind::Directory => {
            told.insert(at, DIRECTORY.to_vec());
            return;
        }
        LaneEvent::Done(_) => None,
        LaneEvent::Failed(_, fault) => Some(fault),
        _ => return,
    };
    let text = told.remove(&at);
    if let Some(result) = results.get_mut(at) {
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
        SyncFileOperation::Set {
            path,
            attributes,
            xattrs,
            expected,
        } => JobKind::SetAttributes {
            path: RemotePath(path),
            expected: attributes.expected(expected.links(), expected.listed()),
            attributes,
            follow: false,
            xattrs,
        },
        SyncFileOperation::SetSymlinkOwner(path, owner) => JobKind::SetAttributes {
            path: RemotePath(path),
            attributes: Attributes {
                owner: Some(owner),
                ..Attributes::default()
            },
            follow: false,
            xattrs: None,
            expected: ExpectedEntry::SYMLINK,
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
                tag: None,
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
    let directories = run.directories();
    let at = |path: &[u8]| directories.locate(&run.local_target(path));
    match op {
        SyncFileOperation::Remove(path) => match at(path)?.remove() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        },
        SyncFileOperation::RemoveDir(path) => {
            let at = at(path)?;
            directories.forget(&run.local_target(path));
            unlinkat(&at.dir, &at.name, AtFlags::REMOVEDIR)?;
        }
        SyncFileOperation::MakeDir { path, mode } => make_dir(&at(path)?, *mode)?,
        SyncFileOperation::MakeNamedDir { path, mode, is_new } => {
            make_named_dir(&directories, &local_path(path), *mode, *is_new)?;
        }
        SyncFileOperation::Rename { from, to } => rename_to_free_name(&at(from)?, &at(to)?)?,
        SyncFileOperation::CreateShared { path, size } => create_shared(&at(path)?, *size)?,
        SyncFileOperation::Set {
            path,
            attributes,
            xattrs,
            expected,
        } => {
            for (parts, why) in set(&at(path)?, attributes, xattrs.clone(), expected)? {
                run.note_lost(parts, &why, path);
            }
        }
        SyncFileOperation::SetSymlinkOwner(path, (user, group)) => {
            let at = at(path)?;
            let (user, group) = sys::chown_ids(*user, *group);
            let set = at.with_symlink(|dir, name, flags| chownat(dir, name, user, group, flags));
            if let Err(why) = set.and_then(|done| Ok(done?)) {
                run.note_lost_owner(&os_words(&why), path);
            }
        }
        SyncFileOperation::SetOwnerWrite { dir, change } => directories
            .directory(&run.local_target(dir))?
            .set_owner_write(*change)?,
        SyncFileOperation::Lstat(path) => {
            let stat = at(path)?.look()?.ok_or(Errno::NOENT)?;
            let is_directory = kind_of(&stat) == FileType::Directory;
            return Ok(is_directory.then(|| DIRECTORY.to_vec()));
        }
        SyncFileOperation::ReadSymlink(path) => {
            let text = std::fs::read_link(local_path(path))?;
            return Ok(Some(text.as_os_str().as_bytes().to_vec()));
        }
        SyncFileOperation::Link { of, to } => {
            let (of, to) = (at(of)?, at(to)?);
            linkat(&of.dir, &of.name, &to.dir, &to.name, AtFlags::empty())?;
        }
        SyncFileOperation::ReplaceByLink { of, to } => run.make_hard_link(to, of)?,
        SyncFileOperation::Sum { path, range, size } => {
            return Ok(Some(sum_of(run, path, range, *size)?));
        }
    }
    Ok(None)
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

/// Sets attributes of a file or directory. Returns those that could not be set and are not needed.
pub(super) fn set(
    at: &NameInDirectory,
    attributes: &Attributes,
    xattrs: Option<Box<Xattrs>>,
    expected: &ExpectedFile,
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
    expected.check(&meta, attributes)?;
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
