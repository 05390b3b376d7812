//! Report of a copy: events for the user, counters of the progress, and the summary.

use schedule::JobFailureKind;

use crate::file_error::FileError;
use crate::report::{
    CopyEvent, CopySummary, Decision, DecisionSubject, EscapedName, FAILURES_KEPT,
    FarEndServerReport, ItemFailure, ProgressCounters,
};
use crate::session::SessionSummary;

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

    /// Adds the summary of a session with `host` to that of the copy, which has begun `files`.
    pub(super) fn note_session(&mut self, host: EscapedName, files: u64, ended: SessionSummary) {
        let SessionSummary {
            report,
            far,
            decisions,
        } = ended;
        let of_host = |mut decision: Decision| {
            // A file may be begun twice, as below a target that turns out to be a file. Lanes also
            // download the far end's boot ID, which does not count as a copied file.
            if let DecisionSubject::Files { cut, whole, .. } = &mut decision.choice {
                *cut = (*cut).min(files);
                *whole = (*whole).min(files.saturating_sub(*cut));
            }
            decision.host = Some(host.clone());
            decision
        };
        let decisions = decisions.into_iter().map(of_host);
        self.summary.decisions.extend(decisions);
        if let Some(mut report) = report {
            report.host = host.clone();
            self.summary.sessions.push(report);
        }
        self.summary
            .far_ends
            .push(FarEndServerReport { host, ..far });
    }

    /// Reports no more failures, because the user has interrupted the run.
    pub(super) fn interrupt(&mut self) {
        self.is_interrupted = true;
    }

    pub(super) fn tell(&mut self, event: CopyEvent) {
        (self.events)(event);
    }

    /// Reports something that was not copied, and why.
    pub(super) fn fail(&mut self, id: Option<u64>, path: EscapedName, error: &FileError) {
        self.summary.left_temporaries += u64::from(error.may_leave_temporary());
        if self.is_interrupted {
            return;
        }
        let reason = error.to_string();
        self.summary.failed += 1;
        let is_unusable = error.kind() == JobFailureKind::SharedTemp;
        self.summary.unusable_temporaries += u64::from(is_unusable);
        if self.summary.failures.len() < FAILURES_KEPT {
            self.summary.failures.push(ItemFailure {
                path: path.clone(),
                reason: reason.clone(),
                cause: error.kind().into(),
            });
        }
        self.tell(CopyEvent::Failed { id, path, reason });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::FailureCause;

    /// Bug: a full disk of the receiving host was told by the words of its failures, which the sending
    /// host may choose: the file was then not fetched from another host.
    #[test]
    fn a_full_disk_was_told_by_words_that_others_choose() {
        let progress = ProgressCounters::default();
        let mut events = |_| {};
        let mut report = CopyReport::new(&progress, &mut events);
        let full = FileError::from(std::io::Error::from(std::io::ErrorKind::StorageFull));
        report.fail(None, EscapedName::default(), &full);
        report.fail(
            None,
            EscapedName::default(),
            &"no space left on device".into(),
        );
        let causes = report.into_summary().failures;
        let causes: Vec<_> = causes.iter().map(|failure| failure.cause).collect();
        assert_eq!(causes, [FailureCause::NoSpace, FailureCause::Other]);
    }

    #[test]
    fn failures_beyond_those_that_are_listed_count_by_their_kind() {
        let progress = ProgressCounters::default();
        let mut events = |_| {};
        let mut report = CopyReport::new(&progress, &mut events);
        let lost = FileError::new("gone", JobFailureKind::SharedTemp);
        let all = FAILURES_KEPT as u64 + 7;
        for _ in 0..all {
            report.fail(None, EscapedName::default(), &lost);
        }
        report.fail(None, EscapedName::default(), &"gone".into());
        let summary = report.into_summary();
        assert_eq!(summary.unusable_temporaries, all);
        assert_eq!(summary.failed, all + 1);
    }
}
