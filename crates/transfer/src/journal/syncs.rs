//! The thread that syncs the journal, and the state that it shares with the writer.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use tracing::debug;

/// Time for which records that files wait for are collected: at least [`GATHER`], and a hundredth
/// of the time that the copy has taken, up to [`GATHER_MOST`]. A sync per started file would be
/// most of a small file's time: 10,000 small files took 930 syncs at 10 ms.
const GATHER: Duration = Duration::from_millis(10);
const GATHER_SHARE: u32 = 100;
const GATHER_MOST: Duration = Duration::from_millis(100);
/// Time for which records that no file waits for may stay unsynced, so that a power failure loses
/// them.
const LAZY: Duration = Duration::from_secs(1);

/// Tracks how much of a journal is durable, and runs the thread that syncs it.
pub(super) struct JournalFsyncTracker {
    asked: Mutex<JournalFsyncState>,
    wake: Condvar,
    durable: AtomicU64,
    len: AtomicU64,
    made: AtomicU64,
    /// Gets a message when more records are durable.
    ring: Sender<()>,
    /// The journal's folder, until the file's name is durable too.
    folder: Mutex<Option<PathBuf>>,
}

/// State of the thread that makes journal records durable: the records written, and whether they
/// must be synced now.
#[derive(Default)]
struct JournalFsyncState {
    records: u64,
    len: u64,
    /// True if a file waits, or if too much would be lost in a power failure.
    now: bool,
    over: bool,
    failed: Option<io::Error>,
}

impl JournalFsyncTracker {
    /// Creates the state for a journal in `folder`.
    pub(super) fn new(ring: Sender<()>, folder: Option<PathBuf>) -> Self {
        Self {
            asked: Mutex::default(),
            wake: Condvar::new(),
            durable: AtomicU64::new(0),
            len: AtomicU64::new(0),
            made: AtomicU64::new(0),
            ring,
            folder: Mutex::new(folder),
        }
    }

    /// Returns the number of durable records.
    pub(super) fn durable_records(&self) -> u64 {
        self.durable.load(Ordering::SeqCst)
    }

    /// Returns the number of durable bytes.
    pub(super) fn durable_bytes(&self) -> u64 {
        self.len.load(Ordering::SeqCst)
    }

    /// Returns the number of syncs.
    pub(super) fn sync_count(&self) -> u64 {
        self.made.load(Ordering::SeqCst)
    }

    fn asked(&self) -> MutexGuard<'_, JournalFsyncState> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces that `records` records are written and the file has `len` bytes; syncs them within
    /// a second, or with `now` as soon as possible.
    ///
    /// # Errors
    /// A sync has failed.
    pub(super) fn ask(&self, records: u64, len: u64, now: bool) -> io::Result<()> {
        let mut asked = self.asked();
        let first = asked.len <= self.durable_bytes();
        asked.records = records;
        asked.len = len;
        // The thread checks the clock by itself once it has work.
        if first || now && !asked.now {
            self.wake.notify_one();
        }
        asked.now |= now;
        asked.failed.take().map_or(Ok(()), Err)
    }

    /// Ends the thread; with `sync` after a last sync.
    pub(super) fn end(&self, sync: bool) {
        let mut asked = self.asked();
        asked.over = true;
        if !sync {
            asked.len = 0;
        }
        self.wake.notify_one();
    }

    /// Releases all waiters, since the copy continues without a journal.
    pub(super) fn give_up(&self) {
        self.durable.store(u64::MAX, Ordering::SeqCst);
        let _ = self.ring.try_send(());
    }

    /// The body of the thread: syncs `file` on request until the end.
    pub(super) fn run(&self, file: &File) {
        let begun = Instant::now();
        let mut last = begun.checked_sub(GATHER_MOST).unwrap_or(begun);
        while let Some(over) = self.wait(last) {
            if !over {
                let gather = (begun.elapsed() / GATHER_SHARE).clamp(GATHER, GATHER_MOST);
                std::thread::sleep(gather.saturating_sub(last.elapsed()));
            }
            let (records, len) = {
                let mut asked = self.asked();
                asked.now = false;
                (asked.records, asked.len)
            };
            if let Err(e) = self.sync(file) {
                debug!("cannot sync the journal: {e}");
                self.asked().failed = Some(e);
                return self.give_up();
            }
            last = Instant::now();
            self.made.fetch_add(1, Ordering::SeqCst);
            self.len.store(len, Ordering::SeqCst);
            self.durable.fetch_max(records, Ordering::SeqCst);
            let _ = self.ring.try_send(());
            if over {
                return;
            }
        }
    }

    /// Waits until a sync is due. Returns true for the last one, and `None` if there is nothing
    /// left to sync.
    fn wait(&self, last: Instant) -> Option<bool> {
        let mut asked = self.asked();
        loop {
            let some = asked.len > self.durable_bytes();
            if asked.over {
                return some.then_some(true);
            }
            let left = LAZY.saturating_sub(last.elapsed());
            if some && (asked.now || left.is_zero()) {
                return Some(false);
            }
            asked = match some {
                true => {
                    let waited = self.wake.wait_timeout(asked, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                false => self
                    .wake
                    .wait(asked)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        let folder = self.folder.lock();
        if let Some(folder) = folder.unwrap_or_else(PoisonError::into_inner).take() {
            // The folder is synced so that the file's name is durable.
            File::open(folder)?.sync_all()?;
        }
        file.sync_data()
    }
}
