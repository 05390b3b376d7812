use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::Dir;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use sftp::StatusCode;

use crate::error::Refused;

/// What a handle stands for.
#[derive(Debug)]
pub(crate) enum Open {
    /// A file.
    File {
        file: Arc<File>,
        /// Writes go to its end, wherever the client says.
        append: bool,
        /// Bytes sent to the client.
        sent: u64,
        /// Bytes that came from it.
        received: u64,
        /// What the client called it.
        path: Vec<u8>,
        /// It was said in the log that the disk takes no more of it.
        told: bool,
    },
    /// A directory that is listed.
    Dir { dir: Dir, fd: OwnedFd },
}

impl Open {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::File { file, .. } => file.as_fd(),
            Self::Dir { fd, .. } => fd.as_fd(),
        }
    }
}

/// The handles of a client, numbered as sftp-server.c does it: four bytes, the lowest free number.
/// Clients that know it use a handle before they have it.
#[derive(Debug)]
pub(crate) struct Handles {
    open: Vec<Option<Open>>,
    most: usize,
}

/// Descriptors that this process needs for itself: its streams, a root, and what a request opens
/// while it is looked at.
const OWN: u64 = 16;
/// More than this no client needs.
const MOST: u64 = 4096;

impl Handles {
    /// As many as this process has descriptors for, `most` at most.
    pub(crate) fn new(most: usize) -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let limit = limit.saturating_sub(OWN).clamp(1, MOST) as usize;
        Self {
            open: Vec::new(),
            most: limit.min(most),
        }
    }

    /// How many there may be.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// How many more there may be.
    pub(crate) fn free(&self) -> usize {
        let open = self.open.iter().flatten().count();
        self.most.saturating_sub(open)
    }

    /// Whether any is open.
    pub(crate) fn has_open(&self) -> bool {
        self.open.iter().any(Option::is_some)
    }

    /// Closes all of them.
    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }

    /// The files that are open: what the client calls them, and the bytes that were sent and
    /// received.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&[u8], u64, u64)> {
        self.open.iter().flatten().filter_map(|open| match open {
            Open::File {
                path,
                sent,
                received,
                ..
            } => Some((path.as_slice(), *sent, *received)),
            Open::Dir { .. } => None,
        })
    }

    pub(crate) fn insert(&mut self, open: Open) -> Result<[u8; 4], Refused> {
        let free = self.open.iter().position(Option::is_none);
        let at = free.unwrap_or(self.open.len());
        if at >= self.most {
            return Err(Refused::new(
                StatusCode::FAILURE,
                "too many files are open at once",
            ));
        }
        match self.open.get_mut(at) {
            Some(place) => *place = Some(open),
            None => self.open.push(Some(open)),
        }
        Ok((at as u32).to_be_bytes())
    }

    pub(crate) fn get(&self, handle: &[u8]) -> Result<&Open, Refused> {
        let open = self.open.get(index(handle)?).and_then(Option::as_ref);
        open.ok_or_else(unknown)
    }

    pub(crate) fn get_mut(&mut self, handle: &[u8]) -> Result<&mut Open, Refused> {
        let open = self.open.get_mut(index(handle)?).and_then(Option::as_mut);
        open.ok_or_else(unknown)
    }

    pub(crate) fn file(&self, handle: &[u8]) -> Result<&Arc<File>, Refused> {
        match self.get(handle)? {
            Open::File { file, .. } => Ok(file),
            Open::Dir { .. } => Err(Refused::new(StatusCode::FAILURE, "it is a directory")),
        }
    }

    /// The same for who reads or writes, to whom a directory is one.
    pub(crate) fn open_file(&self, handle: &[u8]) -> Result<&Arc<File>, Refused> {
        match self.get(handle)? {
            Open::File { file, .. } => Ok(file),
            Open::Dir { .. } => Err(Errno::ISDIR.into()),
        }
    }

    /// Whether something was written to a file.
    pub(crate) fn has_received(&self, handle: &[u8]) -> bool {
        matches!(self.get(handle), Ok(Open::File { received, .. }) if *received > 0)
    }

    pub(crate) fn remove(&mut self, handle: &[u8]) -> Result<Open, Refused> {
        let open = self.open.get_mut(index(handle)?).and_then(Option::take);
        open.ok_or_else(unknown)
    }
}

fn index(handle: &[u8]) -> Result<usize, Refused> {
    let number: [u8; 4] = handle.try_into().map_err(|_| unknown())?;
    Ok(u32::from_be_bytes(number) as usize)
}

fn unknown() -> Refused {
    Refused::new(StatusCode::NO_SUCH_FILE, "no such handle is open")
}
