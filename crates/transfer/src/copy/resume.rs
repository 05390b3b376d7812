//! Journal of a copy: records finished work, and resumes the work of an interrupted run.

mod begin;
mod boot;
mod left;
mod listings;
mod lock_wait_limit;
mod note;
mod records;
mod task;
mod worth;

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use schedule::journal::{JournalRecord, JournalState};
use schedule::{Attributes, FileCheckpoint, JobId, JobKind};

pub(super) use self::begin::{note_failed_look, note_seen};
use self::boot::ReceiverBootId;
use self::left::EarlierWork;
pub(super) use self::left::clear_remote;
pub(super) use self::listings::{DirectorySearch, LeftoverRemoval};
use self::lock_wait_limit::{LONGEST, LockWaitLimit, LockWaitStep};
use self::note::CompletionRecorder;
pub(super) use self::note::is_durable;
use self::records::RunJournal;
pub(super) use self::task::ResumeTask;
use self::worth::ResumableWork;
use super::context::CopyContext;
use super::file::{CopyFileId, FileTask};
use super::jobs::{PathQueryAnswer, TemporaryRemoval};
use super::sides::CopySide;
use super::source::TargetPath;
use super::tree::CopyDirectoryId;
use super::{CopyLocation as CopyOperand, CopyRequest};
use crate::disk::os_words;
use crate::file_error::FileError;
use crate::journal::{EarlierRun, JournalStore, JournalWriter};
use crate::report::EscapedName;
use crate::walk::local_path;

/// Journal of a run, and the work of an interrupted run that it resumes.
#[derive(Default)]
pub(super) struct ResumeJournal {
    records: RunJournal,
    earlier: EarlierWork,
    boot: ReceiverBootId,
    completed: CompletionRecorder,
}

/// Decision about a file at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileStartDecision {
    /// Copy the file now.
    Now,
    /// The file starts or ends later.
    Later,
    /// Decide again.
    Again,
    /// An earlier run has stored the whole file.
    Stored,
}

impl ResumeJournal {
    /// Records every file, however small the copy is. Called before the earlier run is looked for.
    pub(super) fn record_all(&mut self) {
        self.records.record_all();
    }

    /// True if files wait for their records and can be resumed.
    pub(super) fn goes_on(&self) -> bool {
        self.records.goes_on()
    }

    /// Number of files that wait for their records.
    pub(super) fn waiting(&self) -> usize {
        self.records.waiting()
    }

    pub(super) fn drop_waiting(&mut self) {
        self.records.drop_waiting();
    }

    /// Takes the next file whose record is durable, so that it starts.
    pub(super) fn next_written(&mut self) -> Option<CopyFileId> {
        self.records.next_written()
    }

    /// Looks for the journal of an earlier run of this copy. Returns false if another process is
    /// running the same copy.
    pub(super) async fn find(
        &mut self,
        context: &mut CopyContext<'_>,
        request: &CopyRequest,
    ) -> bool {
        let remote = |place: &CopyOperand| matches!(place, CopyOperand::Remote { .. });
        let to = remote(&request.target);
        let from_hosts = request.sources.iter().all(remote);
        let from_here = !request.sources.iter().any(remote);
        let alike = from_hosts || from_here && to;
        if !context.options().journal || context.options().inplace || !alike {
            return true;
        }
        let local = match &request.target {
            CopyOperand::Local(path) => Some(path.clone()),
            CopyOperand::Remote { .. } => None,
        };
        let identity = identity(context, request);
        let folder = context.options().journal_folder.as_ref();
        let folder = folder.map(|folder| folder.path.as_path());
        let place = context
            .environment()
            .journal(&identity, local.as_deref(), folder);
        let found = find_unlocked(context, request, &*place).await;
        self.records.set_target(local);
        self.earlier.set_afresh(context.options().afresh);
        if let Some(beside) = place.beside().as_deref().map(EscapedName::from) {
            let why = "ignoring this journal of an older longhaul: journals are now in \
                 ~/.local/state/longhaul; remove it if no older longhaul needs it";
            context.warn(Some(beside), why.to_owned());
        }
        match found {
            Ok(EarlierRun::Nothing) => {}
            Ok(EarlierRun::SetAside(why)) => context.warn(None, why),
            Ok(EarlierRun::Busy(path)) => {
                let what = format!(
                    "another longhaul is already running this copy (journal {}): wait for it, \
                     or end it",
                    EscapedName::from(&*path)
                );
                let target = context.place_name(&request.target);
                context.fail(None, target, what);
                return false;
            }
            Ok(EarlierRun::Found(state)) => {
                if let Err(e) = self.go_on_with(context, &*place, state) {
                    // It has the names of temporaries that a later run can remove.
                    warn_of_journal(context, &os_words(&e));
                    return true;
                }
            }
            Err(e) => {
                // Keep the existing journal until it can be written again. A second one would be
                // left over then.
                warn_of_journal(context, &os_words(&e));
                return true;
            }
        }
        self.records.set_place(place);
        true
    }

    /// Takes over the work of an interrupted run, and appends to its journal.
    ///
    /// # Errors
    ///
    /// The journal cannot be written, and nothing of the run is taken over.
    fn go_on_with(
        &mut self,
        context: &mut CopyContext<'_>,
        place: &dyn JournalStore,
        mut state: Box<JournalState>,
    ) -> std::io::Result<()> {
        let here = self.records.target().is_some();
        if let Some(target) = self.records.target() {
            state.confine(target.as_os_str().as_bytes());
            state.started(context.environment().boot());
        }
        if state.left_out() > 0 {
            let text = format!(
                "the journal of the interrupted copy lists more files than fit in memory: {} of \
                 them are copied again",
                state.left_out()
            );
            context.warn(None, text);
        }
        let files = state.soft_files().filter(|_| here).map(local_path);
        let log = place.go_on(here, state.soft() as u64, files.collect())?;
        let worth = ResumableWork::of(&state);
        self.records.go_on(log, state.next_id(), worth);
        self.records.write(state.seal());
        let seed = state.link_names();
        self.name_links(context, seed);
        self.earlier.set(*state);
        if here {
            let boot = context.environment().boot();
            self.records.write(JournalRecord::Run { boot });
        }
        Ok(())
    }

    /// Target of the sources as the first run resolved the command's target. The journal is used below
    /// that path only.
    pub(super) fn onto_before(&mut self, target: &[u8]) -> Option<TargetPath> {
        self.earlier.onto(target)
    }

    /// Records how the command's target was resolved.
    pub(super) fn note_onto(&mut self, context: &mut CopyContext<'_>, onto: &TargetPath) {
        if !self.records.is_on() {
            return;
        }
        let into = match onto {
            TargetPath::Into(_) => true,
            TargetPath::Exactly(_) => false,
            // The next run guesses again in the same way.
            TargetPath::Guess(_) => return,
        };
        if self.earlier.was_into() == Some(into) {
            return;
        }
        self.records.write(JournalRecord::Onto { into });
        // Such a copy first makes a directory of that name. Without a record of that, the same
        // command would copy into it the next time.
        let makes = !into && context.is_recursive();
        if makes && self.records.log().is_none() {
            self.create(context);
            // Ask now: later the answer would queue behind hundreds of files.
            self.boot.learn(context, &self.records);
        }
    }

    /// True if the earlier run has made the directory at `target`, or one above it.
    pub(super) fn has_made(&self, target: &[u8]) -> bool {
        self.earlier.has_made(target)
    }

    /// Forgets which directories the earlier run has made, because a symlink leads elsewhere now.
    pub(super) fn forget_made(&mut self) {
        self.earlier.forget_made();
    }

    /// Records a directory that was made, or is about to be where nothing is, in one that was there.
    pub(super) fn note_made(&mut self, target: Vec<u8>) {
        if self.records.is_on() {
            self.records
                .write(JournalRecord::MadeDirectory { path: target });
        }
    }

    /// Opens the journal of a copy that is large enough: files wait from now on until their records
    /// are written. Returns the number of the last record.
    fn open(&mut self, context: &mut CopyContext<'_>) -> Option<u64> {
        if self.records.log().is_none() {
            self.create(context);
        }
        let number = self.records.sync_from_now_on()?;
        self.boot.learn(context, &self.records);
        Some(number)
    }

    fn create(&mut self, context: &mut CopyContext<'_>) {
        let created = self.records.create(|| context.environment().boot());
        if let Err(e) = created {
            warn_of_journal(context, &os_words(&e));
        }
        if self.records.log().is_some() {
            self.name_links(context, None);
        }
    }

    /// Has the temporaries of links named after `seed`, or a new one. The journal is written, so that
    /// no other process runs the same copy and nobody else knows the names.
    fn name_links(&mut self, context: &mut CopyContext<'_>, seed: Option<u64>) {
        let seed = seed.unwrap_or_else(|| {
            let seed = context.environment().random();
            self.records.write(JournalRecord::LinkNames { seed });
            seed
        });
        context.name_links_by(seed);
    }

    /// Forgets what an earlier run has left of a file that is copied again.
    pub(super) fn forget_earlier(&mut self, target: &[u8]) {
        self.earlier.forget(target);
    }

    /// Forgets the records of complete files that do not exist.
    pub(super) fn forget_complete(&mut self, targets: impl Iterator<Item = Vec<u8>>) {
        targets.for_each(|target| self.earlier.forget_complete(&target));
    }

    /// Returns true if an earlier run has left files unfinished.
    pub(super) fn has_leftovers(&self) -> bool {
        self.earlier.has_leftovers()
    }

    /// Removes leftovers of files that are no longer sources, and those that appeared at a server
    /// after their removal.
    pub(super) fn clear_leftovers(&mut self, context: &mut CopyContext<'_>) -> LeftoverRemoval {
        self.earlier.clear_leftovers(context)
    }

    /// Searches a server for what an earlier run has left there, before this one copies anything:
    /// temporaries of small files, to be removed, and complete files.
    pub(super) fn search_target(&mut self, context: &mut CopyContext<'_>) -> LeftoverRemoval {
        let resumes = self.records.is_on() && begin::may_resume(context);
        self.earlier.search(context, resumes)
    }

    /// Request that lists a directory for such a search, and the record that collects the answer.
    pub(super) fn listing(
        &self,
        context: &CopyContext<'_>,
        search: &DirectorySearch,
    ) -> (JobKind, PathQueryAnswer) {
        self.earlier.listing(context, search)
    }

    /// Handles the answer of such a listing, which was requested at this time.
    pub(super) fn on_listed(
        &mut self,
        context: &mut CopyContext<'_>,
        (search, asked): (&DirectorySearch, Instant),
        answer: Result<PathQueryAnswer, FileError>,
    ) {
        self.earlier.on_listed(context, (search, asked), answer);
    }

    /// Removes leftovers in the directory `key` of the target, `dir`, that no source has taken.
    /// Returns true if the directory is to wait for removals: [`Self::on_cleared`] returns it then.
    pub(super) fn clear_leftovers_in(
        &mut self,
        context: &mut CopyContext<'_>,
        key: CopyDirectoryId,
        dir: &[u8],
    ) -> bool {
        let records = &mut self.records;
        self.earlier.clear_in(context, records, key, dir)
    }

    /// Handles the end of the removal of a temporary. Returns the directory that waited for it as
    /// the last one.
    pub(super) fn on_cleared(
        &mut self,
        context: &mut CopyContext<'_>,
        removal: TemporaryRemoval,
        removed: Result<(), FileError>,
    ) -> Option<CopyDirectoryId> {
        match removed {
            Ok(()) => removal
                .entry
                .into_iter()
                .for_each(|id| self.forget_entry(id)),
            Err(error) if removal.tells && !error.is_missing() => {
                let path = context.shown(CopySide::Target, &removal.path);
                let what = format!(
                    "cannot remove this temporary file of an interrupted copy ({error}): remove it \
                     by hand"
                );
                context.warn(Some(path), what);
            }
            Err(_) => {}
        }
        self.earlier.cleared_in(removal.dir?)
    }

    /// Forgets the entries whose leftovers are removed.
    pub(super) fn leftovers_cleared(&mut self) {
        self.earlier.leftovers_cleared(&mut self.records);
    }

    /// Reports the files and bytes that are taken over from the earlier run.
    pub(super) fn tell_resumed(&self, context: &mut CopyContext<'_>) {
        if self.records.log().is_some() {
            self.earlier.tell_resumed(context);
        }
    }

    /// Takes the request for the receiver's boot ID, which tells if data that was only in its
    /// memory may be lost; [`Self::boot_answered`] takes the answer. The outer `None` means that
    /// there is nothing to learn.
    pub(super) fn take_boot_request(
        &mut self,
        context: &mut CopyContext<'_>,
    ) -> Option<Option<(JobId, std::path::PathBuf)>> {
        let learns = self.records.log().is_some() && context.target_is_remote();
        learns.then(|| self.boot.take_request(context, &self.records))
    }

    /// Notes the receiver's boot ID, which was downloaded to `file`.
    pub(super) fn boot_answered(&mut self, context: &CopyContext<'_>, file: Option<&Path>) {
        let boot = self.boot.answered(context, file);
        self.earlier.started(boot.clone());
        self.records.write(JournalRecord::Run { boot });
    }

    /// Requests the receiver's boot ID, so that the answer arrives in one round trip with those of
    /// other requests. [`Self::take_boot_request`] takes it.
    pub(super) fn request_boot(&mut self, context: &mut CopyContext<'_>) {
        self.boot.request(context, &self.records);
    }

    /// Removes the answer to a request that nothing has taken.
    pub(super) fn forget_boot_request(&mut self, context: &CopyContext<'_>) {
        self.boot.forget_request(context);
    }

    /// Notes that the lane that asked for the boot ID was lost.
    pub(super) fn lose_boot(&mut self) {
        self.boot.lose();
    }

    pub(super) fn on_boot(&mut self, context: &CopyContext<'_>, file: &Path) {
        self.boot.learned(context, &mut self.records, file);
    }

    /// Handles a reconnect with the host at `end`.
    pub(super) fn on_rejoined(&mut self, context: &mut CopyContext<'_>, end: CopySide) {
        if end == CopySide::Target {
            self.boot.rejoined(context, &mut self.records);
        }
    }

    /// Handles the boot ID after a reconnect. Returns a sentence if the receiver was restarted, and
    /// has lost data that was not synced.
    pub(super) fn boot_change(&mut self, context: &CopyContext<'_>, file: &Path) -> Option<String> {
        if self.boot.is_unchanged(context, &mut self.records, file) {
            return None;
        }
        let host = context
            .side(CopySide::Target)
            .map_or("", |side| side.name());
        Some(format!(
            "{host}: the machine was rebooted while the connection was lost, and lost unsynced \
             data: run the same command again"
        ))
    }

    /// Records the temporary of a file, if it has another name than the first choice.
    pub(super) fn on_temporary(
        &mut self,
        context: &CopyContext<'_>,
        task: &FileTask,
        path: Vec<u8>,
    ) {
        let target = context.named().temporary_place(task.target());
        if let Some(id) = task.resume().renamed(&target, &path) {
            self.records.write(JournalRecord::Temp { id, path });
        }
    }

    /// Records the ranges of a file that have arrived.
    pub(super) fn on_kept(&mut self, task: &FileTask, kept: FileCheckpoint) {
        if let Some(id) = task.resume().entry() {
            self.records.write(JournalRecord::Ranges {
                id,
                durable: kept.durable,
                mtime: kept.mtime,
                ranges: kept.ranges,
            });
        }
    }

    /// Records that a file copied by this run was renamed to its final name. `more` tells if there
    /// is more to copy.
    pub(super) fn note_done(&mut self, context: &mut CopyContext<'_>, task: &FileTask, more: bool) {
        self.completed
            .note_done(context, &mut self.records, task, more);
    }

    /// Records that a file failed and its temporary was removed, so that the next run expects
    /// nothing of it.
    pub(super) fn note_removed(&mut self, task: &FileTask) {
        if let Some(id) = task.resume().entry()
            && task.shared().is_none()
        {
            self.forget_entry(id);
        }
    }

    /// Records that the temporary which had a part of a file is gone.
    pub(super) fn on_starts_over(&mut self, context: &CopyContext<'_>, task: &mut FileTask) {
        let Some((id, tag)) = task.resume().recorded_part() else {
            return;
        };
        let Some(source) = begin::stamp_of(context, task) else {
            return;
        };
        self.forget_entry(id);
        let id = self.records.take_number();
        self.records.write(JournalRecord::Begun {
            id,
            target: task.target().to_vec(),
            source,
            tag,
        });
        task.resume_mut().begins_again(id);
    }

    /// Records that the temporary of file `id` of the journal is gone.
    pub(super) fn forget_entry(&mut self, id: u64) {
        self.records.write(JournalRecord::Forgotten { id });
    }

    /// Records the server's clock, which was requested after this number of `files` without a time.
    pub(super) fn on_clock(&mut self, files: u64, attributes: &Attributes) {
        if let Some(mtime) = note::clock(attributes).filter(|_| files > 0) {
            self.records.write(JournalRecord::Clock { files, mtime });
        }
    }

    /// Reads the server's clock from the last file of a run that ends with failed files, so that
    /// the next run tells apart its files from those that were changed since. Returns false if
    /// there is nothing to read.
    pub(super) fn request_seal(&mut self, context: &mut CopyContext<'_>) -> bool {
        if context.stopped() || context.summary().failed == 0 || !self.goes_on() {
            return false;
        }
        self.completed.request_seal(context)
    }

    /// Removes the local temporaries and the journal of an interrupted run.
    pub(super) fn discard(&mut self, context: &CopyContext<'_>) {
        if let Some(log) = self.records.take_log() {
            self.earlier.sweep(context);
            log.remove();
        }
    }

    /// Writes the collected records before the run waits for anything.
    pub(super) fn write_out(&mut self, context: &mut CopyContext<'_>) {
        if let Err(e) = self.records.write_out() {
            warn_of_journal(context, &os_words(&e));
        }
    }

    /// True if the journal has nothing to resume. Removes local temporaries that it names. A lost
    /// server may keep some, which the same command removes.
    fn is_worthless(&self, context: &CopyContext<'_>, log: &dyn JournalWriter) -> bool {
        let makes = context.is_recursive();
        let Some(target) = self.records.target() else {
            return !context.stopped() && self.records.is_nothing(makes);
        };
        let is_directory = || {
            let there = context.local().stat(target.as_os_str().as_bytes());
            there.is_ok_and(|stat| stat.is_directory())
        };
        if !self.records.is_nothing(makes && is_directory()) {
            return false;
        }
        if let Some(mut left) = log.left() {
            left.confine(target.as_os_str().as_bytes());
            let files: Vec<_> = left
                .unfinished()
                .map(|(_, entry)| (context.named().local_path(&entry.target), entry.tag))
                .collect();
            context.local().sweep_temporaries(&files);
        }
        true
    }

    /// Closes the journal at the end of the run. A complete copy needs none, and a small copy that
    /// ended with failed files starts over next time.
    pub(super) fn close(&mut self, context: &mut CopyContext<'_>, whole: bool) {
        let here = self.records.target().is_some();
        let Some(log) = self.records.take_log() else {
            if !whole && here {
                note::clear_unwritten(context, &mut self.records);
            }
            return;
        };
        let small = !self.records.waits();
        if small && !whole && here {
            note::clear_unwritten(context, &mut self.records);
        }
        if whole || (small && !context.stopped()) || self.is_worthless(context, &*log) {
            log.remove();
        } else if !small {
            context.summary_mut().journal = Some(EscapedName::from(log.path()));
        }
    }
}

fn warn_of_journal(context: &mut CopyContext<'_>, why: &str) {
    let text = format!("this copy cannot be resumed if it is interrupted: {why}");
    context.warn(None, text);
}

/// Reads the journal of an earlier run, waiting for the process that holds its lock: a killed
/// process may take a moment to exit.
async fn find_unlocked(
    context: &mut CopyContext<'_>,
    request: &CopyRequest,
    place: &dyn JournalStore,
) -> std::io::Result<EarlierRun> {
    let mut patience = LockWaitLimit::default();
    loop {
        let found = place.find();
        if !matches!(found, Ok(EarlierRun::Busy(_))) {
            return found;
        }
        match patience.next() {
            Some(LockWaitStep { pause, tell }) => {
                if tell {
                    let what = format!(
                        "another longhaul process is running the same copy: waiting up to {} s \
                         for it to end",
                        LONGEST.as_secs()
                    );
                    let target = context.place_name(&request.target);
                    context.warn(Some(target), what);
                }
                context.pause(pause).await;
                if context.environment().is_cancelled() {
                    return found;
                }
            }
            None => return found,
        }
    }
}

/// Identity of the copy: sources, target and the flags that change the result.
fn identity(context: &CopyContext<'_>, request: &CopyRequest) -> Vec<u8> {
    let mut identity = Vec::new();
    for flag in [
        context.options().recursive,
        context.options().preserve,
        context.options().archive,
    ] {
        identity.push(b'0' + u8::from(flag));
    }
    // A copy made without these flags cannot be resumed with them.
    for (flag, letter) in [
        (context.options().xattrs, b'X'),
        (context.options().acls, b'A'),
        (context.options().hard_links, b'H'),
        (context.options().sparse, b'S'),
        (context.options().numeric_ids, b'n'),
    ] {
        identity.extend(flag.then_some(letter));
    }
    if context.options().part > 0 {
        identity.extend([b'P', b'0'.saturating_add(context.options().part)]);
    }
    if let Some(dir) = &context.options().temp_dir {
        identity.push(b'T');
        identity.extend_from_slice(dir.path());
    }
    if let Some(folder) = &context.options().journal_folder {
        identity.push(b'K');
        identity.extend_from_slice(&folder.key);
    }
    for place in request.sources.iter().chain([&request.target]) {
        identity.push(0);
        identity.extend_from_slice(&context.place_name(place).0);
    }
    identity
}
