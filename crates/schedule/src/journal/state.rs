use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::record::{JournalRecord, SourceFileStamp};
use crate::byte_ranges::ByteRanges;
use crate::{Attributes, PartialFile, ResumeData};

/// Contents of a journal, after all of its records.
#[derive(Clone, Debug, Default)]
pub struct JournalState {
    identity: Vec<u8>,
    onto: Option<bool>,
    boot: Vec<u8>,
    clock: u64,
    /// Files by the id of their records: those that were started, without failed and replaced ones.
    entries: BTreeMap<u64, JournalEntry>,
    /// Latest id for each final name.
    targets: BTreeMap<Vec<u8>, u64>,
    /// Directories that the copy has made in ones that were there before.
    directories: BTreeSet<Vec<u8>>,
    link_names: Option<u64>,
    /// Finished files that may exist only in the receiving machine's memory.
    soft: Vec<u64>,
    /// Number of files that the current run finished without asking for their time.
    untimed: u64,
    /// Files among them that no reading of the clock has followed: their position, and their id.
    unsettled: VecDeque<(u64, u64)>,
    next: u64,
    /// Bytes of memory that the entries may take; `None` without a bound.
    most: Option<usize>,
    weight: usize,
    left_out: u64,
}

/// State of one file in the journal: its temporary, and the ranges that are durable at the
/// receiving end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// Final name of the file.
    pub target: Vec<u8>,
    /// Identity of the source.
    pub source: SourceFileStamp,
    /// Tag of the temporary's name.
    pub tag: u64,
    /// Path of the temporary, if recorded.
    pub temp: Option<Vec<u8>>,
    /// Modification time of the temporary at the last recorded ranges, in nanoseconds since 1970; 0
    /// if unknown.
    pub mtime: u64,
    /// Set once the file has its final name.
    pub done: Option<CompletedFile>,
    durable: ByteRanges,
    /// Ranges that the receiving machine had, on disk or in memory.
    there: ByteRanges,
}

/// A file that has its final name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedFile {
    /// Size in bytes.
    pub size: u64,
    /// Modification time in nanoseconds since 1970; 0 if it was not asked for.
    pub mtime: u64,
    /// Latest modification time that the file can have if it was not asked for, in nanoseconds
    /// since 1970; 0 if nothing is known about it, and then the file is not believed.
    not_after: u64,
    /// The file may have been finished in the last second of its run, and is sent again then.
    is_in_last_second: bool,
    /// The file was synced before it got its final name.
    pub durable: bool,
}

/// Bytes of memory that an entry takes beyond its paths and ranges.
const ENTRY: usize = 400;
/// Bytes of memory that a directory takes beyond its path.
const DIRECTORY: usize = 64;
/// Bytes of memory that a range takes.
const RANGE: usize = 32;

/// Time in nanoseconds after the last record of a receiving machine during which the interrupted
/// run may still have written files: sent data drain, and a sync takes time.
const DRAINS: u64 = 120 * SECOND;
/// Size in bytes from which a file is believed although its modification time is in the second of
/// the last reading of the clock. Smaller files of that second are sent again, because a change
/// within the second leaves the same time.
const COSTLY: u64 = 16 << 20;
const SECOND: u64 = 1_000_000_000;

/// Size and modification time of a file that exists at the receiving end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExistingFile {
    /// Size in bytes.
    pub size: u64,
    /// Modification time in nanoseconds since 1970; 0 if the server does not send it.
    pub mtime: u64,
}

impl CompletedFile {
    /// Returns true if `seen` is still the file that the copy made. A recorded time must be equal:
    /// times of SFTP are whole seconds in both, those of local files nanoseconds. A file whose time
    /// was not asked for must have one, and it must not be later than the reading of the clock
    /// that followed the file.
    pub fn stands(&self, seen: ExistingFile) -> bool {
        let time = match self.mtime {
            0 => seen.mtime > 0 && seen.mtime / SECOND <= self.not_after / SECOND,
            mtime => mtime == seen.mtime,
        };
        self.size == seen.size && time
    }

    /// Returns true if the file counts as complete as long as nobody changes it. One that was
    /// finished just before its run ended may have to be sent again.
    pub fn is_proven(&self) -> bool {
        self.mtime > 0 || self.not_after > 0 && !self.is_in_last_second
    }
}

impl PartialFile {
    /// Returns true if an opened source is the one from which these bytes were read.
    pub fn is_of(&self, opened: &Attributes) -> bool {
        let (_, part) = opened.nanoseconds.unwrap_or_default();
        let time = |seconds: u32| u64::from(seconds) * SECOND + u64::from(part);
        let mtime = opened.times.map(|(_, modified)| time(modified));
        self.source == (0, 0) || (opened.size, mtime) == (Some(self.source.0), Some(self.source.1))
    }

    /// Returns true if `seen` may be the temporary that the copy left. A complete one may have the
    /// time of the source already, which is set before the rename.
    pub fn may_go_on(&self, seen: ExistingFile) -> bool {
        let end = self.ranges.iter().map(|(_, to)| *to).max().unwrap_or(0);
        let times = match (self.mtime / SECOND, seen.mtime / SECOND) {
            (0, _) | (_, 0) => true,
            (then, now) => then <= now && now <= then.saturating_add(DRAINS / SECOND),
        };
        let (size, modified) = self.source;
        let is_complete = end == size && seen.size == size && size > 0;
        let is_set = is_complete && seen.mtime / SECOND == modified / SECOND;
        seen.size >= end && (times || is_set)
    }
}

impl JournalEntry {
    /// Returns about the bytes of memory that the entry takes.
    fn weight(&self) -> usize {
        let temp = self.temp.as_ref().map_or(0, Vec::len);
        let ranges = self.durable.count() + self.there.count();
        // The final name is also a key.
        ENTRY + 2 * self.target.len() + temp + RANGE * ranges
    }

    /// Returns true if `seen` may be the temporary that this copy left: at least as long as its
    /// good ranges, and modified neither before nor long after they were recorded.
    pub fn may_go_on(&self, seen: ExistingFile) -> bool {
        self.left().may_go_on(seen)
    }

    /// Returns the ranges and times from which a copy resumes.
    pub fn left(&self) -> PartialFile {
        PartialFile {
            ranges: self.proven(),
            mtime: self.mtime,
            source: (self.source.size, self.source.mtime),
        }
    }

    /// Returns true if the receiving end had all bytes, so that the file may have been renamed
    /// without a record of it.
    pub fn is_whole(&self) -> bool {
        self.mtime > 0 && self.source.size > 0 && self.there.contains(0, self.source.size)
    }

    /// Returns true if `seen`, under the final name, is this file's renamed temporary: of the
    /// source's size, and with the time of the last recorded ranges, or with the source's time if
    /// the copy keeps times.
    pub fn is_named(&self, seen: ExistingFile, keeps_times: bool) -> bool {
        let time = match keeps_times {
            true => seen.mtime / SECOND == self.source.mtime / SECOND,
            false => seen.mtime == self.mtime,
        };
        self.is_whole() && seen.size == self.source.size && time
    }

    /// Returns the ranges of the temporary that need not be sent again.
    pub fn proven(&self) -> Vec<(u64, u64)> {
        self.there.iter().collect()
    }
}

/// Returns true if `path` is `target` or lies below it without any `..`.
fn is_within(target: &[u8], path: &[u8]) -> bool {
    let Some(below) = path.strip_prefix(target) else {
        return false;
    };
    if below.is_empty() {
        return true;
    }
    let below = match target.last() {
        // The target is the working directory or ends with a slash.
        None | Some(b'/') => below,
        Some(_) => match below.strip_prefix(b"/") {
            Some(below) => below,
            None => return false,
        },
    };
    let is_name = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.contains(&0);
    below.split(|b| *b == b'/').all(is_name)
}

impl JournalState {
    /// Creates an empty state whose entries take at most about `most` bytes of memory. Further
    /// files and ranges are left out, and so are copied again. Paths in the journal are compressed,
    /// so the length of the file is no bound.
    pub fn bounded(most: usize) -> Self {
        Self {
            most: Some(most),
            ..Self::default()
        }
    }

    /// Returns the number of files and ranges that were left out because of the bound.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns true if the bound leaves room for `more` bytes; otherwise counts something that is
    /// left out.
    fn has_room(&mut self, more: usize) -> bool {
        let all = self.weight.saturating_add(more);
        let room = self.most.is_none_or(|most| all <= most);
        self.left_out += u64::from(!room);
        room
    }

    fn weigh(&mut self) {
        let entries: usize = self.entries.values().map(JournalEntry::weight).sum();
        let directories = self.directories.iter().map(|path| DIRECTORY + path.len());
        self.weight = entries + directories.sum::<usize>();
    }

    /// Changes an entry, and counts the memory that it takes.
    fn change(&mut self, id: u64, change: impl FnOnce(&mut JournalEntry)) {
        if let Some(entry) = self.entries.get_mut(&id) {
            let before = entry.weight();
            change(entry);
            self.weight = (self.weight + entry.weight()).saturating_sub(before);
        }
    }

    /// Returns the identity of the copy; empty if nothing was recorded.
    pub fn identity(&self) -> &[u8] {
        &self.identity
    }

    /// Returns true if the first run found a directory that receives the sources, false if the
    /// target is the name of the copy.
    pub fn into_directory(&self) -> Option<bool> {
        self.onto
    }

    /// Drops all entries outside `target` of the current command: files and directories that are
    /// neither that name nor below it, and temporaries with names that no run creates. A journal
    /// decides nothing about other files, no matter who wrote it.
    pub fn confine(&mut self, target: &[u8]) {
        self.entries
            .retain(|_, entry| is_within(target, &entry.target));
        for entry in self.entries.values_mut() {
            let tag = entry.tag;
            entry
                .temp
                .take_if(|temp| !ResumeData::may_be_named(temp, tag));
        }
        self.directories.retain(|path| is_within(target, path));
        let entries = &self.entries;
        self.targets.retain(|_, id| entries.contains_key(id));
        self.weigh();
    }

    /// Returns true if the copy has made the directory at `path`, or one above it, so that all below is
    /// the copy's.
    pub fn has_made(&self, path: &[u8]) -> bool {
        let is_above = |above: &[u8]| self.directories.contains(above);
        let mut ends = (0..path.len()).filter(|at| path.get(*at) == Some(&b'/'));
        is_above(path) || ends.any(|end| path.get(..end).is_some_and(is_above))
    }

    /// Forgets which directories the copy has made.
    pub fn forget_made(&mut self) {
        self.directories.clear();
        self.weigh();
    }

    /// Returns the number from which the temporaries of links get their names.
    pub fn link_names(&self) -> Option<u64> {
        self.link_names
    }

    /// Returns the latest known time of the receiving machine's clock, in nanoseconds since 1970.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Ends the earlier run, before another one continues its journal. Returns the record of that.
    pub fn seal(&mut self) -> JournalRecord {
        let mtime = self.clock;
        self.sealed(mtime);
        JournalRecord::Sealed { mtime }
    }

    /// Ends a run whose last reading of the clock is `mtime`. A change after the run can leave that
    /// second in a file, and no earlier one.
    fn sealed(&mut self, mtime: u64) {
        self.untimed = 0;
        self.unsettled.clear();
        let before = (mtime / SECOND).saturating_sub(1) * SECOND;
        for done in self.entries.values_mut().filter_map(|e| e.done.as_mut()) {
            if done.mtime == 0 && done.size < COSTLY && done.not_after > before {
                done.not_after = before;
                done.is_in_last_second = true;
            }
        }
    }

    /// Applies a reading of the clock that was requested after the first `files` of the files
    /// without a time were done.
    fn settled(&mut self, files: u64, mtime: u64) {
        self.clock = self.clock.max(mtime);
        while let Some((at, id)) = self.unsettled.front().copied()
            && at < files
        {
            self.unsettled.pop_front();
            let done = self.entries.get_mut(&id).and_then(|e| e.done.as_mut());
            if let Some(done) = done {
                done.not_after = mtime;
            }
        }
    }

    /// Returns the first unused id.
    pub fn next_id(&self) -> u64 {
        self.next
    }

    /// Returns id and entry of the file with the final name `target`.
    pub fn file(&self, target: &[u8]) -> Option<(u64, &JournalEntry)> {
        let id = self.targets.get(target)?;
        self.entries.get(id).map(|entry| (*id, entry))
    }

    /// Returns the entry with this id.
    pub fn entry(&self, id: u64) -> Option<&JournalEntry> {
        self.entries.get(&id)
    }

    /// Removes and returns an entry that the caller takes over.
    pub fn take(&mut self, id: u64) -> Option<JournalEntry> {
        let entry = self.entries.remove(&id)?;
        self.weight = self.weight.saturating_sub(entry.weight());
        if self.targets.get(&entry.target) == Some(&id) {
            self.targets.remove(&entry.target);
        }
        Some(entry)
    }

    /// Returns files that were started and are not done; their temporaries may still exist.
    pub fn unfinished(&self) -> impl Iterator<Item = (u64, &JournalEntry)> {
        let begun = self.entries.iter().filter(|(_, e)| e.done.is_none());
        begun.map(|(id, entry)| (*id, entry))
    }

    /// Returns finished files with their ids.
    pub fn complete(&self) -> impl Iterator<Item = (u64, &JournalEntry)> {
        let done = self.entries.iter().filter(|(_, e)| e.done.is_some());
        done.map(|(id, entry)| (*id, entry))
    }

    /// Returns the number of finished files.
    pub fn done(&self) -> usize {
        self.entries.values().filter(|e| e.done.is_some()).count()
    }

    /// Returns the number of finished files that need not be sent again unless they were changed.
    pub fn proven(&self) -> usize {
        let done = self.entries.values().filter_map(|e| e.done);
        done.filter(CompletedFile::is_proven).count()
    }

    /// Returns the number of finished files that may exist only in the receiving machine's memory.
    pub fn soft(&self) -> usize {
        self.soft.len()
    }

    /// Returns the final names of finished files that may exist only in the receiving machine's
    /// memory, without entries that have been dropped.
    pub fn soft_files(&self) -> impl Iterator<Item = &[u8]> {
        let entries = self.soft.iter().filter_map(|id| self.entries.get(id));
        entries.map(|entry| entry.target.as_slice())
    }

    /// Applies the next record; false if it cannot follow the earlier ones.
    pub fn apply(&mut self, record: JournalRecord) -> bool {
        match record {
            JournalRecord::Copy { identity } => self.identity = identity,
            JournalRecord::Run { boot } => self.started(boot),
            JournalRecord::Boot { boot } => self.learned(boot),
            JournalRecord::Onto { into } => self.onto = Some(into),
            JournalRecord::Begun {
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
            // Without its path, the temporary is looked for beside the target.
            JournalRecord::Temp { id, path } if self.has_room(path.len()) => {
                self.change(id, |entry| entry.temp = Some(path));
            }
            JournalRecord::Ranges {
                id,
                durable,
                mtime,
                ranges,
            } => {
                if self.has_room(2 * RANGE * ranges.len()) {
                    self.change(id, |entry| {
                        entry.mtime = mtime;
                        for (from, to) in ranges {
                            entry.there.insert(from, to);
                            if durable {
                                entry.durable.insert(from, to);
                            }
                        }
                    });
                }
                self.clock = self.clock.max(mtime);
            }
            JournalRecord::Done {
                id,
                durable,
                size,
                mtime,
            } => {
                self.complete_entry(id, (size, mtime), durable);
            }
            JournalRecord::Forgotten { id } => {
                self.take(id);
            }
            JournalRecord::MadeDirectory { path } => {
                let weight = DIRECTORY + path.len();
                if self.has_room(weight) && self.directories.insert(path) {
                    self.weight += weight;
                }
            }
            JournalRecord::LinkNames { seed } => self.link_names = Some(seed),
            JournalRecord::Clock { files, mtime } => self.settled(files, mtime),
            JournalRecord::Sealed { mtime } => self.sealed(mtime),
            JournalRecord::Durable { files } => {
                let files = usize::try_from(files).unwrap_or(usize::MAX);
                self.soft.drain(..files.min(self.soft.len()));
            }
            JournalRecord::Temp { .. } | JournalRecord::Synced { .. } => {}
        }
        true
    }

    /// Notes that a file has its final name, with this size and modification time.
    fn complete_entry(&mut self, id: u64, (size, mtime): (u64, u64), durable: bool) {
        self.change(id, |entry| {
            entry.done = Some(CompletedFile {
                size,
                mtime,
                not_after: entry.mtime,
                is_in_last_second: false,
                durable,
            });
            entry.temp = None;
            (entry.durable, entry.there) = Default::default();
        });
        if self.entries.contains_key(&id) {
            self.soft.extend((!durable).then_some(id));
            let unsettled = (self.untimed, id);
            self.unsettled.extend((mtime == 0).then_some(unsettled));
        }
        self.untimed += u64::from(mtime == 0);
    }

    /// Records the receiving machine's boot id. If it differs from the previous one or is unknown,
    /// data that were only in that machine's memory may be lost.
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
        self.weigh();
    }

    /// Records the boot id that the current run has learned.
    fn learned(&mut self, boot: Vec<u8>) {
        match self.boot.is_empty() {
            true => self.boot = boot,
            // A different boot id means that the machine has rebooted.
            false => self.started(boot),
        }
    }

    fn begun(&mut self, id: u64, target: Vec<u8>, source: SourceFileStamp, tag: u64) {
        let old = self.targets.get(&target).copied();
        if let Some(old) = old
            && self.entries.get(&old).is_some_and(|e| e.done.is_some())
        {
            self.take(old);
        }
        let entry = JournalEntry {
            target,
            source,
            tag,
            temp: None,
            mtime: 0,
            done: None,
            durable: ByteRanges::default(),
            there: ByteRanges::default(),
        };
        let weight = entry.weight();
        if self.has_room(weight) {
            self.weight += weight;
            self.targets.insert(entry.target.clone(), id);
            self.entries.insert(id, entry);
        }
    }
}
