//! Ends the process while other threads run.

/// Ends the process at once, without the functions that libraries registered for its end. They
/// release memory that other threads may still use, as a thread that waits for a connection does.
/// The caller flushes its output before.
#[allow(unsafe_code, reason = "_exit(2) has no safe wrapper")]
pub fn exit_at_once(code: u8) -> ! {
    // SAFETY: _exit takes no pointer and does not return.
    unsafe { libc::_exit(code.into()) }
}
