//! Connects again when the last connection is lost or all connections are silent, and continues the
//! copy.

use std::time::{Duration, Instant};

use schedule::ConnectionId;

use super::driver::SessionLoop;
use super::{Command, Link, LinkError, NoMoreConnections, SessionEvent};

/// Silence while answers are due after which the path may be down. TCP doubles its retransmission
/// timeout each time and would find a restored path up to a minute late.
pub(super) const DARK: Duration = Duration::from_secs(12);
/// First and longest wait between attempts.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(5);
/// Time without a connection after which the session is given up.
const GIVEN_UP: Duration = Duration::from_secs(120);
/// Bytes moved below which a lost session is not resumed, since starting over costs little.
const WORTH: u64 = 4 << 20;
/// Consecutive refused logins before giving up; a single one may be a cut connection.
const REFUSED: u32 = 3;
/// Rate limit in bytes per second below which silence is not taken as an outage, because a request
/// may take longer than `DARK` to send.
const LIMIT: u64 = 256_000;
/// Consecutive lost connections with less than 1 MiB moved on them before giving up.
const FRUITLESS: u32 = 4;

/// State of connecting again.
#[derive(Debug, Default)]
pub(super) struct Reconnecting {
    /// Time and reason of the loss, while there is no connection.
    lost: Option<(Instant, String)>,
    /// Number of attempts since the loss.
    tries: u32,
    /// Time of the next attempt.
    at: Option<Instant>,
    /// An attempt is in progress.
    trying: bool,
    /// Start time of the last attempt.
    tried: Option<Instant>,
    /// Bytes moved when the last connection was lost, and the number of consecutive losses since
    /// which little moved.
    moved: u64,
    fruitless: u32,
}

/// Wait before attempt number `tries`, counted from 0. Doubles each time up to `LONGEST`, minus a
/// random part of up to a half (`jitter`), so that many clients of a server do not connect at once.
fn backoff(tries: u32, jitter: u8) -> Duration {
    let most = FIRST.saturating_mul(1 << tries.min(16)).min(LONGEST);
    most - most.mul_f64(f64::from(jitter) / 512.0)
}

fn jitter() -> u8 {
    let mut byte = [0];
    // Without randomness only the spreading of clients is lost.
    let _ = aws_lc_rs::rand::fill(&mut byte);
    byte[0]
}

impl SessionLoop {
    /// Handles the loss of the last connection: connects again if that can help, otherwise ends the
    /// session.
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
        // A shortened source file is a problem of that file, even if little was moved before.
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
        // Cut the old connections, so that the kernel does not deliver their unsent data when the
        // path recovers.
        for on in std::mem::take(&mut self.connections) {
            on.link.cut();
        }
        self.recover(now);
        // The measurements describe the lost connections.
        self.growing.start_anew();
        self.reconnecting.lost = Some((now, why));
        self.reconnecting.tries = 0;
        self.reconnecting.at = Some(now + backoff(0, jitter()));
    }

    /// Time at which reconnecting needs attention.
    pub(super) fn next_reconnect(&self) -> Option<Instant> {
        let dark = self.is_awaiting().then(|| self.heard + DARK);
        let next = self.reconnecting.at.or(dark);
        next.filter(|_| !self.reconnecting.trying)
    }

    /// True if answers are due and another connection may deliver them.
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
            // After the end of the session the send fails and the link is dropped.
            let _ = orders.send(Command::Rejoined(reach.again()));
            bell.ring();
        });
        if let Err(e) = spawned {
            self.rejoined(now, Err(NoMoreConnections::Connection(e.to_string())));
        }
    }

    /// Handles the result of an attempt.
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
                // An attempt on a dead path takes as long as the wait, so the next one follows at
                // once.
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

    /// Ends the session if there is no connection when the run ends; nothing is cleaned up at the
    /// far end.
    pub(super) fn stop_waiting(&mut self, reason: &str) {
        if self.reconnecting.lost.is_some() {
            self.lose(reason.to_owned());
        }
    }

    /// Notes that data came from the other side.
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
