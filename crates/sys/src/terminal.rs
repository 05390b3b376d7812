//! The terminal's foreground process group.

use std::os::fd::AsFd;

/// Makes this process's group the foreground of its terminal again, after a shell that was its
/// child has had it. Does nothing where `terminal` is none, or not this session's.
#[allow(unsafe_code, reason = "sigprocmask has no safe wrapper")]
pub fn take_back_terminal(terminal: impl AsFd) {
    let mut stop = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initializes the set it is given; sigaddset and pthread_sigmask are then
    // called with that set, with a valid signal, and with room for the mask from before.
    let blocked = unsafe {
        libc::sigemptyset(stop.as_mut_ptr());
        libc::sigaddset(stop.as_mut_ptr(), libc::SIGTTOU);
        libc::pthread_sigmask(libc::SIG_BLOCK, stop.as_ptr(), before.as_mut_ptr())
    };
    if blocked != 0 {
        return;
    }
    // From the background, tcsetpgrp sends SIGTTOU to who has not blocked it. It fails where there
    // is no terminal, and then there is nothing to take back.
    let _ = rustix::termios::tcsetpgrp(terminal, rustix::process::getpgrp());
    // SAFETY: pthread_sigmask succeeded above and wrote the mask from before.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
    }
}
