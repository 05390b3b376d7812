//! A small file from its creation beside the target until it has the target's name.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;
use sftp::tagged_name;

use crate::beneath::split;
use crate::sftp::answer::{Answer, Session};
use crate::sftp::whole_file::{PERMISSIONS, PutFileRequest, failed};

/// The directory of the last small file, kept because files that arrive together usually share it.
/// It is dropped before the next input is handled, so that a client which has waited for an answer
/// finds the directory as it is then.
#[derive(Debug)]
pub(crate) struct Parent {
    pub(crate) path: Vec<u8>,
    pub(crate) fd: OwnedFd,
    /// Device and inode, because several paths may lead to the directory.
    identity: (u64, u64),
}

impl Parent {
    pub(crate) fn new(path: &[u8], fd: OwnedFd) -> Result<Self, Errno> {
        let stat = fs::fstat(&fd)?;
        Ok(Self {
            path: path.to_vec(),
            fd,
            identity: (stat.st_dev, stat.st_ino),
        })
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

/// Number of temporary names to try; clients try as many.
const NAMES: u64 = 3;

/// A file that is complete except for its final name.
#[derive(Debug)]
pub(crate) struct Written {
    /// The open file; `None` once it is closed.
    pub(crate) file: Option<File>,
    pub(crate) temporary: Temporary,
    /// The rename replaces a regular file.
    pub(crate) replaces: bool,
    /// A problem that did not make the request fail.
    pub(crate) warning: Option<String>,
    pub(crate) len: u64,
}

impl Written {
    /// Directory that the file is in.
    pub(crate) fn parent(&self) -> &Arc<Parent> {
        &self.temporary.parent
    }

    /// True if the file has or will get the name `name` in `parent`.
    pub(crate) fn takes(&self, parent: &Parent, name: &[u8], path: &[u8]) -> bool {
        let (_, last) = split(path);
        (last == name || self.temporary.name == name) && self.parent().is(parent)
    }
}

/// A file without its final name; dropping it removes the file unless it was renamed.
#[derive(Debug)]
pub(crate) struct Temporary {
    parent: Arc<Parent>,
    name: Vec<u8>,
    renamed: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = fs::unlinkat(&self.parent.fd, self.name.as_slice(), AtFlags::empty());
        }
    }
}

pub(crate) fn create(
    parent: &Arc<Parent>,
    name: &[u8],
    put: &PutFileRequest<'_>,
) -> Result<(File, Temporary), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let mode = Mode::from_raw_mode(put.mode & PERMISSIONS);
    let mut last = Errno::EXIST;
    for at in 0..NAMES {
        let name = tagged_name(name, put.tag.wrapping_add(at));
        match fs::openat(&parent.fd, name.as_slice(), flags | OFlags::CLOEXEC, mode) {
            Ok(fd) => {
                let temporary = Temporary {
                    parent: Arc::clone(parent),
                    name,
                    renamed: false,
                };
                return Ok((fd.into(), temporary));
            }
            Err(Errno::EXIST) => {}
            Err(e) => {
                last = e;
                break;
            }
        }
    }
    Err(last)
}

impl Session<'_> {
    /// Renames the temporary to the last component of `path`.
    pub(crate) fn name(&self, written: &mut Written, path: &[u8]) -> Answer {
        let (_, name) = split(path);
        let temporary = &mut written.temporary;
        let dir = temporary.parent.fd.as_fd();
        let held = written.replaces.then(|| self.leaving.hold(dir, name));
        if self.is_drop_box() {
            let beside = [&path[..path.len() - name.len()], &temporary.name].concat();
            self.rename(&beside, path, true)?;
        } else {
            fs::renameat(dir, temporary.name.as_slice(), dir, name)
                .map_err(|e| failed("rename the temporary", e))?;
        }
        temporary.renamed = true;
        drop(held);
        Ok(())
    }
}
