//! The served tree as one client may use it: which requests and which files are allowed, and how
//! names are removed and replaced.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::{Errno, Result};
use sftp::Request;

use super::background_file_closer::{BackgroundFileCloser, DeferredFile};
use super::drop_box::DropBoxFiles;
use super::handles::{DescriptorPermit, HandleTable};
use super::request_error::{Exhausted, Forbidden, RequestError};
use super::session::RequestResult;
use crate::growing::GrowingFile;
use crate::held_roots::ClientPathResolver;
use crate::{Access, ExportedTree};

/// The served tree as one client sees it, with the files in it that this client has created.
pub(super) struct ClientTree<'e> {
    export: &'e ExportedTree,
    paths: ClientPathResolver<'e>,
    /// Descriptors of the held roots, in the client's budget.
    root_permits: Vec<DescriptorPermit>,
    own: DropBoxFiles,
    deferred: BackgroundFileCloser,
}

impl<'e> ClientTree<'e> {
    pub(super) fn new(export: &'e ExportedTree) -> Self {
        Self {
            export,
            paths: ClientPathResolver::new(export.root()),
            root_permits: Vec::new(),
            own: DropBoxFiles::default(),
            deferred: BackgroundFileCloser::default(),
        }
    }

    /// Resolution of the client's paths.
    pub(super) fn paths(&self) -> &ClientPathResolver<'e> {
        &self.paths
    }

    /// Carries out hold-root@longhaul: resolves paths below `path` from its descriptor from now on.
    pub(super) fn hold_root(&mut self, path: &[u8], handles: &HandleTable) -> RequestResult {
        let permit = handles.take().ok_or(Exhausted::OpenFiles)?;
        if self.paths.hold(path)? {
            self.root_permits.push(permit);
        }
        Ok(())
    }

    /// Opens `path`.
    pub(super) fn open(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        self.paths.open(path, flags, mode)
    }

    /// The file at a path, if it is still being written.
    pub(super) fn growing_at(&self, path: &[u8]) -> Option<&'e Arc<GrowingFile>> {
        self.export.growing_at(path)
    }

    /// True if the client may send such a request at all. In a drop box it also depends on who
    /// created the file.
    pub(super) fn allows(&self, request: &Request<'_>) -> bool {
        self.export.access().allows(request)
    }

    /// True if the client may only add files, and use those that it has added.
    pub(super) fn is_drop_box(&self) -> bool {
        self.export.access() == Access::WriteOnly
    }

    /// Remembers a file that this client has created in a drop box.
    pub(super) fn claim(&mut self, file: impl AsFd) -> RequestResult {
        if self.is_drop_box() {
            self.own.insert(file.as_fd())?;
        }
        Ok(())
    }

    /// Fails in a drop box unless this client has created the file `found`, to which `path` leads.
    pub(super) fn check_own(&self, path: &[u8], found: impl AsFd, stat: &Stat) -> RequestResult {
        match self.owns(path, found, stat) {
            true => Ok(()),
            false => Err(self.forbidden()),
        }
    }

    /// True except in a drop box for a file that this client has not created.
    pub(super) fn owns(&self, path: &[u8], found: impl AsFd, stat: &Stat) -> bool {
        !self.is_drop_box() || self.own.has(path, found.as_fd(), stat)
    }

    /// True except in a drop box for a name whose file this client has not created.
    pub(super) fn owns_name(&self, path: &[u8]) -> std::result::Result<bool, RequestError> {
        if !self.is_drop_box() {
            return Ok(true);
        }
        // With a trailing slash, a symlink's name would mean the directory it leads to.
        let end = path.iter().rposition(|byte| *byte != b'/');
        let path = end.map_or(path, |end| &path[..=end]);
        match self.paths.find(path, false) {
            Ok(found) => Ok(self.own.has(path, found.as_fd(), &fs::fstat(&found)?)),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// True except in a drop box for an entry of an open directory whose file this client has not
    /// created.
    ///
    /// What follows must use the same descriptor: between two resolutions of a path, another channel of
    /// the client may swap the directories on it.
    pub(super) fn owns_entry(&self, dir: BorrowedFd<'_>, name: &[u8]) -> bool {
        if !self.is_drop_box() {
            return true;
        }
        // With a trailing slash, a symlink's name would mean the directory it leads to.
        let end = name.iter().rposition(|byte| *byte != b'/');
        let name = end.map_or(name, |end| &name[..=end]);
        let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = fs::openat(dir, name, how, Mode::empty());
        found.is_ok_and(|found| {
            let stat = fs::fstat(&found);
            stat.is_ok_and(|stat| self.own.has(name, found.as_fd(), &stat))
        })
    }

    /// Error of a request that the access does not allow.
    pub(super) fn forbidden(&self) -> RequestError {
        match self.export.access() {
            Access::ReadOnly => Forbidden::ReadOnly.into(),
            Access::WriteOnly | Access::Full => Forbidden::DropBox.into(),
        }
    }

    /// Creates a directory, which is this client's own.
    pub(super) fn mkdir(&mut self, path: &[u8], mode: Mode) -> RequestResult {
        let is_drop_box = self.is_drop_box();
        let made = self.paths.at(path, |dir, name| {
            fs::mkdirat(dir, name, mode)?;
            let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let opened = is_drop_box.then(|| fs::openat(dir, name, how, Mode::empty()));
            opened.transpose()
        })?;
        match made {
            Some(made) => self.claim(&made),
            None => Ok(()),
        }
    }

    /// Removes a file, or an empty directory with [`AtFlags::REMOVEDIR`].
    pub(super) fn remove(&self, path: &[u8], flags: AtFlags) -> RequestResult {
        let held = self.paths.at(path, |dir, name| {
            if !self.owns_entry(dir, name) {
                return Ok(None);
            }
            let held = self.deferred.hold(dir, name);
            fs::unlinkat(dir, name, flags).map(|()| Some(held))
        })?;
        drop(held.ok_or_else(|| self.forbidden())?);
        Ok(())
    }

    /// Renames a file; with `replace`, an existing file `to` is replaced, in a drop box only a file
    /// of the client's own.
    pub(super) fn rename(&self, from: &[u8], to: &[u8], replace: bool) -> RequestResult {
        let paths = &self.paths;
        let renamed = paths.at(from, |from_dir, from_name| {
            if !self.owns_entry(from_dir, from_name) {
                return Ok(None);
            }
            let held = paths.at(to, |to_dir, to_name| {
                match replace && self.owns_entry(to_dir, to_name) {
                    true => {
                        let held = self.deferred.hold(to_dir, to_name);
                        fs::renameat(from_dir, from_name, to_dir, to_name).map(|()| Some(held))
                    }
                    false => rename_new((from_dir, from_name), (to_dir, to_name)).map(|()| None),
                }
            });
            held.map(Some)
        })?;
        drop(renamed.ok_or_else(|| self.forbidden())?);
        Ok(())
    }

    /// Holds the file with this name beyond its removal if it is large
    /// ([`BackgroundFileCloser::hold`]).
    pub(super) fn hold(&self, dir: BorrowedFd<'_>, name: &[u8]) -> DeferredFile {
        self.deferred.hold(dir, name)
    }
}

/// Renames an entry of a directory to a name that does not exist.
fn rename_new(
    (from_dir, from_name): (BorrowedFd<'_>, &[u8]),
    (to_dir, to_name): (BorrowedFd<'_>, &[u8]),
) -> Result<()> {
    let keep = RenameFlags::NOREPLACE;
    match fs::renameat_with(from_dir, from_name, to_dir, to_name, keep) {
        // The file system has no RENAME_NOREPLACE; link(2) also fails if the name exists.
        Err(Errno::INVAL | Errno::NOSYS) => {
            let stat = fs::statat(from_dir, from_name, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                return Err(Errno::OPNOTSUPP);
            }
            fs::linkat(from_dir, from_name, to_dir, to_name, AtFlags::empty())?;
            fs::unlinkat(from_dir, from_name, AtFlags::empty())
        }
        other => other,
    }
}
