//! `--json`: one event per line. docs/json.md describes every field, and a test compares the two.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;
use transfer::report::{CopySummary, EscapedName};
use transfer::timeline::TimelineEntry;

use crate::exit::Exit;
use crate::output::explain::DecisionEvent;
use crate::output::snapshot::ProgressSnapshot;
use crate::several::HostProgress;

/// Version of the format. It is raised when a field changes its meaning or is removed, not for new
/// fields and events.
const VERSION: u32 = 1;

/// Writes events to standard output, or another writer.
pub(crate) struct JsonEventWriter {
    out: Mutex<Box<dyn Write + Send>>,
    start: Instant,
}

/// One line of output: the event's fields behind the format version and the seconds since the
/// start.
#[derive(Serialize)]
struct JsonEventLine<'a, E: Serialize> {
    v: u32,
    t: f64,
    #[serde(flatten)]
    event: &'a E,
}

/// The events of the command line; those of the copy are [`transfer::report::CopyEvent`].
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum RunEvent<'a> {
    /// The `start` event, which comes first.
    Start {
        /// Version of longhaul.
        version: &'static str,
        /// The sources as on the command line.
        sources: Vec<EscapedName>,
        /// The target as on the command line.
        target: EscapedName,
    },
    /// A new connection.
    Host(HostInfo),
    /// A decision, at the end, with `--explain`.
    Decision(DecisionEvent),
    /// A step of the copy, at the end, with `--explain=timeline`.
    Timeline(TimelineEntry),
    /// The progress, every second.
    Progress {
        bytes_done: u64,
        bytes_total: u64,
        files_done: u64,
        files_total: u64,
        totals_final: bool,
        rate: u64,
        remaining: Option<u64>,
        current: Option<EscapedName>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        hosts: Vec<HostProgress>,
    },
    /// The `summary` event, which comes last.
    Summary {
        exit: u8,
        #[serde(flatten)]
        summary: &'a CopySummary,
    },
}

/// Facts about a connection. Those that the system's ssh does not reveal (`-S`) are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct HostInfo {
    /// The host as the user wrote it.
    pub(crate) host: String,
    /// The login name.
    pub(crate) user: Option<String>,
    /// The relaying hosts (`--via`).
    pub(crate) via: Option<String>,
    /// The address connected to, with port.
    pub(crate) address: Option<String>,
    /// The server's banner.
    pub(crate) banner: Option<String>,
    /// Name of the key exchange method.
    pub(crate) kex: Option<String>,
    /// Algorithm of the host key.
    pub(crate) host_key: Option<String>,
    /// Cipher from client to server.
    pub(crate) cipher: Option<String>,
    /// The authentication method that succeeded.
    pub(crate) auth: Option<String>,
    /// The first key exchange was guessed from the host memory, and the guess was right.
    pub(crate) guessed: bool,
}

impl JsonEventWriter {
    pub(crate) fn new(out: Box<dyn Write + Send>, start: Instant) -> Self {
        Self {
            out: Mutex::new(out),
            start,
        }
    }

    /// Writes one event.
    ///
    /// # Errors
    /// The event can't be written; `BrokenPipe` if the reader has closed the pipe.
    pub(crate) fn write(&self, event: &impl Serialize) -> io::Result<()> {
        let t = (self.start.elapsed().as_secs_f64() * 1e6).round() / 1e6;
        let line = serde_json::to_string(&JsonEventLine {
            v: VERSION,
            t,
            event,
        })?;
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(wire::escape::json(line).as_bytes())?;
        out.write_all(b"\n")?;
        out.flush()
    }
}

impl<'a> RunEvent<'a> {
    /// A `progress` event with the counters of a snapshot.
    pub(crate) fn progress(snapshot: ProgressSnapshot) -> Self {
        Self::Progress {
            bytes_done: snapshot.bytes_done,
            bytes_total: snapshot.bytes_total,
            files_done: snapshot.files_done,
            files_total: snapshot.files_total,
            totals_final: snapshot.totals_final,
            rate: snapshot.rate,
            remaining: snapshot.remaining.map(|time| time.as_secs()),
            current: snapshot.current,
            hosts: snapshot.hosts,
        }
    }

    /// The `summary` event.
    pub(crate) fn summary(exit: Exit, summary: &'a CopySummary) -> Self {
        Self::Summary {
            exit: exit.code(),
            summary,
        }
    }
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
