use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{io, iter};

use rustix::fs::{
    Access, AtFlags, CWD, Dir, FileType, Mode, OFlags, access, accessat, openat, statat,
};
use rustix::io::{Errno, retry_on_intr};
use schedule::EntryKind;
use sys::{SymlinkPolicy, open_beneath};

use super::{EntryInfo, INTO_ITSELF, WalkDirectoryId, WalkEntry};
use crate::disk::{EntryStat, os_words};
use crate::file_error::FileError;
use crate::report::EscapedName;

/// Number of directories kept open at once. The entries of directories further up are read into
/// memory, so that a deep tree does not use up the descriptors.
const OPEN: usize = 200;
/// Directories reported ahead of their contents and siblings, and names read to find them.
const DIRS_AHEAD: usize = 64;
const NAMES_AHEAD: usize = 4096;

/// Walks a local tree in the order of readdir, as scp does, without recursion.
///
/// Up to [`DIRS_AHEAD`] directories are reported before the files beside them, so that they can be
/// made early. Of 100,000 files, those of the first directory alone occupied the path for half a
/// second, because the requests for the next directory were queued behind them in slow start.
///
/// A walk that keeps symlinks lists each directory through a descriptor that was opened beneath the
/// root, so that a directory that another process swaps for a symlink meanwhile is not listed. One
/// that follows symlinks opens paths, as scp does.
#[derive(Debug)]
pub struct LocalWalk {
    follow: bool,
    root: Option<PathBuf>,
    /// The root and its path, once it is entered by a walk that keeps symlinks.
    held: Option<(OwnedFd, PathBuf)>,
    /// The root, once it was reported.
    below: VecDeque<PendingDir>,
    stack: Vec<WalkedDirectory>,
    next: u64,
    /// Directory not to enter: the target of the copy, which may not exist yet.
    avoid: Option<PathBuf>,
    avoided: Option<(u64, u64)>,
}

#[derive(Debug)]
struct WalkedDirectory {
    id: WalkDirectoryId,
    path: PathBuf,
    entries: DirectoryEntries,
    /// Device and inode number, to detect a symlink loop.
    identity: (u64, u64),
    /// Names already read, directories first.
    ahead: VecDeque<io::Result<OsString>>,
    /// Subdirectories that were reported.
    below: VecDeque<PendingDir>,
}

/// Directory that was reported and not entered yet.
#[derive(Debug)]
struct PendingDir {
    id: WalkDirectoryId,
    path: PathBuf,
}

#[derive(Debug)]
enum DirectoryEntries {
    Open(Dir),
    /// Name, and true if it is a directory.
    Read(std::vec::IntoIter<io::Result<(OsString, bool)>>),
}

impl DirectoryEntries {
    fn next(&mut self) -> Option<io::Result<(OsString, bool)>> {
        match self {
            Self::Open(dir) => next_name(dir),
            Self::Read(names) => names.next(),
        }
    }
}

/// Returns the next name except `.` and `..`, and true if it is a directory. As with read_dir, an
/// entry whose type the file system does not tell counts as none.
fn next_name(dir: &mut Dir) -> Option<io::Result<(OsString, bool)>> {
    loop {
        let entry = match dir.read()? {
            Ok(entry) => entry,
            Err(e) => return Some(Err(e.into())),
        };
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            let is_dir = entry.file_type() == FileType::Directory;
            return Some(Ok((OsStr::from_bytes(name).to_owned(), is_dir)));
        }
    }
}

impl WalkedDirectory {
    /// Reads names ahead. Returns false if there are no more.
    fn read_ahead(&mut self) -> bool {
        let mut dirs = VecDeque::new();
        while dirs.len() < DIRS_AHEAD && dirs.len() + self.ahead.len() < NAMES_AHEAD {
            match self.entries.next() {
                Some(Ok((name, true))) => dirs.push_back(Ok(name)),
                Some(other) => self.ahead.push_back(other.map(|(name, _)| name)),
                None => break,
            }
        }
        dirs.append(&mut self.ahead);
        self.ahead = dirs;
        !self.ahead.is_empty()
    }
}

impl LocalWalk {
    /// Creates a walk of `root` that follows symlinks or keeps them. The root itself is always
    /// followed.
    pub fn new(root: PathBuf, follow: bool) -> Self {
        Self {
            follow,
            root: Some(root),
            held: None,
            below: VecDeque::new(),
            stack: Vec::new(),
            next: 0,
            avoid: None,
            avoided: None,
        }
    }

    /// Skips the directory at this path and reports it as a problem.
    pub fn avoid(&mut self, path: PathBuf) {
        self.avoid = Some(path);
    }

    /// Leaves out the contents of directory `id`, which must be the last one reported.
    pub fn skip(&mut self, id: WalkDirectoryId) {
        self.told_here().retain(|below| below.id != id);
    }

    /// Queue for directories reported at the current level.
    fn told_here(&mut self) -> &mut VecDeque<PendingDir> {
        match self.stack.last_mut() {
            Some(frame) => &mut frame.below,
            None => &mut self.below,
        }
    }

    fn look(&mut self, parent: Option<WalkDirectoryId>, name: Vec<u8>, path: PathBuf) -> WalkEntry {
        match self.stat(parent, &path) {
            Ok(stat) => self.sort(parent, name, path, &stat),
            Err(e) => match dangling(&path, &e) {
                // A root is followed even by -a.
                Some(what) if parent.is_some() => {
                    problem(&path, format!("{what}; -a copies the link"))
                }
                Some(what) => problem(&path, what),
                None => problem(&path, os_words(&e)),
            },
        }
    }

    /// Asks for the attributes of an entry of the current directory, or of the root. Without
    /// symlinks to follow the kernel looks up the name alone and not its whole path.
    fn stat(&self, parent: Option<WalkDirectoryId>, path: &Path) -> io::Result<EntryStat> {
        if self.follow || parent.is_none() {
            return Ok(EntryStat::from(&fs::metadata(path)?));
        }
        match self.in_open_directory(path) {
            Some((dir, name)) => {
                let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
                Ok(EntryStat::from(&stat))
            }
            None => Ok(EntryStat::from(&fs::symlink_metadata(path)?)),
        }
    }

    fn sort(
        &mut self,
        parent: Option<WalkDirectoryId>,
        name: Vec<u8>,
        path: PathBuf,
        stat: &EntryStat,
    ) -> WalkEntry {
        let kind = stat.attributes().kind();
        let told = match kind {
            EntryKind::Directory => Some(self.told(&path, stat)),
            _ => None,
        };
        let path = path.into_os_string().into_vec();
        let at = EntryInfo {
            parent,
            name,
            path,
            attributes: stat.attributes(),
            identity: (kind == EntryKind::File).then_some(stat.id()),
        };
        match (kind, told) {
            (_, Some(Ok(id))) => WalkEntry::Directory {
                id,
                at,
                existing: None,
            },
            (_, Some(Err(error))) => WalkEntry::Problem {
                path: at.path,
                what: error.to_string(),
            },
            (EntryKind::File, _) => WalkEntry::File(at),
            (EntryKind::Symlink, _) => WalkEntry::Symlink(at),
            (EntryKind::Directory | EntryKind::Other, _) => WalkEntry::Special(at.path),
        }
    }

    /// Reports a directory that can be entered.
    fn told(&mut self, path: &Path, stat: &EntryStat) -> Result<WalkDirectoryId, FileError> {
        if let (Some(path), None) = (&self.avoid, self.avoided) {
            let meta = fs::metadata(path).ok();
            self.avoided = meta.map(|m| (m.dev(), m.ino()));
        }
        self.may_enter((stat.id().device, stat.id().inode))?;
        let readable = match self.in_open_directory(path) {
            Some((dir, name)) => accessat(dir, name, Access::READ_OK, AtFlags::empty()),
            None => access(path, Access::READ_OK),
        };
        readable?;
        let id = WalkDirectoryId(self.next);
        self.next += 1;
        let below = PendingDir {
            id,
            path: path.to_path_buf(),
        };
        self.told_here().push_back(below);
        Ok(id)
    }

    fn may_enter(&self, identity: (u64, u64)) -> Result<(), FileError> {
        if self.avoided == Some(identity) {
            return Err(INTO_ITSELF.into());
        }
        match self.stack.iter().find(|f| f.identity == identity) {
            Some(above) => {
                let above = EscapedName::from(above.path.as_path());
                let what =
                    format!("symlink loop: the link leads back to {above}; -a copies the link");
                Err(what.into())
            }
            None => Ok(()),
        }
    }

    /// Enters a reported directory, which may have changed since.
    fn enter(&mut self, below: PendingDir) -> Option<WalkEntry> {
        let PendingDir { id, path } = below;
        let entered = self.list(&path);
        let (identity, entries, error) = match entered {
            Ok((identity, entries)) => (identity, entries, None),
            // Add an empty frame, so that the end of the directory is reported too.
            Err(error) => (
                (0, 0),
                DirectoryEntries::Read(Vec::new().into_iter()),
                Some(error),
            ),
        };
        self.close_far_above();
        let found = error.map(|error| problem(&path, error.to_string()));
        self.stack.push(WalkedDirectory {
            id,
            path,
            entries,
            identity,
            ahead: VecDeque::new(),
            below: VecDeque::new(),
        });
        found
    }

    /// Opens a directory; returns its device and inode number, and its entries.
    fn list(&mut self, path: &Path) -> Result<((u64, u64), DirectoryEntries), FileError> {
        let dir = File::from(self.open(path)?);
        let meta = dir.metadata()?;
        let identity = (meta.dev(), meta.ino());
        self.may_enter(identity)?;
        let entries = Dir::new(dir)?;
        Ok((identity, DirectoryEntries::Open(entries)))
    }

    /// Returns the current directory and the name of `path` in it, unless symlinks are followed. The
    /// length of the path does not matter to calls with both.
    fn in_open_directory<'p>(&self, path: &'p Path) -> Option<(BorrowedFd<'_>, &'p OsStr)> {
        match self.stack.last().map(|frame| &frame.entries) {
            Some(DirectoryEntries::Open(dir)) if !self.follow => {
                Some((dir.fd().ok()?, path.file_name()?))
            }
            _ => None,
        }
    }

    fn open(&mut self, path: &Path) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Some((dir, name)) = self.in_open_directory(path) {
            let flags = flags | OFlags::NOFOLLOW;
            return retry_on_intr(|| openat(dir, name, flags, Mode::empty()));
        }
        let below = self.held.as_ref().and_then(|(root, at)| {
            let below = path.strip_prefix(at).ok()?;
            Some((root, below.as_os_str().as_bytes()))
        });
        if let Some((root, below)) = below {
            return open_beneath(root, below, flags, Mode::empty(), SymlinkPolicy::Refused);
        }
        let fd = retry_on_intr(|| openat(CWD, path, flags, Mode::empty()))?;
        if !self.follow {
            self.held = Some((
                fd.try_clone().map_err(|_| Errno::MFILE)?,
                path.to_path_buf(),
            ));
        }
        Ok(fd)
    }

    fn close_far_above(&mut self) {
        let Some(far) = self.stack.len().checked_sub(OPEN) else {
            return;
        };
        if let Some(frame) = self.stack.get_mut(far)
            && let DirectoryEntries::Open(dir) = &mut frame.entries
        {
            let names: Vec<_> = iter::from_fn(|| next_name(dir)).collect();
            frame.entries = DirectoryEntries::Read(names.into_iter());
        }
    }
}

impl Iterator for LocalWalk {
    type Item = WalkEntry;

    fn next(&mut self) -> Option<WalkEntry> {
        if let Some(root) = self.root.take() {
            return Some(self.look(None, Vec::new(), root));
        }
        loop {
            let below = match self.stack.last_mut() {
                None => self.below.pop_front()?,
                Some(frame) => match frame.ahead.pop_front() {
                    Some(Ok(name)) => {
                        let path = frame.path.join(&name);
                        let parent = Some(frame.id);
                        return Some(self.look(parent, name.into_vec(), path));
                    }
                    Some(Err(e)) => return Some(problem(&frame.path, os_words(&e))),
                    None => match frame.below.pop_front() {
                        Some(below) => below,
                        None if frame.read_ahead() => continue,
                        None => {
                            let id = frame.id;
                            self.stack.pop();
                            return Some(WalkEntry::Listed(id));
                        }
                    },
                },
            };
            if let Some(found) = self.enter(below) {
                return Some(found);
            }
        }
    }
}

/// Describes the failure to follow a symlink whose target does not exist, or that leads to itself;
/// `None` for any other failure.
pub(crate) fn dangling(path: &Path, error: &io::Error) -> Option<String> {
    let is_loop = error.raw_os_error() == Some(Errno::LOOP.raw_os_error());
    if error.kind() != io::ErrorKind::NotFound && !is_loop {
        return None;
    }
    let to = fs::read_link(path).ok()?;
    let to = EscapedName::from(&*to);
    Some(match is_loop {
        true => format!("symlink loop: the link to {to} leads back to itself"),
        false => format!("symlink to {to}, which does not exist"),
    })
}

fn problem(path: &Path, what: String) -> WalkEntry {
    WalkEntry::Problem {
        path: path.as_os_str().as_bytes().to_vec(),
        what,
    }
}

/// Converts bytes to a path.
pub(crate) fn local_path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

#[cfg(test)]
mod tests;
