//! Passes the results of jobs to the parts of the copy that asked for them.

use std::path::Path;

use schedule::{
    Attributes, FileCheckpoint, FileCopyState, JobFailure, JobFailureKind, JobId, LaneEvent,
    TreeWalkStep,
};
use sftp::InodeId;
use sftp::xattrs::Xattr;

use super::{CopyEngine, directories, late_attributes, symlinks};
use crate::connect::ConnectError;
use crate::copy::file::{CopyFileId, FileStep, FileTask, JobRole};
use crate::copy::hard_links::{HardLinkDecision, HardLinks};
use crate::copy::jobs::JobPurpose;
use crate::copy::resume::{FileStartDecision, note_failed_look, note_seen};
use crate::copy::sides::CopySide;
use crate::copy::source::WalkId;
use crate::copy::target_kind::ReportedTargetKind;
use crate::copy::tree::{CopyDirectoryId, ItemAwaitingDirectory};
use crate::copy::verify::{ChecksumRequest, VerifyOutcome};
use crate::copy::xattrs::XattrAnswer;
use crate::file_error::FileError;
use crate::report::EscapedName;
use crate::session::{RemoteCommandEvent, RemoteCommandId};
use crate::walk::WalkAnswer;

impl CopyEngine<'_> {
    pub(super) fn on_lane(&mut self, event: LaneEvent) {
        match event {
            LaneEvent::Done(id) => self.on_over(id, Ok(())),
            LaneEvent::Failed(id, fault) => self.on_over(id, Err(fault)),
            LaneEvent::Warning(id, message) => self.on_warning(id, message),
            LaneEvent::WhyInPlace(id, why) => self.on_why_in_place(id, &why),
            LaneEvent::SourceShrank(id) => self.on_source_shrank(id),
            LaneEvent::SourceGrew(id) => self.on_warning(id, schedule::SOURCE_GREW.to_owned()),
            LaneEvent::Progress(id, n) => {
                if let Some((_, JobPurpose::File(file, role))) = self.context.jobs().get(&id) {
                    let (file, role) = (*file, *role);
                    self.on_file_progress(file, role, n);
                }
            }
            LaneEvent::Reused(id, n) => {
                if let Some((task, _)) = self.task_of(id) {
                    task.reuses(n);
                }
            }
            LaneEvent::Sum(id, sum) => self.on_our_sum(id, &sum),
            LaneEvent::State(id, state) => self.on_state(id, state),
            LaneEvent::Entries(id, entries) => self.on_entries(id, entries),
            LaneEvent::LeftOut(id, name) => match self.context.jobs_mut().answer(id) {
                Some(asked) => asked.leave_out(name),
                None => self.tell_walk(id, WalkAnswer::LeftOut(name)),
            },
            LaneEvent::Tree(id, steps) => self.on_tree(id, steps),
            LaneEvent::Attributes(id, attributes) => self.on_attributes(id, attributes),
            LaneEvent::Path(id, path) => self.on_path(id, path),
            LaneEvent::FileSystem(id, identity) => {
                if let Some(asked) = self.context.jobs_mut().answer(id) {
                    asked.set_file_system(identity);
                }
            }
            // Events about ranges of a file, which the scheduler combines into the events below.
            LaneEvent::Ended(..) | LaneEvent::Written(..) | LaneEvent::Abandoned(_) => {}
            LaneEvent::Temp(id, temp) => self.on_temporary(id, temp.temp.0),
            LaneEvent::Safe(id, from, to) => self.on_bytes_stored(id, from, to),
            LaneEvent::Kept(id, kept) => self.on_kept(id, kept),
            LaneEvent::NotKept(id, parts, why) => {
                late_attributes::on_not_kept(self, id, parts, why)
            }
            LaneEvent::Refused(id, found, why) => {
                let target = self.task_of(id).map(|(task, _)| task.target().to_vec());
                let found = (found, target.as_deref().unwrap_or_default());
                self.metadata.on_refused(&mut self.context, found, &why);
            }
            LaneEvent::RemovesTemp(id) => self.on_starts_over(id, false),
            LaneEvent::OpensInPlace(id) => self.on_starts_over(id, true),
            LaneEvent::InPlace(id) => {
                if let Some((task, _)) = self.task_of(id) {
                    task.goes_in_place();
                }
            }
            LaneEvent::Belonged(id, owner) => {
                if let Some((_, JobPurpose::File(file, _))) = self.context.jobs().get(&id)
                    && let Some(task) = self.files.get(file)
                {
                    task.tell_owner(&mut self.context, owner);
                }
            }
            LaneEvent::OtherNames(id, names) => {
                if let Some((_, JobPurpose::File(file, _))) = self.context.jobs().get(&id)
                    && let Some(task) = self.files.get(file)
                {
                    task.note_other_names(&self.context, &mut self.metadata, names);
                }
            }
            LaneEvent::Xattrs(id, list) => match self.context.jobs().get(&id) {
                Some((_, JobPurpose::FileXattrs(file))) => self.on_file_xattrs(*file, list),
                Some((_, JobPurpose::DirXattrs(dir))) => self.on_dir_xattrs(*dir, list),
                _ => {}
            },
            LaneEvent::Names(_, users, groups) => self.owners.on_names((users, groups)),
            LaneEvent::Ids(_, users, groups) => self.owners.on_ids((users, groups)),
        }
    }

    fn on_tree(&mut self, id: JobId, steps: Vec<TreeWalkStep>) {
        self.estimates.announce_tree(self.context.sides(), &steps);
        self.tell_walk(id, WalkAnswer::Tree(steps));
        self.estimates
            .foresee(self.context.sides(), self.walks.grown_estimate());
    }

    fn on_file_progress(&mut self, file: CopyFileId, role: JobRole, n: u64) {
        match role {
            JobRole::RelayGet => self.files.note_received(&mut self.context, file, n),
            _ => (self.files).on_progress(&self.context, &mut self.verify, file, n),
        }
    }

    /// Handles the next state of a file at the target.
    fn on_state(&mut self, id: JobId, state: FileCopyState) {
        let Some((task, role)) = self.task_of(id) else {
            return;
        };
        if role != JobRole::RelayGet {
            task.reached(state);
        }
        if let Some((_, JobPurpose::File(file, JobRole::RelayPut))) = self.context.jobs().get(&id) {
            let file = *file;
            self.files.begin_waiting_get(&mut self.context, file);
        }
    }

    /// Handles a file whose temporary is removed, or that is opened under its final name.
    fn on_starts_over(&mut self, id: JobId, in_place: bool) {
        if let Some((_, JobPurpose::File(file, _))) = self.context.jobs().get(&id)
            && let Some(task) = self.files.get_mut(file)
        {
            if in_place {
                task.opens_in_place();
            }
            self.keeper.on_starts_over(&self.context, task);
        }
    }

    /// Returns the file of a job and the job's role.
    fn task_of(&mut self, id: JobId) -> Option<(&mut FileTask, JobRole)> {
        let (_, JobPurpose::File(file, role)) = self.context.jobs().get(&id)? else {
            return None;
        };
        Some((self.files.get_mut(file)?, *role))
    }

    /// Passes a part of a listing to the walk or the question that wants it.
    fn on_entries(&mut self, id: JobId, entries: Vec<(Vec<u8>, Attributes)>) {
        match self.context.jobs().get(&id) {
            Some((_, JobPurpose::Walk(..) | JobPurpose::Listing(_))) => {
                self.estimates
                    .announce_listed(self.context.sides(), &entries);
                self.tell_walk(id, WalkAnswer::Entries(entries));
                self.estimates
                    .foresee(self.context.sides(), self.walks.grown_estimate());
            }
            _ => {
                if let Some(asked) = self.context.jobs_mut().answer(id) {
                    asked.list(entries);
                }
            }
        }
    }

    /// Passes an answer to a walk, or to a listing that started before its walk.
    fn tell_walk(&mut self, id: JobId, answer: WalkAnswer) {
        match self.context.jobs().get(&id) {
            Some((_, JobPurpose::Walk(walk, tag))) => self.walks.handle(*walk, *tag, answer),
            Some((_, JobPurpose::Listing(walk))) => self.walks.listed_ahead(*walk, answer),
            _ => {}
        }
    }

    fn on_attributes(&mut self, id: JobId, attributes: Attributes) {
        match self.context.jobs().get(&id) {
            Some((_, JobPurpose::Walk(walk, tag))) => {
                let (walk, tag) = (*walk, *tag);
                self.walks
                    .handle(walk, tag, WalkAnswer::Attributes(attributes));
            }
            Some((_, JobPurpose::Root(walk))) => {
                let walk = *walk;
                self.walks.root_is(walk, attributes);
            }
            Some((_, JobPurpose::MakeDir(dir))) => self.tree.existed(*dir, &attributes),
            Some((_, JobPurpose::Guess(file))) => {
                let (file, is) = (*file, Ok(ReportedTargetKind::of(&attributes)));
                let step = self.files.on_guessed(&self.context, file, is);
                self.after_file(step);
            }
            Some((_, JobPurpose::File(file, JobRole::Whole | JobRole::RelayGet))) => {
                let is_remote = self.context.source_is_remote();
                match self.files.get_mut(file) {
                    Some(task) if is_remote => task.source_was_changed(),
                    Some(task) => task.opened_as(attributes),
                    None => {}
                }
            }
            Some((_, JobPurpose::Clock(files))) => {
                let files = *files;
                self.keeper.on_clock(files, &attributes);
            }
            Some((_, JobPurpose::Taken(file))) => {
                if let Some(task) = self.files.get_mut(file) {
                    note_seen(task, &attributes);
                }
            }
            Some((_, JobPurpose::Size(file))) => {
                self.files.on_source(&self.context, *file, attributes);
            }
            _ => {
                if let Some(asked) = self.context.jobs_mut().answer(id) {
                    asked.set_attributes(attributes);
                }
            }
        }
    }

    fn on_path(&mut self, id: JobId, path: Vec<u8>) {
        match self.context.jobs_mut().get_mut(&id) {
            Some((_, JobPurpose::Walk(walk, tag))) => {
                let (walk, tag) = (*walk, *tag);
                self.walks.handle(walk, tag, WalkAnswer::Path(path));
            }
            Some((_, JobPurpose::Root(walk))) => {
                let walk = *walk;
                self.walks.root_really(walk, path);
            }
            Some((_, JobPurpose::ReadSymlink(held))) => held.points_to = Some(path),
            Some((_, JobPurpose::ReadRefusedSymlink(refused))) => refused.found = Some(path),
            Some((_, JobPurpose::File(file, _))) => {
                if let Some(task) = self.files.get_mut(file) {
                    task.strands(path);
                }
            }
            _ => {
                if let Some(asked) = self.context.jobs_mut().answer(id) {
                    asked.set_path(path);
                }
            }
        }
    }

    fn fail_if(&mut self, name: EscapedName, done: Result<(), FileError>) {
        if let Err(error) = done {
            self.context.fail(None, name, error);
        }
    }

    fn on_over(&mut self, id: JobId, result: Result<(), JobFailure>) {
        let Some((_, purpose)) = self.context.jobs_mut().remove(&id) else {
            return;
        };
        let said = |result: Result<(), JobFailure>| result.map_err(FileError::from);
        match purpose {
            JobPurpose::Ask => {
                if let Some(asked) = self.context.jobs_mut().answer(id) {
                    asked.end(said(result));
                }
            }
            JobPurpose::Root(walk) => self.on_root(walk, said(result)),
            JobPurpose::Listing(walk) => {
                self.walks.listed_ahead(walk, WalkAnswer::end(said(result)))
            }
            JobPurpose::Walk(walk, tag) => {
                self.walks.handle(walk, tag, WalkAnswer::end(said(result)))
            }
            JobPurpose::MakeDir(dir) => self.on_made(dir, said(result)),
            JobPurpose::GrantAccess(dir) => self.on_made(dir, Ok(())),
            JobPurpose::FinishDir(dir) => self.on_finished(dir, said(result)),
            JobPurpose::DirMode(name) => {
                let done = said(result);
                self.fail_if(name, done.map_err(|e| e.with_prefix("cannot set its mode")));
            }
            JobPurpose::Durable(name) => self.fail_if(name, said(result)),
            JobPurpose::File(file, role) => {
                self.take_sums(id, file);
                late_attributes::set(self, id, file, result.is_ok());
                let job = (file, role);
                let step = self
                    .files
                    .on_over(&mut self.context, &mut self.tree, job, result);
                self.after_file(step);
            }
            JobPurpose::Check(file) => self.on_read_back(file, result),
            JobPurpose::Sum(ask) => self.on_our_sum_over(ask, result.is_ok()),
            JobPurpose::Guess(file) => {
                if let Err(error) = said(result) {
                    let step = self.files.on_guessed(&self.context, file, Err(error));
                    self.after_file(step);
                }
            }
            JobPurpose::Size(file) => {
                let step = self.files.on_source_over(file, said(result));
                self.after_file(step);
            }
            JobPurpose::ReadSymlink(held) => symlinks::on_read(self, *held, said(result)),
            JobPurpose::MakeSymlink(held) => symlinks::on_made(self, *held, said(result)),
            JobPurpose::ReadRefusedSymlink(refused) => symlinks::on_compared(self, *refused),
            JobPurpose::MakeHardLink(item) => self.hard_link_over(*item, said(result)),
            JobPurpose::FileXattrs(file) => {
                let source = || self.files.get(&file).map(FileTask::shown_source);
                (self.metadata).on_unread_xattrs(self.context.options(), said(result), source);
                self.start_kept(file);
            }
            JobPurpose::DirXattrs(dir) => {
                let entry = || self.tree.shown(&self.context, dir);
                (self.metadata).on_unread_xattrs(self.context.options(), said(result), entry);
                directories::item_over(self, Some(dir));
            }
            // If the question failed, owners keep their numeric IDs.
            JobPurpose::OwnerNames => self.owners.on_names_over(&mut self.context),
            JobPurpose::OwnerIds => self.owners.on_ids_over(),
            JobPurpose::Taken(file) => self.on_taken_over(file, said(result)),
            JobPurpose::Boot(file) => self.keeper.on_boot(&self.context, &file),
            JobPurpose::BootAgain(file) => self.on_boot_again(&file),
            JobPurpose::Cleared(removal) => {
                let removed = said(result);
                let dir = self.keeper.on_cleared(&mut self.context, *removal, removed);
                directories::item_over(self, dir);
            }
            JobPurpose::FileAttributes(shown, parts) => {
                late_attributes::on_set(self, shown, parts, said(result));
            }
            JobPurpose::SymlinkTimes | JobPurpose::Clock(_) => {}
        }
    }

    fn on_why_in_place(&mut self, id: JobId, why: &str) {
        if let Some((task, _)) = self.task_of(id) {
            let target = task.target().to_vec();
            self.metadata.tell_in_place(&mut self.context, &target, why);
        }
    }

    fn on_warning(&mut self, id: JobId, message: String) {
        let path = match self.context.jobs().get(&id) {
            Some((_, JobPurpose::File(file, _))) => {
                self.files.get(file).map(|task| task.name().clone())
            }
            _ => None,
        };
        self.context.warn(path, message);
    }

    fn on_source_shrank(&mut self, id: JobId) {
        let job = self.context.jobs().get(&id);
        // The job that reads the source says it too.
        if !matches!(job, Some((_, JobPurpose::File(_, JobRole::RelayPut)))) {
            self.on_warning(id, schedule::SOURCE_SHRANK.to_owned());
        }
    }

    fn on_temporary(&mut self, id: JobId, path: Vec<u8>) {
        self.verify.note_temporary(&self.context, id, &path);
        if let Some((_, JobPurpose::File(file, _))) = self.context.jobs().get(&id)
            && let Some(task) = self.files.get_mut(file)
        {
            task.resume_mut().has_temporary(path.clone());
            self.keeper.on_temporary(&self.context, task, path);
        }
    }

    fn on_kept(&mut self, id: JobId, kept: FileCheckpoint) {
        if let Some((_, JobPurpose::File(file, role))) = self.context.jobs().get(&id)
            && *role != JobRole::RelayGet
            && let Some(task) = self.files.get_mut(file)
        {
            task.resume_mut().has_arrived(&kept);
            self.keeper.on_kept(task, kept);
        }
    }

    /// Handles bytes of a file that are stored at the target.
    fn on_bytes_stored(&mut self, id: JobId, from: u64, to: u64) {
        let (context, files) = (&mut self.context, &self.files);
        self.verify.verify_early(context, files, id, (from, to));
        self.after_verify();
    }

    fn on_our_sum(&mut self, id: JobId, sum: &[u8]) {
        self.verify.on_our_sum(&mut self.context, id, sum);
        self.after_verify();
    }

    fn on_our_sum_over(&mut self, ask: ChecksumRequest, made: bool) {
        self.verify.on_our_sum_over(&mut self.context, ask, made);
        self.after_verify();
    }

    fn on_read_back(&mut self, id: CopyFileId, result: Result<(), JobFailure>) {
        self.verify.on_read_back(&mut self.context, id, result);
        self.after_verify();
    }

    /// Takes the checksums of a finished job of `file`.
    fn take_sums(&mut self, id: JobId, file: CopyFileId) {
        if let Some(sums) = self.verify.take_sums(id)
            && let Some(task) = self.files.get_mut(&file)
        {
            task.set_sums(Some(sums));
        }
    }

    fn on_taken_over(&mut self, id: CopyFileId, result: Result<(), FileError>) {
        if let Some(task) = self.files.get_mut(&id) {
            if result.is_err_and(|error| !error.is_missing()) {
                note_failed_look(task);
            }
            let decided = self.keeper.on_taken_over(&mut self.context, id, task);
            self.after_decision(id, decided);
        }
    }

    fn on_made(&mut self, dir: CopyDirectoryId, result: Result<(), FileError>) {
        let (context, metadata) = (&mut self.context, &mut self.metadata);
        self.tree.on_made(context, metadata, dir, result);
        directories::after_tree(self);
    }

    fn on_finished(&mut self, dir: CopyDirectoryId, result: Result<(), FileError>) {
        let (context, metadata) = (&mut self.context, &mut self.metadata);
        self.tree.on_finished(context, metadata, dir, result);
        directories::after_tree(self);
    }

    /// Starts or ends a file as the journal has decided.
    fn after_decision(&mut self, id: CopyFileId, decided: FileStartDecision) {
        match decided {
            FileStartDecision::Now => self.start_kept(id),
            FileStartDecision::Later => {}
            FileStartDecision::Again => self.start_file(id),
            FileStartDecision::Stored => self.file_done(id),
        }
    }

    /// Starts the files whose records are durable.
    pub(super) fn start_written(&mut self) {
        while let Some(id) = self.keeper.next_written() {
            self.start_kept(id);
        }
    }

    /// Starts a file, or defers it while another one is written to the same target. A listing may
    /// contain a name twice, and two writers of one file would mix their data.
    pub(super) fn begin_file(&mut self, item: ItemAwaitingDirectory) {
        if let Some(item) = self.files.occupy(item) {
            self.begin_free_file(item);
        }
    }

    fn begin_free_file(&mut self, item: ItemAwaitingDirectory) {
        let link = self.hard_links.link_of(&item);
        let id = self.files.begin(&mut self.context, item, link);
        self.start_file(id);
    }

    pub(super) fn start_file(&mut self, id: CopyFileId) {
        if self.files.asks_for_source(&mut self.context, id) {
            return;
        }
        if let Some(task) = self.files.get_mut(&id) {
            let decided = self.keeper.keep(&mut self.context, id, task);
            self.after_decision(id, decided);
        }
    }

    /// Starts a file once its journal records are written.
    fn start_kept(&mut self, id: CopyFileId) {
        let (context, metadata) = (&mut self.context, &mut self.metadata);
        if self.files.request_xattrs(context, metadata, id) {
            return;
        }
        if let Some(task) = self.files.get_mut(&id) {
            task.resume_mut().set_recorded(self.keeper.goes_on());
        }
        let (tree, verify) = (&self.tree, &self.verify);
        let step = self.files.copy(context, metadata, tree, verify, id);
        self.after_file(step);
    }

    pub(super) fn after_file(&mut self, step: FileStep) {
        match step {
            FileStep::Waits => {}
            FileStep::Start(id) => self.start_file(id),
            FileStep::CopyAgain(id) => {
                if let Some(task) = self.files.get(&id) {
                    self.keeper.forget_earlier(task.target());
                }
                self.verify.forget(id);
                self.start_file(id);
            }
            FileStep::Done(id) => self.file_done(id),
            FileStep::Failed(id, end, fault) => self.file_failed(id, end, fault),
            FileStep::Dropped(id) => self.file_dropped(id),
        }
    }

    /// Continues after the rename: with verification if that is wanted.
    fn file_done(&mut self, id: CopyFileId) {
        if let Some(step) = self.files.follow_change(&mut self.context, id) {
            return self.after_file(step);
        }
        match self.files.get_mut(&id) {
            // A range cannot be read under the final name yet.
            Some(task) if self.verify.is_wanted() && task.shared().is_none() => {
                self.verify.verify_file(&mut self.context, id, task);
                self.after_verify();
            }
            _ => self.file_kept(id, true),
        }
    }

    /// Ends a file that is copied and, if wanted, verified; `is_verified` is false if the run ends
    /// before that. The next run verifies files that the journal records as complete.
    fn file_kept(&mut self, id: CopyFileId, is_verified: bool) {
        let Some(mut task) = self.files.remove(&id) else {
            return;
        };
        let more = self.has_more() || !self.files.is_empty();
        self.keeper.note_done(&mut self.context, &task, more);
        task.tell_done(&mut self.context, &mut self.metadata, id, is_verified);
        let made = self
            .hard_links
            .first_copied(&mut self.context, task.link(), task.target());
        made.into_iter()
            .for_each(|made| self.hard_link_over(made.item, made.result));
        self.file_over(&task);
    }

    fn file_failed(&mut self, id: CopyFileId, end: CopySide, fault: FileError) {
        let removed = fault.is_temporary_removed();
        let Some(task) = self.files.fail(&mut self.context, id, end, fault) else {
            return;
        };
        if removed {
            self.keeper.note_removed(&task);
        }
        self.verify.forget(id);
        self.link_failed(task.link());
        self.file_over(&task);
    }

    /// Drops a file whose directory could not be made. The directory's failure was reported, so the
    /// file's is not.
    pub(super) fn file_dropped(&mut self, id: CopyFileId) {
        if let Some(task) = self.files.remove(&id) {
            self.context.progress().file_done();
            self.link_failed(task.link());
            self.file_over(&task);
        }
    }

    /// Starts the next file that waits for the target of one that has ended, and ends its directory.
    fn file_over(&mut self, task: &FileTask) {
        let next = self.files.vacate(task.target());
        if let Some(next) = next.filter(|_| !self.stopped()) {
            self.begin_free_file(next);
        }
        directories::item_over(self, task.dir());
    }

    /// Handles the boot ID of the target after a reconnect. Ends the run if the machine was
    /// restarted.
    fn on_boot_again(&mut self, file: &Path) {
        let Some(why) = self.keeper.boot_change(&self.context, file) else {
            return;
        };
        self.context.lose(ConnectError::unreachable(why));
        self.drop_what_waits();
        for side in self.context.sides().iter() {
            side.session().cancel_resumable("the machine was rebooted");
        }
    }

    /// Handles the answer to one of the two queries about a root.
    fn on_root(&mut self, id: WalkId, result: Result<(), FileError>) {
        let file = self.walks.on_root(&mut self.context, id, result);
        self.estimates
            .foresee(self.context.sides(), self.walks.grown_estimate());
        if let Some(file) = file {
            self.begin_owned(file);
        }
    }

    /// Carries out the consequences of comparisons.
    pub(super) fn after_verify(&mut self) {
        while let Some(outcome) = self.verify.next_outcome() {
            match outcome {
                VerifyOutcome::Verified(id) => self.file_kept(id, true),
                VerifyOutcome::NotVerified(id) => self.file_kept(id, false),
                VerifyOutcome::Failed(id, end, what) => self.file_failed(id, end, what.into()),
                VerifyOutcome::CopyAgain(id) => {
                    if let Some(task) = self.files.get_mut(&id) {
                        self.context.progress().take_back(task.repeat());
                        self.keeper.forget_earlier(task.target());
                        self.start_file(id);
                    }
                }
            }
        }
    }

    /// Handles an event of a command at the far end.
    pub(super) fn on_exec(&mut self, id: RemoteCommandId, event: RemoteCommandEvent) {
        self.verify.on_exec(&mut self.context, id, event);
        self.after_verify();
    }

    /// Links an item to a file that was copied, or defers it until that is done. Returns the first
    /// name of a file, which must be copied.
    pub(super) fn link_or_copy(
        &mut self,
        item: ItemAwaitingDirectory,
    ) -> Option<ItemAwaitingDirectory> {
        match self.hard_links.place(&mut self.context, item) {
            HardLinkDecision::Copy(item) => return Some(item),
            HardLinkDecision::Made(made) => self.hard_link_over(made.item, made.result),
            HardLinkDecision::Waits => {}
        }
        None
    }

    /// Copies the next name after the first one of a file failed.
    pub(super) fn link_failed(&mut self, link: Option<InodeId>) {
        if let Some(next) = self.hard_links.first_failed(link) {
            self.begin_file(next);
        }
    }

    /// Notes that the target has a file with several names at `target`.
    pub(in crate::copy) fn note_linked_file(&mut self, link: &InodeId, target: Vec<u8>) {
        self.hard_links.note_first(link, target);
    }

    /// Notes that a name of a file stays a separate file, for this reason.
    pub(in crate::copy) fn note_lost_link(&mut self, why: &str, name: Option<&[u8]>) {
        let shown = || name.map(|name| self.context.shown(CopySide::Target, name));
        self.metadata.note_lost_link(why, shown);
    }

    /// Handles the result of a hard link. If it failed, the file is copied and the loss is noted.
    fn hard_link_over(&mut self, mut item: ItemAwaitingDirectory, result: Result<(), FileError>) {
        if let Err(error) = result {
            self.note_lost_link(error.what(), Some(&item.target));
            item.entry.attributes.link = None;
            return self.begin_file(item);
        }
        self.tree.name_made(&mut self.context, &item.target);
        HardLinks::report(&mut self.context, self.files.take_id(), &item);
        directories::item_over(self, item.dir);
    }

    /// Requests the extended attributes of a directory, which is not finished before the answer.
    pub(super) fn ask_dir_xattrs(&mut self, key: CopyDirectoryId, source: &[u8]) {
        let purpose = JobPurpose::DirXattrs(key);
        match self.metadata.ask_xattrs(&mut self.context, source, purpose) {
            XattrAnswer::Later => self.tree.waits_for_more(key),
            XattrAnswer::Known(xattrs) => self.tree.has_xattrs(key, xattrs),
            XattrAnswer::Unknown => {}
        }
    }

    fn on_file_xattrs(&mut self, id: CopyFileId, list: Vec<Xattr>) {
        let source = || self.files.get(&id).map(FileTask::shown_source);
        let xattrs = self.metadata.takeable(&self.context, source, list);
        if let Some(task) = self.files.get_mut(&id) {
            task.set_xattrs(xattrs);
        }
    }

    fn on_dir_xattrs(&mut self, key: CopyDirectoryId, list: Vec<Xattr>) {
        let entry = || self.tree.shown(&self.context, key);
        let xattrs = self.metadata.takeable(&self.context, entry, list);
        self.tree.has_xattrs(key, xattrs);
    }

    pub(super) fn on_restarted(&mut self, id: JobId) {
        match self.context.jobs().get(&id) {
            Some((_, JobPurpose::Boot(_))) => self.keeper.lose_boot(),
            _ => self.tell_walk(id, WalkAnswer::Restarted),
        }
        if let Some((_, JobPurpose::File(file, _))) = self.context.jobs().get(&id) {
            let file = *file;
            self.files.on_restarted(&mut self.context, file);
        }
    }

    /// Notes the reason that later failures have in common, and drops all waiting work.
    pub(super) fn on_losing(&mut self, end: CopySide, why: &str) {
        if let Some(side) = self.context.side(end) {
            let why = format!("{}: {why}", side.name());
            self.context.lose(ConnectError::unreachable(why));
            self.drop_what_waits();
        }
    }

    /// Ends the copy after the loss of the session at `end`.
    pub(super) fn on_lost(&mut self, end: CopySide, why: String) {
        let Some(name) = self.context.sides_mut().lose(end) else {
            return;
        };
        let why = format!("{name}: {why}");
        self.context.lose(ConnectError::unreachable(why.clone()));
        self.drop_what_waits();
        for id in self.context.jobs().at(end) {
            let what = why.clone();
            let fault = JobFailure::new(what, true).of_kind(JobFailureKind::ConnectionLost);
            self.on_lane(LaneEvent::Failed(id, fault));
        }
        // The other one of two hosts keeps what the same command continues.
        for side in self.context.sides().open() {
            self.cancel_at(side, &why);
        }
    }
}
