use std::time::{Duration, Instant};

use crate::session::{PATIENCE, SilenceNotices};

/// Longest silence of a checksum command with an open request.
const SILENT: Duration = Duration::from_secs(20);
/// Minimum rate in bytes per second of a checksum command. Reading the file back is as fast as a
/// slower one.
const SLOWEST: u64 = 4 << 20;

/// Detects a checksum command that has stopped answering.
#[derive(Debug, Default)]
pub(super) struct ChecksumWatchdog {
    until: Option<Instant>,
    /// Notices that the command is waited for.
    notices: Option<SilenceNotices>,
}

impl ChecksumWatchdog {
    /// Notes a request for a checksum of `len` bytes. `starts` means that the command can start on
    /// it at once.
    pub(super) fn asked(&mut self, now: Instant, len: u64, starts: bool) {
        if starts {
            self.answered(now, Some(len));
        }
    }

    /// Notes an answer; the next open request is for `next` bytes.
    pub(super) fn answered(&mut self, now: Instant, next: Option<u64>) {
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
}
