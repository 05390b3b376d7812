//! Entries that a walk of a server has found and that nobody has taken yet.

use std::sync::Arc;

use schedule::Attributes;

use super::RemoteDirectory;
use crate::walk::{EntryInfo, WalkEntry, join};

/// Entry that waits to be taken.
#[derive(Debug)]
pub(super) enum FoundEntry {
    Whole(WalkEntry),
    Below(EntryBelow),
}

/// Entry of a directory without its path: a listing may have 100,000 entries below a path of 10 kB.
#[derive(Debug)]
pub(super) struct EntryBelow {
    pub dir: Arc<RemoteDirectory>,
    pub name: Vec<u8>,
    pub attributes: Attributes,
    pub kind: EntryBelowKind,
}

#[derive(Debug)]
pub(super) enum EntryBelowKind {
    File,
    Symlink,
    /// Socket, FIFO or device.
    Special,
    /// Entry that is not copied, with the reason.
    Problem(&'static str),
}

impl EntryBelow {
    /// Returns the entry, with its path below the directory's path `above`.
    pub(super) fn into_entry(self, above: &[u8]) -> WalkEntry {
        let path = join(above, &self.name);
        let entry = |path| EntryInfo {
            parent: Some(self.dir.id),
            name: self.name,
            path,
            attributes: self.attributes,
            identity: None,
        };
        match self.kind {
            EntryBelowKind::File => WalkEntry::File(entry(path)),
            EntryBelowKind::Symlink => WalkEntry::Symlink(entry(path)),
            EntryBelowKind::Special => WalkEntry::Special(path),
            EntryBelowKind::Problem(what) => WalkEntry::Problem {
                path,
                what: what.to_owned(),
            },
        }
    }
}
