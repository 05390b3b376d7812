//! What a run tells while it goes and when it is over, as data: the command line turns it into
//! bars, NDJSON and the closing line.

mod decision;
mod session;

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use schedule::FileState;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

pub use decision::{Choice, CipherOrder, Decision, Guessed, Origin, Sample, ZlibWhy};
pub use session::{Depth, FarEnd, SessionReport};

use crate::sums::Algorithm;

/// Failures that a [`Summary`] keeps in full; more are only counted, and every one was an
/// [`Event`].
pub const FAILURES_KEPT: usize = 1000;

/// A path or name as bytes. Shown with everything escaped that could move a terminal;
/// serialized as a string, or as `{"base64": ...}` when it is not UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(pub Vec<u8>);

impl From<&Path> for Name {
    fn from(path: &Path) -> Self {
        Self(path.as_os_str().as_bytes().to_vec())
    }
}

impl From<&[u8]> for Name {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::escape::name(&self.0).fmt(f)
    }
}

impl Serialize for Name {
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

/// Something that happened, in the order it happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A file is about to be copied.
    FileStarted {
        /// Unique in this run; the later events of the file carry it too.
        id: u64,
        /// Where from, as `host:path` when remote.
        source: Name,
        /// Where to, as `host:path` when remote.
        target: Name,
        /// Bytes, when known.
        size: Option<u64>,
    },
    /// A file stands under its final name.
    FileDone {
        /// As in `FileStarted`.
        id: u64,
        /// Where from.
        source: Name,
        /// Where to.
        target: Name,
        /// Bytes copied.
        bytes: u64,
        /// What is known of it: `renamed` or, without temporary, `closed`.
        state: FileState,
        /// It was written under its final name, without a temporary: whoever read it meanwhile saw
        /// less.
        in_place: bool,
        /// It was fsynced before.
        synced: bool,
        /// It was compared with its source when it was there.
        verified: bool,
    },
    /// A file that was copied is not what passed.
    Mismatch {
        /// As in `FileStarted`.
        id: u64,
        /// The end that was read again.
        path: Name,
        /// The first byte of the first range that differs.
        from: u64,
        /// Bytes in it.
        len: u64,
        /// It is copied again.
        again: bool,
    },
    /// A file, directory or symlink was not copied.
    Failed {
        /// As in `FileStarted`, if it came that far.
        id: Option<u64>,
        /// What.
        path: Name,
        /// Why, one sentence without the path.
        reason: String,
    },
    /// A directory is complete, with its mode and times.
    DirectoryDone {
        /// Where to.
        target: Name,
    },
    /// A symlink was made.
    SymlinkDone {
        /// Where to.
        target: Name,
    },
    /// An earlier run of the same copy was interrupted: this one goes on where it was.
    Resumed {
        /// Files that it had finished, as far as its journal says.
        done: u64,
        /// Files of which it had sent some.
        partial: u64,
        /// Bytes of those that need not be sent again.
        partial_bytes: u64,
    },
    /// Something to know that fails nothing.
    Warning {
        /// About what, when about a file.
        path: Option<Name>,
        /// One sentence.
        message: String,
    },
}

/// How a run ended; the exit code follows from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", content = "reason", rename_all = "snake_case")]
pub enum Outcome {
    /// Everything asked for was copied.
    Complete,
    /// Something failed; the rest was copied.
    Partial,
    /// There was no connection, or it was lost and could not be had again. One sentence.
    NoConnection(String),
    /// Cancelled; temporaries were removed.
    Interrupted,
}

/// One thing that was not copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// What.
    pub path: Name,
    /// Why, one sentence without the path.
    pub reason: String,
}

/// How files were compared with their sources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Files that are as they should be.
    pub files: u64,
    /// Of them, those that were copied again for that.
    pub repaired: u64,
    /// Of them, those that were read back.
    pub read_back: u64,
    /// The program that made sums at the far end.
    pub program: Option<String>,
    /// How it made them.
    pub algorithm: Option<Algorithm>,
    /// Why files were read back, one clause.
    pub reason: Option<String>,
    /// What was read again is the source: the copy was summed as it was written.
    pub download: bool,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Files that stand under their final names.
    pub files: u64,
    /// Directories completed.
    pub directories: u64,
    /// Symlinks made.
    pub symlinks: u64,
    /// Bytes of file data confirmed by the receiving end.
    pub bytes: u64,
    /// Bytes that arrived of files that were not completed, because the run ended early.
    pub unfinished: u64,
    /// Bytes of files that earlier runs of the same copy had sent, beside `bytes`.
    pub taken_over: u64,
    /// Of `bytes`, so many were at the receiving end already, in older forms of the files.
    pub reused: u64,
    /// The journal by which the same command goes on; absent when the copy is whole or too small
    /// to have one.
    pub journal: Option<Name>,
    /// How many things were not copied.
    pub failed: u64,
    /// The first [`FAILURES_KEPT`] of them.
    pub failures: Vec<Failure>,
    /// The least that holds for every file copied; `None` when there was none.
    pub state: Option<FileState>,
    /// Every file was fsynced.
    pub synced: bool,
    /// What was verified, where that was wanted.
    pub verified: Option<Verified>,
    /// From the start of the run, connecting included.
    #[serde(serialize_with = "seconds")]
    pub elapsed: Duration,
    /// How the bytes went, for each session in which files were copied long enough to measure.
    pub sessions: Vec<SessionReport>,
    /// What served at each far end.
    pub far_ends: Vec<FarEnd>,
    /// What was decided on the way; told by itself.
    #[serde(skip)]
    pub decisions: Vec<Decision>,
}

fn seconds<S: Serializer>(elapsed: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(elapsed.as_secs_f64())
}

impl Default for Summary {
    fn default() -> Self {
        Self {
            outcome: Outcome::Complete,
            files: 0,
            directories: 0,
            symlinks: 0,
            bytes: 0,
            unfinished: 0,
            taken_over: 0,
            reused: 0,
            journal: None,
            failed: 0,
            failures: Vec::new(),
            state: None,
            synced: false,
            verified: None,
            elapsed: Duration::ZERO,
            sessions: Vec::new(),
            far_ends: Vec::new(),
            decisions: Vec::new(),
        }
    }
}

/// Counters that another thread may read at any time.
#[derive(Debug, Default)]
pub struct Progress {
    bytes_done: AtomicU64,
    bytes_moved: AtomicU64,
    bytes_total: AtomicU64,
    files_done: AtomicU64,
    files_total: AtomicU64,
    totals_final: AtomicBool,
    current: Mutex<Option<Name>>,
}

impl Progress {
    /// Bytes confirmed by the receiving end.
    pub fn bytes_done(&self) -> u64 {
        self.bytes_done.load(Ordering::Relaxed)
    }

    /// Bytes that this run has moved; unlike [`Progress::bytes_done`] without those of an earlier run,
    /// and with those that had to be sent again.
    pub fn bytes_moved(&self) -> u64 {
        self.bytes_moved.load(Ordering::Relaxed)
    }

    /// Bytes of all files found so far.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total.load(Ordering::Relaxed)
    }

    /// Files done, failed ones included.
    pub fn files_done(&self) -> u64 {
        self.files_done.load(Ordering::Relaxed)
    }

    /// Files found so far.
    pub fn files_total(&self) -> u64 {
        self.files_total.load(Ordering::Relaxed)
    }

    /// Every source has been walked to its end: the totals will not grow any more.
    pub fn totals_are_final(&self) -> bool {
        self.totals_final.load(Ordering::Relaxed)
    }

    /// The file that made progress last.
    pub fn current(&self) -> Option<Name> {
        self.current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn add_file(&self, size: Option<u64>) {
        self.files_total.fetch_add(1, Ordering::Relaxed);
        self.add_size(size);
    }

    /// The size of a file became known after it was added.
    pub(crate) fn add_size(&self, size: Option<u64>) {
        // Sizes are a server's word: two that are too large must not add up to a small one.
        let more = |total: u64| Some(total.saturating_add(size.unwrap_or(0)));
        let _ = self
            .bytes_total
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    pub(crate) fn add_bytes(&self, n: u64) {
        self.bytes_done.fetch_add(n, Ordering::Relaxed);
        self.bytes_moved.fetch_add(n, Ordering::Relaxed);
    }

    /// Bytes that an earlier run has moved are known to be there.
    pub(crate) fn add_earlier(&self, n: u64) {
        self.bytes_done.fetch_add(n, Ordering::Relaxed);
    }

    /// A file is begun again: what was counted of it does not count.
    pub(crate) fn take_back(&self, n: u64) {
        self.bytes_done.fetch_sub(n, Ordering::Relaxed);
    }

    pub(crate) fn file_done(&self) {
        self.files_done.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_current(&self, name: &Name) {
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
        let name = Name(b"a\x1b[2J\n\\ \xff \xc3\xa9 \xe2\x80\xae".to_vec());
        assert_eq!(name.to_string(), "a\\x1b[2J\\n\\ \\xff \u{e9} \\u{202e}");
    }

    #[test]
    fn what_an_earlier_run_moved_was_not_moved_by_this_one() {
        let progress = Progress::default();
        progress.add_earlier(500);
        progress.add_bytes(70);
        progress.take_back(70);
        progress.add_bytes(30);
        assert_eq!((progress.bytes_done(), progress.bytes_moved()), (530, 100));
    }

    #[test]
    fn a_name_that_is_not_utf8_survives_json() {
        let json = serde_json::to_string(&[Name(b"a".to_vec()), Name(vec![0xff])]);
        assert_eq!(json.unwrap_or_default(), r#"["a",{"base64":"/w=="}]"#);
    }
}
