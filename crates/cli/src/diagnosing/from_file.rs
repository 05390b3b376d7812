//! `--from FILE`: the result of an earlier run, or the events of a finished transfer.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use diagnose::{DataDirection, FinishedTransfer, Limiter, LimiterEvidence, explain as explained};
use measure::doctor::{DoctorReport, KIND};
use serde::Deserialize;

use crate::command_error::CommandError;
use crate::running;

/// Largest result of a doctor, and longest event, in bytes.
const MOST: u64 = 4 << 20;
/// Largest file of events in bytes.
const MOST_EVENTS: u64 = 16 << 30;

/// Reads the file and explains it.
///
/// # Errors
/// One sentence with the file's name.
pub(super) fn explain(path: &Path) -> Result<DoctorReport, CommandError> {
    let named = |why: &dyn Display| format!("{}: {why}", path.display());
    let file = File::open(path).map_err(|e| named(&e))?;
    Ok(read(file).map_err(|why| named(&why))?)
}

/// Explains a running transfer of this user.
///
/// # Errors
/// One sentence with the process.
pub(super) fn explain_running(pid: u32) -> Result<DoctorReport, CommandError> {
    let sessions = running::sessions(pid)?;
    let read = |session| serde_json::from_value::<SummarySessionFields>(session).ok();
    let sessions: Vec<_> = sessions.into_iter().filter_map(read).collect();
    Ok(of_sessions(sessions).map_err(|why| format!("process {pid}: {why}"))?)
}

fn read(input: impl Read) -> Result<DoctorReport, CommandError> {
    let mut input = BufReader::new(input.take(MOST_EVENTS));
    let mut head = Vec::new();
    let (mut summary, mut has_events) = (None, false);
    let mut document = true;
    loop {
        let mut line = Vec::new();
        let read = (&mut input).take(MOST).read_until(b'\n', &mut line);
        if read? == 0 {
            break;
        }
        document &= head.len() + line.len() <= MOST as usize;
        if document {
            head.extend_from_slice(&line);
        }
        if let Ok(found) = serde_json::from_slice::<SummaryEvent>(&line) {
            has_events = true;
            summary = Some(found)
                .filter(|found| found.event == "summary")
                .or(summary);
        }
    }
    if let Some(summary) = summary {
        return of_sessions(summary.sessions);
    }
    if has_events {
        let unfinished = "the events of longhaul cp --json end before the summary: the file is cut \
                          off, or the copy still runs: use its whole output";
        return Err(unfinished.into());
    }
    let neither = "neither the events of longhaul cp --json nor a result of longhaul doctor --json";
    let stored: StoredDoctorResult = match document {
        true => serde_json::from_slice(&head).map_err(|_| neither)?,
        false => return Err(neither.into()),
    };
    match stored.kind == KIND {
        true => Ok(DoctorReport::new(
            stored.host,
            stored.seconds,
            stored.evidence,
        )),
        false => Err(neither.into()),
    }
}

/// A result of `longhaul doctor --json`. The verdict is made anew from the evidence.
#[derive(Deserialize)]
struct StoredDoctorResult {
    kind: String,
    host: String,
    seconds: f64,
    evidence: diagnose::Evidence,
}

/// Fields of an event line of `longhaul cp --json` (docs/json.md); the last one named `summary` is
/// used.
#[derive(Deserialize)]
struct SummaryEvent {
    event: String,
    #[serde(default)]
    sessions: Vec<SummarySessionFields>,
}

/// Fields of one host's session in the `summary` event or in the file of a running transfer;
/// `measured` is in seconds.
#[derive(Deserialize)]
struct SummarySessionFields {
    host: String,
    direction: SessionDirection,
    connections: u32,
    channels: u32,
    limiter: Limiter,
    measured: f64,
    evidence: SessionEvidence,
}

/// Direction of a session's data, seen from this machine.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SessionDirection {
    Up,
    Down,
}

/// Figures of a session's evidence (docs/json.md), with times in seconds.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SessionEvidence {
    rate: f64,
    min_rtt: f64,
    rtt: f64,
    loss: f64,
    rwnd_limited: f64,
    sndbuf_limited: f64,
    window_blocked: f64,
    server: f64,
    cpu: f64,
}

/// Explains the sessions of a transfer, one for each host.
fn of_sessions(sessions: Vec<SummarySessionFields>) -> Result<DoctorReport, CommandError> {
    let mut reports: Vec<_> = sessions.into_iter().map(of_session).collect();
    // A host with a limit of its own explains the others, which wait for it: the slowest comes
    // first.
    reports.sort_by(|(rate, a), (other, b)| {
        let unexplained = |report: &DoctorReport| report.diagnosis.findings.is_empty();
        let order = unexplained(a).cmp(&unexplained(b));
        order.then(rate.total_cmp(other))
    });
    let mut reports = reports.into_iter().map(|(_, report)| report);
    let first = reports.next();
    let first = first.ok_or("the transfer was too short to measure its limiter")?;
    Ok(reports.fold(first, DoctorReport::and_host))
}

/// Explains the transfer with one host; returns its rate as well.
fn of_session(session: SummarySessionFields) -> (f64, DoctorReport) {
    let seconds = |s: f64| Duration::try_from_secs_f64(s).unwrap_or_default();
    let f = session.evidence;
    let diagnosis = explained(&FinishedTransfer {
        direction: match session.direction {
            SessionDirection::Up => DataDirection::Upload,
            SessionDirection::Down => DataDirection::Download,
        },
        limiter: session.limiter,
        figures: LimiterEvidence {
            rate: f.rate,
            connections: session.connections,
            lanes: session.connections.saturating_mul(session.channels),
            min_rtt: seconds(f.min_rtt),
            rtt: seconds(f.rtt),
            loss: f.loss,
            rwnd_limited: f.rwnd_limited,
            sndbuf_limited: f.sndbuf_limited,
            window_blocked: f.window_blocked,
            server: seconds(f.server),
            cpu: f.cpu,
            ..LimiterEvidence::default()
        },
    });
    let report = DoctorReport::of_copy(session.host, session.measured, diagnosis);
    (f.rate, report)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPY: &str = r#"{"v":1,"t":0.1,"event":"start"}
{"v":1,"t":9.0,"event":"summary","exit":0,"sessions":[{"host":"h","direction":"up","connections":4,"channels":1,"limiter":"loss","measured":8.5,"evidence":{"rate":2000000,"min_rtt":0.1,"rtt":0.11,"loss":0.01}}]}
"#;

    #[test]
    fn events_of_a_copy_name_its_limiter() {
        let report = read(COPY.as_bytes()).unwrap();
        let verdict = &report.diagnosis.verdict;
        assert!(
            verdict.contains("Uploads are limited to 2.0 MB/s by random packet loss"),
            "{verdict}"
        );
    }

    /// A copy to several hosts showed one of them.
    #[test]
    fn every_host_of_a_copy_is_explained_the_slowest_first() {
        let one = |host: &str, limiter: &str, rate: u32| {
            format!(
                r#"{{"host":"{host}","direction":"up","connections":4,"channels":1,"limiter":"{limiter}","measured":8.5,"evidence":{{"rate":{rate},"min_rtt":0.1,"rtt":0.11}}}}"#
            )
        };
        let all = [
            one("h1", "loss", 9_000_000),
            one("h2", "send_buffer", 2_000_000),
            one("h3", "path", 1_000_000),
        ];
        let text = format!(r#"{{"event":"summary","sessions":[{}]}}"#, all.join(","));
        let report = read(text.as_bytes()).unwrap();
        let hosts: Vec<_> = report.others.iter().map(|other| &other.host[..]).collect();
        assert_eq!((&report.host[..], &hosts[..]), ("h2", &["h1", "h3"][..]));
        let text = measure::doctor::text(&report);
        for words in ["h2: ", "h1: Uploads are limited to 9.0 MB/s", "h3: Unsure"] {
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn an_earlier_result_gets_the_same_verdict() {
        let first = DoctorReport::new("h".to_owned(), 3.0, diagnose::Evidence::default());
        let text = serde_json::to_string_pretty(&first).unwrap();
        assert_eq!(read(text.as_bytes()).unwrap().diagnosis, first.diagnosis);
    }

    #[test]
    fn damaged_files_are_refused_in_one_sentence() {
        let cut = &COPY[..COPY.len() - 20];
        let short = r#"{"event":"summary","sessions":[]}"#;
        for text in [
            "",
            "{",
            "[1]",
            "{\"kind\":\"x\"}",
            cut,
            short,
            "\0\u{1b}[31m",
        ] {
            let why = read(text.as_bytes()).err().unwrap();
            assert!(!why.to_string().contains(['\n', '\u{1b}']), "{why}");
        }
    }

    /// Bug: the events of an unfinished copy were said not to be events of `longhaul cp --json`.
    #[test]
    fn events_without_a_summary_were_called_no_events() {
        let (start, _) = COPY.split_once('\n').unwrap();
        for text in [start, &COPY[..COPY.len() - 20]] {
            let why = read(text.as_bytes()).err().unwrap();
            assert!(why.to_string().contains("end before the summary"), "{why}");
        }
    }

    #[test]
    fn no_bytes_make_the_reader_fail() {
        let mut state = 1_u64;
        for _ in 0..2000 {
            let mut bytes = COPY.as_bytes().to_vec();
            for _ in 0..3 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = (state >> 20) as u8;
            }
            if let Ok(report) = read(bytes.as_slice()) {
                measure::doctor::text(&report);
                measure::doctor::page(&report);
            }
        }
    }
}
