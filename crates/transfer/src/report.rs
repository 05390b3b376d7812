//! The progress and the result of a run as data, which the command line turns into bars, NDJSON and
//! the closing line.

mod decision;
mod session;

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use schedule::{FileCopyState, JobFailureKind};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use decision::{
    CipherOrderReason, CompressibilitySample, Decision, DecisionOrigin, DecisionSubject,
    DetourReason, KexGuessKind, ZlibReason,
};
pub use session::{FarEndServerReport, ServerMode, SessionReport};

use crate::sums::SumAlgorithm;

/// The number of failures that a [`CopySummary`] lists. Further ones are only counted; each was an
/// [`CopyEvent`].
pub const FAILURES_KEPT: usize = 1000;

/// A path or name as bytes. Displayed with all terminal control characters escaped; serialized as a
/// string, or as `{"base64": ...}` if it is not UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EscapedName(pub Vec<u8>);

impl From<&Path> for EscapedName {
    fn from(path: &Path) -> Self {
        Self(path.as_os_str().as_bytes().to_vec())
    }
}

impl From<&[u8]> for EscapedName {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl fmt::Display for EscapedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::escape::file_name(&self.0).fmt(f)
    }
}

impl Serialize for EscapedName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => {
                let mut map = serializer.serialize_map(Some(1))?;
                let encoded = base64::engine::general_purpose::STANDARD.encode(&self.0);
                map.serialize_entry("base64", &encoded)?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for EscapedName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum NameEncoding {
            Text(String),
            Bytes { base64: String },
        }
        Ok(Self(match NameEncoding::deserialize(deserializer)? {
            NameEncoding::Text(text) => text.into_bytes(),
            NameEncoding::Bytes { base64 } => base64::engine::general_purpose::STANDARD
                .decode(base64)
                .map_err(serde::de::Error::custom)?,
        }))
    }
}

/// An event of a run; events are emitted in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum CopyEvent {
    /// A file is about to be copied.
    FileStarted {
        /// A unique number in this run, which the file's later events repeat.
        id: u64,
        /// The source, as `host:path` if remote.
        source: EscapedName,
        /// The target, as `host:path` if remote.
        target: EscapedName,
        /// The size in bytes, if known.
        size: Option<u64>,
    },
    /// A file is complete under its final name.
    FileDone {
        /// The number from `FileStarted`.
        id: u64,
        /// The source.
        source: EscapedName,
        /// The target.
        target: EscapedName,
        /// Bytes copied.
        bytes: u64,
        /// The known state: `renamed`, or `closed` without a temporary.
        state: FileCopyState,
        /// True if the file was written under its final name, without a temporary: concurrent
        /// readers may have seen an incomplete file.
        in_place: bool,
        /// True if the file was fsynced.
        synced: bool,
        /// True if the file was compared with its source.
        verified: bool,
    },
    /// A copied file differs from the transferred data.
    Mismatch {
        /// The number from `FileStarted`.
        id: u64,
        /// The file that was read again.
        path: EscapedName,
        /// The offset of the first differing range.
        from: u64,
        /// The length of that range in bytes.
        len: u64,
        /// True if the file is copied again.
        again: bool,
    },
    /// A file, directory or symlink was not copied.
    Failed {
        /// The number from `FileStarted`, if that event occurred.
        id: Option<u64>,
        /// The path.
        path: EscapedName,
        /// The reason, one sentence without the path.
        reason: String,
    },
    /// A directory is complete, including its mode and times.
    DirectoryDone {
        /// The target.
        target: EscapedName,
    },
    /// A symlink was created.
    SymlinkDone {
        /// The target.
        target: EscapedName,
    },
    /// An interrupted earlier run of this copy is resumed.
    Resumed {
        /// Files that the earlier run finished, according to its journal, and that need not be sent
        /// again unless they were changed.
        done: u64,
        /// Files that the earlier run finished just before it ended, so that a change since then may
        /// not show: some of them are sent again.
        #[serde(default)]
        unproven: u64,
        /// Files that the earlier run sent in part.
        partial: u64,
        /// Bytes of those files that need not be sent again.
        partial_bytes: u64,
    },
    /// A sync has decided to change a path.
    #[serde(skip_deserializing)]
    Planned {
        /// The change.
        change: SyncChange,
        /// The path relative to source and target; it ends with `/` for a directory.
        path: EscapedName,
        /// The present path of a file that is moved, or the name to which the path becomes a hard
        /// link.
        from: Option<EscapedName>,
        /// The attributes that differ, such as `size` and `time`.
        reasons: Vec<&'static str>,
    },
    /// A sync has decided about all paths.
    SyncPlanned {
        /// The directory that is read, with a slash at the end.
        source: EscapedName,
        /// The directory that becomes equal to it, with a slash at the end.
        target: EscapedName,
        /// Files to copy.
        files: u64,
        /// Total size in bytes of the files to copy.
        bytes: u64,
        /// Entries to delete.
        deletions: u64,
        /// Entries in which nothing differs.
        equal: u64,
        /// Entries of the source that take part, without its root.
        entries: u64,
        /// Entries of the source that filters leave out, without the contents of directories.
        excluded: u64,
        /// Directories of the source that could not be listed, and entries with invalid names.
        #[serde(default)]
        unlisted: u64,
    },
    /// A message about something that is not a failure.
    Warning {
        /// The file concerned, if any.
        path: Option<EscapedName>,
        /// The message, one sentence.
        message: String,
    },
}

/// A change that a sync makes at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncChange {
    /// The entry is new.
    Create,
    /// Data or attributes are replaced.
    Update,
    /// The entry is deleted.
    Delete,
    /// The file has another name at the target and is renamed.
    Move,
    /// The entry becomes a further name of an equal file in the directory of `--link-dest`.
    Link,
    /// The entry becomes a hard link to another name of its file. `from` is the path of that name.
    HardLink,
    /// The entry does not differ; reported only on request.
    Equal,
}

/// The result of a run, which determines the exit code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", content = "reason", rename_all = "snake_case")]
pub enum CopyOutcome {
    /// Everything was copied.
    Complete,
    /// Some items failed; the rest was copied.
    Partial,
    /// No connection could be made, or it was lost for good. Contains one sentence.
    NoConnection(String),
    /// The settings for a host are wrong, in flags or ssh_config. Contains one sentence.
    Misconfigured(String),
    /// The run was cancelled; temporaries were removed.
    Interrupted,
}

/// An item that was not copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemFailure {
    /// The path.
    pub path: EscapedName,
    /// The reason, one sentence without the path.
    pub reason: String,
    /// The cause, by which code decides.
    #[serde(default, skip_serializing_if = "FailureCause::is_other")]
    pub cause: FailureCause,
}

impl ItemFailure {
    /// Returns a failure without a cause of its own.
    pub fn new(path: EscapedName, reason: impl Into<String>) -> Self {
        Self {
            path,
            reason: reason.into(),
            cause: FailureCause::Other,
        }
    }
}

/// Cause of a failed item, as far as code treats it in another way than any other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureCause {
    /// The target has no room for the item: the disk is full, the quota is used up, or the file is
    /// too large for the file system.
    NoSpace,
    /// The connection to the host was lost.
    ConnectionLost,
    /// Any cause without a variant of its own, or one that a newer version has.
    #[default]
    #[serde(other)]
    Other,
}

impl FailureCause {
    fn is_other(&self) -> bool {
        *self == Self::Other
    }
}

impl From<JobFailureKind> for FailureCause {
    fn from(kind: JobFailureKind) -> Self {
        match kind {
            JobFailureKind::NoSpace => Self::NoSpace,
            JobFailureKind::ConnectionLost => Self::ConnectionLost,
            _ => Self::Other,
        }
    }
}

/// Figures of a verification: how many files equal their sources, and how that was found out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyResult {
    /// The number of correct files.
    pub files: u64,
    /// The number of correct files that had to be copied again.
    pub repaired: u64,
    /// The number of correct files that were read back for comparison.
    pub read_back: u64,
    /// The number of files that are complete under their final names, and that were not compared
    /// because the run ended early.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unverified: u64,
    /// The checksum program at the far end.
    pub program: Option<String>,
    /// The program's algorithm.
    pub algorithm: Option<SumAlgorithm>,
    /// The reason why files were read back, one clause.
    pub reason: Option<String>,
    /// True for a download: the source was read again, since the copy was summed while written.
    pub download: bool,
}

/// The result of a run in figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopySummary {
    /// The outcome.
    #[serde(flatten)]
    pub outcome: CopyOutcome,
    /// Files that are complete under their final names.
    pub files: u64,
    /// Ranges of split files that are complete; the files are counted when they get their names.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ranges: u64,
    /// Directories completed.
    pub directories: u64,
    /// Symlinks created.
    pub symlinks: u64,
    /// Entries that filters left out; a directory counts once, without its contents.
    #[serde(default)]
    pub excluded: u64,
    /// Bytes of file data confirmed by the receiving end.
    pub bytes: u64,
    /// Bytes that arrived for files that were not completed.
    pub unfinished: u64,
    /// Bytes of files that earlier runs of this copy had sent; not included in `bytes`.
    pub taken_over: u64,
    /// The part of `bytes` that the receiver already had in basis files.
    pub reused: u64,
    /// The journal from which the same command resumes; `None` if the copy is complete or too small
    /// to have one.
    pub journal: Option<EscapedName>,
    /// The number of items that were not copied.
    pub failed: u64,
    /// The first [`FAILURES_KEPT`] of these items.
    pub failures: Vec<ItemFailure>,
    /// The part of `failed` whose temporaries, which several shards write, cannot be used: another
    /// try does not help.
    #[serde(skip)]
    pub unusable_temporaries: u64,
    /// Temporaries that may be left at a host whose connection was lost.
    #[serde(skip)]
    pub left_temporaries: u64,
    /// The weakest state of all copied files; `None` if there were none.
    pub state: Option<FileCopyState>,
    /// True if every file was fsynced.
    pub synced: bool,
    /// The results of verification, if requested.
    pub verified: Option<VerifyResult>,
    /// The time since the start of the run, including connecting.
    #[serde(serialize_with = "seconds", skip_deserializing)]
    pub elapsed: Duration,
    /// The transfer reports of sessions that copied files long enough to measure.
    #[serde(skip_deserializing)]
    pub sessions: Vec<SessionReport>,
    /// The SFTP server at each far end.
    #[serde(skip_deserializing)]
    pub far_ends: Vec<FarEndServerReport>,
    /// The way of the data between two hosts; `None` if one end is this machine.
    pub way: Option<HostCopyRoute>,
    /// The result of each host, if the run copied from or to several at once.
    #[serde(skip_serializing_if = "Vec::is_empty", skip_deserializing)]
    pub hosts: Vec<HostResult>,
    /// True if each of `hosts` received a copy of its own, which all counts include.
    #[serde(skip)]
    pub fans_out: bool,
    /// The decisions of the run, which are reported separately.
    #[serde(skip)]
    pub decisions: Vec<Decision>,
}

/// The result of one host in a run with several.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostResult {
    /// The host as on the command line.
    pub host: EscapedName,
    /// The host that passed the data on to it; `None` for this machine.
    pub from: Option<EscapedName>,
    /// The outcome of its copy.
    #[serde(flatten)]
    pub outcome: CopyOutcome,
    /// Files that are complete under their final names.
    pub files: u64,
    /// Directories completed.
    #[serde(skip)]
    pub directories: u64,
    /// Symlinks created.
    #[serde(skip)]
    pub symlinks: u64,
    /// Bytes of file data confirmed by the receiving end.
    pub bytes: u64,
    /// Bytes that arrived for files that were not completed.
    pub unfinished: u64,
    /// Items that were not copied; a failed connection counts as one.
    pub failed: u64,
    /// Time of the host's copy, including connecting.
    #[serde(serialize_with = "seconds")]
    pub elapsed: Duration,
}

/// The way of the data of a copy between two hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCopyRoute {
    /// The way.
    pub kind: HostCopyRouteKind,
    /// The host that opened the connections of the direct way.
    pub connected: Option<EscapedName>,
    /// The address of the source's host in those connections.
    pub address: Option<String>,
    /// The reason for this way.
    pub reason: HostCopyReason,
}

/// Reason for a [`HostCopyRoute`], by the way in which it continues a sentence. Events contain the
/// text alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum HostCopyReason {
    /// A clause, as after "because".
    Clause(String),
    /// A message that begins with the name of a host or file.
    Named(String),
    /// A sentence that says how to get another way.
    Advice(String),
}

impl HostCopyReason {
    /// The reason without its form.
    pub fn text(&self) -> &str {
        match self {
            Self::Clause(text) | Self::Named(text) | Self::Advice(text) => text,
        }
    }
}

impl fmt::Display for HostCopyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl From<String> for HostCopyReason {
    fn from(clause: String) -> Self {
        Self::Clause(clause)
    }
}

impl From<&str> for HostCopyReason {
    fn from(clause: &str) -> Self {
        Self::Clause(clause.to_owned())
    }
}

impl From<HostCopyReason> for String {
    fn from(reason: HostCopyReason) -> Self {
        match reason {
            HostCopyReason::Clause(text)
            | HostCopyReason::Named(text)
            | HostCopyReason::Advice(text) => text,
        }
    }
}

/// A kind of [`HostCopyRoute`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostCopyRouteKind {
    /// The data went directly from one host to the other.
    Direct,
    /// Streamed through this machine.
    ThroughHere,
    /// The data went from this machine to several hosts, some of which passed it on to others.
    Chain,
    /// The data went from this machine to each of several hosts.
    Star,
}

impl HostCopyRoute {
    /// Describes a copy that is streamed through this machine for this reason.
    pub fn through_here(reason: HostCopyReason) -> Self {
        Self {
            kind: HostCopyRouteKind::ThroughHere,
            connected: None,
            address: None,
            reason,
        }
    }
}

const fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn seconds<S: Serializer>(elapsed: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(elapsed.as_secs_f64())
}

impl CopySummary {
    /// Result of a run that the user has interrupted before it copied anything.
    pub fn interrupted() -> Self {
        Self {
            outcome: CopyOutcome::Interrupted,
            ..Self::default()
        }
    }
}

impl Default for CopySummary {
    fn default() -> Self {
        Self {
            outcome: CopyOutcome::Complete,
            files: 0,
            ranges: 0,
            directories: 0,
            symlinks: 0,
            excluded: 0,
            bytes: 0,
            unfinished: 0,
            taken_over: 0,
            reused: 0,
            journal: None,
            failed: 0,
            failures: Vec::new(),
            unusable_temporaries: 0,
            left_temporaries: 0,
            state: None,
            synced: false,
            verified: None,
            elapsed: Duration::ZERO,
            sessions: Vec::new(),
            far_ends: Vec::new(),
            way: None,
            hosts: Vec::new(),
            fans_out: false,
            decisions: Vec::new(),
        }
    }
}

/// The values of a [`ProgressCounters`] at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressValues {
    bytes_done: u64,
    bytes_moved: u64,
    bytes_total: u64,
    files_done: u64,
    files_total: u64,
    totals_final: bool,
    current: Option<EscapedName>,
}

impl ProgressValues {
    /// Bytes that are confirmed so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes_done
    }

    /// True if all bytes of the files that were found are confirmed.
    pub(crate) fn has_all(&self) -> bool {
        self.bytes_total > 0 && self.bytes_done >= self.bytes_total
    }

    /// Bytes of all files found so far.
    pub(crate) fn total(&self) -> u64 {
        self.bytes_total
    }

    /// Files that are done or were found so far.
    pub(crate) fn files(&self) -> u64 {
        self.files_done.saturating_add(self.files_total)
    }

    /// The file that made progress last.
    pub(crate) fn current(&self) -> Option<&EscapedName> {
        self.current.as_ref()
    }

    /// Changes the name of the current file.
    pub(crate) fn rename(&mut self, rename: impl FnOnce(&EscapedName) -> EscapedName) {
        self.current = self.current.as_ref().map(rename);
    }
}

/// Counters that any thread may read at any time.
#[derive(Debug, Default)]
pub struct ProgressCounters {
    bytes_done: AtomicU64,
    bytes_moved: AtomicU64,
    bytes_total: AtomicU64,
    files_done: AtomicU64,
    files_total: AtomicU64,
    totals_final: AtomicBool,
    current: Mutex<Option<EscapedName>>,
}

impl ProgressCounters {
    /// Bytes confirmed by the receiving end.
    pub fn bytes_done(&self) -> u64 {
        self.bytes_done.load(Ordering::Relaxed)
    }

    /// Bytes that this run has moved. Unlike [`ProgressCounters::bytes_done`], excludes bytes of an
    /// earlier run and includes bytes that were sent again.
    pub fn bytes_moved(&self) -> u64 {
        self.bytes_moved.load(Ordering::Relaxed)
    }

    /// Bytes of all files found so far.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total.load(Ordering::Relaxed)
    }

    /// Files done, including failed ones.
    pub fn files_done(&self) -> u64 {
        self.files_done.load(Ordering::Relaxed)
    }

    /// Files found so far.
    pub fn files_total(&self) -> u64 {
        self.files_total.load(Ordering::Relaxed)
    }

    /// True once all sources have been walked completely, so that totals no longer grow.
    pub fn totals_are_final(&self) -> bool {
        self.totals_final.load(Ordering::Relaxed)
    }

    /// The file that made progress last.
    pub fn current(&self) -> Option<EscapedName> {
        self.current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns all values.
    pub(crate) fn values(&self) -> ProgressValues {
        ProgressValues {
            bytes_done: self.bytes_done(),
            bytes_moved: self.bytes_moved(),
            bytes_total: self.bytes_total(),
            files_done: self.files_done(),
            files_total: self.files_total(),
            totals_final: self.totals_are_final(),
            current: self.current(),
        }
    }

    /// Takes over the values of a copy that runs elsewhere.
    pub(crate) fn take_values(&self, values: &ProgressValues) {
        self.bytes_done.store(values.bytes_done, Ordering::Relaxed);
        self.bytes_moved
            .store(values.bytes_moved, Ordering::Relaxed);
        self.bytes_total
            .store(values.bytes_total, Ordering::Relaxed);
        self.files_done.store(values.files_done, Ordering::Relaxed);
        self.files_total
            .store(values.files_total, Ordering::Relaxed);
        self.totals_final
            .store(values.totals_final, Ordering::Relaxed);
        if let Some(name) = &values.current {
            self.set_current(name);
        }
    }

    /// Starts again with all counters at zero.
    pub fn reset(&self) {
        self.take_values(&ProgressValues::default());
    }

    pub(crate) fn add_file(&self, size: Option<u64>) {
        self.files_total.fetch_add(1, Ordering::Relaxed);
        self.add_size(size);
    }

    /// Adds the size of a file that became known after the file was added.
    pub(crate) fn add_size(&self, size: Option<u64>) {
        // A server reports sizes: the sum of two huge ones must not wrap around.
        let more = |total: u64| Some(total.saturating_add(size.unwrap_or(0)));
        let _ = self
            .bytes_total
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    pub(crate) fn add_bytes(&self, n: u64) {
        self.bytes_done.fetch_add(n, Ordering::Relaxed);
        self.bytes_moved.fetch_add(n, Ordering::Relaxed);
    }

    /// Counts bytes that an earlier run moved as done.
    pub(crate) fn add_earlier(&self, n: u64) {
        self.bytes_done.fetch_add(n, Ordering::Relaxed);
    }

    /// Subtracts the bytes counted for a file that starts again.
    pub(crate) fn take_back(&self, n: u64) {
        self.bytes_done.fetch_sub(n, Ordering::Relaxed);
    }

    pub(crate) fn file_done(&self) {
        self.files_done.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_current(&self, name: &EscapedName) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref() != Some(name) {
            *current = Some(name.clone());
        }
    }

    pub(crate) fn set_totals_final(&self) {
        self.totals_final.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_move_the_terminal() {
        let name = EscapedName(b"a\x1b[2J\n\\ \xff \xc3\xa9 \xe2\x80\xae".to_vec());
        assert_eq!(name.to_string(), "a\\x1b[2J\\n\\ \\xff \u{e9} \\u{202e}");
    }

    #[test]
    fn what_an_earlier_run_moved_was_not_moved_by_this_one() {
        let progress = ProgressCounters::default();
        progress.add_earlier(500);
        progress.add_bytes(70);
        progress.take_back(70);
        progress.add_bytes(30);
        assert_eq!((progress.bytes_done(), progress.bytes_moved()), (530, 100));
    }

    #[test]
    fn a_name_that_is_not_utf8_survives_json() {
        let json = serde_json::to_string(&[EscapedName(b"a".to_vec()), EscapedName(vec![0xff])]);
        assert_eq!(json.unwrap_or_default(), r#"["a",{"base64":"/w=="}]"#);
    }
}
