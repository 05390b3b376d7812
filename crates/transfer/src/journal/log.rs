use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use plan::journal::{Record, Writer};
use tracing::debug;

/// How long records may gather: a sync for each begun file would be most of a small file's time.
const GATHER: Duration = Duration::from_millis(10);
/// How often what was done here is made durable.
const DURABLE: Duration = Duration::from_secs(5);

/// A journal that is being written, by a thread of its own.
pub(crate) struct Log {
    records: Option<Sender<Record>>,
    thread: Option<JoinHandle<()>>,
    /// Records handed over.
    given: u64,
    /// Of them, those that are durable.
    durable: Arc<AtomicU64>,
    /// Wakes who waits for that.
    bell: Receiver<()>,
    path: PathBuf,
}

struct Thread {
    file: File,
    writer: Writer,
    /// Length of the file, and what of it is durable.
    len: u64,
    synced: u64,
    durable: Arc<AtomicU64>,
    ring: Sender<()>,
    /// The folder that files are copied into, where it is here.
    target: Option<PathBuf>,
    /// Files done that were not synced.
    soft: u64,
}

impl Log {
    /// Goes on behind the first `good` bytes of `file`, or begins it. `target` is where files are
    /// copied to, where that is here, and `soft` how many of them were done and not synced.
    pub(crate) fn start(
        mut file: File,
        path: PathBuf,
        good: u64,
        target: Option<PathBuf>,
        soft: u64,
    ) -> io::Result<Self> {
        file.set_len(good)?;
        file.seek(SeekFrom::Start(good))?;
        let mut header = Vec::new();
        if good == 0 {
            Writer::header(&mut header);
            file.write_all(&header)?;
            // Its name has to be found again.
            if let Some(folder) = path.parent() {
                File::open(folder)?.sync_all()?;
            }
        }
        let (records, orders) = unbounded();
        let (ring, bell) = bounded(1);
        let durable = Arc::new(AtomicU64::new(0));
        let mut thread = Thread {
            file,
            writer: Writer::default(),
            len: good.max(header.len() as u64),
            synced: 0,
            durable: Arc::clone(&durable),
            ring,
            target,
            soft,
        };
        let thread = std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || {
                if let Err(e) = thread.run(&orders) {
                    debug!("the journal could not be written any more: {e}");
                    // The copy goes on without: nobody may wait for what does not come.
                    thread.durable.store(u64::MAX, Ordering::SeqCst);
                    let _ = thread.ring.try_send(());
                }
            })?;
        Ok(Self {
            records: Some(records),
            thread: Some(thread),
            given: 0,
            durable,
            bell,
            path,
        })
    }

    /// Takes a record; returns what [`Log::durable`] reaches when it is durable.
    pub(crate) fn write(&mut self, record: Record) -> u64 {
        if let Some(records) = &self.records {
            // A thread that has failed said so.
            let _ = records.send(record);
        }
        self.given += 1;
        self.given
    }

    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::SeqCst)
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
        self.end();
    }

    fn end(&mut self) {
        self.records = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.end();
    }
}

impl Thread {
    fn run(&mut self, records: &Receiver<Record>) -> io::Result<()> {
        let mut last = Instant::now() - GATHER;
        let mut made_durable = Instant::now();
        let mut out = Vec::new();
        loop {
            let first = match records.recv_timeout(DURABLE) {
                Ok(record) => Some(record),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            std::thread::sleep(GATHER.saturating_sub(last.elapsed()));
            let mut count = 0;
            for record in first.into_iter().chain(records.try_iter()) {
                count += 1;
                self.soft += u64::from(matches!(record, Record::Done { durable: false, .. }));
                self.writer.write(&record, &mut out);
            }
            if made_durable.elapsed() >= DURABLE {
                made_durable = Instant::now();
                self.make_durable(&mut out)?;
            }
            self.sync(&mut out)?;
            last = Instant::now();
            self.durable.fetch_add(count, Ordering::SeqCst);
            let _ = self.ring.try_send(());
        }
    }

    fn sync(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        if self.synced > 0 {
            let offset = self.synced;
            self.writer.write(&Record::Synced { offset }, out);
        }
        self.file.write_all(out)?;
        self.len += out.len() as u64;
        out.clear();
        self.file.sync_data()?;
        self.synced = self.len;
        Ok(())
    }

    /// Files done here are durable when their file system has written what it had.
    fn make_durable(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let Some(target) = &self.target else {
            return Ok(());
        };
        if self.soft == 0 {
            return Ok(());
        }
        // Of a file, or of what is not there yet, the folder.
        let above = target.parent().filter(|p| !p.as_os_str().is_empty());
        let above = above.unwrap_or_else(|| Path::new("."));
        // To open a FIFO would wait for whoever writes it.
        let folder = if target.is_dir() { target } else { above };
        let Ok(folder) = File::open(folder) else {
            return Ok(());
        };
        if rustix::fs::syncfs(&folder).is_err() {
            return Ok(());
        }
        let files = std::mem::take(&mut self.soft);
        self.writer.write(&Record::Durable { files }, out);
        Ok(())
    }
}
