//! Collects the checksums of all files of a run.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use schedule::JobId;

use super::{FileChecksums, SumAlgorithm};

/// The digest that is wanted in addition to the sums that are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WantedDigest {
    /// None.
    #[default]
    Verify,
    /// BLAKE3 of each file.
    Blake3,
    /// SHA-256 of each file.
    Sha256,
}

impl WantedDigest {
    pub(super) fn whole_in_order(self) -> bool {
        self == Self::Sha256
    }
}

/// The far end's algorithm, once known; running files check it for each piece.
#[derive(Debug, Default)]
pub(super) struct SumAlgorithmChoice {
    by: AtomicU8,
    whole: AtomicBool,
}

impl SumAlgorithmChoice {
    pub(super) fn get(&self) -> Option<SumAlgorithm> {
        match self.by.load(Ordering::Relaxed) {
            1 => Some(SumAlgorithm::Xxh128),
            2 => Some(SumAlgorithm::Blake3),
            3 => Some(SumAlgorithm::Sha256),
            _ => None,
        }
    }

    /// True if sums of whole files are compared, so that runs need none by that algorithm.
    pub(super) fn whole(&self) -> bool {
        self.whole.load(Ordering::Relaxed)
    }

    fn set(&self, algorithm: Option<SumAlgorithm>) {
        let number = match algorithm {
            None => 0,
            Some(SumAlgorithm::Xxh128) => 1,
            Some(SumAlgorithm::Blake3) => 2,
            Some(SumAlgorithm::Sha256) => 3,
        };
        self.by.store(number, Ordering::Relaxed);
    }
}

/// The checksums of all files of a run of longhaul: sessions add them, the verifier takes them.
#[derive(Default)]
pub struct ChecksumLedger {
    wants: WantedDigest,
    algorithm: Arc<SumAlgorithmChoice>,
    files: Mutex<BTreeMap<JobId, Arc<FileChecksums>>>,
}

impl ChecksumLedger {
    /// Creates an empty ledger.
    pub fn new(wants: WantedDigest) -> Self {
        Self {
            wants,
            ..Self::default()
        }
    }

    pub(crate) fn wants(&self) -> WantedDigest {
        self.wants
    }

    /// Returns the far end's algorithm, once known.
    pub(crate) fn algorithm(&self) -> Option<SumAlgorithm> {
        self.algorithm.get()
    }

    pub(super) fn choice(&self) -> Arc<SumAlgorithmChoice> {
        Arc::clone(&self.algorithm)
    }

    /// Sets the algorithm for all further sums; `None` means all algorithms.
    pub(crate) fn choose(&self, algorithm: Option<SumAlgorithm>) {
        self.algorithm.set(algorithm);
    }

    /// Requests the comparison of whole files where possible.
    pub(crate) fn choose_whole(&self) {
        self.algorithm.whole.store(true, Ordering::Relaxed);
    }

    /// True if whole files are compared.
    pub(crate) fn is_whole(&self) -> bool {
        self.algorithm.whole()
    }

    /// Starts or restarts the checksums for the file of `job`.
    pub(crate) fn open(&self, job: JobId) -> Arc<FileChecksums> {
        let sums = FileChecksums::new(self);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.insert(job, Arc::clone(&sums));
        sums
    }

    /// Returns the checksums so far for the file of `job`.
    pub(crate) fn get(&self, job: JobId) -> Option<Arc<FileChecksums>> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.get(&job).cloned()
    }

    /// Removes and returns the checksums for the file of `job`, which has ended, with or without
    /// success.
    pub(crate) fn take(&self, job: JobId) -> Option<Arc<FileChecksums>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.remove(&job)
    }
}

impl std::fmt::Debug for ChecksumLedger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger")
            .field("wants", &self.wants)
            .finish_non_exhaustive()
    }
}
