//! The terminal's foreground process group.

use std::os::fd::AsFd;

/// Makes this process group the foreground group of its terminal again, after a child shell was.
/// Does nothing if `terminal` is not the controlling terminal.
#[allow(unsafe_code, reason = "sigprocmask has no safe wrapper")]
pub fn take_back_terminal(terminal: impl AsFd) {
    let mut stop = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initializes the set; sigaddset and pthread_sigmask then use that set, a
    // valid signal, and room for the old mask.
    let blocked = unsafe {
        libc::sigemptyset(stop.as_mut_ptr());
        libc::sigaddset(stop.as_mut_ptr(), libc::SIGTTOU);
        libc::pthread_sigmask(libc::SIG_BLOCK, stop.as_ptr(), before.as_mut_ptr())
    };
    if blocked != 0 {
        return;
    }
    // tcsetpgrp in a background process raises SIGTTOU unless it is blocked. The call fails without
    // a terminal, and then there is nothing to take back.
    let _ = rustix::termios::tcsetpgrp(terminal, rustix::process::getpgrp());
    // SAFETY: pthread_sigmask succeeded above and wrote the old mask.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
    }
}
