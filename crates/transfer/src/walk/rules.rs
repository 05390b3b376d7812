//! Entries and rules as filters see them.

use std::fs::{self, File};
use std::io::Read;

use schedule::{Attributes, EntryKind};
use sync::{Entry, Filter, Kind, Time};

use super::local_path;

const PERMISSIONS: u32 = 0o7777;
/// Longest `.gitignore` that is read, in bytes.
const MOST_RULES: u64 = 1 << 20;

/// Returns the attributes of an entry that filters and comparisons read.
pub(crate) fn compared_entry(attributes: &Attributes) -> Entry {
    let kind = match attributes.kind() {
        EntryKind::File => Kind::File,
        EntryKind::Directory => Kind::Directory,
        EntryKind::Symlink => Kind::Symlink,
        EntryKind::Other => Kind::Other,
    };
    let modified = attributes.times.map(|(_, modified)| Time {
        seconds: i64::from(modified),
        nanoseconds: attributes.nanoseconds.map(|(_, modified)| modified),
    });
    let mode = attributes.mode.map(|mode| mode & PERMISSIONS);
    Entry {
        kind,
        size: match kind {
            Kind::File => attributes.size.unwrap_or(0),
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
    let is_file = fs::symlink_metadata(&file).is_ok_and(|meta| meta.is_file());
    let text = File::open(&file).ok().filter(|_| is_file).and_then(|file| {
        let mut text = Vec::new();
        file.take(MOST_RULES).read_to_end(&mut text).ok()?;
        Some(text)
    });
    if let Some(text) = text {
        let _ = filter.add_nested(below, &text, &file);
    }
}
