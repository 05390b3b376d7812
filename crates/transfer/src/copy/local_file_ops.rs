//! Operations on this machine's files that a copy needs besides moving data: they return at once.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schedule::journal::{ExistingFile, SourceFileStamp};
use schedule::{
    Attributes, EntryKind, ExtraMetadata, FileCopyState, LocalTargetPath, MetadataFlags,
    StoredTarget,
};
use sftp::xattrs::Xattr;

use super::CopyOptions;
use super::sides::CopySide;
use crate::disk::LostMetadata;
use crate::file_error::FileError;
use crate::sums::FileChecksums;
use crate::walk::{WalkDirectoryId, WalkEntry};

/// Status of a local file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LocalStat {
    pub attributes: Attributes,
    /// Size, modification time, device and inode number.
    pub id: SourceFileStamp,
    /// Modification time in seconds since 1970, not clamped.
    pub seconds: i64,
}

impl LocalStat {
    pub(super) fn is_file(&self) -> bool {
        self.attributes.kind() == EntryKind::File
    }

    pub(super) fn is_directory(&self) -> bool {
        self.attributes.kind() == EntryKind::Directory
    }

    /// True if both are one file or directory.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.id.device, self.id.inode) == (other.id.device, other.id.inode)
    }

    /// Size and modification time.
    pub(super) fn existing(&self) -> ExistingFile {
        ExistingFile {
            size: self.id.size,
            mtime: self.id.mtime,
        }
    }
}

/// Parameters of [`LocalFileOps::copy_file`] beside the two paths.
pub(super) struct LocalFileCopySettings<'a> {
    pub options: &'a CopyOptions,
    pub sums: Option<&'a Arc<FileChecksums>>,
    pub beyond: &'a ExtraMetadata,
}

/// File operations on this machine. Errors have the system's words and cause. Paths that are
/// written are resolved so that no symlink below the named target is followed
/// ([`LocalTargetPath`]).
pub(super) trait LocalFileOps {
    /// Status of `path`, through symlinks.
    fn stat(&self, path: &[u8]) -> Result<LocalStat, FileError>;
    /// True if `path` exists; a symlink is not followed.
    fn exists(&self, path: &Path) -> bool;
    /// Makes a directory. Returns false if `path` exists.
    fn create_dir(&self, path: &Path) -> Result<bool, FileError>;
    /// Makes the directory that the user named as the target and that did not exist, or adopts the
    /// one that another copy has made. The copy writes there even if somebody replaces it.
    fn make_target(&self, path: &Path) -> Result<(), FileError>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path);
    /// Canonical path of an existing entry.
    fn canonical(&self, path: &Path) -> Option<PathBuf>;
    /// True if the file system at `dir` takes two names for one.
    fn are_one_at(&self, dir: &Path, one: &[u8], other: &[u8]) -> bool;
    /// Home directory of an account, or of the user.
    fn home(&self, login: Option<&str>) -> Option<PathBuf>;
    /// Walks the tree at `root`; the directory `avoid` is not entered.
    fn walk(&self, root: PathBuf, follow: bool, avoid: Option<PathBuf>) -> Box<dyn LocalTreeWalk>;
    /// Destination of a symlink.
    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, FileError>;
    /// Extended attributes of these kinds.
    fn xattrs(&self, path: &[u8], kinds: MetadataFlags) -> Result<Vec<Xattr>, FileError>;
    /// True if the file has holes.
    fn has_holes(&self, path: &Path) -> bool;
    /// Opens a file to read parts of it.
    fn reader(&self, path: &Path) -> io::Result<Box<dyn ReadAt>>;
    /// Reads at most `most` bytes of a file and removes it.
    fn take_text(&self, path: &Path, most: u64) -> Vec<u8>;
    /// Removes a file that may exist.
    fn remove_file(&self, path: &Path);
    /// Names of an owner and a group; empty if unknown.
    fn owner_names(&self, user: u32, group: u32) -> (Vec<u8>, Vec<u8>);
    /// IDs of owners and groups by their names; `u32::MAX` if unknown.
    fn owner_ids(&self, users: &[Vec<u8>], groups: &[Vec<u8>]) -> (Vec<u32>, Vec<u32>);

    /// Status of a target, where only the part that the user named is followed.
    fn look(&self, path: &LocalTargetPath) -> Option<LocalStat>;
    /// Status of the file `name` in the directory of `target`; a symlink is not followed.
    fn look_beside(&self, target: &LocalTargetPath, name: &[u8]) -> Option<LocalStat>;
    /// Uses this directory for temporaries instead of the target's own (`--temp-dir`).
    fn keep_temporaries_in(&self, _: PathBuf) {}
    /// Removes the file `name` in the directory of `target`.
    fn remove_beside(&self, target: &LocalTargetPath, name: &[u8]);
    /// Removes the temporaries that a file with this tag may have left.
    fn remove_temporaries(&self, target: &LocalTargetPath, tag: u64);
    /// Removes the temporaries that many files may have left, each with its tag.
    fn sweep_temporaries(&self, files: &[(LocalTargetPath, u64)]) {
        for (target, tag) in files {
            self.remove_temporaries(target, *tag);
        }
    }
    /// Makes a directory that can be filled. Returns false if it existed.
    fn make_directory(
        &self,
        path: &LocalTargetPath,
        mode: u32,
        follow: bool,
    ) -> Result<bool, FileError>;
    /// Gives the owner of an existing directory the permissions to fill it.
    fn grant_owner_access(&self, _: &LocalTargetPath) {}
    /// Sets the mode, times and further metadata of a filled directory.
    fn finish_directory(
        &self,
        path: &LocalTargetPath,
        attributes: &Attributes,
        created: bool,
        options: &CopyOptions,
        beyond: &ExtraMetadata,
    ) -> Result<LostMetadata, FileError>;
    /// Makes a symlink, in place of an existing file or symlink.
    fn make_symlink(
        &self,
        path: &LocalTargetPath,
        points_to: &[u8],
        attributes: &Attributes,
    ) -> Result<(), FileError>;
    /// Makes `path` a hard link to `of`, in place of an existing file or symlink.
    fn make_hard_link(&self, path: &LocalTargetPath, of: &LocalTargetPath)
    -> Result<(), FileError>;
    /// Copies a local file. An error has the side that failed.
    fn copy_file(
        &self,
        source: &Path,
        target: &LocalTargetPath,
        settings: &LocalFileCopySettings<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(FileCopyState, StoredTarget), (CopySide, FileError)>;
}

/// Walk of a local tree.
pub(super) trait LocalTreeWalk: std::fmt::Debug {
    /// Next entry; a directory comes before its contents.
    fn next(&mut self) -> Option<WalkEntry>;
    /// Leaves out the contents of the directory that was reported last.
    fn skip(&mut self, id: WalkDirectoryId);
}

/// File whose parts can be read.
pub(crate) trait ReadAt {
    /// Reads into `buffer` at `offset`. Returns 0 at the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
}
