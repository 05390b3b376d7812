//! The fork server: a process that has read no input, holds no secret, and is forked for each
//! account process (docs/design/0007-accounts.md).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use nix::unistd::{dup2_stdin, dup2_stdout};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sys::ForkSide;

use super::account::AccountProcess;
use super::monitor_message_socket::MonitorMessageSocket;
use super::{StopSignal, confine};

/// The fork server, before its first fork.
#[derive(Debug)]
pub struct ForkServer {
    /// Link to the monitor.
    link: MonitorMessageSocket,
    stopping: StopSignal,
}

impl ForkServer {
    /// Takes the monitor's link from standard output and the shutdown pipe from standard input.
    ///
    /// Both are replaced by /dev/null: a forked copy must not have the fork server's link to the
    /// monitor, over which other clients' sockets arrive.
    ///
    /// # Errors
    /// A descriptor is missing, or rights cannot be dropped.
    pub fn inherited() -> io::Result<Self> {
        let stopping = io::stdin().as_fd().try_clone_to_owned()?;
        let link = MonitorMessageSocket::inherited()?;
        let nothing = File::options().read(true).write(true).open("/dev/null")?;
        dup2_stdin(&nothing)?;
        dup2_stdout(&nothing)?;
        confine::seal_off()?;
        confine::confine_account()?;
        sys::forget_children()?;
        confine::set_name(confine::STANDS_READY)?;
        Ok(Self {
            link,
            stopping: StopSignal(Arc::new(stopping)),
        })
    }

    /// Forks for each client that the monitor passes. Returns an [`AccountProcess`] in the child,
    /// and `None` in the parent once the monitor is gone.
    ///
    /// # Errors
    /// The monitor sends an invalid message.
    pub fn run(self) -> io::Result<Option<AccountProcess>> {
        while let Some([client, theirs]) = self.link.take()? {
            let theirs = MonitorMessageSocket::from(theirs);
            match sys::fork() {
                Ok(ForkSide::Child(template)) => {
                    let process = AccountProcess::new(theirs, client, self.stopping, template);
                    return Ok(Some(process));
                }
                // If the message is lost, the monitor sees the end of the link.
                Ok(ForkSide::Parent(child)) => drop(tell(&theirs, child)),
                Err(_) => {}
            }
        }
        Ok(None)
    }
}

/// Sends the monitor a pidfd of the child. The process ID is still valid, because the child waits
/// for the monitor's task.
fn tell(link: &MonitorMessageSocket, child: Pid) -> io::Result<()> {
    let process: OwnedFd = pidfd_open(child, PidfdFlags::empty())?;
    link.hand(&[process.as_fd()])
}
