//! Local part of a copy: directories, symlinks, owners, and whole files when both ends are local.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Mode, Stat, chownat, fstat, linkat, mkdirat, statat, symlinkat, utimensat,
};
use rustix::io::Errno;
use schedule::{
    Attributes, ExtraMetadata, FileCopyState, JobFailureKind, LocalTargetPath, MetadataFlags,
    Parts, StoredTarget,
};
use wire::{PacketPool, PayloadBlock};

use super::CopyOptions;
use super::sides::CopySide;
use crate::cancel::CancelToken;
use crate::disk::{
    CreateSettings, LostMetadata, NameInDirectory, OpenDirectoryCache, TargetFinishSettings,
    create_target, kind_of, os_words, set_xattrs, temp_name, timestamps,
};
use crate::file_error::FileError;
use crate::sums::FileChecksums;

/// Mode bits that the owner needs to fill a directory.
pub(super) const OWNER: u32 = 0o700;
const COPY: usize = 1 << 20;

/// Error for a symlink below the target, which is not followed.
const SYMLINK: &str = "a symlink is in the way and is not followed: remove it, name its destination as the \
     target, or use --keep-dirlinks";

/// Creates a directory that can be filled. Returns true if it did not exist. An existing symlink to
/// a directory is accepted if `follow` is set.
pub(super) fn make_directory(
    directories: &OpenDirectoryCache,
    path: &LocalTargetPath,
    mode: u32,
    follow: bool,
) -> Result<bool, FileError> {
    let mode = (mode & 0o1777) | OWNER;
    if path.is_named() {
        let named = path.named_part();
        if !follow {
            return directories
                .make_or_adopt(named, mode)
                .map_err(|e| match fs::symlink_metadata(named) {
                    Ok(meta) if meta.is_symlink() => symlink_in_the_way(),
                    Ok(meta) if meta.is_file() => schedule::FILE_IN_THE_WAY.into(),
                    _ => e.into(),
                });
        }
        return match directories.make_named(named, mode) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => match fs::metadata(named) {
                Ok(meta) if meta.is_dir() => Ok(false),
                Ok(_) => Err(schedule::FILE_IN_THE_WAY.into()),
                Err(_) if named.is_symlink() => Err(schedule::SYMLINK_LEADS_NOWHERE.into()),
                Err(e) => Err(e.into()),
            },
            Err(e) => Err(e.into()),
        };
    }
    let at = directories.locate(path).map_err(link_error)?;
    let made = mkdirat(&at.dir, &at.name, Mode::from_raw_mode(mode));
    let made = match made {
        // The directory was removed, and perhaps made again, while it was held open.
        Err(Errno::NOENT) if directories.forget(path) => {
            let at = directories.locate(path).map_err(link_error)?;
            mkdirat(&at.dir, &at.name, Mode::from_raw_mode(mode))
        }
        made => made,
    };
    match made {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => match at.look()?.as_ref().map(kind_of) {
            Some(FileType::Directory) => Ok(false),
            Some(FileType::Symlink) if follow && leads_to_directory(&at) => Ok(false),
            Some(FileType::Symlink) => Err(symlink_in_the_way()),
            _ => Err(schedule::FILE_IN_THE_WAY.into()),
        },
        Err(e) => Err(e.into()),
    }
}

fn leads_to_directory(at: &NameInDirectory) -> bool {
    let there = statat(&at.dir, &at.name, AtFlags::empty());
    there.is_ok_and(|stat| kind_of(&stat) == FileType::Directory)
}

/// Returns the error for a directory that cannot be made since the one above it is missing.
pub(super) fn without_parent() -> FileError {
    let what = "the directory above it does not exist: create it first";
    FileError::new(what, JobFailureKind::NotFound)
}

/// Error for a symlink below the target, which is not followed.
pub(super) fn symlink_in_the_way() -> FileError {
    FileError::new(SYMLINK, JobFailureKind::SymlinkInTheWay)
}

/// Error for a path that cannot be resolved, in particular because of a symlink below the target.
fn link_error(error: io::Error) -> FileError {
    match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => symlink_in_the_way(),
        _ => error.into(),
    }
}

/// Gives the owner of an existing directory the permissions to fill it. A failure shows in what is
/// put into the directory.
pub(super) fn grant_owner_access(directories: &OpenDirectoryCache, path: &LocalTargetPath) {
    let Ok(dir) = directories.directory(path) else {
        return;
    };
    let mode = fstat(&*dir).map_or(OWNER, |stat| stat.st_mode & 0o7777);
    if mode & OWNER != OWNER {
        let _ = dir.set_mode(mode | OWNER);
    }
}

/// Sets the mode and times of a filled directory: the kept bits of `attributes`. Returns the parts
/// that could not be set.
pub(super) fn finish_directory(
    directories: &OpenDirectoryCache,
    path: &LocalTargetPath,
    attributes: &Attributes,
    created: bool,
    options: &CopyOptions,
    beyond: &ExtraMetadata,
) -> Result<LostMetadata, FileError> {
    let preserve = options.preserve || options.archive;
    let lacks = |mode: u32| mode & OWNER != OWNER;
    let unfinished = created && attributes.mode.is_some_and(lacks);
    if !preserve && !unfinished && beyond.is_empty() {
        return Ok(LostMetadata::new());
    }
    let dir = directories.directory(path).map_err(link_error)?;
    let mut not_kept = LostMetadata::new();
    if let Some((user, group)) = beyond.owner
        && let Err(e) = set_owner(&dir, "", user, group, AtFlags::EMPTY_PATH)
    {
        not_kept.push((Parts::OWNER, os_words(&e.into())));
    }
    let set = |kinds, not_kept: &mut LostMetadata| {
        if let Some(xattrs) = &beyond.xattrs {
            set_xattrs(dir.xattrs(), xattrs, kinds, not_kept);
        }
    };
    set(MetadataFlags::XATTRS, &mut not_kept);
    if let Some(mode) = attributes.mode {
        // Keep the setgid bit that the directory inherited from its parent.
        let inherited = || fstat(&*dir).map_or(0, |stat| stat.st_mode & 0o2000);
        let wanted = match (preserve, created) {
            (true, _) if options.archive => Some(mode),
            (true, _) => Some(mode | inherited()),
            (false, true) if lacks(mode) => {
                let above = directories.locate(path).ok();
                let granted = match above {
                    Some(at) => at.dir.created_mode(0o1777),
                    None => 0o1777 & !sys::umask(),
                };
                Some(mode & granted | inherited())
            }
            _ => None,
        };
        if let Some(wanted) = wanted
            && let Err(e) = dir.set_mode(wanted)
        {
            not_kept.push((Parts::MODE, os_words(&e.into())));
        }
    }
    set(MetadataFlags::ACLS, &mut not_kept);
    if let Some(times) = timestamps(attributes).filter(|_| preserve)
        && let Err(e) = dir.set_times(&times)
    {
        not_kept.push((Parts::TIMES, os_words(&e.into())));
    }
    Ok(not_kept)
}

fn set_owner(
    dir: impl AsFd,
    name: impl rustix::path::Arg + Copy,
    user: u32,
    group: u32,
    flags: AtFlags,
) -> Result<(), Errno> {
    let (user, group) = sys::chown_ids(user, group);
    let done = chownat(&dir, name, user, group, flags);
    if done == Err(Errno::PERM) {
        // A non-root owner may still set a group of which it is a member.
        let _ = chownat(&dir, name, None, group, flags);
    }
    done
}

/// Makes a symlink, replacing an existing file or symlink by rename.
pub(super) fn make_symlink(
    directories: &OpenDirectoryCache,
    path: &LocalTargetPath,
    points_to: &[u8],
    attributes: &Attributes,
) -> Result<(), FileError> {
    let points_to = OsStr::from_bytes(points_to);
    let at = directories.locate(path).map_err(link_error)?;
    match at.look()?.as_ref().map(kind_of) {
        Some(FileType::Directory) => return Err("a directory is in the way: remove it".into()),
        Some(_) => in_place_of(&at, |temp| symlinkat(points_to, &temp.dir, &temp.name))?,
        None => symlinkat(points_to, &at.dir, &at.name)?,
    }
    let _ = at.with_symlink(|dir, name, itself| {
        if let Some((user, group)) = attributes.owner {
            let _ = set_owner(dir, name, user, group, itself);
        }
        if let Some(times) = timestamps(attributes) {
            let _ = utimensat(dir, name, &times, itself);
        }
    });
    Ok(())
}

/// Makes an entry under a temporary name and renames it to `at`.
fn in_place_of(
    at: &NameInDirectory,
    make: impl FnOnce(&NameInDirectory) -> Result<(), Errno>,
) -> Result<(), FileError> {
    let temp = at.beside(&temp_name(at.name_bytes()));
    make(&temp)?;
    let renamed = temp.rename(at);
    // rename(2) does nothing if both names are links to one file, so remove the temporary name.
    let _ = temp.remove();
    renamed.map_err(|e| FileError::from(e).with_prefix("cannot replace the existing file"))
}

/// Makes `path` a hard link to the file at `of`, replacing an existing file or symlink by rename.
pub(super) fn make_hard_link(
    directories: &OpenDirectoryCache,
    path: &LocalTargetPath,
    of: &LocalTargetPath,
) -> Result<(), FileError> {
    let locate = |path| directories.locate(path).map_err(link_error);
    let (at, of) = (locate(path)?, locate(of)?);
    let link =
        |to: &NameInDirectory| linkat(&of.dir, &of.name, &to.dir, &to.name, AtFlags::empty());
    match link(&at) {
        Err(Errno::EXIST) => in_place_of(&at, link),
        made => Ok(made?),
    }
}

/// Resources and options that [`copy_file`] uses.
pub(super) struct LocalFileCopyContext<'a> {
    pub directories: &'a OpenDirectoryCache,
    pub options: &'a CopyOptions,
    pub cancel: &'a CancelToken,
    pub sums: Option<&'a Arc<FileChecksums>>,
    pub beyond: &'a ExtraMetadata,
}

/// Copies a local file to a local target and reports each part to `progress`. Returns the file's
/// state and the parts that could not be kept. An error has the side that failed.
pub(super) fn copy_file(
    source: &Path,
    target: &LocalTargetPath,
    here: &LocalFileCopyContext<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<(FileCopyState, StoredTarget), (CopySide, FileError)> {
    let LocalFileCopyContext {
        directories,
        options,
        cancel,
        sums,
        beyond,
    } = *here;
    let reading = |e: io::Error| (CopySide::Source, e.into());
    let writing = |e: io::Error| (CopySide::Target, e.into());
    let there = directories.look(target).ok().flatten();
    if there.is_some_and(|there| same_file(source, &there)) {
        return Err((
            CopySide::Target,
            "source and target are the same file".into(),
        ));
    }
    let (mut from, meta) = directories.open_source(source).map_err(reading)?;
    let create = CreateSettings {
        directories,
        path: target,
        inplace: options.inplace,
        keep: None,
        mode: None,
        fresh: false,
    };
    let mut to = create_target(create).map_err(|e| (CopySide::Target, link_error(e)))?;
    if options.sparse {
        from.tell_holes();
        to.keep_sparse();
    }
    let pool = PacketPool::new(COPY, 1);
    let mut offset = 0;
    loop {
        if cancel.is_cancelled() {
            return Err((CopySide::Source, "interrupted".into()));
        }
        // The checksum fills in ranges that were not read.
        if let Some(len) = from.hole(offset, COPY).map_err(reading)? {
            to.skip(offset, len).map_err(writing)?;
            offset += len;
            progress(len);
            continue;
        }
        let mut block = PayloadBlock::new(&pool, COPY, 0, COPY);
        let end = from.read(offset, COPY, &mut block).map_err(reading)?;
        for packet in block.packets().filter(|p| !p.is_empty()) {
            if let Some(sums) = sums {
                sums.add(offset, std::iter::once(packet.payload()));
            }
            to.write_slice(offset, packet.payload()).map_err(writing)?;
            offset += packet.len() as u64;
            progress(packet.len() as u64);
        }
        if end {
            break;
        }
    }
    let mut attributes = meta.attributes;
    let bits = if options.archive { !0 } else { 0o777 };
    attributes.mode = attributes.mode.map(|mode| mode & bits);
    let finish = TargetFinishSettings {
        size: offset,
        attributes,
        preserve: options.preserve || options.archive,
        fsync: options.fsync,
        beyond: beyond.clone(),
    };
    let stored = to.finish(finish).map_err(writing)?;
    let state = match stored.in_place {
        true => FileCopyState::Closed,
        false => FileCopyState::Renamed,
    };
    Ok((state, stored))
}

fn same_file(a: &Path, b: &Stat) -> bool {
    fs::metadata(a).is_ok_and(|a| identity(&a) == (b.st_dev, b.st_ino))
}

/// Device and inode number.
pub(super) fn identity(meta: &fs::Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}
