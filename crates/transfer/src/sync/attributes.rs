//! Conversion between the attributes of a listing and those that a sync compares.

use schedule::Attributes;
use sync::{TreeEntry, TreeEntryKind};

pub(crate) use crate::walk::compared_entry as entry;

/// Returns the attributes with which an entry is copied. Its access time is not kept in the tree
/// and becomes the modification time.
pub(crate) fn attributes(entry: &TreeEntry) -> Attributes {
    let kind = match entry.kind {
        TreeEntryKind::File => 0o100_000,
        TreeEntryKind::Directory => 0o040_000,
        TreeEntryKind::Symlink => 0o120_000,
        TreeEntryKind::Other | TreeEntryKind::Temporary => 0,
    };
    let times = entry.modified.and_then(|time| {
        let seconds = u32::try_from(time.seconds).ok()?;
        Some((seconds, seconds))
    });
    let nanoseconds = entry.modified.and_then(|time| time.nanoseconds);
    Attributes {
        size: (entry.kind == TreeEntryKind::File).then_some(entry.size),
        mode: entry.mode.map(|mode| kind | u32::from(mode)),
        owner: entry.owner,
        times,
        nanoseconds: nanoseconds.map(|n| (n, n)),
        link: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_the_tree() {
        let before = Attributes {
            size: Some(5),
            mode: Some(0o100_640),
            owner: Some((7, 8)),
            times: Some((9, 9)),
            nanoseconds: Some((3, 3)),
            link: None,
        };
        assert_eq!(attributes(&entry(&before)), before);
    }
}
