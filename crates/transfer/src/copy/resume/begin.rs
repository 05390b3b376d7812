//! Writes a file's journal record before the file starts.

use schedule::journal::{JournalEntry, JournalRecord, SourceId};
use schedule::{Attributes, ResumeData};

use super::super::engine::CopyEngine;
use super::super::file::{FileId, FileTask};
use super::FileStartDecision;
use super::task::CompletedFileSearch;
use crate::disk::os_words;

/// Bytes below which a copy is sent again rather than recorded in the journal.
const LEAST_BYTES: u64 = 16 << 20;
/// Number of files below which a copy is sent again rather than recorded in the journal.
const LEAST_FILES: u64 = 256;
const SECOND: u64 = 1_000_000_000;

impl CopyEngine<'_> {
    /// Decides how a file starts: copied, resumed, or checked first.
    pub(in crate::copy) fn keep(&mut self, id: FileId) -> FileStartDecision {
        if let Some(shared) = self.files.get(&id).and_then(FileTask::shared) {
            return self.keep_shared(id, shared);
        }
        if !self.keeper.is_on() {
            return FileStartDecision::Now;
        }
        let Some(task) = self.files.get(&id) else {
            return FileStartDecision::Later;
        };
        if task.resume().has_begun() {
            return FileStartDecision::Now;
        }
        let known = task.identity();
        let Some(source) = known.or_else(|| self.source_id(task.source(), task.attributes()))
        else {
            return FileStartDecision::Now;
        };
        let target = task.target().to_vec();
        let was_found = task.resume().is_search(CompletedFileSearch::Found);
        let known = self
            .keeper
            .state
            .file(&target)
            .map(|(id, entry)| (id, entry.clone()));
        let same = |entry: &JournalEntry| entry.source == source && !self.keeper.afresh;
        match known {
            Some((_, entry)) if entry.done.is_some() && same(&entry) => {
                return self.look_if_done(id, &entry);
            }
            Some((_, entry))
                if entry.done.is_none() && same(&entry) && entry.is_whole() && !was_found =>
            {
                return self.look_if_named(id, &entry);
            }
            Some((of, entry)) if entry.done.is_none() => {
                self.keeper.state.take(of);
                let left = entry.left();
                let left_is_empty = left.ranges.is_empty();
                let first = ResumeData {
                    tag: entry.tag,
                    ..ResumeData::default()
                };
                let first = first.temporary(&self.ports.named().temporary_place(&target), 0);
                let beside = entry.temp.as_ref().is_none_or(|temp| *temp == first);
                // Data between two hosts arrives in order, from the start.
                let one_end = !self.source_is_remote() || !self.target_is_remote();
                if one_end && same(&entry) && beside && !left.ranges.is_empty() {
                    let bytes = left.ranges.iter().map(|(from, to)| to - from).sum();
                    let keep = ResumeData {
                        tag: entry.tag,
                        left: Some(left),
                        ..ResumeData::default()
                    };
                    if let Some(task) = self.files.get_mut(&id) {
                        task.resume_mut().begin(of, keep);
                        task.resume_mut().takes(bytes);
                    }
                    return FileStartDecision::Now;
                }
                if entry.source != source && !left_is_empty {
                    self.tell_restarted(id);
                }
                self.clear(&entry);
                match self.target_is_remote() {
                    // What a killed process has sent may still create the temporary.
                    true => self.keeper.cleared_entries.push(of),
                    false => drop(self.keeper.write(JournalRecord::Forgotten { id: of })),
                }
            }
            Some((of, _)) => {
                self.keeper.state.take(of);
            }
            None => {}
        }
        self.begin_kept(id, target, source)
    }

    /// Reports that a part of a file, which an earlier run has sent, is not used.
    fn tell_restarted(&mut self, id: FileId) {
        let name = self.files.get(&id).map(|task| task.source_name().clone());
        let what = "changed since the interrupted copy: it is copied from the start";
        self.warn(name, what.to_owned());
    }

    pub(super) fn begin_kept(
        &mut self,
        id: FileId,
        target: Vec<u8>,
        source: SourceId,
    ) -> FileStartDecision {
        let tag = self.environment.random();
        let keep = ResumeData {
            tag,
            ..ResumeData::default()
        };
        self.begin_recorded(id, target, source, (tag, keep))
    }

    /// Writes the journal record of a file. Nothing that resumes or clears the journal finds the
    /// temporary if its name is not made from `tag`.
    pub(super) fn begin_recorded(
        &mut self,
        id: FileId,
        target: Vec<u8>,
        source: SourceId,
        (tag, keep): (u64, ResumeData),
    ) -> FileStartDecision {
        let of = self.keeper.next;
        self.keeper.next += 1;
        if let Some(task) = self.files.get_mut(&id) {
            task.resume_mut().begin(of, keep);
        }
        self.keeper.files += 1;
        self.keeper.bytes = self.keeper.bytes.saturating_add(source.size);
        let begun = JournalRecord::Begun {
            id: of,
            target,
            source,
            tag,
        };
        let number = self.keeper.write(begun);
        if self.keeper.waits {
            self.keeper.waiting.push_back((number, id));
            return FileStartDecision::Later;
        }
        let worth = self.keeper.bytes >= LEAST_BYTES || self.keeper.files >= LEAST_FILES;
        if worth || self.keeper.records_all {
            let number = self.open_journal();
            if number > 0 {
                self.keeper.waiting.push_back((number, id));
                return FileStartDecision::Later;
            }
        }
        self.start_kept(id);
        FileStartDecision::Later
    }

    /// Opens the journal of a copy that is large enough: files wait from now on until their records
    /// are written. Returns the number of the last record, or 0 if there is no journal.
    pub(super) fn open_journal(&mut self) -> u64 {
        if self.keeper.log.is_none() {
            self.create_journal();
        }
        let Some(log) = &mut self.keeper.log else {
            return 0;
        };
        let number = log.sync_from_now_on();
        self.keeper.waits = true;
        self.keeper.early.clear();
        self.learn_boot();
        number
    }

    /// Creates the journal and writes the records collected so far.
    pub(super) fn create_journal(&mut self) {
        let Some(place) = &self.keeper.place else {
            return;
        };
        let identity = place.identity().to_vec();
        match place.create(self.keeper.target.is_some()) {
            Ok(mut log) => {
                log.write(&JournalRecord::Copy { identity });
                // Do not wait for a server's boot ID. If the server restarts before it answers,
                // what was done until then counts as lost.
                let boot = match self.keeper.target.is_some() {
                    true => self.environment.boot(),
                    false => Vec::new(),
                };
                log.write(&JournalRecord::Run { boot });
                for (device, file) in &std::mem::take(&mut self.keeper.devices) {
                    log.lies_on(*device, file);
                }
                for record in &self.keeper.early {
                    log.write(record);
                }
                self.keeper.log = Some(log);
            }
            Err(e) => self.no_journal(&e),
        }
    }

    pub(super) fn no_journal(&mut self, e: &std::io::Error) {
        self.keeper.place = None;
        self.keeper.early.clear();
        self.warn_of_journal(&os_words(e));
    }

    /// Starts the files whose records are durable.
    pub(in crate::copy) fn start_written(&mut self) {
        let Some(log) = &self.keeper.log else { return };
        let durable = log.durable();
        while self
            .keeper
            .waiting
            .front()
            .is_some_and(|(n, _)| *n <= durable)
        {
            if let Some((_, id)) = self.keeper.waiting.pop_front() {
                self.start_kept(id);
            }
        }
    }

    /// Properties of a source that must be unchanged for resuming.
    pub(super) fn source_id(
        &self,
        path: &[u8],
        attributes: Option<Attributes>,
    ) -> Option<SourceId> {
        if self.source_is_remote() {
            let attributes = attributes?;
            return Some(SourceId {
                size: attributes.size?,
                mtime: u64::from(attributes.times?.1) * SECOND,
                ..SourceId::default()
            });
        }
        Some(self.local().stat(path).ok()?.id)
    }
}
