//! Processes that the monitor starts for a connection.

use std::env;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Signal, pidfd_send_signal};
use tracing::level_filters::LevelFilter;

use super::monitor_message_socket::{MonitorMessageSocket, readable};

/// Role of a process that was started with exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessRole {
    /// Reads client input until the login.
    Preauth,
    /// Fork server, from which account processes are forked.
    ForkServer,
}

/// Environment variable with the log level of the server.
const LOG_LEVEL: &str = "LONGHAUL_LOG_LEVEL";

impl ProcessRole {
    /// The most detailed level that the server logs, as passed to a process that it starts.
    pub fn log_level() -> LevelFilter {
        let level = env::var(LOG_LEVEL).ok();
        level
            .and_then(|l| l.parse().ok())
            .unwrap_or(LevelFilter::INFO)
    }

    /// Words after `serve` that select the role. In ps(1), forked account processes show the fork
    /// server's word.
    const ALL: [(Self, &'static str); 2] = [
        (Self::Preauth, "--preauth"),
        (Self::ForkServer, "--account"),
    ];

    /// Parses a command line; `None` if it is not one of a role but a user's.
    pub fn of(words: &[std::ffi::OsString]) -> Option<Self> {
        let [_, serve, role] = words else {
            return None;
        };
        let named = |word: &&(Self, &str)| role == word.1 && serve == "serve";
        Self::ALL.iter().find(named).map(|found| found.0)
    }

    fn word(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|row| row.0 == self)
            .map_or("", |row| row.1)
    }
}

/// A process of this program, started with exec so that it shares no memory with this one. It is
/// killed when dropped.
#[derive(Debug)]
pub(super) struct HelperProcess {
    child: Child,
    link: Arc<MonitorMessageSocket>,
}

impl HelperProcess {
    /// Starts the program that is running now, even if its file was replaced meanwhile. The process
    /// dies with the calling thread.
    pub(super) fn start(role: ProcessRole, stdin: Option<OwnedFd>) -> io::Result<Self> {
        let (link, theirs) = MonitorMessageSocket::pair()?;
        let zone = env::var_os("TZ");
        let child = Command::new("/proc/self/exe")
            .arg0("longhaul")
            .args(["serve", role.word()])
            .env_clear()
            .envs(zone.map(|zone| ("TZ", zone)))
            // The child drops lines that the server would not log.
            .env(LOG_LEVEL, LevelFilter::current().to_string())
            .stdin(stdin.map_or_else(Stdio::null, Stdio::from))
            .stdout(Stdio::from(theirs))
            .stderr(Stdio::null())
            .spawn()?;
        let link = Arc::new(link);
        Ok(Self { child, link })
    }

    pub(super) fn link(&self) -> &Arc<MonitorMessageSocket> {
        &self.link
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        // Neither does anything if the child was already reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Time in which the fork server must answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// An account process, forked by the fork server, whose child it is. It is killed when dropped.
#[derive(Debug)]
pub(super) struct ForkedAccountProcess {
    process: OwnedFd,
    link: MonitorMessageSocket,
}

impl ForkedAccountProcess {
    /// Asks the fork server at the other end of `template` for a process that serves this client.
    pub(super) fn of(
        template: &MonitorMessageSocket,
        client: impl std::os::fd::AsFd,
    ) -> io::Result<Self> {
        let (link, theirs) = MonitorMessageSocket::pair()?;
        template.hand(&[client.as_fd(), theirs.as_fd()])?;
        drop(theirs);
        let gone = || io::Error::other("internal error: the fork server does not answer");
        let [said] = readable([link.as_fd()], Some(Instant::now() + PATIENCE))?;
        if !said {
            return Err(gone());
        }
        let [process] = link.take()?.ok_or_else(gone)?;
        Ok(Self { process, link })
    }

    pub(super) fn link(&self) -> &MonitorMessageSocket {
        &self.link
    }
}

impl Drop for ForkedAccountProcess {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
        // Wait for its end, because its connection permit is released afterwards.
        let _ = readable([self.process.as_fd()], None);
    }
}
