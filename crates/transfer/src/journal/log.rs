//! Writes the journal's records.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, bounded};
use schedule::journal::{JournalEncoder, JournalRecord};
use tracing::debug;

use super::flush::FileSystemFlusher;
use super::syncs::JournalFsyncTracker;

/// The bytes of ranges recorded since the journal's last sync that trigger the next one. A power
/// loss here costs these bytes and those in flight (40 MiB), which are sent again. The value equals
/// the bytes that are acknowledged between two syncs at the receiver, which are recorded at once,
/// so that it rarely adds a sync.
const TOLD: u64 = 24 << 20;

/// A journal that is being written. Written records survive this process; a thread makes them
/// durable.
pub(crate) struct FileJournalWriter {
    file: File,
    path: PathBuf,
    writer: JournalEncoder,
    /// Encoded records that are not written yet.
    out: Vec<u8>,
    /// The number of records taken, and the length of the file.
    taken: u64,
    len: u64,
    /// True if written records are synced.
    eager: bool,
    /// True if a record should be synced soon, because a file waits for it or relies on it.
    now: bool,
    /// Bytes of ranges recorded since the last request for a sync.
    told: u64,
    /// Count in the last `Synced` record.
    said: u64,
    flush: FileSystemFlusher,
    syncs: Arc<JournalFsyncTracker>,
    thread: Option<JoinHandle<()>>,
    /// Wakes the thread that waits for [`FileJournalWriter::durable`].
    waker: Receiver<()>,
    failed: bool,
}

impl FileJournalWriter {
    /// Continues after the first `good` bytes of `file`, or starts it if that is 0. Nothing is
    /// synced before [`FileJournalWriter::sync_from_now_on`]. `flush` makes finished files durable.
    pub(crate) fn start(
        mut file: File,
        path: PathBuf,
        good: u64,
        flush: FileSystemFlusher,
    ) -> io::Result<Self> {
        file.set_len(good)?;
        file.seek(SeekFrom::Start(good))?;
        let mut out = Vec::new();
        if good == 0 {
            JournalEncoder::header(&mut out);
        }
        let (ring, waker) = bounded(1);
        let folder = path.parent().filter(|_| good == 0).map(Path::to_path_buf);
        let syncs = Arc::new(JournalFsyncTracker::new(ring, folder));
        let (synced, asked) = (file.try_clone()?, Arc::clone(&syncs));
        let thread = std::thread::Builder::new()
            .name("journal syncs".to_owned())
            .spawn(move || asked.run(&synced))?;
        let mut log = Self {
            file,
            path,
            writer: JournalEncoder::default(),
            out,
            taken: 0,
            len: good,
            eager: good > 0,
            now: false,
            told: 0,
            said: 0,
            flush,
            syncs,
            thread: Some(thread),
            waker,
            failed: false,
        };
        log.write_out()?;
        Ok(log)
    }

    /// Enables syncing; returns the value that [`FileJournalWriter::durable`] reaches when all
    /// records so far are durable.
    pub(crate) fn sync_from_now_on(&mut self) -> u64 {
        self.eager = true;
        self.now = true;
        // A record without content, which is durable only after all earlier ones.
        self.write(&JournalRecord::Clock { files: 0, mtime: 0 })
    }

    /// Records the device of a file whose `Done` record is written next.
    pub(crate) fn lies_on(&mut self, device: u64, file: &Path) {
        self.flush.lies_on(device, file);
    }

    /// Takes a record for the next [`FileJournalWriter::write_out`]; returns the value that
    /// [`FileJournalWriter::durable`] reaches when it is durable.
    pub(crate) fn write(&mut self, record: &JournalRecord) -> u64 {
        match record {
            JournalRecord::Ranges {
                durable, ranges, ..
            } => {
                self.now |= durable;
                let sizes = ranges.iter().map(|(from, to)| to.saturating_sub(*from));
                self.told = sizes.fold(self.told, u64::saturating_add);
            }
            JournalRecord::Done { durable, size, .. } => {
                self.told = self.told.saturating_add(*size);
                if !durable {
                    self.flush.add();
                }
            }
            // Losing one of these costs a resumed copy only one lookup.
            JournalRecord::Clock { .. }
            | JournalRecord::Durable { .. }
            | JournalRecord::Synced { .. } => {}
            _ => self.now = true,
        }
        // A failed journal is not written again.
        if !self.failed {
            self.writer.write(record, &mut self.out);
        }
        self.taken += 1;
        self.taken
    }

    /// Writes the pending records; call before blocking. A killed process loses only later records.
    ///
    /// # Errors
    /// The journal cannot be written; reported once. The copy continues without a journal.
    pub(crate) fn write_out(&mut self) -> io::Result<()> {
        if self.failed {
            return Ok(());
        }
        let result = self.try_write();
        if result.is_err() {
            self.failed = true;
            self.out = Vec::new();
            self.syncs.give_up();
        }
        result
    }

    fn try_write(&mut self) -> io::Result<()> {
        if self.eager
            && let Some(files) = self.flush.poll()
        {
            self.writer
                .write(&JournalRecord::Durable { files }, &mut self.out);
        }
        if self.out.is_empty() {
            return Ok(());
        }
        let offset = self.syncs.durable_bytes();
        if offset > self.said {
            self.said = offset;
            self.writer
                .write(&JournalRecord::Synced { offset }, &mut self.out);
        }
        self.file.write_all(&self.out)?;
        self.len += self.out.len() as u64;
        self.out.clear();
        if !self.eager {
            return Ok(());
        }
        let now = self.now || self.told >= TOLD;
        if now {
            self.now = false;
            self.told = 0;
        }
        self.syncs.ask(self.taken, self.len, now)
    }

    /// Returns the number of records that are durable or need no more waiting.
    pub(crate) fn durable(&self) -> u64 {
        self.syncs.durable_records()
    }

    /// Returns the number of syncs.
    #[cfg(test)]
    pub(super) fn synced(&self) -> u64 {
        self.syncs.sync_count()
    }

    /// Returns the capacity in bytes of the buffer for pending records.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.out.capacity()
    }

    /// Redirects the log to another file.
    #[cfg(test)]
    pub(super) fn put_in(&mut self, file: File) {
        self.file = file;
    }

    /// Receives a message when [`FileJournalWriter::durable`] has grown.
    pub(crate) fn waker(&self) -> &Receiver<()> {
        &self.waker
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the journal because the copy is complete.
    pub(crate) fn remove(mut self) {
        let _ = fs::remove_file(&self.path);
        debug!(
            "the journal: {} records, {} bytes, synced {} times",
            self.taken,
            self.len,
            self.syncs.sync_count()
        );
        // A running sync need not be awaited.
        self.thread = None;
        self.eager = false;
    }
}

impl Drop for FileJournalWriter {
    fn drop(&mut self) {
        let written = self.write_out();
        self.syncs.end(self.eager && written.is_ok());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
