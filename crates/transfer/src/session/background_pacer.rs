//! `--background`: measures for [`schedule::Background`] and applies the rate that it allows.

use std::time::Instant;

use schedule::{Background, BackgroundAllowance, BackgroundSample};
use tracing::trace;

use super::driver::SessionLoop;
use super::lanes::MOST_IN_FLIGHT;
use super::throttle::RateLimiter;

/// Largest READ and WRITE in bytes during a background copy. On a slow path, one request of 255 KiB
/// alone would queue for several times the target delay. On an idle path, TCP restarts with ten
/// segments after each pause (RFC 6928), so a larger request takes two round trips and looks like
/// queueing.
pub(super) const LENGTH: u32 = 12 << 10;

/// State of a background copy in the session loop.
#[derive(Debug)]
pub(super) struct BackgroundPacer {
    background: Background,
    allowance: BackgroundAllowance,
    pub(super) throttle: RateLimiter,
    next: Instant,
    /// Answered bytes, including a small overhead for each request.
    moved: u64,
    /// `bytes_acked` of the kernel at the last sample.
    acknowledged: u64,
}

impl BackgroundPacer {
    pub(super) fn new(now: Instant) -> Self {
        let mut background = Background::new();
        let allowance = background.sample(BackgroundSample {
            now,
            round_trip: None,
            answer: None,
            moved: 0,
            lost: 0,
        });
        Self {
            background,
            allowance,
            throttle: RateLimiter::fine(allowance.rate as u64, now),
            next: now,
            moved: 0,
            acknowledged: 0,
        }
    }

    /// Next time to sample or to send, while there is work to do.
    pub(super) fn poll_timeout(&self) -> Instant {
        match self.throttle.is_waiting() {
            true => self.next.min(self.throttle.ready_at()),
            false => self.next,
        }
    }

    fn look(&mut self, sample: BackgroundSample) {
        let now = sample.now;
        self.allowance = self.background.sample(sample);
        self.next = now + self.background.interval();
        self.throttle.set_rate(now, self.allowance.rate as u64);
        trace!(
            "background: {:?}, queues {:?}; round trip {:?}, answer {:?}, {} lost",
            self.allowance,
            self.background.queueing(),
            sample.round_trip,
            sample.answer,
            sample.lost
        );
    }
}

impl SessionLoop {
    /// Lets lanes request and send as much as other traffic leaves free.
    pub(super) fn pace(&mut self, now: Instant) {
        if self.spread.is_idle() {
            return;
        }
        let Some(yielding) = &mut self.yielding else {
            return;
        };
        let mut in_flight = 0;
        for on in &mut self.lanes {
            let (paced, flies) = (on.lane.paced(), on.lane.stats().bytes_in_flight);
            let answered = paced.saturating_sub(flies);
            yielding.moved += answered.saturating_sub(on.answered);
            on.answered = answered.max(on.answered);
            in_flight += flies;
        }
        if yielding.next <= now {
            let answers = self.lanes.iter_mut();
            let answer = answers.filter_map(|on| on.lane.take_answer_time()).min();
            // Behind a ProxyCommand or a jump host the kernel's TCP figures do not describe the
            // path.
            let tcp = self.connections.first().and_then(|on| on.link.sample().tcp);
            let mut sample = BackgroundSample {
                now,
                round_trip: None,
                answer,
                moved: yielding.moved,
                lost: 0,
            };
            if let Some(tcp) = tcp {
                let heard = tcp.bytes_acked != yielding.acknowledged;
                yielding.acknowledged = tcp.bytes_acked;
                sample.round_trip = Some(tcp.rtt).filter(|rtt| heard && !rtt.is_zero());
                sample.lost = u64::from(tcp.total_retrans) + u64::from(tcp.rcv_ooopack);
            }
            yielding.look(sample);
        }
        let credit = yielding.throttle.credit(now) as u64;
        let most = match self.spread.keeps() {
            true => yielding.allowance.in_flight.min(MOST_IN_FLIGHT),
            false => yielding.allowance.in_flight,
        };
        let mut left = credit.min(most.saturating_sub(in_flight));
        let count = self.lanes.len();
        for turn in 0..count {
            // The rate may not suffice for all lanes, so a different lane is served first in each
            // turn.
            let on = &mut self.lanes[(self.first_served + turn) % count];
            on.lane.set_pace(now, left);
            let spent = on.lane.paced().saturating_sub(on.paced);
            on.paced += spent;
            yielding
                .throttle
                .spend(usize::try_from(spent).unwrap_or(usize::MAX));
            left = left.saturating_sub(spent);
        }
        self.first_served = (self.first_served + 1) % count.max(1);
        yielding.throttle.note(now, left == 0);
    }
}
