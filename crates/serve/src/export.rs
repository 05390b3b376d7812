use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use sys::{SymlinkPolicy, open_beneath};

use crate::Access;
use crate::beneath::{PathRoot, ServedEntries};
use crate::error::ExportError;
use crate::growing::{GrowingFile, GrowingFileSpec};

/// The tree that a client is served, and the allowed access.
#[derive(Debug)]
pub struct ExportedTree {
    root: PathRoot,
    access: Access,
    /// Transferred bytes from which a file gets its own log line.
    log_files: u64,
    /// A served file that is still being written.
    growing: Option<Arc<GrowingFile>>,
}

/// Default of `log_files`: a log line costs less than the packets of that many bytes.
pub(crate) const LOG_FILES: u64 = 1 << 20;

impl ExportedTree {
    /// Serves the whole file system, starting at the working directory, with the rights of the
    /// account.
    pub fn everything(access: Access) -> Self {
        Self {
            root: PathRoot::Everything,
            access,
            log_files: LOG_FILES,
            growing: None,
        }
    }

    /// Serves only the tree beneath `root`, which clients see as `/`.
    ///
    /// # Errors
    /// `root` is not a directory, or the kernel has no openat2(2).
    pub fn beneath(root: &Path, access: Access) -> Result<Self, ExportError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened: Result<OwnedFd, Errno> = fs::open(root, flags, Mode::empty());
        let root_fd = opened.map_err(|e| ExportError::Open(root.to_owned(), e.into()))?;
        let within = SymlinkPolicy::WithinRoot;
        match open_beneath(&root_fd, b".", flags, Mode::empty(), within) {
            Ok(_) => {}
            Err(Errno::NOSYS) => return Err(ExportError::Kernel(root.to_owned())),
            Err(e) => return Err(ExportError::Open(root.to_owned(), e.into())),
        }
        Ok(Self {
            root: PathRoot::Beneath(root_fd),
            access,
            log_files: LOG_FILES,
            growing: None,
        })
    }

    /// Serves only what these paths beneath the root lead to; with `follows`, also through symlinks
    /// below them.
    #[must_use]
    pub(crate) fn only(self, paths: &[Vec<u8>], follows: bool) -> Self {
        let served = ServedEntries::new(paths, follows);
        let root = match self.root {
            PathRoot::Beneath(root) | PathRoot::Only(root, _) => PathRoot::Only(root, served),
            PathRoot::Everything => PathRoot::Everything,
        };
        Self { root, ..self }
    }

    /// Serves the file at `path`, which is still being written, as if it were complete.
    ///
    /// # Errors
    /// No descriptors are left.
    pub(crate) fn with_growing(self, path: Vec<u8>, spec: GrowingFileSpec) -> io::Result<Self> {
        let root = match &self.root {
            PathRoot::Beneath(root) | PathRoot::Only(root, _) => root.try_clone()?,
            PathRoot::Everything => return Ok(self),
        };
        let growing = GrowingFile::new(PathRoot::Beneath(root), path, spec);
        Ok(Self {
            growing: Some(Arc::new(growing)),
            ..self
        })
    }

    /// The file at a client's path, if it is still being written.
    pub(crate) fn growing_at(&self, path: &[u8]) -> Option<&Arc<GrowingFile>> {
        self.growing.as_ref().filter(|growing| growing.is_at(path))
    }

    /// Sets the number of transferred bytes from which a file gets its own log line.
    #[must_use]
    pub fn log_files(self, least: u64) -> Self {
        Self {
            log_files: least,
            ..self
        }
    }

    /// Directory at which paths of clients begin.
    pub(crate) fn root(&self) -> &PathRoot {
        &self.root
    }

    /// Access that clients have.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Number of transferred bytes from which a file gets its own log line.
    pub(crate) fn least_logged(&self) -> u64 {
        self.log_files
    }
}
