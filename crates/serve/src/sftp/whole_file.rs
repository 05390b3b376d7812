//! put-file@longhaul and get-file@longhaul: small files in one request.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use sftp::packed::LEAST_FILE;
use sftp::{Attrs, OWNER_NOT_SET, PutFlags, Request, Told};

use super::answers::AnswerQueue;
use super::attributes::attributes;
use super::client_tree::ClientTree;
use super::file_io::write_at;
use super::fsync_group::FsyncGroup;
use super::packed::{ReadReplyData, SessionCompression};
use super::reply::ReplyBuilder;
use super::request_error::{Exhausted, PutFileStep, RequestError, Unsuitable, Unsupported, reason};
use super::session::{LONGEST_DATA, RequestResult};
use super::set::set_open;
use super::temporary::{CachedParentDir, FinishedTemporaryFile, PERMISSIONS, TemporaryFile};
use super::transfer_log::TransferLog;
use crate::beneath::split;

/// A file to be put, with decompressed data.
struct PutFileRequest<'a> {
    path: &'a [u8],
    flags: PutFlags,
    tag: u64,
    mode: u32,
    attrs: Attrs,
    data: &'a [u8],
}

const OWNER_WRITE: u32 = 0o200;

/// Attributes of a replaced file that the new file gets.
#[derive(Clone, Copy, Debug)]
struct ReplacedFileAttributes {
    mode: u32,
    owner: (u32, u32),
}

/// Small files in one request: the directory of the last one, and those that will be made durable
/// as a group.
#[derive(Default)]
pub(super) struct SmallFileRequests {
    /// Directory of the previous small file.
    parent: Option<Arc<CachedParentDir>>,
    group: FsyncGroup,
}

/// Parts of a session that a request for a whole small file uses.
pub(super) struct SmallFileContext<'s, 'e> {
    tree: &'s mut ClientTree<'e>,
    zstd: &'s mut SessionCompression,
    log: &'s mut TransferLog,
    told: Told,
}

impl<'s, 'e> SmallFileContext<'s, 'e> {
    pub(super) fn new(
        tree: &'s mut ClientTree<'e>,
        zstd: &'s mut SessionCompression,
        log: &'s mut TransferLog,
        told: Told,
    ) -> Self {
        Self {
            tree,
            zstd,
            log,
            told,
        }
    }
}

impl SmallFileRequests {
    /// Forgets the directory of the last file, because it may be moved or removed.
    pub(super) fn forget_directory(&mut self) {
        self.parent = None;
    }

    /// True if files are held, to be made durable together with later ones.
    pub(super) fn holds(&self) -> bool {
        !self.group.is_empty()
    }

    /// Returns true if the group is full, given that `free` further descriptors are available.
    pub(super) fn is_full(&self, free: usize) -> bool {
        self.holds() && self.group.is_full(free)
    }

    /// Makes the held files durable and answers their requests.
    pub(super) fn end_group(
        &mut self,
        tree: &ClientTree<'_>,
        log: &mut TransferLog,
        out: &mut AnswerQueue,
    ) {
        self.group.end(tree, log, out);
    }

    /// Carries out a request that puts or gets a whole file.
    pub(super) fn answer(
        &mut self,
        request: Request<'_>,
        context: SmallFileContext<'_, '_>,
        reply: &mut ReplyBuilder<'_>,
    ) -> RequestResult {
        let SmallFileContext {
            tree,
            zstd,
            log,
            told,
        } = context;
        match request {
            Request::GetFile { path, len } => self.get(path, len, (tree, told), None, log, reply),
            Request::GetFileZstd { path, len } => {
                self.get(path, len, (tree, told), Some(zstd), log, reply)
            }
            Request::PutFile {
                path,
                flags,
                tag,
                mode,
                attrs,
                data,
            } => {
                let put = PutFileRequest {
                    path,
                    flags,
                    tag,
                    mode,
                    attrs,
                    data,
                };
                self.put(&put, tree, log, reply)
            }
            Request::PutFileZstd {
                path,
                flags,
                tag,
                mode,
                attrs,
                len,
                data,
            } => zstd.with_unpacked(data, len, |data| {
                let put = PutFileRequest {
                    path,
                    flags,
                    tag,
                    mode,
                    attrs,
                    data,
                };
                self.put(&put, tree, log, reply)
            }),
            _ => Err(Unsupported::Request.into()),
        }
    }

    /// Puts a file. If it is to be durable, it is held and answered at the end of its group.
    fn put(
        &mut self,
        put: &PutFileRequest<'_>,
        tree: &mut ClientTree<'_>,
        log: &mut TransferLog,
        reply: &mut ReplyBuilder<'_>,
    ) -> RequestResult {
        let (dir, name) = split(put.path);
        if put.flags.has_unknown() || !put.path.ends_with(name) || !is_name(name) {
            return Err(LONG_WAY);
        }
        if self.group.leads_through(dir) {
            return Err(BEHIND_OTHERS);
        }
        let parent = self
            .parent_of(put.path, tree)
            .map_err(|e| PutFileStep::Create.failed(e))?;
        if self.group.has(&parent, name) {
            return Err(BEHIND_OTHERS);
        }
        let mut written = write_beside(tree, &parent, name, put)?;
        if put.flags.contains(PutFlags::FSYNC) {
            self.group.hold(reply.later(), put.path, written);
            return Ok(());
        }
        written.close()?;
        written.rename(tree, put.path)?;
        log.put(put.path, written.len());
        reply.warning(written.take_warning());
        Ok(())
    }

    /// Gets a file; with `zstd`, the answer may be compressed.
    fn get(
        &mut self,
        path: &[u8],
        len: u32,
        (tree, told): (&ClientTree<'_>, Told),
        zstd: Option<&mut SessionCompression>,
        log: &mut TransferLog,
        reply: &mut ReplyBuilder<'_>,
    ) -> RequestResult {
        let file = self.open_to_read(tree, path)?;
        let stat = fs::fstat(&file)?;
        let len = u64::from(len.min(LONGEST_DATA));
        let size = stat.st_size.unsigned_abs();
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let attrs = attributes(&stat, told);
        if !regular || size > len {
            reply.file(&attrs, |_| Ok::<_, Errno>(false))?;
            return Ok(());
        }
        // Read one byte more than the size, to detect growth. Files in /proc report size 0 and have
        // contents.
        let asked = match size {
            0 => len,
            size => len.min(size + 1),
        };
        let mut got = 0;
        let mut read = |out: &mut Vec<u8>| {
            while got < asked {
                let most = (asked - got) as usize;
                let n = sys::append_at(&file, out, most, got)?;
                got += n as u64;
                // A short read is the end of the file, unless it ends before the reported size.
                if n == 0 || n < most && size > 0 && got >= size {
                    return Ok::<_, RequestError>(true);
                }
            }
            Ok(size > 0 && got == size)
        };
        match zstd.filter(|_| size >= LEAST_FILE) {
            Some(zstd) => {
                let mut whole = false;
                let packed = zstd.pack_read(|raw| {
                    whole = read(raw)?;
                    Ok(whole)
                })?;
                match packed {
                    ReadReplyData::Packed(len, packed) => reply.packed_file(&attrs, len, packed),
                    ReadReplyData::Plain(raw) => reply.file(&attrs, |out| {
                        out.extend_from_slice(raw);
                        Ok::<_, RequestError>(whole)
                    })?,
                }
            }
            None => reply.file(&attrs, read)?,
        }
        log.got(path, got);
        Ok(())
    }

    /// Opens a file for reading without blocking on a FIFO, which is refused later.
    fn open_to_read(&mut self, tree: &ClientTree<'_>, path: &[u8]) -> Result<File, RequestError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let (_, name) = split(path);
        if path.ends_with(name) && is_name(name) {
            let parent = self.parent_of(path, tree)?;
            match fs::openat(parent.fd(), name, flags | OFlags::NOFOLLOW, Mode::empty()) {
                // Symlinks are resolved from the root of the export.
                Err(Errno::LOOP) => {}
                opened => return Ok(opened?.into()),
            }
        }
        Ok(tree.open(path, flags, Mode::empty())?.into())
    }

    /// The directory of the file at `path`, which the next file is likely to be in as well. The file
    /// itself must be served: its directory may only lead to what is.
    fn parent_of(
        &mut self,
        path: &[u8],
        tree: &ClientTree<'_>,
    ) -> Result<Arc<CachedParentDir>, Errno> {
        tree.paths().export().check(path)?;
        let (dir, _) = split(path);
        let parent = match self.parent.take() {
            Some(parent) if parent.is_at(dir) => parent,
            _ => Arc::new(CachedParentDir::open(tree, dir)?),
        };
        Ok(Arc::clone(self.parent.insert(parent)))
    }
}

/// Writes the file under its temporary name.
fn write_beside(
    tree: &mut ClientTree<'_>,
    parent: &Arc<CachedParentDir>,
    name: &[u8],
    put: &PutFileRequest<'_>,
) -> Result<FinishedTemporaryFile, RequestError> {
    let replaced = replaced(tree, parent.fd(), name, put.flags)?;
    let created = TemporaryFile::create(parent, name, put.tag, put.mode);
    let (file, temporary) = created.map_err(|e| match (e, replaced) {
        // The client will write the file in place, if possible, with a warning.
        (Errno::ACCESS, Some(_)) => LONG_WAY,
        (e, _) => PutFileStep::Create.failed(e),
    })?;
    tree.claim(&file)?;
    let mut data = [IoSlice::new(put.data)];
    write_at(&file, &mut data, Some(0)).map_err(|e| PutFileStep::Write.failed(e))?;
    let warning = set(&file, put, replaced);
    let len = put.data.len() as u64;
    Ok(FinishedTemporaryFile::new(
        (file, temporary),
        replaced.is_some(),
        warning,
        len,
    ))
}

/// Attributes of the file that will be replaced; `None` if there is none. Cases that need more than
/// a rename are refused, so that the client uses other requests.
fn replaced(
    tree: &ClientTree<'_>,
    dir: BorrowedFd<'_>,
    name: &[u8],
    flags: PutFlags,
) -> Result<Option<ReplacedFileAttributes>, RequestError> {
    if flags.contains(PutFlags::FRESH) {
        return Ok(None);
    }
    // If the target cannot be examined, the rename decides.
    let Ok(stat) = fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return Ok(None);
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Err(Unsuitable::DirectoryTarget.into()),
        _ if !tree.owns_entry(dir, name) => Ok(None),
        // A rename ignores the file's mode; the client's OPEN shows whether the file may be
        // written.
        FileType::RegularFile if stat.st_mode & OWNER_WRITE == 0 => Err(LONG_WAY),
        FileType::RegularFile => Ok(Some(ReplacedFileAttributes {
            mode: stat.st_mode & PERMISSIONS,
            owner: (stat.st_uid, stat.st_gid),
        })),
        FileType::Symlink if flags.contains(PutFlags::REPLACE_LINK) => Ok(None),
        _ => Err(LONG_WAY),
    }
}

/// Sets the attributes that the client sent or that the replaced file had; returns a warning if
/// that failed.
fn set(
    file: &File,
    put: &PutFileRequest<'_>,
    replaced: Option<ReplacedFileAttributes>,
) -> Option<String> {
    let owner = match (put.attrs.owner, replaced) {
        (Some(owner), _) => {
            let failed = set_owner(file, owner).err();
            failed.map(|e| format!("{OWNER_NOT_SET}{}", reason(e)))
        }
        // A setuid or setgid file keeps the uploader as owner.
        (None, Some(_)) if put.attrs.permissions.is_some_and(|mode| mode & 0o6000 != 0) => None,
        (None, Some(replaced)) => keep_owner(file, replaced.owner),
        (None, None) => None,
    };
    let rest = Attrs {
        permissions: put
            .attrs
            .permissions
            .or_else(|| replaced.map(|old| old.mode)),
        times: put.attrs.times,
        nanoseconds: put.attrs.nanoseconds,
        ..Attrs::default()
    };
    let rest = set_open(file, &rest).err();
    let rest = rest.map(|e| format!("cannot set mode or times: {}", reason(e)));
    rest.or(owner)
}

fn set_owner(file: &File, owner: (u32, u32)) -> Result<(), Errno> {
    let owner = Attrs {
        owner: Some(owner),
        ..Attrs::default()
    };
    set_open(file, &owner)
}

/// Gives the file the owner and group of the replaced file, or only the group if no more is
/// permitted; returns a warning unless both were set.
fn keep_owner(file: &File, (user, group): (u32, u32)) -> Option<String> {
    let has = fs::fstat(file).ok()?;
    if (has.st_uid, has.st_gid) == (user, group) || set_owner(file, (user, group)).is_ok() {
        return None;
    }
    if has.st_gid != group {
        let _ = set_owner(file, (has.st_uid, group));
    }
    Some(format!(
        "cannot keep the owner {user}:{group} of the replaced file"
    ))
}

/// True if the name can be an entry of a directory.
fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
}

/// Refusal without any effect; the client then uses stock SFTP requests.
const LONG_WAY: RequestError = RequestError::Unsupported(Unsupported::OneRequest);

/// Error that ends the group of held files, whose files get their names first; then the request is
/// repeated.
const BEHIND_OTHERS: RequestError = RequestError::Exhausted(Exhausted::Group);

#[cfg(test)]
#[path = "whole_file_tests.rs"]
mod tests;
