//! A process of this program that the monitor has started for one connection.

use std::env;
use std::io;
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::link::Link;

/// Killed, at the latest, when it is dropped.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    link: Link,
}

/// What such a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It reads what a client sends until it is logged in.
    Preauth,
    /// It is an account's.
    Account,
}

impl Role {
    /// As it is said behind `serve`.
    const ALL: [(Self, &'static str); 2] =
        [(Self::Preauth, "--preauth"), (Self::Account, "--account")];

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

impl Process {
    /// The program that runs now, even if its file was replaced meanwhile, anew.
    pub(super) fn start(role: Role, client: &TcpStream) -> io::Result<Self> {
        let (link, theirs) = Link::pair()?;
        let zone = env::var_os("TZ");
        let child = Command::new("/proc/self/exe")
            .arg0("longhaul")
            .args(["serve", role.word()])
            .env_clear()
            .envs(zone.map(|zone| ("TZ", zone)))
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(client.try_clone()?)))
            .stdout(Stdio::from(theirs))
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { child, link })
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// Asks it to serve what is under way to the end.
    pub(super) fn drain(&self) {
        // It may have ended by itself.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    /// Waits for its end.
    pub(super) fn wait(mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both do nothing where it was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
