//! Connects again where the server closes a connection before the key exchange is complete.
//!
//! sshd drops connections by chance while too many others are logging in (MaxStartups), at once and
//! before it reads anything. A copy of a script that began in such a moment would fail, though the
//! server accepts it a second later.

use std::time::{Duration, Instant};

use crate::connect::error::{ConnectError, ResponsibleParty};
use crate::session::LinkError;

/// Pauses before each further attempt, at most: 9.5 s together. LoginGraceTime, after which sshd
/// frees a place in any case, is two minutes; a login takes less than a second.
const PAUSES_MS: [u16; 5] = [500, 1000, 2000, 3000, 3000];
/// Time after which no further attempt begins.
const LONGEST: Duration = Duration::from_secs(10);
/// Part of a pause by which it may be shorter, so that many clients do not connect at once.
const JITTER: f64 = 0.25;
/// Text that OpenSSH sends before it closes because of MaxStartups. Other texts give reasons that
/// last, such as `Not allowed at this time` for a penalty of 15 s and more.
const MAX_STARTUPS: &str = "MaxStartups";
/// The reason code SSH_DISCONNECT_TOO_MANY_CONNECTIONS (RFC 4253 section 11.1).
const TOO_MANY_CONNECTIONS: u32 = 12;

/// Advice about a server that closes each connection before it has sent its SSH version.
const NO_VERSION: &str = "there may be too many logins at once (MaxStartups), or a firewall refuses \
    this machine: try again later, check the port, or see the server's log";

/// Counts the attempts of a first connection that the server closes before the key exchange is
/// complete.
#[derive(Debug)]
pub(super) struct EarlyCloseRetries {
    cause: EarlyCloseCause,
    tries: usize,
    /// Begin of the first attempt.
    began: Instant,
    /// Advice for the case that the last attempt was the last one.
    advice: Option<&'static str>,
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
    pub(super) fn new(now: Instant) -> Self {
        Self {
            cause: EarlyCloseCause::Lasting,
            tries: 0,
            began: now,
            advice: None,
        }
    }

    /// Notes that the server closed the connection before the key exchange was complete, for the
    /// reason `why`: with `said` in place of its identification, or after its identification if
    /// `is_identified`. Returns the reason for the user.
    pub(super) fn note_closed(
        &mut self,
        why: &str,
        said: Option<&str>,
        is_identified: bool,
    ) -> String {
        match said {
            Some(said) if said.contains(MAX_STARTUPS) => {
                self.cause = EarlyCloseCause::Passing;
                self.advice = Some("try again later, or raise MaxStartups in its sshd_config");
                format!("too many logins at once at the server ({MAX_STARTUPS})")
            }
            Some(said) => format!("{why}; its last message: {said}"),
            None if is_identified => {
                self.cause = EarlyCloseCause::Passing;
                self.advice = Some(
                    "there may be too many logins at once (MaxStartups), or a firewall refuses this \
                     machine: try again later, or see the server's log",
                );
                format!("{why} before the key exchange")
            }
            None => {
                self.cause = EarlyCloseCause::Passing;
                self.advice = Some(NO_VERSION);
                format!("{why} before the server sent its SSH version")
            }
        }
    }

    /// Notes a DISCONNECT with this reason code before the key exchange was complete.
    pub(super) fn note_disconnect(&mut self, reason: u32) {
        if reason == TOO_MANY_CONNECTIONS {
            self.cause = EarlyCloseCause::Passing;
        }
    }

    /// Notes that an attempt did not reach the server, which may be due to the cause of an earlier
    /// attempt's end, or that the server reset the TCP connection as soon as it had accepted it.
    pub(super) fn note_unreached(&mut self, error: &ConnectError) {
        if error.fault() == ResponsibleParty::Path {
            self.cause = EarlyCloseCause::Passing;
        }
        self.advice = error.is_reset().then_some(NO_VERSION);
    }

    /// Returns the pause before the next attempt; `None` if there is none. `random` is any byte.
    pub(super) fn next(&mut self, now: Instant, random: u8) -> Option<Duration> {
        let is_lasting = std::mem::take(&mut self.cause) == EarlyCloseCause::Lasting;
        if is_lasting || now.saturating_duration_since(self.began) >= LONGEST {
            return None;
        }
        let longest = Duration::from_millis(u64::from(*PAUSES_MS.get(self.tries)?));
        self.tries += 1;
        self.advice = None;
        Some(longest.mul_f64(1.0 - JITTER * f64::from(random) / 255.0))
    }

    /// True for the first attempt after a pause.
    pub(super) fn is_first(&self) -> bool {
        self.tries == 1
    }

    /// Adds the number of attempts and advice to the reason of the last one's failure.
    pub(super) fn describe(&self, now: Instant, why: &str) -> String {
        let mut text = why.to_owned();
        if self.tries > 0 {
            let seconds = now.saturating_duration_since(self.began).as_secs_f64();
            let tries = format!("{} tries in {seconds:.0} s)", self.tries + 1);
            text = match text.strip_suffix(')') {
                Some(text) => format!("{text}, {tries}"),
                None => format!("{text} ({tries}"),
            };
        }
        match self.advice {
            Some(advice) => format!("{text}: {advice}"),
            None => text,
        }
    }

    /// Describes the loss of a connection as [`Self::describe`] does.
    pub(super) fn describe_loss(&self, now: Instant, error: LinkError) -> LinkError {
        match error {
            LinkError::Lost(why) => LinkError::Lost(self.describe(now, &why)),
            error => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHY: &str = "the server closed the connection";

    #[test]
    fn pauses_end_within_ten_seconds() {
        let began = Instant::now();
        let mut retries = EarlyCloseRetries::new(began);
        let mut now = began;
        let mut why;
        loop {
            why = retries.note_closed(WHY, Some("Exceeded MaxStartups"), false);
            let Some(pause) = retries.next(now, 0) else {
                break;
            };
            now += pause;
        }
        let all = now - began;
        assert!(
            all > Duration::from_secs(5) && all < Duration::from_secs(10),
            "{all:?}"
        );
        let failed = retries.describe_loss(began + Duration::from_secs(9), LinkError::Lost(why));
        assert_eq!(
            failed.into_words(),
            "too many logins at once at the server (MaxStartups, 6 tries in 9 s): try again later, or \
             raise MaxStartups in its sshd_config"
        );
    }

    #[test]
    fn only_a_cause_that_may_pass_is_tried_again() {
        let tried = |note: &dyn Fn(&mut EarlyCloseRetries)| {
            let now = Instant::now();
            let mut retries = EarlyCloseRetries::new(now);
            note(&mut retries);
            retries.next(now, 255).is_some()
        };
        let closed = |said| {
            move |retries: &mut EarlyCloseRetries| {
                retries.note_closed(WHY, said, false);
            }
        };
        assert!(tried(&closed(None)));
        assert!(tried(&closed(Some("Exceeded MaxStartups"))));
        assert!(tried(&|r| r.note_disconnect(TOO_MANY_CONNECTIONS)));
        let unreached = ConnectError::unreachable("no route to host");
        assert!(tried(&|r| r.note_unreached(&unreached)));
        let lasting = ConnectError::configuration("no such address here");
        assert!(!tried(&|r| r.note_unreached(&lasting)));
        assert!(!tried(&closed(Some("Not allowed at this time"))));
        assert!(!tried(&|r| r.note_disconnect(2)));
        assert!(!tried(&|_| {}));
        // A pause is spent once.
        let now = Instant::now();
        let mut retries = EarlyCloseRetries::new(now);
        retries.note_closed(WHY, None, false);
        assert!(retries.next(now, 0).is_some());
        assert_eq!(retries.next(now, 0), None);
        retries.note_closed(WHY, None, false);
        assert_eq!(retries.next(now + LONGEST, 0), None);
    }

    /// Bug: "the connection broke: connection reset by peer before the server sent an SSH version:
    /// check the port, and the server's log (MaxStartups or a firewall may refuse this machine) (tried
    /// 6 times)".
    #[test]
    fn the_number_of_attempts_stands_before_the_advice() {
        let now = Instant::now();
        let mut retries = EarlyCloseRetries::new(now);
        retries.note_closed(WHY, None, false);
        assert!(retries.next(now, 0).is_some());
        let why = retries.note_closed(WHY, None, true);
        let said = retries.describe(now + Duration::from_millis(1400), &why);
        let begin = "the server closed the connection before the key exchange (2 tries in 1 s): there \
                     may be too many logins at once (MaxStartups), ";
        assert!(said.starts_with(begin), "{said}");
        // The advice of an earlier attempt is not that of a later one.
        retries.note_closed(WHY, None, true);
        assert!(retries.next(now, 0).is_some());
        let said = retries.describe(now, "cannot connect");
        assert_eq!(said, "cannot connect (3 tries in 0 s)");
    }
}
