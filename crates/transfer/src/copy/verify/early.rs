//! Requests checksums while a file is still being copied, so that few are left to request at its
//! end.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::copy::file::{ActiveFiles, CopyFileId};
use crate::sums::{Digest, FileChecksums, RangeChecksum, SumAlgorithm, request, whole_request};

/// Bytes requested as ranges up to which, or up to a quarter of the file, the checksum of the whole
/// file is requested instead. Through a pipe, 64 MiB cost as much as 400 MiB without one.
const LITTLE: u64 = 64 << 20;

/// File that is being copied and whose checksums are requested.
pub(super) struct EarlyChecksumFile {
    sums: Arc<FileChecksums>,
    attempt: u64,
    /// Temporary that the far end writes.
    temporary: Option<Vec<u8>>,
    /// Completed ranges, in the order in which they ended.
    ended: Vec<RangeChecksum>,
    told: BTreeMap<usize, ChecksumRequestState>,
    whole: SourceChecksumState,
}

/// State of the request for the checksum of a whole source during its copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum SourceChecksumState {
    #[default]
    NotAsked,
    Asked,
    Answered(Digest),
    /// The checksum matches the data that passed.
    Matches,
}

/// State of the request for one of a file's checksums: asked, or answered with a match or a
/// difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChecksumRequestState {
    /// The checksum was requested.
    Asked,
    Matches,
    Differs,
}

/// Selects a checksum of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::copy) enum ChecksumSelector {
    Whole,
    /// Index of a range, in the order in which they passed.
    Run(usize),
}

/// Request for a checksum of one copy of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::copy) struct ChecksumRequest {
    pub file: CopyFileId,
    pub sum: ChecksumSelector,
    pub attempt: u64,
    /// Requested before the rename.
    pub early: bool,
}

impl ChecksumRequest {
    /// Request for a file that has its final name.
    pub(super) fn new(file: CopyFileId, sum: ChecksumSelector, attempt: u64) -> Self {
        Self {
            file,
            sum,
            attempt,
            early: false,
        }
    }
}

/// Files that are being copied and whose checksums are requested.
#[derive(Default)]
pub(super) struct EarlyChecksumFiles {
    files: BTreeMap<CopyFileId, EarlyChecksumFile>,
    /// Number of copy attempts so far.
    attempts: u64,
}

impl EarlyChecksumFiles {
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Drops all files, whose checksums are requested at their end.
    pub(super) fn clear(&mut self) {
        self.files.clear();
    }

    /// Drops a file that is no longer being copied.
    pub(super) fn forget(&mut self, id: CopyFileId) {
        self.files.remove(&id);
    }

    /// Number for a new copy attempt.
    fn attempt(&mut self) -> u64 {
        self.attempts += 1;
        self.attempts
    }

    /// The attempt to copy a file whose data has these `sums`.
    pub(super) fn of(
        &mut self,
        id: CopyFileId,
        sums: Arc<FileChecksums>,
    ) -> &mut EarlyChecksumFile {
        let known = self.files.get(&id);
        if known.is_some_and(|m| !Arc::ptr_eq(&m.sums, &sums)) {
            self.files.remove(&id);
        }
        let attempts = &mut self.attempts;
        self.files.entry(id).or_insert_with(|| {
            *attempts += 1;
            EarlyChecksumFile::new(sums, *attempts)
        })
    }

    /// Ends the copy phase of a file with these `sums`. Returns its attempt and the answers so far.
    pub(super) fn copied(
        &mut self,
        id: CopyFileId,
        sums: Option<&Arc<FileChecksums>>,
    ) -> (
        u64,
        BTreeMap<usize, ChecksumRequestState>,
        SourceChecksumState,
    ) {
        let moved = self.files.remove(&id);
        let same = |m: &EarlyChecksumFile| sums.is_some_and(|sums| Arc::ptr_eq(sums, &m.sums));
        match moved.filter(same) {
            Some(moved) => (moved.attempt, moved.told, moved.whole),
            None => (
                self.attempt(),
                BTreeMap::new(),
                SourceChecksumState::NotAsked,
            ),
        }
    }

    /// Stores the far end's checksum of a range of a file that is still being copied. `None` means
    /// that the file could not be read, and the checksum is requested again later.
    pub(super) fn on_sum(
        &mut self,
        ask: ChecksumRequest,
        digest: Option<&Digest>,
        by: SumAlgorithm,
    ) {
        let moving = self.files.get_mut(&ask.file);
        let Some(moving) = moving.filter(|m| m.attempt == ask.attempt) else {
            return;
        };
        let ChecksumSelector::Run(at) = ask.sum else {
            moving.whole = digest.map_or(SourceChecksumState::NotAsked, |d| {
                SourceChecksumState::Answered(d.clone())
            });
            return;
        };
        let expected = moving.ended.get(at).and_then(|sum| sum.by(by));
        match digest {
            None => moving.told.remove(&at),
            Some(_) if digest == expected => moving.told.insert(at, ChecksumRequestState::Matches),
            Some(_) => moving.told.insert(at, ChecksumRequestState::Differs),
        };
    }

    /// Current path of a file that is being copied, and its range number `at`.
    pub(super) fn range_of(
        &self,
        files: &ActiveFiles,
        ask: ChecksumRequest,
        at: usize,
    ) -> Option<(Vec<u8>, &RangeChecksum)> {
        let moving = self.files.get(&ask.file);
        let moving = moving.filter(|m| m.attempt == ask.attempt)?;
        let task = files.get(&ask.file)?;
        let path = moving.temporary.as_deref().unwrap_or_else(|| task.source());
        Some((path.to_vec(), moving.ended.get(at)?))
    }

    /// Request line for a checksum of a file that is being copied, and the number of bytes to sum.
    pub(super) fn sum_request_line(
        &self,
        files: &ActiveFiles,
        ask: ChecksumRequest,
    ) -> Option<(Vec<u8>, u64)> {
        let moving = self.files.get(&ask.file);
        let moving = moving.filter(|m| m.attempt == ask.attempt)?;
        let task = files.get(&ask.file)?;
        let size = task.size().unwrap_or(u64::MAX);
        let ChecksumSelector::Run(at) = ask.sum else {
            return Some((whole_request(task.source()), task.size().unwrap_or(0)));
        };
        let sum = moving.ended.get(at)?;
        let line = match &moving.temporary {
            Some(temporary) => request(temporary, Some(task.target()), sum, size),
            None => request(task.source(), None, sum, size),
        };
        Some((line, sum.len))
    }
}

impl EarlyChecksumFile {
    fn new(sums: Arc<FileChecksums>, attempt: u64) -> Self {
        Self {
            sums,
            attempt,
            temporary: None,
            ended: Vec::new(),
            told: BTreeMap::new(),
            whole: SourceChecksumState::NotAsked,
        }
    }

    /// Notes the temporary that the far end writes.
    pub(super) fn has_temporary(&mut self, path: &[u8]) {
        self.temporary = Some(path.to_vec());
    }

    /// True if the far end's temporary is known.
    pub(super) fn is_readable(&self) -> bool {
        self.temporary.is_some()
    }

    /// Notes that the bytes `from..to` are stored. With `by_whole`, the checksum of a whole file of
    /// `size` bytes is to be requested if few ranges were. Returns true if ranges are to be
    /// requested instead.
    pub(super) fn stored(&self, (from, to): (u64, u64), by_whole: bool, size: u64) -> bool {
        self.sums.settle(from, to);
        let asked: u64 = self.told.keys().map(|at| self.ended[*at].len).sum();
        !(by_whole && asked <= LITTLE.max(size / 4))
    }

    /// Request for the checksum of the whole file, unless there was one.
    pub(super) fn ask_whole(&mut self, file: CopyFileId) -> Option<ChecksumRequest> {
        if self.whole != SourceChecksumState::NotAsked {
            return None;
        }
        self.whole = SourceChecksumState::Asked;
        Some(ChecksumRequest {
            file,
            sum: ChecksumSelector::Whole,
            attempt: self.attempt,
            early: true,
        })
    }

    /// Requests for the checksums of the complete ranges within `from..to`.
    pub(super) fn ask_ranges(
        &mut self,
        file: CopyFileId,
        from: u64,
        to: u64,
    ) -> Vec<ChecksumRequest> {
        let more = self.sums.ended(self.ended.len());
        self.ended.extend(more);
        let mut asks = Vec::new();
        for (at, sum) in self.ended.iter().enumerate() {
            if sum.from >= from && sum.end() <= to && !self.told.contains_key(&at) {
                asks.push(ChecksumRequest {
                    file,
                    sum: ChecksumSelector::Run(at),
                    attempt: self.attempt,
                    early: true,
                });
                self.told.insert(at, ChecksumRequestState::Asked);
            }
        }
        asks
    }
}
