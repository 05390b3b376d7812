use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use tracing::debug;

/// How long records that files wait for may gather, and this share of the time that the copy has
/// taken: a sync for each begun file would be most of a small file's time. 10,000 small files took
/// 930 of them at 10 ms.
const GATHER: Duration = Duration::from_millis(10);
const GATHER_SHARE: u32 = 100;
const GATHER_MOST: Duration = Duration::from_millis(100);
/// How long what nobody waits for may be lost with this machine's power.
const LAZY: Duration = Duration::from_secs(1);

/// What of a journal is durable, and a thread's work to make more of it so.
pub(super) struct JournalSyncs {
    asked: Mutex<Asked>,
    wake: Condvar,
    durable: AtomicU64,
    len: AtomicU64,
    made: AtomicU64,
    /// Something when more is durable.
    ring: Sender<()>,
    /// Of the file, until its name is durable too.
    folder: Mutex<Option<PathBuf>>,
}

/// What is written and may be synced.
#[derive(Default)]
struct Asked {
    records: u64,
    len: u64,
    /// Somebody waits, or too much would be lost.
    now: bool,
    over: bool,
    failed: Option<io::Error>,
}

impl JournalSyncs {
    /// Of a file in `folder`.
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

    /// Records that are durable.
    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::SeqCst)
    }

    /// Bytes of the file that are.
    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::SeqCst)
    }

    /// How often the file was synced.
    pub(super) fn made(&self) -> u64 {
        self.made.load(Ordering::SeqCst)
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many records are written, and the file is so long with them: to be synced within a
    /// second, or `now`.
    ///
    /// # Errors
    /// A sync has failed.
    pub(super) fn ask(&self, records: u64, len: u64, now: bool) -> io::Result<()> {
        let mut asked = self.asked();
        let first = asked.len <= self.len();
        asked.records = records;
        asked.len = len;
        // The thread looks at the clock by itself once it has something to do.
        if first || now && !asked.now {
            self.wake.notify_one();
        }
        asked.now |= now;
        asked.failed.take().map_or(Ok(()), Err)
    }

    /// Nothing more will be written; `sync` what was.
    pub(super) fn end(&self, sync: bool) {
        let mut asked = self.asked();
        asked.over = true;
        if !sync {
            asked.len = 0;
        }
        self.wake.notify_one();
    }

    /// Nobody may wait for what does not come: the copy goes on without.
    pub(super) fn give_up(&self) {
        self.durable.store(u64::MAX, Ordering::SeqCst);
        let _ = self.ring.try_send(());
    }

    /// Syncs `file` as it is asked to, until the end.
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
                debug!("the journal could not be synced: {e}");
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

    /// Until something has to be synced; `None` if there is nothing and will be nothing, and true
    /// if nothing more will come.
    fn wait(&self, last: Instant) -> Option<bool> {
        let mut asked = self.asked();
        loop {
            let some = asked.len > self.len();
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
            // Its name has to be found again.
            File::open(folder)?.sync_all()?;
        }
        file.sync_data()
    }
}
