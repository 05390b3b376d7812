//! Requests checksums while a file is still being copied, so that few are left to request at its
//! end.

use std::collections::BTreeMap;
use std::sync::Arc;

use schedule::JobId;

use super::Verification;
use crate::copy::engine::{CopyEngine, CopySide, JobPurpose};
use crate::copy::file::FileId;
use crate::sums::{Digest, FileSums, RangeSum, SumAlgorithm, request, whole_request};

/// Bytes requested as ranges up to which, or up to a quarter of the file, the checksum of the whole
/// file is requested instead. Through a pipe, 64 MiB cost as much as 400 MiB without one.
const LITTLE: u64 = 64 << 20;

/// File that is being copied and whose checksums are requested.
pub(super) struct CopyingFile {
    sums: Arc<FileSums>,
    attempt: u64,
    /// Temporary that the far end writes.
    temporary: Option<Vec<u8>>,
    /// Completed ranges, in the order in which they ended.
    ended: Vec<RangeSum>,
    told: BTreeMap<usize, SumState>,
    whole: WholeSumState,
}

/// State of the request for the checksum of a whole source during its copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum WholeSumState {
    #[default]
    NotAsked,
    Asked,
    Answered(Digest),
    /// The checksum matches the data that passed.
    Matches,
}

/// State of one of a file's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SumState {
    /// The checksum was requested.
    Asked,
    Matches,
    Differs,
}

/// Selects a checksum of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::copy) enum SumSelector {
    Whole,
    /// Index of a range, in the order in which they passed.
    Run(usize),
}

/// Request for a checksum of one copy of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::copy) struct SumRequest {
    pub file: FileId,
    pub sum: SumSelector,
    pub attempt: u64,
    /// Requested before the rename.
    pub early: bool,
}

impl SumRequest {
    /// Request for a file that has its final name.
    pub(super) fn new(file: FileId, sum: SumSelector, attempt: u64) -> Self {
        Self {
            file,
            sum,
            attempt,
            early: false,
        }
    }
}

impl Verification {
    /// Number for a new copy attempt.
    fn attempt(&mut self) -> u64 {
        self.next_attempt += 1;
        self.next_attempt
    }

    /// Drops a file that is no longer being copied.
    pub(in crate::copy) fn forget(&mut self, id: FileId) {
        self.moving.remove(&id);
    }

    /// Ends the copy phase of a file with these `sums`. Returns its attempt and the answers so far.
    pub(super) fn copied(
        &mut self,
        id: FileId,
        sums: Option<&Arc<FileSums>>,
    ) -> (u64, BTreeMap<usize, SumState>, WholeSumState) {
        let moved = self.moving.remove(&id);
        let same = |m: &CopyingFile| sums.is_some_and(|sums| Arc::ptr_eq(sums, &m.sums));
        match moved.filter(same) {
            Some(moved) => (moved.attempt, moved.told, moved.whole),
            None => (self.attempt(), BTreeMap::new(), WholeSumState::NotAsked),
        }
    }

    /// Stores the far end's checksum of a range of a file that is still being copied. `None` means
    /// that the file could not be read, and the checksum is requested again later.
    pub(super) fn on_moving_sum(
        &mut self,
        ask: SumRequest,
        digest: Option<&Digest>,
        by: SumAlgorithm,
    ) {
        let moving = self.moving.get_mut(&ask.file);
        let Some(moving) = moving.filter(|m| m.attempt == ask.attempt) else {
            return;
        };
        let SumSelector::Run(at) = ask.sum else {
            moving.whole = digest.map_or(WholeSumState::NotAsked, |d| {
                WholeSumState::Answered(d.clone())
            });
            return;
        };
        let expected = moving.ended.get(at).and_then(|sum| sum.by(by));
        match digest {
            None => moving.told.remove(&at),
            Some(_) if digest == expected => moving.told.insert(at, SumState::Matches),
            Some(_) => moving.told.insert(at, SumState::Differs),
        };
    }
}

impl CopyEngine<'_> {
    fn moving_file(&self, job: JobId) -> Option<FileId> {
        match self.ports.jobs().get(&job)? {
            (end, JobPurpose::File(id, _)) if Some(*end) == self.far_end() => Some(*id),
            _ => None,
        }
    }

    /// Returns the data that has passed for `job`, if checksums can be requested.
    fn moving(&mut self, job: JobId) -> Option<(FileId, &mut CopyingFile)> {
        if !self.verify.wanted || self.verify.far.is_given_up() {
            return None;
        }
        let id = self.moving_file(job)?;
        let sums = self.verify.ledger.as_ref()?.get(job)?;
        let known = self.verify.moving.get(&id);
        if known.is_none_or(|m| !Arc::ptr_eq(&m.sums, &sums)) {
            let moving = CopyingFile {
                sums,
                attempt: self.verify.attempt(),
                temporary: None,
                ended: Vec::new(),
                told: BTreeMap::new(),
                whole: WholeSumState::NotAsked,
            };
            self.verify.moving.insert(id, moving);
        }
        Some((id, self.verify.moving.get_mut(&id)?))
    }

    /// Notes the temporary that the far end writes for `job`.
    pub(in crate::copy) fn note_temporary(&mut self, job: JobId, path: &[u8]) {
        if let Some((_, moving)) = self.moving(job) {
            moving.temporary = Some(path.to_vec());
        }
    }

    /// Requests checksums of bytes that are stored at the target, with no unanswered writes to
    /// their range.
    pub(in crate::copy) fn verify_early(&mut self, job: JobId, from: u64, to: u64) {
        let upload = self.far_end() == Some(CopySide::Target);
        // A file that ends in a hole gets its length last, and a program would find less than was
        // skipped.
        if upload && self.options.sparse {
            return;
        }
        self.find_ours();
        let by_whole = self.verify.compares_whole(self.environment.now());
        let size = self
            .moving_file(job)
            .and_then(|id| self.files.get(&id)?.size());
        let size = size.unwrap_or(0);
        let Some((file, moving)) = self.moving(job) else {
            return;
        };
        if upload && moving.temporary.is_none() {
            return;
        }
        moving.sums.settle(from, to);
        let asked: u64 = moving.told.keys().map(|at| moving.ended[*at].len).sum();
        if by_whole && asked <= LITTLE.max(size / 4) {
            // A source is complete from the start. A target's whole checksum is requested at its
            // end.
            if !upload && moving.whole == WholeSumState::NotAsked {
                moving.whole = WholeSumState::Asked;
                let sum = SumSelector::Whole;
                let attempt = moving.attempt;
                let early = true;
                self.verify.far.want(SumRequest {
                    file,
                    sum,
                    attempt,
                    early,
                });
            }
            return;
        }
        let more = moving.sums.ended(moving.ended.len());
        moving.ended.extend(more);
        let attempt = moving.attempt;
        let mut asks = Vec::new();
        for (at, sum) in moving.ended.iter().enumerate() {
            if sum.from >= from && sum.end() <= to && !moving.told.contains_key(&at) {
                asks.push(SumRequest {
                    file,
                    sum: SumSelector::Run(at),
                    attempt,
                    early: true,
                });
            }
        }
        for ask in &asks {
            if let SumSelector::Run(at) = ask.sum {
                moving.told.insert(at, SumState::Asked);
            }
        }
        for ask in asks {
            self.verify.far.want(ask);
        }
    }

    /// Current path of a file that is being copied, and its range number `at`.
    pub(super) fn moving_range(&self, ask: SumRequest, at: usize) -> Option<(Vec<u8>, &RangeSum)> {
        let moving = self.verify.moving.get(&ask.file);
        let moving = moving.filter(|m| m.attempt == ask.attempt)?;
        let task = self.files.get(&ask.file)?;
        let path = moving.temporary.as_deref().unwrap_or_else(|| task.source());
        Some((path.to_vec(), moving.ended.get(at)?))
    }

    /// Request line for a checksum of a file that is being copied, and the number of bytes to sum.
    pub(super) fn line_of_moving(&self, ask: SumRequest) -> Option<(Vec<u8>, u64)> {
        let moving = self.verify.moving.get(&ask.file);
        let moving = moving.filter(|m| m.attempt == ask.attempt)?;
        let task = self.files.get(&ask.file)?;
        let size = task.size().unwrap_or(u64::MAX);
        let SumSelector::Run(at) = ask.sum else {
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
