//! The text of `--explain=timeline`.

use std::collections::BTreeMap;
use std::time::Duration;

use transfer::timeline::{ConnectionState, StallCause, TimelineEntry, TimelineStep};

use crate::output::units;

/// Maximum number of files of which the steps are printed.
const FILES: usize = 20;
/// Bytes that a connection must move after its login to count as used.
const DATA: u64 = 16 << 10;

/// Returns the timeline as lines: one for the login of each connection, one for its window, one for
/// its waits, and one for each step of the first files.
pub(crate) fn lines(marks: &[TimelineEntry]) -> Vec<String> {
    let mut connections: BTreeMap<u32, Vec<TimelineEntry>> = BTreeMap::new();
    for mark in marks {
        if let Some(connection) = mark.connection {
            connections.entry(connection).or_default().push(*mark);
        }
    }
    let mut lines = Vec::new();
    for (number, marks) in &connections {
        let name = format!("timeline: connection {number}");
        lines.push(format!("{name}: {}", logins(marks)));
        let states = states(marks);
        if let Some(data) = data(&states) {
            lines.push(format!("{name}: {data}"));
        }
        if let Some(waits) = waits(&states) {
            lines.push(format!("{name}: {waits}"));
        }
    }
    let files = marks.iter().filter_map(|mark| match mark.step {
        TimelineStep::File(file) => Some((mark, file.job)),
        _ => None,
    });
    lines.extend(
        files
            .take(FILES)
            .map(|(mark, job)| format!("timeline: job {job}: {} at {}", mark.step, at(mark.at))),
    );
    lines
}

/// Formats the steps of a login with their times.
fn logins(marks: &[TimelineEntry]) -> String {
    let steps = marks
        .iter()
        .filter(|m| !matches!(m.step, TimelineStep::State(_)));
    let steps: Vec<String> = steps.map(|m| format!("{} {}", m.step, at(m.at))).collect();
    steps.join(", ")
}

fn states(marks: &[TimelineEntry]) -> Vec<(Duration, ConnectionState)> {
    let state = |mark: &TimelineEntry| match mark.step {
        TimelineStep::State(state) => Some((mark.at, state)),
        _ => None,
    };
    marks.iter().filter_map(state).collect()
}

/// Formats when data moved and how the congestion window grew, at each doubling.
fn data(states: &[(Duration, ConnectionState)]) -> Option<String> {
    let moved = |state: &ConnectionState| state.sent.max(state.received);
    let (_, first) = states.first()?;
    let (_, last) = states.last()?;
    let total = moved(last).saturating_sub(moved(first));
    if total < DATA {
        return Some("no data".to_owned());
    }
    let begun = states.iter().find(|(_, s)| moved(s) >= moved(first) + DATA);
    let ended = states.iter().find(|(_, s)| moved(s) == moved(last));
    let mut text = format!(
        "{} from {} to {}",
        units::size(total),
        at(begun?.0),
        at(ended?.0)
    );
    let mut window = 0;
    let mut grown = Vec::new();
    for (time, state) in states {
        if state.cwnd >= 2 * window && state.cwnd > 0 {
            window = state.cwnd;
            grown.push(format!("{} at {}", units::size(window), at(*time)));
        }
    }
    if !grown.is_empty() {
        text.push_str(&format!("; window {}", grown.join(", ")));
    }
    if last.retransmitted > 0 {
        text.push_str(&format!("; {} segments sent again", last.retransmitted));
    }
    Some(text)
}

/// Formats for how long the connection waited, by cause.
fn waits(states: &[(Duration, ConnectionState)]) -> Option<String> {
    let mut waited: BTreeMap<StallCause, Duration> = BTreeMap::new();
    for pair in states.windows(2) {
        let [(from, before), (to, after)] = pair else {
            continue;
        };
        // The kernel counts how long buffers were full; other causes hold until the next event.
        let counted = after.waits.filter(|cause| cause.is_counted());
        if let Some(cause) = counted.or(before.waits) {
            *waited.entry(cause).or_default() += to.saturating_sub(*from);
        }
    }
    let text: Vec<String> = waited
        .iter()
        .map(|(cause, lasted)| format!("{cause} {}", at(*lasted)))
        .collect();
    (!text.is_empty()).then(|| format!("waited for {}", text.join(", ")))
}

fn at(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use transfer::timeline::FileStateChange;

    use super::*;

    fn mark(ms: u64, connection: Option<u32>, step: TimelineStep) -> TimelineEntry {
        TimelineEntry {
            at: Duration::from_millis(ms),
            connection,
            step,
        }
    }

    fn state(ms: u64, sent: u64, cwnd: u64, waits: Option<StallCause>) -> TimelineEntry {
        let state = ConnectionState {
            sent,
            cwnd,
            waits,
            ..ConnectionState::default()
        };
        mark(ms, Some(1), TimelineStep::State(state))
    }

    #[test]
    fn each_connection_has_its_login_its_window_and_its_waits() {
        let window = Some(StallCause::CongestionWindow);
        let marks = [
            mark(10, Some(1), TimelineStep::Connecting),
            mark(124, Some(1), TimelineStep::Connected),
            mark(500, Some(1), TimelineStep::Authenticated),
            state(500, 1_000, 10_000, None),
            state(600, 30_000, 20_000, window),
            state(700, 70_000, 30_000, window),
            state(800, 150_000, 40_000, Some(StallCause::Answers)),
            mark(
                900,
                None,
                TimelineStep::File(FileStateChange {
                    job: 3,
                    state: schedule::FileCopyState::Renamed,
                }),
            ),
        ];
        assert_eq!(
            lines(&marks),
            [
                "timeline: connection 1: SYN 0.010 s, TCP 0.124 s, login 0.500 s",
                "timeline: connection 1: 149 kB from 0.600 s to 0.800 s; window 10 kB at 0.500 s, \
                 20 kB at 0.600 s, 40 kB at 0.800 s",
                "timeline: connection 1: waited for congestion window 0.200 s",
                "timeline: job 3: renamed at 0.900 s",
            ]
        );
    }

    #[test]
    fn a_connection_without_data_says_so() {
        let marks = [
            state(500, 1_000, 10_000, None),
            state(600, 1_000, 10_000, None),
        ];
        assert_eq!(
            lines(&marks),
            [
                "timeline: connection 1: ",
                "timeline: connection 1: no data"
            ]
        );
    }
}
