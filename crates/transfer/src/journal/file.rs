//! The journal's file, behind [`JournalStore`].

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crossbeam_channel::Receiver;
use schedule::journal::{JournalRecord, JournalState};

use super::flush::FileSystemFlusher;
use super::log::FileJournalWriter;
use super::place::{JournalLocation, JournalSearchResult, read_journal};
use super::store::{EarlierRun, JournalStore, JournalWriter};

/// Receives a message when records of the journal have become durable.
pub(crate) type DurableSignal = Rc<RefCell<Option<Receiver<()>>>>;

/// Journal in the user's state folder.
pub(crate) struct JournalFile {
    location: JournalLocation,
    /// Journal that was found: its file, its path, and the length of its sound part.
    found: RefCell<Option<(File, PathBuf, u64)>>,
    waker: DurableSignal,
}

impl JournalFile {
    /// Locates the journal of the copy that `command` identifies, for a local target `target`, in
    /// `folder` if one is given. Once the journal is open, `waker` is signaled when records are
    /// durable.
    pub(crate) fn new(
        command: &[u8],
        target: Option<&Path>,
        folder: Option<&Path>,
        waker: DurableSignal,
    ) -> Self {
        Self {
            location: match folder {
                Some(folder) => JournalLocation::shared(folder, command),
                None => JournalLocation::new(command, target),
            },
            found: RefCell::default(),
            waker,
        }
    }

    fn opened(&self, log: FileJournalWriter) -> Box<dyn JournalWriter> {
        *self.waker.borrow_mut() = Some(log.waker().clone());
        Box::new(log)
    }
}

impl JournalStore for JournalFile {
    fn identity(&self) -> &[u8] {
        self.location.identity()
    }

    fn beside(&self) -> Option<PathBuf> {
        self.location.beside().map(Path::to_path_buf)
    }

    fn find(&self) -> io::Result<EarlierRun> {
        Ok(match self.location.find()? {
            JournalSearchResult::Nothing => EarlierRun::Nothing,
            JournalSearchResult::Busy(path) => EarlierRun::Busy(path),
            JournalSearchResult::SetAside(why) => EarlierRun::SetAside(why),
            JournalSearchResult::Found {
                file,
                path,
                state,
                good,
            } => {
                *self.found.borrow_mut() = Some((file, path, good));
                EarlierRun::Found(state)
            }
        })
    }

    fn go_on(
        &self,
        here: bool,
        soft: u64,
        files: Vec<PathBuf>,
    ) -> io::Result<Box<dyn JournalWriter>> {
        let found = self.found.take();
        let (file, path, good) = found.ok_or(io::ErrorKind::NotFound)?;
        let flush = FileSystemFlusher::new(here).with_earlier(soft, files);
        Ok(self.opened(FileJournalWriter::start(file, path, good, flush)?))
    }

    fn create(&self, here: bool) -> io::Result<Box<dyn JournalWriter>> {
        let (file, path) = self.location.create()?;
        Ok(self.opened(FileJournalWriter::start(
            file,
            path,
            0,
            FileSystemFlusher::new(here),
        )?))
    }
}

impl JournalWriter for FileJournalWriter {
    fn write(&mut self, record: &JournalRecord) -> u64 {
        self.write(record)
    }

    fn write_out(&mut self) -> io::Result<()> {
        self.write_out()
    }

    fn sync_from_now_on(&mut self) -> u64 {
        self.sync_from_now_on()
    }

    fn durable(&self) -> u64 {
        // The signal is sent again for the records after these.
        let _ = self.waker().try_recv();
        self.durable()
    }

    fn lies_on(&mut self, device: u64, file: &Path) {
        self.lies_on(device, file);
    }

    fn path(&self) -> &Path {
        self.path()
    }

    fn left(&self) -> Option<JournalState> {
        let file = File::open(self.path()).ok()?;
        Some(read_journal(&file).ok()?.ok()?.state)
    }

    fn remove(self: Box<Self>) {
        Self::remove(*self);
    }
}
