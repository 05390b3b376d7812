//! The last connection is lost, or nothing is heard on any: connects again, and goes on.

use std::time::{Duration, Instant};

use schedule::ConnectionId;

use super::driver::Driver;
use super::{Command, Link, LinkError, NoMoreConnections, SessionEvent};

/// Nothing heard for so long while answers are awaited: the path may be dark. A TCP that waits for
/// an acknowledgement looks again after twice as long as before, a minute too late in the end.
const DARK: Duration = Duration::from_secs(12);
/// The first wait before another try, and the longest.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(5);
/// How long without any connection before the session is given up.
const GIVEN_UP: Duration = Duration::from_secs(120);
/// A session that has moved less is begun again by whoever wants it.
const WORTH: u64 = 4 << 20;
/// Logins refused one after the other: one may only have been cut off.
const REFUSED: u32 = 3;
/// Under a lower limit a request may take longer than that to leave.
const LIMIT: u64 = 256_000;
/// Connections lost one after the other with next to nothing moved on them.
const FRUITLESS: u32 = 4;

/// How it stands with connecting again.
#[derive(Debug, Default)]
pub(super) struct Reconnecting {
    /// Since when there is no connection, and why.
    lost: Option<(Instant, String)>,
    /// Tries since then.
    tries: u32,
    /// When to try next.
    at: Option<Instant>,
    /// A try is under way.
    trying: bool,
    /// When the last one began.
    tried: Option<Instant>,
    /// What had been moved when the last connection was lost, and how often nothing more was.
    moved: u64,
    fruitless: u32,
}

/// How long to wait before try number `tries`, from 0 on: twice as long each time, less up to a
/// half of it as `jitter` says, so that many clients of a server do not come at once.
fn backoff(tries: u32, jitter: u8) -> Duration {
    let most = FIRST.saturating_mul(1 << tries.min(16)).min(LONGEST);
    most - most.mul_f64(f64::from(jitter) / 512.0)
}

fn jitter() -> u8 {
    let mut byte = [0];
    // Without randomness nobody else is kept apart from us, and that is all.
    let _ = aws_lc_rs::rand::fill(&mut byte);
    byte[0]
}

impl Driver {
    /// The last connection is gone: connects again where that may help.
    pub(super) fn last_connection_lost(&mut self, now: Instant, error: LinkError) {
        let torn = matches!(error, LinkError::Torn(_));
        let why = error.into_words();
        let ids: Vec<ConnectionId> = self.connections.iter().map(|on| on.id).collect();
        for id in &ids {
            self.asked_lost(*id);
        }
        let moved = self.spread.stats().moved;
        let reach = self.options.reach.as_ref();
        let open = reach.is_some_and(|r| r.is_open() || r.asks());
        let own_choice = !torn && self.connections.iter().any(|on| on.link.has_own_choice());
        if let Some(reach) = reach.filter(|_| own_choice) {
            reach.choose_nothing(moved < WORTH);
        }
        // A file that became shorter is a warning about that file, however little was moved before.
        let worth = (moved >= WORTH || torn || own_choice)
            && self.ends.server.get().is_some()
            && !self.leaving;
        let fruitless = match moved.saturating_sub(self.reconnecting.moved) < (1 << 20) {
            true => self.reconnecting.fruitless + 1,
            false => 0,
        };
        if !open || !worth || self.spread.is_idle() || fruitless > FRUITLESS {
            return self.lose(why);
        }
        self.straight_lost();
        self.reconnecting.moved = moved;
        self.reconnecting.fruitless = fruitless;
        let text = format!("the connection was lost ({why}); connecting again");
        self.telling.tell(SessionEvent::Says(text));
        for id in ids {
            self.cut_lanes(now, id);
        }
        while !self.lanes.is_empty() {
            self.lane_gone(now, 0, schedule::LaneError::Closed(why.clone()));
        }
        // A kernel that went on sending would have it written when the path is light again.
        for on in std::mem::take(&mut self.connections) {
            on.link.cut();
        }
        self.recover(now);
        // What was found out holds for those connections.
        self.growing.start_anew();
        self.reconnecting.lost = Some((now, why));
        self.reconnecting.tries = 0;
        self.reconnecting.at = Some(now + backoff(0, jitter()));
    }

    /// When something is to be done about it.
    pub(super) fn next_reconnect(&self) -> Option<Instant> {
        let dark = self.is_awaiting().then(|| self.heard + DARK);
        let next = self.reconnecting.at.or(dark);
        next.filter(|_| !self.reconnecting.trying)
    }

    /// Answers are awaited, and another connection may bring them.
    fn is_awaiting(&self) -> bool {
        let reach = self.options.reach.as_ref().is_some_and(|r| r.is_open());
        let in_flight = |on: &super::lanes::LaneOnChannel| on.lane.stats().bytes_in_flight > 0;
        reach
            && self.options.limit.is_none_or(|limit| limit >= LIMIT)
            && self.spread.stats().moved >= WORTH
            && self.lanes.iter().any(in_flight)
    }

    pub(super) fn reconnect(&mut self, now: Instant) {
        if self.next_reconnect().is_none_or(|at| at > now) {
            return;
        }
        let Some(reach) = self.options.reach.clone() else {
            return;
        };
        if self.reconnecting.lost.is_none() && self.reconnecting.tries == 0 {
            let text = format!(
                "nothing was heard for {} s; connecting again",
                DARK.as_secs()
            );
            self.telling.tell(SessionEvent::Says(text));
        }
        self.reconnecting.at = None;
        self.reconnecting.trying = true;
        self.reconnecting.tried = Some(now);
        let (orders, bell) = (self.ends.orders.clone(), self.ends.bell.clone());
        let thread = std::thread::Builder::new().name("connect".to_owned());
        let spawned = thread.spawn(move || {
            // Nobody waits for it any more when the session has ended; the link is dropped then.
            let _ = orders.send(Command::Rejoined(reach.again()));
            bell.ring();
        });
        if let Err(e) = spawned {
            self.rejoined(now, Err(NoMoreConnections::Connection(e.to_string())));
        }
    }

    /// A try has ended.
    pub(super) fn rejoined(
        &mut self,
        now: Instant,
        link: Result<Box<dyn Link>, NoMoreConnections>,
    ) {
        self.reconnecting.trying = false;
        self.reconnecting.tries += 1;
        let adopted = link.and_then(|link| {
            self.adopt(link)
                .map_err(|e| NoMoreConnections::Connection(e.to_string()))
        });
        match adopted {
            Ok(id) => {
                self.spread.forgive();
                self.restarts = 0;
                self.heard = now;
                let was_lost = self.reconnecting.lost.take().is_some();
                self.reconnecting.tries = 0;
                if self.open_lane(now, id, self.predict, false).is_none() {
                    let why = "the new connection carries no SFTP channel".to_owned();
                    return self.connection_lost(now, id, LinkError::Lost(why));
                }
                let text = match was_lost {
                    true => "connected again",
                    false => "going on over a new connection",
                };
                self.telling.tell(SessionEvent::Rejoined);
                self.telling.tell(SessionEvent::Says(text.to_owned()));
                if !was_lost {
                    self.note_joined(now, Ok(id));
                }
                self.turns.stir();
            }
            Err(why) => {
                tracing::debug!("no connection: {why}");
                let tries = self.reconnecting.tries;
                // A try into the dark takes as long as the wait: the next follows at once then.
                let since = self.reconnecting.tried.unwrap_or(now);
                self.reconnecting.at = Some(now.max(since + backoff(tries, jitter())));
                if let Some((since, first)) = &self.reconnecting.lost
                    && (now.saturating_duration_since(*since) > GIVEN_UP
                        || (matches!(why, NoMoreConnections::Login(_)) && tries >= REFUSED))
                {
                    let text = format!("{first}; connecting again failed: {why}");
                    self.lose(text);
                } else if self.reconnecting.lost.is_none() && !self.is_awaiting() {
                    self.reconnecting.at = None;
                }
            }
        }
    }

    /// The run ends while there is no connection: nothing is cleaned up.
    pub(super) fn stop_waiting(&mut self, reason: &str) {
        if self.reconnecting.lost.is_some() {
            self.lose(reason.to_owned());
        }
    }

    /// Something came from the other side.
    pub(super) fn note_heard(&mut self, now: Instant) {
        let lasted = now.saturating_duration_since(self.heard);
        let awaited = |on: &super::lanes::LaneOnChannel| on.lane.stats().bytes_in_flight > 0;
        if lasted > Duration::from_millis(10) && self.lanes.iter().any(awaited) {
            self.growing.note_silence(lasted);
        }
        self.heard = now;
        if self.reconnecting.lost.is_none() {
            self.reconnecting.at = None;
            self.reconnecting.tries = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_differ() {
        assert_eq!(backoff(0, 0), FIRST);
        assert_eq!(backoff(3, 0), FIRST * 8);
        assert_eq!(backoff(40, 0), LONGEST);
        assert!(backoff(3, 255) > FIRST * 4 && backoff(3, 255) < backoff(3, 0));
    }
}
