//! What processes of accounts are made of: a process that has read nothing and knows no secret,
//! and is copied for each (docs/design/0007-accounts.md).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use nix::unistd::{dup2_stdin, dup2_stdout};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sys::Forked;

use super::account::AccountProcess;
use super::link::Link;
use super::{StopSignal, confine};

/// The template.
#[derive(Debug)]
pub struct ForkServer {
    /// To the monitor.
    link: Link,
    stopping: StopSignal,
}

impl ForkServer {
    /// With the monitor at standard output, and what ends when the server does at standard input.
    ///
    /// Neither stays there: a copy must not have the template's link to the monitor, by which the
    /// clients of others come.
    ///
    /// # Errors
    /// They are not there, or rights cannot be given up.
    pub fn inherited() -> io::Result<Self> {
        let stopping = io::stdin().as_fd().try_clone_to_owned()?;
        let link = Link::inherited()?;
        let nothing = File::options().read(true).write(true).open("/dev/null")?;
        dup2_stdin(&nothing)?;
        dup2_stdout(&nothing)?;
        confine::seal_off(confine::STANDS_READY)?;
        confine::confine_account()?;
        sys::forget_children()?;
        Ok(Self {
            link,
            stopping: StopSignal(Arc::new(stopping)),
        })
    }

    /// Copies itself for each client that the monitor hands it. It returns in the copies, and with
    /// `None` once the monitor is gone.
    ///
    /// # Errors
    /// The monitor says what it does not say.
    pub fn run(self) -> io::Result<Option<AccountProcess>> {
        while let Some([client, theirs]) = self.link.take()? {
            let theirs = Link::from(theirs);
            match sys::fork() {
                Ok(Forked::Child(template)) => {
                    return Ok(Some(AccountProcess {
                        link: Arc::new(theirs),
                        client,
                        stopping: self.stopping,
                        template,
                    }));
                }
                // Whoever waits for it sees that there is none.
                Ok(Forked::Parent(child)) => drop(tell(&theirs, child)),
                Err(_) => {}
            }
        }
        Ok(None)
    }
}

/// The monitor gets a hold of the new process. That has its number still: it waits for what the
/// monitor says then.
fn tell(link: &Link, child: Pid) -> io::Result<()> {
    let process: OwnedFd = pidfd_open(child, PidfdFlags::empty())?;
    link.hand(&[process.as_fd()])
}
