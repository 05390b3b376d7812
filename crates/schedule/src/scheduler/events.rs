//! Handles events of lanes, and the work of lost lanes.

use std::collections::BTreeSet;

use super::assignments::{AssignedRole, EventReceiver};
use super::lanes::{ChannelCloseState, LaneState};
use super::queues::QueuedJob;
use super::{LaneId, Scheduler};
use crate::{JobFailure, JobId, JobKind, LaneEvent, ListedEntry, RemotePath};

/// Size in bytes up to which a file counts as a question rather than as data.
const LITTLE: u64 = 4096;

impl Scheduler {
    pub(super) fn on_lane(&mut self, lane: LaneId, event: LaneEvent) {
        let id = event.job();
        // The event may come from a lane that has lost the job meanwhile.
        let Some(owner) = self.board.heard(lane, &event) else {
            return;
        };
        let over = match event.is_last() {
            true => self.board.end(id),
            false => None,
        };
        let (board, files) = (&mut self.board, &mut self.files);
        match owner {
            EventReceiver::Upload(_) | EventReceiver::Other => match (&event, over) {
                // A delta is not possible or does not pay.
                (LaneEvent::Abandoned(_), Some(AssignedRole::Whole(queued)))
                    if rebuilds(queued.kind()) =>
                {
                    self.do_plainly(*queued);
                }
                // The directory is too long for a lane that predicts handles.
                (LaneEvent::Abandoned(_), Some(AssignedRole::Whole(mut queued))) => {
                    queued.make_whole();
                    board.queue(*queued, true);
                }
                _ => board.tell(event),
            },
            EventReceiver::Part(file) => files.on_part(board, file, id, event),
            EventReceiver::Finish(file) => files.on_finish(board, file, event),
            EventReceiver::Check(file) => files.on_checked(board, file, &event),
            EventReceiver::Clean(file) => files.on_cleaned(board, file, event),
            EventReceiver::Adopt(file) => files.on_adopt(board, file, event),
            EventReceiver::Sync(file) => files.on_sync(board, file, event),
            EventReceiver::Removed(of) => {
                if event.is_last() {
                    board.removed(of);
                }
            }
        }
    }

    pub(super) fn on_lost(
        &mut self,
        lane: LaneId,
        temporaries: Vec<(JobId, RemotePath)>,
        why: &str,
    ) {
        let Some(state) = self.board.lose_lane(lane) else {
            return;
        };
        let fruitful = self.is_loss_fruitful(&state);
        let of_part = |id: JobId| self.board.assigned().file_of_part(id);
        let owners: Vec<(JobId, RemotePath)> = temporaries
            .into_iter()
            .map(|(id, path)| (of_part(id).unwrap_or(id), path))
            .collect();
        // A lane may have had many parts of a file, but counts as one loss.
        let hit: BTreeSet<JobId> = state.jobs().filter_map(of_part).collect();
        let until = self.board.late_until(&state);
        let until = (state.end() != ChannelCloseState::Confirmed).then_some(until);
        for id in hit {
            self.files
                .lane_lost(id, lane, state.counts_as_loss(), until);
        }
        // In descending order, so that the jobs return to the front of the queue in their old
        // order.
        for id in state.jobs().rev() {
            let Some(role) = self.board.lose_job(id) else {
                continue;
            };
            let (board, files) = (&mut self.board, &mut self.files);
            match role {
                AssignedRole::Whole(mut queued) => {
                    if state.counts_as_loss() {
                        queued.note_loss(fruitful);
                    }
                    self.whole_lost(lane, &state, *queued, why);
                }
                AssignedRole::Part(file) => files.part_lost(board, file, id, why),
                AssignedRole::Finish(file) | AssignedRole::Check(file) => {
                    if files.finish_lost(file, state.counts_as_loss()) {
                        match board.may_check(lane, &state, file) {
                            true => files.check(board, file),
                            false => self.go_on_behind_lost(),
                        }
                    }
                }
                AssignedRole::Clean(file) => files.clean(board, file),
                AssignedRole::Adopt(file) => {
                    files.ask_to_adopt(board, file);
                }
                AssignedRole::Sync(file) => files.sync_lost(file, id),
                AssignedRole::Remove(of, path) => board.remove(of, path),
            }
        }
        for (of, path) in owners {
            // The temporary that the lane was to open may exist or still appear; it is removed
            // then.
            self.files.temp_is_uncertain(of);
            self.board.strayed(lane, &state, of, path);
        }
    }

    /// True if something was done between the previous loss of a lane and this one. A lane that
    /// never reported anything was refused; its loss does not count.
    fn is_loss_fruitful(&mut self, state: &LaneState) -> bool {
        let done = self.board.stats().done;
        let fruitful = done > self.done_at_loss;
        if state.has_spoken() {
            self.done_at_loss = done;
        }
        fruitful
    }

    /// Handles the loss of a lane with a whole job.
    fn whole_lost(&mut self, lane: LaneId, state: &LaneState, mut queued: QueuedJob, why: &str) {
        let id = queued.id();
        if queued.losses().are_its_fault() {
            let fault = JobFailure::new(why, true);
            return self.board.tell(LaneEvent::Failed(id, fault));
        }
        if !self.board.is_cancelled() {
            self.board.restarted(id);
        }
        if let JobKind::Put { options, .. }
        | JobKind::PutDelta { options, .. }
        | JobKind::Get { options, .. }
        | JobKind::GetDelta { options, .. } = queued.kind_mut()
            && let Some(keep) = &mut options.keep
        {
            keep.again = keep.again.wrapping_add(1);
        }
        // The lost lane's requests may still come, and its temporary is removed then.
        if let JobKind::MakeSymlink { tag, .. } | JobKind::MakeHardLink { tag, .. } =
            queued.kind_mut()
        {
            *tag = None;
        }
        // It may have been set before the connection was lost.
        if let JobKind::SetAttributes { expected, .. } = queued.kind_mut() {
            expected.listed = ListedEntry::ANY;
        }
        if !self.board.queue_lost(lane, state, queued) {
            self.go_on_behind_lost();
        }
    }

    /// Resumes work that waited until lost lanes could no longer affect it.
    pub(super) fn go_on_behind_lost(&mut self) {
        for file in self.board.resume_behind_lost() {
            self.files.check(&mut self.board, file);
        }
    }

    fn do_plainly(&mut self, queued: QueuedJob) {
        let id = queued.id();
        let queued = queued.with_kind(|kind| match kind {
            JobKind::PutDelta {
                source,
                target,
                options,
                ..
            } => JobKind::Put {
                source,
                target,
                options,
            },
            JobKind::GetDelta {
                source,
                target,
                known,
                options,
                ..
            } => JobKind::Get {
                source,
                target,
                known,
                options,
            },
            kind => kind,
        });
        if !self.board.is_cancelled() {
            self.board.restarted(id);
        }
        self.board.queue(queued, true);
    }

    pub(super) fn on_lose(&mut self, why: &str) {
        let fault = JobFailure::new(why, true);
        let ids: Vec<LaneId> = self.board.lanes().iter().map(|(id, _)| id).collect();
        for id in ids {
            self.on_lost(id, Vec::new(), why);
        }
        let board = &mut self.board;
        board.drop_orders();
        let left = board.give_up_removals();
        for id in board.drain() {
            board.tell(LaneEvent::Failed(id, leaving(&fault, left.get(&id))));
        }
        for (id, cause, temporary) in self.files.give_up(board) {
            let fault = cause.unwrap_or_else(|| fault.clone());
            let fault = leaving(&fault, temporary.as_ref().or_else(|| left.get(&id)));
            board.tell(LaneEvent::Failed(id, fault));
        }
    }
}

fn leaving(fault: &JobFailure, temporary: Option<&RemotePath>) -> JobFailure {
    let mut fault = fault.clone();
    if let Some(path) = temporary {
        fault.leaves(path);
    }
    fault
}

/// Returns true for jobs that rebuild a file by delta.
pub(super) fn rebuilds(kind: &JobKind) -> bool {
    matches!(kind, JobKind::PutDelta { .. } | JobKind::GetDelta { .. })
}

/// Returns true for jobs that are answered in one message, and for files of that size.
pub(super) fn asks(kind: &JobKind) -> bool {
    match kind {
        JobKind::Get {
            known: Some(known), ..
        } => known.size.is_some_and(|size| size <= LITTLE),
        kind => matches!(
            kind,
            JobKind::Stat { .. }
                | JobKind::RealPath { .. }
                | JobKind::FileSystem { .. }
                | JobKind::GetXattrs { .. }
                | JobKind::Names { .. }
                | JobKind::Ids { .. }
                | JobKind::ReadSymlink { .. }
        ),
    }
}
