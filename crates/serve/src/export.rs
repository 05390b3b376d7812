use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use sys::{Symlinks, open_beneath};

use crate::Access;
use crate::beneath::Place;
use crate::error::ExportError;

/// What a client is served, and what it may do there.
#[derive(Debug)]
pub struct Export {
    pub(crate) place: Place,
    pub(crate) access: Access,
    /// Files of which so much is moved have a line of the log.
    pub(crate) log_files: u64,
}

/// A line costs less than the packets of so much.
pub(crate) const LOG_FILES: u64 = 1 << 20;

impl Export {
    /// The whole file system, from the working directory, as the account may.
    pub fn everything(access: Access) -> Self {
        Self {
            place: Place::Everything,
            access,
            log_files: LOG_FILES,
        }
    }

    /// What lies beneath `root`: clients see it as `/`, and nothing above it.
    ///
    /// # Errors
    /// It is no directory, or this kernel has no openat2(2).
    pub fn beneath(root: &Path, access: Access) -> Result<Self, ExportError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened: Result<OwnedFd, Errno> = fs::open(root, flags, Mode::empty());
        let root_fd = opened.map_err(|e| ExportError::Open(root.to_owned(), e.into()))?;
        let within = Symlinks::WithinRoot;
        match open_beneath(&root_fd, b".", flags, Mode::empty(), within) {
            Ok(_) => {}
            Err(Errno::NOSYS) => return Err(ExportError::Kernel(root.to_owned())),
            Err(e) => return Err(ExportError::Open(root.to_owned(), e.into())),
        }
        Ok(Self {
            place: Place::Beneath(root_fd),
            access,
            log_files: LOG_FILES,
        })
    }

    /// The same, and files of which so many bytes are moved have a line of the log each.
    #[must_use]
    pub fn log_files(self, least: u64) -> Self {
        Self {
            log_files: least,
            ..self
        }
    }
}
