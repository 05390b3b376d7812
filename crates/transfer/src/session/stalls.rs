//! Silent lanes: tells the user what the session waits for, and repeats requests that a server has
//! dropped.
//!
//! OpenSSH and longhaul answer every request in order, however long a disk takes, so nothing is
//! repeated with them. Other servers were seen to drop requests that exceed a queue of theirs. A
//! stalled lane to such a server is closed and its jobs start over on a new channel, with half as
//! many requests at once as were in flight when the first dropped one was sent. This limit applies
//! to all lanes of the session.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use schedule::{ConnectionId, LaneError, LaneId, OldestRequest};

use super::SessionEvent;
use super::driver::SessionLoop;
use super::reconnect::DARK;

/// Smallest silence before requests are repeated, as a multiple of the lowest request latency.
const LATENCIES: u32 = 50;
/// Limit of requests in flight from which on the silence before a repetition doubles, since a server
/// that does not answer so few is slow. Before, the silence must stay below the time after which the
/// session reconnects.
const FEW: u64 = 8;
/// Longest silence before such a repetition.
const LONGEST_SILENCE: Duration = DARK.saturating_sub(Duration::from_secs(1));
/// Bytes moved since the mark from which a connection is seen to carry a long request rather than
/// keepalives.
const MOVES: u64 = 4096;

/// State of the silent lanes.
#[derive(Debug)]
pub(super) struct Stalls {
    /// Silence after which the user is told and requests are repeated.
    patience: Duration,
    lanes: BTreeMap<LaneId, Silence>,
    /// Time of the last notice to the user.
    told: Option<Instant>,
    /// Number of lanes that were closed to repeat requests with at most [`FEW`] in flight.
    repeated: u32,
    /// Number of requests at once on a channel that the server is known to handle.
    most_requests: Option<u64>,
}

/// Silence of one lane.
#[derive(Debug)]
struct Silence {
    since: Instant,
    /// Bytes that the connection had moved at half of the silence.
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

    /// Silence after which the connection's byte count is recorded.
    fn mark_after(&self) -> Duration {
        self.patience / 2
    }

    /// Largest number of requests in flight on a lane, at most `most`.
    pub(super) fn limit(&self, most: Option<u64>) -> Option<u64> {
        [self.most_requests, most].into_iter().flatten().min()
    }

    /// Silence of a lane after which its requests are repeated. The first repetitions come before
    /// the session takes the connection for lost and connects again.
    fn repeat_after(&self, latency: Duration) -> Duration {
        let longest = self.patience.max(LONGEST_SILENCE);
        let silence = self.patience.max(latency * LATENCIES).min(longest);
        silence * (1 << self.repeated.min(10))
    }

    /// Records that requests are repeated, the first of them sent when `ahead` others were in
    /// flight; returns the number of requests at once from now on.
    fn note_repeat(&mut self, ahead: u64) -> u64 {
        let most = (ahead / 2).max(1);
        let most = self.limit(Some(most)).unwrap_or(most);
        self.most_requests = Some(most);
        self.repeated += u32::from(most <= FEW);
        most
    }
}

/// Describes the request that a lane waits for, for the user.
fn shown(waiting: &OldestRequest) -> String {
    match &waiting.path {
        Some(path) => {
            let path = crate::report::Name(path.0.clone());
            format!("{} of {path}", waiting.request)
        }
        None => waiting.request.to_owned(),
    }
}

impl SessionLoop {
    /// Time at which a silent lane must be checked.
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

    /// True if silence is meaningful; false while this end itself holds data back.
    fn watches_stalls(&self) -> bool {
        self.yielding.is_none() && !self.throttled && !self.leaving && !self.spread.is_idle()
    }

    /// Time at which the lane's requests are repeated, if repeating can help.
    fn repeat_at(
        &self,
        on: &super::lanes::LaneOnChannel,
        waiting: &OldestRequest,
        silence: &Silence,
    ) -> Option<Instant> {
        let forgets = on.lane.server_info().is_some() && !on.lane.works_in_order();
        let after = self
            .stalls
            .repeat_after(on.lane.stats().latency.unwrap_or_default());
        (forgets && !waiting.takes_time).then(|| silence.since + after)
    }

    /// Checks all lanes for silence.
    pub(super) fn look_for_stalls(&mut self, now: Instant) {
        if self.next_stall().is_none_or(|at| at > now) {
            return;
        }
        let lanes: Vec<(LaneId, OldestRequest)> = self
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

    fn look_at_lane(&mut self, now: Instant, id: LaneId, waiting: &OldestRequest) {
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

    /// Tells the user which request the session waits for, in one line for all lanes.
    fn tell_stall(&mut self, now: Instant, waiting: &OldestRequest, since: Instant) {
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

    /// Closes a lane whose requests the server has dropped, so that another lane repeats them.
    fn repeat(&mut self, now: Instant, at: usize, waiting: &OldestRequest, since: Instant) {
        let silent = now.saturating_duration_since(since).as_secs();
        let most = self.stalls.note_repeat(waiting.ahead);
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

    /// Bytes that a connection has moved: acknowledged bytes from the kernel if available,
    /// otherwise bytes written, plus bytes received.
    fn moved_on(&self, id: ConnectionId) -> u64 {
        let on = self.connections.iter().find(|on| on.id == id);
        on.map_or(0, |on| {
            let sample = on.link.sample();
            let sent = sample.tcp.map_or(sample.sent, |tcp| tcp.bytes_acked);
            sent.saturating_add(sample.received)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::SessionOptions;

    /// With doubled silences, the second repetition was due after 20 s. The session connects again
    /// after 12 s of silence, so it did that forever and never reached a limit that the server
    /// handles.
    #[test]
    fn requests_are_repeated_before_the_session_connects_again() {
        for latency in [1, 80, 300, 2000].map(Duration::from_millis) {
            let mut stalls = Stalls::new(SessionOptions::default().patience);
            let mut ahead = 1024;
            for tries in 1.. {
                assert!(stalls.repeat_after(latency) < DARK, "{tries} {latency:?}");
                let most = stalls.note_repeat(ahead);
                assert!(most <= ahead / 2, "{tries}");
                if most <= FEW {
                    break;
                }
                // The server drops requests beyond the new limit too.
                ahead = most;
            }
            // A server that does not answer so few requests is slow: it gets more time.
            let (first, mut last) = (stalls.repeat_after(latency), Duration::ZERO);
            assert!(first >= 2 * stalls.patience);
            for _ in 0..20 {
                let most = stalls.note_repeat(FEW);
                assert!((1..=FEW).contains(&most));
                let after = stalls.repeat_after(latency);
                assert!(after >= last, "{after:?}");
                last = after;
            }
            assert!(last > first);
        }
    }

    /// A repetition must never raise the limit of the user or of an earlier repetition.
    #[test]
    fn repetitions_only_lower_the_limit_of_requests() {
        let mut stalls = Stalls::new(Duration::from_secs(10));
        assert_eq!(stalls.limit(None), None);
        assert_eq!(stalls.limit(Some(64)), Some(64));
        assert_eq!(stalls.note_repeat(64), 32);
        assert_eq!(stalls.note_repeat(1000), 32);
        assert_eq!(stalls.limit(Some(64)), Some(32));
        assert_eq!(stalls.limit(Some(4)), Some(4));
        assert_eq!(stalls.note_repeat(0), 1);
        assert_eq!(stalls.note_repeat(0), 1);
    }
}
