//! State left by an earlier run for one file, and the file's position in the journal.

use schedule::ResumeData;
use schedule::journal::ExistingFile;

/// Resuming of one file.
#[derive(Debug, Default)]
pub(in crate::copy) struct ResumeTask {
    /// Number of the file in the journal.
    entry: Option<u64>,
    /// Options for resuming the file.
    keep: Option<Box<ResumeData>>,
    /// Bytes that an earlier run has sent.
    taken: u64,
    /// Existing file at the target, if that was queried.
    seen: Option<ExistingFile>,
    /// State of the search for a file that an earlier run may have completed.
    search: CompletedFileSearch,
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
    pub(super) fn entry(&self) -> Option<u64> {
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
        self.taken = bytes;
    }

    pub(super) fn search(&mut self, search: CompletedFileSearch) {
        self.search = search;
    }

    pub(super) fn is_search(&self, search: CompletedFileSearch) -> bool {
        self.search == search
    }

    pub(super) fn sees(&mut self, file: Option<ExistingFile>) {
        self.seen = file;
    }

    pub(super) fn take_seen(&mut self) -> Option<ExistingFile> {
        self.seen.take()
    }

    /// Prepares for a copy of the whole file under the same number.
    pub(in crate::copy) fn start_over(&mut self) {
        self.taken = 0;
        if let Some(keep) = &mut self.keep {
            keep.left = None;
        }
    }

    /// Forgets the file's place in the journal because the target has another path.
    pub(in crate::copy) fn forget(&mut self) {
        (self.entry, self.keep, self.taken) = (None, None, 0);
    }
}
