use std::collections::{BTreeMap, BTreeSet, VecDeque};

use plan::{DiskReply, DiskRequest, Job, JobId};

use super::ChannelId;

/// Ids from here on are the session's own; nobody is told of them.
const OWN: u64 = 1 << 63;

/// The jobs of a session outside of lanes: waiting for one, or to be done again after theirs was
/// lost; and what the disk still owes for each.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    waiting: VecDeque<Job>,
    lists: VecDeque<Job>,
    /// Requests that the disk has not answered, by job, and whose lane asked last.
    owed: BTreeMap<JobId, (u32, ChannelId)>,
    /// Lost with their lane: replies of the disk for them are nobody's.
    lost: BTreeMap<JobId, Job>,
    relayed: BTreeSet<JobId>,
    own: u64,
}

impl Jobs {
    pub(super) fn push(&mut self, job: Job) {
        if matches!(job.kind, plan::JobKind::List { .. }) {
            self.lists.push_back(job);
        } else {
            self.waiting.push_back(job);
        }
    }

    pub(super) fn push_front(&mut self, job: Job) {
        if matches!(job.kind, plan::JobKind::List { .. }) {
            self.lists.push_front(job);
        } else {
            self.waiting.push_front(job);
        }
    }

    pub(super) fn next(&mut self) -> Option<Job> {
        self.waiting.pop_front()
    }

    pub(super) fn next_list(&mut self) -> Option<Job> {
        self.lists.pop_front()
    }

    pub(super) fn has_lists(&self) -> bool {
        !self.lists.is_empty()
    }

    pub(super) fn has_jobs(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A job of the session's own.
    pub(super) fn own_id(&mut self) -> JobId {
        self.own += 1;
        JobId(OWN + self.own)
    }

    pub(super) fn is_own(id: JobId) -> bool {
        id.0 >= OWN
    }

    pub(super) fn set_relayed(&mut self, id: JobId) {
        self.relayed.insert(id);
    }

    pub(super) fn is_relayed(&self, id: JobId) -> bool {
        self.relayed.contains(&id)
    }

    /// A job is over; true if its relay has to be let go.
    pub(super) fn ended(&mut self, id: JobId) -> bool {
        self.relayed.remove(&id)
    }

    pub(super) fn asked_disk(&mut self, request: &DiskRequest, lane: ChannelId) {
        let owed = self.owed.entry(request.job()).or_insert((0, lane));
        *owed = (owed.0 + 1, lane);
    }

    /// Counts a reply; returns the lane it is for, unless that lost the job.
    pub(super) fn replied(&mut self, reply: &DiskReply) -> Option<ChannelId> {
        let job = reply.job();
        let (owed, lane) = self.owed.get_mut(&job)?;
        let lane = *lane;
        *owed -= 1;
        if *owed == 0 {
            self.owed.remove(&job);
        }
        (!self.lost.contains_key(&job)).then_some(lane)
    }

    /// To be done again once the disk has answered all that was asked for it.
    pub(super) fn lose(&mut self, job: Job) {
        self.lost.insert(job.id, job);
    }

    /// Lost jobs that may begin again, in their order.
    pub(super) fn recover(&mut self) -> Vec<JobId> {
        let free: Vec<JobId> = self
            .lost
            .keys()
            .filter(|id| !self.owed.contains_key(id))
            .copied()
            .collect();
        for id in free.iter().rev() {
            if let Some(job) = self.lost.remove(id) {
                self.push_front(job);
            }
        }
        free
    }

    /// Every job that is outside of a lane, taken out.
    pub(super) fn take_all(&mut self) -> Vec<JobId> {
        let waiting = self.waiting.drain(..).chain(self.lists.drain(..));
        let mut ids: Vec<JobId> = waiting.map(|job| job.id).collect();
        ids.extend(std::mem::take(&mut self.lost).into_keys());
        ids
    }
}
