use std::collections::BTreeMap;

use super::LaneId;
use super::queues::QueuedJob;
use crate::{JobId, JobKind, RemotePath};

/// Role of a job on a lane.
#[derive(Clone, Debug)]
pub(super) enum AssignedRole {
    /// A whole job. Boxed, since thousands are in flight and map entries move when a neighbor is
    /// removed.
    Whole(Box<QueuedJob>),
    /// A part of this file.
    Part(JobId),
    /// The rename of this file.
    Finish(JobId),
    /// A check for this file's temporary, after the lane that was to rename it was lost.
    Check(JobId),
    /// The removal of this file's temporary.
    Clean(JobId),
    /// A check if this file can resume from an earlier run.
    Adopt(JobId),
    /// A sync of this file's temporary.
    Sync(JobId),
    /// The removal of a file that a lost lane left for this job.
    Remove(JobId, RemotePath),
}

/// Lane and role of every job that was assigned.
#[derive(Debug, Default)]
pub(super) struct Assignments {
    by_job: BTreeMap<JobId, (LaneId, AssignedRole)>,
}

impl Assignments {
    pub(super) fn insert(&mut self, job: JobId, lane: LaneId, role: AssignedRole) {
        self.by_job.insert(job, (lane, role));
    }

    pub(super) fn remove(&mut self, job: JobId) -> Option<AssignedRole> {
        self.by_job.remove(&job).map(|(_, role)| role)
    }

    /// Returns the role of a job.
    pub(super) fn role(&self, job: JobId) -> Option<&AssignedRole> {
        self.by_job.get(&job).map(|(_, role)| role)
    }

    /// Returns the role of a job if `lane` has it.
    pub(super) fn role_on(&self, lane: LaneId, job: JobId) -> Option<&AssignedRole> {
        let (at, role) = self.by_job.get(&job)?;
        (*at == lane).then_some(role)
    }

    /// Returns the file of which the job is a part.
    pub(super) fn file_of_part(&self, job: JobId) -> Option<JobId> {
        match self.role(job) {
            Some(AssignedRole::Part(file)) => Some(*file),
            _ => None,
        }
    }

    /// Returns each assigned job as a pushed one, `None` for the scheduler's own.
    pub(super) fn wholes(&self) -> impl Iterator<Item = Option<&QueuedJob>> {
        self.by_job.values().map(|(_, role)| match role {
            AssignedRole::Whole(queued) => Some(&**queued),
            _ => None,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_job.is_empty()
    }
}

/// Receiver of an event, by the role of its job on the lane: a job of the scheduler's owner, or the
/// file for which the scheduler has made a job of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventReceiver {
    /// A whole upload.
    Upload(JobId),
    /// Another whole job, for which a path is the answer to a question.
    Other,
    Part(JobId),
    Finish(JobId),
    Check(JobId),
    Clean(JobId),
    Adopt(JobId),
    Sync(JobId),
    Removed(JobId),
}

impl EventReceiver {
    /// Returns the owner of the events of `job`.
    pub(super) fn of(role: &AssignedRole, job: JobId) -> Self {
        match role {
            AssignedRole::Whole(queued) => match queued.kind() {
                JobKind::Put { .. } | JobKind::PutDelta { .. } => Self::Upload(job),
                _ => Self::Other,
            },
            AssignedRole::Part(file) => Self::Part(*file),
            AssignedRole::Finish(file) => Self::Finish(*file),
            AssignedRole::Check(file) => Self::Check(*file),
            AssignedRole::Clean(file) => Self::Clean(*file),
            AssignedRole::Adopt(file) => Self::Adopt(*file),
            AssignedRole::Sync(file) => Self::Sync(*file),
            AssignedRole::Remove(of, _) => Self::Removed(*of),
        }
    }
}
