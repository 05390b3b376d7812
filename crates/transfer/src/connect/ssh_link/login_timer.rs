use std::time::{Duration, Instant};

use crate::config::ConnectTimeout;
use crate::session::{LinkError, PATIENCE, SilenceNotices, StallNotice};

/// Longest time up to the host key unless ConnectTimeout is set, which is how long sshd keeps such a
/// connection (LoginGraceTime).
const HANDSHAKE: Duration = Duration::from_secs(120);
/// [`HANDSHAKE`] of a connection through a ProxyCommand, which may ask the user or open a page in a
/// browser before it connects.
const COMMAND_HANDSHAKE: Duration = Duration::from_secs(600);
/// Longest silence of the server during the login, while it may wait for the user to confirm the
/// login on another device.
const SILENCE: Duration = Duration::from_secs(300);

/// Time limits up to the end of the login.
#[derive(Clone, Copy, Debug)]
pub struct LoginLimits {
    handshake: ConnectTimeout,
    silence: Duration,
}

impl LoginLimits {
    /// Limits of a connection. `connect_timeout` applies up to the host key as in OpenSSH;
    /// `by_command` is true for a ProxyCommand.
    pub fn new(connect_timeout: Option<ConnectTimeout>, by_command: bool) -> Self {
        let usual = match by_command {
            true => COMMAND_HANDSHAKE,
            false => HANDSHAKE,
        };
        Self {
            handshake: connect_timeout.unwrap_or(ConnectTimeout::Default(usual)),
            silence: connect_timeout.map_or(SILENCE, |set| set.time().max(SILENCE)),
        }
    }

    /// Longest time up to the host key.
    pub(in crate::connect) fn handshake(&self) -> ConnectTimeout {
        self.handshake
    }
}

/// Progress of a connection towards the login. A change of any field is a sign of life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LoginProgress {
    /// Number of restarts of the connection.
    restarts: u32,
    /// Bytes received so far.
    received: u64,
    /// True once the host key was accepted.
    is_verified: bool,
}

impl LoginProgress {
    /// Progress of a connection that was restarted `restarts` times and has received `received`
    /// bytes; `is_verified` tells if the host key was accepted.
    pub(super) fn new(restarts: u32, received: u64, is_verified: bool) -> Self {
        Self {
            restarts,
            received,
            is_verified,
        }
    }
}

/// Measures the time of a login against its limits. Prompts do not count: up to the host key there
/// is none but the question about that key, and after that only the silence of the server counts.
#[derive(Debug)]
pub(super) struct LoginTimer {
    limits: LoginLimits,
    /// The port of the server, for messages.
    port: Option<u16>,
    /// Time at which the connection was opened or restarted.
    began: Instant,
    /// Time at which the server was last heard, or the user has answered.
    heard: Instant,
    progress: LoginProgress,
    /// Notices about the silence since then.
    notices: SilenceNotices,
}

impl LoginTimer {
    pub(super) fn new(limits: LoginLimits, now: Instant) -> Self {
        Self {
            limits,
            port: None,
            began: now,
            heard: now,
            progress: LoginProgress::default(),
            notices: SilenceNotices::new(now),
        }
    }

    /// Names the port of the server in messages.
    pub(super) fn at_port(self, port: Option<u16>) -> Self {
        Self { port, ..self }
    }

    /// Returns the time for which the server may still be silent. `now` is a time after all prompts
    /// that followed from what was received.
    ///
    /// # Errors
    /// The time is over; the text says so.
    pub(super) fn left(
        &mut self,
        now: Instant,
        progress: LoginProgress,
    ) -> Result<Duration, LinkError> {
        if progress.restarts != self.progress.restarts {
            self.began = now;
        }
        if progress != self.progress {
            self.progress = progress;
            self.heard = now;
            self.notices = SilenceNotices::new(now);
        }
        let (since, limit) = match progress.is_verified {
            false => (self.began, self.limits.handshake.time()),
            true => (self.heard, self.limits.silence),
        };
        let left = (since + limit).saturating_duration_since(now);
        match left.is_zero() {
            true => Err(LinkError::Lost(self.late(limit))),
            false => Ok(left),
        }
    }

    /// Returns the notice about the silence of the server that is due at `now`. `is_identified` is true
    /// once its identification string has come.
    pub(super) fn notice(&mut self, now: Instant, is_identified: bool) -> Option<StallNotice> {
        let awaited = self.awaited(is_identified);
        self.notices.take(now, PATIENCE, awaited)
    }

    /// Returns what the login waits for. `is_identified` is true once the server's identification
    /// string has come.
    pub(super) fn awaited(&self, is_identified: bool) -> &'static str {
        match (is_identified, self.progress.is_verified) {
            (false, _) => "the server's SSH identification",
            (true, false) => "the key exchange",
            (true, true) => "the answer to the login",
        }
    }

    /// Returns the time until the next notice.
    pub(super) fn until_notice(&self, now: Instant) -> Duration {
        self.notices
            .next_at(PATIENCE)
            .saturating_duration_since(now)
    }

    fn late(&self, limit: Duration) -> String {
        let seconds = limit.as_secs_f32();
        match self.progress.is_verified {
            false => {
                let port = self
                    .port
                    .map_or_else(String::new, |port| format!(" to port {port}"));
                format!(
                    "the connection{port} was opened, but the server did not complete the key \
                     exchange within {seconds} s{}",
                    self.limits.handshake.hint()
                )
            }
            true => format!(
                "the login was given up, because the server has sent nothing for {seconds} s since its \
                 host key was accepted"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn progress(received: u64, is_verified: bool) -> LoginProgress {
        LoginProgress {
            restarts: 0,
            received,
            is_verified,
        }
    }

    /// Bug: without ConnectTimeout a copy waited for ever for a host that accepted the connection and
    /// said nothing.
    #[test]
    fn a_silent_host_is_given_up_by_default_and_sooner_or_later_as_the_user_sets() {
        for (set, by_command, limit) in [
            (None, false, 120),
            (None, true, 600),
            (Some(5 * SECOND), false, 5),
            (Some(5 * SECOND), true, 5),
            (Some(900 * SECOND), false, 900),
        ] {
            let start = Instant::now();
            let limits = LoginLimits::new(set.map(ConnectTimeout::Set), by_command);
            let mut timer = LoginTimer::new(limits, start);
            let silent = LoginProgress::default();
            let left = timer.left(start + SECOND, silent);
            assert_eq!(left, Ok((limit - 1) * SECOND));
            // A host that sends a line from time to time, and never its identification.
            let dripping = progress(9, false);
            assert_eq!(
                timer.left(start + (limit - 1) * SECOND, dripping),
                Ok(SECOND)
            );
            let late = timer.left(start + limit * SECOND, dripping).unwrap_err();
            let late = late.into_words();
            assert!(late.contains("ConnectTimeout"), "{late}");
            assert!(late.contains(&format!("{limit} s")), "{late}");
        }
    }

    /// Bug: a host that accepted the connection and sent no SSH identification was waited for 65 s
    /// without a word.
    #[test]
    fn a_silent_login_is_told_of_after_ten_seconds_and_each_time_that_the_silence_doubles() {
        let start = Instant::now();
        let mut timer = LoginTimer::new(LoginLimits::new(None, false), start);
        let mut told = Vec::new();
        let mut now = start;
        while let Ok(left) = timer.left(now, LoginProgress::default()) {
            told.extend(timer.notice(now, false).map(|notice| notice.line));
            now += left.min(timer.until_notice(now));
        }
        let line = |seconds: u32| {
            format!("nothing received for {seconds} s: waiting for the server's SSH identification")
        };
        assert_eq!(told, [line(10), line(20), line(40), line(80)]);
        // What the server sends begins a new silence.
        let mut timer = LoginTimer::new(LoginLimits::new(None, false), start);
        assert!(timer.left(start + 9 * SECOND, progress(500, true)).is_ok());
        assert_eq!(timer.notice(start + 18 * SECOND, true), None);
        let line = timer
            .notice(start + 19 * SECOND, true)
            .map(|notice| notice.line);
        let expected = "nothing received for 10 s: waiting for the answer to the login";
        assert_eq!(line.as_deref(), Some(expected));
    }

    #[test]
    fn a_prompt_does_not_count_and_the_silence_behind_it_does() {
        let start = Instant::now();
        let limits = LoginLimits::new(Some(ConnectTimeout::Set(5 * SECOND)), false);
        let mut timer = LoginTimer::new(limits, start);
        assert_eq!(timer.left(start, progress(0, false)), Ok(5 * SECOND));
        // The user was asked about the host key for an hour, and then for a password.
        for (hours, received) in [(1, 500), (2, 900)] {
            let now = start + hours * 3600 * SECOND;
            assert_eq!(timer.left(now, progress(received, true)), Ok(SILENCE));
        }
        let now = start + 2 * 3600 * SECOND;
        assert_eq!(
            timer.left(now + SECOND, progress(900, true)),
            Ok(299 * SECOND)
        );
        let late = timer.left(now + SILENCE, progress(900, true)).unwrap_err();
        let late = late.into_words();
        assert!(late.contains("has sent nothing for 300 s"), "{late}");
    }

    #[test]
    fn a_connection_that_starts_over_has_the_whole_time_again() {
        let start = Instant::now();
        let mut timer = LoginTimer::new(LoginLimits::new(None, false), start);
        let again = LoginProgress {
            restarts: 1,
            ..progress(500, false)
        };
        let now = start + 3600 * SECOND;
        assert_eq!(timer.left(now, again), Ok(HANDSHAKE));
        assert!(timer.left(now + HANDSHAKE, again).is_err());
    }
}
