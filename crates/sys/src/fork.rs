//! A process that becomes two.

use std::io;
use std::os::unix::fs::MetadataExt as _;

use rustix::process::{Pid, getpid};

/// Which of the two this is.
#[derive(Debug)]
pub enum Forked {
    /// The one that was there before; the other's number.
    Parent(Pid),
    /// The other one, which has everything of the first but its threads; the first one's number.
    Child(Pid),
}

/// fork(2). What this process has in memory the other one has as well, and neither copies it before
/// one of them changes it.
///
/// The other one hears of its own children again: [`forget_children`] is the first one's.
///
/// # Errors
/// This process has threads beside this one, whose locks the other would find taken; or the kernel
/// has no room for a process more.
#[allow(unsafe_code, reason = "fork has no safe wrapper")]
pub fn fork() -> io::Result<Forked> {
    // Its directory, what leads above it, and one for each thread.
    let threads = std::fs::metadata("/proc/self/task")?.nlink().checked_sub(2);
    if threads != Some(1) {
        return Err(io::Error::other("a process with threads cannot be forked"));
    }
    let parent = getpid();
    // SAFETY: this is the only thread, so nobody holds a lock or is in the middle of a change of
    // anything that the other process has then.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: SIG_DFL is no function.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
            Ok(Forked::Child(parent))
        }
        pid => {
            let pid = Pid::from_raw(pid);
            Ok(Forked::Parent(pid.ok_or_else(|| {
                io::Error::other("a process without a number")
            })?))
        }
    }
}

/// The kernel forgets those that this process starts once they have ended: nobody waits for them.
///
/// # Errors
/// Those of sigaction(2).
#[allow(unsafe_code, reason = "signal has no safe wrapper")]
pub fn forget_children() -> io::Result<()> {
    // SAFETY: SIG_IGN is no function.
    match unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_stays_one() {
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || held.recv());
        assert!(fork().is_err());
        drop(hold);
        let _ = other.join();
    }
}
