//! The lab's processes, and the consequences when one of them ends.

use std::io::{self, Write};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGTERM};

use crate::error::LabError;
use crate::signals::SignalFd;

/// Time for the command to end once the emulator has ended.
const COMMAND_ENDS: Duration = Duration::from_secs(2);

/// The role of a process in the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChildRole {
    Emulator,
    Sshd,
    Far,
    Command,
}

impl ChildRole {
    fn name(self) -> &'static str {
        match self {
            Self::Emulator => "the lab's emulator",
            Self::Sshd => "sshd on the far side",
            Self::Far => "the far command",
            Self::Command => "the command",
        }
    }
}

/// The processes started by this one. As the first of its namespace, it also inherits orphans.
#[derive(Debug)]
pub(super) struct ChildProcesses {
    alive: Vec<(Pid, ChildRole)>,
    ended: SignalFd,
    passed_on: Vec<SignalFd>,
}

impl ChildProcesses {
    pub(super) fn new() -> Result<Self, LabError> {
        let failed = |error| LabError::system("signals", error);
        let ignored = || LabError("SIGCHLD is ignored, but the lab needs it".to_owned());
        let mut passed_on = Vec::new();
        for signal in [SIGTERM, SIGHUP] {
            passed_on.extend(SignalFd::new(signal).map_err(failed)?);
        }
        Ok(Self {
            alive: Vec::new(),
            ended: SignalFd::new(SIGCHLD)
                .map_err(failed)?
                .ok_or_else(ignored)?,
            passed_on,
        })
    }

    /// Starts a process.
    pub(super) fn start(&mut self, role: ChildRole, command: &mut Command) -> Result<(), LabError> {
        let child = command
            .spawn()
            .map_err(|error| LabError::system(format!("cannot start {}", role.name()), error))?;
        self.alive.push((Pid::from_child(&child), role));
        Ok(())
    }

    /// Waits until `role` is ready. Returns false at the time limit.
    ///
    /// # Errors
    /// The process ended instead.
    pub(super) fn wait_for(
        &mut self,
        role: ChildRole,
        ready: impl Fn() -> bool,
        patience: Duration,
    ) -> Result<bool, LabError> {
        let deadline = Instant::now() + patience;
        while !ready() {
            match self.reap() {
                // The caller prints the server's log.
                Some((ChildRole::Sshd, _)) if role == ChildRole::Sshd => return Ok(false),
                Some((ended, status)) if ended == role => {
                    let (name, how) = (role.name(), told(status));
                    return Err(LabError(format!("{name} {how} before it was ready")));
                }
                Some((ended, status)) => tell(&format!("{} {}", ended.name(), told(status))),
                None => {}
            }
            if Instant::now() > deadline {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }

    /// Waits until the command ends. Returns its status as a shell does.
    ///
    /// # Errors
    /// The emulator ended; without a path the command has been ended too.
    pub(super) fn run(&mut self, command: Child) -> Result<u8, LabError> {
        let pid = Pid::from_child(&command);
        self.alive.push((pid, ChildRole::Command));
        loop {
            while let Some((role, status)) = self.reap() {
                match role {
                    ChildRole::Command => return Ok(code(status)),
                    ChildRole::Emulator => {
                        self.end(pid, ChildRole::Command, COMMAND_ENDS);
                        let how = told(status);
                        return Err(LabError(format!(
                            "{} {how}, so the path is down: the command was stopped",
                            role.name()
                        )));
                    }
                    // A server for a single client, such as iperf3 -s -1, ends normally.
                    ChildRole::Far if status.exit_status() == Some(0) => {}
                    ChildRole::Sshd | ChildRole::Far => tell(&format!(
                        "{} {} while the command ran",
                        role.name(),
                        told(status)
                    )),
                }
            }
            self.sleep(None);
            for signal in self.passed_on.iter().filter(|signal| signal.came()) {
                let name = if signal.signal == SIGHUP {
                    Signal::HUP
                } else {
                    Signal::TERM
                };
                let _ = kill_process(pid, name);
            }
        }
    }

    /// Asks the emulator to write its figures, and waits for its end.
    pub(super) fn end_emulator(&mut self, patience: Duration) {
        if let Some((pid, role)) = self.find(ChildRole::Emulator) {
            self.end(pid, role, patience);
        }
    }

    /// The process with this role.
    pub(super) fn find(&self, role: ChildRole) -> Option<(Pid, ChildRole)> {
        self.alive.iter().copied().find(|(_, have)| *have == role)
    }

    /// Asks a process to end. After `patience` it is left to end with the namespace.
    fn end(&mut self, pid: Pid, role: ChildRole, patience: Duration) {
        let _ = kill_process(pid, Signal::TERM);
        let deadline = Instant::now() + patience;
        while self.find(role).is_some() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            while self.reap().is_some() {}
            if self.find(role).is_some() {
                self.sleep(Some(left));
            }
        }
    }

    /// The next of the lab's own processes that has ended, if any.
    fn reap(&mut self) -> Option<(ChildRole, WaitStatus)> {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if let Some(at) = self.alive.iter().position(|(alive, _)| *alive == pid) {
                return Some((self.alive.swap_remove(at).1, status));
            }
        }
        None
    }

    /// Sleeps until a child ends, a signal arrives, or the time is over.
    fn sleep(&self, longest: Option<Duration>) {
        let mut fds: Vec<PollFd<'_>> = self
            .passed_on
            .iter()
            .chain([&self.ended])
            .map(|signal| PollFd::new(signal, PollFlags::IN))
            .collect();
        let longest = longest.and_then(|time| time.try_into().ok());
        // An interruption only causes another check.
        let _ = poll(&mut fds, longest.as_ref());
        self.ended.came();
    }
}

/// The exit status as a shell reports it: 128 and the number of the signal.
fn code(status: WaitStatus) -> u8 {
    let code = match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => crate::FAILED.into(),
    };
    u8::try_from(code).unwrap_or(crate::FAILED)
}

fn told(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// Prints a message between the command's output.
pub(super) fn tell(sentence: &str) {
    let _ = writeln!(io::stderr(), "longhaul lab: {sentence}");
}
