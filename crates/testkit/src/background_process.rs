//! Server process with a log file; the process and all its children end when dropped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait;

/// Returns a command that runs a program, given as the first argument, which ends with the current
/// thread, even if that is killed (util-linux `setpriv`). Not for servers that several tests share.
pub fn ends_with_this_thread() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    command
}

/// Child process that is ended when this is dropped.
#[derive(Debug)]
pub struct BackgroundProcess {
    name: String,
    child: Child,
    log: PathBuf,
}

impl BackgroundProcess {
    /// Starts `command` with its standard output and error redirected to the file `log`.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started, or if the log cannot be created.
    pub fn start(name: &str, mut command: Command, log: &Path) -> std::io::Result<Self> {
        let file = File::create(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .map_err(|error| std::io::Error::new(error.kind(), format!("{name}: {error}")))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
        })
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reports if the process still runs.
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends SIGTERM to the process.
    pub fn terminate(&self) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Waits at most `time` for the process to end, and returns its exit code.
    pub fn ends_within(&mut self, time: Duration) -> Option<i32> {
        wait::exit(&mut self.child, time)?.code()
    }

    /// Returns the contents of the log.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits for a log line that starts with `prefix`, and returns the rest of that line; `None` if
    /// the process ends or `deadline` passes before.
    pub fn line_after(&mut self, prefix: &str, deadline: Instant) -> Option<String> {
        let mut found = None;
        wait::up_to(deadline.saturating_duration_since(Instant::now()), || {
            let alive = self.alive();
            // The last line counts only once it is complete.
            found = self
                .log()
                .split_inclusive('\n')
                .filter_map(|line| line.strip_suffix('\n'))
                .find_map(|line| line.strip_prefix(prefix))
                .map(|rest| rest.trim().to_owned());
            found.is_some() || !alive
        });
        found
    }

    /// Returns the running child processes, including their children.
    pub fn descendants(&self) -> Vec<u32> {
        descendants(self.child.id())
    }

    /// Returns the child processes that serve connections, without those that longhaul's server
    /// keeps ready for the next client.
    pub fn serving(&self) -> Vec<u32> {
        let mut all = self.descendants();
        all.retain(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            // A preforked process is named `exe` (after /proc/self/exe) until it sets its name.
            name.is_ok_and(|name| !["longhaul:ready", "exe"].contains(&name.trim_end()))
        });
        all
    }
}

/// Returns all running descendants of a process.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut next = vec![pid];
    while let Some(pid) = next.pop() {
        let children = children_of(pid);
        found.extend(&children);
        next.extend(children);
    }
    found
}

fn children_of(pid: u32) -> Vec<u32> {
    // Each thread has a list of children of its own.
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let lists = threads.map(|thread| {
        let list = std::fs::read_to_string(thread.path().join("children"));
        list.unwrap_or_default()
    });
    lists
        .flat_map(|list| {
            let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok());
            pids.collect::<Vec<u32>>()
        })
        .collect()
}

impl Drop for BackgroundProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let start = log.len().saturating_sub(20_000);
            let start = (start..log.len())
                .find(|at| log.is_char_boundary(*at))
                .unwrap_or(0);
            eprintln!("--- log of {} ---\n{}--- end ---", self.name, &log[start..]);
        }
        // Children first: once their parent is gone, they can no longer be found.
        for pid in self.descendants() {
            if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
