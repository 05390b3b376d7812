use std::time::Instant;

use std::collections::BTreeMap;

use schedule::{ConnectionId, JobId, LaneError, LaneEvent, LaneId, RemotePath, SchedulerEvent};

use super::SessionEvent;
use super::driver::{STALLED, SessionLoop};
use crate::report::Name;

/// Number of times that the last lane may be replaced after the server closed it, before the
/// session is given up.
const RESTARTS: u32 = 4;

/// Ended lane that still has requests at the disk.
#[derive(Debug)]
pub(super) struct Ending {
    lane: LaneId,
    temporaries: Vec<(JobId, RemotePath)>,
    why: String,
}

/// Handles the loss of lanes and connections.
impl SessionLoop {
    /// Handles the end of a lane's channel: another lane takes over its work.
    pub(super) fn lane_ended(&mut self, now: Instant, at: usize, mut error: LaneError) {
        let ours = matches!(&error, LaneError::Closed(why) if why == STALLED);
        let falls_back = self.lanes[at].served && !ours && self.served_ended(at, &error);
        if falls_back {
            error = LaneError::Closed(error.to_string());
        }
        let announced = self.lanes[at].lane.server_info();
        let other = self.lanes[at].served && announced != self.lanes[at].lane.remembered();
        let (id, channel) = (self.lanes[at].id, self.lanes[at].channel);
        let on = &self.lanes[at];
        let (listing, greeted) = (on.listing, on.lane.server_info().is_some());
        if let Some(on) = self.connection(id.connection) {
            on.link.close_channel(channel);
            on.one_channel |= listing && matches!(error, LaneError::Closed(_));
        }
        self.closed.insert((id.connection, channel), id);
        if matches!(error, LaneError::Surprise(_)) && !other {
            self.predict = false;
        }
        let last = self.lanes.iter().filter(|on| !on.listing).count() <= 1;
        let refused = !greeted && !listing && !falls_back && matches!(error, LaneError::Closed(_));
        self.lane_gone(now, at, error.clone());
        self.restarts += u32::from(last);
        if refused && !last {
            // Other lanes work, so this channel was one too many.
            self.note_channel_refused(now, id.connection);
        }
        if self.restarts > RESTARTS || matches!(error, LaneError::Protocol(_)) {
            self.lose(error.to_string());
            return;
        }
        if !last
            && !self
                .lanes
                .iter()
                .any(|on| on.id.connection == id.connection)
        {
            self.without_lanes(now, id.connection, &error, falls_back);
        }
        self.ended = Some(error);
        self.recover(now);
    }

    /// Handles the end of the last lane on one of several connections.
    fn without_lanes(
        &mut self,
        now: Instant,
        id: ConnectionId,
        error: &LaneError,
        falls_back: bool,
    ) {
        if self.controls(id) {
            return;
        }
        let again = falls_back || matches!(error, LaneError::Surprise(_));
        let opened = again && self.open_lane(now, id, self.predict, false).is_some();
        let others = self.connections.iter().any(|on| on.id != id);
        let ours = matches!(error, LaneError::Closed(why) if why == STALLED);
        match !opened && others {
            true if ours => self.cut_connection(now, id),
            true => self.drop_connection(now, id, error.to_string()),
            false => {}
        }
    }

    /// Removes a lane. The scheduler is told once the disk has released the lane's files.
    pub(super) fn lane_gone(&mut self, now: Instant, at: usize, error: LaneError) {
        self.drain_events(now, at);
        let mut on = self.lanes.remove(at);
        self.gone.add(&on.lane.stats());
        while let Some(request) = on.lane.poll_disk() {
            self.owed.asked(request.job(), Some(on.id));
            self.disk.submit(request);
        }
        let left = on.lane.into_unfinished();
        for request in left.releases {
            self.owed.asked(request.job(), Some(on.id));
            self.disk.submit(request);
        }
        self.turns.stir();
        self.spread.retire(on.id);
        self.ending.push(Ending {
            lane: on.id,
            temporaries: left.temporaries,
            why: error.to_string(),
        });
    }

    /// Returns the jobs of lost lanes to the scheduler once the disk has released their files.
    pub(super) fn recover(&mut self, now: Instant) {
        let mut at = 0;
        while at < self.ending.len() {
            if !self.owed.is_quit(self.ending[at].lane) {
                at += 1;
                continue;
            }
            let Ending {
                lane,
                temporaries,
                why,
            } = self.ending.remove(at);
            self.spread.lane_lost(now, lane, temporaries, &why);
        }
    }

    /// Ends the session with an error.
    pub(super) fn lose(&mut self, why: String) {
        if self.over {
            return;
        }
        let now = Instant::now();
        // Sent before the failures that follow from it, so that a receiver without other work stops
        // waiting.
        self.telling.tell(SessionEvent::Losing(why.clone()));
        let mut left = BTreeMap::new();
        for at in 0..self.lanes.len() {
            self.drain_events(now, at);
        }
        for on in std::mem::take(&mut self.lanes) {
            left.extend(on.lane.into_unfinished().temporaries);
        }
        self.spread.lose(now, &why);
        while let Some(request) = self.spread.poll_disk() {
            self.disk.submit(request);
        }
        while let Some(event) = self.spread.poll_event() {
            let event = match event {
                SchedulerEvent::Lane(LaneEvent::Failed(id, mut fault)) => {
                    if let Some(path) = left.remove(&id) {
                        let path = Name(path.0);
                        fault
                            .what
                            .push_str(&format!("; {path} may be left at the far end"));
                    }
                    LaneEvent::Failed(id, fault)
                }
                SchedulerEvent::Lane(event) => event,
                SchedulerEvent::Restarted(_) => continue,
            };
            self.telling.tell(SessionEvent::Lane(event));
        }
        self.telling.tell(SessionEvent::Lost(why));
        self.over = true;
    }
}
