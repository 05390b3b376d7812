use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use schedule::JobId;

use super::{Algorithm, FileSums};

/// What is wanted beside the sums that are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wants {
    /// Nothing.
    #[default]
    Verify,
    /// BLAKE3 of each file.
    Blake3,
    /// SHA-256 of each file.
    Sha256,
}

impl Wants {
    pub(super) fn whole_in_order(self) -> bool {
        self == Self::Sha256
    }
}

/// The algorithm of the far end, once it is known. Files under way look at it for each piece.
#[derive(Debug, Default)]
pub(super) struct Choice {
    by: AtomicU8,
    whole: AtomicBool,
}

impl Choice {
    pub(super) fn get(&self) -> Option<Algorithm> {
        match self.by.load(Ordering::Relaxed) {
            1 => Some(Algorithm::Xxh128),
            2 => Some(Algorithm::Blake3),
            3 => Some(Algorithm::Sha256),
            _ => None,
        }
    }

    /// Sums of whole files are compared, so runs need none by that algorithm.
    pub(super) fn whole(&self) -> bool {
        self.whole.load(Ordering::Relaxed)
    }

    fn set(&self, algorithm: Option<Algorithm>) {
        let number = match algorithm {
            None => 0,
            Some(Algorithm::Xxh128) => 1,
            Some(Algorithm::Blake3) => 2,
            Some(Algorithm::Sha256) => 3,
        };
        self.by.store(number, Ordering::Relaxed);
    }
}

/// The sums of the files that sessions move. One for a run: whoever moves files puts them in,
/// whoever verifies takes them out.
#[derive(Default)]
pub struct Ledger {
    wants: Wants,
    algorithm: Arc<Choice>,
    files: Mutex<BTreeMap<JobId, Arc<FileSums>>>,
}

impl Ledger {
    /// An empty one.
    pub fn new(wants: Wants) -> Self {
        Self {
            wants,
            ..Self::default()
        }
    }

    pub(crate) fn wants(&self) -> Wants {
        self.wants
    }

    /// How the far end makes sums, once that is known.
    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        self.algorithm.get()
    }

    pub(super) fn choice(&self) -> Arc<Choice> {
        Arc::clone(&self.algorithm)
    }

    /// Sums are made so from now on; of `None`, by all algorithms.
    pub(crate) fn choose(&self, algorithm: Option<Algorithm>) {
        self.algorithm.set(algorithm);
    }

    /// Sums of whole files are compared from now on, where they can be made.
    pub(crate) fn choose_whole(&self) {
        self.algorithm.whole.store(true, Ordering::Relaxed);
    }

    /// Whether those of whole files are.
    pub(crate) fn is_whole(&self) -> bool {
        self.algorithm.whole()
    }

    /// The file of `job` begins, or begins anew.
    pub(crate) fn open(&self, job: JobId) -> Arc<FileSums> {
        let sums = FileSums::new(self);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.insert(job, Arc::clone(&sums));
        sums
    }

    /// What passed of the file of `job` so far.
    pub(crate) fn get(&self, job: JobId) -> Option<Arc<FileSums>> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.get(&job).cloned()
    }

    /// The file of `job` is over, well or not.
    pub(crate) fn take(&self, job: JobId) -> Option<Arc<FileSums>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.remove(&job)
    }
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger")
            .field("wants", &self.wants)
            .finish_non_exhaustive()
    }
}
