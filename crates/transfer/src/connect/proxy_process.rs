//! Runs a ProxyCommand.

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::escape;

/// Time for the command to exit once it has closed the connection.
const EXITS: Duration = Duration::from_millis(500);
/// Bytes kept of the end of the command's standard error.
const KEPT: usize = 1000;
/// Bytes of the command's last line in an error message.
const SHOWN: usize = 300;

/// A running ProxyCommand. Dropping this does not end the process.
#[derive(Debug)]
pub struct ProxyProcess {
    /// Name of the program in messages.
    name: &'static str,
    child: Mutex<Child>,
    /// Last part of the command's standard error, for error messages; all of it is also passed
    /// through.
    said: Arc<Mutex<Vec<u8>>>,
    /// Disconnected once the command's standard error was read to its end, which comes with the last
    /// process that has it open.
    read: Mutex<Receiver<()>>,
}

impl ProxyProcess {
    /// Starts a shell that runs `command`, with the other end of a socket pair as its standard
    /// input and output.
    pub(super) fn start(command: &str) -> io::Result<(UnixStream, Self)> {
        let shell = std::env::var_os("SHELL").filter(|s| !s.is_empty());
        let mut shell = Command::new(shell.unwrap_or_else(|| "/bin/sh".into()));
        shell.arg("-c").arg(format!("exec {command}"));
        Self::run(shell, "the ProxyCommand")
    }

    /// Starts a program, named `name` in messages, in the same way.
    pub(super) fn run(mut program: Command, name: &'static str) -> io::Result<(UnixStream, Self)> {
        let (ours, theirs) = UnixStream::pair()?;
        let output = OwnedFd::from(theirs.try_clone()?);
        let mut child = program
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(output))
            .stderr(Stdio::piped())
            .spawn()?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let (reading, read) = channel::<()>();
        if let Some(stderr) = child.stderr.take() {
            let kept = Arc::clone(&said);
            thread::spawn(move || {
                let _reading = reading;
                pass_on(stderr, &kept);
            });
        }
        let process = Self {
            name,
            child: Mutex::new(child),
            said,
            read: Mutex::new(read),
        };
        Ok((ours, process))
    }

    /// Waits briefly and reports how the command ended: its status and its last line, escaped.
    pub(super) fn why_ended(&self) -> String {
        let until = Instant::now() + EXITS;
        let left = || until.saturating_duration_since(Instant::now());
        // Nothing is ever sent: the wait ends when the reader does.
        let _ = self
            .read
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv_timeout(left());
        let status = self.exit_within(left());
        let how = match status.map(|status| (status.code(), status.signal())) {
            Some((Some(code), _)) => format!("ended with status {code}"),
            Some((None, Some(signal))) => format!("was ended by signal {signal}"),
            Some((None, None)) => "ended".to_owned(),
            None => "closed the connection".to_owned(),
        };
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let name = self.name;
        match last_line(&said) {
            Some(line) => format!("{name} {how}: {line}"),
            None => format!("{name} {how}"),
        }
    }

    fn exit_within(&self, limit: Duration) -> Option<ExitStatus> {
        let mut child = self.child();
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok()?;
        let limit = Timespec::try_from(limit).ok();
        let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], limit.as_ref());
        child.try_wait().ok().flatten()
    }

    pub(super) fn kill(&self) {
        let _ = self.child().kill();
    }

    pub(super) fn wait(&self) -> io::Result<ExitStatus> {
        self.child().wait()
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Copies the command's standard error to this process's, and keeps its last part.
fn pass_on(mut from: ChildStderr, kept: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        let bytes = buffer.get(..n).unwrap_or_default();
        {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend_from_slice(bytes);
            let surplus = kept.len().saturating_sub(KEPT);
            kept.drain(..surplus);
        }
        let _ = io::stderr().write_all(bytes);
    }
}

fn last_line(said: &[u8]) -> Option<String> {
    let line = said
        .split(|b| *b == b'\n')
        .map(<[u8]>::trim_ascii)
        .rfind(|line| !line.is_empty())?;
    let end = line.len().min(SHOWN);
    Some(escape::name(line.get(..end).unwrap_or_default()).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(command: &str) -> String {
        let (mut ours, process) = ProxyProcess::start(command).unwrap();
        // The socket closes when the command exits.
        let _ = ours.read_to_end(&mut Vec::new());
        process.why_ended()
    }

    /// Regression test: a failed ProxyCommand was reported as "the server closed the connection".
    #[test]
    fn status_and_last_line_of_a_proxy_command_are_told() {
        assert_eq!(ended("false"), "the ProxyCommand ended with status 1");
        let said = ended("sh -c 'echo first >&2; printf \"no \\033[2J route\\n\" >&2; exit 7'");
        assert_eq!(
            said,
            "the ProxyCommand ended with status 7: no \\x1b[2J route"
        );
        let said = ended("sh -c 'kill -9 $$'");
        assert_eq!(said, "the ProxyCommand was ended by signal 9");
    }

    #[test]
    fn the_last_line_is_one_line_that_moves_no_terminal() {
        assert_eq!(last_line(b"\n \n"), None);
        let said = last_line(b"one\ntwo \x1b[2J\r\n\n");
        assert_eq!(said.as_deref(), Some("two \\x1b[2J"));
        assert!(last_line(&[b'x'; 900]).is_some_and(|line| line.len() == SHOWN));
    }
}
