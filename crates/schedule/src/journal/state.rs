use std::collections::BTreeMap;

use super::record::{Record, SourceId};
use crate::scheduler::ByteRanges;
use crate::{Attributes, Keep, Left};

/// What a journal says.
#[derive(Clone, Debug, Default)]
pub struct State {
    identity: Vec<u8>,
    onto: Option<bool>,
    boot: Vec<u8>,
    clock: u64,
    /// Files by the id of their records: begun, and neither forgotten nor replaced when done.
    entries: BTreeMap<u64, Entry>,
    /// The latest of those that go to a place.
    targets: BTreeMap<Vec<u8>, u64>,
    /// Files done that only the receiving machine's memory may have.
    soft: Vec<u64>,
    next: u64,
}

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its final name.
    pub target: Vec<u8>,
    /// What was copied.
    pub source: SourceId,
    /// Of its temporary's name.
    pub tag: u64,
    /// Where its temporary was, if that was told.
    pub temp: Option<Vec<u8>>,
    /// The temporary's modification time when the last ranges were written down; 0 if unknown.
    pub mtime: u64,
    /// It has its name.
    pub done: Option<Done>,
    durable: ByteRanges,
    /// What the receiving machine had, on its disk or in its memory.
    there: ByteRanges,
}

/// A file that has its final name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Bytes.
    pub size: u64,
    /// Its modification time in nanoseconds; 0 if it was not asked for.
    pub mtime: u64,
}

/// How long after the last word of a receiving machine its files may still have been written by
/// the run that was interrupted: what had been sent drains, and a sync may take its time.
const DRAINS: u64 = 120 * SECOND;
/// How long after a look at the receiving machine's clock files may still have got their names.
const UNLOOKED: u64 = 10 * SECOND;
const SECOND: u64 = 1_000_000_000;

/// What stands at the receiving end now: size in bytes, modification time in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExistingFile {
    /// Bytes.
    pub size: u64,
    /// 0 if it is not told.
    pub mtime: u64,
}

impl Done {
    /// Whether `seen` is still what the copy has made. Times are compared in whole seconds, which
    /// is what SFTP carries. `clock` is [`State::clock`]: what was changed after the run ended is
    /// later than that.
    pub fn stands(&self, seen: ExistingFile, clock: u64) -> bool {
        self.size == seen.size
            && match (self.mtime / SECOND, seen.mtime / SECOND) {
                (0, at) => at <= clock.saturating_add(UNLOOKED) / SECOND,
                (then, now) => then == now,
            }
    }
}

impl Left {
    /// Whether a source that was opened is what these bytes were read from.
    pub fn is_of(&self, opened: &Attributes) -> bool {
        let (_, part) = opened.nanoseconds.unwrap_or_default();
        let time = |seconds: u32| u64::from(seconds) * SECOND + u64::from(part);
        let mtime = opened.times.map(|(_, modified)| time(modified));
        self.source == (0, 0) || (opened.size, mtime) == (Some(self.source.0), Some(self.source.1))
    }

    /// Whether a temporary that is `seen` so may be what the copy has left.
    pub fn may_go_on(&self, seen: ExistingFile) -> bool {
        let end = self.ranges.iter().map(|(_, to)| *to).max().unwrap_or(0);
        let times = match (self.mtime / SECOND, seen.mtime / SECOND) {
            (0, _) | (_, 0) => true,
            (then, now) => then <= now && now <= then.saturating_add(DRAINS / SECOND),
        };
        seen.size >= end && times
    }
}

impl Entry {
    /// Whether the temporary, which is `seen` so, may be what this copy has left: as long as what
    /// is proven of it, and not changed long after or before that was written down.
    pub fn may_go_on(&self, seen: ExistingFile) -> bool {
        self.left().may_go_on(seen)
    }

    /// The same for whoever copies it.
    pub fn left(&self) -> Left {
        Left {
            ranges: self.proven(),
            mtime: self.mtime,
            source: (self.source.size, self.source.mtime),
        }
    }

    /// All of it was there, so that it may have got its name without anybody having written that
    /// down.
    pub fn is_whole(&self) -> bool {
        self.mtime > 0 && self.source.size > 0 && self.there.contains(0, self.source.size)
    }

    /// Whether what stands under the final name, `seen` so, is its temporary, which has gone: as
    /// long as that, and of the same time, or of the source's where the copy keeps that.
    pub fn is_named(&self, seen: ExistingFile, keeps_times: bool) -> bool {
        let time = match keeps_times {
            true => seen.mtime / SECOND == self.source.mtime / SECOND,
            false => seen.mtime > 0 && self.may_go_on(seen),
        };
        self.is_whole() && seen.size == self.source.size && time
    }

    /// Bytes of the temporary that need not be sent again.
    pub fn proven(&self) -> Vec<(u64, u64)> {
        self.there.iter().collect()
    }
}

/// Whether `path` is `target`, or leads below it by names alone.
fn is_within(target: &[u8], path: &[u8]) -> bool {
    let Some(below) = path.strip_prefix(target) else {
        return false;
    };
    if below.is_empty() {
        return true;
    }
    let below = match target.last() {
        // The working directory, or one that is written with its slash.
        None | Some(b'/') => below,
        Some(_) => match below.strip_prefix(b"/") {
            Some(below) => below,
            None => return false,
        },
    };
    let is_name = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.contains(&0);
    below.split(|b| *b == b'/').all(is_name)
}

impl State {
    /// Which copy it is; empty if nothing was written down.
    pub fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// How the first run found the target: sources go into it (true), or to its name.
    pub fn onto(&self) -> Option<bool> {
        self.onto
    }

    /// Drops all that is not about the copy to `target`, as the command at hand names it: files
    /// that are neither that name nor below it, and names of temporaries that no run gives. A
    /// journal decides nothing about other files, whoever has written it.
    pub fn confine(&mut self, target: &[u8]) {
        self.entries
            .retain(|_, entry| is_within(target, &entry.target));
        for entry in self.entries.values_mut() {
            let tag = entry.tag;
            entry.temp.take_if(|temp| !Keep::may_be_named(temp, tag));
        }
        let entries = &self.entries;
        self.targets.retain(|_, id| entries.contains_key(id));
    }

    /// The latest time that the receiving machine's clock is known to have shown, nanoseconds.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// The first id that no record has.
    pub fn next_id(&self) -> u64 {
        self.next
    }

    /// What is known of the file that goes to `target`.
    pub fn file(&self, target: &[u8]) -> Option<(u64, &Entry)> {
        let id = self.targets.get(target)?;
        self.entries.get(id).map(|entry| (*id, entry))
    }

    /// Takes it out: somebody looks after it now.
    pub fn take(&mut self, id: u64) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        if self.targets.get(&entry.target) == Some(&id) {
            self.targets.remove(&entry.target);
        }
        Some(entry)
    }

    /// Files that were begun and are not done: their temporaries may lie about.
    pub fn unfinished(&self) -> impl Iterator<Item = (u64, &Entry)> {
        let begun = self.entries.iter().filter(|(_, e)| e.done.is_none());
        begun.map(|(id, entry)| (*id, entry))
    }

    /// Files done.
    pub fn done(&self) -> usize {
        self.entries.values().filter(|e| e.done.is_some()).count()
    }

    /// Files done that only the receiving machine's memory may have.
    pub fn soft(&self) -> usize {
        self.soft.len()
    }

    /// The final names of those, but for what is not believed to be done any more.
    pub fn soft_files(&self) -> impl Iterator<Item = &[u8]> {
        let entries = self.soft.iter().filter_map(|id| self.entries.get(id));
        entries.map(|entry| entry.target.as_slice())
    }

    /// Takes one more record; false if it cannot follow those before.
    pub fn apply(&mut self, record: Record) -> bool {
        match record {
            Record::Copy { identity } => self.identity = identity,
            Record::Run { boot } => self.started(boot),
            Record::Boot { boot } => self.learned(boot),
            Record::Onto { into } => self.onto = Some(into),
            Record::Begun {
                id,
                target,
                source,
                tag,
            } => {
                if id < self.next || id == u64::MAX {
                    return false;
                }
                self.next = id + 1;
                self.begun(id, target, source, tag);
            }
            Record::Temp { id, path } => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.temp = Some(path);
                }
            }
            Record::Ranges {
                id,
                durable,
                mtime,
                ranges,
            } => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.mtime = mtime;
                    for (from, to) in ranges {
                        entry.there.insert(from, to);
                        if durable {
                            entry.durable.insert(from, to);
                        }
                    }
                }
                self.clock = self.clock.max(mtime);
            }
            Record::Done {
                id,
                durable,
                size,
                mtime,
            } => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.done = Some(Done { size, mtime });
                    entry.temp = None;
                    (entry.durable, entry.there) = Default::default();
                    if !durable {
                        self.soft.push(id);
                    }
                }
            }
            Record::Forgotten { id } => {
                self.take(id);
            }
            Record::Clock { mtime } => self.clock = self.clock.max(mtime),
            Record::Durable { files } => {
                let files = usize::try_from(files).unwrap_or(usize::MAX);
                self.soft.drain(..files.min(self.soft.len()));
            }
            Record::Synced { .. } => {}
        }
        true
    }

    /// The receiving machine's kernel runs since `boot`. If that is another start than before, or
    /// nobody knows, what was in its memory only may be lost.
    pub fn started(&mut self, boot: Vec<u8>) {
        let same = !boot.is_empty() && boot == self.boot;
        self.boot = boot;
        if same {
            return;
        }
        for id in std::mem::take(&mut self.soft) {
            if self.entries.get(&id).is_some_and(|e| e.done.is_some()) {
                self.take(id);
            }
        }
        for entry in self.entries.values_mut() {
            entry.there = entry.durable.clone();
        }
    }

    /// The run under way has found out since when the receiving machine's kernel runs.
    fn learned(&mut self, boot: Vec<u8>) {
        match self.boot.is_empty() {
            true => self.boot = boot,
            // Whoever knew another has missed a start.
            false => self.started(boot),
        }
    }

    fn begun(&mut self, id: u64, target: Vec<u8>, source: SourceId, tag: u64) {
        if let Some(old) = self.targets.insert(target.clone(), id)
            && self.entries.get(&old).is_some_and(|e| e.done.is_some())
        {
            self.entries.remove(&old);
        }
        let entry = Entry {
            target,
            source,
            tag,
            temp: None,
            mtime: 0,
            done: None,
            durable: ByteRanges::default(),
            there: ByteRanges::default(),
        };
        self.entries.insert(id, entry);
    }
}
