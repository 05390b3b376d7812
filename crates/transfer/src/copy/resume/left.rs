//! State left by an earlier run: finished files, temporaries, and the target paths of sources.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schedule::journal::{JournalEntry, JournalRecord, JournalState, SourceFileStamp};
use schedule::{JobKind, RemotePath, ResumeData};

use super::records::RunJournal;
use crate::copy::basename;
use crate::copy::context::CopyContext;
use crate::copy::jobs::{JobPurpose, ListingFilter, TemporaryRemoval};
use crate::copy::self_copy::parent_of;
use crate::copy::server_inquiry::ServerInquiry;
use crate::copy::sides::CopySide;
use crate::copy::source::TargetPath;
use crate::copy::tree::CopyDirectoryId;
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
    /// The temporaries of small files were removed before the first file was copied.
    small_are_cleared: bool,
    /// Files that the earlier run has left unfinished, by the directory of their targets; `None`
    /// before it is needed.
    by_dir: Option<BTreeMap<Vec<u8>, Vec<u64>>>,
    /// Directories of the target with removals in flight: their number, and true if the directory
    /// waits for the last one.
    removals: BTreeMap<CopyDirectoryId, (usize, bool)>,
}

/// Size in bytes of a file from which its leftovers are removed before it is copied again: they may
/// take the space that it needs.
const LARGE: u64 = 1 << 20;
/// Number of files in a directory from which it is listed to find their temporaries. Each may have 16
/// names, so a removal of all that can be there takes 1.7 kB: the next worker of a killed shard sent
/// 112,000 requests, a tenth of the data, where one listing of each directory does.
const MANY: usize = 8;

/// Number of directories that are listed at the same time.
const LISTINGS: usize = 64;

/// Removal of what an earlier run has left.
pub(in crate::copy) struct LeftoverRemoval {
    /// There is something to remove, which is to be waited for.
    pub is_begun: bool,
    /// Directories of a server to list first.
    searches: Vec<LeftoverSearch>,
    /// It is the last attempt: temporaries that stay are named.
    is_last: bool,
}

/// Search for the temporaries of an earlier run in a directory of a server.
pub(in crate::copy) struct LeftoverSearch {
    dir: Vec<u8>,
    names: Arc<BTreeSet<Vec<u8>>>,
}

/// True if the temporaries of a file at a server are searched for together with others.
fn is_searched(entry: &JournalEntry) -> bool {
    entry.source.size < LARGE && entry.temp.is_none()
}

/// Lists the directories, and returns the removals of the temporaries in them; of a directory that
/// the server does not list, of all that there may be.
pub(in crate::copy) async fn search_leftovers<'a>(
    server: &mut impl ServerInquiry<'a>,
    removal: &LeftoverRemoval,
) -> Vec<TemporaryRemoval> {
    let mut found = Vec::new();
    for searches in removal.searches.chunks(LISTINGS) {
        let jobs = server.context().jobs();
        let query = |search: &LeftoverSearch| {
            let path = RemotePath(search.dir.clone());
            let wanted = ListingFilter::Names(Arc::clone(&search.names));
            (JobKind::List { path }, jobs.answer_of_names(wanted))
        };
        let queries = searches.iter().map(query).collect();
        let answers = server.ask_all(CopySide::Target, queries).await;
        for (search, answer) in searches.iter().zip(answers) {
            let (names, is_found) = match answer {
                // A server may list a name again and again.
                Ok(answer) => (answer.into_names().into_iter().collect(), true),
                Err(error) if error.is_missing() => continue,
                Err(_) => (search.names.as_ref().clone(), false),
            };
            found.extend(names.iter().map(|name| TemporaryRemoval {
                path: join(&search.dir, name),
                tells: removal.is_last && is_found,
                ..TemporaryRemoval::default()
            }));
        }
        if server.context().stopped() {
            return Vec::new();
        }
    }
    found
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
                path: path.clone(),
                dir,
                tells: is_last && number < likely,
                ..TemporaryRemoval::default()
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

    /// Removes the temporaries of small files, which are never continued, before the directories that
    /// contain them get their times, and permissions that may forbid the removal.
    pub(super) fn clear_small_leftovers(
        &mut self,
        context: &mut CopyContext<'_>,
    ) -> LeftoverRemoval {
        let is_due =
            !std::mem::replace(&mut self.small_are_cleared, true) && context.target_is_remote();
        let is_small =
            |entry: &&JournalEntry| is_due && is_searched(entry) && entry.proven().is_empty();
        let entries = self.state.unfinished().map(|(_, entry)| entry);
        let small: Vec<JournalEntry> = entries.filter(is_small).cloned().collect();
        for entry in &small {
            self.clear(context, entry, None, false);
        }
        LeftoverRemoval {
            is_begun: !small.is_empty(),
            searches: self.take_searches(context, false),
            is_last: false,
        }
    }

    /// Removes leftovers of files that are no longer sources, and those that appeared at a server
    /// after their removal.
    pub(super) fn clear_leftovers(&mut self, context: &mut CopyContext<'_>) -> LeftoverRemoval {
        let again = std::mem::take(&mut self.cleared);
        let mut is_begun = !again.is_empty();
        for path in again {
            let removal = TemporaryRemoval {
                path,
                tells: true,
                ..TemporaryRemoval::default()
            };
            clear_remote(context, removal);
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
        LeftoverRemoval {
            is_begun,
            searches: self.take_searches(context, true),
            is_last: true,
        }
    }

    /// Returns the directories to list, and removes temporaries in directories with few.
    fn take_searches(
        &mut self,
        context: &mut CopyContext<'_>,
        is_last: bool,
    ) -> Vec<LeftoverSearch> {
        let mut searches = Vec::new();
        for (dir, files) in std::mem::take(&mut self.searched) {
            let names = files.iter().flat_map(|(place, tag)| {
                let names = ResumeData::names(place, *tag).enumerate();
                names.map(|(number, path)| (path, is_last && number == 0))
            });
            if files.len() < MANY {
                for (path, tells) in names {
                    let removal = TemporaryRemoval {
                        path,
                        tells,
                        ..TemporaryRemoval::default()
                    };
                    clear_remote(context, removal);
                }
                continue;
            }
            let names = names.map(|(path, _)| basename(&path).to_vec()).collect();
            let names = Arc::new(names);
            searches.push(LeftoverSearch { dir, names });
        }
        searches
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

/// Begins the removal of a temporary at the target. Returns false if the session is gone.
pub(in crate::copy) fn clear_remote(
    context: &mut CopyContext<'_>,
    removal: TemporaryRemoval,
) -> bool {
    let path = RemotePath(removal.path.clone());
    let kind = JobKind::Remove { path };
    let purpose = JobPurpose::Cleared(removal);
    context.submit(CopySide::Target, kind, purpose).is_some()
}
