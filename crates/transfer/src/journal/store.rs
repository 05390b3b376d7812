//! Interface of a copy to its journal's file.

use std::io;
use std::path::{Path, PathBuf};

use schedule::journal::{JournalRecord, JournalState};

/// Finds or creates the journal of one copy.
pub(crate) trait JournalStore {
    /// Identifies the copy; it is the content of the first record.
    fn identity(&self) -> &[u8];

    /// File beside the target that an older longhaul would use as its journal.
    fn beside(&self) -> Option<PathBuf>;

    /// Looks for the journal of an earlier run and locks it until [`JournalStore::go_on`].
    ///
    /// # Errors
    ///
    /// The journal cannot be read.
    fn find(&self) -> io::Result<EarlierRun>;

    /// Continues the journal that was found. Files that are `here`, on this machine, are made
    /// durable in batches, beginning with `soft` files of the earlier run, of which `files` may
    /// still exist.
    ///
    /// # Errors
    ///
    /// The journal cannot be written.
    fn go_on(
        &self,
        here: bool,
        soft: u64,
        files: Vec<PathBuf>,
    ) -> io::Result<Box<dyn JournalWriter>>;

    /// Creates the journal.
    ///
    /// # Errors
    ///
    /// The journal cannot be written, or another process has just created it.
    fn create(&self, here: bool) -> io::Result<Box<dyn JournalWriter>>;
}

/// Journal of an earlier run, as [`JournalStore::find`] found it.
#[derive(Debug)]
pub(crate) enum EarlierRun {
    Nothing,
    /// Another process is writing the journal.
    Busy(PathBuf),
    /// The journal is not trusted and was renamed; contains a sentence for the user.
    SetAside(String),
    /// State that an earlier run has left.
    Found(Box<JournalState>),
}

/// Journal that is being written. Written records survive this process; they become durable later.
pub(crate) trait JournalWriter {
    /// Takes a record for the next [`JournalWriter::write_out`]; returns the value that
    /// [`JournalWriter::durable`] reaches when it is durable.
    fn write(&mut self, record: &JournalRecord) -> u64;

    /// Writes the pending records; call before waiting. A killed process loses only later records.
    ///
    /// # Errors
    ///
    /// The journal cannot be written; reported once.
    fn write_out(&mut self) -> io::Result<()>;

    /// Enables syncing; returns the value that [`JournalWriter::durable`] reaches when all records
    /// so far are durable.
    fn sync_from_now_on(&mut self) -> u64;

    /// Number of records that are durable or need no more waiting.
    fn durable(&self) -> u64;

    /// Records the device of a file whose `Done` record is written next.
    fn lies_on(&mut self, device: u64, file: &Path);

    /// Path of the file.
    fn path(&self) -> &Path;

    /// State that the written records leave, if they can be read.
    fn left(&self) -> Option<JournalState>;

    /// Removes the journal because the copy is complete or left nothing to resume.
    fn remove(self: Box<Self>);
}
