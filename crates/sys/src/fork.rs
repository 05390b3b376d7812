//! Forking this process.

use std::io;
use std::os::unix::fs::MetadataExt as _;

use rustix::process::{Pid, getpid};

/// Side of a fork on which the caller runs.
#[derive(Debug)]
pub enum ForkSide {
    /// The original process, with the child's process ID.
    Parent(Pid),
    /// The new process, which has a copy of everything but the other threads, with the parent's
    /// process ID.
    Child(Pid),
}

/// Forks this process with fork(2). Memory is shared copy-on-write.
///
/// The child receives SIGCHLD for its own children again: [`forget_children`] applies to the parent
/// alone.
///
/// # Errors
/// This process has further threads, whose locks would stay held in the child; or the kernel has no
/// room for another process.
#[allow(unsafe_code, reason = "fork has no safe wrapper")]
pub fn fork() -> io::Result<ForkSide> {
    // The link count is 2 for the directory and its parent, plus 1 for each thread.
    let threads = std::fs::metadata("/proc/self/task")?.nlink().checked_sub(2);
    if threads != Some(1) {
        return Err(io::Error::other(
            "internal error: cannot fork a process with several threads",
        ));
    }
    let parent = getpid();
    // SAFETY: this is the only thread, so no lock is held and no data is half changed in the child.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: SIG_DFL is not a function pointer.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
            Ok(ForkSide::Child(parent))
        }
        pid => {
            let pid = Pid::from_raw(pid);
            Ok(ForkSide::Parent(pid.ok_or_else(|| {
                io::Error::other("internal error: fork returned no process ID")
            })?))
        }
    }
}

/// Has the kernel reap this process's children when they end, so that no wait(2) is needed.
///
/// # Errors
/// Errors of sigaction(2).
#[allow(unsafe_code, reason = "signal has no safe wrapper")]
pub fn forget_children() -> io::Result<()> {
    // SAFETY: SIG_IGN is not a function pointer.
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
