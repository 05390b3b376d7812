//! The journal's file, in memory: a killed process leaves what was written, a machine that loses
//! its power what was synced.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use schedule::journal::{JournalEncoder, JournalRecord, JournalState, replay};

use crate::journal::{EarlierRun, JournalStore, JournalWriter};

/// Path of the journal on the simulated machine.
pub(super) const JOURNAL: &str = "/home/u/state/copy.journal";
/// Time that a sync of records takes to which a file waits, and of others.
const SOON: Duration = Duration::from_millis(10);
const LAZY: Duration = Duration::from_secs(1);

/// The journal of the simulated machine.
#[derive(Default)]
pub(super) struct Stored {
    /// Content of the file, if it exists.
    bytes: Option<Vec<u8>>,
    /// Bytes and records of it that survive a power loss.
    synced: usize,
    durable: u64,
    /// Next sync: its time, and the bytes and records that it covers.
    due: Option<(Instant, usize, u64)>,
    /// Now.
    now: Option<Instant>,
    /// Operation on the journal that fails.
    pub(super) failure: Option<JournalFailure>,
}

/// Operation on the journal that fails for lack of space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JournalFailure {
    Find,
    GoOn,
    Create,
    /// Writing beyond this size in bytes: the records that do not fit are written in part.
    WriteBeyond(usize),
}

pub(super) type Shared = Rc<RefCell<Stored>>;

fn no_space() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

impl Stored {
    pub(super) fn at(&mut self, now: Instant) {
        self.now = Some(now);
        if let Some((at, bytes, records)) = self.due
            && at <= now
        {
            (self.synced, self.durable) = (bytes, records);
            self.due = None;
        }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.due.map(|(at, ..)| at)
    }

    /// Changes the contents of the journal's file.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        if let Some(bytes) = &mut self.bytes {
            change(bytes);
            self.synced = self.synced.min(bytes.len());
        }
    }

    /// Removes the journal's file.
    pub(super) fn delete(&mut self) {
        (self.bytes, self.synced, self.due) = (None, 0, None);
    }

    /// Fails if `operation` does.
    fn may(&self, operation: JournalFailure) -> io::Result<()> {
        match self.failure == Some(operation) {
            true => Err(no_space()),
            false => Ok(()),
        }
    }

    /// True if a run has left a journal.
    pub(super) fn exists(&self) -> bool {
        self.bytes.is_some()
    }

    /// State after all records of the file.
    pub(super) fn state(&self) -> JournalState {
        let replayed = replay(self.bytes.as_deref().unwrap_or_default());
        replayed.expect("the journal is sound").state
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable
    }

    /// Drops what was written and not synced.
    pub(super) fn lose_power(&mut self) {
        if let Some(bytes) = &mut self.bytes {
            bytes.truncate(self.synced);
            if bytes.is_empty() {
                self.bytes = None;
            }
        }
        self.due = None;
    }

    fn ask(&mut self, soon: bool, records: u64) {
        let Some(now) = self.now else { return };
        let len = self.bytes.as_ref().map_or(0, Vec::len);
        let at = now + if soon { SOON } else { LAZY };
        let at = self.due.map_or(at, |(due, ..)| due.min(at));
        self.due = Some((at, len, records));
    }
}

/// [`JournalStore`] of the simulated machine.
pub(super) struct SimStore {
    stored: Shared,
    identity: Vec<u8>,
}

impl SimStore {
    pub(super) fn new(stored: Shared, identity: &[u8]) -> Self {
        let identity = identity.to_vec();
        Self { stored, identity }
    }

    fn log(&self) -> SimLog {
        let stored = Rc::clone(&self.stored);
        let mut at = stored.borrow_mut();
        at.durable = 0;
        at.due = None;
        drop(at);
        SimLog {
            eager: false,
            stored,
            writer: JournalEncoder::default(),
            out: Vec::new(),
            taken: 0,
            soon: false,
            failed: false,
        }
    }
}

impl JournalStore for SimStore {
    fn identity(&self) -> &[u8] {
        &self.identity
    }

    fn beside(&self) -> Option<PathBuf> {
        None
    }

    fn find(&self) -> io::Result<EarlierRun> {
        let mut stored = self.stored.borrow_mut();
        stored.may(JournalFailure::Find)?;
        let Some(bytes) = &mut stored.bytes else {
            return Ok(EarlierRun::Nothing);
        };
        let left = replay(bytes).map_err(|e| io::Error::other(e.to_string()))?;
        if left.state.identity().is_empty() {
            stored.bytes = None;
            return Ok(EarlierRun::Nothing);
        }
        assert_eq!(left.state.identity(), self.identity, "of the same copy");
        bytes.truncate(left.good);
        let good = left.good;
        stored.synced = stored.synced.min(good);
        Ok(EarlierRun::Found(Box::new(left.state)))
    }

    fn go_on(&self, _: bool, _: u64, _: Vec<PathBuf>) -> io::Result<Box<dyn JournalWriter>> {
        self.stored.borrow().may(JournalFailure::GoOn)?;
        let mut log = self.log();
        log.eager = true;
        Ok(Box::new(log))
    }

    fn create(&self, _: bool) -> io::Result<Box<dyn JournalWriter>> {
        self.stored.borrow().may(JournalFailure::Create)?;
        if self.stored.borrow().exists() {
            return Err(io::Error::other(
                "another longhaul has just started the same copy",
            ));
        }
        let mut bytes = Vec::new();
        JournalEncoder::header(&mut bytes);
        let mut stored = self.stored.borrow_mut();
        (stored.bytes, stored.synced) = (Some(bytes), 0);
        drop(stored);
        Ok(Box::new(self.log()))
    }
}

struct SimLog {
    stored: Shared,
    writer: JournalEncoder,
    out: Vec<u8>,
    taken: u64,
    eager: bool,
    soon: bool,
    /// Writing has failed.
    failed: bool,
}

impl JournalWriter for SimLog {
    fn write(&mut self, record: &JournalRecord) -> u64 {
        self.writer.write(record, &mut self.out);
        self.soon |= matches!(
            record,
            JournalRecord::Begun { .. } | JournalRecord::Ranges { durable: true, .. }
        );
        self.taken += 1;
        self.taken
    }

    fn write_out(&mut self) -> io::Result<()> {
        if self.out.is_empty() || self.failed {
            return Ok(());
        }
        let mut stored = self.stored.borrow_mut();
        let limit = match stored.failure {
            Some(JournalFailure::WriteBeyond(limit)) => limit,
            _ => usize::MAX,
        };
        if let Some(bytes) = &mut stored.bytes {
            if bytes.len() + self.out.len() > limit {
                let room = limit.saturating_sub(bytes.len()).min(self.out.len());
                bytes.extend(self.out.drain(..room));
                // Nothing is written any more, and no file waits for it.
                (self.failed, stored.durable, stored.due) = (true, u64::MAX, None);
                return Err(no_space());
            }
            bytes.append(&mut self.out);
        }
        if self.eager {
            stored.ask(std::mem::take(&mut self.soon), self.taken);
        }
        Ok(())
    }

    fn sync_from_now_on(&mut self) -> u64 {
        self.eager = true;
        self.soon = true;
        self.write(&JournalRecord::Clock { files: 0, mtime: 0 })
    }

    fn durable(&self) -> u64 {
        self.stored.borrow().durable()
    }

    fn lies_on(&mut self, _: u64, _: &Path) {}

    fn path(&self) -> &Path {
        Path::new(JOURNAL)
    }

    fn left(&self) -> Option<JournalState> {
        let stored = self.stored.borrow();
        Some(replay(stored.bytes.as_ref()?).ok()?.state)
    }

    fn remove(self: Box<Self>) {
        let mut stored = self.stored.borrow_mut();
        (stored.bytes, stored.synced, stored.due) = (None, 0, None);
    }
}
