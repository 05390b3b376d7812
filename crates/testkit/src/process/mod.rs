//! Programs under test: captured, bounded in time, ended as a process group.

mod capture;
mod outcome;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use capture::Capture;
pub use outcome::Outcome;

/// A command about to run.
#[derive(Debug)]
pub struct Run {
    command: Command,
    stdin: Option<Vec<u8>>,
    timeout: Duration,
}

impl Run {
    /// `program`, to be ended after 40 seconds if nothing else is said.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self::of(Command::new(program))
    }

    /// The same of a command that was begun.
    pub fn of(command: Command) -> Self {
        Self {
            command,
            stdin: None,
            timeout: Duration::from_secs(40),
        }
    }

    /// The same command inside a terminal of its own (util-linux's `script`), for prompts and
    /// progress. Its standard output carries all that the terminal shows.
    pub fn in_terminal(self) -> Self {
        let words: Vec<String> = std::iter::once(self.command.get_program())
            .chain(self.command.get_args())
            .map(shell_quoted)
            .collect();
        let mut command = Command::new("script");
        command
            .args(["-q", "-e", "-f", "-c"])
            .arg(words.join(" "))
            .arg("/dev/null")
            // Whatever terminal the tests run in.
            .env("TERM", "xterm");
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(folder) = self.command.get_current_dir() {
            command.current_dir(folder);
        }
        // `script` runs $SHELL -c.
        command.env("SHELL", "/bin/sh");
        Self { command, ..self }
    }

    /// One more argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// More arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    /// An environment variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Takes a variable away that the test itself may have.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.command.env_remove(name);
        self
    }

    /// The folder to run in.
    pub fn in_folder(mut self, folder: impl AsRef<Path>) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// What the program reads on standard input; without this, it reads nothing.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// When to end it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Runs to the end.
    pub fn run(self) -> Outcome {
        self.spawn().wait()
    }

    /// Starts it, and leaves the test free to signal it, cut its connection or read along.
    ///
    /// # Panics
    /// If the program cannot be started.
    pub fn spawn(mut self) -> Running {
        let shown = shown(&self.command);
        let started = Instant::now();
        self.command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self
            .command
            .spawn()
            .unwrap_or_else(|error| panic!("could not start {shown}: {error}"));
        let pid = Pid::from_child(&child);
        let stdin = child.stdin.take();
        let stdin = match self.stdin {
            Some(bytes) => {
                std::thread::spawn(move || {
                    if let Some(mut stdin) = stdin {
                        // A program that ends without reading all of it is no fault of the test.
                        let _ = stdin.write_all(&bytes);
                    }
                });
                None
            }
            None => stdin,
        };
        let stdout = Capture::of(child.stdout.take().expect("stdout was piped"));
        let stderr = Capture::of(child.stderr.take().expect("stderr was piped"));
        let (sender, ended) = channel();
        std::thread::spawn(move || {
            let _ = sender.send(wait(child, pid));
        });
        Running {
            shown,
            pid,
            started,
            deadline: started + self.timeout,
            stdin,
            stdout,
            stderr,
            ended,
        }
    }
}

/// Waits, reads the processor time while the process id is still ours, and ends what the program
/// left behind in its group.
fn wait(mut child: Child, pid: Pid) -> (std::process::ExitStatus, Duration, Instant) {
    let _ = rustix::process::waitid(
        WaitId::Pid(pid),
        WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
    );
    let ended = Instant::now();
    let cpu = cpu_time(pid.as_raw_nonzero().get().cast_unsigned()).unwrap_or_default();
    let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    let status = child.wait().expect("a child of ours can be waited for");
    (status, cpu, ended)
}

/// Processor time, user and system, of a process and of the children it has waited for, in steps
/// of 10 ms: Linux counts in 1/100 s here whatever its own tick is.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    times(pid, 4)
}

/// The same without the children.
pub fn own_cpu_time(pid: u32) -> Option<Duration> {
    times(pid, 2)
}

/// The sum of the first `columns` of utime, stime, cutime and cstime.
fn times(pid: u32, columns: usize) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold spaces; what follows it is plain.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<u64> = rest
        .split_whitespace()
        .skip(11)
        .take(columns)
        .filter_map(|field| field.parse().ok())
        .collect();
    Some(Duration::from_millis(fields.iter().sum::<u64>() * 10))
}

/// A program that runs.
#[derive(Debug)]
pub struct Running {
    shown: String,
    pid: Pid,
    started: Instant,
    deadline: Instant,
    stdin: Option<ChildStdin>,
    stdout: Capture,
    stderr: Capture,
    ended: Receiver<(std::process::ExitStatus, Duration, Instant)>,
}

impl Running {
    /// Its process id, which is its process group's too.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// SIGINT, as Control-C sends it: to the whole group.
    pub fn interrupt(&self) {
        let _ = rustix::process::kill_process_group(self.pid, Signal::INT);
    }

    /// SIGTERM to the program alone.
    pub fn terminate(&self) {
        let _ = rustix::process::kill_process(self.pid, Signal::TERM);
    }

    /// SIGSTOP or SIGCONT to the whole group.
    pub fn pause(&self, paused: bool) {
        let signal = if paused { Signal::STOP } else { Signal::CONT };
        let _ = rustix::process::kill_process_group(self.pid, signal);
    }

    /// Types `text`.
    pub fn type_in(&mut self, text: &str) {
        if let Some(stdin) = &mut self.stdin {
            let _ = stdin.write_all(text.as_bytes());
            let _ = stdin.flush();
        }
    }

    /// Waits until `text` shows on standard output or standard error; false if the program's
    /// time is over or it has closed both without showing it.
    pub fn shows(&self, text: &str) -> bool {
        loop {
            if self.stdout.contains(text) || self.stderr.contains(text) {
                return true;
            }
            if Instant::now() > self.deadline || (self.stdout.closed() && self.stderr.closed()) {
                return self.stdout.contains(text) || self.stderr.contains(text);
            }
            self.stdout.wait(Duration::from_millis(10));
        }
    }

    /// Waits until `condition` holds; false if the program ends or runs out of time before.
    pub fn until(&self, mut condition: impl FnMut() -> bool) -> bool {
        while !condition() {
            if Instant::now() > self.deadline || (self.stdout.closed() && self.stderr.closed()) {
                return condition();
            }
            self.stdout.wait(Duration::from_millis(1));
        }
        true
    }

    /// Waits for the end, and brings it about once the time is over.
    pub fn wait(mut self) -> Outcome {
        self.stdin = None;
        let left = self.deadline.saturating_duration_since(Instant::now());
        let (timed_out, (status, cpu, ended)) = match self.ended.recv_timeout(left) {
            Ok(end) => (false, end),
            Err(RecvTimeoutError::Timeout) => {
                let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
                (
                    true,
                    self.ended.recv().expect("the waiting thread sends once"),
                )
            }
            Err(RecvTimeoutError::Disconnected) => panic!("{}: nobody waits for it", self.shown),
        };
        Outcome {
            shown: self.shown,
            code: status.code(),
            signal: status.signal(),
            timed_out,
            stdout: self.stdout.finish(),
            stderr: self.stderr.finish(),
            elapsed: ended.duration_since(self.started),
            cpu,
        }
    }
}

fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(shell_quoted)
        .collect::<Vec<_>>()
        .join(" ")
}

/// A word as a shell reads it back. Bytes that are not UTF-8 cannot pass through here.
pub fn shell_quoted(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,+%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// `program` run to its end in a setup step.
///
/// # Panics
/// If it fails: without its result no test can go on.
pub fn must(program: &str, args: &[&OsStr]) -> Outcome {
    Run::new(program).args(args).run().expect_code(0)
}

/// Words of different types as one argument list.
pub fn words(words: &[&dyn AsRef<OsStr>]) -> Vec<OsString> {
    words.iter().map(|word| word.as_ref().to_owned()).collect()
}

#[cfg(test)]
mod tests;
