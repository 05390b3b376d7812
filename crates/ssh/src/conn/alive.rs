use std::time::{Duration, Instant};

use crate::error::{Error, PeerMisbehaved};

/// Keepalive timer (ServerAliveInterval), which counts the time since the last received data.
pub(super) struct SshKeepaliveTimer {
    interval: Option<Duration>,
    count: u32,
    heard: Option<Instant>,
    asked: Option<Instant>,
    unanswered: u32,
}

impl SshKeepaliveTimer {
    pub(super) fn new(interval: Option<Duration>, count: u32) -> Self {
        Self {
            interval,
            count,
            heard: None,
            asked: None,
            unanswered: 0,
        }
    }

    pub(super) fn hear(&mut self, now: Instant) {
        self.heard = Some(now);
        self.asked = None;
        self.unanswered = 0;
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let from = self.asked.or(self.heard)?;
        from.checked_add(self.interval.filter(|i| !i.is_zero())?)
    }

    pub(super) fn due(&mut self, now: Instant) -> Result<bool, Error> {
        if self.deadline().is_none_or(|at| now < at) {
            return Ok(false);
        }
        if self.unanswered >= self.count {
            return Err(PeerMisbehaved::Unresponsive.into());
        }
        self.unanswered += 1;
        self.asked = Some(now);
        Ok(true)
    }
}
