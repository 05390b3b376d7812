//! Lanes on which nothing is answered: the user is told what is waited for, and requests that a server has
//! dropped are repeated.
//!
//! OpenSSH and longhaul answer every request in order, however long a disk takes: with them there is nothing
//! to repeat. Other servers have been seen to forget what exceeds a queue of theirs. A lane to one of those
//! that stands still is closed and its jobs begin again on a new channel, with half as many requests at once
//! as were in flight when the first forgotten one was sent. That number holds for all lanes of the session.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use schedule::{ConnectionId, LaneError, LaneId, Waiting};

use super::SessionEvent;
use super::driver::Driver;

/// Requests are not repeated sooner than after so many times the lowest latency of one.
const LATENCIES: u32 = 50;
/// A connection that has moved so many bytes since the mark carries a long request, and no keepalives.
const MOVES: u64 = 4096;

/// What is known of silent lanes.
#[derive(Debug)]
pub(super) struct Stalls {
    /// Silence after which the user is told and requests are repeated; twice as long after each time.
    patience: Duration,
    lanes: BTreeMap<LaneId, Silence>,
    /// When the user was last told.
    told: Option<Instant>,
    /// Lanes that were closed so that requests are repeated.
    repeated: u32,
    /// Requests that the server is known to bear at once on a channel.
    most_requests: Option<u64>,
}

/// A lane on which nothing is answered.
#[derive(Debug)]
struct Silence {
    since: Instant,
    /// Bytes that the connection had moved after half of that silence.
    mark: Option<u64>,
    told: u32,
}

impl Silence {
    fn new(since: Instant) -> Self {
        Self {
            since,
            mark: None,
            told: 0,
        }
    }

    fn notice_at(&self, patience: Duration) -> Instant {
        self.since + patience * (1 << self.told.min(10))
    }
}

impl Stalls {
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            patience,
            lanes: BTreeMap::new(),
            told: None,
            repeated: 0,
            most_requests: None,
        }
    }

    /// Silence after which it is noted how much the connection has moved.
    fn mark_after(&self) -> Duration {
        self.patience / 2
    }

    /// Requests that may be in flight on a lane, of `most`.
    pub(super) fn limit(&self, most: Option<u64>) -> Option<u64> {
        [self.most_requests, most].into_iter().flatten().min()
    }

    /// How long a lane may be silent before its requests are repeated.
    fn repeat_after(&self, latency: Duration) -> Duration {
        self.patience.max(latency * LATENCIES) * (1 << self.repeated.min(10))
    }
}

/// What a lane waits for, for the user.
fn shown(waiting: &Waiting) -> String {
    match &waiting.path {
        Some(path) => {
            let path = crate::report::Name(path.0.clone());
            format!("{} of {path}", waiting.request)
        }
        None => waiting.request.to_owned(),
    }
}

impl Driver {
    /// When a silent lane has to be looked at.
    pub(super) fn next_stall(&self) -> Option<Instant> {
        if !self.watches_stalls() {
            return None;
        }
        let next = |on: &super::lanes::LaneOnChannel| {
            let waiting = on.lane.waits_for()?;
            let silence = self.stalls.lanes.get(&on.id);
            let silence = silence.filter(|silence| silence.since >= waiting.since);
            let Some(silence) = silence.filter(|silence| silence.mark.is_some()) else {
                return Some(
                    silence.map_or(waiting.since, |silence| silence.since)
                        + self.stalls.mark_after(),
                );
            };
            let repeat = self.repeat_at(on, &waiting, silence);
            let notice = silence.notice_at(self.stalls.patience);
            Some(repeat.map_or(notice, |at| at.min(notice)))
        };
        self.lanes.iter().filter_map(next).min()
    }

    /// Where this end holds data back silence means nothing.
    fn watches_stalls(&self) -> bool {
        self.yielding.is_none() && !self.throttled && !self.leaving && !self.spread.is_idle()
    }

    /// When the lane's requests are repeated, where that may help.
    fn repeat_at(
        &self,
        on: &super::lanes::LaneOnChannel,
        waiting: &Waiting,
        silence: &Silence,
    ) -> Option<Instant> {
        let forgets = on.lane.server_info().is_some() && !on.lane.works_in_order();
        let after = self
            .stalls
            .repeat_after(on.lane.stats().latency.unwrap_or_default());
        (forgets && !waiting.takes_time).then(|| silence.since + after)
    }

    /// Looks for lanes that are silent.
    pub(super) fn look_for_stalls(&mut self, now: Instant) {
        if self.next_stall().is_none_or(|at| at > now) {
            return;
        }
        let lanes: Vec<(LaneId, Waiting)> = self
            .lanes
            .iter()
            .filter_map(|on| Some((on.id, on.lane.waits_for()?)))
            .collect();
        self.stalls
            .lanes
            .retain(|id, _| lanes.iter().any(|(lane, _)| lane == id));
        for (id, waiting) in lanes {
            self.look_at_lane(now, id, &waiting);
        }
    }

    fn look_at_lane(&mut self, now: Instant, id: LaneId, waiting: &Waiting) {
        let moved = |driver: &Self| driver.moved_on(id.connection);
        let silence = self
            .stalls
            .lanes
            .entry(id)
            .or_insert_with(|| Silence::new(waiting.since));
        if silence.since < waiting.since {
            *silence = Silence::new(waiting.since);
        }
        if now.saturating_duration_since(silence.since) < self.stalls.patience / 2 {
            return;
        }
        let Some(mark) = silence.mark else {
            let mark = moved(self);
            if let Some(silence) = self.stalls.lanes.get_mut(&id) {
                silence.mark = Some(mark);
            }
            return;
        };
        if moved(self).saturating_sub(mark) >= MOVES {
            self.stalls.lanes.insert(id, Silence::new(now));
            return;
        }
        let Some(at) = self.lane_at(id) else { return };
        let Some(silence) = self.stalls.lanes.get(&id) else {
            return;
        };
        let since = silence.since;
        if self
            .repeat_at(&self.lanes[at], waiting, silence)
            .is_some_and(|at| at <= now)
        {
            return self.repeat(now, at, waiting, since);
        }
        if silence.notice_at(self.stalls.patience) <= now {
            if let Some(silence) = self.stalls.lanes.get_mut(&id) {
                silence.told += 1;
            }
            self.tell_stall(now, waiting, since);
        }
    }

    /// Tells what is waited for; one line for all lanes.
    fn tell_stall(&mut self, now: Instant, waiting: &Waiting, since: Instant) {
        let patience = self.stalls.patience;
        let recent = |at: Instant| now.saturating_duration_since(at) < patience / 2;
        if self.stalls.told.is_some_and(recent) {
            return;
        }
        self.stalls.told = Some(now);
        let silent = now.saturating_duration_since(since).as_secs();
        let text = format!(
            "nothing received for {silent} s: waiting for the answer to {}",
            shown(waiting)
        );
        self.telling.tell(SessionEvent::Stalled(text));
    }

    /// Closes a lane whose requests the server has dropped, so that they are repeated on another.
    fn repeat(&mut self, now: Instant, at: usize, waiting: &Waiting, since: Instant) {
        let silent = now.saturating_duration_since(since).as_secs();
        let most = (waiting.ahead / 2).max(1);
        let most = self.stalls.limit(Some(most)).unwrap_or(most);
        self.stalls.most_requests = Some(most);
        self.stalls.repeated += 1;
        let id = self.lanes[at].id;
        self.stalls.lanes.remove(&id);
        for on in &mut self.lanes {
            on.lane.limit_requests(most);
        }
        let request = shown(waiting);
        let text = format!(
            "no answer to {request} for {silent} s: repeating it on a new channel, with at most {most} \
             requests at once"
        );
        self.telling.tell(SessionEvent::Stalled(text));
        let why = format!("the server does not answer requests: no answer to {request}");
        self.lane_ended(now, at, LaneError::Closed(why));
    }

    /// Bytes that a connection has moved, as far as the kernel knows; else as far as this program does.
    fn moved_on(&self, id: ConnectionId) -> u64 {
        let on = self.connections.iter().find(|on| on.id == id);
        on.map_or(0, |on| {
            let sample = on.link.sample();
            let sent = sample.tcp.map_or(sample.sent, |tcp| tcp.bytes_acked);
            sent.saturating_add(sample.received)
        })
    }
}
