//! `--background`: measures for [`schedule::BackgroundRateControl`] and applies the rate that it
//! allows.

use std::time::{Duration, Instant};

use schedule::{BackgroundAllowance, BackgroundPathSample, BackgroundRateControl};
use sys::TcpInfo;
use tracing::trace;

use super::throttle::RateLimiter;

/// Largest READ and WRITE in bytes during a background copy. On a slow path, one request of 255 KiB
/// alone would queue for several times the target delay. On an idle path, TCP restarts with ten
/// segments after each pause (RFC 6928), so a larger request takes two round trips and looks like
/// queueing.
pub(super) const LENGTH: u32 = 12 << 10;

/// State of a background copy in the session loop.
#[derive(Debug)]
pub(super) struct BackgroundPacer {
    background: BackgroundRateControl,
    allowance: BackgroundAllowance,
    throttle: RateLimiter,
    next: Instant,
    /// Answered bytes, including a small overhead for each request.
    moved: u64,
    /// `bytes_acked` of the kernel at the last sample.
    acknowledged: u64,
}

impl BackgroundPacer {
    pub(super) fn new(now: Instant) -> Self {
        let mut background = BackgroundRateControl::new();
        let allowance = background.sample(BackgroundPathSample {
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

    /// Counts answered bytes.
    pub(super) fn answered(&mut self, bytes: u64) {
        self.moved += bytes;
    }

    /// True if a sample is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// Takes a sample: the shortest time to an answer since the last one, and the TCP state of the
    /// connection. Behind a ProxyCommand or a jump host the kernel's TCP figures do not describe
    /// the path, and `tcp` is `None`.
    pub(super) fn sample(&mut self, now: Instant, answer: Option<Duration>, tcp: Option<TcpInfo>) {
        let mut sample = BackgroundPathSample {
            now,
            round_trip: None,
            answer,
            moved: self.moved,
            lost: 0,
        };
        if let Some(tcp) = tcp {
            let heard = tcp.bytes_acked != self.acknowledged;
            self.acknowledged = tcp.bytes_acked;
            sample.round_trip = Some(tcp.rtt).filter(|rtt| heard && !rtt.is_zero());
            sample.lost = u64::from(tcp.total_retrans) + u64::from(tcp.rcv_ooopack);
        }
        self.allowance = self.background.sample(sample);
        self.next = now + self.background.interval();
        self.throttle.set_rate(now, self.allowance.rate as u64);
        trace!(
            "background: {:.0} bytes a second, queueing delay {} ms",
            self.allowance.rate,
            self.background
                .queueing()
                .map_or(0, |delay| delay.as_millis())
        );
    }

    /// Bytes that may be requested or sent now, with `in_flight` bytes unanswered and at most
    /// `most` of them.
    pub(super) fn allowed(&mut self, now: Instant, in_flight: u64, most: u64) -> u64 {
        let credit = self.throttle.credit(now) as u64;
        let most = self.allowance.in_flight.min(most);
        credit.min(most.saturating_sub(in_flight))
    }

    /// Counts bytes that were requested or sent.
    pub(super) fn spend(&mut self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.throttle.spend(bytes);
    }

    /// Notes if lanes wait for the rate.
    pub(super) fn note_waiting(&mut self, now: Instant, waits: bool) {
        self.throttle.note(now, waits);
    }

    /// Share of the time since the last call in which lanes waited, 0 to 1.
    pub(super) fn take_share(&mut self, now: Instant) -> f64 {
        self.throttle.take_share(now)
    }
}

#[cfg(test)]
#[path = "tests/background_pacer.rs"]
mod tests;
