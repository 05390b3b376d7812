use std::time::{Duration, Instant};

use bytes::Bytes;
use schedule::{
    ConnectionId, Job, Lane, LaneConfig, LaneError, LaneEvent, LaneId, LaneReport, Refusals,
};
use sftp::{Greeting, MarkerSearch};

use super::ChannelId;
use super::background_pacer::LENGTH;
use super::driver::SessionLoop;
use super::flight::{Flying, level};
use super::remote_server::{STARTS, check, not_ours};

/// Largest channel packet in bytes (OpenSSH's CHAN_SES_PACKET_DEFAULT).
const PACKET: usize = 32 * 1024;

/// Bound in bytes on the data in flight over all lanes while the copy has a journal. An interrupted
/// copy sends this data again, and together with data that is answered but not yet in the journal
/// it must stay below 64 MiB.
pub(super) const MOST_IN_FLIGHT: u64 = 40 << 20;
/// Bytes that answers may take beyond the depth: one more READ, and headers.
const ANSWERS_BEYOND: u64 = 512 << 10;

/// Time's worth of a rate limit that may be in flight beyond what the path itself holds.
const LIMIT_AHEAD: Duration = Duration::from_millis(100);

pub(super) struct LaneOnChannel {
    pub(super) id: LaneId,
    pub(super) channel: ChannelId,
    pub(super) lane: Lane,
    /// Carries only listings, beside a lane that predicts handles.
    pub(super) listing: bool,
    /// Gets no more jobs and closes when its work is done.
    pub(super) retiring: bool,
    /// Leads to a longhaul that a command started at the far end.
    pub(super) served: bool,
    /// Parser of that longhaul's greeting, until it is complete.
    pub(super) preamble: Option<MarkerSearch>,
    /// Time from which the greeting is due.
    pub(super) awaited: Option<Instant>,
    /// Time at which the lane was opened, and time of the server's first answer.
    pub(super) opened: Instant,
    pub(super) greeted: Option<Instant>,
    /// Bytes that receivers have confirmed.
    pub(super) bytes: u64,
    /// Total time that data waited for the channel's window, and the start of the current wait.
    pub(super) blocked: Duration,
    pub(super) blocked_since: Option<Instant>,
    reported: Option<LaneReport>,
    /// Bytes requested and sent, and bytes answered, when the pace was last set.
    pub(super) paced: u64,
    pub(super) answered: u64,
}

impl LaneOnChannel {
    /// Takes data of the lane's channel. Returns the remote longhaul's greeting once, when it is
    /// complete.
    pub(super) fn hear(
        &mut self,
        now: Instant,
        mut bytes: Bytes,
    ) -> Result<Option<Greeting>, LaneError> {
        let mut greeting = None;
        if let Some(preamble) = &mut self.preamble {
            let taken = preamble.take(&mut bytes);
            let taken = taken.map_err(|what| LaneError::Closed(not_ours(what)))?;
            let Some(ours) = taken else { return Ok(None) };
            check(&ours).map_err(LaneError::Closed)?;
            self.preamble = None;
            greeting = Some(ours);
        }
        self.greeted.get_or_insert(now);
        self.lane.handle_input(now, bytes)?;
        Ok(greeting)
    }

    /// Assigns a job to the lane. The scheduler has already deducted it from the lane's reported
    /// demand.
    pub(super) fn give(&mut self, now: Instant, job: Job) {
        self.lane.push(now, job);
        self.reported = None;
    }
}

impl SessionLoop {
    pub(super) fn lane_at(&self, id: LaneId) -> Option<usize> {
        self.lanes.iter().position(|on| on.id == id)
    }

    /// Opens the first lane when there is work, and a lane for listings where one is needed.
    pub(super) fn open_lanes(&mut self, now: Instant) {
        if self.spread.is_idle() || self.over || self.straight.holds() {
            return;
        }
        self.learn_far();
        if !self.lanes.iter().any(|on| !on.listing && !on.retiring) {
            self.open_data_lane(now);
        }
        self.open_side_lane(now);
        self.report_lanes(now);
        if !self.spread.needs_listing_lane() || self.lanes.is_empty() || self.over {
            return;
        }
        let opened = self.preferred(|on| !on.one_channel).into_iter().next();
        if let Some(id) = opened {
            if self.open_lane(now, id, false, true).is_none()
                && let Some(on) = self.connection(id)
            {
                on.one_channel = true;
                self.turns.stir();
            }
            return;
        }
        // The only lane predicts handles, and the server grants no other channel for the listing.
        if !self.spread.lists_are_stuck() {
            return;
        }
        if let Some(at) = self.lanes.iter().position(|on| on.lane.predicts()) {
            let surprise = "a directory has to be listed on the only channel";
            self.lane_ended(now, at, LaneError::Surprise(surprise));
        }
    }

    /// Opens a lane for requests that block a server's channel, such as fsync, if another channel
    /// is allowed.
    fn open_side_lane(&mut self, now: Instant) {
        if !self.spread.wants_side_lane() || self.lanes.is_empty() || self.over {
            return;
        }
        let one = self.options.channels == Some(1);
        let may = |on: &super::connections::Connection| !on.one_channel && !on.retiring && !one;
        let id = self.preferred(may).into_iter().next();
        let opened = id.is_some_and(|id| {
            let lane = self.open_lane(now, id, false, true);
            if lane.is_none()
                && let Some(on) = self.connection(id)
            {
                on.one_channel = true;
                self.turns.stir();
            }
            lane.is_some()
        });
        self.spread.set_no_side_lane(!opened);
    }

    fn open_data_lane(&mut self, now: Instant) {
        let ids = self.preferred(|_| true);
        for id in ids {
            if self.open_lane(now, id, self.predict, false).is_some() {
                return;
            }
        }
        if self.connections.iter().any(|on| on.link.peer().is_some()) {
            let why = self.ended.as_ref().map(LaneError::to_string);
            let none = || "the connection carries no SFTP channel".to_owned();
            self.lose(why.unwrap_or_else(none));
        }
    }

    pub(super) fn open_lane(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        predict: bool,
        listing: bool,
    ) -> Option<LaneId> {
        let served = self.far.is_ours() && !self.goes_straight(connection);
        let on = self.new_lane(now, connection, predict, listing, served);
        let on = match on {
            None if served => self.new_lane(now, connection, predict, listing, false)?,
            on => on?,
        };
        let (id, report) = (on.id, LaneReport::of(&on.lane));
        self.spread.lane_opened(now, id, listing, report);
        self.turns.stir();
        self.lanes.push(on);
        Some(id)
    }

    /// Creates a lane that the scheduler does not know yet. `served` selects a longhaul started by
    /// a command instead of the stock server.
    pub(super) fn new_lane(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        predict: bool,
        listing: bool,
        served: bool,
    ) -> Option<LaneOnChannel> {
        let slow = self.was_slow();
        let refusals = self.refusals;
        let on = self.connection(connection)?;
        let straight = on.straight;
        let peer = on.link.peer()?;
        let channel = match served {
            true => on.link.open_served()?,
            false => on.link.open_channel()?,
        };
        let id = LaneId {
            connection,
            channel: on.opened,
        };
        on.opened += 1;
        let random = Box::new(|bytes: &mut [u8]| {
            // Failure is harmless: O_EXCL guarantees unique temporaries, randomness only makes
            // collisions rare.
            let _ = aws_lc_rs::rand::fill(bytes);
        });
        let mut config = LaneConfig::new(on.link.pool(), random);
        config.openssh = peer.openssh;
        config.ours = served || straight;
        config.pack = self.options.pack;
        config.told = self.options.told;
        config.slow = slow;
        if !config.ours {
            config.refusals = refusals;
        }
        // Later lanes reuse the server's extensions as the first lane received them, so their
        // requests need not wait for the answer.
        let heard = self.far.stock();
        let heard = heard.filter(|info| peer.openssh || info.is_ours()).cloned();
        config.remembered = match served {
            true => self.far.announced().cloned(),
            false => peer.remembered.or(heard),
        };
        config.predict = predict;
        let background = self.yielding.is_some();
        if background {
            config.length = LENGTH;
        }
        if let Some(buffer) = self.options.buffer {
            config.length = config.length.min(buffer);
        }
        let mut lane = Lane::new(config, now);
        if let Some(most) = self.stalls.limit(self.options.requests) {
            lane.limit_requests(most);
        }
        if background {
            // Set a pace of zero before anything is drained; the pacer grants more.
            lane.set_pace(now, 0);
        }
        let report = LaneReport::of(&lane);
        Some(LaneOnChannel {
            id,
            channel,
            lane,
            listing,
            retiring: false,
            served,
            preamble: served.then(MarkerSearch::default),
            awaited: None,
            opened: now,
            greeted: None,
            bytes: 0,
            blocked: Duration::ZERO,
            blocked_since: None,
            reported: Some(report),
            paced: 0,
            answered: 0,
        })
    }

    /// Reports changed lane capacities to the scheduler.
    pub(super) fn report_lanes(&mut self, now: Instant) {
        for on in &mut self.lanes {
            let report = LaneReport::of(&on.lane);
            if on.reported != Some(report) {
                on.reported = Some(report);
                self.spread.lane_reports(now, on.id, report);
            }
        }
    }

    /// Moves output of the lanes to links, disk and scheduler.
    pub(super) fn drain_lanes(&mut self, now: Instant) {
        // The rate limit may not suffice for all lanes, so a different one is served first in each
        // turn.
        let count = self.lanes.len();
        self.first_served = match self.throttle {
            Some(_) if count > 0 => (self.first_served + 1) % count,
            _ => 0,
        };
        let mut left = self.of_limit();
        let level = self.of_journal(now);
        for turn in 0..count {
            let at = (self.first_served + turn) % count;
            self.drain_events(now, at);
            let on = &mut self.lanes[at];
            let paced = on.lane.paced();
            let held = level.map(|level| level.saturating_sub(on.lane.stats().bytes_in_flight));
            if let Some(pace) = left.into_iter().chain(held).min() {
                on.lane.set_pace(now, pace);
            }
            let connection = on.id.connection;
            let Some(link) = self.connections.iter_mut().find(|c| c.id == connection) else {
                continue;
            };
            let link = &mut link.link;
            let mut answered = false;
            while let Some(request) = on.lane.poll_disk() {
                let job = request.job();
                match self.disk.at_once(request) {
                    Ok(Some(reply)) => {
                        on.lane.handle_disk(now, reply);
                        answered = true;
                    }
                    Ok(None) => self.owed.asked(job, Some(on.id)),
                    Err(request) => {
                        self.owed.asked(job, Some(on.id));
                        self.disk.submit(request);
                    }
                }
            }
            let mut room = link.room(on.channel);
            if let Some(throttle) = &mut self.throttle {
                let credit = throttle.credit(Instant::now());
                self.throttled |= credit < room;
                // A lane sends whole packets. With less room it would wait for room that no event
                // announces. The next turn pays back what is sent on credit.
                room = match credit {
                    0 => 0,
                    credit => room.min(credit.max(PACKET)),
                };
            }
            on.lane.set_output_room(room);
            let depth = on.lane.stats().bytes_depth;
            // Answers carry headers, and a lane runs slightly beyond its depth.
            link.expect(on.channel, depth + depth / 64 + ANSWERS_BEYOND);
            while let Some(output) = on.lane.poll_output() {
                if let Some(throttle) = &mut self.throttle {
                    throttle.spend(output.len());
                }
                link.send(on.channel, output);
            }
            let spent = on.lane.paced() - paced;
            if answered {
                self.drain_events(now, at);
            }
            left = left.map(|left| left.saturating_sub(spent));
        }
    }

    /// Bytes that lanes may still request or send under a rate limit. Requests in flight cannot be
    /// recalled: the answers of eight lanes in as many receive buffers exceeded a limit by 8 % of
    /// 200 MB.
    fn of_limit(&self) -> Option<u64> {
        let limit = self.options.limit.filter(|_| self.yielding.is_none())?;
        let latency = self.lanes.iter().filter_map(|on| on.lane.stats().latency);
        let ahead = 2 * latency.min().unwrap_or_default() + LIMIT_AHEAD;
        let most = (limit as f64 * ahead.as_secs_f64()) as u64;
        let flies = self.lanes.iter().map(|on| on.lane.stats().bytes_in_flight);
        Some(most.saturating_sub(flies.sum()))
    }

    /// Bytes that each lane may have in flight while the copy has a journal; `None` without a
    /// bound.
    fn of_journal(&mut self, now: Instant) -> Option<u64> {
        let mut depth = 0;
        self.flying.clear();
        for on in &self.lanes {
            let stats = on.lane.stats();
            depth += stats.bytes_depth;
            self.flying.push(Flying {
                bytes: stats.bytes_in_flight,
                wants: match on.lane.is_idle() {
                    true => 0,
                    false => stats.bytes_depth,
                },
            });
        }
        // A background copy sets its own pace, with the same bound.
        let hold = self.lanes.len() > 2
            && depth > MOST_IN_FLIGHT
            && self.yielding.is_none()
            && self.spread.keeps();
        if std::mem::replace(&mut self.held_to_flight, hold) && !hold {
            for on in &mut self.lanes {
                on.lane.set_pace(now, u64::MAX);
            }
        }
        hold.then(|| level(&self.flying, MOST_IN_FLIGHT))
    }

    pub(super) fn drain_events(&mut self, now: Instant, at: usize) {
        let on = &mut self.lanes[at];
        let mut refused = false;
        while let Some(event) = on.lane.poll_event() {
            if event.job() == STARTS {
                self.far.note_starts(event);
                continue;
            }
            if let LaneEvent::Progress(_, n) = event {
                on.bytes += n;
            }
            if matches!(event, LaneEvent::Refused(..)) && !on.served {
                refused = true;
            }
            self.spread.handle_lane(now, on.id, event);
        }
        if refused {
            let found = on.lane.refusals();
            self.note_refusals(found);
        }
    }

    /// Shares the stock server's refused requests with all its lanes and the host memory, so that
    /// no other lane has to try them.
    fn note_refusals(&mut self, found: Refusals) {
        let all = self.refusals.and(found);
        if all == self.refusals {
            return;
        }
        self.refusals = all;
        for on in self.lanes.iter_mut().filter(|on| !on.served) {
            on.lane.note_refusals(all);
        }
        if let Some(reach) = &self.options.reach {
            reach.note_refusals(all);
        }
    }

    /// Notes which channels' windows hold data back, and for how long.
    pub(super) fn note_stalls(&mut self, now: Instant) {
        for on in &mut self.lanes {
            let connection = on.id.connection;
            let Some(link) = self.connections.iter_mut().find(|c| c.id == connection) else {
                continue;
            };
            let stalled = link.link.send_window(on.channel).stalled;
            match (on.blocked_since, stalled) {
                (None, true) => on.blocked_since = Some(now),
                (Some(since), _) => {
                    on.blocked += now.saturating_duration_since(since);
                    on.blocked_since = stalled.then_some(now);
                }
                (None, false) => {}
            }
        }
    }
}
