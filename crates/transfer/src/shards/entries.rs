//! Entries of a shard, as a walk of the source would report them.

use std::cell::Cell;
use std::fs;
use std::rc::Rc;

use shard::ShardFileRecord;

use super::PlanError;
use super::attributes::{change, of_record};
use super::check::EntryVerdict;
use super::holding::ShardLease;
use super::records::ShardRecordReader;
use crate::disk::{identity, os_words};
use crate::walk::{EntryInfo, WalkDirectoryId, WalkEntry, join, local_path};

/// Permissions that the owner has on a directory which workers fill; it gets its own ones at the
/// end.
pub(super) const FILLABLE: u32 = 0o700;

/// Source of the records of a walk: a plan's file, or records that were chosen before.
pub(super) enum ShardRecordSource {
    /// Records of a plan's file.
    File(Box<ShardRecordReader>),
    /// Records that were chosen before, without the end.
    Chosen(std::vec::IntoIter<ShardFileRecord>),
}

impl ShardRecordSource {
    fn next(&mut self) -> Result<ShardFileRecord, PlanError> {
        match self {
            Self::File(reader) => reader.next(),
            Self::Chosen(records) => Ok(records.next().unwrap_or(ShardFileRecord::End)),
        }
    }
}

/// Walks the files of a shard that are to be copied, and all its directories. A directory is
/// reported with permissions to fill it and without times, which other workers would change again.
pub(super) struct ShardWalk {
    records: ShardRecordSource,
    verdicts: std::vec::IntoIter<EntryVerdict>,
    lease: Rc<ShardLease>,
    root: Vec<u8>,
    local: bool,
    /// Open directories with their paths.
    open: Vec<(WalkDirectoryId, Vec<u8>)>,
    next_dir: u64,
    changed: Rc<Cell<u64>>,
    over: bool,
}

impl ShardWalk {
    /// Returns a walk of the source at `root`, which is on this machine if `local`. Entries that
    /// have changed since the plan are counted in `changed`; those that are missing are not, since
    /// another machine may have them.
    pub(super) fn new(
        records: ShardRecordSource,
        verdicts: Vec<EntryVerdict>,
        lease: Rc<ShardLease>,
        (root, local): (Vec<u8>, bool),
        changed: Rc<Cell<u64>>,
    ) -> Self {
        Self {
            records,
            verdicts: verdicts.into_iter(),
            lease,
            root,
            local,
            open: Vec::new(),
            next_dir: 0,
            changed,
            over: false,
        }
    }

    fn enter(&mut self, record: &ShardFileRecord) -> Option<WalkEntry> {
        let (name, mut attributes) = of_record(record)?;
        let (parent, path) = match self.open.last() {
            Some((dir, above)) => (Some(*dir), join(above, name)),
            None => (None, self.root.clone()),
        };
        attributes.mode = attributes.mode.map(|mode| mode | FILLABLE);
        (attributes.times, attributes.nanoseconds) = (None, None);
        let id = WalkDirectoryId(self.next_dir);
        self.next_dir += 1;
        self.open.push((id, path.clone()));
        let name = name.to_vec();
        let at = EntryInfo {
            parent,
            name,
            path,
            attributes,
            identity: None,
        };
        let existing = None;
        Some(WalkEntry::Directory { id, at, existing })
    }

    fn item(&mut self, record: &ShardFileRecord) -> Option<WalkEntry> {
        let verdict = self.verdicts.next().unwrap_or(EntryVerdict::Copy);
        if matches!(verdict, EntryVerdict::Unchanged | EntryVerdict::Reported) {
            return None;
        }
        let (name, mut attributes) = of_record(record)?;
        let (parent, above) = self.open.last()?;
        let path = join(above, name);
        match verdict {
            EntryVerdict::Changed(what) => return Some(self.changed(path, &what)),
            EntryVerdict::Missing(what) => return Some(missing(path, &what)),
            EntryVerdict::Copy | EntryVerdict::Unchanged | EntryVerdict::Reported => {}
        }
        let mut known = None;
        if self.local {
            let meta = match fs::symlink_metadata(local_path(&path)) {
                Ok(meta) => meta,
                Err(error) => return Some(missing(path, &os_words(&error))),
            };
            attributes = crate::disk::attributes(&meta);
            if let Some(what) = change(record, &attributes) {
                return Some(self.changed(path, &what));
            }
            known = meta.is_file().then(|| identity(&meta));
        }
        let entry = EntryInfo {
            parent: Some(*parent),
            name: name.to_vec(),
            path,
            attributes,
            identity: known,
        };
        Some(match record {
            ShardFileRecord::Symlink(..) => WalkEntry::Symlink(entry),
            _ => WalkEntry::File(entry),
        })
    }

    fn changed(&self, path: Vec<u8>, what: &str) -> WalkEntry {
        self.changed.set(self.changed.get() + 1);
        let what = changed_text(what);
        WalkEntry::Problem { path, what }
    }
}

fn missing(path: Vec<u8>, why: &str) -> WalkEntry {
    let what = missing_text(why);
    WalkEntry::Problem { path, what }
}

/// Failure of an entry that this machine cannot look up. Another one may have it.
pub(super) fn missing_text(why: &str) -> String {
    format!(
        "not found by this machine ({why}): not copied; run the shard again where the source can be \
         read, or make a new plan if it was removed"
    )
}

/// Failure of an entry that differs from the plan in this way.
pub(super) fn changed_text(what: &str) -> String {
    format!(
        "changed since the plan was made ({what}): not copied: make a new plan in another folder"
    )
}

impl Iterator for ShardWalk {
    type Item = WalkEntry;

    fn next(&mut self) -> Option<WalkEntry> {
        // An expired lease cancels the run, which drops the walk.
        while !self.over && self.lease.is_valid() {
            let record = match self.records.next() {
                Ok(record) => record,
                Err(error) => {
                    self.over = true;
                    let path = self.root.clone();
                    let what = error.to_string();
                    return Some(WalkEntry::Problem { path, what });
                }
            };
            let found = match &record {
                ShardFileRecord::Enter(..) => self.enter(&record),
                ShardFileRecord::File(..)
                | ShardFileRecord::Range(..)
                | ShardFileRecord::Symlink(..) => self.item(&record),
                ShardFileRecord::Leave => self.open.pop().map(|(dir, _)| WalkEntry::Listed(dir)),
                ShardFileRecord::End => {
                    self.over = true;
                    None
                }
            };
            if found.is_some() {
                return found;
            }
        }
        // Directories that a damaged plan left open are closed, so that the copy ends.
        self.open.pop().map(|(dir, _)| WalkEntry::Listed(dir))
    }
}
