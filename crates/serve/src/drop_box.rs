//! What a client may do in a drop box: with what it has put there itself, and with nothing else.

use std::collections::BTreeSet;

use rustix::fs::{self, Stat};
use rustix::io::Errno;
use sftp::StatusCode;

use crate::Access;
use crate::answer::{Answer, Session};
use crate::error::Refused;

/// What a client has put into a drop box, by device and inode: at least the last [`KEPT`] files,
/// which it may still rename and remove.
#[derive(Debug, Default)]
pub(crate) struct Own {
    recent: BTreeSet<(u64, u64)>,
    before: BTreeSet<(u64, u64)>,
}

/// A client may put any number of files there, and has few of them in hand at a time.
const KEPT: usize = 1 << 16;

impl Own {
    fn insert(&mut self, stat: &Stat) {
        if self.recent.len() >= KEPT {
            self.before = std::mem::take(&mut self.recent);
        }
        self.recent.insert((stat.st_dev, stat.st_ino));
    }

    fn contains(&self, stat: &Stat) -> bool {
        let file = (stat.st_dev, stat.st_ino);
        self.recent.contains(&file) || self.before.contains(&file)
    }
}

impl Session<'_> {
    pub(crate) fn is_drop_box(&self) -> bool {
        self.export.access == Access::WriteOnly
    }

    /// Remembers what this client has put into a drop box.
    pub(crate) fn has_put(&mut self, stat: &Stat) {
        if self.is_drop_box() {
            self.own.insert(stat);
        }
    }

    /// In a drop box only what this client has put there may be looked at or changed.
    pub(crate) fn must_be_own(&self, stat: &Stat) -> Answer {
        match self.is_drop_box() && !self.own.contains(stat) {
            true => Err(self.forbidden()),
            false => Ok(()),
        }
    }

    /// The same for what has this name.
    pub(crate) fn name_must_be_own(&self, path: &[u8]) -> Answer {
        match self.is_drop_box() && !self.is_own(path)? {
            true => Err(self.forbidden()),
            false => Ok(()),
        }
    }

    /// Whether this client has put into the drop box what now has this name.
    pub(crate) fn is_own(&self, path: &[u8]) -> Result<bool, Refused> {
        match self.export.place.find(path, false) {
            Ok(found) => Ok(self.own.contains(&fs::fstat(&found)?)),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    pub(crate) fn forbidden(&self) -> Refused {
        Refused::new(
            StatusCode::PERMISSION_DENIED,
            match self.export.access {
                Access::ReadOnly => "nothing can be changed here: it is served read-only",
                _ => "only new files can be put here: it is a drop box",
            },
        )
    }
}
