//! Programs under test: their output is captured, their time is limited, and they are ended as a
//! process group.

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

use crate::wait;
use capture::ProgramOutput;
pub use outcome::Outcome;

/// Command to run, with its input and a time limit, 40 seconds unless the test sets one.
#[derive(Debug)]
pub struct Run {
    command: Command,
    stdin: Option<Vec<u8>>,
    timeout: Duration,
}

impl Run {
    /// Prepares `program` with a time limit of 40 seconds.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self::of(Command::new(program))
    }

    /// Prepares an existing command with a time limit of 40 seconds.
    pub fn of(command: Command) -> Self {
        Self {
            command,
            stdin: None,
            timeout: Duration::from_secs(40),
        }
    }

    /// Runs the command inside a terminal of its own (util-linux `script`), for prompts and
    /// progress. Its standard output then contains all that the terminal shows.
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
            // Independent of the terminal in which the tests run.
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

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Removes an environment variable that the test process may have.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Sets the working folder.
    pub fn in_folder(mut self, folder: impl AsRef<Path>) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// Sets the standard input of the program; without this it is empty.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// Sets the time limit.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Runs the program to its end.
    pub fn run(self) -> Outcome {
        self.spawn().wait()
    }

    /// Starts the program; the test can signal it, cut its connection or read its output meanwhile.
    ///
    /// # Panics
    /// Panics if the program cannot be started.
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
                        // A program may end without reading all of its input.
                        let _ = stdin.write_all(&bytes);
                    }
                });
                None
            }
            None => stdin,
        };
        let output = ProgramOutput::of(
            child.stdout.take().expect("stdout was piped"),
            child.stderr.take().expect("stderr was piped"),
        );
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
            output,
            ended,
        }
    }
}

/// Waits for the process, reads its processor time before the process id is released, and kills the
/// processes that it left behind in its group.
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

/// Returns the user and system time of a process and of the children that it has waited for, in
/// steps of 10 ms: Linux uses units of 1/100 s here, independent of its own tick.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    times(pid, 4)
}

/// Returns the user and system time of a process without its children.
pub fn own_cpu_time(pid: u32) -> Option<Duration> {
    times(pid, 2)
}

/// Sums the first `columns` of utime, stime, cutime and cstime.
fn times(pid: u32, columns: usize) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain spaces; the fields behind it do not.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<u64> = rest
        .split_whitespace()
        .skip(11)
        .take(columns)
        .filter_map(|field| field.parse().ok())
        .collect();
    Some(Duration::from_millis(fields.iter().sum::<u64>() * 10))
}

/// Running program of a test, the leader of its own process group, with its output so far.
#[derive(Debug)]
pub struct Running {
    shown: String,
    pid: Pid,
    started: Instant,
    deadline: Instant,
    stdin: Option<ChildStdin>,
    output: ProgramOutput,
    ended: Receiver<(std::process::ExitStatus, Duration, Instant)>,
}

impl Running {
    /// Returns the process id, which is also the id of its process group.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Sends SIGINT to the whole group, as Control-C does.
    pub fn interrupt(&self) {
        let _ = rustix::process::kill_process_group(self.pid, Signal::INT);
    }

    /// Sends SIGTERM to the program alone.
    pub fn terminate(&self) {
        let _ = rustix::process::kill_process(self.pid, Signal::TERM);
    }

    /// Sends SIGSTOP or SIGCONT to the whole group.
    pub fn pause(&self, paused: bool) {
        let signal = if paused { Signal::STOP } else { Signal::CONT };
        let _ = rustix::process::kill_process_group(self.pid, signal);
    }

    /// Writes `text` to the program's standard input.
    pub fn type_in(&mut self, text: &str) {
        if let Some(stdin) = &mut self.stdin {
            let _ = stdin.write_all(text.as_bytes());
            let _ = stdin.flush();
        }
    }

    /// Waits until `text` appears on standard output or standard error; false if the time limit
    /// passes, or if both are closed before.
    pub fn shows(&self, text: &str) -> bool {
        self.output.show(text, self.deadline)
    }

    /// Waits until `condition` holds; false if the program ends or the time limit passes before.
    pub fn until(&self, mut condition: impl FnMut() -> bool) -> bool {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let mut holds = false;
        wait::up_to(left, || {
            // Read before the condition: a program may fulfil it and end.
            let ended = self.output.are_closed();
            holds = condition();
            holds || ended
        });
        holds
    }

    /// Waits for the end of the program, and kills it after the time limit.
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
        let [stdout, stderr] = self.output.finish();
        Outcome {
            shown: self.shown,
            code: status.code(),
            signal: status.signal(),
            timed_out,
            stdout,
            stderr,
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

/// Quotes a word for a shell. Bytes that are not UTF-8 are not supported.
pub fn shell_quoted(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,+%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Runs `program` to its end as part of a setup.
///
/// # Panics
/// Panics if the program fails: the test cannot continue without its result.
pub fn must(program: &str, args: &[&OsStr]) -> Outcome {
    Run::new(program).args(args).run().expect_code(0)
}

/// Converts words of different types to one argument list.
pub fn words(words: &[&dyn AsRef<OsStr>]) -> Vec<OsString> {
    words.iter().map(|word| word.as_ref().to_owned()).collect()
}

#[cfg(test)]
mod tests;
