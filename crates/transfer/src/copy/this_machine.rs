//! [`LocalFileOps`] on the real file system.

use std::env;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::unistd::{Gid, Group, Uid, User};
use rustix::fs::Stat;
use rustix::io::Errno;
use schedule::journal::SourceFileStamp;
use schedule::{
    Attributes, ExtraMetadata, FileCopyState, LocalTargetPath, MetadataFlags, StoredTarget,
};
use sftp::xattrs::Xattr;

use super::alike_names;
use super::local_file_ops::{
    LocalFileCopySettings, LocalFileOps, LocalStat, LocalTreeWalk, ReadAt,
};
use super::sides::CopySide;
use super::{CopyOptions, local};
use crate::cancel::CancelToken;
use crate::disk::{
    LostMetadata, NameInDirectory, OpenDirectoryCache, TemporaryFileSweep, WriteDestination,
    attributes, has_holes, identity, mtime_of, open_regular, xattrs_of,
};
use crate::file_error::FileError;
use crate::walk::{LocalWalk, WalkDirectoryId, WalkEntry, dangling, local_path};

/// This machine's files, with a cache of the target's directories.
pub(super) struct LocalFiles {
    directories: Arc<OpenDirectoryCache>,
    cancel: CancelToken,
}

impl LocalFiles {
    pub(super) fn new(directories: Arc<OpenDirectoryCache>, cancel: &CancelToken) -> Self {
        Self {
            directories,
            cancel: cancel.clone(),
        }
    }

    /// Locates the file `name` beside a target, or beside the destination of a symlink that the
    /// user named.
    fn beside(&self, target: &LocalTargetPath, name: &[u8]) -> Option<NameInDirectory> {
        match self.directories.destination(target).ok()? {
            WriteDestination::At(at) => self.directories.temporary(&at, name).ok(),
            WriteDestination::SpecialFile(_) => None,
        }
    }
}

fn stat_of(meta: &Metadata) -> LocalStat {
    LocalStat {
        attributes: attributes(meta),
        id: identity(meta),
        seconds: meta.mtime(),
    }
}

fn stat_from(stat: &Stat) -> LocalStat {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    LocalStat {
        attributes: Attributes {
            size: Some(size),
            mode: Some(stat.st_mode),
            ..Attributes::default()
        },
        id: SourceFileStamp {
            size,
            mtime: mtime_of(stat),
            inode: stat.st_ino,
            device: stat.st_dev,
        },
        seconds: stat.st_mtime,
    }
}

impl LocalFileOps for LocalFiles {
    fn stat(&self, path: &[u8]) -> Result<LocalStat, FileError> {
        let path = local_path(path);
        match fs::metadata(&path) {
            Ok(meta) => Ok(stat_of(&meta)),
            Err(e) => Err(dangling(&path, &e).map_or_else(|| e.into(), FileError::from)),
        }
    }

    fn exists(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok()
    }

    fn create_dir(&self, path: &Path) -> Result<bool, FileError> {
        match fs::create_dir(path) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn make_target(&self, path: &Path) -> Result<(), FileError> {
        let made = self.directories.make_or_adopt(path, 0o777);
        made.map(drop).map_err(|e| match Errno::from_io_error(&e) {
            Some(Errno::NOTDIR | Errno::LOOP) => "not a directory".into(),
            _ => e.into(),
        })
    }

    fn remove_dir(&self, path: &Path) {
        // It may be gone already.
        let _ = fs::remove_dir(path);
    }

    fn canonical(&self, path: &Path) -> Option<PathBuf> {
        fs::canonicalize(path).ok()
    }

    fn are_one_at(&self, dir: &Path, one: &[u8], other: &[u8]) -> bool {
        alike_names::are_one_at(dir, one, other)
    }

    fn home(&self, login: Option<&str>) -> Option<PathBuf> {
        let own = || env::var_os("HOME").map(PathBuf::from);
        let user = login.and_then(|login| User::from_name(login).ok().flatten());
        match user {
            Some(user) if user.uid != nix::unistd::geteuid() => Some(user.dir),
            Some(user) => own().or(Some(user.dir)),
            None => own(),
        }
    }

    fn walk(&self, root: PathBuf, follow: bool, avoid: Option<PathBuf>) -> Box<dyn LocalTreeWalk> {
        if !follow {
            self.directories.follow_no_symlink_below(root.clone());
        }
        let mut walk = LocalWalk::new(root, follow);
        if let Some(avoid) = avoid {
            walk.avoid(avoid);
        }
        Box::new(walk)
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, FileError> {
        let to = fs::read_link(local_path(path))?;
        Ok(to.into_os_string().into_vec())
    }

    fn xattrs(&self, path: &[u8], kinds: MetadataFlags) -> Result<Vec<Xattr>, FileError> {
        Ok(xattrs_of(&local_path(path), kinds)?)
    }

    fn has_holes(&self, path: &Path) -> bool {
        has_holes(path)
    }

    fn reader(&self, path: &Path) -> io::Result<Box<dyn ReadAt>> {
        Ok(Box::new(open_regular(path)?))
    }

    fn take_text(&self, path: &Path, most: u64) -> Vec<u8> {
        let mut text = Vec::new();
        let read = open_regular(path).and_then(|file| file.take(most).read_to_end(&mut text));
        self.remove_file(path);
        match read {
            Ok(_) => text,
            Err(_) => Vec::new(),
        }
    }

    fn remove_file(&self, path: &Path) {
        let _ = fs::remove_file(path);
    }

    fn owner_names(&self, user: u32, group: u32) -> (Vec<u8>, Vec<u8>) {
        let user = User::from_uid(Uid::from_raw(user)).ok().flatten();
        let group = Group::from_gid(Gid::from_raw(group)).ok().flatten();
        let name = |name: Option<String>| name.unwrap_or_default().into_bytes();
        (name(user.map(|u| u.name)), name(group.map(|g| g.name)))
    }

    fn owner_ids(&self, users: &[Vec<u8>], groups: &[Vec<u8>]) -> (Vec<u32>, Vec<u32>) {
        let user = |name: &str| Some(User::from_name(name).ok()??.uid.as_raw());
        let group = |name: &str| Some(Group::from_name(name).ok()??.gid.as_raw());
        (ids(users, user), ids(groups, group))
    }

    fn look(&self, path: &LocalTargetPath) -> Option<LocalStat> {
        let stat = self.directories.look(path).ok().flatten()?;
        Some(stat_from(&stat))
    }

    fn look_beside(&self, target: &LocalTargetPath, name: &[u8]) -> Option<LocalStat> {
        let stat = self.beside(target, name)?.look().ok().flatten()?;
        Some(stat_from(&stat))
    }

    fn keep_temporaries_in(&self, path: PathBuf) {
        self.directories.keep_temporaries_in(path);
    }

    fn remove_beside(&self, target: &LocalTargetPath, name: &[u8]) {
        if let Some(at) = self.beside(target, name) {
            // Most of these names were never created.
            let _ = at.remove();
        }
    }

    fn remove_temporaries(&self, target: &LocalTargetPath, tag: u64) {
        crate::disk::remove_temporaries(&self.directories, target, tag);
    }

    fn sweep_temporaries(&self, files: &[(LocalTargetPath, u64)]) {
        let mut sweep = TemporaryFileSweep::new(&self.directories);
        for (target, tag) in files {
            sweep.remove(target, *tag);
        }
    }

    fn make_directory(
        &self,
        path: &LocalTargetPath,
        mode: u32,
        follow: bool,
    ) -> Result<bool, FileError> {
        local::make_directory(&self.directories, path, mode, follow)
    }

    fn grant_owner_access(&self, path: &LocalTargetPath) {
        local::grant_owner_access(&self.directories, path);
    }

    fn finish_directory(
        &self,
        path: &LocalTargetPath,
        attributes: &Attributes,
        created: bool,
        options: &CopyOptions,
        beyond: &ExtraMetadata,
    ) -> Result<LostMetadata, FileError> {
        let directories = &self.directories;
        local::finish_directory(directories, path, attributes, created, options, beyond)
    }

    fn make_symlink(
        &self,
        path: &LocalTargetPath,
        points_to: &[u8],
        attributes: &Attributes,
    ) -> Result<(), FileError> {
        local::make_symlink(&self.directories, path, points_to, attributes)
    }

    fn make_hard_link(
        &self,
        path: &LocalTargetPath,
        of: &LocalTargetPath,
    ) -> Result<(), FileError> {
        local::make_hard_link(&self.directories, path, of)
    }

    fn copy_file(
        &self,
        source: &Path,
        target: &LocalTargetPath,
        settings: &LocalFileCopySettings<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(FileCopyState, StoredTarget), (CopySide, FileError)> {
        let here = local::LocalFileCopyContext {
            directories: &self.directories,
            options: settings.options,
            cancel: &self.cancel,
            sums: settings.sums,
            beyond: settings.beyond,
        };
        local::copy_file(source, target, &here, progress)
    }
}

impl LocalTreeWalk for LocalWalk {
    fn next(&mut self) -> Option<WalkEntry> {
        Iterator::next(self)
    }

    fn skip(&mut self, id: WalkDirectoryId) {
        self.skip(id);
    }
}

impl ReadAt for File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match FileExt::read_at(self, buffer, offset) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

fn ids(names: &[Vec<u8>], find: impl Fn(&str) -> Option<u32>) -> Vec<u32> {
    let id = |name: &Vec<u8>| std::str::from_utf8(name).ok().and_then(&find);
    let ids = names.iter().map(|name| id(name).unwrap_or(u32::MAX));
    ids.collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Bug: files of several sources landed at the end of a symlink that somebody had put in the place
    /// of the directory made for them.
    #[test]
    fn the_directory_that_was_made_is_written_to_and_a_symlink_in_its_place_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        let files = || {
            let directories = Arc::new(OpenDirectoryCache::default());
            let local = LocalFiles::new(Arc::clone(&directories), &CancelToken::default());
            (directories, local)
        };
        let (directories, local) = files();
        assert_eq!(local.make_target(&at("new")), Ok(()));
        // A second copy of the same command finds what the first one has made.
        assert_eq!(files().1.make_target(&at("new")), Ok(()));
        fs::rename(at("new"), at("aside")).expect("ours");
        fs::create_dir(at("outside")).expect("ours");
        symlink("outside", at("new")).expect("ours");
        let refused = files().1.make_target(&at("new"));
        assert_eq!(refused, Err("not a directory".into()));
        let below = LocalTargetPath::beneath(at("new"), "sub", false);
        let made = local::make_directory(&directories, &below, 0o700, false);
        assert_eq!(made, Ok(true));
        assert!(at("aside/sub").exists() && !at("outside/sub").exists());
    }
}
