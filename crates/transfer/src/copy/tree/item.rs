//! Entry of the source whose directory at the target may not exist yet.

use super::CopyDirectoryId;
use crate::walk::EntryInfo;

/// File or symlink whose directory may not exist yet.
#[derive(Clone, Debug)]
pub(in crate::copy) struct ItemAwaitingDirectory {
    pub entry: EntryInfo,
    pub target: Vec<u8>,
    pub dir: Option<CopyDirectoryId>,
    pub symlink: bool,
    pub points_to: Option<Vec<u8>>,
}

impl ItemAwaitingDirectory {
    /// Item of the directory `dir`; `None` for one that is itself a source.
    pub(in crate::copy) fn new(
        entry: EntryInfo,
        target: Vec<u8>,
        dir: Option<CopyDirectoryId>,
        symlink: bool,
    ) -> Self {
        Self {
            entry,
            target,
            dir,
            symlink,
            points_to: None,
        }
    }
}
