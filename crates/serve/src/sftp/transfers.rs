//! Log lines about transferred files.

use std::collections::VecDeque;

use tracing::info;

use crate::sftp::answer::Session;
use wire::escape::field;

/// Logs a line about a file: always if at least `log_files` bytes were moved, otherwise with -v.
/// Logging each of many small files would cost more than transferring them.
macro_rules! tell_transfer {
    ($session:expr, $path:expr, $sent:expr, $received:expr, $what:literal) => {{
        let (sent, received): (u64, u64) = ($sent, $received);
        let path = wire::escape::field($path);
        if sent.saturating_add(received) >= $session.export.log_files {
            tracing::info!(%path, sent, received, $what);
        } else {
            tracing::debug!(%path, sent, received, $what);
        }
    }};
}
pub(crate) use tell_transfer;

/// Most names that are remembered for a rename; clients that rename a file usually do so at once.
const REMEMBERED: usize = 64;

/// Names of uploaded files that have a log line, the latest last.
#[derive(Debug, Default)]
pub(crate) struct LoggedNames(VecDeque<Vec<u8>>);

impl LoggedNames {
    fn add(&mut self, path: Vec<u8>) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        if !self.0.contains(&path) {
            self.0.push_back(path);
        }
    }

    /// Forgets a name; returns true if it was remembered.
    fn take(&mut self, path: &[u8]) -> bool {
        let at = self.0.iter().position(|named| named == path);
        at.and_then(|at| self.0.remove(at)).is_some()
    }
}

impl Session<'_> {
    /// Logs that a file was closed, with the bytes that were moved.
    pub(crate) fn tell_closed(&mut self, path: Vec<u8>, sent: u64, received: u64) {
        tell_transfer!(self, &path, sent, received, "closed");
        if received > 0 && received >= self.export.log_files {
            self.named.add(path);
        }
    }

    /// Logs a rename of a file with a log line, since the new name is the one that counts.
    pub(crate) fn tell_renamed(&mut self, from: &[u8], to: &[u8]) {
        if self.named.take(from) {
            info!(path = %field(to), from = %field(from), "renamed");
        }
    }
}

/// Logs files that were not closed, whose transfers were interrupted.
impl Drop for Session<'_> {
    fn drop(&mut self) {
        for (path, sent, received) in self.handles.files() {
            tell_transfer!(self, path, sent, received, "left open");
        }
    }
}
