//! Output of a run: text on standard error, events on standard output.

pub(crate) mod bar;
pub(crate) mod closing;
pub(crate) mod console;
pub(crate) mod explain;
pub(crate) mod failures;
pub(crate) mod json;
pub(crate) mod limiter;
pub(crate) mod rate;
pub(crate) mod snapshot;
pub(crate) mod sync;
pub(crate) mod ticker;
mod timeline;
pub(crate) mod units;
mod warnings;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use serde::Serialize;
use transfer::cancel::CancelToken;
use transfer::report::{CopyEvent, CopySummary, Decision, EscapedName};
use transfer::sync::SyncResult;
use transfer::timeline::Timeline;

use crate::exit::Exit;
use console::Console;
use explain::DecisionEvent;
use failures::FailureCounter;
use json::{HostInfo, JsonEventWriter, RunEvent};
use snapshot::ProgressSnapshot;
use warnings::WarningCounter;

/// Receives the events of a run and shows them.
pub(crate) struct RunReporter {
    console: Arc<Console>,
    json: Option<JsonEventWriter>,
    quiet: bool,
    /// Name each file when it is done.
    verbose: bool,
    /// Show each change of a sync.
    itemize: bool,
    failures: FailureCounter,
    /// Name each failure, however many have the same reason.
    all_failures: bool,
    warnings: WarningCounter,
    // Ends the run when the reader of events has closed the pipe.
    cancel: CancelToken,
    /// True if an event could not be written, which was reported.
    unwritten: AtomicBool,
    /// Decisions made before the copy, collected for `--explain`.
    decisions: Option<Mutex<Vec<Decision>>>,
    /// Record of the copy's steps, for `--explain=timeline`.
    timeline: Option<Arc<Timeline>>,
    /// Command that completes the hosts that have failed.
    completing: OnceLock<String>,
    /// Hosts that were connected to, with the hosts that relay the connections.
    relayed: Mutex<BTreeMap<String, Option<String>>>,
}

impl RunReporter {
    pub(crate) fn new(
        console: Arc<Console>,
        json: Option<JsonEventWriter>,
        quiet: bool,
        cancel: CancelToken,
    ) -> Self {
        Self {
            console,
            json,
            unwritten: AtomicBool::new(false),
            quiet,
            verbose: false,
            itemize: false,
            failures: FailureCounter::default(),
            all_failures: false,
            warnings: WarningCounter::default(),
            cancel,
            decisions: None,
            timeline: None,
            completing: OnceLock::new(),
            relayed: Mutex::default(),
        }
    }

    /// Takes the command that completes the hosts that have failed, to name it at the end.
    pub(crate) fn set_completing(&self, step: String) {
        // There is one run.
        let _ = self.completing.set(step);
    }

    /// Records the steps of the copy, to print them at the end.
    pub(crate) fn recording(self, start: Instant) -> Self {
        Self {
            timeline: Some(Timeline::new(start)),
            ..self
        }
    }

    /// Record of the copy's steps, if there is one.
    pub(crate) fn timeline(&self) -> Option<Arc<Timeline>> {
        self.timeline.clone()
    }

    /// Prints the name of each file when it is done.
    pub(crate) fn naming_files(self, verbose: bool) -> Self {
        Self { verbose, ..self }
    }

    /// Names each failure, however many have the same reason.
    pub(crate) fn naming_failures(self, all_failures: bool) -> Self {
        Self {
            all_failures,
            ..self
        }
    }

    /// Prints each change of a sync.
    pub(crate) fn itemizing(self, itemize: bool) -> Self {
        Self { itemize, ..self }
    }

    /// Collects decisions, to print them at the end.
    pub(crate) fn explaining(self) -> Self {
        Self {
            decisions: Some(Mutex::default()),
            ..self
        }
    }

    /// Adds decisions, if they are collected.
    pub(crate) fn decided(&self, decisions: impl IntoIterator<Item = Decision>) {
        if let Some(all) = &self.decisions {
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend(decisions);
        }
    }

    pub(crate) fn console(&self) -> &Console {
        &self.console
    }

    /// Writes the `start` event.
    pub(crate) fn start(&self, sources: Vec<EscapedName>, target: EscapedName) {
        self.event(&RunEvent::Start {
            version: env!("CARGO_PKG_VERSION"),
            sources,
            target,
        });
    }

    /// Writes the `host` event of a new connection.
    pub(crate) fn host(&self, info: HostInfo) {
        let mut relayed = self.relayed.lock().unwrap_or_else(PoisonError::into_inner);
        relayed.insert(info.host.clone(), info.via.clone());
        drop(relayed);
        self.event(&RunEvent::Host(info));
    }

    /// Shows an event of the copy.
    pub(crate) fn copy_event(&self, event: &CopyEvent) {
        self.show_event(event, None);
    }

    /// Shows an event of one of several copies, with the name of its host.
    pub(crate) fn host_event(&self, host: &str, event: &CopyEvent) {
        match event {
            CopyEvent::Warning {
                path: None,
                message,
            } if !message.starts_with(&format!("{host}: ")) => {
                self.copy_event(&CopyEvent::Warning {
                    path: None,
                    message: format!("{host}: {message}"),
                })
            }
            event => self.show_event(event, Some(host)),
        }
    }

    fn show_event(&self, event: &CopyEvent, host: Option<&str>) {
        self.failures.note(event);
        if let CopyEvent::Warning { path, message } = event {
            match path {
                Some(path) if self.all_failures || self.warnings.shows(message) => {
                    self.show_warning(&format!("{}: {message}", named(path, host)));
                }
                Some(_) => {}
                None => self.show_warning(message),
            }
        }
        if self.verbose
            && self.json.is_none()
            && !self.quiet
            && let Some(line) = done(event)
        {
            self.console.line(&line);
        }
        if self.json.is_none()
            && let Some(line) = sync::line(event, self.itemize, self.quiet)
        {
            self.plan_line(&line);
        }
        if let CopyEvent::Resumed {
            done,
            unproven,
            partial,
            partial_bytes,
        } = event
            && self.json.is_none()
            && !self.quiet
        {
            let line = closing::resumed((*done, *unproven), (*partial, *partial_bytes));
            let host = host.map(|host| format!("{host}: ")).unwrap_or_default();
            self.console.line(&format!("{host}{line}"));
        }
        if let CopyEvent::Mismatch {
            path,
            from,
            len,
            again,
            ..
        } = event
        {
            let end = from.saturating_add(*len);
            let then = if *again { "; copying them again" } else { "" };
            self.show_warning(&format!(
                "{path}: verification failed: bytes {from} to {end} differ from the data that \
                 was sent{then}"
            ));
        }
        self.event(event);
    }

    /// Shows a warning.
    pub(crate) fn warning(&self, message: String) {
        self.copy_event(&CopyEvent::Warning {
            path: None,
            message,
        });
    }

    fn show_warning(&self, text: &str) {
        if !self.quiet {
            self.console.warning(text);
        }
    }

    /// Says how many warnings about entries were not shown.
    fn count_warnings(&self) {
        for line in self.warnings.take_lines() {
            self.show_warning(&line);
        }
    }

    /// Writes the `progress` event, once a second.
    pub(crate) fn progress(&self, snapshot: ProgressSnapshot) {
        self.event(&RunEvent::progress(snapshot));
    }

    /// Reports the end of the run: failures, closing line and `summary` event.
    pub(crate) fn summary(&self, exit: Exit, summary: &CopySummary) {
        self.count_warnings();
        for failure in self.failures.lines(summary, self.all_failures) {
            self.console.error(&failure);
        }
        // If no connection was made, the error message suffices.
        let nothing = matches!(exit, Exit::NoConnection | Exit::Usage)
            && summary.files == 0
            && summary.unfinished == 0;
        if self.json.is_none() && !self.quiet && !nothing {
            let mut line = closing::line(summary);
            let relayed = self.relayed.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(relayed) = closing::relayed(&relayed) {
                line.push_str(&format!("; {relayed}"));
            }
            drop(relayed);
            self.console.line(&line);
            if let Some(line) = limiter::line(summary) {
                self.console.line(&line);
            }
        }
        if self.json.is_none()
            && let Some(line) =
                closing::next_step(summary, self.completing.get().map(String::as_str))
        {
            self.console.line(&line);
        }
        self.explain(summary);
        self.show_timeline();
        self.event(&RunEvent::summary(exit, summary));
    }

    /// Names what has failed.
    pub(crate) fn failures(&self, summary: &CopySummary) {
        self.count_warnings();
        for failure in self.failures.lines(summary, self.all_failures) {
            self.console.error(&failure);
        }
    }

    /// Writes the `summary` event alone.
    pub(crate) fn summary_event(&self, exit: Exit, summary: &CopySummary) {
        self.event(&RunEvent::summary(exit, summary));
    }

    /// Shows a line of information.
    pub(crate) fn line(&self, text: &str) {
        if self.prints_text() {
            self.console.line(text);
        }
    }

    /// True if results are shown as text.
    pub(crate) fn prints_text(&self) -> bool {
        self.json.is_none() && !self.quiet
    }

    /// Reports the end of a sync, as [`RunReporter::summary`] does; `dry` if nothing was changed.
    pub(crate) fn sync_summary(&self, exit: Exit, result: &SyncResult, dry: bool) {
        if dry && !matches!(exit, Exit::NoConnection | Exit::Usage) {
            self.failures(&result.summary);
            if self.json.is_none() && !self.quiet {
                self.console.line(sync::DRY);
            }
            self.explain(&result.summary);
            self.event(&RunEvent::summary(exit, &result.summary));
            return;
        }
        if self.json.is_none()
            && !self.quiet
            && let Some(line) = sync::totals(result)
        {
            self.console.line(&line);
        }
        self.summary(exit, &result.summary);
        if self.json.is_none()
            && !self.quiet
            && result.summary.files > 0
            && let Some(line) = sync::savings(result)
        {
            self.console.line(&line);
        }
    }

    /// Writes a line of a sync's plan on standard output. A closed pipe ends the run.
    fn plan_line(&self, line: &str) {
        if let Err(error) = writeln!(io::stdout().lock(), "{line}") {
            self.lose_standard_output(&error);
        }
    }

    fn explain(&self, summary: &CopySummary) {
        let Some(before) = &self.decisions else {
            return;
        };
        let before = before.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = |decision: &Decision| std::mem::discriminant(&decision.choice);
        // A decision of the run replaces an earlier one of the same kind.
        let later = |d: &&Decision| summary.decisions.iter().any(|other| kind(other) == kind(d));
        let before = before.iter().filter(|d| !later(d));
        let told: Vec<_> = before
            .chain(&summary.decisions)
            .map(DecisionEvent::new)
            .collect();
        let several = summary.far_ends.len() > 1;
        let mut lines = BTreeSet::new();
        for decision in told {
            match &self.json {
                None => {
                    let line = decision.line(several);
                    // A host that is both ends decides twice.
                    if lines.insert(line.clone()) {
                        self.console.line(&line);
                    }
                }
                Some(_) => self.event(&RunEvent::Decision(decision)),
            }
        }
    }

    fn show_timeline(&self) {
        let Some(timeline) = &self.timeline else {
            return;
        };
        let marks = timeline.marks();
        match &self.json {
            None => timeline::lines(&marks)
                .iter()
                .for_each(|line| self.console.line(line)),
            Some(_) => marks
                .into_iter()
                .for_each(|mark| self.event(&RunEvent::Timeline(mark))),
        }
    }

    fn event(&self, event: &impl Serialize) {
        if let Some(Err(error)) = self.json.as_ref().map(|json| json.write(event)) {
            self.lose_standard_output(&error);
        }
    }

    /// Ends the run because its lines or events can no longer be written.
    fn lose_standard_output(&self, error: &io::Error) {
        // A closed pipe needs no message, but it ends the run, whose events nobody reads.
        if error.kind() != io::ErrorKind::BrokenPipe && !self.cancel.is_cancelled() {
            self.unwritten.store(true, Ordering::Relaxed);
            let why = transfer::disk::os_words(error);
            self.console
                .error(&format!("cannot write to standard output: {why}"));
        }
        self.cancel.cancel();
    }

    /// True if an event could not be written because of an error, such as a full disk. The run has
    /// failed then, and was not interrupted by the user.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.unwritten.load(Ordering::Relaxed)
    }
}

/// Names the path of a warning, and the `host` of its copy in a run with several hosts, if the path
/// does not: that of another host is read for `host`, and one of this machine is written or read
/// for it.
fn named(path: &EscapedName, host: Option<&str>) -> String {
    let Some(host) = host.filter(|host| !path.0.starts_with(format!("{host}:").as_bytes())) else {
        return path.to_string();
    };
    let first = path.0.iter().find(|byte| b":/".contains(byte));
    match first {
        Some(b':') => format!("{path} to {host}"),
        _ => format!("{host}: {path}"),
    }
}

/// The line for a copied file, symlink or directory.
fn done(event: &CopyEvent) -> Option<String> {
    match event {
        CopyEvent::FileDone { source, target, .. } => Some(format!("{source} -> {target}")),
        CopyEvent::SymlinkDone { target } => Some(format!("{target} (symlink)")),
        CopyEvent::DirectoryDone { target } => Some(format!("{target} (directory)")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: "h3: h2: nothing received for 10 s: waiting for the answer to READ of /big".
    #[test]
    fn a_warning_about_a_host_that_passes_a_file_on_names_both_hosts_by_their_part() {
        let named = |path: &str, host| named(&EscapedName(path.into()), host);
        assert_eq!(named("h2:/srv/big", Some("h3")), "h2:/srv/big to h3");
        assert_eq!(named("h3:/srv/big", Some("h3")), "h3:/srv/big");
        assert_eq!(named("logs/big", Some("h3")), "h3: logs/big");
        assert_eq!(named("./a:b", Some("h3")), "h3: ./a:b");
        assert_eq!(named("h2:/srv/big", None), "h2:/srv/big");
    }

    #[test]
    fn a_line_of_verbose_names_one_file_and_drives_no_terminal() {
        let name = |name: &str| EscapedName(name.into());
        let file = CopyEvent::FileDone {
            id: 1,
            source: name("a\n\u{1b}[2J"),
            target: name("h:a b"),
            bytes: 1,
            state: schedule::FileCopyState::Renamed,
            in_place: false,
            synced: false,
            verified: false,
        };
        assert_eq!(done(&file).as_deref(), Some("a\\n\\x1b[2J -> h:a b"));
        let directory = CopyEvent::DirectoryDone {
            target: name("h:d"),
        };
        assert_eq!(done(&directory).as_deref(), Some("h:d (directory)"));
        let warning = CopyEvent::Warning {
            path: None,
            message: String::new(),
        };
        assert_eq!(done(&warning), None);
    }
}
