//! Jobs that wait for a lane.

use std::collections::VecDeque;

use super::JobHint;
use super::assignments::AssignedRole;
use super::job_lane_losses::JobLaneLosses;
use crate::job::place_of_listing;
use crate::{Job, JobId, JobKind, RefusedOperations, ResumeData, SharedTemp};

/// A pushed job that waits for a lane.
#[derive(Clone, Debug)]
pub(super) struct QueuedJob {
    job: Job,
    hint: JobHint,
    losses: JobLaneLosses,
    whole: bool,
}

impl QueuedJob {
    /// A job that no lane has had.
    pub(super) fn new(job: Job, hint: JobHint) -> Self {
        Self {
            job,
            hint,
            losses: JobLaneLosses::default(),
            whole: false,
        }
    }

    /// Sets the number of lanes that were lost with the job.
    pub(super) fn with_losses(self, losses: JobLaneLosses) -> Self {
        Self { losses, ..self }
    }

    /// Does not cut the file, or list the directory in one flight, since that has failed before.
    pub(super) fn make_whole(&mut self) {
        self.whole = true;
    }

    /// Returns true if the file is not to be cut, or the directory not listed in one flight.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    pub(super) fn job(&self) -> &Job {
        &self.job
    }

    pub(super) fn id(&self) -> JobId {
        self.job.id
    }

    pub(super) fn kind(&self) -> &JobKind {
        &self.job.kind
    }

    pub(super) fn kind_mut(&mut self) -> &mut JobKind {
        &mut self.job.kind
    }

    pub(super) fn hint(&self) -> JobHint {
        self.hint
    }

    /// Returns the file's place in the journal.
    pub(super) fn keep(&self) -> Option<&ResumeData> {
        self.kind().put_options()?.keep.as_deref()
    }

    /// Returns true for a file between two hosts of which the target has a part already, so that
    /// neither job may begin at its start.
    pub(super) fn continues_relayed(&self) -> bool {
        self.hint.relayed && self.keep().is_some_and(|keep| keep.left.is_some())
    }

    /// Returns the number of lanes that were lost with the job.
    pub(super) fn losses(&self) -> JobLaneLosses {
        self.losses
    }

    /// Counts the loss of a lane, as [`JobLaneLosses::note`] does.
    pub(super) fn note_loss(&mut self, fruitful: bool) {
        self.losses.note(fruitful);
    }

    /// Does the work in another way: `change` makes another kind of the present one.
    pub(super) fn with_kind(self, change: impl FnOnce(JobKind) -> JobKind) -> Self {
        let (id, kind) = (self.job.id, change(self.job.kind));
        Self {
            job: Job { id, kind },
            ..self
        }
    }

    /// Returns the job with its hint.
    pub(super) fn into_job(self) -> (Job, JobHint) {
        (self.job, self.hint)
    }
}

/// Queues of a scheduler, each for one kind of lane or moment.
#[derive(Debug, Default)]
pub(super) struct JobQueues {
    /// MKDIR jobs.
    makes: VecDeque<QueuedJob>,
    waiting: VecDeque<QueuedJob>,
    /// Files that are to be cut.
    large: VecDeque<QueuedJob>,
    lists: VecDeque<QueuedJob>,
    /// Listings that are too long for the one flight in which a lane that predicts handles lists a
    /// directory.
    long_lists: VecDeque<QueuedJob>,
    /// Jobs that come first: renames, and temporaries to remove.
    urgent: VecDeque<(JobId, JobKind, AssignedRole)>,
    /// Sync jobs that no lane has: id, kind and file.
    syncs: VecDeque<(JobId, JobKind, JobId)>,
}

/// Name of a queue of pushed jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobQueueKind {
    Makes,
    Waiting,
    Large,
    Lists,
    LongLists,
}

const ALL: [JobQueueKind; 5] = [
    JobQueueKind::Makes,
    JobQueueKind::Waiting,
    JobQueueKind::Large,
    JobQueueKind::Lists,
    JobQueueKind::LongLists,
];

impl JobQueues {
    fn queue(&mut self, name: JobQueueKind) -> &mut VecDeque<QueuedJob> {
        match name {
            JobQueueKind::Makes => &mut self.makes,
            JobQueueKind::Waiting => &mut self.waiting,
            JobQueueKind::Large => &mut self.large,
            JobQueueKind::Lists => &mut self.lists,
            JobQueueKind::LongLists => &mut self.long_lists,
        }
    }

    /// Returns the jobs of a queue.
    pub(super) fn of(&self, name: JobQueueKind) -> &VecDeque<QueuedJob> {
        match name {
            JobQueueKind::Makes => &self.makes,
            JobQueueKind::Waiting => &self.waiting,
            JobQueueKind::Large => &self.large,
            JobQueueKind::Lists => &self.lists,
            JobQueueKind::LongLists => &self.long_lists,
        }
    }

    /// Adds a job: a file that is to be cut (`split`) or another one, which has been on a lane
    /// before (`again`) or not.
    pub(super) fn push(&mut self, queued: QueuedJob, split: bool, again: bool) {
        let name = match queued.job.kind {
            JobKind::MakeDir { .. } => JobQueueKind::Makes,
            JobKind::List { .. } if queued.whole => JobQueueKind::LongLists,
            JobKind::List { .. } => JobQueueKind::Lists,
            _ if split => JobQueueKind::Large,
            _ => JobQueueKind::Waiting,
        };
        let queue = self.queue(name);
        let at = match queued.job.kind {
            _ if again => 0,
            // A tree listing holds no handle and suits any lane.
            JobKind::ListTree { .. } => place_of_listing(queue.iter().map(|q| &q.job)),
            // One request whose answer unblocks more than any file: behind 2,000 small files the
            // server's clock was never read, and after a kill everything was sent again.
            JobKind::Stat { .. } => {
                let is_look = |q: &&QueuedJob| matches!(q.job.kind, JobKind::Stat { .. });
                queue.iter().take_while(is_look).count()
            }
            _ => queue.len(),
        };
        queue.insert(at, queued);
    }

    /// Takes the first job of a queue.
    pub(super) fn pop(&mut self, name: JobQueueKind) -> Option<QueuedJob> {
        self.queue(name).pop_front()
    }

    /// Takes the job at `at` of a queue.
    pub(super) fn take(&mut self, name: JobQueueKind, at: usize) -> Option<QueuedJob> {
        self.queue(name).remove(at)
    }

    /// Takes the large uploads of which this process writes the whole file, in their order. A range
    /// of a file that several processes write stays: each of them would write the whole file under
    /// its name, and none needs a rename for its range.
    pub(super) fn take_large_uploads(
        &mut self,
        refusals: RefusedOperations,
    ) -> VecDeque<QueuedJob> {
        let is_range = |queued: &QueuedJob| {
            let shared = queued.keep().and_then(|keep| keep.shared);
            matches!(shared, Some(SharedTemp::Range(..)))
        };
        let is_whole = |queued: &QueuedJob| {
            let goes_in_place = match &queued.job.kind {
                JobKind::Put { target, .. } => refusals.in_place_at(&target.0),
                _ => false,
            };
            goes_in_place && !is_range(queued) && !queued.continues_relayed()
        };
        let large = std::mem::take(&mut self.large);
        let (whole, others) = large.into_iter().partition(is_whole);
        self.large = others;
        whole
    }

    /// Adds a job that comes before all others.
    pub(super) fn push_urgent(&mut self, id: JobId, kind: JobKind, role: AssignedRole) {
        self.urgent.push_back((id, kind, role));
    }

    /// Returns true if there is an urgent job.
    pub(super) fn has_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    /// Takes the next urgent job.
    pub(super) fn pop_urgent(&mut self) -> Option<(JobId, JobKind, AssignedRole)> {
        self.urgent.pop_front()
    }

    /// Adds the sync of a file's temporary.
    pub(super) fn push_sync(&mut self, id: JobId, kind: JobKind, file: JobId) {
        self.syncs.push_back((id, kind, file));
    }

    /// Returns true if there is a sync.
    pub(super) fn has_syncs(&self) -> bool {
        !self.syncs.is_empty()
    }

    /// Drops syncs at the front whose file is gone; returns true if a sync is left.
    pub(super) fn next_sync(&mut self, exists: impl Fn(JobId) -> bool) -> bool {
        while let Some((_, _, file)) = self.syncs.front() {
            if exists(*file) {
                return true;
            }
            self.syncs.pop_front();
        }
        false
    }

    /// Takes the next sync: its id, kind and file.
    pub(super) fn pop_sync(&mut self) -> Option<(JobId, JobKind, JobId)> {
        self.syncs.pop_front()
    }

    /// Returns true if no job except listings waits for a lane.
    pub(super) fn are_quiet(&self) -> bool {
        self.waiting.is_empty() && self.large.is_empty() && self.makes.is_empty()
    }

    /// Returns the number of waiting jobs.
    pub(super) fn len(&self) -> usize {
        ALL.iter().map(|name| self.of(*name).len()).sum()
    }

    /// Returns the waiting jobs that are neither listings nor urgent.
    pub(super) fn files(&self) -> impl Iterator<Item = &QueuedJob> {
        self.waiting.iter().chain(&self.large)
    }

    /// Resets the loss counters of all jobs but long listings.
    pub(super) fn forgive(&mut self) {
        for name in ALL
            .into_iter()
            .filter(|name| *name != JobQueueKind::LongLists)
        {
            self.queue(name)
                .iter_mut()
                .for_each(|q| q.losses = JobLaneLosses::default());
        }
    }

    /// Removes all jobs.
    pub(super) fn drain(&mut self) -> Vec<QueuedJob> {
        let each = ALL.map(|name| std::mem::take(self.queue(name)));
        each.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileCopyOptions, RemotePath};

    fn queued(id: u64, kind: JobKind) -> QueuedJob {
        QueuedJob {
            job: Job {
                id: JobId(id),
                kind,
            },
            hint: JobHint::default(),
            losses: JobLaneLosses::one(true),
            whole: false,
        }
    }

    fn remove(id: u64) -> QueuedJob {
        let path = RemotePath(Vec::new());
        queued(id, JobKind::Remove { path })
    }

    fn stat(id: u64) -> QueuedJob {
        let (path, follow) = (RemotePath(Vec::new()), false);
        queued(id, JobKind::Stat { path, follow })
    }

    fn order(queues: &mut JobQueues, name: JobQueueKind) -> Vec<u64> {
        std::iter::from_fn(|| queues.pop(name))
            .map(|queued| queued.job.id.0)
            .collect()
    }

    #[test]
    fn questions_come_first_and_lost_jobs_before_all() {
        let mut queues = JobQueues::default();
        queues.push(remove(1), false, false);
        queues.push(remove(2), false, false);
        queues.push(stat(3), false, false);
        queues.push(stat(4), false, false);
        queues.push(remove(5), false, true);
        assert_eq!(queues.len(), 5);
        assert_eq!(order(&mut queues, JobQueueKind::Waiting), [5, 3, 4, 1, 2]);
    }

    /// Bug: at a server that had refused a rename, every shard of a split file wrote the whole file
    /// under its name, at the same time.
    #[test]
    fn several_shards_wrote_one_split_file_whole_at_a_server_without_rename() {
        let put = |shared| JobKind::Put {
            source: std::path::PathBuf::new(),
            target: RemotePath(Vec::new()),
            options: FileCopyOptions {
                keep: Some(Box::new(ResumeData {
                    shared,
                    ..ResumeData::default()
                })),
                ..FileCopyOptions::default()
            },
        };
        let mut queues = JobQueues::default();
        let works = [None, Some(SharedTemp::Range(0, 5)), Some(SharedTemp::Seal)];
        for (id, shared) in (1..).zip(works) {
            queues.push(queued(id, put(shared)), true, false);
        }
        let whole = queues.take_large_uploads(RefusedOperations {
            renames: true,
            ..RefusedOperations::default()
        });
        let whole: Vec<u64> = whole.iter().map(|queued| queued.id().0).collect();
        assert_eq!(whole, [1, 3], "one process at a time names a split file");
        assert_eq!(order(&mut queues, JobQueueKind::Large), [2]);
    }

    #[test]
    fn each_kind_of_job_has_its_queue() {
        let mut queues = JobQueues::default();
        let path = || RemotePath(Vec::new());
        let (mode, follow) = (0, false);
        let dir = JobKind::MakeDir {
            path: path(),
            mode,
            follow,
        };
        queues.push(queued(1, dir), false, false);
        queues.push(
            queued(
                2,
                JobKind::List {
                    path: path(),
                    most: None,
                },
            ),
            false,
            false,
        );
        let long = QueuedJob {
            whole: true,
            ..queued(
                3,
                JobKind::List {
                    path: path(),
                    most: None,
                },
            )
        };
        queues.push(long, false, false);
        queues.push(remove(4), true, false);
        assert!(!queues.are_quiet());
        queues.forgive();
        let losses = queues.of(JobQueueKind::LongLists).front().map(|q| q.losses);
        assert_eq!(
            losses,
            Some(JobLaneLosses::one(true)),
            "a long listing is not forgiven"
        );
        let each = ALL.map(|name| order(&mut queues, name));
        assert_eq!(each, [vec![1], vec![], vec![4], vec![2], vec![3]]);
        assert!(queues.are_quiet() && queues.len() == 0);
    }
}
