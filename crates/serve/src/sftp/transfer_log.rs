//! Counters and log lines of a client's transfers.

use std::collections::VecDeque;

use rustix::io::Errno;
use sftp::Request;
use tracing::{debug, info};
use wire::escape::field;

use super::disk_error_log::{DiskErrorLog, RequestFile, subject};
use super::handles::HandleTable;
use super::request_error::RequestError;

/// Maximum number of names that are remembered for a rename; clients that rename a file usually do
/// so at once.
const REMEMBERED: usize = 64;

/// Totals of one client's session or scp command, for the log line at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferCounters {
    /// Number of files opened.
    pub files: u64,
    /// File bytes sent to the client.
    pub sent: u64,
    /// File bytes received from the client.
    pub received: u64,
}

/// Counts the transfers of a client, and logs files and disk errors.
pub(super) struct TransferLog {
    /// Bytes from which a file gets its own log line.
    least: u64,
    counters: TransferCounters,
    /// Logged files whose names may still change by a rename.
    named: LoggedUploadNames,
    disk_errors: DiskErrorLog,
}

impl TransferLog {
    /// Creates a log in which files of at least `least` bytes get their own line.
    pub(super) fn new(least: u64) -> Self {
        Self {
            least,
            counters: TransferCounters::default(),
            named: LoggedUploadNames::default(),
            disk_errors: DiskErrorLog::default(),
        }
    }

    pub(super) fn counters(&self) -> TransferCounters {
        self.counters
    }

    pub(super) fn count_opened(&mut self) {
        self.counters.files += 1;
    }

    pub(super) fn count_sent(&mut self, bytes: u64) {
        self.counters.sent += bytes;
    }

    pub(super) fn count_received(&mut self, bytes: u64) {
        self.counters.received += bytes;
    }

    /// Counts and logs a file that arrived in one request.
    pub(super) fn put(&mut self, path: &[u8], received: u64) {
        self.counters.files += 1;
        self.counters.received += received;
        self.file(path, 0, received, "put");
    }

    /// Counts and logs a file that was sent in one answer.
    pub(super) fn got(&mut self, path: &[u8], sent: u64) {
        self.counters.files += 1;
        self.counters.sent += sent;
        self.file(path, sent, 0, "got");
    }

    /// Logs that a file was closed, with the bytes that were moved.
    pub(super) fn closed(&mut self, path: Vec<u8>, sent: u64, received: u64) {
        self.file(&path, sent, received, "closed");
        if received > 0 && received >= self.least {
            self.named.add(path);
        }
    }

    /// Logs files that were not closed, whose transfers were interrupted.
    pub(super) fn left_open(&self, handles: &HandleTable) {
        for open in handles.files() {
            let (path, sent, received) = open.transfer();
            self.file(path, sent, received, "left open");
        }
    }

    /// Logs a rename of a file with a log line, since the new name is the one that counts.
    pub(super) fn renamed(&mut self, from: &[u8], to: &[u8]) {
        if self.named.take(from) {
            info!(path = %field(to), from = %field(from), "renamed");
        }
    }

    /// Logs a line about a file: always if many bytes were moved, otherwise with -v. Logging each
    /// of many small files would cost more than transferring them.
    fn file(&self, path: &[u8], sent: u64, received: u64, what: &'static str) {
        let path = field(path);
        match sent.saturating_add(received) >= self.least {
            true => info!(%path, sent, received, "{what}"),
            false => debug!(%path, sent, received, "{what}"),
        }
    }

    /// Logs that `request` has failed, if the disk is the cause.
    pub(super) fn failed(
        &mut self,
        handles: &mut HandleTable,
        request: &Request<'_>,
        refused: &RequestError,
    ) {
        let Some((errno, (subject, reads))) = refused.of_disk().zip(subject(request)) else {
            return;
        };
        match subject {
            RequestFile::Path(path) => self.disk_errors.add(path, errno, reads),
            RequestFile::Handle(handle) => self.of_handle(handles, handle, errno, reads),
        }
    }

    /// Logs a disk error of a request on an open file that the blocking pool has carried out.
    pub(super) fn failed_handle(
        &mut self,
        handles: &mut HandleTable,
        handle: &[u8],
        refused: &RequestError,
        reads: bool,
    ) {
        if let Some(errno) = refused.of_disk() {
            self.of_handle(handles, handle, errno, reads);
        }
    }

    /// Logs a disk error of a file that was to be written to `path`.
    pub(super) fn failed_write(&mut self, path: &[u8], refused: &RequestError) {
        if let Some(errno) = refused.of_disk() {
            self.disk_errors.add(path, errno, false);
        }
    }

    /// Logs at most one disk error per handle.
    fn of_handle(&mut self, handles: &mut HandleTable, handle: &[u8], errno: Errno, reads: bool) {
        if let Ok(open) = handles.open_file_mut(handle)
            && let Some(path) = open.log_once()
        {
            self.disk_errors.add(path, errno, reads);
        }
    }
}

/// Names of uploaded files that have a log line, the latest last.
#[derive(Debug, Default)]
struct LoggedUploadNames(VecDeque<Vec<u8>>);

impl LoggedUploadNames {
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
