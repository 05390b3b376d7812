//! What a copy does on this machine's file system itself: directories, symlinks, owners, and
//! whole files when both ends are here.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use plan::{Attributes, FileState};
use rustix::fs::{AtFlags, CWD, chownat, utimensat};
use wire::{Block, Pool};

use super::CopyOptions;
use crate::cancel::Cancel;
use crate::disk::{Finish, create_target, open_source, os_words, temp_name, timestamps};
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
) -> Result<(), String> {
    let failed = |e: io::Error| os_words(&e);
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
    if let Some((accessed, modified)) = attributes.times.filter(|_| preserve) {
        let times = timestamps(accessed, modified);
        utimensat(CWD, path, &times, AtFlags::empty()).map_err(|e| failed(e.into()))?;
    }
    Ok(())
}

/// Makes a symlink, replacing a file or symlink of that name by rename.
pub(super) fn make_symlink(
    path: &Path,
    points_to: &[u8],
    times: Option<(u32, u32)>,
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
    if let Some((accessed, modified)) = times {
        let times = timestamps(accessed, modified);
        let _ = utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW);
    }
    Ok(())
}

/// Gives a file its owner, and back the bits that this takes away.
pub(super) fn set_owner(path: &Path, attributes: &Attributes) -> io::Result<()> {
    let Some((user, group)) = attributes.owner else {
        return Ok(());
    };
    let (user, group) = (
        rustix::fs::Uid::from_raw(user),
        rustix::fs::Gid::from_raw(group),
    );
    chownat(
        CWD,
        path,
        Some(user),
        Some(group),
        AtFlags::SYMLINK_NOFOLLOW,
    )?;
    match attributes.mode {
        // chmod(2) would follow a symlink that has been put there since.
        Some(mode) if mode & 0o6000 != 0 && !path.is_symlink() => {
            fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o7777))
        }
        _ => Ok(()),
    }
}

/// How [`copy_file`] copies.
pub(super) struct Here<'a> {
    pub(super) options: &'a CopyOptions,
    pub(super) cancel: &'a Cancel,
    pub(super) sums: Option<&'a Arc<FileSums>>,
}

/// Copies a file from here to here; `progress` is told of each part. Returns bytes and state.
pub(super) fn copy_file(
    source: &Path,
    target: &Path,
    here: &Here<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<(u64, FileState), (bool, String)> {
    let Here {
        options,
        cancel,
        sums,
    } = *here;
    let reading = |e: io::Error| (true, os_words(&e));
    let writing = |e: io::Error| (false, os_words(&e));
    if same_file(source, target) {
        return Err((false, "source and target are the same file".to_owned()));
    }
    let (from, meta) = open_source(source).map_err(reading)?;
    let to = create_target(target, options.inplace, false, None).map_err(writing)?;
    let pool = Pool::new(COPY, 1);
    let mut offset = 0;
    loop {
        if cancel.is_cancelled() {
            return Err((true, "interrupted".to_owned()));
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
    to.finish(Finish {
        size: offset,
        attributes,
        preserve: options.preserve || options.archive,
        fsync: options.fsync,
    })
    .map_err(writing)?;
    Ok((offset, FileState::Renamed))
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
