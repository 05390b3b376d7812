//! Being woken in time.

use std::io;

/// Lets this process run before all ordinary ones (SCHED_FIFO at the lowest level; what it starts
/// is ordinary again).
///
/// # Errors
/// It takes CAP_SYS_NICE or an RLIMIT_RTPRIO.
#[allow(unsafe_code, reason = "sched_setscheduler has no safe wrapper")]
pub fn before_others() -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: `param` outlives the call, which only reads it; 0 is this thread.
    let done = unsafe {
        libc::sched_setscheduler(
            0,
            libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
            &raw const param,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
