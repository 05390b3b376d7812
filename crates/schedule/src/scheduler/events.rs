//! Handles events of lanes, and the work of lost lanes.

use std::collections::BTreeSet;

use super::dirs;
use super::file::SplitStage;
use super::lanes::LaneState;
use super::spans::ByteRanges;
use super::{Assigned, LaneId, MOST_LOSSES, MOST_PART_LOSSES, Queued, Scheduler, SchedulerEvent};
use crate::{Fault, JobId, JobKind, LaneEvent, RemotePath};

/// Size in bytes up to which a file counts as a question rather than as data.
const LITTLE: u64 = 4096;

/// Destination of an event.
enum EventOwner {
    Whole(JobId),
    Other,
    Part(JobId),
    Finish(JobId),
    Check(JobId),
    Clean(JobId),
    Adopt(JobId),
    Sync(JobId),
    Removed(JobId),
}

impl Scheduler {
    pub(super) fn on_lane(&mut self, lane: LaneId, event: LaneEvent) {
        let id = event.job();
        let Some((at, assigned)) = self.assigned.get(&id) else {
            return;
        };
        // The event comes from a lane that has lost the job meanwhile.
        if *at != lane {
            return;
        }
        let of = match assigned {
            Assigned::Whole(queued) => {
                match &queued.job.kind {
                    JobKind::MakeDir { path, .. } if event.is_last() => {
                        self.dirs.end(&path.0, id);
                    }
                    JobKind::SetAttributes { .. } if event.is_last() => self.settings.end(id),
                    _ => {}
                }
                // For jobs other than uploads, a path is the answer to a question.
                match is_upload(&queued.job.kind) {
                    true => EventOwner::Whole(id),
                    false => EventOwner::Other,
                }
            }
            Assigned::Part(file) => EventOwner::Part(*file),
            Assigned::Finish(file) => EventOwner::Finish(*file),
            Assigned::Check(file) => EventOwner::Check(*file),
            Assigned::Clean(file) => EventOwner::Clean(*file),
            Assigned::Adopt(file) => EventOwner::Adopt(*file),
            Assigned::Sync(file) => EventOwner::Sync(*file),
            Assigned::Remove(of, _) => EventOwner::Removed(*of),
        };
        if let Some(state) = self.lanes.by_id.get_mut(&lane) {
            state.spoke = true;
            match event {
                LaneEvent::Progress(_, n) => {
                    state.moved(self.now, id, n);
                    self.stats.moved += n;
                }
                _ if event.is_last() => state.ended(self.now, id),
                _ => state.heard = self.now,
            }
        }
        if let (LaneEvent::Path(_, path), EventOwner::Whole(id) | EventOwner::Finish(id)) =
            (&event, &of)
        {
            self.asides.told(*id, path);
        }
        let mut over = None;
        if event.is_last() {
            if let EventOwner::Whole(id) | EventOwner::Finish(id) = &of {
                self.asides.over(*id);
            }
            self.dirty = true;
            over = self.assigned.remove(&id);
        }
        match of {
            EventOwner::Whole(_) | EventOwner::Other => match (&event, over) {
                // A delta is not possible or does not pay.
                (LaneEvent::Abandoned(_), Some((_, Assigned::Whole(queued))))
                    if rebuilds(&queued.job.kind) =>
                {
                    self.do_plainly(*queued);
                }
                // The directory is too long for a lane that predicts handles.
                (LaneEvent::Abandoned(_), Some((_, Assigned::Whole(mut queued)))) => {
                    queued.whole = true;
                    self.queue(*queued, true);
                }
                _ => self.tell(event),
            },
            EventOwner::Part(file) => self.on_part(file, id, event),
            EventOwner::Finish(file) => self.on_finish(file, event),
            EventOwner::Check(file) => self.on_checked(file, &event),
            EventOwner::Clean(file) => self.on_cleaned(file, event),
            EventOwner::Adopt(file) => self.on_adopt(file, event),
            EventOwner::Sync(file) => self.on_sync(file, event),
            EventOwner::Removed(of) => {
                if event.is_last() {
                    self.on_removed(of);
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
        let Some(state) = self.lanes.by_id.remove(&lane) else {
            return;
        };
        self.orders.retain(|order| !is_for(order, lane));
        let owners: Vec<(JobId, RemotePath)> = temporaries
            .into_iter()
            .map(|(id, path)| match self.assigned.get(&id) {
                Some((_, Assigned::Part(file))) => (*file, path),
                _ => (id, path),
            })
            .collect();
        // A lane may have had many parts of a file, but counts as one loss.
        let of_part = |id: &JobId| match self.assigned.get(id) {
            Some((_, Assigned::Part(file))) => Some(*file),
            _ => None,
        };
        let until = self.late_until(&state);
        let hit: BTreeSet<JobId> = state.jobs.keys().filter_map(of_part).collect();
        for id in hit {
            if let Some(file) = self.files.get_mut(&id) {
                file.losses += u32::from(state.spoke);
                // Only writes into the temporary can arrive after the rename.
                if file.is_put() && file.temp.is_some() && !state.over {
                    file.late.lost(lane, until);
                }
            }
        }
        // In descending order, so that the jobs return to the front of the queue in their old
        // order.
        for id in state.jobs.keys().rev() {
            let Some((_, assigned)) = self.assigned.remove(id) else {
                continue;
            };
            match assigned {
                Assigned::Whole(queued) => self.whole_lost((lane, &state), *queued, why),
                Assigned::Part(file) => self.part_lost(file, *id, why),
                Assigned::Finish(file) | Assigned::Check(file) => {
                    self.finish_lost((lane, &state), file);
                }
                Assigned::Clean(file) => self.clean(file),
                Assigned::Adopt(file) => {
                    self.ask_to_adopt(file);
                }
                Assigned::Sync(file) => self.sync_lost(file, *id),
                Assigned::Remove(of, path) => self.remove(of, path),
            }
        }
        for (of, path) in owners {
            // The temporary that the lane was to open may exist or still appear; it is removed
            // then.
            if let Some(file) = self.files.get_mut(&of).filter(|f| f.temp.is_none()) {
                file.another_name();
            }
            if !self.asides.keeps(of, &path) {
                self.strayed(lane, &state, of, path);
            }
        }
    }

    /// Handles the loss of a lane with a whole job. A lane that never reported anything was
    /// refused; that does not count against its jobs.
    fn whole_lost(&mut self, lane: (LaneId, &LaneState), mut queued: Queued, why: &str) {
        let spoke = lane.1.spoke;
        let id = queued.job.id;
        if let JobKind::MakeDir { path, .. } = &queued.job.kind {
            self.dirs.end(&path.0, id);
        }
        self.settings.end(id);
        queued.losses += u32::from(spoke);
        if queued.hint.relayed || queued.losses >= MOST_LOSSES {
            let fault = Fault {
                what: why.to_owned(),
                remote: true,
            };
            self.tell(LaneEvent::Failed(id, fault));
        } else {
            if self.cancelled.is_none() {
                self.events.push_back(SchedulerEvent::Restarted(id));
            }
            if let JobKind::Put { options, .. }
            | JobKind::PutDelta { options, .. }
            | JobKind::Get { options, .. }
            | JobKind::GetDelta { options, .. } = &mut queued.job.kind
                && let Some(keep) = &mut options.keep
            {
                keep.again = keep.again.wrapping_add(1);
            }
            self.queue_lost(lane, queued);
        }
    }

    fn do_plainly(&mut self, mut queued: Queued) {
        let id = queued.job.id;
        queued.job.kind = match queued.job.kind {
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
        };
        if self.cancelled.is_none() {
            self.events.push_back(SchedulerEvent::Restarted(id));
        }
        self.queue(queued, true);
    }

    fn part_lost(&mut self, id: JobId, part: JobId, why: &str) {
        let Some(file) = self.files.get_mut(&id) else {
            return;
        };
        let had = file.part_over(part, false);
        if file.is_put() && file.temp.is_none() {
            // Without a temporary, no bytes count as written.
            file.headed = false;
            file.end = None;
            if file.stage == SplitStage::Moving {
                file.unclaimed = ByteRanges::all();
            }
        }
        let began = had.is_some_and(|part| part.progress > 0);
        if file.losses >= MOST_PART_LOSSES {
            let fault = Fault {
                what: why.to_owned(),
                remote: true,
            };
            self.fail_file(id, fault);
        } else if !file.seekable && began {
            self.do_whole(id);
        } else {
            self.go_on(id);
        }
    }

    fn finish_lost(&mut self, lane: (LaneId, &LaneState), id: JobId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.finish_lost = true;
            self.check_lost(lane, id);
        }
    }

    pub(super) fn fail_waiting(&mut self, fault: &Fault) {
        for id in self.drain_queues() {
            self.tell(LaneEvent::Failed(id, fault.clone()));
        }
    }

    /// Removes all jobs that no lane has started and returns their ids.
    fn drain_queues(&mut self) -> Vec<JobId> {
        for queued in &self.makes {
            if let Some(path) = dirs::target(&queued.job.kind) {
                self.dirs.end(path, queued.job.id);
            }
        }
        let queues = [
            &mut self.makes,
            &mut self.waiting,
            &mut self.large,
            &mut self.lists,
            &mut self.long_lists,
        ];
        let waiting = self.asides.drain();
        queues
            .into_iter()
            .flat_map(|queue| queue.drain(..).map(|queued| queued.job.id))
            .chain(waiting)
            .collect()
    }

    pub(super) fn on_lose(&mut self, why: &str) {
        let fault = Fault {
            what: why.to_owned(),
            remote: true,
        };
        let ids: Vec<LaneId> = self.lanes.by_id.keys().copied().collect();
        for id in ids {
            self.on_lost(id, Vec::new(), why);
        }
        self.orders.clear();
        let (mut left, held) = self.strays.give_up();
        for event in held {
            self.tell(event);
        }
        for (_, _, what) in std::mem::take(&mut self.urgent) {
            if let Assigned::Remove(of, path) = what {
                left.insert(of, path);
            }
        }
        for id in self.drain_queues() {
            self.tell(LaneEvent::Failed(id, leaving(&fault, left.get(&id))));
        }
        for (id, file) in std::mem::take(&mut self.files) {
            self.leaving |= file.is_kept();
            self.let_go(&file);
            let fault = file.fault.clone().unwrap_or_else(|| fault.clone());
            // A file in the journal is found again by the next run.
            let temporary = file.temporary().filter(|_| !file.is_kept());
            let fault = leaving(&fault, temporary.as_ref().or_else(|| left.get(&id)));
            self.tell(LaneEvent::Failed(id, fault));
        }
    }
}

fn leaving(fault: &Fault, temporary: Option<&RemotePath>) -> Fault {
    let mut fault = fault.clone();
    if let Some(path) = temporary {
        let name = sftp::printable(&path.0, 4096);
        let text = format!("; {name} may be left at the far end");
        fault.what.push_str(&text);
    }
    fault
}

fn is_upload(kind: &JobKind) -> bool {
    matches!(kind, JobKind::Put { .. } | JobKind::PutDelta { .. })
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
                | JobKind::GetXattrs { .. }
                | JobKind::Names { .. }
                | JobKind::Ids { .. }
                | JobKind::ReadSymlink { .. }
        ),
    }
}

fn is_for(order: &super::LaneOrder, lane: LaneId) -> bool {
    match order {
        super::LaneOrder::Push(to, _)
        | super::LaneOrder::Abandon(to, _)
        | super::LaneOrder::Close(to) => *to == lane,
    }
}
