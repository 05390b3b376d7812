//! The process that users start: it creates the lab's first process, waits for it, and prints the
//! figures of the path.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::termios::tcgetwinsize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::error::LabError;
use crate::files;
use crate::privilege::isolate;
use crate::scratch::ScratchFolder;
use crate::signals::SignalFd;
use crate::{FAILED, LabSpec};

/// The hidden subcommand that calls [`crate::inside`].
pub const WORLD: &str = "lab-world";

/// Runs a lab until its command ends. Returns the command's exit status (128 and the number of the
/// signal that ended it), or [`FAILED`] if the lab itself failed and has printed why.
///
/// The running program is started again with [`WORLD`], a folder and `again`, and must then call
/// [`crate::inside`] with the same `lab`.
///
/// The process must have a single thread, and can't start any afterwards.
///
/// # Errors
/// The kernel refuses something that the lab needs.
pub fn run(lab: &LabSpec, again: &[OsString]) -> Result<u8, LabError> {
    let scratch = ScratchFolder::new()?;
    let signals = SignalForwarding::watch()?;
    isolate()?;
    let mut child = this_program(WORLD, scratch.path(), again)
        .spawn()
        .map_err(|error| LabError::system("cannot restart this program inside the lab", error))?;
    let status = signals.wait_for(&mut child)?;
    sys::take_back_terminal(io::stdin());
    if let Some(signal) = status.signal() {
        let memory = match signal {
            9 => ": the machine may lack memory; see dmesg",
            _ => "",
        };
        return Err(LabError(format!(
            "the lab and all its processes were killed by signal {signal}{memory}"
        )));
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    report(lab, scratch.path())?;
    Ok(code.unwrap_or(FAILED))
}

/// A command that runs this program again.
pub(crate) fn this_program(subcommand: &str, scratch: &Path, again: &[OsString]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("longhaul")
        .arg(subcommand)
        .arg(scratch)
        .args(again);
    command
}

/// Prints and saves the figures of the path, if there are any.
fn report(lab: &LabSpec, scratch: &Path) -> Result<(), LabError> {
    if let Some(file) = &lab.figures
        && let Ok(json) = fs::read(scratch.join(files::FIGURES_JSON))
    {
        fs::write(file, json).map_err(|error| LabError::system(file.display(), error))?;
    }
    if !lab.quiet
        && let Ok(text) = fs::read(scratch.join(files::FIGURES_TEXT))
    {
        let mut all = fresh_line();
        all.extend(text);
        // The reader may have gone.
        let _ = io::stderr().write_all(&all);
    }
    Ok(())
}

/// Moves a terminal to the start of a line, from any cursor position. As many spaces as the
/// terminal has columns wrap into the next line, except from the start of a line: they only fill
/// that one, since a terminal wraps at the next character (as zsh does before its prompt).
fn fresh_line() -> Vec<u8> {
    match tcgetwinsize(io::stderr()) {
        Ok(size) if size.ws_col > 0 => {
            let mut line = vec![b' '; size.ws_col.into()];
            line.push(b'\r');
            line
        }
        // A terminal of unknown width gets an empty line at worst.
        Ok(_) => b"\n".to_vec(),
        Err(_) => Vec::new(),
    }
}

/// The handling of signals while the command runs.
struct SignalForwarding {
    /// Signals that are passed on to the command.
    passed_on: Vec<SignalFd>,
    /// Signals that the terminal sends to the command as well, which decides about them; they must
    /// not end this process first.
    _not_ours: Vec<SignalFd>,
}

impl SignalForwarding {
    fn watch() -> Result<Self, LabError> {
        let all = |signals: [i32; 2]| -> io::Result<Vec<SignalFd>> {
            let watched: io::Result<Vec<_>> = signals.into_iter().map(SignalFd::new).collect();
            Ok(watched?.into_iter().flatten().collect())
        };
        let watch = || -> io::Result<Self> {
            Ok(Self {
                passed_on: all([SIGTERM, SIGHUP])?,
                _not_ours: all([SIGINT, SIGQUIT])?,
            })
        };
        watch().map_err(|error| LabError::system("signals", error))
    }

    fn wait_for(&self, child: &mut Child) -> Result<ExitStatus, LabError> {
        let failed = |error: io::Error| LabError::system("cannot wait for the lab", error);
        let pid = Pid::from_child(child);
        let ended = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
        let mut asked = false;
        loop {
            let mut fds: Vec<PollFd<'_>> = self
                .passed_on
                .iter()
                .map(|signal| PollFd::new(signal, PollFlags::IN))
                .collect();
            fds.push(PollFd::new(&ended, PollFlags::IN));
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
            if let Some(status) = child.try_wait().map_err(failed)? {
                return Ok(status);
            }
            for signal in self.passed_on.iter().filter(|signal| signal.came()) {
                let name = match (asked, signal.signal) {
                    // The second request kills.
                    (true, _) => Signal::KILL,
                    (false, SIGHUP) => Signal::HUP,
                    (false, _) => Signal::TERM,
                };
                asked = true;
                // If the process has ended meanwhile, the next round notices.
                let _ = kill_process(pid, name);
            }
        }
    }
}
