mod task;

use std::sync::Arc;

use schedule::journal::SourceId;
use schedule::{
    Attributes, ExistingTarget, ExtraMetadata, FileState, JobFailure, JobKind, LocalPath,
    PutOptions, RemotePath, SharedTemp, StoredTarget, UNWRITABLE,
};
use sftp::InodeId;

use super::DeltaUse;
use super::engine::{CopyEngine, CopySide, JobPurpose};
use super::local_ops::{CopySettings, LocalOps};
use super::metadata::special_bits;
use super::names::basename;
use super::relayed::{RelayOutcome, RelayedFileJobs};
use super::resume::{ResumeTask, is_durable};
use super::target_kind::{ReportedTargetKind, RetryVerdict, TargetGuess};
use super::tree::{DirKey, FailureScope, PendingItem};
use crate::report::{CopyEvent, EscapedName};
use crate::sums::FileSums;
use crate::walk::{join, local_path};

/// Warning for a copy that may mix two states of its source.
const CHANGED: &str = "the source changed while it was copied: the copy may mix two versions";

/// Failure of a file of which other processes copy other ranges.
const SHARED_CHANGED: &str = "changed since the plan was made: make a new plan in another folder";

/// Identifies a file of the run, also in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId(pub(super) u64);

/// Part of a file's copy that a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobRole {
    /// The whole copy.
    Whole,
    /// Reads the file from one host into the relay.
    RelayGet,
    /// Writes the file from the relay to the other host.
    RelayPut,
}

/// Work on a temporary that other processes write as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedFile {
    /// Number from which the name of the temporary is made.
    pub(crate) tag: u64,
    /// Size of the file in bytes.
    pub(crate) size: u64,
    /// Work of this process.
    pub(crate) work: SharedTemp,
}

/// File that is being copied.
#[derive(Debug)]
pub(super) struct FileTask {
    source: Vec<u8>,
    target: Vec<u8>,
    source_name: EscapedName,
    dir: Option<DirKey>,
    attributes: Option<Attributes>,
    /// Identity and size of a local source as the walk saw it.
    identity: Option<SourceId>,
    size: Option<u64>,
    confirmed: u64,
    state: Option<FileState>,
    /// The file was written under its final name.
    in_place: bool,
    /// The file was made durable before the rename.
    synced: bool,
    resume: ResumeTask,
    /// Bytes taken from the basis file at the receiver.
    reused: u64,
    relay: Option<RelayedFileJobs>,
    /// Name of the only complete copy at the target, if the server cannot rename over the old file,
    /// which has been removed.
    stranded: Option<Vec<u8>>,
    guess: Option<GuessedTarget>,
    /// Checksums of the data that passed, if checksums are wanted.
    sums: Option<Arc<FileSums>>,
    /// Attributes of a local source when it was opened, if it is read in several pieces.
    opened: Option<Attributes>,
    /// The source changed during the copy, which was repeated for that reason.
    changed: bool,
    /// Number of repeated copies.
    repeats: u8,
    /// Metadata to set beyond mode and times, and true once extended attributes were queried.
    beyond: ExtraMetadata,
    xattrs_asked: bool,
    /// Work on a temporary that other processes write as well.
    shared: Option<SharedFile>,
    /// Identity of a file of which other names will be hard links to this copy.
    link: Option<InodeId>,
}

#[derive(Debug)]
struct GuessedTarget {
    guess: TargetGuess,
    /// Target path as the user wrote it.
    target: Vec<u8>,
    is: Option<ReportedTargetKind>,
    /// Reason for which the server did not report the type of the target.
    refusal: Option<String>,
    fault: Option<JobFailure>,
}

impl CopyEngine<'_> {
    /// Copies a file to a target that may be a directory: queries the target and starts the upload
    /// at once, on a guess.
    pub(super) fn begin_guessed(&mut self, item: PendingItem, target: Vec<u8>) {
        let name = basename(&item.entry.path).to_vec();
        let side = self.side(CopySide::Target);
        let was_file = side.is_some_and(|side| side.session().was_file(&target));
        let guess = TargetGuess::new(&target, &name, was_file);
        let path = place(guess, &target, &name);
        let stat = JobKind::Stat {
            path: RemotePath(target.clone()),
            follow: true,
        };
        let id = self.files.next_id();
        // Submitted before the upload, so that its answer is there if the upload fails.
        self.ports
            .submit(CopySide::Target, stat, JobPurpose::Guess(id));
        let guessing = GuessedTarget {
            guess,
            target,
            is: None,
            refusal: None,
            fault: None,
        };
        self.begin_file_with(
            PendingItem {
                target: path,
                ..item
            },
            Some(guessing),
        );
    }

    /// Starts a file, or defers it while another one is written to the same target. A listing may
    /// contain a name twice, and two writers of one file would mix their data.
    pub(super) fn begin_file(&mut self, item: PendingItem) {
        if let Some(item) = self.files.occupy(item) {
            self.begin_file_with(item, None);
        }
    }

    /// Records that writing to `target` has ended, and starts the next file that waits for it.
    fn free_place(&mut self, target: &[u8]) {
        let stopped = self.stopped();
        if let Some(next) = self.files.vacate(target).filter(|_| !stopped) {
            self.begin_file_with(next, None);
        }
    }

    fn begin_file_with(&mut self, item: PendingItem, guess: Option<GuessedTarget>) {
        let link = self.hard_links.link_of(&item);
        let attributes = item.entry.attributes;
        let shared = self.shared.get(&item.target).copied();
        // A root that was not queried has no mode yet.
        let known = attributes.mode.is_some();
        let task = FileTask {
            identity: item.entry.identity,
            source_name: self.shown(CopySide::Source, &item.entry.path),
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
            in_place: false,
            synced: false,
            resume: ResumeTask::default(),
            reused: 0,
            relay: None,
            stranded: None,
            guess,
            sums: None,
            opened: None,
            changed: false,
            repeats: 0,
            beyond: ExtraMetadata {
                owner: attributes.owner.filter(|_| self.options.archive),
                ..ExtraMetadata::default()
            },
            xattrs_asked: false,
            shared,
            link,
        };
        self.progress.add_file(task.size);
        let (source, size) = (task.source_name.clone(), task.size);
        let target = self.shown(CopySide::Target, &task.target);
        let id = self.files.begin(task);
        let started = CopyEvent::FileStarted {
            id: id.0,
            source,
            target,
            size,
        };
        self.tell(started);
        self.start_file(id);
    }

    pub(super) fn start_file(&mut self, id: FileId) {
        let Some(task) = self.files.get(&id) else {
            return;
        };
        // For a download, query unknown sources first: only regular files are opened, and a large
        // one is divided.
        let unknown =
            task.attributes.is_none() && self.source_is_remote() && !self.target_is_remote();
        if unknown {
            let path = RemotePath(task.source.clone());
            let kind = JobKind::Stat { path, follow: true };
            if self
                .ports
                .submit(CopySide::Source, kind, JobPurpose::Size(id))
                .is_none()
            {
                self.files.remove(&id);
            }
            return;
        }
        if let Some(task) = self.files.get_mut(&id) {
            let decided = self.keeper.keep(&mut self.ports, id, task);
            self.after_decision(id, decided);
        }
    }

    /// Starts a file once its journal records are written.
    pub(super) fn start_kept(&mut self, id: FileId) {
        if self.ask_file_xattrs(id) {
            return;
        }
        let Some(task) = self.files.get(&id) else {
            return;
        };
        let mut beyond = task.beyond.clone();
        beyond.owner = beyond.owner.filter(|_| self.metadata.sets_owners());
        beyond.special_bits = special_bits(&self.ports).keeps();
        let one_end = !self.source_is_remote() || !self.target_is_remote();
        let options = PutOptions {
            keep: task.resume.keep(),
            preserve: self.options.preserve || self.options.archive,
            inplace: self.options.inplace,
            temp_dir: self.options.temp_dir.clone(),
            fsync: self.options.fsync,
            existing: ExistingTarget {
                fresh: task.repeats == 0 && task.dir.is_some_and(|dir| self.tree.is_fresh(dir)),
                // Only the path that the user named is written through a symlink.
                replace_link: !self.ports.named().is(&task.target)
                    || self.ports.named().has_made_link(&task.target),
            },
            // Data between two hosts arrives in order, so holes cannot be skipped.
            sparse: self.options.sparse && one_end,
            beyond,
        };
        let (source, target) = (task.source.clone(), task.target.clone());
        match (self.source_is_remote(), self.target_is_remote()) {
            (false, false) => self.copy_here(id),
            (false, true) => {
                let size = task.size.unwrap_or(0);
                let local = self.local();
                let delta = self.options.delta;
                let kind = put(&*local, delta, size, (source, target), options);
                self.submit_file(CopySide::Target, kind, id);
            }
            (true, false) => {
                let known = task.attributes;
                let target = self.ports.named().local_path(&target);
                let kind = self.get(known, (source, target), options);
                self.submit_file(CopySide::Source, kind, id);
            }
            (true, true) => {
                let sums = self.verify.sums();
                self.files.start_relayed(&mut self.ports, sums, id, options);
            }
        }
    }

    fn submit_file(&mut self, end: CopySide, kind: JobKind, id: FileId) {
        let purpose = JobPurpose::File(id, JobRole::Whole);
        let size = self.files.get(&id).and_then(|task| task.size);
        if self.ports.submit_sized(end, kind, purpose, size).is_none() {
            // The run is ending, and its reason is reported elsewhere.
            self.files.remove(&id);
        }
    }

    /// Creates the job of a download, using an older local file as a basis if there is one.
    fn get(
        &self,
        known: Option<Attributes>,
        (source, target): (Vec<u8>, LocalPath),
        options: PutOptions,
    ) -> JobKind {
        let source = RemotePath(source);
        let keep = options.keep.as_ref();
        let left = keep.is_some_and(|keep| keep.left.is_some());
        let size = known.and_then(|known| known.size).unwrap_or(0);
        let rebuilds = || {
            let older = self.local().look(&target).filter(|stat| stat.is_file());
            older.is_some_and(|stat| schedule::delta::may_be_forms(size, stat.id.size))
        };
        let whole = options.inplace || left || size < schedule::delta::LEAST || !rebuilds();
        let delta = self.options.delta;
        match delta {
            DeltaUse::Auto | DeltaUse::Always if !whole => JobKind::GetDelta {
                source,
                target,
                known,
                options,
                always: delta == DeltaUse::Always,
            },
            _ => JobKind::Get {
                source,
                target,
                known,
                options,
            },
        }
    }

    /// Notes that the replaced file had other names, which keep the old contents. With --hard-links
    /// the other names follow.
    pub(super) fn on_other_names(&mut self, id: FileId, names: u64) {
        if names == 0 || self.options.hard_links {
            return;
        }
        if let Some(task) = self.files.get(&id) {
            let name = self.shown(CopySide::Target, &task.target);
            self.metadata.withheld().note_other_names(name);
        }
    }

    fn copy_here(&mut self, id: FileId) {
        let Some(task) = self.files.get(&id) else {
            return;
        };
        let target = self.ports.named().local_path(&task.target);
        let local = self.local();
        let Some(task) = self.files.get_mut(&id) else {
            return;
        };
        let progress = self.progress;
        let beyond = task.beyond.clone();
        task.opened = local.stat(&task.source).ok().map(|stat| stat.attributes);
        let source = local_path(&task.source);
        progress.set_current(&task.source_name);
        task.sums = self.verify.sums();
        let sums = task.sums.clone();
        let settings = CopySettings {
            options: self.options,
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
                task.in_place = stored.in_place;
                self.on_stored(id, stored);
                self.file_done(id);
            }
            Err((reading, what)) => {
                let end = if reading {
                    CopySide::Source
                } else {
                    CopySide::Target
                };
                self.file_failed(id, end, what);
            }
        }
    }

    /// Reports the results of a local copy.
    fn on_stored(&mut self, id: FileId, stored: StoredTarget) {
        for (parts, why) in stored.not_kept {
            self.metadata.note_lost(parts, &why);
        }
        if let Some(owner) = stored.belonged {
            self.on_belonged(id, owner);
        }
        if stored.other_names > 0 {
            self.on_other_names(id, stored.other_names);
        }
        if let Some(why) = &stored.written_over {
            let name = self.files.get(&id).map(|task| task.source_name.clone());
            self.warn(name, schedule::written_over(why));
        }
        if stored.unwritable {
            let task = self.files.get(&id);
            let name = task.map(|task| task.source_name.clone());
            self.warn(name, UNWRITABLE.to_owned());
        }
    }

    /// Warns that the replaced file had another owner, which could not be kept.
    pub(super) fn on_belonged(&mut self, id: FileId, (user, group): (u32, u32)) {
        if let Some(task) = self.files.get(&id) {
            let name = self.shown(CopySide::Target, &task.target);
            let text = format!("cannot keep the owner {user}:{group}");
            self.warn(Some(name), text);
        }
    }

    pub(super) fn on_progress(&mut self, id: FileId, role: JobRole, n: u64) {
        if role == JobRole::RelayGet {
            return;
        }
        if let Some(task) = self.files.get_mut(&id) {
            // Bytes that an earlier run has sent are reported with the first bytes of this one.
            let taken = task.resume.taken();
            let earlier = match task.confirmed == 0 && n >= taken {
                true => taken,
                false => 0,
            };
            task.confirmed += n;
            self.progress.add_earlier(earlier);
            self.progress.add_bytes(n - earlier);
            // The file has grown, so the total grows too.
            let size = task.size.unwrap_or(task.confirmed);
            if task.confirmed > size {
                self.progress.add_size(Some(task.confirmed - size));
                task.size = Some(task.confirmed);
            }
            self.verify.note_progress(self.environment.now(), n);
            self.progress.set_current(&task.source_name);
        }
    }

    pub(super) fn on_looks(&mut self, id: FileId, attributes: Attributes) {
        if let Some(task) = self.files.get_mut(&id)
            && task.attributes.is_none()
        {
            task.attributes = Some(attributes);
            if task.size.is_none() {
                task.size = attributes.size;
                self.progress.add_size(attributes.size);
            }
        }
    }

    /// Handles the answer to the query for a source's attributes.
    pub(super) fn on_looked_at(&mut self, id: FileId, said: Result<(), String>) {
        match said {
            Ok(()) => {
                if let Some(task) = self.files.get_mut(&id) {
                    task.attributes.get_or_insert_default();
                }
                self.start_file(id);
            }
            Err(what) => self.file_failed(id, CopySide::Source, what),
        }
    }

    pub(super) fn on_guessed(
        &mut self,
        id: FileId,
        is: ReportedTargetKind,
        refusal: Option<String>,
    ) {
        let Some(guessing) = self.files.get_mut(&id).and_then(|t| t.guess.as_mut()) else {
            return;
        };
        guessing.is = Some(is);
        guessing.refusal = refusal;
        if let Some(fault) = guessing.fault.take() {
            self.judge(id, fault);
        }
    }

    /// Copies the file once more. Returns false after a warning if that was done already or is not
    /// possible.
    pub(super) fn again_for_a_change(&mut self, id: FileId) -> bool {
        let stopped = self.stopped();
        let Some(task) = self.files.get_mut(&id) else {
            return false;
        };
        if task.shared.is_some() && !stopped {
            self.file_failed(id, CopySide::Source, SHARED_CHANGED.to_owned());
            return true;
        }
        if stopped || !task.may_follow_change() {
            let name = task.name().clone();
            self.warn(Some(name), CHANGED.to_owned());
            return false;
        }
        self.progress.take_back(task.follow_change());
        self.keeper.forget_earlier(task.target());
        self.verify.forget(id);
        self.start_file(id);
        true
    }

    /// Decides what to do after a failed upload to a guessed target.
    fn judge(&mut self, id: FileId, fault: JobFailure) {
        let Some(task) = self.files.get_mut(&id) else {
            return;
        };
        let Some(mut guessing) = task.guess.take() else {
            return;
        };
        let Some(is) = guessing.is else {
            guessing.fault = Some(fault);
            task.guess = Some(guessing);
            return;
        };
        // The same cause failed the query and the upload, such as a lost connection, so the
        // target's kind is still unknown.
        let same = |refusal: &String| fault.what.starts_with(refusal.as_str());
        match guessing.guess.judge(&guessing.target, is) {
            _ if self.ports.is_lost() || guessing.refusal.as_ref().is_some_and(same) => {
                self.file_fault(id, fault);
            }
            RetryVerdict::Final => self.file_fault(id, fault),
            RetryVerdict::Retry(guess) => {
                task.target = place(guess, &guessing.target, basename(&task.source));
                task.resume.forget();
                self.progress.take_back(task.take_back());
                self.learn_place(guessing.target, guess == TargetGuess::Exact);
                self.start_file(id);
            }
            RetryVerdict::NoDirectory => {
                let what = match is {
                    ReportedTargetKind::Missing => "no such directory",
                    _ => "not a directory",
                };
                task.target = guessing.target;
                self.file_failed(id, CopySide::Target, what.to_owned());
            }
        }
    }

    /// Handles the end of a file's job.
    pub(super) fn on_file(&mut self, id: FileId, role: JobRole, result: Result<(), JobFailure>) {
        let Some(task) = self.files.get_mut(&id) else {
            return;
        };
        if task.relay.is_some() {
            return match self.files.on_relayed(id, role, result) {
                RelayOutcome::Waits => {}
                RelayOutcome::Done => self.file_done(id),
                RelayOutcome::Again => {
                    let confirmed = self.files.get_mut(&id).map_or(0, FileTask::take_back);
                    self.progress.take_back(confirmed);
                    self.start_file(id);
                }
                RelayOutcome::Failed(fault) => self.file_fault(id, fault),
                RelayOutcome::NotCopied => {
                    let what = "internal error: the file was not copied".to_owned();
                    self.file_failed(id, CopySide::Source, what);
                }
            };
        }
        match result {
            Ok(()) => self.file_done(id),
            Err(fault) if task.guess.is_some() => self.judge(id, fault),
            Err(fault) => match self.tree.blame(task.dir, id) {
                FailureScope::File => self.file_fault(id, fault),
                FailureScope::Undecided => {}
                FailureScope::Directory => self.file_dropped(id),
            },
        }
    }

    /// Restarts a file that failed before its directory was known to exist.
    pub(super) fn file_again(&mut self, id: FileId) {
        if let Some(task) = self.files.get_mut(&id) {
            self.progress.take_back(task.take_back());
            task.state = None;
            self.start_file(id);
        }
    }

    /// Drops a file whose directory could not be made. The directory's failure was reported, so the
    /// file's is not.
    pub(super) fn file_dropped(&mut self, id: FileId) {
        if let Some(task) = self.files.remove(&id) {
            self.progress.file_done();
            self.link_failed(task.link);
            self.free_place(&task.target);
            self.item_over(task.dir);
        }
    }

    pub(super) fn file_fault(&mut self, id: FileId, fault: JobFailure) {
        // Between two hosts nothing is local, and the error names the path itself.
        let end = match (self.source_is_remote(), fault.remote) {
            (true, remote) if remote != self.target_is_remote() => CopySide::Source,
            (false, false) => CopySide::Source,
            _ => CopySide::Target,
        };
        self.file_failed(id, end, fault.what);
    }

    pub(super) fn file_failed(&mut self, id: FileId, end: CopySide, what: String) {
        let Some(task) = self.files.remove(&id) else {
            return;
        };
        self.progress.file_done();
        if self.stopped() {
            self.ports.summary_mut().unfinished += task.moved();
        }
        self.verify.forget(id);
        let what = match task.stranded.map(EscapedName).map(|name| name.to_string()) {
            // The lane that lost the file may have named it already.
            Some(name) if !what.contains(&name) => {
                format!("{what}; the old file was renamed to {name}")
            }
            _ => what,
        };
        let name = match end {
            CopySide::Source => task.source_name,
            CopySide::Target => self.shown(CopySide::Target, &task.target),
        };
        self.fail(Some(id.0), name, what);
        self.link_failed(task.link);
        self.free_place(&task.target);
        self.item_over(task.dir);
    }

    /// Continues after the rename: with verification if that is wanted.
    pub(super) fn file_done(&mut self, id: FileId) {
        let local = self.local();
        let task = self.files.get_mut(&id);
        let has_changed = task.is_some_and(|task| task.has_changed(&*local));
        if has_changed && self.again_for_a_change(id) {
            return;
        }
        let shared = self.files.get(&id).is_some_and(|t| t.shared.is_some());
        // A range cannot be read under the final name yet.
        match self.verify.is_wanted() && !shared {
            true => {
                if let Some(task) = self.files.get_mut(&id) {
                    self.verify.verify_file(&mut self.ports, id, task);
                }
                self.after_verify();
            }
            false => self.file_kept(id),
        }
    }

    /// Counts a file that is copied and, if wanted, verified.
    pub(super) fn file_kept(&mut self, id: FileId) {
        let Some(task) = self.files.remove(&id) else {
            return;
        };
        self.progress.file_done();
        let state = task.state.unwrap_or(FileState::Written);
        self.ports.summary_mut().files += 1;
        let taken = task.resume.taken().min(task.confirmed);
        self.ports.summary_mut().bytes += task.confirmed - taken;
        self.ports.summary_mut().taken_over += taken;
        self.ports.summary_mut().reused += task.reused;
        let more = self.has_more() || !self.files.is_empty();
        self.keeper.note_done(&mut self.ports, &task, more);
        let durable = is_durable(&self.ports, &task);
        if let Some(attributes) = &task.attributes {
            self.metadata
                .note_times(&self.ports, &task.source, attributes);
            let rules = special_bits(&self.ports);
            let shown = || task.source_name.clone();
            self.metadata
                .withheld()
                .note_file_mode(rules, attributes.mode.unwrap_or(0), shown);
        }
        self.ports.summary_mut().state = Some(
            self.ports
                .summary_mut()
                .state
                .map_or(state, |s| s.min(state)),
        );
        self.tell(CopyEvent::FileDone {
            id: id.0,
            source: task.source_name,
            target: self.shown(CopySide::Target, &task.target),
            bytes: task.confirmed,
            state,
            in_place: task.in_place,
            synced: self.options.fsync && durable,
            verified: self.options.verify,
        });
        self.link_others(task.link, &task.target);
        self.free_place(&task.target);
        self.item_over(task.dir);
    }
}

/// Creates the job of an upload: a delta against the file at the target if that may pay, otherwise
/// the whole file.
fn put(
    local: &dyn LocalOps,
    delta: DeltaUse,
    size: u64,
    (source, target): (Vec<u8>, Vec<u8>),
    options: PutOptions,
) -> JobKind {
    let (source, target) = (local_path(&source), RemotePath(target));
    let left = options
        .keep
        .as_ref()
        .is_some_and(|keep| keep.left.is_some());
    // A file rebuilt from a delta has no holes.
    let holes = || options.sparse && local.has_holes(&source);
    let whole = options.inplace
        || options.existing.fresh
        || left
        || size < schedule::delta::LEAST
        || holes();
    match delta {
        DeltaUse::Auto | DeltaUse::Always if !whole => JobKind::PutDelta {
            source,
            target,
            options,
            always: delta == DeltaUse::Always,
        },
        _ => JobKind::Put {
            source,
            target,
            options,
        },
    }
}

fn place(guess: TargetGuess, target: &[u8], name: &[u8]) -> Vec<u8> {
    match guess {
        TargetGuess::Exact => target.to_vec(),
        TargetGuess::Into => join(target, name),
    }
}
