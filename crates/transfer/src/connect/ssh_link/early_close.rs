//! Connects again where the server closes a connection before the key exchange is complete.
//!
//! sshd drops connections by chance while too many others are logging in (MaxStartups), at once and
//! before it reads anything. A copy of a script that began in such a moment would fail, though the
//! server accepts it a second later.

use std::time::Duration;

use crate::session::LinkError;

/// Pauses before each further attempt, at most: 9.5 s together. LoginGraceTime, after which sshd
/// frees a place in any case, is two minutes; a login takes less than a second.
const PAUSES_MS: [u16; 5] = [500, 1000, 2000, 3000, 3000];
/// Time after which no further attempt begins.
pub(super) const LONGEST: Duration = Duration::from_secs(10);
/// Part of a pause by which it may be shorter, so that many clients do not connect at once.
const JITTER: f64 = 0.25;
/// Text that OpenSSH sends before it closes because of MaxStartups. Other texts give reasons that
/// last, such as `Not allowed at this time` for a penalty of 15 s and more.
const MAX_STARTUPS: &str = "MaxStartups";
/// The reason code SSH_DISCONNECT_TOO_MANY_CONNECTIONS (RFC 4253 section 11.1).
const TOO_MANY_CONNECTIONS: u32 = 12;

/// Counts the attempts of a first connection that the server closes before the key exchange is
/// complete.
#[derive(Debug, Default)]
pub(super) struct EarlyCloseRetries {
    cause: EarlyCloseCause,
    tries: usize,
}

/// Cause of the end of the last attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EarlyCloseCause {
    /// Another attempt would fail too, or the connection has not ended.
    #[default]
    Lasting,
    /// Too many connections at this moment, as far as the server shows it.
    Passing,
}

impl EarlyCloseRetries {
    /// Notes that the server closed the connection before the key exchange was complete, with this
    /// text in place of its identification.
    pub(super) fn note_closed(&mut self, said: Option<&str>) {
        if said.is_none_or(|said| said.contains(MAX_STARTUPS)) {
            self.cause = EarlyCloseCause::Passing;
        }
    }

    /// Notes a DISCONNECT with this reason code before the key exchange was complete.
    pub(super) fn note_disconnect(&mut self, reason: u32) {
        if reason == TOO_MANY_CONNECTIONS {
            self.cause = EarlyCloseCause::Passing;
        }
    }

    /// Returns the pause before the next attempt; `None` if there is none. `random` is any byte.
    pub(super) fn next(&mut self, random: u8) -> Option<Duration> {
        if std::mem::take(&mut self.cause) == EarlyCloseCause::Lasting {
            return None;
        }
        let longest = Duration::from_millis(u64::from(*PAUSES_MS.get(self.tries)?));
        self.tries += 1;
        Some(longest.mul_f64(1.0 - JITTER * f64::from(random) / 255.0))
    }

    /// True for the first attempt after a pause.
    pub(super) fn is_first(&self) -> bool {
        self.tries == 1
    }

    /// Adds the number of attempts to the reason of the last one's failure, if there were several.
    pub(super) fn describe(&self, error: LinkError) -> LinkError {
        match error {
            LinkError::Lost(why) if self.tries > 0 => {
                LinkError::Lost(format!("{why} (tried {} times)", self.tries + 1))
            }
            error => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_end_within_ten_seconds() {
        let mut retries = EarlyCloseRetries::default();
        let mut all = Duration::ZERO;
        loop {
            retries.note_closed(None);
            let Some(pause) = retries.next(0) else { break };
            all += pause;
        }
        assert!(
            all > Duration::from_secs(5) && all < Duration::from_secs(10),
            "{all:?}"
        );
        let failed = retries.describe(LinkError::Lost("closed".to_owned()));
        assert_eq!(failed.into_words(), "closed (tried 6 times)");
    }

    #[test]
    fn only_a_cause_that_may_pass_is_tried_again() {
        let tried = |note: &dyn Fn(&mut EarlyCloseRetries)| {
            let mut retries = EarlyCloseRetries::default();
            note(&mut retries);
            retries.next(255).is_some()
        };
        assert!(tried(&|r| r.note_closed(None)));
        assert!(tried(&|r| r.note_closed(Some("Exceeded MaxStartups"))));
        assert!(tried(&|r| r.note_disconnect(TOO_MANY_CONNECTIONS)));
        assert!(!tried(&|r| r.note_closed(Some("Not allowed at this time"))));
        assert!(!tried(&|r| r.note_disconnect(2)));
        assert!(!tried(&|_| {}));
        // A pause is spent once.
        let mut retries = EarlyCloseRetries::default();
        retries.note_closed(None);
        assert!(retries.next(0).is_some());
        assert_eq!(retries.next(0), None);
    }
}
