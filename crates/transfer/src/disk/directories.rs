//! Holds open the directories that a copy writes into: a path below the target that the user named
//! is resolved once, without symlinks, and further operations use the descriptor and a name.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::expected::ExpectedContent;
use super::os_words;
use super::source::{LocalSource, open_source, open_source_with};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, Timestamps, mkdirat, openat, renameat, statat,
    unlinkat, utimensat,
};
use rustix::io::Errno;
use schedule::{LocalTargetPath, OwnerWrite, SourceFileMeta};
use sys::{SymlinkPolicy, XattrTarget, default_acl_bits, open_beneath};

/// The number of directories below a target that are held open. A walk goes from directory to
/// directory, so most files in flight are in the last few.
const MOST: usize = 64;
/// The greatest length of a path in bytes in a system call, without the NUL (PATH_MAX).
const LONGEST_PATH: usize = 4095;
/// The number of symlinks followed before a path counts as a loop (Linux's own limit).
const MAX_SYMLINKS: usize = 40;

/// A directory that is held open.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    fd: OwnedFd,
    /// True for an O_PATH descriptor, opened where the account may not read the directory.
    unreadable: bool,
    /// The permission bits that the default access control list allows ([`default_acl_bits`]).
    default_bits: OnceLock<Option<u32>>,
}

impl OpenDirectory {
    fn open(open: impl Fn(OFlags) -> Result<OwnedFd, Errno>) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let (fd, unreadable) = match open(OFlags::RDONLY | flags) {
            #[cfg(target_os = "linux")]
            Err(Errno::ACCESS) => (open(OFlags::PATH | flags)?, true),
            opened => (opened?, false),
        };
        Ok(Self {
            fd,
            unreadable,
            default_bits: OnceLock::new(),
        })
    }

    /// Opens a directory and follows all symlinks in its path.
    fn follow(path: &Path) -> io::Result<Self> {
        let path = match path.as_os_str().is_empty() {
            true => Path::new("."),
            false => path,
        };
        Self::open(|flags| rustix::io::retry_on_intr(|| openat(CWD, path, flags, Mode::empty())))
    }

    /// Opens a directory below this one, in steps if its path is longer than the system permits.
    fn below(&self, path: &Path, dirlinks: bool) -> io::Result<Self> {
        let (near, rest) = first_step(path.as_os_str().as_bytes());
        let opened = Self::open(|flags| match dirlinks {
            true => rustix::io::retry_on_intr(|| openat(&self.fd, near, flags, Mode::empty())),
            false => open_beneath(&self.fd, near, flags, Mode::empty(), SymlinkPolicy::Refused),
        })?;
        match rest {
            [] => Ok(opened),
            rest => opened.below(Path::new(OsStr::from_bytes(rest)), dirlinks),
        }
    }

    /// Names the directory for calls on its extended attributes.
    pub(crate) fn xattrs(&self) -> XattrTarget<'_> {
        match self.unreadable {
            // fgetxattr(2) takes no O_PATH descriptor.
            true => XattrTarget::At(self.fd.as_fd(), b"."),
            false => XattrTarget::Open(self.fd.as_fd()),
        }
    }

    /// Returns true if new files inherit an access control list from the directory.
    pub(crate) fn has_default_acl(&self) -> bool {
        self.default_bits().is_some()
    }

    /// Returns the bits of `mode` that open(2) and mkdir(2) keep for new entries of this directory.
    pub(crate) fn created_mode(&self, mode: u32) -> u32 {
        match self.default_bits() {
            Some(bits) => mode & (bits | !0o777),
            None => mode & !sys::umask(),
        }
    }

    fn default_bits(&self) -> Option<u32> {
        *self
            .default_bits
            .get_or_init(|| default_acl_bits(self.xattrs()))
    }

    /// Sets the permission bits; fchmod(2) takes no O_PATH descriptor.
    pub(crate) fn set_mode(&self, mode: u32) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(mode);
        if !self.unreadable {
            return rustix::fs::fchmod(&self.fd, mode);
        }
        match rustix::fs::chmodat(&self.fd, ".", mode, AtFlags::empty()) {
            Err(Errno::ACCESS) => rustix::fs::chmod(self.path_in_proc(), mode),
            done => done,
        }
    }

    /// Sets the times; futimens(2) takes no O_PATH descriptor.
    pub(crate) fn set_times(&self, times: &Timestamps) -> Result<(), Errno> {
        if !self.unreadable {
            return rustix::fs::futimens(&self.fd, times);
        }
        match utimensat(&self.fd, ".", times, AtFlags::empty()) {
            Err(Errno::ACCESS) => utimensat(CWD, self.path_in_proc(), times, AtFlags::empty()),
            done => done,
        }
    }

    /// Returns the only path to a directory that may not be searched.
    fn path_in_proc(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    /// Changes the owner's write permission. The other permissions stay.
    pub(crate) fn set_owner_write(&self, change: OwnerWrite) -> Result<(), Errno> {
        match change.changed(rustix::fs::fstat(&self.fd)?.st_mode) {
            Some(mode) => self.set_mode(mode),
            None => Ok(()),
        }
    }

    /// Makes the directory's entries durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        match self.unreadable {
            true => Err(Errno::ACCESS.into()),
            false => Ok(rustix::fs::fsync(&self.fd)?),
        }
    }
}

impl AsFd for OpenDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A name in a directory that is held open. A later change of the directory's path does not
/// redirect operations on it.
#[derive(Clone, Debug)]
pub(crate) struct NameInDirectory {
    pub dir: Arc<OpenDirectory>,
    pub name: OsString,
}

fn check_symlink(stat: &Stat) -> io::Result<()> {
    match kind_of(stat) {
        FileType::Symlink => Ok(()),
        _ => Err(io::Error::other("another entry has taken its place")),
    }
}

impl NameInDirectory {
    /// Returns another name in the same directory.
    pub(crate) fn beside(&self, name: &[u8]) -> Self {
        Self {
            dir: Arc::clone(&self.dir),
            name: OsStr::from_bytes(name).to_owned(),
        }
    }

    pub(crate) fn name_bytes(&self) -> &[u8] {
        self.name.as_bytes()
    }

    /// Stats the entry without following a symlink; `None` if it does not exist.
    pub(crate) fn look(&self) -> io::Result<Option<Stat>> {
        match statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Calls `act` with the descriptor, name and flags by which a system call acts on the symlink of
    /// this name. Another entry that has taken its place is an error: somebody who may write in the
    /// directory may have put a hard link of a file from elsewhere there.
    pub(crate) fn with_symlink<T>(
        &self,
        act: impl FnOnce(BorrowedFd<'_>, &OsStr, AtFlags) -> T,
    ) -> io::Result<T> {
        #[cfg(target_os = "linux")]
        {
            let symlink = self.open(OFlags::PATH, 0)?;
            check_symlink(&rustix::fs::fstat(&symlink)?)?;
            Ok(act(symlink.as_fd(), OsStr::new(""), AtFlags::EMPTY_PATH))
        }
        #[cfg(not(target_os = "linux"))]
        {
            check_symlink(&self.look()?.ok_or(Errno::NOENT)?)?;
            Ok(act(self.dir.as_fd(), &self.name, AtFlags::SYMLINK_NOFOLLOW))
        }
    }

    /// Opens the entry; a symlink is an error.
    pub(crate) fn open(&self, flags: OFlags, mode: u32) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::io::retry_on_intr(|| {
            openat(&self.dir, &self.name, flags, Mode::from_raw_mode(mode))
        })
    }

    /// Removes the entry, which must not be a directory.
    pub(crate) fn remove(&self) -> io::Result<()> {
        Ok(unlinkat(&self.dir, &self.name, AtFlags::empty())?)
    }

    /// Renames the entry to `to`, replacing an existing file.
    pub(crate) fn rename(&self, to: &Self) -> Result<(), Errno> {
        renameat(&self.dir, &self.name, &to.dir, &to.name)
    }

    /// Names the entry for calls on its extended attributes; a symlink is not followed.
    pub(crate) fn xattrs(&self) -> XattrTarget<'_> {
        XattrTarget::At(self.dir.as_fd(), self.name_bytes())
    }
}

/// The place where a target is written.
#[derive(Debug)]
pub(crate) enum WriteDestination {
    /// A directory entry.
    At(NameInDirectory),
    /// A path to a file that a process has open (`/dev/stdout`, `/proc/self/fd/1`), or to a device
    /// or FIFO; opened by this path and written without a temporary.
    SpecialFile(PathBuf),
}

/// Directories that a copy has made itself. All its sessions write there, whatever somebody puts in
/// their place.
#[derive(Debug, Default)]
pub(crate) struct MadeDirectories(Mutex<Vec<(PathBuf, Arc<OpenDirectory>)>>);

impl MadeDirectories {
    fn find(&self, path: &Path) -> Option<Arc<OpenDirectory>> {
        let made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = made.iter().find(|(at, _)| at == path);
        found.map(|(_, dir)| Arc::clone(dir))
    }

    fn push(&self, path: &Path, dir: Arc<OpenDirectory>) {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        made.push((path.to_path_buf(), dir));
    }
}

/// A cache of open directories by path, limited in size.
#[derive(Debug, Default)]
pub struct OpenDirectoryCache {
    state: Mutex<DirectoryCacheState>,
    /// Directory for temporaries, if the user names one.
    temporaries: OnceLock<PathBuf>,
    /// Content of the only file, if that is known.
    expected: OnceLock<Arc<dyn ExpectedContent>>,
}

#[derive(Debug, Default)]
struct DirectoryCacheState {
    /// Roots of trees whose symlinks are copied as symlinks.
    unfollowed: Vec<PathBuf>,
    /// Directories that the user named, each resolved once so that the whole copy writes to one
    /// place.
    named: Vec<(PathBuf, Arc<OpenDirectory>)>,
    made: Arc<MadeDirectories>,
    /// Directories below the named ones, most recently used first.
    below: VecDeque<CachedDirectory>,
}

/// An open directory, by the bytes of its path: comparing a deep path component by component takes
/// longer than opening the directory.
#[derive(Debug)]
struct CachedDirectory {
    named: OsString,
    below: OsString,
    dirlinks: bool,
    dir: Arc<OpenDirectory>,
}

impl OpenDirectoryCache {
    /// Sets the directory in which [`OpenDirectoryCache::temporary`] creates files. Later calls
    /// have no effect.
    pub(crate) fn keep_temporaries_in(&self, path: PathBuf) {
        let _ = self.temporaries.set(path);
    }

    /// Uses the directories that other sessions of a copy have made, and tells them of its own.
    pub(crate) fn share_made(&self, made: Arc<MadeDirectories>) {
        self.state().made = made;
    }

    /// Gives a final name only to a file with this content; the first call counts.
    pub(crate) fn expect(&self, content: Arc<dyn ExpectedContent>) {
        let _ = self.expected.set(content);
    }

    /// Content that a file must have before it gets its final name.
    pub(super) fn expected(&self) -> Option<&dyn ExpectedContent> {
        self.expected.get().map(|content| &**content)
    }

    /// True if the user names a directory for temporaries.
    pub(crate) fn has_temp_dir(&self) -> bool {
        self.temporaries.get().is_some()
    }

    /// Returns the place of the temporary `name` of `target`.
    ///
    /// # Errors
    /// The directory for temporaries cannot be opened, or is on another file system than the
    /// target, so that rename(2) would fail.
    pub(crate) fn temporary(
        &self,
        target: &NameInDirectory,
        name: &[u8],
    ) -> io::Result<NameInDirectory> {
        let Some(path) = self.temporaries.get() else {
            return Ok(target.beside(name));
        };
        let shown = crate::escape::path(path);
        let dir = self.named(path).map_err(|e| {
            let why = os_words(&e);
            let hint = match e.kind() {
                io::ErrorKind::NotFound => {
                    ": create this directory on this machine, or leave out --temp-dir"
                }
                _ => "",
            };
            io::Error::new(
                e.kind(),
                format!("cannot use --temp-dir {shown}: {why}{hint}"),
            )
        })?;
        let device = |dir: &OpenDirectory| rustix::fs::fstat(dir).map(|stat| stat.st_dev);
        if device(&dir)? != device(&target.dir)? {
            return Err(io::Error::other(format!(
                "cannot use --temp-dir {shown}: it is on another file system than the target; name \
                 a directory on that of the target"
            )));
        }
        Ok(NameInDirectory {
            dir,
            name: OsStr::from_bytes(name).to_owned(),
        })
    }

    /// Makes [`OpenDirectoryCache::open_source`] follow no symlink below `root`: symlinks there are
    /// copied as such, so that one on the way to a file has been put there since the listing.
    pub(crate) fn follow_no_symlink_below(&self, root: PathBuf) {
        let mut state = self.state();
        if !state.unfollowed.contains(&root) {
            state.unfollowed.push(root);
        }
    }

    /// Opens a source and stats the open file, as [`open_source`] does.
    ///
    /// # Errors
    /// A symlink where none is followed (ELOOP), or a file that cannot be opened.
    pub(crate) fn open_source(&self, path: &Path) -> io::Result<(LocalSource, SourceFileMeta)> {
        let beneath = |root: &PathBuf| {
            let here = (root.as_os_str() == ".").then_some(path);
            let below = path.strip_prefix(root).ok().or(here)?;
            (!below.as_os_str().is_empty()).then(|| LocalTargetPath::beneath(root, below, false))
        };
        let beneath = self.state().unfollowed.iter().find_map(beneath);
        let Some(beneath) = beneath else {
            return open_source(path);
        };
        let opened = self
            .locate(&beneath)
            .and_then(|at| open_source_with(|flags| at.open(flags, 0)));
        opened.map_err(|e| match Errno::from_io_error(&e) {
            Some(Errno::LOOP) => io::Error::other(
                "the path or one of its directories became a symlink after the file was listed; \
                 run the same command again",
            ),
            _ => e,
        })
    }

    fn state(&self) -> MutexGuard<'_, DirectoryCacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves `path` up to the directory that contains its last component.
    ///
    /// # Errors
    /// A symlink below the named part of `path` (ELOOP), or a directory that cannot be opened.
    pub(crate) fn locate(&self, path: &LocalTargetPath) -> io::Result<NameInDirectory> {
        let Some((below, name)) = path.below_part().and_then(split) else {
            return match path.is_named() {
                true => self.locate_named(path.named_part()),
                false => Err(io::Error::other("the path lies outside of the target")),
            };
        };
        let dir = self.below(path.named_part(), below, path.follows_dirlinks())?;
        Ok(NameInDirectory { dir, name })
    }

    /// Resolves the place where a file is written, as [`OpenDirectoryCache::locate`] does. If the
    /// user named the file itself, symlinks at the end are followed, dangling ones too.
    pub(crate) fn destination(&self, path: &LocalTargetPath) -> io::Result<WriteDestination> {
        if !path.is_named() {
            return Ok(WriteDestination::At(self.locate(path)?));
        }
        let named = path.named_part();
        // A device, a FIFO, or a pipe that only the kernel can resolve by this path.
        if fs::metadata(named).is_ok_and(|meta| !meta.is_file() && !meta.is_dir()) {
            return Ok(WriteDestination::SpecialFile(named.to_path_buf()));
        }
        let (followed, open_elsewhere) = follow(named)?;
        if open_elsewhere {
            return Ok(WriteDestination::SpecialFile(named.to_path_buf()));
        }
        self.locate_named(&followed).map(WriteDestination::At)
    }

    /// Returns the open directory at `path`.
    pub(crate) fn directory(&self, path: &LocalTargetPath) -> io::Result<Arc<OpenDirectory>> {
        match path.below_part() {
            Some(below) => self.below(path.named_part(), below, path.follows_dirlinks()),
            None => Err(io::Error::other("the path lies outside of the target")),
        }
    }

    /// Creates the directory that the user named and opens it without following symlinks, so that
    /// the copy writes into the created directory even if it is replaced.
    ///
    /// # Errors
    /// Those of mkdir(2); EEXIST for a path without a file name (`.`, `/`).
    pub(crate) fn make_named(&self, path: &Path, mode: u32) -> io::Result<()> {
        if path.file_name().is_none() {
            return Err(Errno::EXIST.into());
        }
        let at = self.locate_named(path)?;
        mkdirat(&at.dir, &at.name, Mode::from_raw_mode(mode))?;
        let made = Arc::new(OpenDirectory::open(|flags| at.open(flags, 0))?);
        self.state().made.push(path, made);
        Ok(())
    }

    /// Creates the directory that the user named and that was missing, as
    /// [`OpenDirectoryCache::make_named`] does, or opens the one that somebody has made meanwhile.
    /// True if it was created.
    ///
    /// # Errors
    /// Those of mkdir(2); ENOTDIR for a symlink or a file, which the user did not name.
    pub(crate) fn make_or_adopt(&self, path: &Path, mode: u32) -> io::Result<bool> {
        match self.make_named(path, mode) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                self.adopt_named(path).map(|()| false)
            }
            Err(e) => Err(e),
        }
    }

    /// Opens the directory that the user named, and that somebody else has made since it was seen to
    /// be missing. A symlink in its place was not there for the user to name.
    ///
    /// # Errors
    /// ENOTDIR for a symlink or a file.
    fn adopt_named(&self, path: &Path) -> io::Result<()> {
        let state = self.state();
        if state.made.find(path).is_some() || state.named.iter().any(|(at, _)| at == path) {
            return Ok(());
        }
        drop(state);
        let at = self.locate_named(path)?;
        let there = Arc::new(OpenDirectory::open(|flags| at.open(flags, 0))?);
        self.state().made.push(path, there);
        Ok(())
    }

    /// Stats `path`; `None` if it does not exist. A symlink is followed only if the user named it.
    pub(crate) fn look(&self, path: &LocalTargetPath) -> io::Result<Option<Stat>> {
        if !path.is_named() {
            return match self.locate(path) {
                Ok(location) => location.look(),
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(e) => Err(e),
            };
        }
        match rustix::fs::stat(path.named_part()) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Drops the cached directory of `path`, which may have been removed and created again. True if
    /// it was cached.
    pub(crate) fn forget(&self, path: &LocalTargetPath) -> bool {
        let Some((below, _)) = path.below_part().and_then(split) else {
            return false;
        };
        let mut state = self.state();
        let before = state.below.len();
        let under = |known: &CachedDirectory| known.below.as_os_str() == below.as_os_str();
        state.below.retain(|known| !under(known));
        before > state.below.len()
    }

    fn locate_named(&self, path: &Path) -> io::Result<NameInDirectory> {
        let name = path.file_name().ok_or(Errno::ISDIR)?.to_owned();
        let dir = self.named(parent_of(path))?;
        Ok(NameInDirectory { dir, name })
    }

    fn named(&self, path: &Path) -> io::Result<Arc<OpenDirectory>> {
        let state = self.state();
        if let Some(dir) = state.made.find(path) {
            return Ok(dir);
        }
        if let Some((_, dir)) = state.named.iter().find(|(at, _)| at == path) {
            return Ok(Arc::clone(dir));
        }
        drop(state);
        let dir = Arc::new(OpenDirectory::follow(path)?);
        let mut state = self.state();
        // Another thread may have opened it first; the whole copy uses one descriptor.
        if let Some((_, first)) = state.named.iter().find(|(at, _)| at == path) {
            return Ok(Arc::clone(first));
        }
        state.named.push((path.to_path_buf(), Arc::clone(&dir)));
        Ok(dir)
    }

    fn below(&self, named: &Path, below: &Path, dirlinks: bool) -> io::Result<Arc<OpenDirectory>> {
        if below.as_os_str().is_empty() {
            return self.named(named);
        }
        {
            let mut state = self.state();
            let is = |known: &CachedDirectory| {
                known.below.as_os_str() == below.as_os_str()
                    && known.named.as_os_str() == named.as_os_str()
                    && known.dirlinks == dirlinks
            };
            if let Some(at) = state.below.iter().position(is)
                && let Some(known) = state.below.remove(at)
            {
                let dir = Arc::clone(&known.dir);
                state.below.push_front(known);
                return Ok(dir);
            }
        }
        let dir = Arc::new(self.named(named)?.below(below, dirlinks)?);
        let known = CachedDirectory {
            named: named.as_os_str().to_owned(),
            below: below.as_os_str().to_owned(),
            dirlinks,
            dir: Arc::clone(&dir),
        };
        let mut state = self.state();
        state.below.truncate(MOST - 1);
        state.below.push_front(known);
        Ok(dir)
    }
}

/// Returns the parent directory of `path`; empty for the current one.
fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) => parent,
        None => Path::new(""),
    }
}

/// Splits a relative path behind the last component that a system call takes together with those
/// before it.
fn first_step(path: &[u8]) -> (&[u8], &[u8]) {
    let fits = match path.get(..LONGEST_PATH) {
        Some(start) if path.len() > LONGEST_PATH => start,
        _ => return (path, b""),
    };
    match fits.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (path, b""),
    }
}

/// Splits a path into directory and name.
fn split(below: &Path) -> Option<(&Path, OsString)> {
    let name = below.file_name()?.to_owned();
    Some((below.parent()?, name))
}

/// Follows every symlink at the end of `path`, dangling ones too; the flag is true if one of them
/// refers to a file that a process has open.
fn follow(path: &Path) -> io::Result<(PathBuf, bool)> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_SYMLINKS {
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_symlink() => {
                let parent = parent_of(&path);
                let of_process = fs::canonicalize(parent).is_ok_and(|at| at.starts_with("/proc"));
                if of_process && fs::metadata(&path).is_ok_and(|meta| meta.is_file()) {
                    return Ok((path, true));
                }
                path = parent.join(fs::read_link(&path)?);
            }
            _ => return Ok((path, false)),
        }
    }
    Err(Errno::LOOP.into())
}

/// Returns the file type of a stat(2) result.
pub(crate) fn kind_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

#[cfg(test)]
#[path = "directories_tests.rs"]
mod tests;
