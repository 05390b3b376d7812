//! Ends a file that is cut over lanes: the rename, or the removal of its temporary.

use super::super::assignments::AssignedRole;
use super::super::job_lane_losses::JobLaneLosses;
use super::super::queues::QueuedJob;
use super::super::state::SchedulerState;
use super::files::SharedFileFailure;
use super::{AfterDiskClose, SplitFile, SplitFiles, SplitStage};
use crate::byte_ranges::ByteRanges;
use crate::{
    DiskRequest, FailedTemporary, FileCopyState, JobFailure, JobFailureKind, JobId, JobKind,
    LaneEvent, RemotePath, SharedTemp,
};

/// Failure of a job whose file must be copied from its start at both of two hosts.
const STARTS_OVER: &str = "the source changed, or the server does not continue the file";

const RESTARTED: &str =
    "the part that an earlier run copied is missing or changed: starting this file over";

fn in_place_again() -> JobFailure {
    JobFailure::data_are_gone(JobFailureKind::ReadAgainInPlace)
}

impl SplitFiles {
    /// Starts the rename: all bytes are there and every part has ended.
    pub(super) fn name(&mut self, board: &mut SchedulerState, id: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let shrank = file.end.at.unwrap_or(0) < file.size();
        if shrank && file.shared().is_some() {
            return self.shared_failed(board, id, SharedFileFailure::SourceChanged);
        }
        if shrank && !file.is_put() {
            // One lane that opens the file once asks for its size again.
            return self.do_whole(board, id);
        }
        file.stage = SplitStage::Naming;
        if file.is_kept() {
            // After the rename, the file is found again only if all ranges were reported.
            self.tell_written(board);
        }
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let end = file.end.at.unwrap_or(0);
        let news = file.tell_up_to(end);
        let put = file.is_put();
        if news > 0 {
            board.tell(LaneEvent::Progress(id, news));
        }
        if shrank {
            board.tell(LaneEvent::SourceShrank(id));
        }
        if put {
            self.state(board, id, FileCopyState::Written);
            self.state(board, id, FileCopyState::Closed);
            self.release(board, id);
            self.send_finish(board, id);
            return;
        }
        let Some(file) = self.files.get(&id) else {
            return;
        };
        if let Some(SharedTemp::Range(..)) = file.shared() {
            // The shard counts as complete whatever happens to this machine later.
            let fsync = true;
            board.ask_disk(DiskRequest::Leave { job: id, fsync });
            return;
        }
        let options = file.options();
        board.ask_disk(DiskRequest::FinishTarget {
            job: id,
            size: end,
            attributes: options.kept(file.attributes),
            preserve: options.preserve,
            fsync: options.fsync || file.sync_before_name(),
            beyond: options.beyond.clone(),
        });
    }

    pub(in super::super) fn send_finish(&self, board: &mut SchedulerState, id: JobId) {
        let Some(kind) = self.files.get(&id).and_then(SplitFile::finish) else {
            return;
        };
        board.urgent(kind, AssignedRole::Finish(id));
    }

    pub(in super::super) fn on_finish(
        &mut self,
        board: &mut SchedulerState,
        id: JobId,
        event: LaneEvent,
    ) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        match event {
            LaneEvent::State(_, state) if state >= FileCopyState::Synced => {
                self.state(board, id, state)
            }
            LaneEvent::Warning(_, text) => board.tell(LaneEvent::Warning(id, text)),
            LaneEvent::WhyInPlace(_, why) => board.tell(LaneEvent::WhyInPlace(id, why)),
            LaneEvent::SourceShrank(_) => board.tell(LaneEvent::SourceShrank(id)),
            LaneEvent::NotKept(_, parts, why) => board.tell(LaneEvent::NotKept(id, parts, why)),
            LaneEvent::Belonged(_, owner) => board.tell(LaneEvent::Belonged(id, owner)),
            LaneEvent::OtherNames(_, names) => board.tell(LaneEvent::OtherNames(id, names)),
            LaneEvent::Refused(_, found, why) => board.tell(LaneEvent::Refused(id, found, why)),
            LaneEvent::RemovesTemp(_) => board.tell(LaneEvent::RemovesTemp(id)),
            LaneEvent::Abandoned(_) => {
                file.temp = None;
                file.write_in_place();
                if file.has_taken_relayed() {
                    file.fault.get_or_insert_with(in_place_again);
                }
                file.stage = SplitStage::Cleaning(match file.fault {
                    Some(_) => AfterDiskClose::Fail,
                    None => AfterDiskClose::Whole,
                });
                self.go_on(board, id);
            }
            LaneEvent::Path(_, path) => board.tell(LaneEvent::Path(id, path)),
            LaneEvent::Done(_) => {
                self.files.remove(&id);
                board.tell(LaneEvent::Done(id));
            }
            LaneEvent::Failed(..) if file.finish_lost && file.fault.is_none() => {
                self.anew(board, id)
            }
            LaneEvent::Failed(_, fault) => {
                // The temporary was removed, or the error names it.
                file.temp = None;
                let temporary = fault.temporary;
                let reported = file.fault.get_or_insert(fault);
                reported.note_temporary(temporary);
                file.stage = SplitStage::Cleaning(AfterDiskClose::Fail);
                self.go_on(board, id);
            }
            _ => {}
        }
    }

    /// Handles the check for a temporary whose rename was lost with its lane.
    pub(in super::super) fn on_checked(
        &mut self,
        board: &mut SchedulerState,
        id: JobId,
        event: &LaneEvent,
    ) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        match event {
            // Too many renames were lost.
            LaneEvent::Done(_) if file.fault.is_some() => {
                file.stage = SplitStage::GivingUp;
                self.go_on(board, id);
            }
            LaneEvent::Done(_) => self.send_finish(board, id),
            LaneEvent::Failed(..) => self.anew(board, id),
            _ => {}
        }
    }

    /// Starts the file over, since the rename of the lost lane may or may not have happened.
    fn anew(&mut self, board: &mut SchedulerState, id: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        file.finish_lost = false;
        file.temp = None;
        file.stage = SplitStage::Cleaning(match file.fault {
            Some(_) => AfterDiskClose::Fail,
            None => AfterDiskClose::Restart,
        });
        self.go_on(board, id);
    }

    /// Completes a download whose local file has its final name.
    pub(super) fn on_named(&mut self, board: &mut SchedulerState, id: JobId, renamed: bool) {
        let Some(file) = self.files.remove(&id) else {
            return;
        };
        self.state(board, id, FileCopyState::Written);
        self.state(board, id, FileCopyState::Closed);
        if file.options().fsync {
            self.state(board, id, FileCopyState::Synced);
        }
        if renamed {
            self.state(board, id, FileCopyState::Renamed);
        }
        board.tell(LaneEvent::Done(id));
    }

    pub(in super::super) fn fail_file(
        &mut self,
        board: &mut SchedulerState,
        id: JobId,
        fault: JobFailure,
    ) {
        if let Some(file) = self.files.get_mut(&id) {
            // A rename in flight cannot be stopped; its answer decides.
            file.fail(fault);
            if let SplitStage::Cleaning(then) = &mut file.stage {
                *then = AfterDiskClose::Fail;
            }
            self.go_on(board, id);
        }
    }

    /// Fails a file of which other processes write other ranges.
    pub(in super::super) fn shared_failed(
        &mut self,
        board: &mut SchedulerState,
        id: JobId,
        why: SharedFileFailure,
    ) {
        let remote = self.files.get(&id).is_some_and(SplitFile::is_put);
        let fault = JobFailure::new(why.text(), remote).of_kind(why.kind());
        self.fail_file(board, id, fault);
    }

    /// Gives up the parts so that one lane copies the whole file.
    pub(in super::super) fn do_whole(&mut self, board: &mut SchedulerState, id: JobId) {
        if self.files.get(&id).is_some_and(|f| f.shared().is_some()) {
            return self.shared_failed(board, id, SharedFileFailure::SourceChanged);
        }
        let file = self.files.get(&id);
        if file.is_some_and(SplitFile::starts_over_at_both) {
            let fault = JobFailure::new(STARTS_OVER, true).of_kind(JobFailureKind::StartOver);
            return self.fail_file(board, id, fault);
        }
        if file.is_some_and(SplitFile::has_taken_relayed) {
            let fault = JobFailure::data_are_gone(JobFailureKind::ReadAgain);
            return self.fail_file(board, id, fault);
        }
        if let Some(file) = self.files.get_mut(&id) {
            file.unclaimed = ByteRanges::default();
            file.stage = SplitStage::GivingUp;
            self.go_on(board, id);
        }
    }

    /// Has one lane write the file under its final name, since no temporary can be created for it.
    pub(super) fn do_in_place(&mut self, board: &mut SchedulerState, id: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        file.safe = ByteRanges::default();
        match file.access.relayed {
            true => self.fail_file(board, id, in_place_again()),
            false => self.do_whole(board, id),
        }
    }

    /// Removes an upload's temporary of an earlier run; another one is created.
    pub(in super::super) fn leave_aside(&mut self, board: &mut SchedulerState, id: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        if let Some(old) = file.kept_temporary() {
            file.another_name();
            board.clear(id, old);
            self.tell_restarted(board, id);
        }
    }

    /// Reports that the temporary of an earlier run cannot be resumed.
    pub(in super::super) fn tell_restarted(&self, board: &mut SchedulerState, id: JobId) {
        if board.is_cancelled() {
            return;
        }
        board.restarted(id);
        board.tell(LaneEvent::Warning(id, RESTARTED.to_owned()));
    }

    /// Removes the temporary and closes the file, once no part is running.
    pub(in super::super) fn clean(&mut self, board: &mut SchedulerState, id: JobId) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let then = match file.fault {
            Some(_) => AfterDiskClose::Fail,
            None => AfterDiskClose::Whole,
        };
        file.stage = SplitStage::Cleaning(then);
        let stays = then == AfterDiskClose::Fail && file.stays(board.is_leaving());
        if stays {
            // Reports ranges that were answered after the cancellation, while running parts ended.
            self.tell_written(board);
        }
        if let Some(file) = self.files.get_mut(&id).filter(|_| stays) {
            let fence = std::mem::take(&mut file.fence);
            if let Some(temp) = file.temp.take()
                && !fence.is_over(board.now())
            {
                self.left_fences.insert(temp.temp, fence);
            }
        }
        let Some(file) = self.files.get(&id) else {
            return;
        };
        if let Some(path) = file.temporary() {
            let kind = JobKind::Remove { path };
            board.urgent(kind, AssignedRole::Clean(id));
        }
        self.release(board, id);
        self.go_on(board, id);
    }

    /// Handles the answer to the removal of the temporary.
    pub(in super::super) fn on_cleaned(
        &mut self,
        board: &mut SchedulerState,
        id: JobId,
        event: LaneEvent,
    ) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        match event {
            LaneEvent::Done(_) => {
                if let Some(fault) = &mut file.fault {
                    fault.note_temporary(FailedTemporary::Removed);
                }
            }
            // Somebody else has removed it.
            LaneEvent::Failed(_, why) if why.kind == JobFailureKind::NotFound => {}
            LaneEvent::Failed(_, why) => {
                let name = file.temporary().unwrap_or(RemotePath(Vec::new()));
                let name = sftp::printable(&name.0, 4096);
                let text = format!(
                    "cannot remove the temporary file {name} ({}): remove it by hand",
                    why.what
                );
                match &mut file.fault {
                    Some(fault) => fault.what.push_str(&format!("; {text}")),
                    None => board.tell(LaneEvent::Warning(id, text)),
                }
            }
            _ => return,
        }
        if let Some(file) = self.files.get_mut(&id) {
            file.temp = None;
        }
        self.go_on(board, id);
    }

    /// Asks the disk side to close the file.
    fn release(&mut self, board: &mut SchedulerState, id: JobId) {
        if let Some(file) = self.files.get_mut(&id)
            && file.held
        {
            let discards = !file.is_put() && !file.stays(board.is_leaving());
            if let Some(fault) = &mut file.fault
                && discards
                && file.has_target
            {
                fault.note_temporary(FailedTemporary::Removed);
            }
            let request = match file.is_put() {
                true => DiskRequest::CloseSource { job: id },
                false if discards => DiskRequest::Discard { job: id },
                false => DiskRequest::Leave {
                    job: id,
                    fsync: false,
                },
            };
            board.ask_disk(request);
        }
    }

    /// Asks the disk side to close the file of a job that is no longer tracked.
    pub(in super::super) fn let_go(&self, board: &mut SchedulerState, file: &SplitFile) {
        let job = file.job.id;
        board.ask_disk(match file.is_put() {
            true => DiskRequest::CloseSource { job },
            false if board.is_leaving() && file.is_kept() => {
                DiskRequest::Leave { job, fsync: false }
            }
            false => DiskRequest::Discard { job },
        });
    }

    pub(super) fn over(&mut self, board: &mut SchedulerState, id: JobId, then: AfterDiskClose) {
        if self.files.get(&id).is_some_and(|f| f.temp.is_some()) {
            return;
        }
        let Some(mut file) = self.files.remove(&id) else {
            return;
        };
        file.another_name();
        if let (AfterDiskClose::Fail, Some(fault)) = (then, file.fault) {
            board.tell(LaneEvent::Failed(id, fault));
            return;
        }
        if file.told > 0 || then == AfterDiskClose::Restart {
            board.restarted(id);
        }
        let losses = match then {
            AfterDiskClose::Restart => JobLaneLosses::of(file.losses),
            _ => JobLaneLosses::one(file.losses > 0),
        };
        let mut queued = QueuedJob::new(file.job, file.hint).with_losses(losses);
        if then == AfterDiskClose::Whole {
            queued.make_whole();
        }
        board.queue(queued, true);
    }
}
