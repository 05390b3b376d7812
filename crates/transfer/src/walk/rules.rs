//! Entries and rules as filters see them.

use std::fs::File;
use std::io::Read;

use rustix::fs::{CWD, Mode, OFlags, openat};
use schedule::{Attributes, EntryKind};
use sync::{Filter, ModifiedTime, TreeEntry, TreeEntryKind};

use super::local_path;

const PERMISSIONS: u32 = 0o7777;
/// Longest `.gitignore` that is read, in bytes.
const MOST_RULES: u64 = 1 << 20;

/// Returns the attributes of an entry that filters and comparisons read.
pub(crate) fn compared_entry(attributes: &Attributes) -> TreeEntry {
    let kind = match attributes.kind() {
        EntryKind::File => TreeEntryKind::File,
        EntryKind::Directory => TreeEntryKind::Directory,
        EntryKind::Symlink => TreeEntryKind::Symlink,
        EntryKind::Other => TreeEntryKind::Other,
    };
    let modified = attributes.times.map(|(_, modified)| ModifiedTime {
        seconds: i64::from(modified),
        nanoseconds: attributes.nanoseconds.map(|(_, modified)| modified),
    });
    let mode = attributes.mode.map(|mode| mode & PERMISSIONS);
    TreeEntry {
        kind,
        size: match kind {
            TreeEntryKind::File => attributes.size.unwrap_or(0),
            _ => 0,
        },
        modified,
        mode: mode.and_then(|mode| u16::try_from(mode).ok()),
        owner: attributes.owner,
        link: None,
    }
}

/// Adds the rules of the `.gitignore` file at `path`, if there is one, to those for the directory
/// `below` the root. A line that is no pattern is ignored, as git does.
pub(crate) fn nested_rules(filter: &mut Filter, below: &[u8], path: &[u8]) {
    let file = local_path(path);
    // A FIFO must not block the copy, and a symlink is not followed.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = openat(CWD, &file, flags, Mode::empty()).map(File::from);
    let text = opened.ok().and_then(|file| {
        let is_file = file.metadata().is_ok_and(|meta| meta.is_file());
        let mut text = Vec::new();
        is_file
            .then_some(file)?
            .take(MOST_RULES)
            .read_to_end(&mut text)
            .ok()?;
        Some(text)
    });
    if let Some(text) = text {
        let _ = filter.add_nested(below, &text, &file);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::fs::{FileType, mknodat};

    use super::*;

    /// Regression test: a FIFO of this name blocked the copy for ever.
    #[test]
    fn a_fifo_named_gitignore_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".gitignore");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let (done, ended) = mpsc::channel();
        std::thread::spawn(move || {
            nested_rules(&mut Filter::default(), b"", path.as_os_str().as_bytes());
            let _ = done.send(());
        });
        ended.recv_timeout(Duration::from_secs(20)).unwrap();
    }
}
