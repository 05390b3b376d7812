//! `--json`: one event a line. docs/json.md describes every field; a test holds the two together.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;
use transfer::report::{Name, Summary};

use crate::exit::Exit;
use crate::output::explain::DecisionEvent;
use crate::output::snapshot::Snapshot;

/// Raised when a field changes its meaning or goes; new fields and events don't raise it.
const VERSION: u32 = 1;

/// Writes events to standard output, or to whatever stands in for it.
pub(crate) struct Json {
    out: Mutex<Box<dyn Write + Send>>,
    start: Instant,
}

#[derive(Serialize)]
struct Line<'a, E: Serialize> {
    v: u32,
    t: f64,
    #[serde(flatten)]
    event: &'a E,
}

/// The events that come from the command line; those of the copy are
/// [`transfer::report::Event`].
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum RunEvent<'a> {
    /// The first event.
    Start {
        /// longhaul's.
        version: &'static str,
        /// As on the command line.
        sources: Vec<Name>,
        /// As on the command line.
        target: Name,
    },
    /// A connection stands.
    Host(HostInfo),
    /// What was decided, at the end, with `--explain`.
    Decision(DecisionEvent),
    /// Every second.
    Progress {
        bytes_done: u64,
        bytes_total: u64,
        files_done: u64,
        files_total: u64,
        totals_final: bool,
        rate: u64,
        remaining: Option<u64>,
        current: Option<Name>,
    },
    /// The last event.
    Summary {
        exit: u8,
        #[serde(flatten)]
        summary: &'a Summary,
    },
}

/// What is known of a connection. What the system's ssh keeps to itself (`-S`) is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct HostInfo {
    /// As the user wrote it.
    pub(crate) host: String,
    /// The name that is logged in with.
    pub(crate) user: Option<String>,
    /// The address connected to, with port.
    pub(crate) address: Option<String>,
    /// The server's banner.
    pub(crate) banner: Option<String>,
    /// Key exchange.
    pub(crate) kex: Option<String>,
    /// Algorithm of the host key.
    pub(crate) host_key: Option<String>,
    /// Cipher from here to there.
    pub(crate) cipher: Option<String>,
    /// The method that authenticated.
    pub(crate) auth: Option<String>,
    /// The key exchange was guessed from what the host preferred last time, and guessed right.
    pub(crate) guessed: bool,
}

impl Json {
    pub(crate) fn new(out: Box<dyn Write + Send>, start: Instant) -> Self {
        Self {
            out: Mutex::new(out),
            start,
        }
    }

    /// Writes one event.
    ///
    /// # Errors
    /// It can't be written; `BrokenPipe` when nobody reads any more.
    pub(crate) fn write(&self, event: &impl Serialize) -> io::Result<()> {
        let t = (self.start.elapsed().as_secs_f64() * 1e6).round() / 1e6;
        let line = serde_json::to_string(&Line {
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
    /// The state of the counters.
    pub(crate) fn progress(snapshot: Snapshot) -> Self {
        Self::Progress {
            bytes_done: snapshot.bytes_done,
            bytes_total: snapshot.bytes_total,
            files_done: snapshot.files_done,
            files_total: snapshot.files_total,
            totals_final: snapshot.totals_final,
            rate: snapshot.rate,
            remaining: snapshot.remaining.map(|time| time.as_secs()),
            current: snapshot.current,
        }
    }

    /// The end.
    pub(crate) fn summary(exit: Exit, summary: &'a Summary) -> Self {
        Self::Summary {
            exit: exit.code(),
            summary,
        }
    }
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
