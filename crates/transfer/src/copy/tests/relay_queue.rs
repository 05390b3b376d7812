//! Requests to the buffers between two hosts, which the real buffers answer in virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use schedule::{DiskReply, DiskRequest, JobId};

use crate::disk::DiskReplyReceiver;

/// Requests of one session on their way to buffers, and the replies of the buffers.
///
/// As with the threads of a real disk pool, reads of one job overtake each other, and all other
/// requests of a job stay in order.
#[derive(Default)]
pub(super) struct RelayQueue {
    requests: VecDeque<(Instant, DiskRequest)>,
    /// Times of the latest request of each job, and of the latest that none overtakes.
    latest: BTreeMap<JobId, (Instant, Instant)>,
    replies: Arc<RelayReplies>,
}

/// Replies that the session has not taken.
#[derive(Default)]
pub(super) struct RelayReplies(Mutex<Vec<DiskReply>>);

impl DiskReplyReceiver for RelayReplies {
    fn reply(&self, reply: DiskReply) {
        self.0.lock().expect("no test panics here").push(reply);
    }
}

impl RelayQueue {
    pub(super) fn push(&mut self, now: Instant, late: Duration, request: DiskRequest) {
        let job = request.job();
        let latest = self.latest.entry(job).or_insert((now, now));
        let overtakes = matches!(
            request,
            DiskRequest::Read { .. }
                | DiskRequest::ReadPacked { .. }
                | DiskRequest::AwaitSource { .. }
        );
        let behind = if overtakes { latest.1 } else { latest.0 };
        let at = (now + late).max(behind);
        latest.0 = latest.0.max(at);
        if !overtakes {
            latest.1 = at;
        }
        let place = self.requests.partition_point(|(other, _)| *other <= at);
        self.requests.insert(place, (at, request));
    }

    /// Time of the next request.
    pub(super) fn next(&self) -> Option<Instant> {
        self.requests.front().map(|(at, _)| *at)
    }

    /// Takes a request that has reached its buffer by `now`.
    pub(super) fn take(&mut self, now: Instant) -> Option<DiskRequest> {
        match self.next()? <= now {
            true => self.requests.pop_front().map(|(_, request)| request),
            false => None,
        }
    }

    /// True if a request of `job` is on its way.
    pub(super) fn has(&self, job: JobId) -> bool {
        self.requests
            .iter()
            .any(|(_, request)| request.job() == job)
    }

    pub(super) fn receiver(&self) -> Arc<dyn DiskReplyReceiver> {
        Arc::clone(&self.replies) as Arc<dyn DiskReplyReceiver>
    }

    /// Takes the replies that buffers have given.
    pub(super) fn replies(&self) -> Vec<DiskReply> {
        std::mem::take(&mut *self.replies.0.lock().expect("no test panics here"))
    }
}
