//! Requests that name a path instead of a handle.

use std::os::fd::AsFd;

use rustix::fs::{self, AtFlags, FileType, Mode, Stat};
use sftp::{Attrs, Statvfs, Told};
use sys::umask;

use super::accounts;
use super::client_tree::ClientTree;
use super::expected::check_expected;
use super::reply::ReplyBuilder;
use super::request_error::{RequestError, Unsuitable};
use super::session::RequestResult;
use super::set::set_found;
use crate::beneath::PathRoot;
use crate::held_roots::ClientPathResolver;

/// STAT, and LSTAT without `follow`.
pub(super) fn stat(
    tree: &ClientTree<'_>,
    (path, follow): (&[u8], bool),
    told: Told,
    reply: &mut ReplyBuilder<'_>,
) -> RequestResult {
    let found = tree.paths().find(path, follow)?;
    let stat = fs::fstat(&found)?;
    // A drop box reveals directories and the client's own files.
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        tree.check_own(path, &found, &stat)?;
    }
    reply.attributes(&stat, told);
    Ok(())
}

/// Answers FSTAT with the attributes of an open file.
pub(super) fn fstat(of: impl AsFd, told: Told, reply: &mut ReplyBuilder<'_>) -> RequestResult {
    reply.attributes(&fs::fstat(of)?, told);
    Ok(())
}

/// SETSTAT, and lsetstat@openssh.com without `follow`. The umask restricts new entries only, not a
/// mode that the client sets on its own.
pub(super) fn setstat(
    tree: &ClientTree<'_>,
    path: &[u8],
    follow: bool,
    attrs: &Attrs,
) -> RequestResult {
    let found = tree.paths().find(path, follow)?;
    check_expected(&found, attrs)?;
    let stat = fs::fstat(&found)?;
    if tree.is_drop_box() && is_so_already(&stat, attrs) {
        // The client created this folder on another channel, with the part of this mode that the
        // umask allowed. A default access control list allows other parts: the request is refused.
        return Ok(());
    }
    tree.check_own(path, &found, &stat)?;
    Ok(set_found(&found, attrs)?)
}

pub(super) fn mkdir(tree: &mut ClientTree<'_>, path: &[u8], attrs: &Attrs) -> RequestResult {
    let mode = Mode::from_raw_mode(attrs.permissions.unwrap_or(0o777) & 0o7777);
    tree.mkdir(path, mode)
}

/// SYMLINK: creates `path`, whose target is `says`.
pub(super) fn symlink(paths: &ClientPathResolver<'_>, says: &[u8], path: &[u8]) -> RequestResult {
    Ok(paths.at(path, |dir, name| fs::symlinkat(says, dir, name))?)
}

pub(super) fn hardlink(paths: &ClientPathResolver<'_>, from: &[u8], to: &[u8]) -> RequestResult {
    Ok(paths.at(from, |from_dir, from_name| {
        paths.at(to, |to_dir, to_name| {
            fs::linkat(from_dir, from_name, to_dir, to_name, AtFlags::empty())
        })
    })?)
}

pub(super) fn readlink(
    paths: &ClientPathResolver<'_>,
    path: &[u8],
    reply: &mut ReplyBuilder<'_>,
) -> RequestResult {
    let says = paths.at(path, |dir, name| fs::readlinkat(dir, name, Vec::new()))?;
    reply.path(says.to_bytes());
    Ok(())
}

pub(super) fn realpath(
    paths: &ClientPathResolver<'_>,
    path: &[u8],
    reply: &mut ReplyBuilder<'_>,
) -> RequestResult {
    reply.path(&paths.canonical(path)?);
    Ok(())
}

/// expand-path@openssh.com: REALPATH with `~` and `~user` replaced by home directories.
pub(super) fn expand(
    paths: &ClientPathResolver<'_>,
    path: &[u8],
    reply: &mut ReplyBuilder<'_>,
) -> RequestResult {
    let path = accounts::expand(path, |user| home_of(paths.export(), user))?;
    realpath(paths, &path, reply)
}

/// home-directory: the home directory of a user in this export.
pub(super) fn home(
    paths: &ClientPathResolver<'_>,
    user: &[u8],
    reply: &mut ReplyBuilder<'_>,
) -> RequestResult {
    reply.path(&home_of(paths.export(), user)?);
    Ok(())
}

fn home_of(root: &PathRoot, user: &[u8]) -> Result<Vec<u8>, RequestError> {
    match root {
        PathRoot::Everything => Ok(accounts::home(user).ok_or(Unsuitable::User)?),
        // A restricted export has no other home directory.
        PathRoot::Beneath(_) | PathRoot::Only(..) => Ok(b"/".to_vec()),
    }
}

/// Answers statvfs@openssh.com and fstatvfs@openssh.com.
pub(super) fn statvfs(of: impl AsFd, reply: &mut ReplyBuilder<'_>) -> RequestResult {
    let space = fs::fstatvfs(of)?;
    reply.extended(&Statvfs {
        block: space.f_bsize,
        fragment: space.f_frsize,
        blocks: space.f_blocks,
        blocks_free: space.f_bfree,
        blocks_available: space.f_bavail,
        files: space.f_files,
        files_free: space.f_ffree,
        files_available: space.f_favail,
        id: space.f_fsid,
        // SSH_FXE_STATVFS_ST_RDONLY and _NOSUID have the kernel's values.
        flags: space.f_flag.bits() & 3,
        name_max: space.f_namemax,
    });
    Ok(())
}

/// True if `attrs` sets only a mode, and `stat` is a folder that already has it.
fn is_so_already(stat: &Stat, attrs: &Attrs) -> bool {
    let mode = Attrs {
        permissions: attrs.permissions,
        expected: attrs.expected,
        ..Attrs::default()
    };
    let folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let inherited = stat.st_mode & Mode::SGID.as_raw_mode();
    let has = |mode: u32| ((mode & !umask() | inherited) ^ stat.st_mode) & 0o7777 == 0;
    folder && *attrs == mode && attrs.permissions.is_some_and(has)
}
