use std::time::{Duration, Instant};

use crate::session::{PATIENCE, SilenceNotices};

/// Longest silence of a checksum command with an open request.
const SILENT: Duration = Duration::from_secs(20);
/// Minimum rate in bytes per second of a checksum command. Reading the file back is as fast as a
/// slower one.
const SLOWEST: u64 = 4 << 20;

/// Largest number of restarts of checksum commands without a new checksum between them. A command
/// that takes its connection down does so each time.
const RESTARTS: u32 = 3;

/// Counts restarts of checksum commands after lost connections.
#[derive(Debug, Default)]
pub(super) struct ChecksumRestarts {
    /// Number of restarts so far. Commands of one generation run side by side.
    generation: u32,
    /// Number of losses since the last checksum arrived.
    losses: u32,
}

impl ChecksumRestarts {
    /// Generation of a command that starts now.
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Notes that a busy command of this generation has lost its connection. A generation counts
    /// once. Returns the number of losses if no command may be started again.
    pub(super) fn lost(&mut self, generation: u32) -> Option<u32> {
        if generation == self.generation {
            self.generation += 1;
            self.losses += 1;
        }
        (self.losses > RESTARTS).then_some(self.losses)
    }

    /// Notes that a checksum has arrived.
    pub(super) fn note_result(&mut self) {
        self.losses = 0;
    }
}

/// Detects a checksum command that has stopped answering. Its time counts from its start: a command
/// that waits for a connection is not at fault.
#[derive(Debug, Default)]
pub(super) struct ChecksumWatchdog {
    has_started: bool,
    /// Size in bytes of the request that the command works on next.
    next: Option<u64>,
    until: Option<Instant>,
    /// Notices that the command is waited for.
    notices: Option<SilenceNotices>,
}

impl ChecksumWatchdog {
    /// Notes that the command runs.
    pub(super) fn started(&mut self, now: Instant) {
        self.has_started = true;
        self.answered(now, self.next);
    }

    /// Notes a request for a checksum of `len` bytes. `starts` means that the command can start on
    /// it at once.
    pub(super) fn asked(&mut self, now: Instant, len: u64, starts: bool) {
        if starts {
            self.answered(now, Some(len));
        }
    }

    /// Notes an answer; the next open request is for `next` bytes.
    pub(super) fn answered(&mut self, now: Instant, next: Option<u64>) {
        self.next = next;
        let next = next.filter(|_| self.has_started);
        let most = |len: u64| SILENT + Duration::from_secs(len / SLOWEST);
        self.until = next.map(|len| now + most(len));
        self.notices = next.map(|_| SilenceNotices::new(now));
    }

    /// Time by which the command must answer, or of the next notice.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let notice = self.notices.as_ref().map(|n| n.next_at(PATIENCE));
        self.until.into_iter().chain(notice).min()
    }

    /// Returns the notice that is due at `now`: nothing was received from `program`.
    pub(super) fn take_notice(&mut self, now: Instant, program: &str) -> Option<String> {
        let notice = self.notices.as_mut()?.take(now, PATIENCE, program)?;
        Some(notice.line)
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now >= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: 20 s without a word passed before a checksum program that had stopped answering was
    /// given up.
    #[test]
    fn a_silent_checksum_program_was_waited_for_without_a_word() {
        let start = testkit::sftp_model::epoch();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut watch = ChecksumWatchdog::default();
        watch.started(at(0));
        assert_eq!(watch.poll_timeout(), None);
        watch.asked(at(0), 40 << 20, true);
        assert_eq!(watch.poll_timeout(), Some(at(10)));
        assert_eq!(watch.take_notice(at(9), "openssl"), None);
        let told = "nothing received for 10 s: waiting for openssl".to_owned();
        assert_eq!(watch.take_notice(at(10), "openssl"), Some(told));
        assert_eq!(watch.take_notice(at(10), "openssl"), None);
        assert_eq!(watch.poll_timeout(), Some(at(20)));
        assert!(watch.take_notice(at(20), "openssl").is_some());
        assert_eq!(watch.poll_timeout(), Some(at(30)), "the end");
        assert!(watch.is_over(at(30)));
        watch.answered(at(25), None);
        assert_eq!(watch.poll_timeout(), None);
    }

    /// Bug: a checksum program that waited for a lost connection to be made again was given up
    /// after 20 s.
    #[test]
    fn time_without_a_connection_counted_as_silence_of_the_program() {
        let start = testkit::sftp_model::epoch();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut watch = ChecksumWatchdog::default();
        watch.asked(at(0), 40 << 20, true);
        assert_eq!(watch.poll_timeout(), None);
        assert!(!watch.is_over(at(100)));
        assert_eq!(watch.take_notice(at(100), "openssl"), None);
        watch.started(at(100));
        assert_eq!(watch.poll_timeout(), Some(at(110)));
        assert!(!watch.is_over(at(129)));
        assert!(watch.is_over(at(130)));
    }

    #[test]
    fn commands_side_by_side_count_as_one_restart() {
        let mut restarts = ChecksumRestarts::default();
        for _ in 0..2 {
            for _ in 0..3 {
                let generation = restarts.generation();
                assert_eq!(restarts.lost(generation), None);
                assert_eq!(restarts.lost(generation), None, "on the same connection");
            }
            restarts.note_result();
        }
        for _ in 0..3 {
            assert_eq!(restarts.lost(restarts.generation()), None);
        }
        assert_eq!(restarts.lost(restarts.generation()), Some(4));
    }

    /// A program is given up once it has been silent for its time, which grows with the size of the
    /// request, and never while it has nothing to do.
    #[test]
    fn a_program_has_time_by_the_size_of_its_request() {
        let start = testkit::sftp_model::epoch();
        for len in [
            0,
            1,
            SLOWEST - 1,
            SLOWEST,
            100 * SLOWEST,
            u64::MAX / SLOWEST,
        ] {
            let mut watch = ChecksumWatchdog::default();
            watch.started(start);
            assert!(!watch.is_over(start + 1000 * SILENT), "nothing was asked");
            watch.asked(start, len, true);
            // Requests behind it do not extend its time.
            watch.asked(start + SILENT / 2, 1 << 40, false);
            let most = SILENT + Duration::from_secs(len / SLOWEST);
            assert!(
                !watch.is_over(start + most - Duration::from_millis(1)),
                "{len}"
            );
            assert!(watch.is_over(start + most), "{len}");
            watch.answered(start + most, None);
            assert!(!watch.is_over(start + 1000 * most), "all was answered");
        }
    }
}
