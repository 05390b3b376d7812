//! State left by an earlier run: finished files, temporaries, and the target paths of sources.

use schedule::journal::{ExistingFile, JournalEntry, JournalRecord};
use schedule::{Attributes, JobKind, RemotePath, ResumeData, directory_of};

use super::super::engine::{CopyEngine, CopySide, JobPurpose};
use super::super::file::FileId;
use super::super::local_ops::LocalStat;
use super::super::names::basename;
use super::super::source::TargetPath;
use super::FileStartDecision;
use super::task::CompletedFileSearch;
use crate::report::CopyEvent;
use crate::walk::local_path;

const SECOND: u64 = 1_000_000_000;

impl CopyEngine<'_> {
    /// Target of the sources as the first run resolved the command's target: a directory made by
    /// that run does not count as existing before. Confines the journal to this target, so that it
    /// can neither resume nor remove anything outside.
    pub(in crate::copy) fn onto_before(&mut self, target: &[u8]) -> Option<TargetPath> {
        self.keeper.state.confine(target);
        let into = self.keeper.state.onto()?;
        Some(match into {
            true => TargetPath::Into(target.to_vec()),
            false => TargetPath::Exactly(target.to_vec()),
        })
    }

    pub(in crate::copy) fn note_onto(&mut self, onto: &TargetPath) {
        if !self.keeper.is_on() || self.keeper.state.onto().is_some() {
            return;
        }
        let into = match onto {
            TargetPath::Into(_) => true,
            TargetPath::Exactly(_) => false,
            // The next run guesses again in the same way.
            TargetPath::Guess(_) => return,
        };
        self.keeper.write(JournalRecord::Onto { into });
        // Such a copy first makes a directory of that name. Without a record of that, the same
        // command would copy into it the next time.
        let makes = !into && (self.options.recursive || self.options.archive);
        if makes && self.keeper.log.is_none() {
            self.create_journal();
            // Ask now: later the answer would queue behind hundreds of files.
            self.learn_boot();
        }
    }

    /// Checks if a file that the earlier run finished is unchanged.
    pub(super) fn look_if_done(&mut self, id: FileId, entry: &JournalEntry) -> FileStartDecision {
        self.look(id, CompletedFileSearch::Name, entry.target.clone())
    }

    /// Checks if the earlier run, which had received all of the file, was interrupted between the
    /// rename and its record. The temporary does not exist then.
    pub(super) fn look_if_named(&mut self, id: FileId, entry: &JournalEntry) -> FileStartDecision {
        let tag = entry.tag;
        let keep = ResumeData {
            tag,
            ..ResumeData::default()
        };
        let temp = entry.temp.clone();
        let temp = temp.unwrap_or_else(|| {
            keep.temporary(&self.ports.named().temporary_place(&entry.target), 0)
        });
        self.look(id, CompletedFileSearch::Temporary, temp)
    }

    fn look(
        &mut self,
        id: FileId,
        looking: CompletedFileSearch,
        path: Vec<u8>,
    ) -> FileStartDecision {
        if let Some(task) = self.files.get_mut(&id) {
            task.resume_mut().search(looking);
        }
        if self.target_is_remote() {
            let path = RemotePath(path);
            let follow = looking == CompletedFileSearch::Name;
            let kind = JobKind::Stat { path, follow };
            self.submit(CopySide::Target, kind, JobPurpose::Taken(id));
            return FileStartDecision::Later;
        }
        let target = self.files.get(&id).map(|task| task.target().to_vec());
        let found = match looking {
            CompletedFileSearch::Name => self.local().look(&self.ports.named().local_path(&path)),
            _ => target.and_then(|target| self.look_for_temporary(&target, &path)),
        };
        let found = found.filter(LocalStat::is_file);
        if let Some(stat) = &found {
            self.keeper.lies_on(stat.id.device, &local_path(&path));
        }
        self.on_taken(id, found.map(|stat| stat.existing()));
        FileStartDecision::Later
    }

    /// Status of the temporary `temp` of a file with the local target `target`; `None` if they are
    /// in different directories.
    fn look_for_temporary(&self, target: &[u8], temp: &[u8]) -> Option<LocalStat> {
        let same = directory_of(&self.ports.named().temporary_place(target)) == directory_of(temp);
        let target = self.ports.named().local_path(target);
        let look = || self.local().look_beside(&target, basename(temp));
        same.then(look).flatten()
    }

    pub(in crate::copy) fn on_taken_seen(&mut self, id: FileId, attributes: Option<Attributes>) {
        if let Some(task) = self.files.get_mut(&id) {
            task.resume_mut().sees(attributes.map(|a| ExistingFile {
                size: a.size.unwrap_or(0),
                mtime: a.times.map_or(0, |(_, m)| u64::from(m) * SECOND),
            }));
        }
    }

    /// Forgets what an earlier run has left of a file that is copied again.
    pub(in crate::copy) fn forget_earlier(&mut self, id: FileId) {
        let known = self.files.get(&id);
        let known = known.and_then(|task| self.keeper.state.file(task.target()));
        if let Some((of, _)) = known {
            self.keeper.state.take(of);
        }
    }

    pub(in crate::copy) fn on_taken_over(&mut self, id: FileId) {
        let seen = self.files.get_mut(&id);
        let seen = seen.and_then(|task| task.resume_mut().take_seen());
        self.on_taken(id, seen);
    }

    pub(in crate::copy) fn on_taken(&mut self, id: FileId, seen: Option<ExistingFile>) {
        let Some(task) = self.files.get_mut(&id) else {
            return;
        };
        let Some((of, entry)) = self.keeper.state.file(task.target()) else {
            return self.start_file(id);
        };
        if task.resume().is_search(CompletedFileSearch::Temporary) {
            if seen.is_some() {
                task.resume_mut().search(CompletedFileSearch::Found);
                return self.start_file(id);
            }
            let target = entry.target.clone();
            self.look(id, CompletedFileSearch::Name, target);
            return;
        }
        let times = self.options.preserve || self.options.archive;
        let named = entry.done.is_none() && seen.is_some_and(|seen| entry.is_named(seen, times));
        let stands = |done: schedule::journal::CompletedFile| seen.is_some_and(|s| done.stands(s));
        if named || entry.done.is_some_and(stands) {
            let done = named.then(|| JournalRecord::Done {
                id: of,
                durable: false,
                size: entry.source.size,
                mtime: seen.map_or(0, |seen| seen.mtime),
            });
            let size = entry.source.size;
            task.was_stored(size);
            self.progress.add_earlier(size);
            self.keeper.taken.0 += 1;
            if let Some(done) = done {
                self.keeper.state.take(of);
                self.keeper.write(done);
            }
            self.file_done(id);
            return;
        }
        if self.keeper.state.take(of).is_some_and(|e| e.done.is_none()) {
            self.keeper.write(JournalRecord::Forgotten { id: of });
        }
        self.start_file(id);
    }

    /// Removes leftovers of a file from an earlier run.
    pub(super) fn clear(&mut self, entry: &JournalEntry) {
        if !self.target_is_remote() {
            let path = self.ports.named().local_path(&entry.target);
            return self.local().remove_temporaries(&path, entry.tag);
        }
        let place = self.ports.named().temporary_place(&entry.target);
        let names = ResumeData::names(&place, entry.tag);
        let names: Vec<Vec<u8>> = names.chain(entry.temp.clone()).collect();
        for name in &names {
            self.clear_remote(name.clone());
        }
        // A process that is killed has not begun a file twice: its first name can still appear.
        self.keeper.cleared.extend(names.into_iter().next());
    }

    fn clear_remote(&mut self, path: Vec<u8>) {
        let path = RemotePath(path);
        let kind = JobKind::Remove { path };
        self.submit(CopySide::Target, kind, JobPurpose::Cleared);
    }

    /// Returns true if an earlier run has left files unfinished.
    pub(in crate::copy) fn has_leftovers(&self) -> bool {
        self.keeper.state.unfinished().next().is_some()
    }

    /// Removes leftovers of files that are no longer sources, and those that appeared at a server
    /// after their removal.
    pub(in crate::copy) async fn clear_leftovers(&mut self) {
        let again = std::mem::take(&mut self.keeper.cleared);
        let late = !again.is_empty();
        again.into_iter().for_each(|name| self.clear_remote(name));
        let left: Vec<JournalEntry> = self
            .keeper
            .state
            .unfinished()
            .map(|(_, e)| e.clone())
            .collect();
        match !self.target_is_remote() {
            true => {
                let files = left.iter();
                let files: Vec<_> = files
                    .map(|entry| (self.ports.named().local_path(&entry.target), entry.tag))
                    .collect();
                self.local().sweep_temporaries(&files);
            }
            false => left.iter().for_each(|entry| self.clear(entry)),
        }
        if late || !left.is_empty() {
            self.copy().await;
        }
        if !self.stopped() {
            for id in std::mem::take(&mut self.keeper.cleared_entries) {
                self.keeper.write(JournalRecord::Forgotten { id });
            }
        }
    }

    /// Reports the files and bytes that are taken over from the earlier run.
    pub(in crate::copy) fn tell_resumed(&mut self) {
        let done = self.keeper.state.done() as u64;
        let parts = self
            .keeper
            .state
            .unfinished()
            .filter(|(_, e)| !e.proven().is_empty());
        let (files, bytes) = parts.fold((0, 0), |(files, bytes), (_, entry)| {
            let proven: u64 = entry.proven().iter().map(|(from, to)| to - from).sum();
            (files + 1, bytes + proven)
        });
        if self.keeper.log.is_some() && !self.keeper.afresh {
            self.tell(CopyEvent::Resumed {
                done,
                partial: files,
                partial_bytes: bytes,
            });
        }
    }
}
