//! Bounds the reports of a receiver, which may be hostile.

use std::time::{Duration, Instant};

use super::frames::ReceiverMessage;
use super::host_copy_error::HostCopyError;
use super::progress_watchdog::ProgressWatchdog;
use crate::report::{CopyEvent, CopyOutcome, CopySummary, EscapedName, FAILURES_KEPT};

/// Longest name in bytes. The walk of a source lists no path of more than 16 KiB.
const LONGEST_NAME: usize = 32 << 10;
/// Bytes of a text that are shown.
const LONGEST_TEXT: usize = 4 << 10;
/// Maximum number of warnings that are shown.
const MOST_WARNINGS: u32 = 1000;
/// Maximum number of failures while no file and no byte is reported as done.
const MOST_FAILURES_WITHOUT_PROGRESS: u32 = 1 << 20;
/// Bytes of names and texts that a receiver puts into its list of failures, which must fit into one
/// message. Each byte may need six in JSON.
const MOST_LISTED: usize = 512 << 10;
/// Bounds the reports of one receiver, which may be hostile.
#[derive(Debug)]
pub(super) struct ReceiverReportChecker {
    /// The receiver has reported its first connection.
    connected: bool,
    resumed: bool,
    warnings: u32,
    /// Failures so far.
    failures: u64,
    /// Failures since the last progress.
    without_progress: u32,
    watchdog: ProgressWatchdog,
}

impl ReceiverReportChecker {
    /// Creates the guard of a copy that begins `now`; `growing` is the size in bytes of the only
    /// source if it is still being written.
    pub(super) fn new(now: Instant, growing: Option<u64>) -> Self {
        Self {
            connected: false,
            resumed: false,
            warnings: 0,
            failures: 0,
            without_progress: 0,
            watchdog: ProgressWatchdog::new(now, growing),
        }
    }

    /// Returns the message as far as it may be shown and kept; `None` if it is left out.
    ///
    /// # Errors
    /// A clause about a message that no honest receiver sends.
    pub(super) fn check(
        &mut self,
        now: Instant,
        message: ReceiverMessage,
    ) -> Result<Option<ReceiverMessage>, HostCopyError> {
        Ok(match message {
            ReceiverMessage::Event(_) | ReceiverMessage::Progress(_) | ReceiverMessage::Done(_)
                if !self.connected =>
            {
                let what = "reported a copy before it was connected to the source";
                return Err(HostCopyError::violation(what));
            }
            ReceiverMessage::Event(event) => self
                .event(*event)?
                .map(|event| ReceiverMessage::Event(Box::new(event))),
            ReceiverMessage::Progress(values) => {
                if let Some(name) = values.current() {
                    check_name(name)?;
                }
                if self.watchdog.note(now, &values) {
                    self.without_progress = 0;
                }
                Some(ReceiverMessage::Progress(values))
            }
            ReceiverMessage::Done(summary) => {
                let summary = self.summary(*summary)?;
                Some(ReceiverMessage::Done(Box::new(summary)))
            }
            ReceiverMessage::Route(_) if std::mem::replace(&mut self.connected, true) => None,
            ReceiverMessage::NoRoute(mut why) => {
                cut(&mut why);
                Some(ReceiverMessage::NoRoute(why))
            }
            message @ (ReceiverMessage::Route(_) | ReceiverMessage::ToSource(_)) => Some(message),
        })
    }

    /// Time without progress after which the copy is given up, if that time has passed.
    pub(super) fn stuck(&self, now: Instant) -> Option<Duration> {
        self.watchdog.stuck(now)
    }

    fn event(&mut self, mut event: CopyEvent) -> Result<Option<CopyEvent>, HostCopyError> {
        check_names(&event)?;
        cut_texts(&mut event);
        match &mut event {
            CopyEvent::Failed { .. } => {
                self.failures += 1;
                self.without_progress += 1;
                if self.without_progress > MOST_FAILURES_WITHOUT_PROGRESS {
                    let what = "reported too many failures without copying anything";
                    return Err(HostCopyError::violation(what));
                }
            }
            CopyEvent::Warning { path, message } => {
                self.warnings = self.warnings.saturating_add(1);
                if self.warnings > MOST_WARNINGS {
                    return Ok(None);
                }
                if self.warnings == MOST_WARNINGS {
                    *path = None;
                    *message = "further warnings of this host are not shown".to_owned();
                }
            }
            CopyEvent::Resumed { .. } if std::mem::replace(&mut self.resumed, true) => {
                return Ok(None);
            }
            CopyEvent::Planned { .. } | CopyEvent::SyncPlanned { .. } => {
                let what = "reported the plan of a sync, which is not part of this copy";
                return Err(HostCopyError::violation(what));
            }
            _ => {}
        }
        Ok(Some(event))
    }

    /// A copy with failures is not complete, whatever the receiver says.
    fn summary(&self, mut summary: CopySummary) -> Result<CopySummary, HostCopyError> {
        summary.failures.truncate(FAILURES_KEPT);
        let names = summary.failures.iter().map(|failure| &failure.path);
        names.chain(&summary.journal).try_for_each(check_name)?;
        let reasons = summary.failures.iter_mut();
        reasons.for_each(|failure| cut(&mut failure.reason));
        if let CopyOutcome::NoConnection(why) | CopyOutcome::Misconfigured(why) =
            &mut summary.outcome
        {
            cut(why);
        }
        if let Some(verified) = &mut summary.verified {
            let texts = [&mut verified.program, &mut verified.reason];
            texts.into_iter().flatten().for_each(cut);
        }
        let listed = summary.failures.len() as u64;
        summary.failed = summary.failed.max(listed).max(self.failures);
        if summary.failed > 0 && summary.outcome == CopyOutcome::Complete {
            summary.outcome = CopyOutcome::Partial;
        }
        Ok(summary)
    }
}

/// Shortens the texts of an event before a receiver sends it. A server may have chosen their words.
pub(super) fn cut_texts(event: &mut CopyEvent) {
    if let CopyEvent::Failed { reason: text, .. } | CopyEvent::Warning { message: text, .. } = event
    {
        cut(text);
    }
}

/// Shortens the list of failures before a receiver sends it. Each failure was an event.
pub(super) fn cut_failures(summary: &mut CopySummary, most: usize) {
    summary.failures.truncate(most);
    let mut room = MOST_LISTED;
    summary.failures.retain_mut(|failure| {
        cut(&mut failure.reason);
        let bytes = failure.path.0.len() + failure.reason.len();
        room = room.saturating_sub(bytes);
        room > 0
    });
}

fn check_name(name: &EscapedName) -> Result<(), HostCopyError> {
    match name.0.len() {
        0..=LONGEST_NAME => Ok(()),
        bytes => {
            let what = format!("reported a name of {bytes} bytes, which is too long");
            Err(HostCopyError::violation(what))
        }
    }
}

fn check_names(event: &CopyEvent) -> Result<(), HostCopyError> {
    match event {
        CopyEvent::FileStarted { source, target, .. }
        | CopyEvent::FileDone { source, target, .. } => {
            check_name(source)?;
            check_name(target)
        }
        CopyEvent::Mismatch { path: name, .. }
        | CopyEvent::Failed { path: name, .. }
        | CopyEvent::DirectoryDone { target: name }
        | CopyEvent::SymlinkDone { target: name }
        | CopyEvent::Warning {
            path: Some(name), ..
        } => check_name(name),
        // No copy reports the last two.
        CopyEvent::Warning { path: None, .. }
        | CopyEvent::Resumed { .. }
        | CopyEvent::Planned { .. }
        | CopyEvent::SyncPlanned { .. } => Ok(()),
    }
}

fn cut(text: &mut String) {
    if text.len() > LONGEST_TEXT {
        let end = (0..=LONGEST_TEXT)
            .rev()
            .find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text.push_str("...");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::SourceConnectionInfo;
    use crate::report::{ItemFailure, ProgressCounters};

    fn connected() -> ReceiverReportChecker {
        let mut guard = ReceiverReportChecker::new(Instant::now(), None);
        let route = ReceiverMessage::Route(SourceConnectionInfo {
            dialed: false,
            address: ([192, 0, 2, 1], 22).into(),
        });
        assert!(guard.check(Instant::now(), route).is_ok());
        guard
    }

    fn failed(path: Vec<u8>, reason: &str) -> ReceiverMessage {
        ReceiverMessage::Event(Box::new(CopyEvent::Failed {
            id: None,
            path: EscapedName(path),
            reason: reason.to_owned(),
        }))
    }

    fn warning(message: String) -> ReceiverMessage {
        ReceiverMessage::Event(Box::new(CopyEvent::Warning {
            path: None,
            message,
        }))
    }

    fn progress(bytes: u64, total: u64) -> ReceiverMessage {
        let counters = ProgressCounters::default();
        counters.add_file(Some(total));
        counters.add_bytes(bytes);
        ReceiverMessage::Progress(counters.values())
    }

    /// A receiver that reported failures for ever was listened to for ever.
    #[test]
    fn failures_without_an_end_end_the_copy() {
        let now = Instant::now();
        let mut guard = connected();
        let ends = |guard: &mut ReceiverReportChecker| {
            (0..=MOST_FAILURES_WITHOUT_PROGRESS).find_map(|_| {
                let message = failed(b"x".to_vec(), "no");
                guard.check(now, message).err()
            })
        };
        assert!(ends(&mut guard).is_some_and(|why| why.to_string().contains("too many failures")));
        // Those of a large tree come with files that are done, or that were tried.
        let mut guard = connected();
        for n in 0..u64::from(MOST_FAILURES_WITHOUT_PROGRESS) {
            assert!(guard.check(now, failed(b"x".to_vec(), "no")).is_ok());
            if n % 1000 == 0 {
                assert!(guard.check(now, progress(n + 1, u64::MAX)).is_ok());
            }
        }
    }

    #[test]
    fn names_of_a_mebibyte_end_the_copy_and_texts_are_cut() {
        let now = Instant::now();
        let mut guard = connected();
        let why = guard.check(now, failed(vec![b'x'; 1 << 20], "no"));
        assert!(why.is_err_and(|why| why.to_string().contains("a name of 1048576 bytes")));
        let long = "\u{e9}".repeat(1 << 20);
        let Ok(Some(ReceiverMessage::Event(event))) = guard.check(now, failed(Vec::new(), &long))
        else {
            panic!("no event");
        };
        let CopyEvent::Failed { reason, .. } = *event else {
            panic!("another event");
        };
        assert!(reason.len() <= LONGEST_TEXT + 3 && reason.ends_with("..."));
        let counters = ProgressCounters::default();
        counters.set_current(&EscapedName(vec![b'x'; 1 << 20]));
        let named = ReceiverMessage::Progress(counters.values());
        assert!(guard.check(now, named).is_err());
        let summary = CopySummary {
            journal: Some(EscapedName(vec![b'x'; 1 << 20])),
            ..CopySummary::default()
        };
        let done = ReceiverMessage::Done(Box::new(summary));
        assert!(guard.check(now, done).is_err());
    }

    #[test]
    fn endless_warnings_are_shown_a_thousand_times() {
        let now = Instant::now();
        let mut guard = connected();
        let shown = (0..5000).filter(|n| {
            let checked = guard.check(now, warning(format!("w{n}")));
            checked.is_ok_and(|message| message.is_some())
        });
        assert_eq!(shown.count(), MOST_WARNINGS as usize);
        let resumed = || {
            ReceiverMessage::Event(Box::new(CopyEvent::Resumed {
                done: u64::MAX,
                unproven: u64::MAX,
                partial: u64::MAX,
                partial_bytes: u64::MAX,
            }))
        };
        assert!(guard.check(now, resumed()).is_ok_and(|m| m.is_some()));
        assert!(guard.check(now, resumed()).is_ok_and(|m| m.is_none()));
    }

    /// A receiver that reported failures, or nothing but its success, got the exit code 0.
    #[test]
    fn a_copy_with_failures_is_not_complete() {
        let now = Instant::now();
        let complete = || ReceiverMessage::Done(Box::default());
        let Ok(Some(ReceiverMessage::Done(summary))) = connected().check(now, complete()) else {
            panic!("no summary");
        };
        assert_eq!(summary.outcome, CopyOutcome::Complete);
        let mut guard = connected();
        assert!(guard.check(now, failed(b"x".to_vec(), "no")).is_ok());
        let listed = CopySummary {
            failures: vec![
                ItemFailure::new(EscapedName::default(), "x".repeat(1 << 20));
                FAILURES_KEPT + 1
            ],
            ..CopySummary::default()
        };
        let listed = ReceiverMessage::Done(Box::new(listed));
        let counted = CopySummary {
            failed: 7,
            ..CopySummary::default()
        };
        let counted = ReceiverMessage::Done(Box::new(counted));
        let cases = [
            (guard, complete(), 1),
            (connected(), listed, FAILURES_KEPT as u64),
            (connected(), counted, 7),
        ];
        for (mut guard, message, failed) in cases {
            let Ok(Some(ReceiverMessage::Done(summary))) = guard.check(now, message) else {
                panic!("no summary");
            };
            assert_eq!(summary.outcome, CopyOutcome::Partial);
            assert_eq!(summary.failed, failed);
            let reasons = summary.failures.iter().map(|failure| failure.reason.len());
            assert!(reasons.max().unwrap_or(0) <= LONGEST_TEXT + 3);
        }
    }

    #[test]
    fn a_copy_is_reported_after_the_connection_only() {
        let now = Instant::now();
        for message in [
            ReceiverMessage::Done(Box::default()),
            warning("x".to_owned()),
            progress(1, 1),
        ] {
            let mut guard = ReceiverReportChecker::new(now, None);
            let why = guard.check(now, message);
            assert!(why.is_err_and(|why| why.to_string().contains("before it was connected")));
        }
    }

    #[test]
    fn a_list_of_long_names_fits_into_one_message() {
        let failure = ItemFailure::new(EscapedName(vec![1; 16 << 10]), "\u{1}".repeat(1 << 20));
        let mut summary = CopySummary {
            failures: vec![failure; 1000],
            ..CopySummary::default()
        };
        cut_failures(&mut summary, 100);
        assert!(!summary.failures.is_empty());
        let bytes = ReceiverMessage::Done(Box::new(summary)).to_bytes();
        let read = super::super::frames::next_of_receiver(&mut bytes.as_slice());
        assert!(read.is_ok_and(|message| message.is_some()));
    }
}
