use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Limits the amount in flight on a lane to twice the bandwidth-delay product, estimated as BBR
/// does (draft-cardwell-iccrg-bbr-congestion-control section 4) from the highest answer rate and
/// the lowest latency seen.
///
/// A small limit starves a long path. A large limit on a short path queues in the server, where
/// OpenSSH's sftp-server collapses (20,000 small files over pipes: 21,000 per second with 256
/// requests in flight, 1,250 with 16,384). Twice the product doubles in each round trip as long as
/// the path keeps up, and stops growing by itself when answers queue; a startup that doubles
/// regardless of the product runs into the collapse. The caller chooses the unit: bytes or
/// requests.
#[derive(Debug)]
pub struct InflightLimit {
    limits: InflightBounds,
    target: u64,
    in_flight: u64,
    delivered: u64,
    delivered_at: Option<Instant>,
    /// Send time of the request that was answered last.
    answered_sent_at: Option<Instant>,
    /// Highest rates of the recent rounds in falling order: (round, units per second).
    rates: VecDeque<(u64, f64)>,
    /// Lowest latency of the session. The value never expires: under a load of twice the product
    /// every later sample includes queueing, and using it would double the queue.
    latency: Option<Duration>,
    trips: RecentAnswerAmounts,
    round: u64,
    round_end: u64,
    /// True for this round or the previous one if the sender reached the target in it, so the path
    /// was offered everything that it may get.
    blocked: [bool; 2],
}

/// Start value and bounds of a [`InflightLimit`], in its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightBounds {
    /// Target at the start.
    pub initial: u64,
    /// Lower bound of the target.
    pub min: u64,
    /// Upper bound of the target.
    pub max: u64,
}

/// Record of a sent request, to be passed back when the request is answered.
#[derive(Clone, Copy, Debug)]
pub struct RequestStamp {
    amount: u64,
    sent_at: Instant,
    delivered: u64,
    delivered_at: Instant,
    sending_since: Instant,
}

const RATE_WINDOW: u64 = 10;
const GAIN: f64 = 2.0;
/// [`GAIN`] of a short queue.
const SHORT_QUEUE_GAIN: f64 = 1.5;
/// Factor of the amount expected in the next round trip for a short queue.
const SHORT_QUEUE_SOON: f64 = 1.25;
/// Factor by which the offered amount exceeds the delivered amount, to probe for more capacity.
const LEVEL: f64 = 1.125;

/// Amounts answered recently, in slots of a fraction of a round trip. With whole-trip slots a burst
/// would fall into one trip or the next and look like growth.
#[derive(Debug, Default)]
struct RecentAnswerAmounts {
    /// Start time of `parts[0]`.
    since: Option<Instant>,
    /// Amount per slot, latest first.
    parts: [u64; 2 * PARTS],
}

const PARTS: usize = 8;

impl RecentAnswerAmounts {
    fn note(&mut self, now: Instant, trip: Duration, amount: u64) {
        let since = *self.since.get_or_insert(now);
        let part = (trip / PARTS as u32).max(Duration::from_nanos(1));
        let over = now.saturating_duration_since(since);
        let passed = over.as_nanos() / part.as_nanos();
        if passed > 0 {
            let shift = usize::try_from(passed).unwrap_or(usize::MAX);
            let shift = shift.min(self.parts.len());
            self.parts.rotate_right(shift);
            self.parts[..shift].fill(0);
            self.since = u32::try_from(passed).map_or(Some(now), |n| Some(since + part * n));
        }
        self.parts[0] += amount;
    }

    /// Amounts of the last round trip and of the one before.
    fn last_two(&self) -> [u64; 2] {
        let (last, before) = self.parts.split_at(PARTS);
        [last.iter().sum(), before.iter().sum()]
    }
}

impl InflightLimit {
    /// Creates a controller that knows nothing of the path yet.
    pub fn new(limits: InflightBounds) -> Self {
        Self {
            limits,
            target: limits.initial.clamp(limits.min, limits.max),
            in_flight: 0,
            delivered: 0,
            delivered_at: None,
            answered_sent_at: None,
            rates: VecDeque::new(),
            latency: None,
            trips: RecentAnswerAmounts::default(),
            round: 0,
            round_end: 0,
            blocked: [false; 2],
        }
    }

    /// Lowers the upper bound of the target to `most` units from now on.
    pub fn limit(&mut self, most: u64) {
        let limits = &mut self.limits;
        limits.max = limits.max.min(most.max(1));
        limits.min = limits.min.min(limits.max);
        self.target = self.target.min(limits.max);
    }

    /// Returns the amount that may be in flight.
    pub fn target(&self) -> u64 {
        self.target
    }

    /// Returns `gain` times the bandwidth-delay product, ignoring the bounds; 0 while it is
    /// unknown.
    pub fn target_of(&self, gain: f64) -> u64 {
        match (self.rate(), self.latency) {
            (Some(rate), Some(latency)) => (gain * rate * latency.as_secs_f64()) as u64,
            _ => 0,
        }
    }

    /// Returns the amount answered in the last round trip or in the one before, whichever is
    /// larger. The rate of single requests lags: requests that waited in the server for several
    /// round trips, as in TCP slow start, measure the mean over all that time (a third of the
    /// present rate).
    pub fn lately(&self) -> u64 {
        let [last, before] = self.trips.last_two();
        last.max(before)
    }

    /// Estimates the amount of the next round trip from the last two: up to twice as much during
    /// TCP slow start, slightly more than the last one afterwards.
    pub fn soon(&self) -> u64 {
        let [last, before] = self.trips.last_two();
        let growth = last as f64 / before.max(1) as f64;
        (self.lately() as f64 * growth.clamp(LEVEL, GAIN)) as u64
    }

    /// Returns the amount that may be in flight while little of it shall wait in the server: at
    /// least `least`, enough for the growth of TCP slow start, and never more than
    /// [`target`](Self::target).
    ///
    /// What the path cannot carry yet waits in sshd, whose channel buffer grows by as much as
    /// arrives and is copied each time. Seven connections with the doubled product and 4 MiB at
    /// least took 3.1 s of processor for a download of 64 MiB over 114 ms, and this amount takes
    /// 1.7 s (docs/design/0021-first-seconds.md).
    pub fn short_queue(&self, least: u64) -> u64 {
        let next = (self.soon() as f64 * SHORT_QUEUE_SOON) as u64;
        let enough = self.target_of(SHORT_QUEUE_GAIN).max(next).max(least);
        enough.min(self.target)
    }

    /// Returns the amount in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Returns the rate in units per second, once known.
    pub fn rate(&self) -> Option<f64> {
        self.rates.front().map(|(_, rate)| *rate)
    }

    /// Returns the lowest latency seen.
    pub fn latency(&self) -> Option<Duration> {
        self.latency
    }

    /// Records that the target kept the sender from sending more.
    pub fn note_blocked(&mut self) {
        self.blocked[0] = true;
    }

    /// Records that a request of `amount` was sent.
    pub fn on_sent(&mut self, now: Instant, amount: u64) -> RequestStamp {
        if self.in_flight == 0 {
            self.delivered_at = Some(now);
            self.answered_sent_at = Some(now);
        }
        self.in_flight += amount;
        RequestStamp {
            amount,
            sent_at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at.unwrap_or(now),
            sending_since: self.answered_sent_at.unwrap_or(now),
        }
    }

    /// Records that a request was withdrawn before it was sent.
    pub fn on_withdrawn(&mut self, stamp: RequestStamp) {
        self.in_flight = self.in_flight.saturating_sub(stamp.amount);
    }

    /// Records that a request was answered completely.
    pub fn on_answered(&mut self, now: Instant, stamp: RequestStamp) {
        self.in_flight = self.in_flight.saturating_sub(stamp.amount);
        self.delivered += stamp.amount;
        self.delivered_at = Some(now);
        let latency = now.saturating_duration_since(stamp.sent_at);
        self.latency = Some(self.latency.map_or(latency, |l| l.min(latency)));
        let latency = self.latency.unwrap_or_default();
        self.trips.note(now, latency, stamp.amount);
        self.answered_sent_at = Some(stamp.sent_at);
        // Delayed answers arrive in a burst; the amount sent meanwhile bounds the rate
        // (draft-cheng-iccrg-delivery-rate-estimation section 3.3).
        let sending = stamp.sent_at.saturating_duration_since(stamp.sending_since);
        let over = sending.max(now.saturating_duration_since(stamp.delivered_at));
        if over > Duration::ZERO {
            self.take_rate((self.delivered - stamp.delivered) as f64 / over.as_secs_f64());
        }
        if stamp.delivered >= self.round_end {
            self.next_round();
        }
        if self.was_blocked() {
            self.target = self.product().clamp(self.limits.min, self.limits.max);
        }
    }

    fn was_blocked(&self) -> bool {
        self.blocked.contains(&true)
    }

    fn take_rate(&mut self, rate: f64) {
        // A low rate while the sender held data back says nothing about the path (BBR's app-limited
        // samples).
        if !self.was_blocked() && self.rate().is_some_and(|max| rate < max) {
            return;
        }
        while self.rates.back().is_some_and(|(_, r)| *r <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back((self.round, rate));
        while self
            .rates
            .front()
            .is_some_and(|(round, _)| round + RATE_WINDOW < self.round)
        {
            self.rates.pop_front();
        }
    }

    fn next_round(&mut self) {
        self.round += 1;
        self.round_end = self.delivered;
        self.blocked = [false, self.blocked[0]];
    }

    fn product(&self) -> u64 {
        match self.rate() {
            Some(_) => self.target_of(GAIN),
            None => self.limits.initial,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const LIMITS: InflightBounds = InflightBounds {
        initial: 2 * MIB,
        min: MIB,
        max: 16 * MIB,
    };
    const CHUNK: u64 = 255 * 1024;

    /// Runs a path of `rate` bytes per second and round trip `rtt` in virtual time, kept as full as
    /// the depth allows for `seconds`. Returns the bytes delivered and the depth.
    fn run(rate: f64, rtt: Duration, seconds: f64) -> (u64, InflightLimit) {
        let start = testkit::sftp_model::epoch();
        let mut depth = InflightLimit::new(LIMITS);
        let mut queue: VecDeque<(Instant, RequestStamp)> = VecDeque::new();
        let (mut now, mut free) = (start, start);
        let end = start + Duration::from_secs_f64(seconds);
        while now < end {
            while depth.in_flight() < depth.target() {
                let stamp = depth.on_sent(now, CHUNK);
                free = free.max(now) + Duration::from_secs_f64(CHUNK as f64 / rate);
                queue.push_back((free + rtt, stamp));
            }
            depth.note_blocked();
            let (at, stamp) = queue.pop_front().unwrap();
            now = at;
            depth.on_answered(now, stamp);
        }
        (depth.delivered, depth)
    }

    #[test]
    fn a_long_path_is_filled_within_a_few_round_trips() {
        let rtt = Duration::from_millis(60);
        let (delivered, depth) = run(100e6, rtt, 3.0);
        let product = 100e6 * 0.06;
        assert!(depth.target() as f64 >= product && depth.target() as f64 <= 2.6 * product);
        // Startup costs five round trips at most.
        assert!(delivered as f64 > 100e6 * (3.0 - 0.3), "{delivered}");
    }

    #[test]
    fn a_short_path_is_not_flooded() {
        let (delivered, depth) = run(1e9, Duration::from_micros(100), 1.0);
        assert_eq!(depth.target(), MIB);
        assert!(delivered as f64 > 0.98e9);
    }

    #[test]
    fn the_longest_path_stops_at_the_limit() {
        let (_, depth) = run(1.25e9, Duration::from_millis(300), 6.0);
        assert_eq!(depth.target(), 16 * MIB);
    }

    #[test]
    fn a_sender_with_little_to_send_changes_nothing() {
        let start = testkit::sftp_model::epoch();
        let mut depth = InflightLimit::new(LIMITS);
        for i in 0..100 {
            let at = start + Duration::from_millis(200 * i);
            let stamp = depth.on_sent(at, 100);
            depth.on_answered(at + Duration::from_millis(100), stamp);
        }
        assert_eq!(depth.target(), 2 * MIB);
    }

    /// TCP slow start with long queueing in the server: answers belong to requests sent long ago.
    #[test]
    fn a_rate_that_doubles_is_known_as_it_doubles() {
        let start = testkit::sftp_model::epoch();
        let rtt = Duration::from_millis(100);
        let mut depth = InflightLimit::new(LIMITS);
        let mut queue: VecDeque<RequestStamp> =
            (0..400).map(|_| depth.on_sent(start, 4096)).collect();
        let mut answered = 0;
        for trip in 1..=5u32 {
            let now = start + rtt * trip;
            answered = 4 << trip;
            for _ in 0..answered {
                depth.on_answered(now, queue.pop_front().unwrap());
                queue.push_back(depth.on_sent(now, 4096));
            }
        }
        assert_eq!(depth.lately(), answered * 4096);
        assert_eq!(depth.soon(), 2 * answered * 4096);
        assert!(depth.target_of(1.0) < answered * 4096 * 3 / 4, "the mean");
        // Answers from 30 round trips ago no longer count as recent.
        depth.on_answered(start + rtt * 30, queue.pop_front().unwrap());
        assert_eq!(depth.lately(), 4096);
    }

    /// Runs a download through TCP slow start, from 18 segments to `window` bytes for each round
    /// trip of 100 ms, until `bytes` were delivered. Returns the twentieths of a round trip that it
    /// took, and the largest amount that waited in the server.
    fn slow_start(window: u64, bytes: u64, limit: impl Fn(&InflightLimit) -> u64) -> (u32, u64) {
        const PARTS: u64 = 20;
        let start = testkit::sftp_model::epoch();
        let rtt = Duration::from_millis(100);
        let mut depth = InflightLimit::new(InflightBounds {
            initial: 4 * MIB,
            min: 4 * MIB,
            max: 16 * MIB,
        });
        let opened = depth.on_sent(start, 1);
        depth.on_answered(start + rtt, opened);
        // Requests by the part of a round trip at which they reach the server.
        let mut coming: VecDeque<(u64, RequestStamp)> = VecDeque::new();
        let mut waiting: VecDeque<(u64, RequestStamp)> = VecDeque::new();
        let mut answers: VecDeque<(u64, RequestStamp)> = VecDeque::new();
        let (mut most, mut part) = (0, 0);
        while depth.delivered < bytes {
            let now = start + rtt + rtt / PARTS as u32 * part as u32;
            while answers.front().is_some_and(|(at, _)| *at <= part) {
                depth.on_answered(now, answers.pop_front().unwrap().1);
            }
            while depth.in_flight() < limit(&depth) {
                coming.push_back((part + PARTS / 2, depth.on_sent(now, CHUNK)));
            }
            depth.note_blocked();
            while coming.front().is_some_and(|(at, _)| *at <= part) {
                waiting.push_back((CHUNK, coming.pop_front().unwrap().1));
            }
            let opened = (18 * 1448_u64) << (part / PARTS).min(20);
            let mut credit = opened.min(window) / PARTS;
            while credit > 0
                && let Some((left, stamp)) = waiting.pop_front()
            {
                let sent = credit.min(left);
                credit -= sent;
                match left - sent {
                    0 => answers.push_back((part + PARTS / 2, stamp)),
                    left => waiting.push_front((left, stamp)),
                }
            }
            most = most.max(waiting.iter().map(|(left, _)| left).sum());
            part += 1;
        }
        (part as u32, most)
    }

    /// sshd copies what waits in it whenever more arrives.
    #[test]
    fn little_waits_in_a_server_whose_path_is_still_opening() {
        for window in [256 << 10, MIB, 5 * MIB / 2, 5 * MIB] {
            let bytes = 8 * window;
            let (shortest, queued) = slow_start(window, bytes, InflightLimit::target);
            let (parts, waited) = slow_start(window, bytes, |depth| depth.short_queue(MIB));
            let shown = format!("{window}: {parts} of {shortest}, {waited} of {queued}");
            assert!(parts * 100 <= shortest * 102, "{shown}");
            assert!(waited <= queued, "{shown}");
            assert!(window > MIB || waited < queued / 2, "{shown}");
        }
    }

    /// Tests every position of the burst within the round trip.
    #[test]
    fn a_level_rate_that_comes_in_bursts_is_level() {
        let start = testkit::sftp_model::epoch();
        let rtt = Duration::from_millis(96);
        for offset in 0..8 {
            let mut depth = InflightLimit::new(LIMITS);
            let first = depth.on_sent(start, 4096);
            depth.on_answered(start + rtt, first);
            for step in 0..80 {
                // Six of seven parts in one eighth of the round trip.
                let amount = if step % 8 == offset {
                    6 * CHUNK
                } else {
                    CHUNK / 7
                };
                let at = start + rtt + rtt / 8 * step;
                let stamp = depth.on_sent(at - rtt, amount);
                depth.on_answered(at, stamp);
                let whole = 6 * CHUNK + CHUNK;
                assert!(step < 24 || depth.soon() < whole * 5 / 4, "{step} {offset}");
            }
        }
    }

    /// A receiver that stalled or a thread that slept delivers many milliseconds of answers at
    /// once.
    #[test]
    fn a_burst_of_answers_does_not_look_like_a_fast_path() {
        let start = testkit::sftp_model::epoch();
        let at = |us: u64| start + Duration::from_micros(us);
        let mut depth = InflightLimit::new(LIMITS);
        depth.note_blocked();
        let first = depth.on_sent(at(0), CHUNK);
        depth.on_answered(at(100), first);
        let warm = depth.on_sent(at(100), CHUNK);
        let stamps: Vec<RequestStamp> = (1..=8)
            .map(|i| depth.on_sent(at(i * 10_000), CHUNK))
            .collect();
        depth.on_answered(at(80_000), warm);
        let burst: Vec<RequestStamp> = (0..8).map(|_| depth.on_sent(at(80_001), CHUNK)).collect();
        for stamp in stamps.into_iter().chain(burst) {
            depth.on_answered(at(80_200), stamp);
        }
        // One chunk in 100 us is the fastest real rate.
        assert!(depth.rate().unwrap() <= CHUNK as f64 / 100e-6);
    }
}
