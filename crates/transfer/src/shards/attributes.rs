//! Attributes of planned entries, and their comparison with the entries found at both ends.

use schedule::{Attributes, EntryKind};
use shard::ShardFileRecord;

const TYPE_FILE: u32 = 0o100_000;
const TYPE_DIRECTORY: u32 = 0o040_000;
const TYPE_SYMLINK: u32 = 0o120_000;

/// Returns the name of a planned entry and the attributes with which it is copied; `None` for the
/// end of a directory or of the shard. A plan has no access times: the modification time serves.
pub(super) fn of_record(record: &ShardFileRecord) -> Option<(&[u8], Attributes)> {
    let (name, size, planned, kind) = match record {
        ShardFileRecord::Enter(name, planned) => (name, None, planned, TYPE_DIRECTORY),
        ShardFileRecord::File(name, size, planned) => (name, Some(*size), planned, TYPE_FILE),
        ShardFileRecord::Range(name, range, planned) => {
            (name, Some(range.size), planned, TYPE_FILE)
        }
        ShardFileRecord::Symlink(name, planned) => (name, None, planned, TYPE_SYMLINK),
        ShardFileRecord::Leave | ShardFileRecord::End => return None,
    };
    let attributes = Attributes {
        size,
        mode: planned.mode.map(|mode| kind | u32::from(mode)),
        owner: planned.owner,
        times: planned.modified.map(|time| (time, time)),
        nanoseconds: planned.nanoseconds.map(|n| (n, n)),
        link: None,
    };
    Some((name, attributes))
}

/// Returns the attributes that the plan records of a listed entry.
pub(super) fn planned(entry: &sync::TreeEntry) -> shard::PlannedAttributes {
    shard::PlannedAttributes {
        mode: entry.mode.map(|mode| mode & 0o7777),
        owner: entry.owner,
        modified: entry
            .modified
            .and_then(|time| u32::try_from(time.seconds).ok()),
        nanoseconds: entry
            .modified
            .and_then(|time| time.nanoseconds)
            .filter(|n| *n < 1_000_000_000),
    }
}

/// Returns how an entry of the source differs from the plan; `None` if it does not.
pub(super) fn change(record: &ShardFileRecord, now: &Attributes) -> Option<String> {
    let (kind, word) = kind_of(record);
    if now.kind() != kind {
        return Some(format!("it is no longer a {word}"));
    }
    let (_, planned) = of_record(record)?;
    let modified = |of: &Attributes| of.times.map(|(_, modified)| modified);
    let nanoseconds = |of: &Attributes| of.nanoseconds.map(|(_, modified)| modified);
    let differs = |a: Option<u32>, b: Option<u32>| a.is_some() && b.is_some() && a != b;
    let file = of_file(record);
    match file {
        Some((size, _)) if now.size != Some(size) => Some(format!(
            "its size was {size} bytes and is {} now",
            now.size.unwrap_or_default()
        )),
        Some(_)
            if differs(modified(&planned), modified(now))
                || differs(nanoseconds(&planned), nanoseconds(now)) =>
        {
            Some("it was modified".to_owned())
        }
        _ => None,
    }
}

/// Returns how a file of the target differs from the plan; `None` if it does not. A target may keep
/// whole seconds only.
pub(super) fn difference(record: &ShardFileRecord, found: &Attributes) -> Option<String> {
    let (kind, word) = kind_of(record);
    if found.kind() != kind {
        return Some(format!("is not a {word}"));
    }
    let (size, planned) = of_file(record)?;
    if found.size != Some(size) {
        let has = found.size.unwrap_or_default();
        return Some(format!("has {has} bytes, but the plan says {size}"));
    }
    match is_planned_time(planned, found) {
        true => None,
        false => Some("its modification time differs from the plan's".to_owned()),
    }
}

/// Returns the size of a regular file, whole or in ranges, and its attributes.
pub(super) fn of_file(record: &ShardFileRecord) -> Option<(u64, &shard::PlannedAttributes)> {
    match record {
        ShardFileRecord::File(_, size, planned) => Some((*size, planned)),
        ShardFileRecord::Range(_, range, planned) => Some((range.size, planned)),
        _ => None,
    }
}

/// Returns true if the modification time is that of the plan, in the precision that the target
/// keeps.
pub(super) fn is_planned_time(planned: &shard::PlannedAttributes, found: &Attributes) -> bool {
    let modified = found.times.map(|(_, modified)| modified);
    let fraction = found.nanoseconds.map(|(_, modified)| modified);
    let fraction = fraction.filter(|n| *n != 0);
    planned.modified.is_some()
        && planned.modified == modified
        && (planned.nanoseconds.is_none() || fraction.is_none() || planned.nanoseconds == fraction)
}

fn kind_of(record: &ShardFileRecord) -> (EntryKind, &'static str) {
    match record {
        ShardFileRecord::File(..) | ShardFileRecord::Range(..) => (EntryKind::File, "regular file"),
        ShardFileRecord::Symlink(..) => (EntryKind::Symlink, "symbolic link"),
        ShardFileRecord::Enter(..) | ShardFileRecord::Leave | ShardFileRecord::End => {
            (EntryKind::Directory, "directory")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(nanoseconds: Option<u32>) -> ShardFileRecord {
        let attributes = shard::PlannedAttributes {
            modified: Some(100),
            nanoseconds,
            ..shard::PlannedAttributes::default()
        };
        ShardFileRecord::File(b"f".to_vec(), 5, attributes)
    }

    fn found(size: u64, time: u32, nanoseconds: Option<u32>) -> Attributes {
        Attributes {
            size: Some(size),
            mode: Some(0o100_644),
            times: Some((1, time)),
            nanoseconds: nanoseconds.map(|n| (0, n)),
            ..Attributes::default()
        }
    }

    #[test]
    fn a_target_of_whole_seconds_has_the_planned_time() {
        for (planned, there, equal) in [
            (Some(7), Some(7), true),
            (Some(7), Some(0), true),
            (Some(7), None, true),
            (None, Some(7), true),
            (Some(7), Some(8), false),
        ] {
            let difference = difference(&file(planned), &found(5, 100, there));
            assert_eq!(difference.is_none(), equal, "{planned:?} {there:?}");
        }
        assert!(difference(&file(None), &found(5, 101, None)).is_some());
        assert!(difference(&file(None), &found(6, 100, None)).is_some());
    }

    #[test]
    fn a_source_that_was_written_within_the_second_has_changed() {
        assert_eq!(change(&file(Some(7)), &found(5, 100, Some(7))), None);
        let why = change(&file(Some(7)), &found(5, 100, Some(8)));
        assert_eq!(why.as_deref(), Some("it was modified"));
        let why = change(&file(Some(7)), &found(6, 100, Some(7)));
        assert_eq!(why.as_deref(), Some("its size was 5 bytes and is 6 now"));
        let directory = Attributes {
            mode: Some(0o040_755),
            ..found(5, 100, None)
        };
        let why = change(&file(None), &directory);
        assert_eq!(why.as_deref(), Some("it is no longer a regular file"));
    }
}
