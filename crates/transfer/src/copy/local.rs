//! What a copy does on this machine's file system itself: directories, symlinks, owners, and
//! whole files when both ends are here.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use plan::{Attributes, Beyond, FileState, MetadataFlags, Parts, Stored};
use rustix::fs::{AtFlags, CWD, Gid, Uid, chownat, utimensat};
use rustix::io::Errno;
use sys::XattrsOf;
use wire::{Block, Pool};

use super::CopyOptions;
use crate::cancel::Cancel;
use crate::disk::{
    Finish, NotKept, create_target, open_source, os_words, set_xattrs, temp_name, timestamps,
};
use crate::sums::FileSums;

/// What the owner needs to fill a directory.
const OWNER: u32 = 0o700;
const COPY: usize = 1 << 20;

/// Creates a directory that can be filled; true if it was not there before. `follow` takes a
/// symlink to a directory for one.
pub(super) fn make_directory(path: &Path, mode: u32, follow: bool) -> Result<bool, String> {
    let metadata: fn(&Path) -> io::Result<fs::Metadata> = match follow {
        true => |path| fs::metadata(path),
        false => |path| fs::symlink_metadata(path),
    };
    match fs::DirBuilder::new()
        .mode((mode & 0o1777) | OWNER)
        .create(path)
    {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => match metadata(path) {
            Ok(meta) if meta.is_dir() => Ok(false),
            Ok(_) => Err("something that is no directory stands there".to_owned()),
            Err(e) => Err(os_words(&e)),
        },
        Err(e) => Err(os_words(&e)),
    }
}

/// Gives a filled directory its mode and times. Of the bits beyond rwx scp keeps a directory's
/// sticky bit alone; an archive keeps all.
pub(super) fn finish_directory(
    path: &Path,
    attributes: &Attributes,
    created: bool,
    options: &CopyOptions,
    beyond: &Beyond,
) -> Result<NotKept, String> {
    let failed = |e: io::Error| os_words(&e);
    let mut not_kept = NotKept::new();
    if let Some((user, group)) = beyond.owner
        && let Err(e) = set_owner(path, user, group, AtFlags::empty())
    {
        not_kept.push((Parts::OWNER, e));
    }
    let mut set = |kinds| {
        if let Some(xattrs) = &beyond.xattrs {
            set_xattrs(XattrsOf::Path(path), xattrs, kinds, &mut not_kept);
        }
    };
    set(MetadataFlags::XATTRS);
    let preserve = options.preserve || options.archive;
    if let Some(mode) = attributes.mode {
        let wanted = match (preserve, created) {
            (true, _) if options.archive => Some(mode & 0o7777),
            (true, _) => Some(mode & 0o1777),
            (false, true) if mode & OWNER != OWNER => Some(mode & 0o1777 & !sys::umask()),
            _ => None,
        };
        if let Some(wanted) = wanted {
            fs::set_permissions(path, fs::Permissions::from_mode(wanted)).map_err(failed)?;
        }
    }
    set(MetadataFlags::ACLS);
    if let Some(times) = timestamps(attributes).filter(|_| preserve) {
        utimensat(CWD, path, &times, AtFlags::empty()).map_err(|e| failed(e.into()))?;
    }
    Ok(not_kept)
}

fn set_owner(path: &Path, user: u32, group: u32, flags: AtFlags) -> Result<(), String> {
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    let done = chownat(CWD, path, Some(user), Some(group), flags);
    if done == Err(Errno::PERM) {
        // A group that one is in may be kept all the same.
        let _ = chownat(CWD, path, None, Some(group), flags);
    }
    done.map_err(|e| os_words(&e.into()))
}

/// Makes a symlink, replacing a file or symlink of that name by rename.
pub(super) fn make_symlink(
    path: &Path,
    points_to: &[u8],
    attributes: &Attributes,
) -> Result<(), String> {
    let failed = |e: io::Error| os_words(&e);
    let points_to = OsStr::from_bytes(points_to);
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => return Err("a directory stands there".to_owned()),
        Ok(_) => {
            let name = path.file_name().unwrap_or_default();
            let temp = temp_name(name.as_bytes());
            let temp = path.with_file_name(OsStr::from_bytes(&temp));
            symlink(points_to, &temp).map_err(failed)?;
            if let Err(e) = fs::rename(&temp, path) {
                let _ = fs::remove_file(&temp);
                return Err(os_words(&e));
            }
        }
        Err(_) => symlink(points_to, path).map_err(failed)?,
    }
    if let Some((user, group)) = attributes.owner {
        let _ = set_owner(path, user, group, AtFlags::SYMLINK_NOFOLLOW);
    }
    if let Some(times) = timestamps(attributes) {
        let _ = utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW);
    }
    Ok(())
}

/// Makes `path` another name of the file at `of`, replacing a file or symlink there by rename.
pub(super) fn make_hard_link(path: &Path, of: &Path) -> Result<(), String> {
    let failed = |e: io::Error| os_words(&e);
    match fs::hard_link(of, path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let name = path.file_name().unwrap_or_default();
            let temp = temp_name(name.as_bytes());
            let temp = path.with_file_name(OsStr::from_bytes(&temp));
            fs::hard_link(of, &temp).map_err(failed)?;
            let renamed = fs::rename(&temp, path);
            // rename(2) does nothing where both are names of one file.
            let _ = fs::remove_file(&temp);
            renamed.map_err(failed)
        }
        made => made.map_err(failed),
    }
}

/// How [`copy_file`] copies.
pub(super) struct Here<'a> {
    pub(super) options: &'a CopyOptions,
    pub(super) cancel: &'a Cancel,
    pub(super) sums: Option<&'a Arc<FileSums>>,
    pub(super) beyond: &'a Beyond,
}

/// Copies a file from here to here; `progress` is told of each part. Returns its state, and what
/// could not be kept.
pub(super) fn copy_file(
    source: &Path,
    target: &Path,
    here: &Here<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<(FileState, Stored), (bool, String)> {
    let Here {
        options,
        cancel,
        sums,
        beyond,
    } = *here;
    let reading = |e: io::Error| (true, os_words(&e));
    let writing = |e: io::Error| (false, os_words(&e));
    if same_file(source, target) {
        return Err((false, "source and target are the same file".to_owned()));
    }
    let (mut from, meta) = open_source(source).map_err(reading)?;
    let mut to = create_target(target, options.inplace, false, None).map_err(writing)?;
    if options.sparse {
        from.tell_holes();
        to.keep_sparse();
    }
    let pool = Pool::new(COPY, 1);
    let mut offset = 0;
    loop {
        if cancel.is_cancelled() {
            return Err((true, "interrupted".to_owned()));
        }
        // What is not read is summed when it is missed.
        if let Some(len) = from.hole(offset, COPY).map_err(reading)? {
            to.skip(offset, len).map_err(writing)?;
            offset += len;
            progress(len);
            continue;
        }
        let mut block = Block::new(&pool, COPY, 0, COPY);
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
    if !options.archive {
        attributes.mode = attributes.mode.map(|m| m & 0o777);
    }
    let finish = Finish {
        size: offset,
        attributes,
        preserve: options.preserve || options.archive,
        fsync: options.fsync,
        beyond: beyond.clone(),
    };
    let stored = to.finish(finish).map_err(writing)?;
    let state = match stored.in_place {
        true => FileState::Closed,
        false => FileState::Renamed,
    };
    Ok((state, stored))
}

fn same_file(a: &Path, b: &Path) -> bool {
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => identity(&a) == identity(&b),
        _ => false,
    }
}

/// Device and inode.
pub(super) fn identity(meta: &fs::Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}
