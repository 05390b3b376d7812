//! Identifies a directory of a copy.

use crate::copy::source::WalkId;
use crate::walk::WalkDirectoryId;

/// Directory of the copy: its walk and its number in that walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::copy) struct CopyDirectoryId {
    walk: WalkId,
    dir: WalkDirectoryId,
}

impl CopyDirectoryId {
    /// Key of a directory of a walk.
    pub(in crate::copy) fn new(walk: WalkId, dir: WalkDirectoryId) -> Self {
        Self { walk, dir }
    }

    /// Walk that has found the directory.
    pub(in crate::copy) fn walk(self) -> WalkId {
        self.walk
    }

    /// Number of the directory in its walk.
    pub(in crate::copy) fn dir(self) -> WalkDirectoryId {
        self.dir
    }
}
