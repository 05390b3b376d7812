//! Shows progress from its own thread, at regular intervals, while the copy runs.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::output::RunReporter;
use crate::output::bar;
use crate::output::rate::RecentRate;
use crate::output::snapshot::{ProgressSnapshot, RunCounters};

const TICK: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);

/// Form of the progress display, chosen from the flags and from standard error being a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgressMode {
    /// Not at all.
    Nothing,
    /// A bar on the terminal.
    Bar,
    /// A line of text each second.
    Lines,
    /// An event each second.
    Events,
}

/// Shows progress until the other end of `stopped` is dropped.
pub(crate) fn run(
    output: &RunReporter,
    progress: &impl RunCounters,
    show: ProgressMode,
    stopped: &Receiver<()>,
) {
    let start = Instant::now();
    let pace = if show == ProgressMode::Bar {
        TICK
    } else {
        SECOND
    };
    let mut rate = RecentRate::default();
    let mut due = start + pace;
    while show != ProgressMode::Nothing && wait_until(due, stopped) {
        let now = Instant::now();
        // Skip missed ticks.
        due = (due + pace).max(now);
        let snapshot = ProgressSnapshot::take(progress, &mut rate, now);
        match show {
            // A copy shorter than a second needs no bar. Before the first data, ssh (`-S`) may be
            // asking for a password on this terminal.
            ProgressMode::Bar if now - start >= SECOND => show_bar(output, &snapshot),
            ProgressMode::Lines => output.console().line(&line(&snapshot)),
            ProgressMode::Events => output.progress(snapshot),
            ProgressMode::Bar | ProgressMode::Nothing => {}
        }
    }
    output.console().clear();
}

/// Sleeps until `due`. Returns false if the run ends first.
fn wait_until(due: Instant, stopped: &Receiver<()>) -> bool {
    let left = due.saturating_duration_since(Instant::now());
    stopped.recv_timeout(left) == Err(RecvTimeoutError::Timeout)
}

fn show_bar(output: &RunReporter, snapshot: &ProgressSnapshot) {
    let console = output.console();
    match console.connecting_to() {
        // One of several hosts that does not answer does not hide the progress of the others.
        Some(to)
            if to.since.elapsed() >= SECOND && !(snapshot.of_several() && snapshot.has_begun()) =>
        {
            let (host, time) = (&to.host, to.since.elapsed());
            let awaited = to.awaited.as_deref();
            console.draw(|columns| bar::connecting(host, time, awaited, columns));
        }
        _ if snapshot.has_begun() => console.draw(|columns| bar::of_copy(snapshot, columns)),
        _ => {}
    }
}

fn line(snapshot: &ProgressSnapshot) -> String {
    format!("{}  {}", snapshot.counts(), snapshot.current())
        .trim_end()
        .to_owned()
}
