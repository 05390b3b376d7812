//! Progress of several copies, together and each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use transfer::report::{CopyOutcome, EscapedName, ProgressCounters};

use crate::output::snapshot::RunCounters;

/// Hosts that the progress line shows one by one.
const SHOWN: usize = 6;

/// Progress of the copy of one host.
pub(super) struct HostCopyProgress {
    name: String,
    /// Counters of the copies that were begun, one after the other.
    begun: Mutex<Vec<Arc<ProgressCounters>>>,
    /// Bytes of copies that were not begun yet.
    expected: AtomicU64,
    over: Mutex<Option<HostCopyState>>,
}

/// State of the copy of one host, for the `progress` event and the progress line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HostCopyState {
    /// The copy waits or runs.
    Copying,
    /// Everything was copied.
    Complete,
    /// Files or the connection failed.
    Failed,
}

/// Progress of one host, for the `progress` event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct HostProgress {
    host: String,
    state: HostCopyState,
    bytes_done: u64,
    bytes_total: u64,
}

impl HostProgress {
    /// Describes a host; `bytes` are those done and in all.
    pub(crate) fn new(host: String, state: HostCopyState, bytes: (u64, u64)) -> Self {
        let (bytes_done, bytes_total) = bytes;
        Self {
            host,
            state,
            bytes_done,
            bytes_total,
        }
    }
}

/// Counters of the copies of all hosts, one entry for each. The display shows their sums.
pub(super) struct MultiHostProgress(Vec<HostCopyProgress>);

impl HostCopyProgress {
    /// Notes bytes of copies that will be begun.
    pub(super) fn expect(&self, bytes: u64) {
        self.expected.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the counters of a copy that begins now; `bytes` of it were expected.
    pub(super) fn begin(&self, bytes: u64) -> Arc<ProgressCounters> {
        let counters = Arc::<ProgressCounters>::default();
        let left = |expected: u64| Some(expected.saturating_sub(bytes));
        // Always succeeds.
        let _ = self
            .expected
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.push(Arc::clone(&counters));
        counters
    }

    fn sum(&self, of: impl Fn(&ProgressCounters) -> u64) -> u64 {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let each = begun.iter().map(|copy| of(copy));
        each.fold(0, u64::saturating_add)
    }

    fn bytes(&self) -> (u64, u64) {
        let expected = self.expected.load(Ordering::Relaxed);
        let total = self
            .sum(ProgressCounters::bytes_total)
            .saturating_add(expected);
        (self.sum(ProgressCounters::bytes_done), total)
    }

    fn totals_are_final(&self) -> bool {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        !begun.is_empty() && begun.iter().all(|copy| copy.totals_are_final())
    }

    /// Notes the end of the copy.
    pub(super) fn end(&self, outcome: &CopyOutcome) {
        let state = match outcome {
            CopyOutcome::Complete => HostCopyState::Complete,
            _ => HostCopyState::Failed,
        };
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
    }

    fn state(&self) -> HostCopyState {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        over.unwrap_or(HostCopyState::Copying)
    }

    fn percent(&self) -> u64 {
        let (done, total) = self.bytes();
        let percent = (u128::from(done.min(total)) * 100).checked_div(total.into());
        percent.and_then(|p| u64::try_from(p).ok()).unwrap_or(0)
    }

    fn shown(&self) -> String {
        match self.state() {
            HostCopyState::Copying => format!("{} {}%", self.name, self.percent()),
            HostCopyState::Complete => format!("{} done", self.name),
            HostCopyState::Failed => format!("{} failed", self.name),
        }
    }
}

impl MultiHostProgress {
    pub(super) fn new(names: impl Iterator<Item = String>) -> Self {
        let each = names.map(|name| HostCopyProgress {
            name,
            begun: Mutex::default(),
            expected: AtomicU64::new(0),
            over: Mutex::default(),
        });
        Self(each.collect())
    }

    /// Progress of each host.
    pub(super) fn each(&self) -> &[HostCopyProgress] {
        &self.0
    }

    fn sum(&self, of: impl Fn(&ProgressCounters) -> u64) -> u64 {
        let each = self.0.iter().map(|host| host.sum(&of));
        each.fold(0, u64::saturating_add)
    }
}

impl RunCounters for MultiHostProgress {
    fn bytes_done(&self) -> u64 {
        self.sum(ProgressCounters::bytes_done)
    }

    fn bytes_moved(&self) -> u64 {
        self.sum(ProgressCounters::bytes_moved)
    }

    fn bytes_total(&self) -> u64 {
        let each = self.0.iter().map(|host| host.bytes().1);
        each.fold(0, u64::saturating_add)
    }

    fn files_done(&self) -> u64 {
        self.sum(ProgressCounters::files_done)
    }

    fn files_total(&self) -> u64 {
        self.sum(ProgressCounters::files_total)
    }

    fn totals_are_final(&self) -> bool {
        let is_final = |host: &HostCopyProgress| {
            host.totals_are_final() || host.state() != HostCopyState::Copying
        };
        self.0.iter().all(is_final)
    }

    /// The state of each host, or counts if there are many.
    fn current(&self) -> Option<EscapedName> {
        let text = if self.0.len() <= SHOWN {
            let each: Vec<String> = self.0.iter().map(HostCopyProgress::shown).collect();
            each.join(", ")
        } else {
            let count = |state| self.0.iter().filter(|host| host.state() == state).count();
            let done = count(HostCopyState::Complete);
            let mut text = format!("{done} of {} hosts done", self.0.len());
            let failed = count(HostCopyState::Failed);
            if failed > 0 {
                text.push_str(&format!(", {failed} failed"));
            }
            let begun = |host: &&HostCopyProgress| {
                host.state() == HostCopyState::Copying && host.bytes().0 > 0
            };
            let copying = self.0.iter().filter(begun);
            if let Some(last) = copying.min_by_key(|host| host.percent()) {
                text.push_str(&format!(", slowest {}", last.shown()));
            }
            text
        };
        Some(EscapedName(text.into_bytes()))
    }

    fn hosts(&self) -> Vec<HostProgress> {
        let each = self
            .0
            .iter()
            .map(|host| HostProgress::new(host.name.clone(), host.state(), host.bytes()));
        each.collect()
    }
}
