//! What a client may do in a drop box: with what it has put there itself, and with nothing else.
//!
//! A client of several channels has a server behind each, which know nothing of one another, and
//! writes one large file through all of them. So the name of a temporary tells as well whose it is:
//! nobody can list it, and 50 random bits are not guessed.

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

    /// Whether what `path` leads to was put there by this client.
    pub(crate) fn has(&self, path: &[u8], stat: &Stat) -> bool {
        is_temporary(path) || self.contains(stat)
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

    /// In a drop box only what this client has put there may be looked at or changed: what `path`
    /// leads to.
    pub(crate) fn must_be_own(&self, path: &[u8], stat: &Stat) -> Answer {
        match self.is_drop_box() && !self.own.has(path, stat) {
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
            Ok(found) => Ok(self.own.has(path, &fs::fstat(&found)?)),
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

/// Whether it is a name that longhaul gives a file until it is whole: `.NAME.RANDOM.longhaul`, with
/// ten characters of five bits.
fn is_temporary(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let middle = name.strip_prefix(b".").unwrap_or_default();
    let middle = middle.strip_suffix(b".longhaul").unwrap_or_default();
    let random = middle.iter().rev().take_while(|byte| **byte != b'.');
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    middle.len() > 11 && random.clone().count() == 10 && random.clone().all(plain)
}

#[cfg(test)]
mod tests {
    use super::is_temporary;

    #[test]
    fn a_temporary_is_known_by_its_name() {
        for name in ["a/.b.c.1111111111.longhaul", ".b.0123456xyz.longhaul"] {
            assert!(is_temporary(name.as_bytes()), "{name}");
        }
        for name in [
            "b.1111111111.longhaul",
            ".b.111111111.longhaul",
            ".b.11111111111.longhaul",
            ".b.111111111A.longhaul",
            "..1111111111.longhaul/x",
            ".1111111111.longhaul",
            ".b.1111111111",
            "",
        ] {
            assert!(!is_temporary(name.as_bytes()), "{name}");
        }
    }
}
