//! This machine's files, in memory.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use schedule::journal::SourceFileStamp;
use schedule::{
    Attributes, EntryKind, ExtraMetadata, FileCopyState, JobFailureKind, LocalTargetPath,
    MetadataFlags, Parts, ResumeData, StoredTarget,
};
use sftp::Attrs;
use sftp::xattrs::Xattr;
use testkit::sftp_model::{Errno, Fs, Kind};

use super::disk::{attributes, bytes_of, words};
use crate::copy::CopyOptions;
use crate::copy::local_file_ops::{
    LocalFileCopySettings, LocalFileOps, LocalStat, LocalTreeWalk, ReadAt,
};
use crate::copy::sides::CopySide;
use crate::disk::LostMetadata;
use crate::file_error::FileError;
use crate::walk::{EntryInfo, WalkDirectoryId, WalkEntry, join, local_path};

const SECOND: u64 = 1_000_000_000;

/// Files of the simulated machine, and the home directory there of the account that logs in to a
/// host, if a host is this machine.
#[derive(Clone)]
pub(super) struct SimFiles(pub(super) Rc<RefCell<Fs>>, pub(super) Option<PathBuf>);

fn stat_of(fs: &Fs, path: &[u8], follow: bool) -> Result<LocalStat, Errno> {
    let inode = fs.lookup(path, follow)?;
    let attributes = attributes(fs, inode)?;
    let modified = attributes.times.map_or(0, |(_, at)| at);
    Ok(LocalStat {
        attributes,
        id: SourceFileStamp {
            size: attributes.size.unwrap_or(0),
            mtime: u64::from(modified) * SECOND,
            inode,
            device: 1,
        },
        seconds: modified.into(),
    })
}

/// Error of an operation on the simulated files.
fn refused(errno: Errno) -> FileError {
    let kind = match errno {
        Errno::NoEnt => JobFailureKind::NotFound,
        Errno::Access => JobFailureKind::PermissionDenied,
        Errno::NoSpace => JobFailureKind::NoSpace,
        _ => JobFailureKind::Other,
    };
    FileError::new(words(errno), kind)
}

impl SimFiles {
    fn beside(target: &LocalTargetPath, name: &[u8]) -> Vec<u8> {
        let target = bytes_of(&target.whole());
        join(&schedule::directory_of(&target), name)
    }
}

impl LocalFileOps for SimFiles {
    fn stat(&self, path: &[u8]) -> Result<LocalStat, FileError> {
        stat_of(&self.0.borrow(), path, true).map_err(refused)
    }

    fn exists(&self, path: &Path) -> bool {
        self.0.borrow().lookup(&bytes_of(path), false).is_ok()
    }

    fn create_dir(&self, path: &Path) -> Result<bool, FileError> {
        match self.0.borrow_mut().make(&bytes_of(path), Kind::Dir, 0o777) {
            Ok(()) => Ok(true),
            Err(Errno::Exist) => Ok(false),
            Err(e) => Err(refused(e)),
        }
    }

    fn make_target(&self, path: &Path) -> Result<(), FileError> {
        self.create_dir(path)?;
        match self.stat(&bytes_of(path))?.is_directory() {
            true => Ok(()),
            false => Err("not a directory".into()),
        }
    }

    fn remove_dir(&self, path: &Path) {
        let _ = self.0.borrow_mut().remove(&bytes_of(path), true);
    }

    fn canonical(&self, path: &Path) -> Option<PathBuf> {
        let fs = self.0.borrow();
        let path = bytes_of(path);
        fs.lookup(&path, true).ok()?;
        Some(local_path(&fs.resolve(&path, true).ok()?))
    }

    fn are_one_at(&self, _dir: &Path, one: &[u8], other: &[u8]) -> bool {
        one == other || self.0.borrow().folds_case && one.eq_ignore_ascii_case(other)
    }

    fn home(&self, _login: Option<&str>) -> Option<PathBuf> {
        self.1.clone()
    }

    fn walk(&self, root: PathBuf, follow: bool, _avoid: Option<PathBuf>) -> Box<dyn LocalTreeWalk> {
        Box::new(SimWalk {
            files: self.clone(),
            follow,
            root: Some(bytes_of(&root)),
            pending: None,
            stack: Vec::new(),
            next: 0,
        })
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, FileError> {
        let mut fs = self.0.borrow_mut();
        let inode = fs.lookup(path, false).map_err(refused)?;
        match &fs.node(inode).map_err(refused)?.kind {
            Kind::Symlink(to) => Ok(to.clone()),
            _ => Err("invalid argument".into()),
        }
    }

    fn xattrs(&self, _: &[u8], _: MetadataFlags) -> Result<Vec<Xattr>, FileError> {
        Ok(Vec::new())
    }

    fn has_holes(&self, _: &Path) -> bool {
        false
    }

    fn reader(&self, path: &Path) -> io::Result<Box<dyn ReadAt>> {
        let mut fs = self.0.borrow_mut();
        let found = fs.lookup(&bytes_of(path), true);
        let data = found.and_then(|inode| Ok(fs.node(inode)?.kind.clone()));
        match data {
            Ok(Kind::File(data)) => Ok(Box::new(Contents(data))),
            Ok(_) => Err(io::ErrorKind::InvalidInput.into()),
            Err(e) => Err(io::Error::other(words(e))),
        }
    }

    fn take_text(&self, path: &Path, most: u64) -> Vec<u8> {
        let mut text = vec![0; most as usize];
        let read = self
            .reader(path)
            .and_then(|file| file.read_at(0, &mut text));
        text.truncate(read.unwrap_or(0));
        self.remove_file(path);
        text
    }

    fn remove_file(&self, path: &Path) {
        let _ = self.0.borrow_mut().remove(&bytes_of(path), false);
    }

    fn owner_names(&self, _: u32, _: u32) -> (Vec<u8>, Vec<u8>) {
        (Vec::new(), Vec::new())
    }

    fn owner_ids(&self, users: &[Vec<u8>], groups: &[Vec<u8>]) -> (Vec<u32>, Vec<u32>) {
        (vec![u32::MAX; users.len()], vec![u32::MAX; groups.len()])
    }

    fn look(&self, path: &LocalTargetPath) -> Option<LocalStat> {
        let follow = path.is_named();
        stat_of(&self.0.borrow(), &bytes_of(&path.whole()), follow).ok()
    }

    fn look_beside(&self, target: &LocalTargetPath, name: &[u8]) -> Option<LocalStat> {
        stat_of(&self.0.borrow(), &Self::beside(target, name), false).ok()
    }

    fn remove_beside(&self, target: &LocalTargetPath, name: &[u8]) {
        let _ = self
            .0
            .borrow_mut()
            .remove(&Self::beside(target, name), false);
    }

    fn remove_temporaries(&self, target: &LocalTargetPath, tag: u64) {
        let mut fs = self.0.borrow_mut();
        for name in ResumeData::names(&bytes_of(&target.whole()), tag) {
            let _ = fs.remove(&name, false);
        }
    }

    fn make_directory(
        &self,
        path: &LocalTargetPath,
        mode: u32,
        follow: bool,
    ) -> Result<bool, FileError> {
        let path = bytes_of(&path.whole());
        let mode = (mode & 0o1777) | 0o700;
        let mut fs = self.0.borrow_mut();
        match fs.make(&path, Kind::Dir, mode) {
            Ok(()) => Ok(true),
            Err(Errno::Exist) => match stat_of(&fs, &path, follow) {
                Ok(stat) if stat.is_directory() => Ok(false),
                _ => Err(schedule::FILE_IN_THE_WAY.into()),
            },
            Err(e) => Err(refused(e)),
        }
    }

    fn finish_directory(
        &self,
        path: &LocalTargetPath,
        attributes: &Attributes,
        created: bool,
        options: &CopyOptions,
        beyond: &ExtraMetadata,
    ) -> Result<LostMetadata, FileError> {
        let mut fs = self.0.borrow_mut();
        let inode = fs.lookup(&bytes_of(&path.whole()), true).map_err(refused)?;
        let mut lost = LostMetadata::new();
        if let Some(owner) = beyond.owner {
            let attrs = Attrs {
                owner: Some(owner),
                ..Attrs::default()
            };
            if let Err(e) = fs.set(inode, &attrs) {
                lost.push((Parts::OWNER, words(e).to_owned()));
            }
        }
        let umask = fs.umask;
        let node = fs.node(inode).map_err(refused)?;
        if options.preserve || options.archive {
            node.mode = attributes.mode.unwrap_or(node.mode) & 0o7777;
            node.times = attributes.times.unwrap_or(node.times);
        } else if created && let Some(mode) = attributes.mode.filter(|mode| mode & 0o700 != 0o700) {
            node.mode = mode & 0o1777 & !umask;
        }
        Ok(lost)
    }

    fn grant_owner_access(&self, path: &LocalTargetPath) {
        let mut fs = self.0.borrow_mut();
        let inode = fs.lookup(&bytes_of(&path.whole()), true);
        if let Ok(node) = inode.and_then(|inode| fs.node(inode)) {
            node.mode |= 0o700;
        }
    }

    fn make_symlink(
        &self,
        path: &LocalTargetPath,
        points_to: &[u8],
        _: &Attributes,
    ) -> Result<(), FileError> {
        let mut fs = self.0.borrow_mut();
        let path = bytes_of(&path.whole());
        match stat_of(&fs, &path, false) {
            Ok(stat) if stat.is_directory() => {
                return Err("a directory is in the way of the file: remove it".into());
            }
            Ok(_) => drop(fs.remove(&path, false)),
            Err(_) => {}
        }
        let made = fs.make(&path, Kind::Symlink(points_to.to_vec()), 0o777);
        made.map_err(refused)
    }

    fn make_hard_link(
        &self,
        path: &LocalTargetPath,
        of: &LocalTargetPath,
    ) -> Result<(), FileError> {
        let (path, of) = (bytes_of(&path.whole()), bytes_of(&of.whole()));
        let mut fs = self.0.borrow_mut();
        if stat_of(&fs, &path, false).is_ok_and(|stat| !stat.is_directory()) {
            let _ = fs.remove(&path, false);
        }
        fs.hard_link(&of, &path).map_err(refused)
    }

    fn copy_file(
        &self,
        _: &Path,
        _: &LocalTargetPath,
        _: &LocalFileCopySettings<'_>,
        _: &mut dyn FnMut(u64),
    ) -> Result<(FileCopyState, StoredTarget), (CopySide, FileError)> {
        let why = "the simulation has no local copies";
        Err((CopySide::Source, why.into()))
    }
}

struct Contents(Vec<u8>);

impl ReadAt for Contents {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.0.get(offset as usize..).unwrap_or_default();
        let len = left.len().min(buffer.len());
        buffer[..len].copy_from_slice(&left[..len]);
        Ok(len)
    }
}

/// Walk of a tree in memory.
struct SimWalk {
    files: SimFiles,
    follow: bool,
    root: Option<Vec<u8>>,
    /// Directory that was reported and is entered next.
    pending: Option<(WalkDirectoryId, Vec<u8>)>,
    stack: Vec<(WalkDirectoryId, Vec<u8>, VecDeque<Vec<u8>>)>,
    next: u64,
}

impl std::fmt::Debug for SimWalk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimWalk").finish_non_exhaustive()
    }
}

impl SimWalk {
    fn look(&mut self, parent: Option<WalkDirectoryId>, name: Vec<u8>, path: Vec<u8>) -> WalkEntry {
        let follow = self.follow || parent.is_none();
        let stat = match stat_of(&self.files.0.borrow(), &path, follow) {
            Ok(stat) => stat,
            Err(e) => {
                let what = words(e).to_owned();
                return WalkEntry::Problem { path, what };
            }
        };
        let at = EntryInfo {
            parent,
            name,
            path: path.clone(),
            attributes: stat.attributes,
            identity: stat.is_file().then_some(stat.id),
        };
        match stat.attributes.kind() {
            EntryKind::Directory => {
                let id = WalkDirectoryId(self.next);
                self.next += 1;
                self.pending = Some((id, path));
                WalkEntry::Directory {
                    id,
                    at,
                    existing: None,
                }
            }
            EntryKind::Symlink => WalkEntry::Symlink(at),
            _ => WalkEntry::File(at),
        }
    }
}

impl LocalTreeWalk for SimWalk {
    fn next(&mut self) -> Option<WalkEntry> {
        if let Some(root) = self.root.take() {
            return Some(self.look(None, Vec::new(), root));
        }
        if let Some((id, path)) = self.pending.take() {
            let fs = self.files.0.borrow();
            let real = fs.resolve(&path, true).unwrap_or_default();
            let names = fs.list(&real).into();
            drop(fs);
            self.stack.push((id, path, names));
        }
        let (id, path, names) = self.stack.last_mut()?;
        let id = *id;
        match names.pop_front() {
            Some(name) => {
                let path = join(path, &name);
                Some(self.look(Some(id), name, path))
            }
            None => {
                self.stack.pop();
                Some(WalkEntry::Listed(id))
            }
        }
    }

    fn skip(&mut self, id: WalkDirectoryId) {
        self.pending.take_if(|(pending, _)| *pending == id);
    }
}
