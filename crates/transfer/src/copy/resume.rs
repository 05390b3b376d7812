//! Journal of a copy: records finished work, and resumes the work of an interrupted run.

mod begin;
mod boot;
mod discard;
mod left;
mod lock_wait;
mod note;
mod shared;
mod task;
mod worth;

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use schedule::JobId;
use schedule::journal::{JournalRecord, JournalState};

use lock_wait::{LockWait, LockWaitStep};
pub(super) use task::ResumeTask;
use worth::ResumableWork;

use super::engine::CopyEngine;
use super::file::FileId;
use super::wait_conditions::{WaitConditions, wait_for};
use super::{CopyLocation as Operand, CopyRequest};
use crate::disk::os_words;
use crate::journal::{EarlierRun, FileDevices, JournalStore, JournalWriter};
use crate::report::EscapedName;
use crate::walk::local_path;

/// Query for the receiver's boot ID at the start of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BootQuery {
    #[default]
    NotSent,
    Sent,
    /// The lane that asked was lost, and another one repeats the request.
    Repeated,
}

/// Journal of a run.
#[derive(Default)]
pub(super) struct ResumeJournal {
    place: Option<Box<dyn JournalStore>>,
    /// State left by an earlier run, minus the files already taken from it.
    state: JournalState,
    /// True if nothing of an earlier run is resumed.
    afresh: bool,
    log: Option<Box<dyn JournalWriter>>,
    /// The copy is large enough for the journal, so files wait until their records are written.
    waits: bool,
    boot_query: BootQuery,
    /// Request for the boot ID before the copy begins, and the file of its answer.
    boot_requested: Option<(JobId, PathBuf)>,
    /// Boot ID of the receiver's kernel; empty if unknown.
    boot: Vec<u8>,
    claims: RecordHandling,
    /// Records to write once the journal exists.
    early: Vec<JournalRecord>,
    /// Devices that hold the finished files, with one file of each.
    devices: FileDevices,
    bytes: u64,
    files: u64,
    next: u64,
    /// Files whose `Begun` record is not durable yet, with the record's number.
    waiting: VecDeque<(u64, FileId)>,
    clock_at: Option<Instant>,
    worth: ResumableWork,
    target: Option<PathBuf>,
    /// Every file is recorded, however small the copy is.
    records_all: bool,
    /// Final name of the file that was finished last at a server, without asking for its time.
    last_untimed: Option<Vec<u8>>,
    /// Temporaries of an earlier run that were removed at a server. What a killed process has sent
    /// may still create one of them, so they are removed again at the end.
    cleared: Vec<Vec<u8>>,
    /// Numbers of their files, which the journal keeps until then.
    cleared_entries: Vec<u64>,
    /// Files and bytes taken from the earlier run.
    taken: (u64, u64),
}

/// Handling of records that claim data at the receiver.
#[derive(Default)]
enum RecordHandling {
    #[default]
    Written,
    /// Records held until it is known that the receiver did not restart.
    Held(Vec<JournalRecord>),
    /// The receiver has lost data.
    Discarded,
}

/// Decision about a file at its start.
pub(super) enum FileStartDecision {
    /// Copy the file now.
    Now,
    /// The file starts or ends later.
    Later,
}

impl ResumeJournal {
    /// Records every file, however small the copy is.
    pub(super) fn record_all(&mut self) {
        self.records_all = true;
    }

    /// Notes that the lane that asked for the boot ID was lost.
    pub(super) fn lose_boot(&mut self) {
        self.boot_query = BootQuery::Repeated;
    }

    pub(super) fn is_on(&self) -> bool {
        self.place.is_some()
    }

    /// The journal, if it exists.
    pub(super) fn log(&self) -> Option<&dyn JournalWriter> {
        self.log.as_deref()
    }

    /// True if files wait for their records and can be resumed.
    pub(super) fn goes_on(&self) -> bool {
        self.waits && self.log.is_some()
    }

    /// Number of files that wait for their records.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn drop_waiting(&mut self) {
        self.waiting.clear();
    }

    /// Notes that a finished local file is on this device, which the next sync must cover.
    fn lies_on(&mut self, device: u64, file: &Path) {
        match &mut self.log {
            Some(log) => log.lies_on(device, file),
            None => {
                let file = || file.to_path_buf();
                self.devices.entry(device).or_insert_with(file);
            }
        }
    }

    fn write(&mut self, record: JournalRecord) -> u64 {
        if let RecordHandling::Held(_) | RecordHandling::Discarded = self.claims
            && matches!(
                record,
                JournalRecord::Ranges { .. } | JournalRecord::Done { .. }
            )
        {
            if let RecordHandling::Held(held) = &mut self.claims {
                held.push(record);
            }
            return 0;
        }
        self.worth.note(&record);
        let number = self.log.as_mut().map_or(0, |log| log.write(&record));
        if !self.waits {
            self.early.push(record);
        }
        number
    }
}
impl CopyEngine<'_> {
    /// Looks for the journal of an earlier run of this copy. Returns false if another process is
    /// running the same copy.
    pub(super) async fn find_journal(&mut self, request: &CopyRequest) -> bool {
        let remote = |place: &Operand| matches!(place, Operand::Remote { .. });
        let to = remote(&request.target);
        let from_hosts = request.sources.iter().all(remote);
        let from_here = !request.sources.iter().any(remote);
        let alike = from_hosts || from_here && to;
        if !self.options.journal || self.options.inplace || !alike {
            return true;
        }
        let local = match &request.target {
            Operand::Local(path) => Some(path.clone()),
            Operand::Remote { .. } => None,
        };
        let identity = self.identity(request);
        let folder = self.options.journal_folder.as_ref();
        let folder = folder.map(|folder| folder.path.as_path());
        let place = self
            .environment
            .journal(&identity, local.as_deref(), folder);
        let found = self.find_unlocked(&*place).await;
        self.keeper.target = local;
        self.keeper.afresh = self.options.afresh;
        if let Some(beside) = place.beside().as_deref().map(EscapedName::from) {
            let why = "ignoring this journal of an older longhaul: journals are now in \
                 ~/.local/state/longhaul; remove it if no older longhaul needs it";
            self.warn(Some(beside), why.to_owned());
        }
        match found {
            Ok(EarlierRun::Nothing) => {}
            Ok(EarlierRun::SetAside(why)) => self.warn(None, why),
            Ok(EarlierRun::Busy(path)) => {
                let what = format!(
                    "another longhaul is already running this copy (journal {}): wait for it, \
                     or end it",
                    EscapedName::from(&*path)
                );
                let target = self.place_name(&request.target);
                self.fail(None, target, what);
                return false;
            }
            Ok(EarlierRun::Found(state)) => self.continue_journal(&*place, state),
            Err(e) => {
                // Keep the existing journal until it can be written again. A second one would be
                // left over then.
                self.warn_of_journal(&os_words(&e));
                return true;
            }
        }
        self.keeper.place = Some(place);
        true
    }

    /// Takes over the work of an interrupted run, and appends to its journal.
    fn continue_journal(&mut self, place: &dyn JournalStore, mut state: Box<JournalState>) {
        let here = self.keeper.target.is_some();
        if let Some(target) = &self.keeper.target {
            state.confine(target.as_os_str().as_bytes());
            state.started(self.environment.boot());
        }
        if state.left_out() > 0 {
            let text = format!(
                "the journal of the interrupted copy lists more files than fit in memory: {} of \
                 them are copied again",
                state.left_out()
            );
            self.warn(None, text);
        }
        let files = state.soft_files().filter(|_| here).map(local_path);
        let log = match place.go_on(here, state.soft() as u64, files.collect()) {
            Ok(log) => log,
            Err(e) => return self.warn_of_journal(&os_words(&e)),
        };
        self.keeper.log = Some(log);
        self.keeper.waits = true;
        self.keeper.next = state.next_id();
        self.keeper.worth = ResumableWork::of(&state);
        let sealed = state.seal();
        self.keeper.write(sealed);
        self.keeper.state = *state;
        if here {
            let boot = self.environment.boot();
            self.keeper.write(JournalRecord::Run { boot });
        }
    }

    /// Reads the journal of an earlier run, waiting for the process that holds its lock: a killed
    /// process may take a moment to exit.
    async fn find_unlocked(&mut self, place: &dyn JournalStore) -> std::io::Result<EarlierRun> {
        let mut patience = LockWait::default();
        loop {
            let found = place.find();
            if !matches!(found, Ok(EarlierRun::Busy(_))) {
                return found;
            }
            match patience.next() {
                Some(LockWaitStep { pause, tell }) => {
                    if tell {
                        let what = "another longhaul is running this copy: waiting until it ends";
                        self.warn(None, what.to_owned());
                    }
                    self.pause(pause).await;
                    if self.environment.is_cancelled() {
                        return found;
                    }
                }
                None => return found,
            }
        }
    }

    /// Waits for `time`, or until the run is interrupted.
    async fn pause(&self, time: Duration) {
        let until = self.environment.now() + time;
        while self.environment.now() < until && !self.environment.is_cancelled() {
            let conditions = WaitConditions {
                cancel: true,
                until: Some(until),
                ..WaitConditions::default()
            };
            wait_for(self.environment, conditions).await;
        }
    }

    fn warn_of_journal(&mut self, why: &str) {
        let text = format!("this copy cannot be resumed if it is interrupted: {why}");
        self.warn(None, text);
    }

    /// Identity of the copy: sources, target and the flags that change the result.
    fn identity(&self, request: &CopyRequest) -> Vec<u8> {
        let mut identity = Vec::new();
        for flag in [
            self.options.recursive,
            self.options.preserve,
            self.options.archive,
        ] {
            identity.push(b'0' + u8::from(flag));
        }
        // A copy made without these flags cannot be resumed with them.
        for (flag, letter) in [
            (self.options.xattrs, b'X'),
            (self.options.acls, b'A'),
            (self.options.hard_links, b'H'),
            (self.options.sparse, b'S'),
            (self.options.numeric_ids, b'n'),
        ] {
            identity.extend(flag.then_some(letter));
        }
        if self.options.part > 0 {
            identity.extend([b'P', b'0'.saturating_add(self.options.part)]);
        }
        if let Some(dir) = &self.options.temp_dir {
            identity.push(b'T');
            identity.extend_from_slice(dir.path());
        }
        if let Some(folder) = &self.options.journal_folder {
            identity.push(b'K');
            identity.extend_from_slice(&folder.key);
        }
        for place in request.sources.iter().chain([&request.target]) {
            identity.push(0);
            identity.extend_from_slice(&self.place_name(place).0);
        }
        identity
    }

    /// Host and path of an operand, with all that distinguishes it from others.
    pub(super) fn place_name(&self, place: &Operand) -> EscapedName {
        match place {
            Operand::Local(path) => {
                let absolute = std::path::absolute(path);
                let path = absolute.as_ref().unwrap_or(path);
                EscapedName(path.as_os_str().as_bytes().to_vec())
            }
            Operand::Remote { host, path } => {
                let host = self.environment.identity(*host);
                EscapedName([host.as_bytes(), b":", path.as_slice()].concat())
            }
        }
    }

    /// Writes the collected records before the run waits for anything.
    pub(super) fn write_out(&mut self) {
        if let Some(Err(e)) = self.keeper.log.as_mut().map(|log| log.write_out()) {
            self.warn_of_journal(&os_words(&e));
        }
    }

    /// True if the journal has nothing to resume. Removes local temporaries that it names. A lost
    /// server may keep some, which the same command removes.
    fn is_worthless(&self, log: &dyn JournalWriter) -> bool {
        let makes = self.options.recursive || self.options.archive;
        let Some(target) = &self.keeper.target else {
            return !self.stopped() && self.keeper.worth.is_nothing(makes);
        };
        if !self
            .keeper
            .worth
            .is_nothing(makes && self.is_local_directory(target))
        {
            return false;
        }
        if let Some(mut left) = log.left() {
            left.confine(target.as_os_str().as_bytes());
            let files: Vec<_> = left
                .unfinished()
                .map(|(_, entry)| (self.ports.named().local_path(&entry.target), entry.tag))
                .collect();
            self.local().sweep_temporaries(&files);
        }
        true
    }

    fn is_local_directory(&self, path: &Path) -> bool {
        let there = self.local().stat(path.as_os_str().as_bytes());
        there.is_ok_and(|stat| stat.is_directory())
    }

    /// Closes the journal at the end of the run. A complete copy needs none, and a small copy that
    /// ended with failed files starts over next time.
    pub(super) fn close_journal(&mut self, whole: bool) {
        let Some(log) = self.keeper.log.take() else {
            if !whole && self.keeper.target.is_some() {
                self.clear_unwritten();
            }
            return;
        };
        let small = !self.keeper.waits;
        if small && !whole && self.keeper.target.is_some() {
            self.clear_unwritten();
        }
        if whole || (small && !self.stopped()) || self.is_worthless(&*log) {
            log.remove();
        } else if !small {
            self.ports.summary_mut().journal = Some(EscapedName::from(log.path()));
        }
    }
}
