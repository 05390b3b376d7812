//! A file that a client of scp's old protocol uploads, until it has its final name.

use bytes::Bytes;
use rustix::io::Errno;
use sftp::{Attrs, OpenFlags, Request, StatusCode, temp_name};
use tracing::{info, warn};

use super::files::{FileError, ScpFileOps, UnsuitableReason};
use super::joined;
use crate::beneath::split;
use wire::escape::field;

/// Mode bits that a file may get without -p.
pub(super) const PERMISSIONS: u32 = 0o777;
/// Maximum number of symlinks that are followed to a file, as in the kernel.
const LINKS: usize = 40;
/// File type bits of FIFOs and character devices, which are written sequentially.
const FIFO: u32 = 0o010_000;
const CHARACTERS: u32 = 0o020_000;
/// Errors of a replacement after which the target is overwritten in place: it is a mount point, or
/// its directory is sticky. After a full or failing disk the old file is kept.
const IN_PLACE: [Errno; 4] = [Errno::BUSY, Errno::XDEV, Errno::PERM, Errno::ACCESS];

/// Upload of one file: its handle, the offset of the next byte, and the first error, after which
/// the remaining bytes are read and dropped.
pub(super) struct IncomingFile {
    path: Vec<u8>,
    /// Handle of the file that is written; `None` once closed.
    handle: Option<Vec<u8>>,
    /// Temporary name until the upload completes; `None` writes the target in place.
    temporary: Option<Vec<u8>>,
    /// Handle of the file that will be replaced.
    there: Option<Vec<u8>>,
    /// The target is a regular file, which is truncated at the new length.
    regular: bool,
    /// -p was given: set mode and times exactly.
    exact: bool,
    attrs: Attrs,
    at: u64,
    trouble: Option<FileError>,
}

impl IncomingFile {
    /// Opens the target: normally a temporary beside it, which gets the target's mode. The target
    /// is written in place if it is not a regular file, if no file may be created beside it, if a
    /// new file would have another owner, extended attributes or access lists, or if the target has
    /// several names.
    pub(super) fn begin(
        path: Vec<u8>,
        mode: u32,
        exact: bool,
        files: &mut ScpFileOps<'_>,
    ) -> Result<Self, (Vec<u8>, FileError)> {
        let path = followed(path, files);
        let mut new = Self {
            path,
            handle: None,
            temporary: None,
            there: None,
            regular: true,
            exact,
            attrs: Attrs {
                permissions: exact.then_some(mode),
                ..Attrs::default()
            },
            at: 0,
            trouble: None,
        };
        match new.open(mode & PERMISSIONS, files) {
            Ok(()) => Ok(new),
            Err(refused) => {
                let path = new.path.clone();
                new.abandon(files);
                Err((path, refused))
            }
        }
    }

    fn open(&mut self, asked: u32, files: &mut ScpFileOps<'_>) -> Result<(), FileError> {
        let Ok(old) = files.attrs(Request::Stat { path: &self.path }) else {
            return self.make(asked, files);
        };
        let mode = old.permissions.unwrap_or_default();
        if old.is_dir() {
            return Err(UnsuitableReason::Directory.into());
        }
        let kind = mode & 0o170_000;
        self.regular = kind == 0o100_000;
        let flags = match kind {
            // FIFOs and character devices have no offsets.
            FIFO | CHARACTERS => OpenFlags::WRITE | OpenFlags::APPEND,
            _ => OpenFlags::WRITE,
        };
        // A file that may not be written is not replaced either.
        let opened = files.handle(Request::Open {
            path: &self.path,
            flags,
            attrs: Attrs::default(),
        });
        let busy = match opened {
            Ok(handle) if !self.regular => {
                self.handle = Some(handle);
                self.attrs.permissions = None;
                return Ok(());
            }
            Ok(handle) => {
                self.there = Some(handle);
                None
            }
            Err(e) if !self.regular || e.code() == Some(StatusCode::PERMISSION_DENIED) => {
                return Err(e);
            }
            // A running program cannot be opened for writing, but can be replaced.
            Err(e) => Some(e),
        };
        // Until its mode is set, only users who may read both files can read the temporary.
        let made = match self.make(asked & mode, files) {
            Ok(()) => self.attrs_of_made(files),
            Err(e) => Err(e),
        };
        match made {
            Ok(made) if made.owner == old.owner && old.link.is_none() && self.is_alike(files) => {
                let kept = |mode: Option<u32>| mode.map(|mode| mode & PERMISSIONS);
                if !self.exact && kept(made.permissions) != kept(old.permissions) {
                    self.attrs.permissions = kept(old.permissions);
                }
                Ok(())
            }
            other => {
                self.unmake(files);
                let why = busy.or_else(|| other.err());
                self.handle = self.there.take();
                match (&self.handle, why) {
                    (None, Some(why)) => Err(why),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Creates the temporary.
    fn make(&mut self, mode: u32, files: &mut ScpFileOps<'_>) -> Result<(), FileError> {
        let temporary = temp_name(&self.path, &mut |bytes| {
            // The kernel's generator does not fail.
            let _ = aws_lc_rs::rand::fill(bytes);
        });
        self.handle = Some(files.handle(Request::Open {
            path: &temporary,
            flags: OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::EXCL,
            attrs: Attrs::with_permissions(mode),
        })?);
        self.temporary = Some(temporary);
        Ok(())
    }

    /// True if the temporary has the extended attributes and access lists of the file that it would
    /// replace.
    fn is_alike(&self, files: &mut ScpFileOps<'_>) -> bool {
        let temporary = self.temporary.as_deref().unwrap_or_default();
        files.beyond(temporary) == files.beyond(&self.path)
    }

    fn attrs_of_made(&self, files: &mut ScpFileOps<'_>) -> Result<Attrs, FileError> {
        let handle = self.handle.as_deref().unwrap_or_default();
        files.attrs(Request::Fstat { handle })
    }

    /// Closes and removes the temporary.
    fn unmake(&mut self, files: &mut ScpFileOps<'_>) {
        if let Some(handle) = self.handle.take() {
            // Its contents are discarded, so an error of CLOSE does not matter.
            let _ = files.done(Request::Close { handle: &handle });
        }
        if let Some(temporary) = self.temporary.take() {
            let _ = files.done(Request::Remove { path: &temporary });
        }
    }

    /// Sets the modification and access times that the file gets at the end.
    pub(super) fn set_times(&mut self, times: Option<(u32, u32)>) {
        self.attrs.times = times.map(|(modified, accessed)| (accessed, modified));
    }

    /// Writes a piece of the file. An error is kept until the whole file has arrived, since the
    /// client does not listen before.
    pub(super) fn write(&mut self, data: Bytes, files: &mut ScpFileOps<'_>) {
        let Some(handle) = self.handle.as_deref().filter(|_| self.trouble.is_none()) else {
            return;
        };
        if data.is_empty() {
            return;
        }
        let len = data.len() as u64;
        let write = Request::Write {
            handle,
            offset: self.at,
            data: &[],
        };
        match files.ask(write, &[data]) {
            Ok(_) => self.at += len,
            Err(refused) => self.trouble = Some(refused),
        }
    }

    /// Gives the file its mode, times and name.
    pub(super) fn finish(mut self, files: &mut ScpFileOps<'_>) -> Result<(), (Vec<u8>, FileError)> {
        let done = self.ended(files);
        let path = self.path.clone();
        self.abandon(files);
        done.map_err(|refused| (path, refused))
    }

    fn ended(&mut self, files: &mut ScpFileOps<'_>) -> Result<(), FileError> {
        if let Some(refused) = self.trouble.take() {
            return Err(refused);
        }
        let Some(handle) = self.handle.take() else {
            return Ok(());
        };
        if self.temporary.is_none() && self.regular {
            cut(&handle, self.at, files)?;
        }
        let mut set = set(&handle, self.attrs, files);
        files.done(Request::Close { handle: &handle })?;
        if let Some(temporary) = &self.temporary {
            let renamed = files.done(Request::PosixRename {
                from: temporary,
                to: &self.path,
            });
            match (renamed, &self.there) {
                (Ok(()), _) => self.temporary = None,
                (Err(why), Some(there)) if why.is_one_of(&IN_PLACE) => {
                    let path = field(&self.path);
                    info!(%path, "cannot replace the file, writing in place: {why}");
                    if let Err(why) = copy(temporary, there, self.at, files) {
                        return Err(self.keep(why));
                    }
                    let mode = self.attrs.permissions.filter(|_| self.exact);
                    let attrs = Attrs {
                        permissions: mode,
                        ..self.attrs
                    };
                    set = self::set(there, attrs, files);
                }
                (Err(why), _) => return Err(why),
            }
        }
        // The file is complete nevertheless.
        set.map_err(|why| FileError::NoAttributes(Box::new(why)))
    }

    /// Keeps the temporary after writing in place has failed: the old contents are partly
    /// overwritten, and only the temporary has the whole file.
    fn keep(&mut self, why: FileError) -> FileError {
        let kept = self.temporary.take().unwrap_or_default();
        let kept = wire::escape::name(&kept).to_string();
        warn!(
            kept,
            "the file may be damaged, because it could not be overwritten ({why}); the complete new \
             file is kept beside it"
        );
        FileError::KeptAs(Box::new(why), kept)
    }

    pub(super) fn abandon(mut self, files: &mut ScpFileOps<'_>) {
        self.unmake(files);
        if let Some(handle) = self.there.take() {
            // The old file was only opened.
            let _ = files.done(Request::Close { handle: &handle });
        }
    }
}

/// Follows the symlinks at `path`; the target need not exist.
fn followed(mut path: Vec<u8>, files: &mut ScpFileOps<'_>) -> Vec<u8> {
    for _ in 0..LINKS {
        let read = files.names(Request::Readlink { path: &path });
        let Some(says) = read.ok().and_then(|mut names| names.pop()) else {
            break;
        };
        path = match split(&path).0 {
            _ if says.starts_with(b"/") => says,
            b"." => says,
            dir => joined(dir, &says),
        };
    }
    path
}

fn cut(handle: &[u8], size: u64, files: &mut ScpFileOps<'_>) -> Result<(), FileError> {
    let attrs = Attrs {
        size: Some(size),
        ..Attrs::default()
    };
    set(handle, attrs, files)
}

fn set(handle: &[u8], attrs: Attrs, files: &mut ScpFileOps<'_>) -> Result<(), FileError> {
    match attrs.is_empty() {
        true => Ok(()),
        false => files.done(Request::Fsetstat { handle, attrs }),
    }
}

/// Copies a temporary into the open file `to`, which then has `size` bytes.
fn copy(
    temporary: &[u8],
    to: &[u8],
    size: u64,
    files: &mut ScpFileOps<'_>,
) -> Result<(), FileError> {
    let from = files.handle(Request::Open {
        path: temporary,
        flags: OpenFlags::READ,
        attrs: Attrs::default(),
    })?;
    let copied = files.done(Request::CopyData {
        from: &from,
        from_offset: 0,
        len: 0,
        to,
        to_offset: 0,
    });
    // The handle was only read.
    let _ = files.done(Request::Close { handle: &from });
    copied?;
    cut(to, size, files)
}

#[cfg(test)]
#[path = "incoming_tests.rs"]
mod tests;
