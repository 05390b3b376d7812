//! State left by an earlier run: finished files, temporaries, and the target paths of sources.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use schedule::journal::{ExistingFile, JournalEntry, JournalRecord, JournalState, SourceFileStamp};
use schedule::{JobKind, RemotePath, ResumeData};

use super::listings::{DirectorySearch, LeftoverRemoval};
use super::records::RunJournal;
use crate::copy::context::CopyContext;
use crate::copy::jobs::{JobPurpose, PathQueryAnswer, TemporaryRemoval};
use crate::copy::self_copy::parent_of;
use crate::copy::sides::CopySide;
use crate::copy::source::TargetPath;
use crate::copy::tree::CopyDirectoryId;
use crate::file_error::FileError;
use crate::report::CopyEvent;
use crate::walk::join;

/// Work of an earlier run that is resumed or removed.
#[derive(Default)]
pub(super) struct EarlierWork {
    /// State left by an earlier run, minus the files already taken from it.
    state: JournalState,
    /// True if nothing of an earlier run is resumed.
    afresh: bool,
    /// Temporaries of an earlier run that were removed at a server. What a killed process has sent
    /// may still create one of them, so they are removed again at the end.
    cleared: Vec<Vec<u8>>,
    /// Numbers of their files, which the journal keeps until then.
    cleared_entries: Vec<u64>,
    /// Small files whose temporaries are looked for together, by the directory of the temporaries
    /// at a server: the temporary beside each place, and its tag.
    searched: BTreeMap<Vec<u8>, Vec<(Vec<u8>, u64)>>,
    /// The server's directories were searched for what the earlier run has left, before the first
    /// file was copied.
    is_searched: bool,
    /// Files that a listing of their directory has found under their final names, by their number in
    /// the journal, with the time when the listing was requested.
    listed: BTreeMap<u64, (ExistingFile, Instant)>,
    /// Files that the earlier run has left unfinished, by the directory of their targets; `None`
    /// before it is needed.
    by_dir: Option<BTreeMap<Vec<u8>, Vec<u64>>>,
    /// Directories of the target with removals in flight: their number, and true if the directory
    /// waits for the last one.
    removals: BTreeMap<CopyDirectoryId, (usize, bool)>,
}

/// Time for which listings tell if a file is there. Later the server is asked for each.
const LISTED_FOR: Duration = Duration::from_secs(60);
/// Size in bytes of a file from which its leftovers are removed before it is copied again: they may
/// take the space that it needs.
const LARGE: u64 = 1 << 20;
/// True if the temporaries of a file at a server are searched for together with others.
fn is_searched(entry: &JournalEntry) -> bool {
    entry.source.size < LARGE && entry.temp.is_none()
}

impl EarlierWork {
    /// Resumes nothing.
    pub(super) fn set_afresh(&mut self, afresh: bool) {
        self.afresh = afresh;
    }

    /// Takes the state of an interrupted run.
    pub(super) fn set(&mut self, state: JournalState) {
        self.state = state;
    }

    /// Notes the boot ID of the receiver, whose restart has lost data that was not durable.
    pub(super) fn started(&mut self, boot: Vec<u8>) {
        self.state.started(boot);
    }

    /// Target of the sources as the first run resolved the command's target: a directory made by
    /// that run does not count as existing before. Confines the journal to this target, so that it
    /// can neither resume nor remove anything outside.
    pub(super) fn onto(&mut self, target: &[u8]) -> Option<TargetPath> {
        self.state.confine(target);
        let into = self.state.into_directory()?;
        Some(match into {
            true => TargetPath::Into(target.to_vec()),
            false => TargetPath::Exactly(target.to_vec()),
        })
    }

    /// True if the earlier run copied into the command's target, false if it copied to that name,
    /// `None` if it had resolved nothing.
    pub(super) fn was_into(&self) -> Option<bool> {
        self.state.into_directory()
    }

    /// True if the earlier run has made the directory at `target`, or one above it.
    pub(super) fn has_made(&self, target: &[u8]) -> bool {
        self.state.has_made(target)
    }

    /// Forgets which directories the earlier run has made.
    pub(super) fn forget_made(&mut self) {
        self.state.forget_made();
    }

    /// Number and journal entry of a file with this target.
    pub(super) fn file(&self, target: &[u8]) -> Option<(u64, &JournalEntry)> {
        self.state.file(target)
    }

    /// True if an entry can be resumed for this source.
    pub(super) fn is_of(&self, entry: &JournalEntry, source: SourceFileStamp) -> bool {
        entry.source == source && !self.afresh
    }

    /// Takes a file out of the state.
    pub(super) fn take(&mut self, of: u64) -> Option<JournalEntry> {
        self.state.take(of)
    }

    /// Forgets a file that is copied again.
    pub(super) fn forget(&mut self, target: &[u8]) {
        if let Some((of, _)) = self.state.file(target) {
            self.state.take(of);
        }
    }

    /// Forgets the record of a complete file that does not exist.
    pub(super) fn forget_complete(&mut self, target: &[u8]) {
        let found = self.state.file(target);
        if let Some((of, _)) = found.filter(|(_, entry)| entry.done.is_some()) {
            self.state.take(of);
        }
    }

    /// Takes the journal entry of a shared file: its number and its written ranges. An entry of
    /// another version of the source is forgotten.
    pub(super) fn take_ranges(
        &mut self,
        target: &[u8],
        source: SourceFileStamp,
    ) -> Option<(u64, Vec<(u64, u64)>)> {
        let (of, entry) = self.state.file(target)?;
        let same = self.is_of(entry, source) && entry.done.is_none();
        let ranges = entry.proven();
        self.state.take(of);
        same.then_some((of, ranges))
    }

    /// Removes leftovers of a file from an earlier run, for which `dir` of the target waits. They
    /// are removed once more at the end unless this `is_last`.
    pub(super) fn clear(
        &mut self,
        context: &mut CopyContext<'_>,
        entry: &JournalEntry,
        dir: Option<CopyDirectoryId>,
        is_last: bool,
    ) {
        if !context.target_is_remote() {
            let path = context.named().local_path(&entry.target);
            return context.local().remove_temporaries(&path, entry.tag);
        }
        let place = context.named().temporary_place(&entry.target);
        if is_searched(entry) {
            let dir = parent_of(&place);
            let searched = self.searched.entry(dir).or_default();
            return searched.push((place, entry.tag));
        }
        let names = ResumeData::names(&place, entry.tag);
        let names: Vec<Vec<u8>> = entry.temp.clone().into_iter().chain(names).collect();
        // A process that is killed has not begun a file twice: its first name can still appear.
        let likely = 1 + usize::from(entry.temp.is_some());
        for (number, path) in names.iter().enumerate() {
            let removal = TemporaryRemoval {
                dir,
                ..TemporaryRemoval::new(path.clone(), is_last && number < likely)
            };
            if clear_remote(context, removal)
                && let Some(dir) = dir
            {
                self.removals.entry(dir).or_default().0 += 1;
            }
        }
        self.cleared.extend(names.into_iter().take(likely));
    }

    /// Removes leftovers in the directory `key` of the target, `dir`, that no source has taken.
    /// Returns true if the directory is to wait for removals.
    pub(super) fn clear_in(
        &mut self,
        context: &mut CopyContext<'_>,
        records: &mut RunJournal,
        key: CopyDirectoryId,
        dir: &[u8],
    ) -> bool {
        let state = &self.state;
        let by_dir = self.by_dir.get_or_insert_with(|| {
            let mut by_dir = BTreeMap::<_, Vec<u64>>::new();
            for (id, entry) in state.unfinished() {
                by_dir.entry(parent_of(&entry.target)).or_default().push(id);
            }
            by_dir
        });
        let here = parent_of(&join(dir, b"file"));
        for id in by_dir.remove(&here).unwrap_or_default() {
            // Temporaries of small files at a server were removed before.
            let is_left = |entry: &&JournalEntry| {
                entry.done.is_none() && !(context.target_is_remote() && is_searched(entry))
            };
            if self.state.entry(id).filter(is_left).is_some()
                && let Some(entry) = self.state.take(id)
            {
                self.clear(context, &entry, Some(key), false);
                self.forget_cleared(context, records, id);
            }
        }
        let waiting = self.removals.get_mut(&key);
        waiting.is_some_and(|(_, waits)| {
            *waits = true;
            true
        })
    }

    /// Counts a removal for `dir` that has ended. Returns the directory if it waited for this one.
    pub(super) fn cleared_in(&mut self, dir: CopyDirectoryId) -> Option<CopyDirectoryId> {
        let (count, waits) = self.removals.get_mut(&dir)?;
        *count -= 1;
        let is_over = (*count == 0).then_some(*waits);
        if is_over.is_some() {
            self.removals.remove(&dir);
        }
        is_over.filter(|waits| *waits).map(|_| dir)
    }

    /// Forgets entry `of`, whose leftovers were removed, at the end of the run or now.
    pub(super) fn forget_cleared(
        &mut self,
        context: &CopyContext<'_>,
        records: &mut RunJournal,
        of: u64,
    ) {
        match context.target_is_remote() {
            // What a killed process has sent may still create the temporary.
            true => self.cleared_entries.push(of),
            false => drop(records.write(JournalRecord::Forgotten { id: of })),
        }
    }

    /// Returns true if an earlier run has left files unfinished.
    pub(super) fn has_leftovers(&self) -> bool {
        self.state.unfinished().next().is_some()
    }

    /// Removes the local temporaries of all unfinished files.
    pub(super) fn sweep(&self, context: &CopyContext<'_>) {
        let files: Vec<_> = self
            .state
            .unfinished()
            .map(|(_, entry)| (context.named().local_path(&entry.target), entry.tag))
            .collect();
        context.local().sweep_temporaries(&files);
    }

    /// Searches the server's directories, once and before anything is copied, for the temporaries of
    /// small files, which are never continued and are removed before the directories get their times,
    /// and permissions that may forbid the removal; if the run `resumes` complete files, for these as
    /// well.
    pub(super) fn search(
        &mut self,
        context: &mut CopyContext<'_>,
        resumes: bool,
    ) -> LeftoverRemoval {
        let is_due = !std::mem::replace(&mut self.is_searched, true) && context.target_is_remote();
        let is_small =
            |entry: &&JournalEntry| is_due && is_searched(entry) && entry.proven().is_empty();
        let entries = self.state.unfinished().map(|(_, entry)| entry);
        let small: Vec<JournalEntry> = entries.filter(is_small).cloned().collect();
        for entry in &small {
            self.clear(context, entry, None, false);
        }
        let mut complete = BTreeMap::<_, Vec<u64>>::new();
        if is_due && resumes && !self.afresh {
            for (id, entry) in self.state.complete() {
                let dir = parent_of(&entry.target);
                complete.entry(dir).or_default().push(id);
            }
        }
        LeftoverRemoval::new(
            !small.is_empty(),
            self.take_searches(context, complete, false),
        )
    }

    /// Removes leftovers of files that are no longer sources, and those that appeared at a server
    /// after their removal.
    pub(super) fn clear_leftovers(&mut self, context: &mut CopyContext<'_>) -> LeftoverRemoval {
        let again = std::mem::take(&mut self.cleared);
        let mut is_begun = !again.is_empty();
        for path in again {
            clear_remote(context, TemporaryRemoval::new(path, true));
        }
        let left: Vec<JournalEntry> = self
            .state
            .unfinished()
            .map(|(_, entry)| entry.clone())
            .collect();
        match !context.target_is_remote() {
            true => self.sweep(context),
            false => left
                .iter()
                .for_each(|entry| self.clear(context, entry, None, true)),
        }
        is_begun |= !left.is_empty() || !self.searched.is_empty();
        LeftoverRemoval::new(is_begun, self.take_searches(context, BTreeMap::new(), true))
    }

    /// Returns the directories to list for their temporaries and for these `complete` files, and
    /// removes temporaries in other directories.
    fn take_searches(
        &mut self,
        context: &mut CopyContext<'_>,
        mut complete: BTreeMap<Vec<u8>, Vec<u64>>,
        is_last: bool,
    ) -> Vec<DirectorySearch> {
        let mut searches = Vec::new();
        for (dir, files) in std::mem::take(&mut self.searched) {
            let complete = complete.remove(&dir).unwrap_or_default();
            let search = DirectorySearch::new(dir, files, complete, is_last);
            match search.is_worth_a_listing() {
                true => searches.push(search),
                false => remove_all(context, search.all_temporaries()),
            }
        }
        let rest = complete.into_iter();
        let rest = rest.map(|(dir, ids)| DirectorySearch::new(dir, Vec::new(), ids, is_last));
        searches.extend(rest.filter(DirectorySearch::is_worth_a_listing));
        searches
    }

    /// Request that lists a directory, and the record that collects what is looked for in it.
    pub(super) fn listing(
        &self,
        context: &CopyContext<'_>,
        search: &DirectorySearch,
    ) -> (JobKind, PathQueryAnswer) {
        search.listing(context.jobs(), &self.state)
    }

    /// Removes the temporaries that a listing, requested at this time, has found, and notes the complete
    /// files in it.
    pub(super) fn on_listed(
        &mut self,
        context: &mut CopyContext<'_>,
        (search, asked): (&DirectorySearch, Instant),
        answer: Result<PathQueryAnswer, FileError>,
    ) {
        match answer {
            Ok(answer) => {
                let (removals, files) = search.found(answer);
                remove_all(context, removals);
                for (path, file) in files {
                    if let Some((id, _)) = self.state.file(&path) {
                        self.listed.insert(id, (file, asked));
                    }
                }
            }
            Err(error) if error.is_missing() => {}
            // Removes all that can be there, and says nothing of what may not exist.
            Err(_) => {
                let removals = search.all_temporaries().into_iter();
                let quiet = removals.map(|removal| TemporaryRemoval {
                    tells: false,
                    ..removal
                });
                remove_all(context, quiet.collect());
            }
        }
    }

    /// Takes what a listing has said of the file with this target.
    pub(super) fn take_listed(&mut self, now: Instant, target: &[u8]) -> Option<ExistingFile> {
        let (id, _) = self.state.file(target)?;
        let (file, asked) = self.listed.remove(&id)?;
        // Later somebody may have changed the file.
        (now.saturating_duration_since(asked) <= LISTED_FOR).then_some(file)
    }

    /// Forgets the entries whose leftovers are removed.
    pub(super) fn leftovers_cleared(&mut self, records: &mut RunJournal) {
        for id in std::mem::take(&mut self.cleared_entries) {
            records.write(JournalRecord::Forgotten { id });
        }
    }

    /// Reports the files and bytes that are taken over from the earlier run.
    pub(super) fn tell_resumed(&self, context: &mut CopyContext<'_>) {
        if self.afresh {
            return;
        }
        let done = self.state.proven() as u64;
        let unproven = (self.state.done() as u64).saturating_sub(done);
        // A source that changed has an entry for each version, of which the last one is continued.
        let unfinished = self.state.unfinished();
        let last: BTreeMap<&[u8], u64> = unfinished
            .map(|(_, entry)| {
                let proven = entry.proven().iter().map(|(from, to)| to - from).sum();
                (entry.target.as_slice(), proven)
            })
            .collect();
        let (files, bytes) = last
            .into_values()
            .filter(|proven| *proven > 0)
            .fold((0, 0), |(files, bytes), proven| (files + 1, bytes + proven));
        context.tell(CopyEvent::Resumed {
            done,
            unproven,
            partial: files,
            partial_bytes: bytes,
        });
    }
}

/// Begins the removal of temporaries at the target.
fn remove_all(context: &mut CopyContext<'_>, removals: Vec<TemporaryRemoval>) {
    for removal in removals {
        clear_remote(context, removal);
    }
}

/// Begins the removal of a temporary at the target. Returns false if the session is gone.
pub(in crate::copy) fn clear_remote(
    context: &mut CopyContext<'_>,
    removal: TemporaryRemoval,
) -> bool {
    let path = RemotePath(removal.path.clone());
    let kind = JobKind::Remove { path };
    let purpose = JobPurpose::Cleared(Box::new(removal));
    context.submit(CopySide::Target, kind, purpose).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(records: Vec<JournalRecord>) -> JournalState {
        let mut state = JournalState::default();
        for record in records {
            assert!(state.apply(record));
        }
        state
    }

    fn stamp(size: u64) -> SourceFileStamp {
        SourceFileStamp {
            size,
            ..SourceFileStamp::default()
        }
    }

    fn begun(id: u64, target: &str, size: u64) -> JournalRecord {
        JournalRecord::Begun {
            id,
            target: target.into(),
            source: stamp(size),
            tag: 100 + id,
        }
    }

    fn ranges(id: u64, ranges: &[(u64, u64)]) -> JournalRecord {
        JournalRecord::Ranges {
            id,
            durable: true,
            mtime: 1,
            ranges: ranges.to_vec(),
        }
    }

    fn done(id: u64, size: u64) -> JournalRecord {
        JournalRecord::Done {
            id,
            durable: true,
            size,
            mtime: 1,
        }
    }

    fn earlier(records: Vec<JournalRecord>) -> EarlierWork {
        let mut earlier = EarlierWork::default();
        earlier.set(state(records));
        earlier
    }

    /// Another command, or another user, has written the journal: files elsewhere are neither
    /// resumed nor removed.
    #[test]
    fn a_journal_decides_nothing_about_files_outside_of_the_target() {
        let mut earlier = earlier(vec![
            JournalRecord::Onto { into: true },
            begun(0, "dst/a", 5),
            begun(1, "dst2/a", 5),
            begun(2, "/etc/passwd", 5),
            begun(3, "dst/../a", 5),
            begun(4, "other", 5),
        ]);
        assert!(matches!(earlier.onto(b"dst"), Some(TargetPath::Into(path)) if path == b"dst"));
        assert!(earlier.file(b"dst/a").is_some());
        for target in [&b"dst2/a"[..], b"/etc/passwd", b"other"] {
            assert!(earlier.file(target).is_none(), "{target:?}");
        }
        assert!(earlier.has_leftovers());
    }

    #[test]
    fn the_target_is_the_one_that_the_first_run_has_resolved() {
        for (records, expected) in [
            (vec![], None),
            (vec![JournalRecord::Onto { into: false }], Some(false)),
            (vec![JournalRecord::Onto { into: true }], Some(true)),
        ] {
            let mut earlier = earlier(records);
            assert_eq!(earlier.was_into(), expected);
            let into = earlier
                .onto(b"dst")
                .map(|onto| matches!(onto, TargetPath::Into(_)));
            assert_eq!(into, expected);
        }
    }

    /// Parts of two versions of a source are never joined: each part is of the version that the
    /// journal names.
    #[test]
    fn ranges_are_taken_for_the_version_of_the_source_that_they_have() {
        let records = || {
            vec![
                begun(0, "dst/a", 10),
                ranges(0, &[(0, 4), (6, 10)]),
                begun(1, "dst/b", 10),
                ranges(1, &[(0, 10)]),
                done(1, 10),
            ]
        };
        let mut same = earlier(records());
        let taken = same.take_ranges(b"dst/a", stamp(10));
        assert_eq!(taken, Some((0, vec![(0, 4), (6, 10)])));
        assert!(same.file(b"dst/a").is_none(), "they are taken once");
        let mut changed = earlier(records());
        assert_eq!(changed.take_ranges(b"dst/a", stamp(11)), None);
        assert!(
            changed.file(b"dst/a").is_none(),
            "no later file of the run takes them"
        );
        let mut complete = earlier(records());
        assert_eq!(
            complete.take_ranges(b"dst/b", stamp(10)),
            None,
            "it is complete"
        );
        let mut afresh = earlier(records());
        afresh.set_afresh(true);
        assert_eq!(afresh.take_ranges(b"dst/a", stamp(10)), None);
        assert_eq!(
            afresh.take_ranges(b"dst/c", stamp(10)),
            None,
            "it is unknown"
        );
    }

    /// A file that is gone from the target is copied again; what is known of an unfinished one is
    /// kept.
    #[test]
    fn only_the_record_of_a_complete_file_is_forgotten_with_the_file() {
        let mut earlier = earlier(vec![
            begun(0, "dst/a", 10),
            done(0, 10),
            begun(1, "dst/b", 10),
            ranges(1, &[(0, 4)]),
        ]);
        for target in [&b"dst/a"[..], b"dst/b", b"dst/c"] {
            earlier.forget_complete(target);
        }
        assert!(earlier.file(b"dst/a").is_none());
        assert!(earlier.file(b"dst/b").is_some());
        earlier.forget(b"dst/b");
        assert!(earlier.file(b"dst/b").is_none() && !earlier.has_leftovers());
    }

    /// The receiver has restarted: what was only in its memory is not expected.
    #[test]
    fn data_that_was_only_in_memory_is_not_expected_after_a_restart() {
        let soft = JournalRecord::Ranges {
            id: 0,
            durable: false,
            mtime: 1,
            ranges: vec![(4, 8)],
        };
        let records = || {
            let run = JournalRecord::Run {
                boot: b"first".to_vec(),
            };
            vec![
                run,
                begun(0, "dst/a", 10),
                ranges(0, &[(0, 4)]),
                soft.clone(),
            ]
        };
        for (boot, expected) in [
            ("first", vec![(0, 8)]),
            ("second", vec![(0, 4)]),
            ("", vec![(0, 4)]),
        ] {
            let mut earlier = earlier(records());
            earlier.started(boot.as_bytes().to_vec());
            let taken = earlier.take_ranges(b"dst/a", stamp(10));
            assert_eq!(taken, Some((0, expected)), "{boot}");
        }
    }

    /// Bug: files that were removed at the server while one of 64 directories was listed slowly counted
    /// as complete.
    #[test]
    fn an_old_listing_was_taken_for_the_present_state() {
        let now = Instant::now();
        let file = ExistingFile { size: 10, mtime: 1 };
        for (age, is_known) in [(0, true), (59, true), (61, false)] {
            let mut earlier = earlier(vec![begun(0, "dst/a", 10), done(0, 10)]);
            earlier.listed.insert(0, (file, now));
            let taken = earlier.take_listed(now + Duration::from_secs(age), b"dst/a");
            assert_eq!(taken.is_some(), is_known, "{age}");
            assert_eq!(earlier.take_listed(now, b"dst/a"), None, "it is taken once");
        }
    }

    /// A directory gets its mode, which may forbid removals, once the last one in it has ended.
    #[test]
    fn a_directory_waits_for_its_last_removal() {
        let dir = |nth| {
            CopyDirectoryId::new(
                crate::copy::source::WalkId(1),
                crate::walk::WalkDirectoryId(nth),
            )
        };
        let mut earlier = EarlierWork::default();
        earlier.removals.insert(dir(1), (2, true));
        earlier.removals.insert(dir(2), (1, false));
        assert_eq!(earlier.cleared_in(dir(1)), None, "one is left");
        assert_eq!(earlier.cleared_in(dir(2)), None, "it does not wait");
        assert_eq!(earlier.cleared_in(dir(1)), Some(dir(1)));
        assert_eq!(earlier.cleared_in(dir(1)), None, "it has gone on");
        assert!(earlier.removals.is_empty());
    }
}
