use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use plan::journal::{Record, Writer};
use tracing::debug;

/// How long records may gather: a sync for each begun file would be most of a small file's time.
const GATHER: Duration = Duration::from_millis(10);
/// How often what was done here is made durable, at most.
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
    eager: Arc<AtomicBool>,
}

/// Writes records as they come: what is written outlives this process, and a sync may take long.
struct Thread {
    file: File,
    writer: Writer,
    /// What is written is synced.
    eager: Arc<AtomicBool>,
    /// Records taken, and the length of the file with them.
    taken: u64,
    len: u64,
    /// What the last `Synced` said.
    told: u64,
    syncs: Sender<Sync>,
    syncing: Arc<Syncing>,
    made_durable: Instant,
    flushing: Option<JoinHandle<bool>>,
    /// The folder that files are copied into, where it is here.
    target: Option<PathBuf>,
    /// Files done that were not synced, and of them those that are being synced.
    soft: u64,
    flushed: u64,
}

/// To be synced: records, bytes of the file.
struct Sync {
    records: u64,
    len: u64,
}

/// How far the syncs are.
struct Syncing {
    records: Arc<AtomicU64>,
    len: AtomicU64,
    ring: Sender<()>,
}

impl Syncing {
    /// Syncs what is written, all at once that has gathered meanwhile.
    fn run(&self, file: &File, syncs: &Receiver<Sync>) {
        let mut last = Instant::now() - GATHER;
        while let Ok(first) = syncs.recv() {
            std::thread::sleep(GATHER.saturating_sub(last.elapsed()));
            let sync = syncs.try_iter().last().unwrap_or(first);
            if let Err(e) = file.sync_data() {
                return self.fail(&e);
            }
            last = Instant::now();
            self.len.store(sync.len, Ordering::SeqCst);
            self.records.fetch_max(sync.records, Ordering::SeqCst);
            let _ = self.ring.try_send(());
        }
    }

    fn fail(&self, e: &io::Error) {
        debug!("the journal could not be written any more: {e}");
        // The copy goes on without: nobody may wait for what does not come.
        self.records.store(u64::MAX, Ordering::SeqCst);
        let _ = self.ring.try_send(());
    }
}

impl Log {
    /// Goes on behind the first `good` bytes of `file`, or begins it: then nothing is synced until
    /// [`Log::sync_from_now_on`]. `target` is where files are
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
        }
        let eager = Arc::new(AtomicBool::new(good > 0));
        let (records, orders) = unbounded();
        let (ring, bell) = bounded(1);
        let (syncs, asked) = unbounded();
        let durable = Arc::new(AtomicU64::new(0));
        let syncing = Arc::new(Syncing {
            records: Arc::clone(&durable),
            len: AtomicU64::new(0),
            ring,
        });
        let synced = file.try_clone()?;
        let mut thread = Thread {
            file,
            writer: Writer::default(),
            eager: Arc::clone(&eager),
            taken: 0,
            len: good.max(header.len() as u64),
            told: 0,
            syncs,
            syncing: Arc::clone(&syncing),
            made_durable: Instant::now(),
            flushing: None,
            target,
            soft,
            flushed: 0,
        };
        // They end when the thread that writes does.
        let sync = std::thread::Builder::new().name("journal syncs".to_owned());
        let sync = sync.spawn(move || syncing.run(&synced, &asked))?;
        let thread = std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || {
                if let Err(e) = thread.run(&orders) {
                    thread.syncing.fail(&e);
                }
                drop(thread);
                let _ = sync.join();
            })?;
        Ok(Self {
            records: Some(records),
            thread: Some(thread),
            given: 0,
            durable,
            bell,
            path,
            eager,
        })
    }

    /// What is written down is worth a sync; returns what [`Log::durable`] reaches when all so
    /// far is durable.
    pub(crate) fn sync_from_now_on(&mut self) -> io::Result<u64> {
        if !self.eager.swap(true, Ordering::SeqCst)
            && let Some(folder) = self.path.parent()
        {
            // Its name has to be found again.
            File::open(folder)?.sync_all()?;
        }
        // Says nothing, but is behind all that does.
        Ok(self.write(Record::Clock { mtime: 0 }))
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
        // And what is not synced yet need not be waited for.
        self.thread = None;
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
        let mut out = Vec::new();
        loop {
            let first = match records.recv_timeout(DURABLE) {
                Ok(record) => Some(record),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            for record in first.into_iter().chain(records.try_iter()) {
                self.taken += 1;
                self.soft += u64::from(matches!(record, Record::Done { durable: false, .. }));
                self.writer.write(&record, &mut out);
            }
            // Looked at before it is written: who asks for syncs hands something over afterwards.
            let eager = self.eager.load(Ordering::SeqCst);
            if eager {
                self.make_durable(&mut out);
            }
            if out.is_empty() {
                continue;
            }
            let offset = self.syncing.len.load(Ordering::SeqCst);
            if offset > self.told {
                self.told = offset;
                self.writer.write(&Record::Synced { offset }, &mut out);
            }
            self.file.write_all(&out)?;
            self.len += out.len() as u64;
            out.clear();
            if !eager {
                continue;
            }
            let (records, len) = (self.taken, self.len);
            // Who syncs has told if it cannot any more.
            let _ = self.syncs.send(Sync { records, len });
        }
    }

    /// Files done here are durable when their file system has written what it had, which may take
    /// long: nothing waits for it.
    fn make_durable(&mut self, out: &mut Vec<u8>) {
        if let Some(flushing) = self.flushing.take_if(|f| f.is_finished())
            && flushing.join().unwrap_or(false)
        {
            let files = std::mem::take(&mut self.flushed);
            self.soft -= files;
            self.writer.write(&Record::Durable { files }, out);
        }
        let due = self.made_durable.elapsed() >= DURABLE && self.flushing.is_none();
        if !due || self.soft == 0 {
            return;
        }
        let Some(target) = &self.target else { return };
        self.made_durable = Instant::now();
        // Of a file, or of what is not there yet, the folder.
        let above = target.parent().filter(|p| !p.as_os_str().is_empty());
        let above = above.unwrap_or_else(|| Path::new("."));
        // To open a FIFO would wait for whoever writes it.
        let folder = if target.is_dir() { target } else { above };
        let Ok(folder) = File::open(folder) else {
            return;
        };
        self.flushed = self.soft;
        let thread = std::thread::Builder::new().name("journal syncfs".to_owned());
        let flush = move || rustix::fs::syncfs(&folder).is_ok();
        self.flushing = thread.spawn(flush).ok();
    }
}
