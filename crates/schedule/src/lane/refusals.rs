use serde::{Deserialize, Serialize};
use sftp::StatusCode;

use crate::directory_of;
use crate::journal::crc32c;

/// Operations that an SFTP server refuses for every file, as its answers have shown, and for every
/// file of some directories.
///
/// A refusal that may concern one file only is not included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedOperations {
    /// OPEN of temporary names, on servers that admit only certain names such as `*.csv`.
    #[serde(default)]
    pub temporaries: bool,
    /// OPEN with the flag EXCL.
    #[serde(default)]
    pub exclusive: bool,
    /// RENAME of a new file to a free name.
    #[serde(default)]
    pub renames: bool,
    /// SETSTAT and FSETSTAT of a new file.
    #[serde(default)]
    pub attributes: bool,
    /// Directories in which OPEN of temporary names is refused; others may permit it.
    #[serde(default, skip_serializing_if = "RefusingDirectories::is_empty")]
    pub temporaries_in: RefusingDirectories,
    /// Directories in which RENAME is refused; others may permit it.
    #[serde(default, skip_serializing_if = "RefusingDirectories::is_empty")]
    pub renames_in: RefusingDirectories,
}

/// Hashes of the paths of directories that refuse an operation; 0 is no directory. A further
/// directory that refuses it shows that the server does so everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusingDirectories([u32; 2]);

impl RefusingDirectories {
    /// The directory of the file at `path`.
    fn of(path: &[u8]) -> Self {
        Self([hash(&directory_of(path)), 0])
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if the directory of the file at `path` is one of them.
    fn contains(&self, path: &[u8]) -> bool {
        !self.is_empty() && self.0.contains(&hash(&directory_of(path)))
    }

    /// Returns the union of both; `None` if it has more directories than are needed to show that
    /// the server refuses the operation everywhere.
    fn and(mut self, other: Self) -> Option<Self> {
        for hash in other.0.into_iter().filter(|hash| *hash != 0) {
            if self.0.contains(&hash) {
                continue;
            }
            *self.0.iter_mut().find(|free| **free == 0)? = hash;
        }
        Some(self)
    }
}

/// 0 stands for no directory.
fn hash(path: &[u8]) -> u32 {
    crc32c(&[path]).max(1)
}

impl RefusedOperations {
    /// Refusal of every RENAME of the new file at `path`, with this status.
    pub(super) fn of_rename(path: &[u8], code: StatusCode) -> Self {
        match code {
            StatusCode::OP_UNSUPPORTED => Self {
                renames: true,
                ..Self::default()
            },
            _ => Self {
                renames_in: RefusingDirectories::of(path),
                ..Self::default()
            },
        }
    }

    /// Refusal of a temporary beside the file at `path`, which itself is permitted.
    pub(super) fn of_temporary(path: &[u8]) -> Self {
        Self {
            temporaries_in: RefusingDirectories::of(path),
            ..Self::default()
        }
    }

    /// Returns true if all uploads are written in place, since no temporary can be created or
    /// renamed.
    pub fn in_place(self) -> bool {
        self.temporaries || self.renames
    }

    /// Returns true if the file at `path` is written in place.
    pub fn in_place_at(self, path: &[u8]) -> bool {
        self.in_place() || self.temporaries_in.contains(path) || self.renames_in.contains(path)
    }

    /// Returns true if the files of some directory are written in place.
    pub fn in_place_somewhere(self) -> bool {
        self.in_place() || !self.temporaries_in.is_empty() || !self.renames_in.is_empty()
    }

    /// Returns true if nothing is refused.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Returns the union of both sets of refusals.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let temporaries_in = self.temporaries_in.and(other.temporaries_in);
        let renames_in = self.renames_in.and(other.renames_in);
        Self {
            temporaries: self.temporaries || other.temporaries || temporaries_in.is_none(),
            exclusive: self.exclusive || other.exclusive,
            renames: self.renames || other.renames || renames_in.is_none(),
            attributes: self.attributes || other.attributes,
            temporaries_in: temporaries_in.unwrap_or(self.temporaries_in),
            renames_in: renames_in.unwrap_or(self.renames_in),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One directory in which renames are refused made the whole host count as one that renames
    /// nothing, for a week.
    #[test]
    fn one_directory_that_refuses_says_nothing_about_the_others() {
        let in_directory = |path: &[u8]| RefusedOperations::of_rename(path, StatusCode::FAILURE);
        let one = in_directory(b"/drop/a");
        assert!(one.in_place_at(b"/drop/b") && !one.in_place_at(b"/other/a") && !one.in_place());
        let two = one
            .and(in_directory(b"/drop/c"))
            .and(in_directory(b"/second/a"));
        assert!(two.in_place_at(b"/second/b") && !two.in_place_at(b"/other/a"));
        let three = two.and(in_directory(b"third"));
        assert!(three.renames && three.in_place_at(b"/other/a"));
        let unsupported = RefusedOperations::of_rename(b"/drop/a", StatusCode::OP_UNSUPPORTED);
        assert!(unsupported.in_place_at(b"/other/a"));
        let temporary = RefusedOperations::of_temporary(b"/drop/a");
        assert!(temporary.in_place_at(b"/drop/b") && !temporary.in_place_at(b"/other/a"));
    }
}
