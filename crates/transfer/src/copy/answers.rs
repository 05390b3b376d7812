//! Passes the results of jobs to the parts of the copy that asked for them.

use schedule::{Attributes, JobFailure, JobId, LaneEvent, RefusedOperations};

use super::engine::{CopyEngine, CopySide, JobPurpose};
use super::file::{FileTask, JobRole};
use super::target_kind::ReportedTargetKind;
use crate::report::EscapedName;
use crate::walk::ListAnswer;

impl CopyEngine<'_> {
    pub(super) fn on_lane(&mut self, event: LaneEvent) {
        match event {
            LaneEvent::Done(id) => self.on_over(id, Ok(())),
            LaneEvent::Failed(id, fault) => self.on_over(id, Err(fault)),
            LaneEvent::Warning(id, message) => self.on_warning(id, message),
            LaneEvent::Progress(id, n) => {
                if let Some((_, JobPurpose::File(file, role))) = self.jobs.get(&id) {
                    let (file, role) = (*file, *role);
                    self.on_progress(file, role, n);
                }
            }
            LaneEvent::Reused(id, n) => {
                if let Some((task, _)) = self.task_of(id) {
                    task.reuses(n);
                }
            }
            LaneEvent::Sum(id, sum) => self.on_our_sum(id, &sum),
            LaneEvent::State(id, state) => {
                if let Some((task, role)) = self.task_of(id)
                    && role != JobRole::RelayGet
                {
                    task.reached(state);
                }
            }
            LaneEvent::Entries(id, entries) => self.on_entries(id, entries),
            LaneEvent::LeftOut(id, name) => match self.jobs.answer(id) {
                Some(asked) => asked.leave_out(name),
                None => self.tell_walk(id, ListAnswer::LeftOut(name)),
            },
            LaneEvent::Tree(id, steps) => {
                self.estimates.announce_tree(&self.sides, &steps);
                self.tell_walk(id, ListAnswer::Tree(steps));
                self.estimates
                    .foresee(&self.sides, self.walks.grown_estimate());
            }
            LaneEvent::Attributes(id, attributes) => self.on_attributes(id, attributes),
            LaneEvent::Path(id, path) => self.on_path(id, path),
            LaneEvent::FileSystem(id, identity) => {
                if let Some(asked) = self.jobs.answer(id) {
                    asked.set_file_system(identity);
                }
            }
            // Events about ranges of a file, which the scheduler combines into the events below.
            LaneEvent::Ended(..) | LaneEvent::Written(..) | LaneEvent::Abandoned(_) => {}
            LaneEvent::Temp(id, temp) => {
                self.note_temporary(id, &temp.temp.0);
                self.on_temporary(id, temp.temp.0);
            }
            LaneEvent::Safe(id, from, to) => self.verify_early(id, from, to),
            LaneEvent::Kept(id, kept) => self.on_kept(id, kept),
            LaneEvent::NotKept(_, parts, why) => self.on_not_kept(parts, &why),
            LaneEvent::Refused(_, found, why) => self.on_refused(found, &why),
            LaneEvent::InPlace(id) => {
                if let Some((task, _)) = self.task_of(id) {
                    task.goes_in_place();
                }
            }
            LaneEvent::Belonged(id, owner) => {
                if let Some((_, JobPurpose::File(file, _))) = self.jobs.get(&id) {
                    self.on_belonged(*file, owner);
                }
            }
            LaneEvent::OtherNames(id, names) => {
                if let Some((_, JobPurpose::File(file, _))) = self.jobs.get(&id) {
                    self.on_other_names(*file, names);
                }
            }
            LaneEvent::Xattrs(id, list) => match self.jobs.get(&id) {
                Some((_, JobPurpose::FileXattrs(file))) => self.on_file_xattrs(*file, list),
                Some((_, JobPurpose::DirXattrs(dir))) => self.on_dir_xattrs(*dir, list),
                _ => {}
            },
            LaneEvent::Names(_, users, groups) => self.on_owner_names((users, groups)),
            LaneEvent::Ids(_, users, groups) => self.on_owner_ids((users, groups)),
        }
    }

    /// Returns the file of a job and the job's role.
    fn task_of(&mut self, id: JobId) -> Option<(&mut FileTask, JobRole)> {
        let (_, JobPurpose::File(file, role)) = self.jobs.get(&id)? else {
            return None;
        };
        Some((self.files.get_mut(file)?, *role))
    }

    /// Passes a part of a listing to the walk or the question that wants it.
    fn on_entries(&mut self, id: JobId, entries: Vec<(Vec<u8>, Attributes)>) {
        match self.jobs.get(&id) {
            Some((_, JobPurpose::Walk(..) | JobPurpose::Listing(_))) => {
                self.estimates.announce_listed(&self.sides, &entries);
                self.tell_walk(id, ListAnswer::Entries(entries));
                self.estimates
                    .foresee(&self.sides, self.walks.grown_estimate());
            }
            _ => {
                if let Some(asked) = self.jobs.answer(id) {
                    asked.list(entries);
                }
            }
        }
    }

    /// Passes an answer to a walk, or to a listing that started before its walk.
    fn tell_walk(&mut self, id: JobId, answer: ListAnswer) {
        match self.jobs.get(&id) {
            Some((_, JobPurpose::Walk(walk, tag))) => self.walks.handle(*walk, *tag, answer),
            Some((_, JobPurpose::Listing(walk))) => self.walks.listed_ahead(*walk, answer),
            _ => {}
        }
    }

    fn on_attributes(&mut self, id: JobId, attributes: Attributes) {
        match self.jobs.get(&id) {
            Some((_, JobPurpose::Walk(walk, tag))) => {
                let (walk, tag) = (*walk, *tag);
                self.walks
                    .handle(walk, tag, ListAnswer::Attributes(attributes));
            }
            Some((_, JobPurpose::Root(walk))) => {
                let walk = *walk;
                self.walks.root_is(walk, attributes);
            }
            Some((_, JobPurpose::MakeDir(dir))) => self.tree.existed(*dir),
            Some((_, JobPurpose::Guess(file))) => {
                let (file, is) = (*file, ReportedTargetKind::of(&attributes));
                self.on_guessed(file, is, None);
            }
            Some((_, JobPurpose::File(file, JobRole::Whole))) => {
                let here = !self.source_is_remote();
                if let Some(task) = self.files.get_mut(file).filter(|_| here) {
                    task.opened_as(attributes);
                }
            }
            Some((_, JobPurpose::Clock)) => self.on_clock(attributes),
            Some((_, JobPurpose::Seal)) => self.on_seal(attributes),
            Some((_, JobPurpose::Taken(file))) => {
                let file = *file;
                let is_file = attributes.kind() == schedule::EntryKind::File;
                self.on_taken_seen(file, is_file.then_some(attributes));
            }
            Some((_, JobPurpose::Size(file))) => {
                let file = *file;
                self.on_looks(file, attributes);
            }
            _ => {
                if let Some(asked) = self.jobs.answer(id) {
                    asked.set_attributes(attributes);
                }
            }
        }
    }

    fn on_path(&mut self, id: JobId, path: Vec<u8>) {
        match self.jobs.get_mut(&id) {
            Some((_, JobPurpose::Walk(walk, tag))) => {
                let (walk, tag) = (*walk, *tag);
                self.walks.handle(walk, tag, ListAnswer::Path(path));
            }
            Some((_, JobPurpose::Root(walk))) => {
                let walk = *walk;
                self.walks.root_really(walk, path);
            }
            Some((_, JobPurpose::ReadSymlink(held))) => held.points_to = Some(path),
            Some((_, JobPurpose::File(file, _))) => {
                if let Some(task) = self.files.get_mut(file) {
                    task.strands(path);
                }
            }
            _ => {
                if let Some(asked) = self.jobs.answer(id) {
                    asked.set_path(path);
                }
            }
        }
    }

    fn on_over(&mut self, id: JobId, result: Result<(), JobFailure>) {
        let Some((end, purpose)) = self.jobs.remove(&id) else {
            return;
        };
        let said = result.as_ref().map_err(|fault| fault.what.clone()).copied();
        match purpose {
            JobPurpose::Ask => {
                if let Some(asked) = self.jobs.answer(id) {
                    asked.end(said);
                }
            }
            JobPurpose::Root(walk) => self.on_root(walk, said),
            JobPurpose::Listing(walk) => self.walks.listed_ahead(walk, ListAnswer::end(said)),
            JobPurpose::Walk(walk, tag) => self.walks.handle(walk, tag, ListAnswer::end(said)),
            JobPurpose::MakeDir(dir) => self.on_made(dir, said),
            JobPurpose::FinishDir(dir) => self.on_finished(dir, said),
            JobPurpose::DirMode(name) => {
                if let Err(what) = said {
                    self.fail(None, name, format!("cannot set its mode: {what}"));
                }
            }
            JobPurpose::Durable(name) => {
                if let Err(what) = said {
                    self.fail(None, name, what);
                }
            }
            JobPurpose::File(file, role) => {
                self.take_sums(id, file);
                self.on_file(file, role, result);
            }
            JobPurpose::Check(file) => self.on_read_back(file, result),
            JobPurpose::Sum(ask) => self.on_our_sum_over(ask, result.is_ok()),
            JobPurpose::Guess(file) => {
                if let Err(what) = said {
                    self.on_guessed(file, ReportedTargetKind::Missing, Some(what));
                }
            }
            JobPurpose::Size(file) => self.on_looked_at(file, said),
            JobPurpose::ReadSymlink(held) => match said {
                Ok(()) => self.make_symlink(held),
                Err(what) => self.symlink_over(&held, Err(what), CopySide::Source),
            },
            JobPurpose::MakeSymlink(held) => self.symlink_over(&held, said, end),
            JobPurpose::MakeHardLink(item) => self.hard_link_over(item, said),
            JobPurpose::FileXattrs(file) => {
                if let Err(why) = said {
                    self.on_no_xattrs(&why);
                }
                self.start_kept(file);
            }
            JobPurpose::DirXattrs(dir) => {
                if let Err(why) = said {
                    self.on_no_xattrs(&why);
                }
                self.item_over(Some(dir));
            }
            // If the question failed, owners keep their numeric IDs.
            JobPurpose::OwnerNames => self.on_names_over(),
            JobPurpose::OwnerIds => self.on_ids_over(),
            JobPurpose::Taken(file) => self.on_taken_over(file),
            JobPurpose::Boot(file) => self.on_boot(&file),
            JobPurpose::BootAgain(file) => self.on_boot_again(&file),
            JobPurpose::SymlinkTimes
            | JobPurpose::Clock
            | JobPurpose::Seal
            | JobPurpose::Cleared => {}
        }
    }

    fn on_warning(&mut self, id: JobId, message: String) {
        let path = match self.jobs.get(&id) {
            Some((_, JobPurpose::File(file, _))) => {
                self.files.get(file).map(|task| task.name().clone())
            }
            _ => None,
        };
        self.warn(path, message);
    }

    /// Warns once that the server refuses the requests for temporaries, whatever the file.
    fn on_refused(&mut self, found: RefusedOperations, why: &str) {
        if !found.in_place() || !self.withheld.is_first_refusal() {
            return;
        }
        let host = self
            .side(CopySide::Target)
            .map(|side| side.name().to_owned());
        let host = EscapedName(host.unwrap_or_default().into_bytes());
        let refuses = match found.renames {
            true => "the server does not rename files",
            false => "the server refuses the names of temporary files",
        };
        let why = match why {
            "" => "as in an earlier copy",
            why => why,
        };
        let text = format!(
            "{refuses} ({why}): writing files in place; a file whose copy is interrupted stays \
             incomplete (--inplace silences this warning)"
        );
        self.warn(Some(host), text);
    }

    pub(super) fn on_restarted(&mut self, id: JobId) {
        match self.jobs.get(&id) {
            Some((_, JobPurpose::Boot(_))) => self.keeper.lose_boot(),
            _ => self.tell_walk(id, ListAnswer::Restarted),
        }
        if let Some((_, JobPurpose::File(file, _))) = self.jobs.get(&id)
            && let Some(task) = self.files.get_mut(file)
        {
            self.progress.take_back(task.restart());
            if let Some(temporary) = task.stranded() {
                let temporary = EscapedName(temporary.to_vec());
                let target = task.target().to_vec();
                let target = self.shown(CopySide::Target, &target);
                self.warn(
                    Some(target),
                    format!(
                        "the connection was lost while the old file was renamed to {temporary}: \
                         rename it back if the new file is missing"
                    ),
                );
            }
        }
    }
}
