//! Figures of a running transfer in a file that only its user can read, for `longhaul doctor
//! --watch PID`.
//!
//! `$XDG_RUNTIME_DIR/longhaul/PID.json`, by default `~/.local/state/longhaul/run/PID.json`, exists
//! while a transfer runs that takes longer than a second. Nothing reads it but `--watch`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::command_error::CommandError;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use transfer::report::SessionReport;
use transfer::{LonghaulDirKind, PrivateDir};

/// The `kind` of the file.
const KIND: &str = "longhaul-running";
/// Longest file that is read, in bytes.
const MOST: u64 = 256 << 10;
/// Hosts of a transfer that are written at most.
const MOST_HOSTS: usize = 64;
/// Names of other files that are looked at for dead processes.
const MOST_FILES: usize = 1000;

/// File with the figures of this process's running transfer. It is created with the first figures
/// and removed at the end.
#[derive(Debug, Default)]
pub(crate) struct RunningTransferFile {
    state: Mutex<TransferStatusFileState>,
}

/// Last report of each session by its host, at most [`MOST_HOSTS`], and the folder of the file once
/// it was opened.
#[derive(Debug, Default)]
struct TransferStatusFileState {
    folder: Option<PrivateDir>,
    /// The folder cannot be used, which is no reason to disturb the transfer.
    failed: bool,
    sessions: BTreeMap<Vec<u8>, Value>,
}

/// JSON document of the file: the process, whose start time reveals a reused number, and a report
/// for each session.
#[derive(Deserialize, Serialize)]
struct TransferStatusFileContent {
    kind: String,
    pid: u32,
    /// Start of the process, in the kernel's ticks since boot; 0 if unknown.
    start: u64,
    sessions: Vec<Value>,
}

impl RunningTransferFile {
    /// Replaces the figures of a session.
    pub(crate) fn note(&self, report: &SessionReport) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(value) = serde_json::to_value(report) else {
            return;
        };
        let known = state.sessions.contains_key(&report.host.0);
        if state.failed || !known && state.sessions.len() >= MOST_HOSTS {
            return;
        }
        state.sessions.insert(report.host.0.clone(), value);
        if let Err(why) = state.write() {
            tracing::debug!("longhaul doctor --watch cannot follow this copy: {why}");
            state.failed = true;
        }
    }
}

impl TransferStatusFileState {
    fn write(&mut self) -> io::Result<()> {
        if self.folder.is_none() {
            let missing = || io::Error::other("this user has no home directory");
            let path = LonghaulDirKind::Runtime.path().ok_or_else(missing)?;
            let folder = PrivateDir::create(&path)?;
            remove_stale(&folder);
            self.folder = Some(folder);
        }
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let pid = std::process::id();
        let content = TransferStatusFileContent {
            kind: KIND.to_owned(),
            pid,
            start: started(pid).unwrap_or(0),
            sessions: self.sessions.values().cloned().collect(),
        };
        let new = OsString::from(format!("{pid}.new"));
        // An earlier process of this number may have left one.
        let _ = folder.remove(&new);
        let mut file = folder.create_file(&new)?;
        file.write_all(&serde_json::to_vec(&content)?)?;
        folder.rename(&new, &name(pid))
    }
}

impl Drop for RunningTransferFile {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = &state.folder {
            // The next transfer removes what is left; the folder stays if others use it.
            let _ = folder.remove(&name(std::process::id()));
            let _ = fs::remove_dir(folder.path());
        }
    }
}

fn name(pid: u32) -> OsString {
    format!("{pid}.json").into()
}

/// Removes the files of processes that ended without doing so.
fn remove_stale(folder: &PrivateDir) {
    let entries = fs::read_dir(folder.path()).into_iter().flatten().flatten();
    for entry in entries.take(MOST_FILES) {
        let file = entry.file_name();
        let stem = Path::new(&file).file_stem().and_then(OsStr::to_str);
        let pid = stem.and_then(|stem| stem.parse().ok());
        if pid.is_some_and(|pid: u32| !is_alive(pid)) {
            let _ = folder.remove(&file);
        }
    }
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok();
    let pid = pid.and_then(rustix::process::Pid::from_raw);
    // A process of another user is alive as well.
    let gone = |e| e == rustix::io::Errno::SRCH;
    pid.is_some_and(|pid| !rustix::process::test_kill_process(pid).is_err_and(gone))
}

/// Start of a process in ticks since boot; `None` where the system has no /proc.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// Returns the sessions of a running transfer of this user, as in the `summary` event of `--json`.
///
/// # Errors
/// One sentence: there is no such process, or none with figures.
pub(crate) fn sessions(pid: u32) -> Result<Vec<Value>, CommandError> {
    if !is_alive(pid) {
        return Err(format!(
            "process {pid}: no such process: give the process ID of a running longhaul cp or sync"
        )
        .into());
    }
    let none = || {
        format!(
            "process {pid}: has no figures: it is not a longhaul cp or sync of this user, or has \
             moved data for less than two seconds"
        )
    };
    let folder = LonghaulDirKind::Runtime.path().ok_or_else(none)?;
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => none(),
        _ => format!("process {pid}: cannot read its figures: {e}"),
    };
    let folder = PrivateDir::open(&folder).map_err(failed)?;
    let file = folder.file(&name(pid), false).map_err(failed)?;
    let mut text = Vec::new();
    file.take(MOST).read_to_end(&mut text).map_err(failed)?;
    Ok(read(&text, pid, started(pid)).ok_or_else(none)?)
}

/// Reads the file; `None` if it is of an earlier process with this number, or damaged.
fn read(text: &[u8], pid: u32, start: Option<u64>) -> Option<Vec<Value>> {
    let content: TransferStatusFileContent = serde_json::from_slice(text).ok()?;
    let same = content.kind == KIND
        && content.pid == pid
        && (content.start == 0 || start.is_none_or(|start| start == content.start));
    (same && !content.sessions.is_empty()).then_some(content.sessions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(pid: u32, start: u64) -> Vec<u8> {
        let content = TransferStatusFileContent {
            kind: KIND.to_owned(),
            pid,
            start,
            sessions: vec![Value::Null],
        };
        serde_json::to_vec(&content).unwrap()
    }

    #[test]
    fn figures_of_an_earlier_process_with_this_number_are_refused() {
        assert!(read(&file(7, 100), 7, Some(100)).is_some());
        assert!(read(&file(7, 100), 7, Some(101)).is_none());
        assert!(read(&file(8, 100), 7, Some(100)).is_none());
        assert!(read(b"{\"kind\":", 7, Some(100)).is_none());
        assert!(read(b"", 7, None).is_none());
    }

    #[test]
    fn this_process_is_alive_and_has_a_start() {
        let own = std::process::id();
        assert!(is_alive(own) && !is_alive(0) && !is_alive(u32::MAX));
        assert_eq!(
            started(own).is_some(),
            Path::new("/proc/self/stat").exists()
        );
    }
}
