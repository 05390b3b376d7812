//! Compares a remote file, as it is read back, with expected checksums.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use schedule::{DiskReply, DiskRequest, JobFailure, StoredTarget};

use crate::sums::{Hasher, RangeChecksum, SumAlgorithm};

/// A remote file that is read back for comparison: the target of a Get that is written nowhere.
pub(crate) struct ReadBackCheck {
    by: SumAlgorithm,
    expected: Vec<RangeChecksum>,
    size: u64,
    state: Mutex<ReadBackState>,
}

#[derive(Default)]
struct ReadBackState {
    next: u64,
    /// Data that arrived out of order; at most the bytes that a lane has in flight.
    early: BTreeMap<u64, Vec<Bytes>>,
    /// One hasher for each expected sum; `None` once it is finished.
    hashers: Vec<Option<Hasher>>,
}

impl ReadBackCheck {
    /// Prepares the comparison of a file of `size` bytes with these sums by algorithm `by`.
    pub(crate) fn new(expected: Vec<RangeChecksum>, size: u64, by: SumAlgorithm) -> Self {
        let hashers = expected.iter().map(|_| Some(Hasher::new(Some(by))));
        Self {
            state: Mutex::new(ReadBackState {
                hashers: hashers.collect(),
                ..ReadBackState::default()
            }),
            by,
            expected,
            size,
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReadBackState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn handle(&self, request: DiskRequest) -> DiskReply {
        let job = request.job();
        let finished = || {
            let stored = StoredTarget::default();
            DiskReply::Finished { job, stored }
        };
        match request {
            DiskRequest::CreateTarget { .. } => DiskReply::Created {
                job,
                seekable: true,
            },
            DiskRequest::Write { offset, pieces, .. } => match self.write(offset, pieces) {
                Ok(len) => DiskReply::Written { job, offset, len },
                Err(fault) => DiskReply::Failed { job, fault },
            },
            DiskRequest::StoreTarget { pieces, .. } => match self.write(0, pieces) {
                Ok(_) => finished(),
                Err(fault) => DiskReply::Failed { job, fault },
            },
            DiskRequest::FinishTarget { .. } => finished(),
            _ => DiskReply::Released { job },
        }
    }

    fn write(&self, offset: u64, pieces: Vec<Bytes>) -> Result<u64, JobFailure> {
        let len = pieces.iter().map(|p| p.len() as u64).sum();
        let mut state = self.lock();
        state.early.insert(offset, pieces);
        while let Some(pieces) = {
            let next = state.next;
            state.early.remove(&next)
        } {
            for piece in pieces {
                self.feed(&mut state, &piece);
            }
        }
        match state.next > self.size {
            true => Err(JobFailure::new("it is longer than the copied data", true)),
            false => Ok(len),
        }
    }

    /// Adds the next bytes of the file.
    pub(crate) fn take(&self, bytes: &[u8]) {
        self.feed(&mut self.lock(), bytes);
    }

    fn feed(&self, state: &mut ReadBackState, bytes: &[u8]) {
        let (from, to) = (state.next, state.next + bytes.len() as u64);
        for (sum, hasher) in self.expected.iter().zip(&mut state.hashers) {
            let (begin, end) = (sum.from.max(from), sum.end().min(to));
            if let Some(hasher) = hasher.as_mut().filter(|_| begin < end) {
                hasher.update(&bytes[(begin - from) as usize..(end - from) as usize]);
            }
        }
        state.next = to;
    }

    /// True if more bytes arrived than the expected size.
    pub(crate) fn is_longer(&self) -> bool {
        self.lock().next > self.size
    }

    /// Returns the mismatching ranges as offset and length; empty if all match.
    pub(crate) fn wrong(&self) -> Vec<(u64, u64)> {
        let mut state = self.lock();
        let hashers = std::mem::take(&mut state.hashers);
        let mut wrong = Vec::new();
        for (sum, hasher) in self.expected.iter().zip(hashers) {
            let made = hasher
                .and_then(|h| h.finish().pop())
                .map(|(_, digest)| digest);
            if made.as_ref() != sum.by(self.by) || made.is_none() {
                wrong.push((sum.from, sum.len));
            }
        }
        if state.next > self.size {
            wrong.push((self.size, state.next - self.size));
        }
        wrong
    }
}

impl std::fmt::Debug for ReadBackCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Check").finish_non_exhaustive()
    }
}
