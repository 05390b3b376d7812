use plan::{Fault, Job, JobId, JobKind, LaneError, LaneEvent};

use super::SessionEvent;
use super::driver::Driver;
use super::jobs::Jobs;
use crate::report::Name;

/// Lanes begun anew before the session is given up: each time the server ended a channel.
const RESTARTS: u32 = 4;

/// What the loop does when a lane or the whole link is lost.
impl Driver {
    /// A lane's channel is gone: what it had to do is done on another.
    pub(super) fn lane_ended(&mut self, at: usize, error: LaneError) {
        self.drain_events(at);
        let mut on = self.lanes.remove(at);
        while let Some(request) = on.lane.poll_disk() {
            self.jobs.asked_disk(&request, on.channel);
            self.disk.submit(request);
        }
        self.link.close_channel(on.channel);
        if on.listing && matches!(error, LaneError::Closed(_)) {
            self.one_channel = true;
        }
        if matches!(error, LaneError::Surprise(_)) {
            self.predict = false;
        }
        let channel = on.channel;
        let left = on.lane.into_unfinished();
        for request in left.releases {
            self.jobs.asked_disk(&request, channel);
            self.disk.submit(request);
        }
        for job in left.jobs {
            if self.jobs.is_relayed(job.id) {
                self.jobs.ended(job.id);
                self.disk.release(job.id);
                self.fail(job.id, &error.to_string());
            } else {
                self.jobs.lose(job);
            }
        }
        for (_, path) in left.temporaries {
            let id = self.jobs.own_id();
            let kind = JobKind::Remove { path };
            self.jobs.push(Job { id, kind });
        }
        self.restarts += 1;
        if self.restarts > RESTARTS || matches!(error, LaneError::Protocol(_)) {
            self.lose(error.to_string());
            return;
        }
        self.ended = Some(error);
        self.recover();
    }

    /// Jobs of lost lanes wait again, once the disk has let go of them.
    pub(super) fn recover(&mut self) {
        for id in self.jobs.recover() {
            self.tell(SessionEvent::Restarted(id));
        }
    }

    /// The session is over.
    pub(super) fn lose(&mut self, why: String) {
        if self.over {
            return;
        }
        for at in 0..self.lanes.len() {
            self.drain_events(at);
        }
        for on in std::mem::take(&mut self.lanes) {
            let left = on.lane.into_unfinished();
            for job in left.jobs {
                let temporary = left.temporaries.iter().find(|(id, _)| *id == job.id);
                match temporary {
                    Some((_, path)) => {
                        let path = Name(path.0.clone());
                        self.fail(job.id, &format!("{why}; {path} may be left at the far end"));
                    }
                    None => self.fail(job.id, &why),
                }
            }
        }
        self.fail_waiting(&why);
        self.tell(SessionEvent::Lost(why));
        self.over = true;
    }

    pub(super) fn fail_waiting(&mut self, why: &str) {
        for id in self.jobs.take_all() {
            self.fail(id, why);
        }
    }

    fn fail(&mut self, id: JobId, why: &str) {
        if Jobs::is_own(id) {
            return;
        }
        let fault = Fault {
            what: why.to_owned(),
            remote: true,
        };
        self.tell(SessionEvent::Lane(LaneEvent::Failed(id, fault)));
    }
}
