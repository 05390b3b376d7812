//! Opens a channel again that the server refused because a closed one still takes its place.
//!
//! OpenSSH's sshd counts a session against MaxSessions until its child was waited for and the
//! channel is collected, which is after it has sent CLOSE. An OPEN right behind the client's own
//! CLOSE, or before the child has ended, is refused although the limit permits it, and no message
//! announces when it would not be.

use std::time::{Duration, Instant};

/// Pause before the first attempt to open the channel again; it doubles with each one.
const FIRST: Duration = Duration::from_millis(20);
/// Longest pause.
const LONGEST: Duration = Duration::from_millis(500);
/// Time after the end of a channel in which a refusal may be due to it.
const LINGERS: Duration = Duration::from_secs(5);

/// Decides whether and when a refused channel is opened again.
#[derive(Debug, Default)]
pub(super) struct ChannelReopening {
    /// Time when the latest channel ended.
    ended: Option<Instant>,
    pause: Option<Duration>,
    /// Time of the next attempt.
    due: Option<Instant>,
}

impl ChannelReopening {
    /// Notes that a channel was closed by either end.
    pub(super) fn channel_ended(&mut self, now: Instant) {
        *self = Self {
            ended: Some(now),
            ..Self::default()
        };
    }

    /// Handles the refusal of the only channel. Returns true if it will be opened again, and false
    /// if the refusal is final.
    pub(super) fn refused(&mut self, now: Instant) -> bool {
        let lingers = |ended: Instant| now.saturating_duration_since(ended) < LINGERS;
        if !self.ended.is_some_and(lingers) {
            *self = Self::default();
            return false;
        }
        let pause = self.pause.map_or(FIRST, |last| (2 * last).min(LONGEST));
        self.pause = Some(pause);
        self.due = Some(now + pause);
        true
    }

    /// True until the next attempt is due.
    pub(super) fn waits(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| now < due)
    }

    /// Time of the next attempt, if it is in the future.
    pub(super) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        self.due.filter(|due| now < *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_final_unless_a_channel_has_ended_shortly_before() {
        let now = Instant::now();
        let mut reopening = ChannelReopening::default();
        assert!(!reopening.refused(now));
        reopening.channel_ended(now);
        assert!(!reopening.waits(now));
        assert!(!reopening.refused(now + LINGERS));
        assert!(!reopening.refused(now), "it is final");
    }

    #[test]
    fn the_channel_is_opened_again_with_growing_pauses() {
        let began = Instant::now();
        let mut reopening = ChannelReopening::default();
        reopening.channel_ended(began);
        let (mut now, mut times) = (began, 0);
        while reopening.refused(now) {
            assert!(reopening.waits(now));
            let due = reopening.poll_timeout(now).unwrap();
            assert!((FIRST..=LONGEST).contains(&(due - now)));
            assert!(!reopening.waits(due));
            assert_eq!(reopening.poll_timeout(due), None);
            (now, times) = (due, times + 1);
        }
        assert!((LINGERS..LINGERS + LONGEST).contains(&(now - began)));
        assert!((8..20).contains(&times), "{times}");
    }
}
