//! Processes that the monitor has for a connection.

use std::env;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Signal, pidfd_send_signal};
use tracing::level_filters::LevelFilter;

use super::link::{Link, readable};

/// What a process that was started anew is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It reads what a client sends until it is logged in.
    Preauth,
    /// Processes of accounts are made of it.
    Template,
}

/// Up to what such a process tells the server for its log.
const LOG_LEVEL: &str = "LONGHAUL_LOG_LEVEL";

impl Role {
    /// What the server would write down of the lines of a process that it has started.
    pub fn log_level() -> LevelFilter {
        let level = env::var(LOG_LEVEL).ok();
        level
            .and_then(|l| l.parse().ok())
            .unwrap_or(LevelFilter::INFO)
    }

    /// As it is said behind `serve`. Those of accounts are listed with the name of what they were
    /// made of.
    const ALL: [(Self, &'static str); 2] =
        [(Self::Preauth, "--preauth"), (Self::Template, "--account")];

    /// The role that a command line gives; `None` if it is a person's.
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

/// A process of this program that was started anew, with nothing of this one's memory. Killed, at
/// the latest, when it is dropped.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    link: Arc<Link>,
}

impl Process {
    /// The program that runs now, even if its file was replaced meanwhile. It ends with the thread
    /// that calls this.
    pub(super) fn start(role: Role, stdin: Option<OwnedFd>) -> io::Result<Self> {
        let (link, theirs) = Link::pair()?;
        let zone = env::var_os("TZ");
        let child = Command::new("/proc/self/exe")
            .arg0("longhaul")
            .args(["serve", role.word()])
            .env_clear()
            .envs(zone.map(|zone| ("TZ", zone)))
            // What nobody would write down need not be told.
            .env(LOG_LEVEL, LevelFilter::current().to_string())
            .stdin(stdin.map_or_else(Stdio::null, Stdio::from))
            .stdout(Stdio::from(theirs))
            .stderr(Stdio::null())
            .spawn()?;
        let link = Arc::new(link);
        Ok(Self { child, link })
    }

    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both do nothing where it was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A template that does not answer is none.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process of an account: a copy of the template, whose child it is. Killed, at the latest, when
/// it is dropped.
#[derive(Debug)]
pub(super) struct ForkedAccount {
    process: OwnedFd,
    link: Link,
}

impl ForkedAccount {
    /// A copy of the template at the other end of `template`, for this client.
    pub(super) fn of(template: &Link, client: impl std::os::fd::AsFd) -> io::Result<Self> {
        let (link, theirs) = Link::pair()?;
        template.hand(&[client.as_fd(), theirs.as_fd()])?;
        drop(theirs);
        let gone = || io::Error::other("what processes of accounts are made of does not answer");
        let [said] = readable([link.as_fd()], Some(Instant::now() + PATIENCE))?;
        if !said {
            return Err(gone());
        }
        let [process] = link.take()?.ok_or_else(gone)?;
        Ok(Self { process, link })
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }
}

impl Drop for ForkedAccount {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
        // Its place is free once it is gone.
        let _ = readable([self.process.as_fd()], None);
    }
}
