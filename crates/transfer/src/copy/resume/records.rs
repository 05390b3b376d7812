//! Records of a run: held in memory until the copy is large enough for a journal, and then written.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use schedule::journal::JournalRecord;

use super::worth::ResumableWork;
use crate::copy::file::CopyFileId;
use crate::copy::limits::CopyLimits;
use crate::journal::{FileDevices, JournalStore, JournalWriter};

/// The journal of the run, or, until the copy is large enough for one, its records in memory.
#[derive(Default)]
pub(super) struct RunJournal {
    place: Option<Box<dyn JournalStore>>,
    log: Option<Box<dyn JournalWriter>>,
    /// Target on this machine.
    target: Option<PathBuf>,
    /// The copy is large enough for the journal, so files wait until their records are written.
    waits: bool,
    claims: JournalRecordHandling,
    /// Records to write once the journal exists.
    early: Vec<JournalRecord>,
    /// Devices that hold the finished files, with one file of each.
    devices: FileDevices,
    bytes: u64,
    files: u64,
    next: u64,
    /// Files whose `Begun` record is not durable yet, with the record's number.
    waiting: VecDeque<(u64, CopyFileId)>,
    worth: ResumableWork,
    /// Every file is recorded, however small the copy is.
    records_all: bool,
}

/// Handling of records that claim data at the receiver.
#[derive(Default)]
enum JournalRecordHandling {
    #[default]
    Written,
    /// Records held until it is known that the receiver did not restart.
    Held(Vec<JournalRecord>),
    /// The receiver has lost data.
    Discarded,
}

impl RunJournal {
    /// Records every file, however small the copy is.
    pub(super) fn record_all(&mut self) {
        self.records_all = true;
    }

    /// Notes a target on this machine.
    pub(super) fn set_target(&mut self, target: Option<PathBuf>) {
        self.target = target;
    }

    /// Target on this machine.
    pub(super) fn target(&self) -> Option<&Path> {
        self.target.as_deref()
    }

    /// Keeps the journal at `place` from now on.
    pub(super) fn set_place(&mut self, place: Box<dyn JournalStore>) {
        self.place = Some(place);
    }

    pub(super) fn is_on(&self) -> bool {
        self.place.is_some()
    }

    /// The journal, if it exists.
    pub(super) fn log(&self) -> Option<&dyn JournalWriter> {
        self.log.as_deref()
    }

    /// Takes the journal at the end of the run.
    pub(super) fn take_log(&mut self) -> Option<Box<dyn JournalWriter>> {
        self.log.take()
    }

    /// True if files wait for their records.
    pub(super) fn waits(&self) -> bool {
        self.waits
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

    /// Lets a file wait until its record of this number is durable.
    pub(super) fn wait_for(&mut self, number: u64, id: CopyFileId) {
        self.waiting.push_back((number, id));
    }

    /// Takes the next file whose record is durable.
    pub(super) fn next_written(&mut self) -> Option<CopyFileId> {
        let durable = self.log.as_ref()?.durable();
        let (number, _) = self.waiting.front()?;
        let (_, id) = (*number <= durable)
            .then(|| self.waiting.pop_front())
            .flatten()?;
        Some(id)
    }

    /// Appends to the journal of an earlier run, whose records end before number `next`.
    pub(super) fn go_on(&mut self, log: Box<dyn JournalWriter>, next: u64, worth: ResumableWork) {
        self.log = Some(log);
        self.waits = true;
        self.next = next;
        self.worth = worth;
    }

    /// Number of the next file in the journal.
    pub(super) fn take_number(&mut self) -> u64 {
        let of = self.next;
        self.next += 1;
        of
    }

    /// Counts a file of `size` bytes that begins.
    pub(super) fn count(&mut self, size: u64) {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(size);
    }

    /// True if the copy is large enough for a journal.
    pub(super) fn needs_journal(&self, limits: CopyLimits) -> bool {
        let is_large = self.bytes >= limits.journal_bytes || self.files >= limits.journal_files;
        is_large || self.records_all
    }

    /// Creates the journal and writes the records collected so far. Does nothing if the run keeps
    /// none.
    ///
    /// # Errors
    ///
    /// The journal cannot be written, and the run goes on without it.
    pub(super) fn create(&mut self, boot: impl FnOnce() -> Vec<u8>) -> std::io::Result<()> {
        let Some(place) = &self.place else {
            return Ok(());
        };
        let identity = place.identity().to_vec();
        match place.create(self.target.is_some()) {
            Ok(mut log) => {
                log.write(&JournalRecord::Copy { identity });
                // Do not wait for a server's boot ID. If the server restarts before it answers,
                // what was done until then counts as lost.
                let boot = match self.target.is_some() {
                    true => boot(),
                    false => Vec::new(),
                };
                log.write(&JournalRecord::Run { boot });
                for (device, file) in &std::mem::take(&mut self.devices) {
                    log.lies_on(*device, file);
                }
                for record in &self.early {
                    log.write(record);
                }
                self.log = Some(log);
                Ok(())
            }
            Err(e) => {
                self.place = None;
                self.early.clear();
                Err(e)
            }
        }
    }

    /// Lets files wait for their records from now on. Returns the number of the last record;
    /// `None` if there is no journal.
    pub(super) fn sync_from_now_on(&mut self) -> Option<u64> {
        let number = self.log.as_mut()?.sync_from_now_on();
        self.waits = true;
        self.early.clear();
        Some(number)
    }

    /// Writes the collected records before the run waits for anything.
    pub(super) fn write_out(&mut self) -> std::io::Result<()> {
        match &mut self.log {
            Some(log) => log.write_out(),
            None => Ok(()),
        }
    }

    /// Takes the records for which no journal was written.
    pub(super) fn take_unwritten(&mut self) -> Vec<JournalRecord> {
        std::mem::take(&mut self.early)
    }

    /// True if there is nothing to resume. `made` says that the target exists as a directory that
    /// such a copy makes.
    pub(super) fn is_nothing(&self, made: bool) -> bool {
        self.worth.is_nothing(made)
    }

    /// Notes that a finished local file is on this device, which the next sync must cover.
    pub(super) fn lies_on(&mut self, device: u64, file: &Path) {
        match &mut self.log {
            Some(log) => log.lies_on(device, file),
            None => {
                let file = || file.to_path_buf();
                self.devices.entry(device).or_insert_with(file);
            }
        }
    }

    pub(super) fn write(&mut self, record: JournalRecord) -> u64 {
        if let JournalRecordHandling::Held(_) | JournalRecordHandling::Discarded = self.claims
            && matches!(
                record,
                JournalRecord::Ranges { .. } | JournalRecord::Done { .. }
            )
        {
            if let JournalRecordHandling::Held(held) = &mut self.claims {
                held.push(record);
            }
            return 0;
        }
        if let (JournalRecordHandling::Held(held), JournalRecord::Forgotten { id }) =
            (&mut self.claims, &record)
        {
            let forgotten = *id;
            held.retain(
                |held| !matches!(held, JournalRecord::Ranges { id, .. } if *id == forgotten),
            );
        }
        self.worth.note(&record);
        let number = self.log.as_mut().map_or(0, |log| log.write(&record));
        if !self.waits {
            self.early.push(record);
        }
        number
    }

    /// True if records of received data are written at once.
    pub(super) fn writes_claims(&self) -> bool {
        matches!(self.claims, JournalRecordHandling::Written)
    }

    /// Holds records of received data back.
    pub(super) fn hold_claims(&mut self) {
        self.claims = JournalRecordHandling::Held(Vec::new());
    }

    /// Writes the records that were held back.
    pub(super) fn write_held(&mut self) {
        if let JournalRecordHandling::Held(held) = std::mem::take(&mut self.claims) {
            held.into_iter().for_each(|record| {
                self.write(record);
            });
        }
    }

    /// Writes no more records of received data, which the receiver has lost.
    pub(super) fn discard_claims(&mut self) {
        self.claims = JournalRecordHandling::Discarded;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::cell::{Cell, RefCell};
    use std::io;
    use std::rc::Rc;

    use schedule::journal::{JournalState, SourceFileStamp};

    use crate::journal::EarlierRun;

    /// Journal whose records are kept in memory.
    #[derive(Clone, Default)]
    struct Memory {
        records: Rc<RefCell<Vec<JournalRecord>>>,
        durable: Rc<Cell<u64>>,
        fails: Rc<Cell<bool>>,
    }

    impl JournalStore for Memory {
        fn identity(&self) -> &[u8] {
            b"copy"
        }

        fn beside(&self) -> Option<PathBuf> {
            None
        }

        fn find(&self) -> io::Result<EarlierRun> {
            Ok(EarlierRun::Nothing)
        }

        fn go_on(&self, _: bool, _: u64, _: Vec<PathBuf>) -> io::Result<Box<dyn JournalWriter>> {
            Ok(Box::new(self.clone()))
        }

        fn create(&self, _: bool) -> io::Result<Box<dyn JournalWriter>> {
            match self.fails.get() {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(Box::new(self.clone())),
            }
        }
    }

    impl JournalWriter for Memory {
        fn write(&mut self, record: &JournalRecord) -> u64 {
            self.records.borrow_mut().push(record.clone());
            self.records.borrow().len() as u64
        }

        fn write_out(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn sync_from_now_on(&mut self) -> u64 {
            self.records.borrow().len() as u64
        }

        fn durable(&self) -> u64 {
            self.durable.get()
        }

        fn lies_on(&mut self, _: u64, _: &Path) {}

        fn path(&self) -> &Path {
            Path::new("journal")
        }

        fn left(&self) -> Option<JournalState> {
            None
        }

        fn remove(self: Box<Self>) {}
    }

    fn begun(id: u64) -> JournalRecord {
        JournalRecord::Begun {
            id,
            target: format!("f{id}").into_bytes(),
            source: SourceFileStamp::default(),
            tag: id,
        }
    }

    fn ranges(id: u64) -> JournalRecord {
        JournalRecord::Ranges {
            id,
            durable: false,
            mtime: 0,
            ranges: vec![(0, 5)],
        }
    }

    fn done(id: u64) -> JournalRecord {
        JournalRecord::Done {
            id,
            durable: false,
            size: 5,
            mtime: 0,
        }
    }

    fn journal() -> (RunJournal, Memory) {
        let memory = Memory::default();
        let mut journal = RunJournal::default();
        journal.set_place(Box::new(memory.clone()));
        (journal, memory)
    }

    /// A journal that is begun late has everything from the start of the run, in order.
    #[test]
    fn a_late_journal_begins_with_the_records_so_far() {
        let (mut journal, memory) = journal();
        let early = [begun(0), done(0), begun(1)];
        for record in &early {
            assert_eq!(
                journal.write(record.clone()),
                0,
                "there is no journal to wait for"
            );
        }
        journal
            .create(|| panic!("a server is asked for its boot ID"))
            .expect("there is room");
        assert_eq!(journal.sync_from_now_on(), Some(5));
        assert_eq!(journal.write(ranges(1)), 6);
        let first = [
            JournalRecord::Copy {
                identity: b"copy".to_vec(),
            },
            JournalRecord::Run { boot: Vec::new() },
        ];
        let all = first.into_iter().chain(early).chain([ranges(1)]);
        assert_eq!(*memory.records.borrow(), all.collect::<Vec<_>>());
        assert!(journal.take_unwritten().is_empty());
    }

    #[test]
    fn a_journal_of_this_machine_begins_with_its_boot_id() {
        let (mut journal, memory) = journal();
        journal.set_target(Some("dst".into()));
        journal.create(|| b"boot".to_vec()).expect("there is room");
        let run = JournalRecord::Run {
            boot: b"boot".to_vec(),
        };
        assert_eq!(memory.records.borrow()[1], run);
    }

    /// Without space for a journal the run goes on, and neither waits for records nor collects them.
    #[test]
    fn a_journal_that_cannot_be_created_is_given_up() {
        let (mut journal, memory) = journal();
        memory.fails.set(true);
        journal.write(begun(0));
        assert!(journal.create(Vec::new).is_err());
        assert!(!journal.is_on() && !journal.goes_on() && journal.log().is_none());
        assert_eq!(journal.sync_from_now_on(), None);
        assert!(journal.take_unwritten().is_empty());
        assert!(journal.create(Vec::new).is_ok(), "it is not tried again");
        assert!(journal.log().is_none());
    }

    /// While it is unknown if the receiver has restarted, no record says that it has data.
    #[test]
    fn records_of_received_data_wait_until_the_receiver_is_known() {
        let (mut journal, memory) = journal();
        journal.create(Vec::new).expect("there is room");
        journal.sync_from_now_on();
        let first = memory.records.borrow().len();
        journal.hold_claims();
        assert!(!journal.writes_claims());
        for record in [begun(0), ranges(0), begun(1), ranges(1), done(1)] {
            journal.write(record);
        }
        // The temporary of file 0 is gone: its ranges must not come back.
        let gone = JournalRecord::Forgotten { id: 0 };
        journal.write(gone.clone());
        assert_eq!(
            memory.records.borrow()[first..],
            [begun(0), begun(1), gone.clone()]
        );
        journal.write_held();
        assert!(journal.writes_claims());
        let all = [begun(0), begun(1), gone, ranges(1), done(1)];
        assert_eq!(memory.records.borrow()[first..], all);
        assert!(!journal.is_nothing(false), "a file is done");
    }

    /// The receiver has restarted and lost the data: what was held is dropped, and so is what follows.
    #[test]
    fn records_of_lost_data_are_never_written() {
        let (mut journal, memory) = journal();
        journal.create(Vec::new).expect("there is room");
        journal.sync_from_now_on();
        let first = memory.records.borrow().len();
        journal.hold_claims();
        journal.write(ranges(0));
        journal.discard_claims();
        for record in [ranges(0), done(0), begun(1)] {
            journal.write(record);
        }
        journal.write_held();
        assert_eq!(memory.records.borrow()[first..], [begun(1)]);
        assert!(journal.is_nothing(true), "nothing that arrived is known");
    }

    /// Files start in the order of their records, each once its record is durable and no earlier.
    #[test]
    fn a_file_starts_once_its_record_is_durable() {
        let (mut journal, memory) = journal();
        journal.create(Vec::new).expect("there is room");
        let mut seed = testkit::Seed::new(14);
        let mut next = 0;
        let mut started = 0;
        for _ in 0..500 {
            if seed.below(2) == 0 {
                let number = journal.write(begun(next));
                journal.wait_for(number, CopyFileId(number));
                next += 1;
            }
            let written = memory.records.borrow().len() as u64;
            memory
                .durable
                .set((memory.durable.get() + seed.below(3)).min(written));
            while let Some(CopyFileId(number)) = journal.next_written() {
                assert!(number <= memory.durable.get(), "{number} is not durable");
                // The first two records are not those of files.
                assert_eq!(number, started + 3, "out of order");
                started += 1;
            }
            assert_eq!(journal.waiting() as u64, next - started);
        }
        assert!(started > 100, "{started}");
        journal.drop_waiting();
        assert_eq!(
            (journal.waiting(), journal.next_written().is_none()),
            (0, true)
        );
    }

    /// Small copies are sent again rather than recorded, whichever limit they stay below.
    #[test]
    fn a_copy_needs_a_journal_from_one_of_two_limits() {
        let limits = CopyLimits {
            journal_bytes: 100,
            journal_files: 3,
            ..CopyLimits::default()
        };
        for (sizes, needs) in [
            (vec![], false),
            (vec![99], false),
            (vec![100], true),
            (vec![50, 50], true),
            (vec![1, 1], false),
            (vec![0, 0, 0], true),
            (vec![u64::MAX, u64::MAX], true),
        ] {
            let mut journal = RunJournal::default();
            sizes.iter().for_each(|size| journal.count(*size));
            assert_eq!(journal.needs_journal(limits), needs, "{sizes:?}");
            journal.record_all();
            assert!(journal.needs_journal(limits));
        }
    }
}
