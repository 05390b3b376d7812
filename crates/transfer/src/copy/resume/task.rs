//! State left by an earlier run for one file, and the file's position in the journal.

use schedule::journal::ExistingFile;
use schedule::{FileCheckpoint, PartialFile, ReadOnlyFilePolicy, ResumeData};

/// Knowledge and progress of one file that is resumed.
#[derive(Debug, Default)]
pub(in crate::copy) struct ResumeTask {
    /// Number of the file in the journal.
    entry: Option<u64>,
    /// Options for resuming the file.
    keep: Option<Box<ResumeData>>,
    /// Bytes that an earlier run has sent.
    taken: u64,
    /// Bytes that an earlier run or an earlier job of this run has sent: the next job reports them
    /// with its own first bytes.
    adopted: u64,
    /// Answer to the query for the file at the target.
    seen: FileLookup,
    /// Treatment of a read-only file under the final name, which may be that of an earlier run.
    read_only: ReadOnlyFilePolicy,
    /// State of the search for a file that an earlier run may have completed.
    search: CompletedFileSearch,
    /// The journal is written, so that another job or run can continue the file.
    is_recorded: bool,
    /// Bytes of a file between two hosts that its temporary has.
    arrived: PartialFile,
    /// Path of the temporary.
    temporary: Option<Vec<u8>>,
}

/// Answer to a query for a file at the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::copy) enum FileLookup {
    /// No regular file.
    #[default]
    Missing,
    /// A regular file.
    Found(ExistingFile),
    /// The query failed, and there may be a file.
    Failed,
}

impl FileLookup {
    /// The file, if one was found.
    pub(super) fn file(self) -> Option<ExistingFile> {
        match self {
            Self::Found(file) => Some(file),
            Self::Missing | Self::Failed => None,
        }
    }
}

/// Search for a file that an earlier run may have completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::copy) enum CompletedFileSearch {
    #[default]
    Nowhere,
    /// Checking for the temporary.
    Temporary,
    /// Checking for the file under its own name.
    Name,
    /// The temporary exists.
    Found,
}

impl ResumeTask {
    /// Begins the file under number `entry` of the journal.
    pub(super) fn begin(&mut self, entry: u64, keep: ResumeData) {
        self.entry = Some(entry);
        self.arrived = keep.left.clone().unwrap_or_default();
        self.keep = Some(Box::new(keep));
    }

    /// Begins a file that has no number in the journal.
    pub(super) fn begin_unrecorded(&mut self, keep: ResumeData) {
        self.keep = Some(Box::new(keep));
    }

    /// True once it is decided how the file begins.
    pub(super) fn has_begun(&self) -> bool {
        self.keep.is_some()
    }

    /// Number of the file in the journal.
    pub(in crate::copy) fn entry(&self) -> Option<u64> {
        self.entry
    }

    /// Number of the file in the journal if its temporary at `path` has another name than the first
    /// choice for `target`.
    pub(super) fn renamed(&self, target: &[u8], path: &[u8]) -> Option<u64> {
        let keep = self.keep.as_ref()?;
        self.entry.filter(|_| keep.temporary(target, 0) != path)
    }

    /// Options for resuming the file.
    pub(in crate::copy) fn keep(&self) -> Option<Box<ResumeData>> {
        self.keep.clone()
    }

    /// Bytes that an earlier run has sent.
    pub(in crate::copy) fn taken(&self) -> u64 {
        self.taken
    }

    /// Notes that an earlier run has sent `bytes`.
    pub(in crate::copy) fn takes(&mut self, bytes: u64) {
        (self.taken, self.adopted) = (bytes, bytes);
    }

    /// Bytes that the job at work has found at the target.
    pub(in crate::copy) fn adopted(&self) -> u64 {
        self.adopted
    }

    /// Notes that the next job continues a temporary with `arrived` bytes, of which an earlier run
    /// has sent `taken`.
    pub(in crate::copy) fn adopts(&mut self, taken: u64, arrived: u64) {
        (self.taken, self.adopted) = (taken, arrived);
    }

    /// Notes that an earlier run has given the file its final name. A file of that name is replaced
    /// even if its mode, which may be that of the source, forbids writing.
    pub(super) fn was_completed(&mut self) {
        self.read_only = ReadOnlyFilePolicy::Replace;
    }

    /// Notes that an earlier run has begun the file, from a source of `size` bytes. It may have
    /// completed the file without a record of it.
    pub(super) fn was_begun(&mut self, size: u64) {
        if self.read_only == ReadOnlyFilePolicy::AskServer {
            self.read_only = ReadOnlyFilePolicy::ReplaceOfSize(size);
        }
    }

    /// Treatment of a read-only file under the final name.
    pub(in crate::copy) fn read_only(&self) -> ReadOnlyFilePolicy {
        self.read_only
    }

    pub(super) fn search(&mut self, search: CompletedFileSearch) {
        self.search = search;
    }

    pub(super) fn is_search(&self, search: CompletedFileSearch) -> bool {
        self.search == search
    }

    pub(super) fn sees(&mut self, found: FileLookup) {
        self.seen = found;
    }

    pub(super) fn take_seen(&mut self) -> FileLookup {
        std::mem::take(&mut self.seen)
    }

    /// Prepares for a copy of the whole file under the same number.
    pub(in crate::copy) fn start_over(&mut self) {
        self.takes(0);
        if let Some(keep) = &mut self.keep {
            keep.left = None;
        }
    }

    /// Forgets the file's place in the journal, because the target has another path or the file
    /// starts over under another temporary name.
    pub(in crate::copy) fn forget(&mut self) {
        *self = Self {
            is_recorded: self.is_recorded,
            ..Self::default()
        };
    }

    /// Notes if the journal is written.
    pub(in crate::copy) fn set_recorded(&mut self, is_recorded: bool) {
        self.is_recorded = is_recorded;
    }

    /// True if another job or run can continue the file.
    pub(in crate::copy) fn is_recorded(&self) -> bool {
        self.is_recorded && self.keep.is_some()
    }

    /// Notes the temporary of a file.
    pub(in crate::copy) fn has_temporary(&mut self, path: Vec<u8>) {
        self.temporary = Some(path);
    }

    /// Takes the path of the temporary.
    pub(in crate::copy) fn take_temporary(&mut self) -> Option<Vec<u8>> {
        self.temporary.take()
    }

    /// Notes bytes of the temporary that the receiver has confirmed.
    pub(in crate::copy) fn has_arrived(&mut self, kept: &FileCheckpoint) {
        self.arrived.add(kept);
    }

    /// Number of bytes from the start of the file that the temporary has without a gap.
    pub(in crate::copy) fn arrived(&self) -> u64 {
        self.arrived.prefix()
    }

    /// Number of the file in the journal, and the tag of its temporary, if the journal has a part of
    /// it. Nobody else writes the temporary.
    pub(super) fn recorded_part(&self) -> Option<(u64, u64)> {
        let keep = self.keep.as_ref().filter(|keep| keep.shared.is_none())?;
        let entry = self.entry.filter(|_| !self.arrived.ranges.is_empty())?;
        Some((entry, keep.tag))
    }

    /// Notes that nothing has arrived of the file, which has number `entry` in the journal now.
    pub(super) fn begins_again(&mut self, entry: u64) {
        self.entry = Some(entry);
        self.arrived = PartialFile::default();
    }

    /// Prepares another job that continues the temporary of a file between two hosts, which lies
    /// beside `place`. Returns false if the file has to start over.
    pub(in crate::copy) fn continue_temporary(&mut self, place: &[u8]) -> bool {
        let Some(keep) = &mut self.keep else {
            return false;
        };
        let first = Some(keep.temporary(place, 0));
        let left = self.arrived.clone().into_prefix();
        let continues = first == self.temporary && !left.ranges.is_empty();
        keep.left = continues.then_some(left);
        continues
    }

    /// Notes that the receiver's session starts the file over under the next temporary name.
    pub(in crate::copy) fn was_left_aside(&mut self) {
        self.takes(0);
        self.arrived = PartialFile::default();
        if let Some(keep) = &mut self.keep {
            keep.left = None;
            keep.again = keep.again.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of the job before counted as moved once more: the rate after a lost connection was
    /// that of 276 MB where 151 MB had moved.
    #[test]
    fn a_job_that_continues_another_counted_its_bytes_as_moved() {
        let mut task = ResumeTask::default();
        task.takes(5);
        assert_eq!((task.taken(), task.adopted()), (5, 5));
        task.adopts(5, 12);
        assert_eq!((task.taken(), task.adopted()), (5, 12));
        task.was_left_aside();
        assert_eq!((task.taken(), task.adopted()), (0, 0));
    }

    fn keep(tag: u64) -> ResumeData {
        ResumeData {
            tag,
            ..ResumeData::default()
        }
    }

    fn checkpoint(ranges: &[(u64, u64)]) -> FileCheckpoint {
        FileCheckpoint {
            durable: false,
            mtime: 1,
            ranges: ranges.to_vec(),
        }
    }

    /// Only bytes from the start without a gap are continued between two hosts: a gap would stay a
    /// hole in the file.
    #[test]
    fn a_temporary_is_continued_up_to_its_first_gap() {
        let mut task = ResumeTask::default();
        assert!(!task.continue_temporary(b"dst/f"), "nothing has begun");
        task.begin(1, keep(9));
        let first = keep(9).temporary(b"dst/f", 0);
        task.has_temporary(first.clone());
        assert!(!task.continue_temporary(b"dst/f"), "nothing has arrived");
        task.has_arrived(&checkpoint(&[(100, 200)]));
        assert!(!task.continue_temporary(b"dst/f"), "its start is missing");
        task.has_arrived(&checkpoint(&[(0, 50)]));
        assert_eq!(task.arrived(), 50);
        assert!(task.continue_temporary(b"dst/f"));
        let left = task
            .keep()
            .and_then(|keep| keep.left)
            .expect("it is continued");
        assert_eq!(left.ranges, [(0, 50)]);
    }

    /// Under another name than the first choice, the next job would not find the temporary.
    #[test]
    fn a_temporary_under_another_name_starts_over() {
        let mut task = ResumeTask::default();
        task.begin(1, keep(9));
        task.has_arrived(&checkpoint(&[(0, 50)]));
        task.has_temporary(keep(9).temporary(b"dst/f", 1));
        assert!(!task.continue_temporary(b"dst/f"));
        assert!(
            task.keep().is_some_and(|keep| keep.left.is_none()),
            "its bytes are not expected"
        );
    }

    /// A request of the lost connection may still rename the first temporary: the next one has
    /// another name and nothing of the old one.
    #[test]
    fn a_file_that_was_left_aside_starts_over_under_another_name() {
        let mut task = ResumeTask::default();
        task.begin(1, keep(9));
        task.takes(30);
        task.has_arrived(&checkpoint(&[(0, 50)]));
        let first = task.keep().expect("begun").temporary(b"dst/f", 0);
        task.was_left_aside();
        let next = task.keep().expect("begun").temporary(b"dst/f", 0);
        assert_ne!(next, first);
        assert_eq!((task.taken(), task.arrived()), (0, 0));
        assert_eq!(task.entry(), Some(1), "it has its number in the journal");
    }

    /// The journal has a part of a file only if a checkpoint was recorded, and it is this process's
    /// own.
    #[test]
    fn a_part_is_recorded_once_something_has_arrived_in_a_temporary_of_its_own() {
        let mut task = ResumeTask::default();
        task.has_arrived(&checkpoint(&[(0, 50)]));
        assert_eq!(task.recorded_part(), None, "nothing has begun");
        task.begin(4, keep(9));
        assert_eq!(task.recorded_part(), None, "nothing has arrived");
        task.has_arrived(&checkpoint(&[(5, 50)]));
        assert_eq!(task.recorded_part(), Some((4, 9)));
        task.begins_again(6);
        assert_eq!((task.recorded_part(), task.entry()), (None, Some(6)));
        let mut shared = ResumeTask::default();
        let work = schedule::SharedTemp::Range(0, 10);
        shared.begin(
            4,
            ResumeData {
                shared: Some(work),
                ..keep(9)
            },
        );
        shared.has_arrived(&checkpoint(&[(0, 5)]));
        assert_eq!(shared.recorded_part(), None, "others write it too");
    }

    /// The journal is written or not for all targets alike.
    #[test]
    fn a_file_with_another_target_forgets_its_part_and_not_that_there_is_a_journal() {
        let mut task = ResumeTask::default();
        task.set_recorded(true);
        assert!(!task.is_recorded(), "it has not begun");
        task.begin(4, keep(9));
        assert!(task.is_recorded());
        task.was_completed();
        task.forget();
        assert!(!task.has_begun() && task.read_only() == ReadOnlyFilePolicy::AskServer);
        task.begin(5, keep(10));
        assert!(task.is_recorded());
    }
}
