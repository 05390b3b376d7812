//! File descriptors that this process inherited.

use std::env;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Sets close-on-exec on all descriptors from 3 on, so that a program started by this process
/// inherits only the standard streams and what is passed to it. The parent may have left
/// descriptors open.
///
/// # Errors
/// The kernel has no close_range(2) with CLOSE_RANGE_CLOEXEC (Linux 5.11).
#[allow(unsafe_code, reason = "close_range has no safe wrapper")]
pub fn keep_descriptors() -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 1 << 2;
    let (first, last) = (3 as libc::c_uint, libc::c_uint::MAX);
    // SAFETY: the call closes no descriptor; it only sets their close-on-exec flag.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, CLOSE_RANGE_CLOEXEC) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the descriptors passed by socket activation, as sd_listen_fds(3) defines them:
/// `LISTEN_FDS` descriptors from 3 on, if `LISTEN_PID` is this process. A second call returns none.
///
/// # Errors
/// `LISTEN_FDS` is out of range, or one of the descriptors is not open.
#[allow(unsafe_code, reason = "descriptors are inherited by number")]
pub fn handed_on() -> io::Result<Vec<OwnedFd>> {
    const FIRST: i32 = 3;
    const MOST: i32 = 16;
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name| env::var(name).ok()?.parse::<i32>().ok();
    let ours = number("LISTEN_PID") == Some(rustix::process::getpid().as_raw_pid());
    let count = number("LISTEN_FDS").filter(|_| ours).unwrap_or(0);
    if count == 0 || TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    if !(1..=MOST).contains(&count) {
        return Err(io::Error::other(
            "the environment variable LISTEN_FDS is negative or too large: pass fewer sockets",
        ));
    }
    for fd in FIRST..FIRST + count {
        // SAFETY: fcntl takes any number, and F_SETFD touches no memory.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: fcntl has just shown that they are open. They were opened for this process by its
    // parent, and no code here owns them yet, since this runs once.
    let own = |fd| unsafe { OwnedFd::from_raw_fd(fd) };
    Ok((FIRST..FIRST + count).map(own).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

    #[test]
    fn a_descriptor_that_was_left_open_goes_no_further() -> io::Result<()> {
        let file = std::fs::File::open("/")?;
        fcntl_setfd(&file, FdFlags::empty())?;
        keep_descriptors()?;
        assert_eq!(fcntl_getfd(&file)?, FdFlags::CLOEXEC);
        Ok(())
    }
}
