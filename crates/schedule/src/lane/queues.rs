//! Order in which the jobs of a lane open files and move data.

use std::collections::VecDeque;

use crate::JobId;

/// Queues of a lane's jobs, and the handles that they hold.
#[derive(Debug, Default)]
pub(super) struct LaneQueues {
    /// With predicted handles: the job between its OPEN and its CLOSE; no other job may open.
    turn: Option<JobId>,
    /// Number of handles that are open or opening.
    open: usize,
    /// Jobs that wait to open a file.
    openers: VecDeque<JobId>,
    /// Jobs that are sent in one request without a handle.
    wholes: VecDeque<JobId>,
    /// Jobs with data to read or write; the first is served until it has none.
    streams: VecDeque<JobId>,
    /// Number of sources whose OPEN has not been sent and whose first bytes the disk side reads or
    /// holds.
    prefetched: usize,
}

/// Queue in which a job of a lane waits: to open a file, to be sent whole, or to move data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneQueueKind {
    Openers,
    Wholes,
    Streams,
}

impl LaneQueues {
    fn queue(&mut self, queue: LaneQueueKind) -> &mut VecDeque<JobId> {
        match queue {
            LaneQueueKind::Openers => &mut self.openers,
            LaneQueueKind::Wholes => &mut self.wholes,
            LaneQueueKind::Streams => &mut self.streams,
        }
    }

    /// Adds `job` to the end of a queue.
    pub(super) fn push(&mut self, queue: LaneQueueKind, job: JobId) {
        self.queue(queue).push_back(job);
    }

    /// Lets `job` open a file before all others.
    pub(super) fn push_opener_first(&mut self, job: JobId) {
        self.openers.push_front(job);
    }

    /// Queues `job` for moving data, once.
    pub(super) fn stream(&mut self, job: JobId) {
        if !self.streams.contains(&job) {
            self.streams.push_back(job);
        }
    }

    /// Removes `job` from the queue for opening files.
    pub(super) fn forget_opener(&mut self, job: JobId) {
        self.openers.retain(|id| *id != job);
    }

    /// Returns the first job of a queue.
    pub(super) fn first(&mut self, queue: LaneQueueKind) -> Option<JobId> {
        self.queue(queue).front().copied()
    }

    /// Removes the first job of a queue.
    pub(super) fn pop(&mut self, queue: LaneQueueKind) -> Option<JobId> {
        self.queue(queue).pop_front()
    }

    /// Returns the number of jobs that wait to open a file or to be sent whole.
    pub(super) fn unsent(&self) -> (usize, usize) {
        (self.openers.len(), self.wholes.len())
    }

    /// Returns true if an OPEN may be sent to a server that takes `most` open files, or whose
    /// handles are predicted (`None`).
    pub(super) fn may_open(&self, most: Option<usize>) -> bool {
        match most {
            Some(most) => self.open < most,
            None => self.turn.is_none(),
        }
    }

    /// Counts a handle of `job`, which gets the turn if handles are predicted.
    pub(super) fn opens(&mut self, job: JobId, predicts: bool) {
        self.open += 1;
        if predicts {
            self.turn = Some(job);
        }
    }

    /// Records that the CLOSE of `job` was sent or its OPEN failed.
    pub(super) fn closes(&mut self, job: JobId) {
        self.open = self.open.saturating_sub(1);
        if self.turn == Some(job) {
            self.turn = None;
        }
    }

    /// Returns the number of sources that are read ahead of their OPEN.
    pub(super) fn prefetched(&self) -> usize {
        self.prefetched
    }

    /// Counts a source that is read ahead of its OPEN.
    pub(super) fn prefetch(&mut self) {
        self.prefetched += 1;
    }

    /// Ends [`LaneQueues::prefetch`].
    pub(super) fn end_prefetch(&mut self) {
        self.prefetched = self.prefetched.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_predicted_handles_one_job_has_the_turn() {
        let mut turns = LaneQueues::default();
        assert!(turns.may_open(None));
        turns.opens(JobId(1), true);
        assert!(!turns.may_open(None));
        turns.closes(JobId(2));
        assert!(!turns.may_open(None), "not the job that has it");
        turns.closes(JobId(1));
        assert!(turns.may_open(None));
    }

    #[test]
    fn without_prediction_as_many_files_are_open_as_the_server_takes() {
        let mut turns = LaneQueues::default();
        for job in 0..3 {
            assert!(turns.may_open(Some(3)));
            turns.opens(JobId(job), false);
        }
        assert!(!turns.may_open(Some(3)));
        turns.closes(JobId(1));
        assert!(turns.may_open(Some(3)));
    }

    #[test]
    fn a_job_streams_once_and_a_listing_opens_first() {
        let mut turns = LaneQueues::default();
        turns.stream(JobId(1));
        turns.stream(JobId(1));
        assert_eq!(turns.pop(LaneQueueKind::Streams), Some(JobId(1)));
        assert_eq!(turns.first(LaneQueueKind::Streams), None);
        turns.push(LaneQueueKind::Openers, JobId(2));
        turns.push_opener_first(JobId(3));
        turns.push(LaneQueueKind::Wholes, JobId(4));
        assert_eq!(turns.unsent(), (2, 1));
        turns.forget_opener(JobId(2));
        assert_eq!(turns.pop(LaneQueueKind::Openers), Some(JobId(3)));
        assert_eq!(turns.pop(LaneQueueKind::Openers), None);
    }
}
