//! put-file@longhaul and get-file@longhaul: small files in one request.

use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use sftp::packed::LEAST_FILE;
use sftp::{Attrs, OWNER_NOT_SET, PutFlags, StatusCode, StatusText};

use crate::beneath::split;
use crate::error::RequestError;
use crate::sftp::answer::{Answer, LONGEST_DATA, Session};
use crate::sftp::attributes::attributes;
use crate::sftp::files::write_at;
use crate::sftp::group_sync::close;
use crate::sftp::reply::Reply;
use crate::sftp::set::set_open;
use crate::sftp::temporary::{Parent, Written, create};
use crate::sftp::transfers::tell_transfer;

/// Arguments of put-file@longhaul, with decompressed data.
pub(crate) struct PutFileRequest<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) flags: PutFlags,
    pub(crate) tag: u64,
    pub(crate) mode: u32,
    pub(crate) attrs: Attrs,
    pub(crate) data: &'a [u8],
}

/// Mode bits that stay when a file is replaced.
pub(crate) const PERMISSIONS: u32 = 0o777;
const OWNER_WRITE: u32 = 0o200;

/// Attributes of a replaced file that the new file gets.
#[derive(Clone, Copy, Debug)]
struct Replaced {
    mode: u32,
    owner: (u32, u32),
}

impl Session<'_> {
    /// Puts a file. If it is to be durable, it is held and answered at the end of its group.
    pub(crate) fn put_file(&mut self, put: &PutFileRequest<'_>, reply: &mut Reply<'_>) -> Answer {
        let (dir, name) = split(put.path);
        if put.flags.has_unknown() || !put.path.ends_with(name) || !is_name(name) {
            return Err(long_way());
        }
        if self.unsynced.leads_through(dir) {
            return Err(behind_others());
        }
        let parent = self.parent(dir).map_err(|e| failed("create the file", e))?;
        let done = self.put_into(&parent, name, put, reply);
        self.parent = Some(parent);
        done
    }

    fn put_into(
        &mut self,
        parent: &Arc<Parent>,
        name: &[u8],
        put: &PutFileRequest<'_>,
        reply: &mut Reply<'_>,
    ) -> Answer {
        if self.unsynced.has(parent, name) {
            return Err(behind_others());
        }
        let mut written = self.write_beside(parent, name, put)?;
        if put.flags.contains(PutFlags::FSYNC) {
            self.unsynced.hold(reply.later(), put.path, written);
            return Ok(());
        }
        if let Some(file) = written.file.take() {
            close(file)?;
        }
        self.name(&mut written, put.path)?;
        self.has_come(put.path, written.len, written.warning.take(), reply);
        Ok(())
    }

    /// Writes the file under its temporary name.
    fn write_beside(
        &mut self,
        parent: &Arc<Parent>,
        name: &[u8],
        put: &PutFileRequest<'_>,
    ) -> Result<Written, RequestError> {
        let replaced = self.stands(parent.fd.as_fd(), name, put.flags)?;
        let created = create(parent, name, put);
        let (file, temporary) = created.map_err(|e| match (e, replaced) {
            // The client will write the file in place, if possible, with a warning.
            (Errno::ACCESS, Some(_)) => long_way(),
            (e, _) => failed("create the file", e),
        })?;
        self.has_put(&file)?;
        let mut data = [std::io::IoSlice::new(put.data)];
        write_at(&file, &mut data, Some(0)).map_err(|e| failed("write", e))?;
        Ok(Written {
            warning: set(&file, put, replaced),
            file: Some(file),
            temporary,
            replaces: replaced.is_some(),
            len: put.data.len() as u64,
        })
    }

    /// Counts and logs a file that has its final name, and answers with a warning if there is one.
    pub(crate) fn has_come(
        &mut self,
        path: &[u8],
        received: u64,
        warning: Option<String>,
        reply: &mut Reply<'_>,
    ) {
        self.moved.files += 1;
        self.moved.received += received;
        tell_transfer!(self, path, 0, received, "put");
        if let Some(text) = warning {
            let message = text.as_bytes();
            reply.status(StatusCode::OK, StatusText { message });
        }
    }

    /// Attributes of the file that will be replaced; `None` if there is none. Cases that need more
    /// than a rename are refused, so that the client uses other requests.
    fn stands(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        flags: PutFlags,
    ) -> Result<Option<Replaced>, RequestError> {
        if flags.contains(PutFlags::FRESH) {
            return Ok(None);
        }
        // If the target cannot be examined, the rename decides.
        let Ok(stat) = fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
            return Ok(None);
        };
        let refuse = |code, words| Err(RequestError::new(code, words));
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => refuse(StatusCode::FAILURE, "it is a directory at the far end"),
            _ if self.is_drop_box() && !self.is_own_in(dir, name) => Ok(None),
            // A rename ignores the file's mode; the client's OPEN shows whether the file may be
            // written.
            FileType::RegularFile if stat.st_mode & OWNER_WRITE == 0 => Err(long_way()),
            FileType::RegularFile => Ok(Some(Replaced {
                mode: stat.st_mode & PERMISSIONS,
                owner: (stat.st_uid, stat.st_gid),
            })),
            FileType::Symlink if flags.contains(PutFlags::REPLACE_LINK) => Ok(None),
            _ => Err(long_way()),
        }
    }

    /// Gets a file; with `may_pack`, the answer may be compressed.
    pub(crate) fn get_file(
        &mut self,
        path: &[u8],
        len: u32,
        may_pack: bool,
        reply: &mut Reply<'_>,
    ) -> Answer {
        let file = self.open_to_read(path)?;
        let stat = fs::fstat(&file)?;
        let len = u64::from(len.min(LONGEST_DATA));
        let size = stat.st_size.unsigned_abs();
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let attrs = attributes(&stat, self.told);
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
        if may_pack && size >= LEAST_FILE {
            let mut raw = std::mem::take(&mut self.packing.raw);
            raw.clear();
            let whole = read(&mut raw)?;
            let packed = match whole {
                true => self.packing.pack(&raw)?,
                false => None,
            };
            match packed {
                Some(packed) => reply.packed_file(&attrs, raw.len() as u32, packed),
                None => reply.file(&attrs, |out| {
                    out.extend_from_slice(&raw);
                    Ok::<_, RequestError>(whole)
                })?,
            }
            self.packing.raw = raw;
        } else {
            reply.file(&attrs, read)?;
        }
        self.moved.files += 1;
        self.moved.sent += got;
        tell_transfer!(self, path, got, 0, "got");
        Ok(())
    }

    /// Opens a file for reading without blocking on a FIFO, which is refused later.
    fn open_to_read(&mut self, path: &[u8]) -> Result<File, RequestError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let (dir, name) = split(path);
        if path.ends_with(name) && is_name(name) {
            let parent = self.parent(dir)?;
            let opened = fs::openat(&parent.fd, name, flags | OFlags::NOFOLLOW, Mode::empty());
            self.parent = Some(parent);
            match opened {
                // Symlinks are resolved from the root of the export.
                Err(Errno::LOOP) => {}
                opened => return Ok(opened?.into()),
            }
        }
        Ok(self.export.place.open(path, flags, Mode::empty())?.into())
    }

    /// The directory `path`, which the caller puts back into `self.parent`.
    fn parent(&mut self, path: &[u8]) -> Result<Arc<Parent>, Errno> {
        match self.parent.take() {
            Some(parent) if parent.path == path => Ok(parent),
            _ => {
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                let fd = self.export.place.open(path, flags, Mode::empty())?;
                Ok(Arc::new(Parent::new(path, fd)?))
            }
        }
    }
}

/// Sets the attributes that the client sent or that the replaced file had; returns a warning if
/// that failed.
fn set(file: &File, put: &PutFileRequest<'_>, replaced: Option<Replaced>) -> Option<String> {
    let owner = match (put.attrs.owner, replaced) {
        (Some(owner), _) => {
            let failed = set_owner(file, owner).err();
            failed.map(|e| format!("{OWNER_NOT_SET}{}", words(e)))
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
    let rest = rest.map(|e| format!("mode or times could not be set: {}", words(e)));
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
        "it belonged to {user}:{group}, which could not be kept"
    ))
}

/// True if the name can be an entry of a directory.
fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
}

/// Refusal without any effect; the client then uses stock SFTP requests.
fn long_way() -> RequestError {
    RequestError::new(
        StatusCode::OP_UNSUPPORTED,
        "this takes more than one request",
    )
}

/// Error that ends the group of held files, whose files get their names first; then the request is
/// repeated.
fn behind_others() -> RequestError {
    RequestError::new(StatusCode::FAILURE, "another file goes there first")
}

pub(crate) fn failed(doing: &str, errno: Errno) -> RequestError {
    RequestError {
        words: format!("cannot {doing}: {}", words(errno)).into(),
        ..RequestError::from(errno)
    }
}

pub(crate) fn words(errno: Errno) -> String {
    let words = RequestError::from(errno).words;
    let mut chars = words.chars();
    let first = chars.next().map(|c| c.to_ascii_lowercase());
    first.into_iter().chain(chars).collect()
}

#[cfg(test)]
#[path = "whole_file_tests.rs"]
mod tests;
