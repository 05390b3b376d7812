//! A file that a client of the old protocol gives, until it has its name.

use bytes::Bytes;
use sftp::{Attrs, OpenFlags, Request, StatusCode, temp_name};

use super::files::Files;
use crate::error::Refused;

/// What a file may get of a mode without -p.
pub(super) const PERMISSIONS: u32 = 0o777;

/// A file that comes.
pub(super) struct Incoming {
    path: Vec<u8>,
    /// Not once it is closed.
    handle: Option<Vec<u8>>,
    /// It has this name until it is whole.
    temporary: Option<Vec<u8>>,
    attrs: Attrs,
    at: u64,
    trouble: Option<Refused>,
}

impl Incoming {
    /// Opens it: beside what has its name, which keeps its mode, unless that is no regular file or
    /// nothing may be made there.
    pub(super) fn begin(
        path: Vec<u8>,
        mode: u32,
        exact: bool,
        files: &mut Files<'_>,
    ) -> Result<Self, (Vec<u8>, Refused)> {
        // Through a symlink to what it stands for.
        let path = match files.names(Request::Readlink { path: &path }) {
            Ok(_) => match files.names(Request::Realpath { path: &path }) {
                Ok(mut names) => names.pop().unwrap_or(path),
                Err(_) => path,
            },
            Err(_) => path,
        };
        let there = files.attrs(Request::Stat { path: &path }).ok();
        let kind = there.map(|attrs| attrs.permissions.unwrap_or_default() & 0o170_000);
        let regular = kind.is_none_or(|kind| kind == 0o100_000);
        let old = there.and_then(|attrs| attrs.permissions);
        let asked = Attrs::with_permissions(mode & PERMISSIONS);
        let attrs = match (exact, old) {
            (true, _) => Attrs::with_permissions(mode),
            (false, Some(old)) if regular => Attrs::with_permissions(old & PERMISSIONS),
            (false, _) => Attrs::default(),
        };
        let mut new = Self {
            path,
            handle: None,
            temporary: None,
            attrs,
            at: 0,
            trouble: None,
        };
        if kind == Some(0o040_000) {
            let refused = Refused::new(StatusCode::FAILURE, "Is a directory");
            return Err((new.path, refused));
        }
        if regular {
            let temporary = temp_name(&new.path, &mut |bytes| {
                // It is the kernel's generator, which does not fail.
                let _ = aws_lc_rs::rand::fill(bytes);
            });
            let flags = OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::EXCL;
            let opened = files.handle(Request::Open {
                path: &temporary,
                flags,
                attrs: asked,
            });
            match opened {
                Ok(handle) => {
                    new.handle = Some(handle);
                    new.temporary = Some(temporary);
                    return Ok(new);
                }
                // Where nothing may be made, what is there may still be written.
                Err(e) if e.code == StatusCode::PERMISSION_DENIED && there.is_some() => {}
                Err(e) => return Err((new.path, e)),
            }
        }
        let flags = match regular {
            true => OpenFlags::WRITE | OpenFlags::TRUNC,
            false => OpenFlags::WRITE,
        };
        let opened = files.handle(Request::Open {
            path: &new.path,
            flags,
            attrs: asked,
        });
        match opened {
            Ok(handle) => {
                new.handle = Some(handle);
                if !regular {
                    new.attrs = Attrs::default();
                }
                Ok(new)
            }
            Err(e) => Err((new.path, e)),
        }
    }

    /// When it was modified and accessed.
    pub(super) fn set_times(&mut self, times: Option<(u32, u32)>) {
        self.attrs.times = times.map(|(modified, accessed)| (accessed, modified));
    }

    /// What cannot be written is told once all of it has come, since the client does not listen
    /// before.
    pub(super) fn write(&mut self, data: Bytes, files: &mut Files<'_>) {
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

    /// Gives it its mode, times and name.
    pub(super) fn finish(mut self, files: &mut Files<'_>) -> Result<(), (Vec<u8>, Refused)> {
        let done = self.ended(files);
        done.map_err(|refused| {
            let path = self.path.clone();
            self.abandon(files);
            (path, refused)
        })
    }

    fn ended(&mut self, files: &mut Files<'_>) -> Result<(), Refused> {
        if let Some(refused) = self.trouble.take() {
            return Err(refused);
        }
        // Of what was there before, and of a device, neither may be ours to change.
        let own = self.temporary.is_some();
        if let Some(handle) = self.handle.as_deref().filter(|_| !self.attrs.is_empty()) {
            let set = files.done(Request::Fsetstat {
                handle,
                attrs: self.attrs,
            });
            if own {
                set?;
            }
        }
        if let Some(handle) = self.handle.take() {
            files.done(Request::Close { handle: &handle })?;
        }
        if let Some(temporary) = &self.temporary {
            files.done(Request::PosixRename {
                from: temporary,
                to: &self.path,
            })?;
            self.temporary = None;
        }
        Ok(())
    }

    pub(super) fn abandon(mut self, files: &mut Files<'_>) {
        if let Some(handle) = self.handle.take() {
            // Nothing of it is wanted.
            let _ = files.done(Request::Close { handle: &handle });
        }
        if let Some(temporary) = self.temporary.take() {
            let _ = files.done(Request::Remove { path: &temporary });
        }
    }
}
