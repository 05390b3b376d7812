//! Progress of several copies, together and each.

use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use transfer::report::{Name, Outcome, Progress};

use crate::output::snapshot::Counters;

/// Hosts that the progress line shows one by one.
const SHOWN: usize = 6;

/// Progress of the copy of one host.
pub(super) struct HostCopyProgress {
    name: String,
    progress: Progress,
    over: Mutex<Option<HostState>>,
}

/// State of a host's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HostState {
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
    state: HostState,
    bytes_done: u64,
    bytes_total: u64,
}

impl HostProgress {
    /// Describes a host; `bytes` are those done and in all.
    pub(crate) fn new(host: String, state: HostState, bytes: (u64, u64)) -> Self {
        let (bytes_done, bytes_total) = bytes;
        Self {
            host,
            state,
            bytes_done,
            bytes_total,
        }
    }
}

/// Progress of all copies.
pub(super) struct SeveralProgress(Vec<HostCopyProgress>);

impl HostCopyProgress {
    /// Counters of the copy.
    pub(super) fn counters(&self) -> &Progress {
        &self.progress
    }

    /// Notes the end of the copy.
    pub(super) fn end(&self, outcome: &Outcome) {
        let state = match outcome {
            Outcome::Complete => HostState::Complete,
            _ => HostState::Failed,
        };
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
    }

    fn state(&self) -> HostState {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        over.unwrap_or(HostState::Copying)
    }

    fn percent(&self) -> u64 {
        let (done, total) = (self.progress.bytes_done(), self.progress.bytes_total());
        let percent = (u128::from(done.min(total)) * 100).checked_div(total.into());
        percent.and_then(|p| u64::try_from(p).ok()).unwrap_or(0)
    }

    fn shown(&self) -> String {
        match self.state() {
            HostState::Copying => format!("{} {}%", self.name, self.percent()),
            HostState::Complete => format!("{} done", self.name),
            HostState::Failed => format!("{} failed", self.name),
        }
    }
}

impl SeveralProgress {
    pub(super) fn new(names: impl Iterator<Item = String>) -> Self {
        let each = names.map(|name| HostCopyProgress {
            name,
            progress: Progress::default(),
            over: Mutex::default(),
        });
        Self(each.collect())
    }

    /// Progress of each host.
    pub(super) fn each(&self) -> &[HostCopyProgress] {
        &self.0
    }

    fn sum(&self, of: impl Fn(&Progress) -> u64) -> u64 {
        let each = self.0.iter().map(|host| of(&host.progress));
        each.fold(0, u64::saturating_add)
    }
}

impl Counters for SeveralProgress {
    fn bytes_done(&self) -> u64 {
        self.sum(Progress::bytes_done)
    }

    fn bytes_moved(&self) -> u64 {
        self.sum(Progress::bytes_moved)
    }

    fn bytes_total(&self) -> u64 {
        self.sum(Progress::bytes_total)
    }

    fn files_done(&self) -> u64 {
        self.sum(Progress::files_done)
    }

    fn files_total(&self) -> u64 {
        self.sum(Progress::files_total)
    }

    fn totals_are_final(&self) -> bool {
        let is_final = |host: &HostCopyProgress| {
            host.progress.totals_are_final() || host.state() != HostState::Copying
        };
        self.0.iter().all(is_final)
    }

    /// The state of each host, or counts if there are many.
    fn current(&self) -> Option<Name> {
        let text = if self.0.len() <= SHOWN {
            let each: Vec<String> = self.0.iter().map(HostCopyProgress::shown).collect();
            each.join(", ")
        } else {
            let count = |state| self.0.iter().filter(|host| host.state() == state).count();
            let done = count(HostState::Complete);
            let mut text = format!("{done} of {} hosts done", self.0.len());
            let failed = count(HostState::Failed);
            if failed > 0 {
                text.push_str(&format!(", {failed} failed"));
            }
            let begun = |host: &&HostCopyProgress| {
                host.state() == HostState::Copying && host.progress.bytes_done() > 0
            };
            let copying = self.0.iter().filter(begun);
            if let Some(last) = copying.min_by_key(|host| host.percent()) {
                text.push_str(&format!(", slowest {}", last.shown()));
            }
            text
        };
        Some(Name(text.into_bytes()))
    }

    fn hosts(&self) -> Vec<HostProgress> {
        let each = self.0.iter().map(|host| {
            let bytes = (host.progress.bytes_done(), host.progress.bytes_total());
            HostProgress::new(host.name.clone(), host.state(), bytes)
        });
        each.collect()
    }
}
