//! Limits what lanes request and send: the user's rate limit (`-l`), `--background`, and the bound
//! on the data that an interrupted copy would send again.

use std::time::{Duration, Instant};

use sys::TcpInfo;

use super::background_pacer::BackgroundPacer;
use super::flight::{LaneInFlight, level};
use super::lane::LaneOnChannel;
use super::throttle::{RateLimitPart, RateLimiter, SharedRateLimit};

/// Largest channel packet in bytes (OpenSSH's CHAN_SES_PACKET_DEFAULT).
const PACKET: usize = 32 * 1024;

/// Bound in bytes on the data in flight over all lanes while the copy has a journal. An interrupted
/// copy sends this data again, and together with data that is answered but not yet in the journal
/// it must stay below 64 MiB.
pub(super) const MOST_IN_FLIGHT: u64 = 40 << 20;

/// Data that may be in flight beyond the path's own capacity, as a time at the rate limit.
const LIMIT_AHEAD: Duration = Duration::from_millis(100);

/// Rate in bytes per second below which silence is not taken as an outage, because a request may
/// take longer than the silence to send.
const SILENCE_COUNTS_FROM: u64 = 256_000;

/// Limits of a session for the data that its lanes request and send.
#[derive(Debug)]
pub(super) struct SessionRateLimits {
    /// The user's limit in bytes per second.
    limit: Option<u64>,
    limiter: Option<RateLimiter>,
    /// Part of the limit that this session shares with others; more than `limit` when some are over.
    part: Option<RateLimitPart>,
    background: Option<BackgroundPacer>,
    /// True if data waits for the rate limiter.
    waits: bool,
    /// The bytes in flight of all lanes together are bounded by [`MOST_IN_FLIGHT`].
    bounded: bool,
    /// Bytes in flight of each lane at the last check; kept to reuse the allocation.
    flying: Vec<LaneInFlight>,
}

/// Bytes that lanes may still request or send in this turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TurnByteBudget {
    /// Bytes that all lanes together may still move, under a rate limit.
    left: Option<u64>,
    /// Bytes that may be in flight on each lane, under the bound for journals.
    level: Option<u64>,
}

impl TurnByteBudget {
    /// Bytes that a lane with `in_flight` bytes may request or send; `None` without a bound.
    pub(super) fn of_lane(&self, in_flight: u64) -> Option<u64> {
        let held = self.level.map(|level| level.saturating_sub(in_flight));
        self.left.into_iter().chain(held).min()
    }

    /// Deducts bytes that a lane has requested or sent.
    pub(super) fn spend(&mut self, bytes: u64) {
        self.left = self.left.map(|left| left.saturating_sub(bytes));
    }
}

impl SessionRateLimits {
    /// Creates the limits of a session. `limit` is in bytes per second.
    pub(super) fn new(limit: Option<u64>, background: bool, now: Instant) -> Self {
        Self {
            limit,
            limiter: limit.map(|limit| RateLimiter::new(limit, now)),
            part: None,
            background: background.then(|| BackgroundPacer::new(now)),
            waits: false,
            bounded: false,
            flying: Vec::new(),
        }
    }

    /// Shares a limit with other sessions.
    pub(super) fn shared_by(self, shared: Option<&SharedRateLimit>) -> Self {
        Self {
            part: shared.map(SharedRateLimit::join),
            ..self
        }
    }

    /// True for a copy that yields to other traffic.
    pub(super) fn is_background(&self) -> bool {
        self.background.is_some()
    }

    /// True if this end itself holds data back, so that silence of the server means nothing.
    pub(super) fn holds_back(&self) -> bool {
        self.waits || self.is_background()
    }

    /// True if the path is silent when no data come for long, because the rate limit is high
    /// enough.
    pub(super) fn silence_counts(&self) -> bool {
        self.limit.is_none_or(|limit| limit >= SILENCE_COUNTS_FROM)
    }

    /// Begins a turn of the loop.
    pub(super) fn begin_turn(&mut self) {
        self.waits = false;
    }

    /// Ends a turn of the loop.
    pub(super) fn end_turn(&mut self, now: Instant) {
        if let Some(limiter) = &mut self.limiter {
            limiter.note(now, self.waits);
            if let Some(part) = &self.part {
                limiter.set_rate(now, part.rate().max(self.limit.unwrap_or(1)));
            }
        }
    }

    /// Time at which the limits allow more; `busy` means that jobs are unfinished.
    pub(super) fn poll_timeout(&self, busy: bool) -> Option<Instant> {
        let limiter = self.limiter.as_ref().filter(|_| self.waits);
        let background = self.background.as_ref().filter(|_| busy);
        let limiter = limiter.map(RateLimiter::ready_at);
        let background = background.map(BackgroundPacer::poll_timeout);
        limiter.into_iter().chain(background).min()
    }

    /// Largest share of the time since the last call in which something waited, 0 to 1.
    pub(super) fn take_share(&mut self, now: Instant) -> f64 {
        let background = self.background.as_mut().map(|b| b.take_share(now));
        let limiter = self.limiter.as_mut().map(|l| l.take_share(now));
        let shares = limiter.into_iter().chain(background);
        shares.fold(0.0, f64::max)
    }

    /// True if data may be received now.
    pub(super) fn may_receive(&mut self, now: Instant) -> bool {
        let spent = self.limiter.as_mut().is_some_and(|l| l.credit(now) == 0);
        self.waits |= spent;
        !spent
    }

    /// Counts bytes of channels that were received or sent.
    pub(super) fn spend(&mut self, bytes: usize) {
        if let Some(limiter) = &mut self.limiter {
            limiter.spend(bytes);
        }
    }

    /// True if the limits may not suffice for all lanes, so that they must be served in turn.
    pub(super) fn divides(&self) -> bool {
        self.limiter.is_some() || self.is_background()
    }

    /// Bytes that may be written to a channel with this much room.
    pub(super) fn room(&mut self, now: Instant, room: usize) -> usize {
        let Some(limiter) = &mut self.limiter else {
            return room;
        };
        let credit = limiter.credit(now);
        self.waits |= credit < room;
        // A lane sends whole packets. With less room it would wait for room that no event
        // announces. The next turn pays back what is sent on credit.
        match credit {
            0 => 0,
            credit => room.min(credit.max(PACKET)),
        }
    }

    /// Divides the limits among the lanes. `journal` means that the copy has one.
    pub(super) fn budget(
        &mut self,
        now: Instant,
        lanes: &mut [LaneOnChannel],
        journal: bool,
    ) -> TurnByteBudget {
        TurnByteBudget {
            left: self.of_limit(lanes),
            level: self.of_journal(now, lanes, journal),
        }
    }

    /// Bytes that lanes may still request or send under a rate limit. Requests in flight cannot be
    /// recalled: the answers of eight lanes in as many receive buffers exceeded a limit by 8 % of
    /// 200 MB.
    fn of_limit(&self, lanes: &[LaneOnChannel]) -> Option<u64> {
        let limit = self.limit.filter(|_| !self.is_background())?;
        let latency = lanes.iter().filter_map(|on| on.lane().stats().latency);
        let flies = lanes.iter().map(|on| on.lane().stats().bytes_in_flight);
        Some(left_of_limit(
            limit,
            latency.min().unwrap_or_default(),
            flies.sum(),
        ))
    }

    /// Bytes that each lane may have in flight while the copy has a journal; `None` without a
    /// bound.
    fn of_journal(
        &mut self,
        now: Instant,
        lanes: &mut [LaneOnChannel],
        journal: bool,
    ) -> Option<u64> {
        let mut depth = 0;
        self.flying.clear();
        for on in &*lanes {
            let stats = on.lane().stats();
            depth += stats.bytes_depth;
            let wants = match on.lane().is_idle() {
                true => 0,
                false => stats.bytes_depth,
            };
            self.flying
                .push(LaneInFlight::new(stats.bytes_in_flight, wants));
        }
        // A background copy sets its own pace, with the same bound.
        let bound = lanes.len() > 2 && depth > MOST_IN_FLIGHT && !self.is_background() && journal;
        if std::mem::replace(&mut self.bounded, bound) && !bound {
            for on in lanes {
                on.lane_mut().set_pace(now, u64::MAX);
            }
        }
        bound.then(|| level(&self.flying, MOST_IN_FLIGHT))
    }

    /// Sets how much the lanes of a background copy may request and send; `first` is served first.
    /// `tcp` is the state of the first connection.
    pub(super) fn yield_to_others(
        &mut self,
        now: Instant,
        lanes: &mut [LaneOnChannel],
        first: usize,
        tcp: impl FnOnce() -> Option<TcpInfo>,
        journal: bool,
    ) {
        let Some(background) = &mut self.background else {
            return;
        };
        for on in &mut *lanes {
            background.answered(on.take_answered());
        }
        if background.is_due(now) {
            let answers = lanes.iter_mut().map(LaneOnChannel::lane_mut);
            let answer = answers.filter_map(|lane| lane.take_answer_time()).min();
            background.sample(now, answer, tcp());
        }
        let in_flight = lanes.iter().map(|on| on.lane().stats().bytes_in_flight);
        let most = match journal {
            true => MOST_IN_FLIGHT,
            false => u64::MAX,
        };
        let mut left = background.allowed(now, in_flight.sum(), most);
        let count = lanes.len();
        for turn in 0..count {
            // The rate may not suffice for all lanes, so a different lane is served first in each
            // turn.
            let Some(on) = lanes.get_mut((first + turn) % count) else {
                continue;
            };
            on.lane_mut().set_pace(now, left);
            let spent = on.take_paced();
            background.spend(spent);
            left = left.saturating_sub(spent);
        }
        background.note_waiting(now, left == 0);
    }
}

/// Bytes that may still be requested or sent under a rate limit in bytes per second, with
/// `in_flight` bytes on a path of this latency.
fn left_of_limit(limit: u64, latency: Duration, in_flight: u64) -> u64 {
    let ahead = 2 * latency + LIMIT_AHEAD;
    let most = (limit as f64 * ahead.as_secs_f64()) as u64;
    most.saturating_sub(in_flight)
}

#[cfg(test)]
#[path = "tests/pacing.rs"]
mod tests;
