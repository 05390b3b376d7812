//! Writes a file's journal record before the file starts.

use schedule::journal::{
    CompletedFile, ExistingFile, JournalEntry, JournalRecord, SourceFileStamp,
};
use schedule::{Attributes, EntryKind, JobKind, PartialFile, RemotePath, ResumeData, directory_of};

use super::task::{CompletedFileSearch, FileLookup};
use super::{FileStartDecision, ResumeJournal};
use crate::copy::context::CopyContext;
use crate::copy::equal_names::plain;
use crate::copy::file::{CopyFileId, FileTask, SharedTemporaryFile};
use crate::copy::jobs::JobPurpose;
use crate::copy::local_file_ops::LocalStat;
use crate::copy::names::basename;
use crate::copy::sides::CopySide;
use crate::report::EscapedName;
use crate::walk::local_path;

const SECOND: u64 = 1_000_000_000;

/// Warning about a file whose temporary has been removed since the earlier run.
const GONE: &str = "the part that an earlier run copied is gone: starting this file over";

impl ResumeJournal {
    /// Decides how a file starts: copied, resumed, or checked first.
    pub(in crate::copy) fn keep(
        &mut self,
        context: &mut CopyContext<'_>,
        id: CopyFileId,
        task: &mut FileTask,
    ) -> FileStartDecision {
        loop {
            let decision = self.decide(context, id, task);
            if decision != FileStartDecision::Again {
                return decision;
            }
        }
    }

    fn decide(
        &mut self,
        context: &mut CopyContext<'_>,
        id: CopyFileId,
        task: &mut FileTask,
    ) -> FileStartDecision {
        if let Some(shared) = task.shared() {
            return self.keep_shared(context, id, task, shared);
        }
        if !self.records.is_on() {
            return FileStartDecision::Now;
        }
        if task.resume().has_begun() {
            return FileStartDecision::Now;
        }
        let Some(source) = stamp_of(context, task) else {
            return FileStartDecision::Now;
        };
        let target = task.target().to_vec();
        let was_found = task.resume().is_search(CompletedFileSearch::Found);
        let both = context.source_is_remote() && context.target_is_remote();
        let may_continue = may_resume(context);
        let known = self.earlier.file(&target);
        let known = known.map(|(of, entry)| (of, entry.clone(), self.earlier.is_of(entry, source)));
        self.note_begun(task);
        match known {
            Some((_, entry, true)) if entry.done.is_some() && may_continue => {
                task.resume_mut().was_completed();
                // Checks if the file is unchanged.
                return self.look(context, id, task, CompletedFileSearch::Name, entry.target);
            }
            Some((_, entry, true)) if may_continue && !was_found && may_be_named(&entry) => {
                return self.look_if_named(context, id, task, &entry);
            }
            Some((of, entry, same)) if entry.done.is_none() => {
                self.earlier.take(of);
                let left = match both {
                    // Data between two hosts arrives in order.
                    true => entry.left().into_prefix(),
                    false => entry.left(),
                };
                let left_is_empty = left.ranges.is_empty();
                let first = ResumeData {
                    tag: entry.tag,
                    ..ResumeData::default()
                };
                let first = first.temporary(&context.named().temporary_place(&target), 0);
                let beside = entry.temp.as_ref().is_none_or(|temp| *temp == first);
                if may_continue && same && beside && !left.ranges.is_empty() {
                    let bytes = left.ranges.iter().map(|(from, to)| to - from).sum();
                    let keep = ResumeData {
                        tag: entry.tag,
                        left: Some(left),
                        ..ResumeData::default()
                    };
                    task.resume_mut().begin(of, keep);
                    task.resume_mut().takes(bytes);
                    return FileStartDecision::Now;
                }
                if entry.source != source && !left_is_empty {
                    let what = "changed since the interrupted copy: it is copied from the start";
                    context.warn(Some(task.source_name().clone()), what.to_owned());
                }
                self.earlier.clear(context, &entry, task.dir(), false);
                self.earlier.forget_cleared(context, &mut self.records, of);
            }
            Some((of, ..)) => {
                self.earlier.take(of);
            }
            None => {}
        }
        let tag = context.environment().random();
        let keep = ResumeData {
            tag,
            ..ResumeData::default()
        };
        self.begin_recorded(context, id, task, (source, tag, keep))
    }

    /// Notes that the earlier run has begun a file in a directory that it had made. In another one, a file
    /// of the user may be there.
    fn note_begun(&self, task: &mut FileTask) {
        if let Some((_, entry)) = self.earlier.file(task.target())
            && self.earlier.has_made(task.target())
        {
            let size = entry.source.size;
            task.resume_mut().was_begun(size);
        }
    }

    /// Starts the work on a shared temporary. All bytes outside of this process's range count as
    /// written, and so do those that the journal lists within it. The journal's own tag is not that
    /// of the temporary, so that no cleanup of this process removes what others write.
    fn keep_shared(
        &mut self,
        context: &mut CopyContext<'_>,
        id: CopyFileId,
        task: &mut FileTask,
        shared: SharedTemporaryFile,
    ) -> FileStartDecision {
        if task.resume().has_begun() {
            return FileStartDecision::Now;
        }
        let target = task.target().to_vec();
        let source = stamp_of(context, task);
        let (size, (from, to)) = shared.range();
        let mut ranges = vec![(0, from), (to, size)];
        let is_range = from < to;
        let source = source.filter(|_| self.records.is_on() && is_range);
        let earlier = source.and_then(|source| self.earlier.take_ranges(&target, source));
        let mut taken = 0;
        for (start, end) in earlier.iter().flat_map(|(_, ranges)| ranges) {
            let (start, end) = ((*start).max(from), (*end).min(to));
            if start < end {
                taken += end - start;
                ranges.push((start, end));
            }
        }
        ranges.retain(|(start, end)| start < end);
        ranges.sort_unstable();
        let left = PartialFile {
            ranges,
            mtime: 0,
            source: source.map_or((0, 0), |source| (source.size, source.mtime)),
        };
        let keep = ResumeData {
            tag: shared.tag(),
            again: 0,
            left: Some(left),
            shared: Some(shared.work()),
        };
        task.resume_mut().takes(taken);
        match (source, earlier) {
            (None, _) => task.resume_mut().begin_unrecorded(keep),
            (Some(_), Some((of, _))) => task.resume_mut().begin(of, keep),
            (Some(source), None) => {
                let tag = context.environment().random();
                return self.begin_recorded(context, id, task, (source, tag, keep));
            }
        }
        FileStartDecision::Now
    }

    /// Writes the journal record of a file. Nothing that resumes or clears the journal finds the
    /// temporary if its name is not made from the tag.
    fn begin_recorded(
        &mut self,
        context: &mut CopyContext<'_>,
        id: CopyFileId,
        task: &mut FileTask,
        (source, tag, keep): (SourceFileStamp, u64, ResumeData),
    ) -> FileStartDecision {
        let of = self.records.take_number();
        task.resume_mut().begin(of, keep);
        self.records.count(source.size);
        let number = self.records.write(JournalRecord::Begun {
            id: of,
            target: task.target().to_vec(),
            source,
            tag,
        });
        if self.records.waits() {
            self.records.wait_for(number, id);
            return FileStartDecision::Later;
        }
        if self.records.needs_journal(context.environment().limits())
            && let Some(number) = self.open(context).filter(|number| *number > 0)
        {
            self.records.wait_for(number, id);
            return FileStartDecision::Later;
        }
        FileStartDecision::Now
    }

    /// Checks if the earlier run was interrupted between the rename and its record. The temporary does
    /// not exist then. The last records of ranges may be lost as well.
    fn look_if_named(
        &mut self,
        context: &mut CopyContext<'_>,
        id: CopyFileId,
        task: &mut FileTask,
        entry: &JournalEntry,
    ) -> FileStartDecision {
        let keep = ResumeData {
            tag: entry.tag,
            ..ResumeData::default()
        };
        let first = || keep.temporary(&context.named().temporary_place(&entry.target), 0);
        let temp = entry.temp.clone().unwrap_or_else(first);
        self.look(context, id, task, CompletedFileSearch::Temporary, temp)
    }

    fn look(
        &mut self,
        context: &mut CopyContext<'_>,
        id: CopyFileId,
        task: &mut FileTask,
        looking: CompletedFileSearch,
        path: Vec<u8>,
    ) -> FileStartDecision {
        task.resume_mut().search(looking);
        if looking == CompletedFileSearch::Name
            && let Some(listed) = self.earlier.take_listed(context.now(), &path)
        {
            return self.on_taken(context, id, task, FileLookup::Found(listed));
        }
        if context.target_is_remote() {
            let path = RemotePath(path);
            let follow = looking == CompletedFileSearch::Name;
            let kind = JobKind::Stat { path, follow };
            context.submit(CopySide::Target, kind, JobPurpose::Taken(id));
            return FileStartDecision::Later;
        }
        let found = match looking {
            CompletedFileSearch::Name => {
                let found = context.local().look(&context.named().local_path(&path));
                found.filter(LocalStat::is_file)
            }
            // The job that continues the temporary removes what else has its name.
            _ => look_for_temporary(context, task.target(), &path),
        };
        if let Some(stat) = found.as_ref().filter(|stat| stat.is_file()) {
            self.records.lies_on(stat.id.device, &local_path(&path));
        }
        let found = found.map(|stat| FileLookup::Found(stat.existing()));
        self.on_taken(context, id, task, found.unwrap_or_default())
    }

    /// Decides about a file that was looked for at the server.
    pub(in crate::copy) fn on_taken_over(
        &mut self,
        context: &mut CopyContext<'_>,
        id: CopyFileId,
        task: &mut FileTask,
    ) -> FileStartDecision {
        let seen = task.resume_mut().take_seen();
        self.on_taken(context, id, task, seen)
    }

    fn on_taken(
        &mut self,
        context: &mut CopyContext<'_>,
        id: CopyFileId,
        task: &mut FileTask,
        found: FileLookup,
    ) -> FileStartDecision {
        let seen = found.file();
        let Some((of, entry)) = self.earlier.file(task.target()) else {
            return FileStartDecision::Again;
        };
        if found == FileLookup::Failed && entry.done.is_none() {
            // The temporary may be there: the job that continues it finds out.
            task.resume_mut().search(CompletedFileSearch::Found);
            return FileStartDecision::Again;
        }
        if task.resume().is_search(CompletedFileSearch::Temporary) {
            if seen.is_some() {
                task.resume_mut().search(CompletedFileSearch::Found);
                return FileStartDecision::Again;
            }
            let target = entry.target.clone();
            return self.look(context, id, task, CompletedFileSearch::Name, target);
        }
        let times = context.preserves();
        let named = entry.done.is_none() && seen.is_some_and(|seen| entry.is_named(seen, times));
        let stands = |done: CompletedFile| seen.is_some_and(|s| done.stands(s));
        if named || entry.done.is_some_and(stands) {
            let done = named.then(|| JournalRecord::Done {
                id: of,
                durable: false,
                size: entry.source.size,
                mtime: seen.map_or(0, |seen| seen.mtime),
            });
            let size = entry.source.size;
            let synced = entry.done.is_some_and(|done| done.durable);
            task.was_stored(size, synced);
            context.progress().add_earlier(size);
            if let Some(done) = done {
                self.earlier.take(of);
                self.records.write(done);
            }
            return FileStartDecision::Stored;
        }
        if let Some(entry) = self.earlier.take(of)
            && entry.done.is_none()
        {
            // A file of the source's size may be this one, without a proof of it.
            if seen.is_none_or(|seen| seen.size != entry.source.size) {
                context.warn(Some(task.source_name().clone()), GONE.to_owned());
            }
            // A temporary under another name than the first one may be left.
            self.earlier.clear(context, &entry, task.dir(), false);
            self.earlier.forget_cleared(context, &mut self.records, of);
        }
        FileStartDecision::Again
    }
}

/// True if the temporary of an unfinished file may have been renamed: it had a part of the file.
fn may_be_named(entry: &JournalEntry) -> bool {
    entry.done.is_none() && !entry.proven().is_empty()
}

/// Size and time of a file with these attributes at a server.
fn existing(attributes: &Attributes) -> ExistingFile {
    ExistingFile {
        size: attributes.size.unwrap_or(0),
        mtime: attributes
            .times
            .map_or(0, |(_, mtime)| u64::from(mtime) * SECOND),
    }
}

/// Notes the attributes of a file that an earlier run may have completed.
pub(in crate::copy) fn note_seen(task: &mut FileTask, attributes: &Attributes) {
    // The job that continues a temporary removes what else has its name.
    let is_temporary = task.resume().is_search(CompletedFileSearch::Temporary);
    if is_temporary || attributes.kind() == EntryKind::File {
        task.resume_mut()
            .sees(FileLookup::Found(existing(attributes)));
    }
}

/// Notes that the server did not say if there is such a file.
pub(in crate::copy) fn note_failed_look(task: &mut FileTask) {
    task.resume_mut().sees(FileLookup::Failed);
}

/// Status of the temporary `temp` of a file with the local target `target`; `None` if they are in
/// different directories.
fn look_for_temporary(context: &CopyContext<'_>, target: &[u8], temp: &[u8]) -> Option<LocalStat> {
    let same = directory_of(&context.named().temporary_place(target)) == directory_of(temp);
    let target = context.named().local_path(target);
    let look = || context.local().look_beside(&target, basename(temp));
    same.then(look).flatten()
}

/// True if files of an earlier run may be resumed. Checksums of a file between two hosts are those of
/// the bytes that pass: all of it does.
pub(super) fn may_resume(context: &CopyContext<'_>) -> bool {
    let both = context.source_is_remote() && context.target_is_remote();
    let sums = context.options().verify || context.options().manifest.is_some();
    !both || !sums
}

/// Number that tells the paths of files on hosts from each other, in every run.
fn path_hash(EscapedName(path): &EscapedName) -> u64 {
    let hash = blake3::hash(path);
    let first = hash.as_bytes().first_chunk();
    first.map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// Properties of a source that must be unchanged for resuming.
pub(super) fn stamp_of(context: &CopyContext<'_>, task: &FileTask) -> Option<SourceFileStamp> {
    if let Some(known) = task.identity() {
        return Some(known);
    }
    if context.source_is_remote() {
        let attributes = task.attributes()?;
        return Some(SourceFileStamp {
            size: attributes.size?,
            mtime: u64::from(attributes.times?.1) * SECOND,
            // A server tells neither inode nor device. Of two sources that are merged, either may
            // be copied to the target, in each run.
            inode: path_hash(&context.shown(CopySide::Source, &plain(task.source()))),
            ..SourceFileStamp::default()
        });
    }
    Some(context.local().stat(task.source()).ok()?.id)
}
