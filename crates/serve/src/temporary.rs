//! A small file from when it is created beside its name until it has that.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;
use sftp::tagged_name;

use crate::answer::{Answer, Session};
use crate::beneath::split;
use crate::whole_file::{PERMISSIONS, Put, failed};

/// The directory of the last small file: those that come together lie in the same. Kept while
/// requests are at hand that came with it, so that nobody has waited for what is decided by it.
#[derive(Debug)]
pub(crate) struct Parent {
    pub(crate) path: Vec<u8>,
    pub(crate) fd: OwnedFd,
    /// Device and inode: several paths may lead to it.
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

/// The names of a temporary that are tried, as clients try them.
const NAMES: u64 = 3;

/// A file that is whole but for its name.
#[derive(Debug)]
pub(crate) struct Written {
    /// Until it is closed.
    pub(crate) file: Option<File>,
    pub(crate) temporary: Temporary,
    /// A regular file loses its name to it.
    pub(crate) replaces: bool,
    /// What went wrong without failing it.
    pub(crate) warning: Option<String>,
    pub(crate) len: u64,
}

impl Written {
    /// Where it lies.
    pub(crate) fn parent(&self) -> &Arc<Parent> {
        &self.temporary.parent
    }

    /// Whether it has, or shall have, the name `name` in `parent`.
    pub(crate) fn takes(&self, parent: &Parent, name: &[u8], path: &[u8]) -> bool {
        let (_, last) = split(path);
        (last == name || self.temporary.name == name) && self.parent().is(parent)
    }
}

/// A file that has no final name yet; it goes unless it gets one.
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
    put: &Put<'_>,
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
    /// Gives it its name, which `path` ends with.
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
