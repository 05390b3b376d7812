use std::time::{Duration, Instant};

/// Longest silence of a checksum command with an open request.
const SILENT: Duration = Duration::from_secs(20);
/// Minimum rate in bytes per second of a checksum command. Reading the file back is as fast as a
/// slower one.
const SLOWEST: u64 = 4 << 20;

/// Detects a checksum command that has stopped answering.
#[derive(Debug, Default)]
pub(super) struct ChecksumWatchdog {
    until: Option<Instant>,
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
    }

    /// Time by which the command must answer.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now >= until)
    }
}
