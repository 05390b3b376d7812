//! Report of a copy: events for the user, counters of the progress, and the summary.

use crate::report::{
    CopyEvent, CopySummary, EscapedName, FAILURES_KEPT, ItemFailure, ProgressCounters,
};

/// Collects the results of a copy and passes its events on.
pub(super) struct CopyReport<'a> {
    events: &'a mut dyn FnMut(CopyEvent),
    progress: &'a ProgressCounters,
    summary: CopySummary,
    /// The user has interrupted the run, so that failures mean nothing.
    is_interrupted: bool,
}

impl<'a> CopyReport<'a> {
    pub(super) fn new(
        progress: &'a ProgressCounters,
        events: &'a mut dyn FnMut(CopyEvent),
    ) -> Self {
        Self {
            events,
            progress,
            summary: CopySummary::default(),
            is_interrupted: false,
        }
    }

    pub(super) fn progress(&self) -> &'a ProgressCounters {
        self.progress
    }

    pub(super) fn summary(&self) -> &CopySummary {
        &self.summary
    }

    pub(super) fn summary_mut(&mut self) -> &mut CopySummary {
        &mut self.summary
    }

    pub(super) fn into_summary(self) -> CopySummary {
        self.summary
    }

    /// Reports no more failures, because the user has interrupted the run.
    pub(super) fn interrupt(&mut self) {
        self.is_interrupted = true;
    }

    pub(super) fn tell(&mut self, event: CopyEvent) {
        (self.events)(event);
    }

    /// Reports something that was not copied.
    pub(super) fn fail(&mut self, id: Option<u64>, path: EscapedName, reason: String) {
        if self.is_interrupted {
            return;
        }
        self.summary.failed += 1;
        if self.summary.failures.len() < FAILURES_KEPT {
            self.summary.failures.push(ItemFailure {
                path: path.clone(),
                reason: reason.clone(),
            });
        }
        self.tell(CopyEvent::Failed { id, path, reason });
    }
}
