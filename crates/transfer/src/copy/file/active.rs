//! Files in flight, and the items that wait for one of them to leave its target.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use schedule::{Attributes, ExtraMetadata, JobFailure, JobFailureKind, JobKind, RemotePath};
use sftp::InodeId;

use super::{
    CopyFileId, FileTask, GuessedTarget, InPlaceState, JobRole, SharedTemporaryFile, SourceVersion,
};
use crate::copy::context::CopyContext;
use crate::copy::jobs::JobPurpose;
use crate::copy::local_file_ops::LocalFileCopySettings;
use crate::copy::metadata::MetadataPreservation;
use crate::copy::names::basename;
use crate::copy::relayed::RelayedFileOutcome;
use crate::copy::resolve::NOT_A_DIRECTORY;
use crate::copy::resume::ResumeTask;
use crate::copy::sides::CopySide;
use crate::copy::target_kind::{ReportedTargetKind, TargetGuess, UploadRetryDecision};
use crate::copy::tree::{FailureScope, IncompleteTargetDirs, ItemAwaitingDirectory};
use crate::copy::verify::Verification;
use crate::copy::xattrs::XattrAnswer;
use crate::file_error::FileError;
use crate::report::{CopyEvent, EscapedName};
use crate::sums::FileChecksums;
use crate::walk::{join, local_path};

/// Warning for a copy that may mix two states of its source.
const CHANGED: &str = "the source changed while it was copied: the copy may mix two versions; copy \
    it again";

/// The user wrote `target/`, where nothing is.
const NO_DIRECTORY: &str = "no such directory: create it first";

/// The user wrote `source/.` without `-r`.
const IS_DIRECTORY: &str = "it is a directory: use -r to copy it";

/// Failure of a file of which other processes copy other ranges.
const SHARED_CHANGED: &str = "changed since the plan was made: make a new plan in another folder";

/// Files that are being copied.
#[derive(Debug, Default)]
pub(in crate::copy) struct ActiveFiles {
    /// Number of files begun so far.
    begun: u64,
    /// Boxed, because thousands are in flight and removing an entry moves its neighbours in the
    /// map.
    tasks: BTreeMap<CopyFileId, Box<FileTask>>,
    /// Targets of the files in flight, with the items that must wait for one of them.
    places: BTreeMap<Vec<u8>, VecDeque<ItemAwaitingDirectory>>,
    /// Bytes that relays may hold for the files in flight.
    relayed: u64,
    /// Files whose temporaries other processes write as well, by target path.
    shared: BTreeMap<Vec<u8>, SharedTemporaryFile>,
    /// Target for which the guess about its kind was wrong, and true if it is a file.
    learned_place: Option<(Vec<u8>, bool)>,
}

/// Next step of a file, which concerns other parts of the copy.
#[derive(Debug)]
pub(in crate::copy) enum FileStep {
    /// The file waits for its jobs or for another answer, or is no longer in flight.
    Waits,
    /// The file starts, or starts again.
    Start(CopyFileId),
    /// The source has changed: the file is copied again from its start.
    CopyAgain(CopyFileId),
    /// The file is complete under its final name.
    Done(CopyFileId),
    /// The file failed at this end.
    Failed(CopyFileId, CopySide, FileError),
    /// The directory of the file could not be made.
    Dropped(CopyFileId),
}

impl ActiveFiles {
    /// Number of files begun so far.
    pub(in crate::copy) fn begun(&self) -> u64 {
        self.begun
    }

    /// ID of the next file.
    fn next_id(&self) -> CopyFileId {
        CopyFileId(self.begun + 1)
    }

    /// Takes an ID for a file that is not copied, such as a hard link.
    pub(in crate::copy) fn take_id(&mut self) -> CopyFileId {
        self.begun += 1;
        CopyFileId(self.begun)
    }

    pub(in crate::copy) fn get(&self, id: &CopyFileId) -> Option<&FileTask> {
        self.tasks.get(id).map(Box::as_ref)
    }

    pub(in crate::copy) fn get_mut(&mut self, id: &CopyFileId) -> Option<&mut FileTask> {
        self.tasks.get_mut(id).map(Box::as_mut)
    }

    pub(in crate::copy) fn remove(&mut self, id: &CopyFileId) -> Option<Box<FileTask>> {
        self.tasks.remove(id)
    }

    pub(in crate::copy) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(in crate::copy) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Bytes that this run has moved of the files in flight.
    pub(in crate::copy) fn moved(&self) -> u64 {
        self.tasks.values().map(|task| task.moved()).sum()
    }

    /// Bytes that relays may hold for the files in flight.
    pub(in crate::copy) fn relayed(&self) -> u64 {
        self.relayed
    }

    pub(in crate::copy) fn hold_for_relay(&mut self, bytes: u64) {
        self.relayed += bytes;
    }

    pub(in crate::copy) fn release_from_relay(&mut self, bytes: u64) {
        self.relayed -= bytes;
    }

    /// Occupies the target of `item`. Returns the item, unless it has to wait for another file that
    /// is written there.
    pub(in crate::copy) fn occupy(
        &mut self,
        item: ItemAwaitingDirectory,
    ) -> Option<ItemAwaitingDirectory> {
        if let Some(waiting) = self.places.get_mut(&item.target) {
            waiting.push_back(item);
            return None;
        }
        self.places.insert(item.target.clone(), VecDeque::new());
        Some(item)
    }

    /// Records that writing to `target` has ended. Returns the next item that waits for it, which
    /// now occupies it.
    pub(in crate::copy) fn vacate(&mut self, target: &[u8]) -> Option<ItemAwaitingDirectory> {
        let mut waiting = self.places.remove(target)?;
        let next = waiting.pop_front()?;
        self.places.insert(target.to_vec(), waiting);
        Some(next)
    }

    /// Drops the items that wait.
    pub(in crate::copy) fn drop_waiting(&mut self) {
        self.places.clear();
    }

    /// Notes that other processes write the temporary of a target as well.
    pub(in crate::copy) fn share(&mut self, target: Vec<u8>, file: SharedTemporaryFile) {
        self.shared.insert(target, file);
    }

    /// Takes the target for which the guess about its kind was wrong, and true if it is a file.
    pub(in crate::copy) fn take_learned_place(&mut self) -> Option<(Vec<u8>, bool)> {
        self.learned_place.take()
    }

    /// Begins a file whose target may be a directory: queries the target, so that the upload starts
    /// at once, on a guess. `link` is the file's identity if its other names become hard links.
    pub(in crate::copy) fn begin_guessed(
        &mut self,
        context: &mut CopyContext<'_>,
        item: ItemAwaitingDirectory,
        target: Vec<u8>,
        link: Option<InodeId>,
    ) -> CopyFileId {
        let name = basename(&item.entry.path).to_vec();
        let side = context.side(CopySide::Target);
        let was_file = side.is_some_and(|side| side.session().was_file(&target));
        let guess = TargetGuess::new(&target, &name, was_file);
        let path = place(guess, &target, &name);
        let stat = JobKind::Stat {
            path: RemotePath(target.clone()),
            follow: true,
        };
        // Submitted before the upload, so that its answer is there if the upload fails.
        context.submit(CopySide::Target, stat, JobPurpose::Guess(self.next_id()));
        let guessing = GuessedTarget {
            guess,
            target,
            is: None,
            fault: None,
        };
        let item = ItemAwaitingDirectory {
            target: path,
            ..item
        };
        self.begin_with(context, item, link, Some(guessing))
    }

    /// Begins a file whose target is not being written. `link` is the file's identity if its other
    /// names become hard links.
    pub(in crate::copy) fn begin(
        &mut self,
        context: &mut CopyContext<'_>,
        item: ItemAwaitingDirectory,
        link: Option<InodeId>,
    ) -> CopyFileId {
        self.begin_with(context, item, link, None)
    }

    fn begin_with(
        &mut self,
        context: &mut CopyContext<'_>,
        item: ItemAwaitingDirectory,
        link: Option<InodeId>,
        guess: Option<GuessedTarget>,
    ) -> CopyFileId {
        let attributes = item.entry.attributes;
        let shared = self.shared.get(&item.target).copied();
        // A root that was not queried has no mode yet.
        let known = attributes.mode.is_some();
        let task = FileTask {
            identity: item.entry.identity,
            source_name: context.shown(CopySide::Source, &item.entry.path),
            source: item.entry.path,
            target: item.target,
            dir: item.dir,
            attributes: known.then_some(attributes),
            size: match shared {
                Some(shared) => Some(shared.work.bytes()),
                None => attributes.size,
            },
            confirmed: 0,
            state: None,
            in_place: InPlaceState::default(),
            overwritten: None,
            synced: false,
            resume: ResumeTask::default(),
            reused: 0,
            relay: None,
            stranded: None,
            guess: guess.map(Box::new),
            sums: None,
            source_version: SourceVersion::Unknown,
            changed: false,
            repeats: 0,
            beyond: ExtraMetadata {
                owner: attributes.owner.filter(|_| context.options().archive),
                ..ExtraMetadata::default()
            },
            xattrs_asked: false,
            shared,
            link,
        };
        context.progress().add_file(task.size);
        let (source, size) = (task.source_name.clone(), task.size);
        let target = context.shown(CopySide::Target, &task.target);
        let id = self.take_id();
        self.tasks.insert(id, Box::new(task));
        context.tell(CopyEvent::FileStarted {
            id: id.0,
            source,
            target,
            size,
        });
        id
    }

    /// Queries an unknown remote source: only regular files are opened, and a large one is divided or
    /// can be resumed. Returns false if there is no answer to wait for.
    pub(in crate::copy) fn asks_for_source(
        &mut self,
        context: &mut CopyContext<'_>,
        id: CopyFileId,
    ) -> bool {
        let Some(task) = self.get(&id) else {
            return false;
        };
        if task.attributes.is_some() || !context.source_is_remote() {
            return false;
        }
        let path = RemotePath(task.source.clone());
        let kind = JobKind::Stat { path, follow: true };
        let asked = context.submit(CopySide::Source, kind, JobPurpose::Size(id));
        if asked.is_none() {
            self.remove(&id);
        }
        true
    }

    /// Requests the extended attributes of a file if they are kept. Returns false if there is no
    /// answer to wait for.
    pub(in crate::copy) fn request_xattrs(
        &mut self,
        context: &mut CopyContext<'_>,
        metadata: &mut MetadataPreservation,
        id: CopyFileId,
    ) -> bool {
        let Some(task) = self.get_mut(&id) else {
            return false;
        };
        if !task.begin_xattrs() {
            return false;
        }
        match metadata.ask_xattrs(context, &task.source, JobPurpose::FileXattrs(id)) {
            XattrAnswer::Later => return true,
            XattrAnswer::Known(xattrs) => task.set_xattrs(xattrs),
            XattrAnswer::Unknown => {}
        }
        false
    }

    /// Copies a file whose journal records are written: submits its jobs, or copies it at once if
    /// both ends are this machine.
    pub(in crate::copy) fn copy(
        &mut self,
        context: &mut CopyContext<'_>,
        metadata: &mut MetadataPreservation,
        tree: &IncompleteTargetDirs,
        verify: &Verification,
        id: CopyFileId,
    ) -> FileStep {
        let Some(task) = self.get_mut(&id) else {
            return FileStep::Waits;
        };
        let is_fresh = task.dir.is_some_and(|dir| tree.is_fresh(dir));
        // A file in a directory has a name behind the slash, unless the source is a directory's `.`.
        if task.guess.is_none() && matches!(basename(&task.source), b"." | b"..") {
            return FileStep::Failed(id, CopySide::Source, IS_DIRECTORY.into());
        }
        if task.guess.is_none() && (task.target.ends_with(b"/") || task.target.ends_with(b"/.")) {
            return FileStep::Failed(id, CopySide::Target, NO_DIRECTORY.into());
        }
        let ends = (context.source_is_remote(), context.target_is_remote());
        if !context.target_is_remote() {
            task.may_overwrite(context, is_fresh);
        }
        if ends == (false, false) {
            return self.copy_here(context, metadata, verify.sums(), id);
        }
        let options = task.put_options(context, metadata.sets_owners(), is_fresh);
        match ends {
            (false, _) => {
                let kind = task.put_job(context, options);
                self.submit(context, CopySide::Target, kind, id);
            }
            (true, false) => {
                let kind = task.get_job(context, options);
                self.submit(context, CopySide::Source, kind, id);
            }
            (true, true) => self.start_relayed(context, verify.sums(), id, options),
        }
        FileStep::Waits
    }

    fn submit(
        &mut self,
        context: &mut CopyContext<'_>,
        end: CopySide,
        kind: JobKind,
        id: CopyFileId,
    ) {
        let purpose = JobPurpose::File(id, JobRole::Whole);
        let size = self.get(&id).and_then(|task| task.size);
        if context.submit_sized(end, kind, purpose, size).is_none() {
            // The run is ending, and its reason is reported elsewhere.
            self.remove(&id);
        }
    }

    fn copy_here(
        &mut self,
        context: &mut CopyContext<'_>,
        metadata: &mut MetadataPreservation,
        sums: Option<Arc<FileChecksums>>,
        id: CopyFileId,
    ) -> FileStep {
        let Some(task) = self.get_mut(&id) else {
            return FileStep::Waits;
        };
        let target = context.named().local_path(&task.target);
        let local = context.local();
        let progress = context.progress();
        let beyond = task.beyond.clone();
        if let Ok(stat) = local.stat(&task.source) {
            task.opened_as(stat.attributes);
        }
        let source = local_path(&task.source);
        progress.set_current(&task.source_name);
        task.sums.clone_from(&sums);
        let settings = LocalFileCopySettings {
            options: context.options(),
            sums: sums.as_ref(),
            beyond: &beyond,
        };
        let result = local.copy_file(&source, &target, &settings, &mut |n| {
            task.confirmed += n;
            progress.add_bytes(n);
        });
        match result {
            Ok((state, stored)) => {
                task.state = Some(state);
                if stored.in_place {
                    task.goes_in_place();
                }
                task.tell_stored(context, metadata, stored);
                FileStep::Done(id)
            }
            Err((end, error)) => FileStep::Failed(id, end, error),
        }
    }

    /// Counts bytes that the receiver has confirmed.
    pub(in crate::copy) fn on_progress(
        &mut self,
        context: &CopyContext<'_>,
        verify: &mut Verification,
        id: CopyFileId,
        n: u64,
    ) {
        if let Some(task) = self.get_mut(&id) {
            let progress = context.progress();
            // Bytes that an earlier job has sent are reported with the first bytes of this one.
            let adopted = task.resume.adopted();
            let earlier = match task.confirmed == 0 && n >= adopted {
                true => adopted,
                false => 0,
            };
            task.confirmed += n;
            progress.add_earlier(earlier);
            progress.add_bytes(n - earlier);
            // The file has grown, so the total grows too.
            let size = task.size.unwrap_or(task.confirmed);
            if task.confirmed > size {
                progress.add_size(Some(task.confirmed - size));
                task.size = Some(task.confirmed);
            }
            verify.note_progress(context.now(), n);
            progress.set_current(&task.source_name);
        }
    }

    /// Takes the attributes of a source that was unknown.
    pub(in crate::copy) fn on_source(
        &mut self,
        context: &CopyContext<'_>,
        id: CopyFileId,
        attributes: Attributes,
    ) {
        if let Some(task) = self.get_mut(&id)
            && task.attributes.is_none()
        {
            task.attributes = Some(attributes);
            if task.size.is_none() {
                task.size = attributes.size;
                context.progress().add_size(attributes.size);
            }
        }
    }

    /// Handles the end of the query for a source's attributes.
    pub(in crate::copy) fn on_source_over(
        &mut self,
        id: CopyFileId,
        said: Result<(), FileError>,
    ) -> FileStep {
        match said {
            Ok(()) => {
                if let Some(task) = self.get_mut(&id) {
                    task.attributes.get_or_insert_default();
                }
                FileStep::Start(id)
            }
            Err(error) => FileStep::Failed(id, CopySide::Source, error),
        }
    }

    /// Handles the kind of a guessed target, or the reason why the server did not report it.
    pub(in crate::copy) fn on_guessed(
        &mut self,
        context: &CopyContext<'_>,
        id: CopyFileId,
        is: Result<ReportedTargetKind, FileError>,
    ) -> FileStep {
        let Some(guessing) = self.get_mut(&id).and_then(|task| task.guess.as_deref_mut()) else {
            return FileStep::Waits;
        };
        guessing.is = Some(is);
        match guessing.fault.take() {
            Some(fault) => self.judge(context, id, fault),
            None => FileStep::Waits,
        }
    }

    /// Decides what to do after a failed upload to a guessed target.
    fn judge(&mut self, context: &CopyContext<'_>, id: CopyFileId, fault: JobFailure) -> FileStep {
        let Some(task) = self.tasks.get_mut(&id) else {
            return FileStep::Waits;
        };
        let Some(mut guessing) = task.guess.take() else {
            return FileStep::Waits;
        };
        let is = match &guessing.is {
            None => {
                guessing.fault = Some(fault);
                task.guess = Some(guessing);
                return FileStep::Waits;
            }
            Some(Ok(is)) => *is,
            // An upload into a directory that does not exist answers a refused query as well.
            Some(Err(error)) if error.is_missing() || fault.kind == JobFailureKind::NotFound => {
                ReportedTargetKind::Missing
            }
            // The target's kind is still unknown, as after a lost connection.
            Some(Err(_)) => return failed(context, id, fault),
        };
        match guessing.guess.judge(&guessing.target, is) {
            _ if context.is_lost() => failed(context, id, fault),
            UploadRetryDecision::Final => failed(context, id, fault),
            UploadRetryDecision::Retry(guess) => {
                task.target = place(guess, &guessing.target, basename(&task.source));
                task.resume.forget();
                context.progress().take_back(task.take_back());
                self.learned_place = Some((guessing.target, guess == TargetGuess::Exact));
                FileStep::Start(id)
            }
            UploadRetryDecision::NoDirectory => {
                let what = match is {
                    ReportedTargetKind::Missing => NO_DIRECTORY,
                    _ => NOT_A_DIRECTORY,
                };
                task.target = guessing.target;
                FileStep::Failed(id, CopySide::Target, what.into())
            }
        }
    }

    /// Handles the end of a file's job.
    pub(in crate::copy) fn on_over(
        &mut self,
        context: &mut CopyContext<'_>,
        tree: &mut IncompleteTargetDirs,
        (id, role): (CopyFileId, JobRole),
        result: Result<(), JobFailure>,
    ) -> FileStep {
        let Some(task) = self.get_mut(&id) else {
            return FileStep::Waits;
        };
        if task.relay.is_some() {
            return match self.on_relayed(context, id, role, result) {
                RelayedFileOutcome::Waits => FileStep::Waits,
                RelayedFileOutcome::Done => FileStep::Done(id),
                RelayedFileOutcome::Again if !context.stopped() => {
                    self.prepare_relayed_again(context, id);
                    FileStep::Start(id)
                }
                RelayedFileOutcome::Again => {
                    FileStep::Failed(id, CopySide::Source, context.why_stopped())
                }
                RelayedFileOutcome::Failed(side, fault) => {
                    // After too many losses the temporary stays for the next run.
                    if fault.kind != JobFailureKind::ConnectionLost {
                        self.clear_relayed(context, id);
                    }
                    FileStep::Failed(id, side, fault.into())
                }
                RelayedFileOutcome::NotCopied => {
                    let what = "internal error: the file was not copied".to_owned();
                    FileStep::Failed(id, CopySide::Source, what.into())
                }
            };
        }
        match result {
            Ok(()) => FileStep::Done(id),
            Err(fault) if task.guess.is_some() => self.judge(context, id, fault),
            Err(fault) => match tree.blame(task.dir, id) {
                FailureScope::File => failed(context, id, fault),
                FailureScope::Undecided => FileStep::Waits,
                FailureScope::Directory => FileStep::Dropped(id),
            },
        }
    }

    /// Restarts a file that failed before its directory was known to exist.
    pub(in crate::copy) fn again(&mut self, context: &CopyContext<'_>, id: CopyFileId) -> FileStep {
        let Some(task) = self.get_mut(&id) else {
            return FileStep::Waits;
        };
        context.progress().take_back(task.take_back());
        task.state = None;
        FileStep::Start(id)
    }

    /// Handles a job of a file that starts again because its connection was lost.
    pub(in crate::copy) fn on_restarted(&mut self, context: &mut CopyContext<'_>, id: CopyFileId) {
        if self.on_relay_restarted(context, id) {
            return;
        }
        let Some(task) = self.get_mut(&id) else {
            return;
        };
        context.progress().take_back(task.restart());
        if let Some(temporary) = task.stranded.clone().map(EscapedName) {
            let target = context.shown(CopySide::Target, &task.target);
            context.warn(
                Some(target),
                format!(
                    "the connection was lost while the old file was renamed to {temporary}: \
                     rename it back if the new file is missing"
                ),
            );
        }
    }

    /// Handles a changed source of a complete file: copies the file again, or fails it if other
    /// processes copy its other ranges. Returns `None` if the source is unchanged, or, after a
    /// warning, if the file cannot be copied again.
    pub(in crate::copy) fn follow_change(
        &mut self,
        context: &mut CopyContext<'_>,
        id: CopyFileId,
    ) -> Option<FileStep> {
        let task = self.get_mut(&id)?;
        if !task.has_changed(&*context.local()) {
            return None;
        }
        let stopped = context.stopped();
        if task.shared.is_some() && !stopped {
            let what = SHARED_CHANGED.to_owned();
            return Some(FileStep::Failed(id, CopySide::Source, what.into()));
        }
        if stopped || !task.may_follow_change() {
            context.warn(Some(task.source_name.clone()), CHANGED.to_owned());
            return None;
        }
        context.progress().take_back(task.follow_change());
        context.warn(
            Some(task.source_name.clone()),
            schedule::SOURCE_CHANGED.to_owned(),
        );
        Some(FileStep::CopyAgain(id))
    }

    /// Ends a file that failed at `end`, and reports it.
    pub(in crate::copy) fn fail(
        &mut self,
        context: &mut CopyContext<'_>,
        id: CopyFileId,
        end: CopySide,
        mut fault: FileError,
    ) -> Option<Box<FileTask>> {
        let task = self.remove(&id)?;
        context.progress().file_done();
        if context.stopped() {
            context.summary_mut().unfinished += task.moved();
        }
        let stranded = task.stranded.clone().map(EscapedName);
        // The lane that lost the file may have named it already.
        if let Some(name) = stranded.map(|name| name.to_string())
            && !fault.what().contains(&name)
        {
            fault.push(&format!(
                "; the old file was renamed to {name}: rename it back if the new file is missing"
            ));
        }
        name_incomplete(context, &task, end, &mut fault);
        let name = match end {
            CopySide::Source => task.source_name.clone(),
            CopySide::Target => context.shown(CopySide::Target, &task.target),
        };
        context.fail(Some(id.0), name, fault);
        Some(task)
    }

    /// Names the files in flight that an interrupted run leaves incomplete under their final names.
    pub(in crate::copy) fn warn_of_incomplete(&self, context: &mut CopyContext<'_>) {
        for task in self.tasks.values() {
            if context.is_cancelled() && task.may_be_incomplete(context, true) {
                warn_of_incomplete(context, task);
            }
        }
    }
}

/// Adds to the failure of a file that was opened under its final name that it may be incomplete
/// there. An interrupted run reports no failures, so that this is a warning.
fn name_incomplete(
    context: &mut CopyContext<'_>,
    task: &FileTask,
    end: CopySide,
    fault: &mut FileError,
) {
    // The lane that wrote the file has said so if it saw the end.
    let is_told = fault.tells_incomplete();
    let is_lost = end == CopySide::Source || context.is_lost();
    if context.is_cancelled() {
        if is_told || task.may_be_incomplete(context, false) {
            warn_of_incomplete(context, task);
        }
    } else if !is_told && task.may_be_incomplete(context, is_lost) {
        let target = context.shown(CopySide::Target, &task.target);
        fault.push(&format!(
            "; {target} was being written and may be incomplete now"
        ));
    }
}

fn warn_of_incomplete(context: &mut CopyContext<'_>, task: &FileTask) {
    let target = context.shown(CopySide::Target, &task.target);
    let what = "interrupted while this file was being written: it may be incomplete now";
    context.warn(Some(target), what.to_owned());
}

/// Failure of a file's job, at the end that caused it.
fn failed(context: &CopyContext<'_>, id: CopyFileId, mut fault: JobFailure) -> FileStep {
    // A file between two hosts has two jobs, each with its own end (`on_relayed`).
    let end = match fault.remote == context.source_is_remote() {
        true => CopySide::Source,
        false => CopySide::Target,
    };
    // This machine's words for a target that cannot be opened do not say what is missing.
    if end == CopySide::Target && !fault.remote && fault.kind == JobFailureKind::NotFound {
        fault.what = format!(
            "cannot create the file: {}: create its directory first",
            fault.what
        );
    }
    FileStep::Failed(id, end, fault.into())
}

fn place(guess: TargetGuess, target: &[u8], name: &[u8]) -> Vec<u8> {
    match guess {
        TargetGuess::Exact => target.to_vec(),
        TargetGuess::Into => join(target, name),
    }
}
