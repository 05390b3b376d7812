use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, bounded};
use schedule::journal::{Record, Writer};
use tracing::debug;

use super::flush::SyncBatch;
use super::syncs::JournalSyncs;

/// Bytes that were told since the last sync of the journal: those a loss of power here costs, and
/// what is in flight (40 MiB), are sent again. As much as is answered between two syncs at the
/// receiving end, which is told at once, so that it is rarely a sync more.
const TOLD: u64 = 24 << 20;

/// A journal that is being written. What is written outlives this process; a thread makes it
/// durable.
pub(crate) struct Log {
    file: File,
    path: PathBuf,
    writer: Writer,
    /// Records that are not written yet.
    out: Vec<u8>,
    /// Records taken, and the length of the file.
    taken: u64,
    len: u64,
    /// What is written is synced.
    eager: bool,
    /// Somebody waits for a record, or will believe it.
    now: bool,
    /// Bytes told since that was last so.
    told: u64,
    /// What the last `Synced` said.
    said: u64,
    flush: SyncBatch,
    syncs: Arc<JournalSyncs>,
    thread: Option<JoinHandle<()>>,
    /// Wakes who waits for [`Log::durable`].
    bell: Receiver<()>,
    failed: bool,
}

impl Log {
    /// Goes on behind the first `good` bytes of `file`, or begins it: then nothing is synced until
    /// [`Log::sync_from_now_on`]. `flush` makes files durable that are done.
    pub(crate) fn start(
        mut file: File,
        path: PathBuf,
        good: u64,
        flush: SyncBatch,
    ) -> io::Result<Self> {
        file.set_len(good)?;
        file.seek(SeekFrom::Start(good))?;
        let mut out = Vec::new();
        if good == 0 {
            Writer::header(&mut out);
        }
        let (ring, bell) = bounded(1);
        let folder = path.parent().filter(|_| good == 0).map(Path::to_path_buf);
        let syncs = Arc::new(JournalSyncs::new(ring, folder));
        let (synced, asked) = (file.try_clone()?, Arc::clone(&syncs));
        let thread = std::thread::Builder::new()
            .name("journal syncs".to_owned())
            .spawn(move || asked.run(&synced))?;
        let mut log = Self {
            file,
            path,
            writer: Writer::default(),
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
            bell,
            failed: false,
        };
        log.write_out()?;
        Ok(log)
    }

    /// What is written down is worth a sync; returns what [`Log::durable`] reaches when all so
    /// far is durable.
    pub(crate) fn sync_from_now_on(&mut self) -> u64 {
        self.eager = true;
        self.now = true;
        // Says nothing, but is behind all that does.
        self.write(&Record::Clock { mtime: 0 })
    }

    /// A file of which `Done` is written next lies on this device.
    pub(crate) fn lies_on(&mut self, device: u64, file: &Path) {
        self.flush.lies_on(device, file);
    }

    /// Takes a record, to be written at the next [`Log::write_out`]; returns what [`Log::durable`]
    /// reaches when it is durable.
    pub(crate) fn write(&mut self, record: &Record) -> u64 {
        match record {
            Record::Ranges {
                durable, ranges, ..
            } => {
                self.now |= durable;
                let sizes = ranges.iter().map(|(from, to)| to.saturating_sub(*from));
                self.told = sizes.fold(self.told, u64::saturating_add);
            }
            Record::Done { durable, size, .. } => {
                self.told = self.told.saturating_add(*size);
                if !durable {
                    self.flush.add();
                }
            }
            // What these cost who does not find them again is one look.
            Record::Clock { .. } | Record::Durable { .. } | Record::Synced { .. } => {}
            _ => self.now = true,
        }
        // Nobody would ever take it from there.
        if !self.failed {
            self.writer.write(record, &mut self.out);
        }
        self.taken += 1;
        self.taken
    }

    /// Writes what was taken: to be called before anybody is waited for. A process that is killed
    /// loses only what came since.
    ///
    /// # Errors
    /// The journal cannot be written, said once. The copy goes on without.
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
            self.writer.write(&Record::Durable { files }, &mut self.out);
        }
        if self.out.is_empty() {
            return Ok(());
        }
        let offset = self.syncs.len();
        if offset > self.said {
            self.said = offset;
            self.writer.write(&Record::Synced { offset }, &mut self.out);
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

    /// Records that are durable, or need not be waited for any more.
    pub(crate) fn durable(&self) -> u64 {
        self.syncs.durable()
    }

    /// How often it was synced.
    #[cfg(test)]
    pub(super) fn synced(&self) -> u64 {
        self.syncs.made()
    }

    /// Bytes that are kept until they are written.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.out.capacity()
    }

    /// It is written to another file from now on.
    #[cfg(test)]
    pub(super) fn put_in(&mut self, file: File) {
        self.file = file;
    }

    /// Something when [`Log::durable`] has grown.
    pub(crate) fn bell(&self) -> &Receiver<()> {
        &self.bell
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The copy is whole: nobody will ask.
    pub(crate) fn remove(mut self) {
        let _ = fs::remove_file(&self.path);
        debug!(
            "the journal: {} records, {} bytes, synced {} times",
            self.taken,
            self.len,
            self.syncs.made()
        );
        // A sync that is under way need not be waited for.
        self.thread = None;
        self.eager = false;
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let written = self.write_out();
        self.syncs.end(self.eager && written.is_ok());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
