//! Descriptors that this process was started with.

use std::env;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// No program that this process starts gets a descriptor that was not given to it, but for the
/// three of standard streams: whoever started this process may have left some open.
///
/// # Errors
/// The kernel has no close_range(2) with CLOSE_RANGE_CLOEXEC (Linux 5.11).
#[allow(unsafe_code, reason = "close_range has no safe wrapper")]
pub fn keep_descriptors() -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 1 << 2;
    let (first, last) = (3 as libc::c_uint, libc::c_uint::MAX);
    // SAFETY: no descriptor is closed now; only the flag that closes it at an exec is set.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, CLOSE_RANGE_CLOEXEC) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The descriptors that whoever started this process has handed on to it, as sd_listen_fds(3) has
/// it: from 3 on, as many as LISTEN_FDS says, if LISTEN_PID is this process. None at a second call.
///
/// # Errors
/// There are none where there should be, or more than a service is given.
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
        return Err(io::Error::other("LISTEN_FDS makes no sense"));
    }
    for fd in FIRST..FIRST + count {
        // SAFETY: fcntl takes any number, and F_SETFD touches no memory.
        if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: they are open, which was just seen, and were opened for this process by whoever
    // started it; nothing here has taken them before, since this is done once.
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
