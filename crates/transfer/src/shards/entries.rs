//! Entries of a shard, as a walk of the source would report them.

use std::cell::Cell;
use std::fs;
use std::rc::Rc;

use shard::Record;

use super::attributes::{change, of_record};
use super::check::Verdict;
use super::holding::ShardLease;
use super::records::Records;
use crate::disk::{identity, os_words};
use crate::walk::{DirId, Entry, WalkEntry, join, local_path};

/// Permissions that the owner has on a directory which workers fill; it gets its own ones at the end.
pub(super) const FILLABLE: u32 = 0o700;

/// Walks the files of a shard that are to be copied, and all its directories. A directory is
/// reported with permissions to fill it and without times, which other workers would change again.
pub(super) struct ShardWalk {
    records: Records,
    verdicts: std::vec::IntoIter<Verdict>,
    lease: Rc<ShardLease>,
    root: Vec<u8>,
    local: bool,
    /// Open directories with their paths.
    open: Vec<(DirId, Vec<u8>)>,
    next_dir: u64,
    changed: Rc<Cell<u64>>,
    over: bool,
}

impl ShardWalk {
    /// Returns a walk of the source at `root`, which is on this machine if `local`. Entries that
    /// have changed since the plan are counted in `changed`.
    pub(super) fn new(
        records: Records,
        verdicts: Vec<Verdict>,
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

    fn enter(&mut self, record: &Record) -> Option<WalkEntry> {
        let (name, mut attributes) = of_record(record)?;
        let (parent, path) = match self.open.last() {
            Some((dir, above)) => (Some(*dir), join(above, name)),
            None => (None, self.root.clone()),
        };
        attributes.mode = attributes.mode.map(|mode| mode | FILLABLE);
        (attributes.times, attributes.nanoseconds) = (None, None);
        let id = DirId(self.next_dir);
        self.next_dir += 1;
        self.open.push((id, path.clone()));
        let name = name.to_vec();
        let at = Entry {
            parent,
            name,
            path,
            attributes,
            identity: None,
        };
        Some(WalkEntry::Directory { id, at })
    }

    fn item(&mut self, record: &Record) -> Option<WalkEntry> {
        let verdict = self.verdicts.next().unwrap_or(Verdict::Copy);
        if verdict == Verdict::Unchanged {
            return None;
        }
        let (name, mut attributes) = of_record(record)?;
        let (parent, above) = self.open.last()?;
        let path = join(above, name);
        if let Verdict::Changed(what) = verdict {
            return Some(self.changed(path, &what));
        }
        let mut known = None;
        if self.local {
            let meta = match fs::symlink_metadata(local_path(&path)) {
                Ok(meta) => meta,
                Err(error) => return Some(self.changed(path, &os_words(&error))),
            };
            attributes = crate::disk::attributes(&meta);
            if let Some(what) = change(record, &attributes) {
                return Some(self.changed(path, &what));
            }
            known = meta.is_file().then(|| identity(&meta));
        }
        let entry = Entry {
            parent: Some(*parent),
            name: name.to_vec(),
            path,
            attributes,
            identity: known,
        };
        Some(match record {
            Record::Symlink(..) => WalkEntry::Symlink(entry),
            _ => WalkEntry::File(entry),
        })
    }

    fn changed(&self, path: Vec<u8>, what: &str) -> WalkEntry {
        self.changed.set(self.changed.get() + 1);
        let what = format!("changed since the plan was made ({what}): not copied; make a new plan");
        WalkEntry::Problem { path, what }
    }
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
                Record::Enter(..) => self.enter(&record),
                Record::File(..) | Record::Symlink(..) => self.item(&record),
                Record::Leave => self.open.pop().map(|(dir, _)| WalkEntry::Listed(dir)),
                Record::End => {
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
