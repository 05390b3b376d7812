//! Scheduling priority: before or after other processes.

use std::io;

/// Runs this process before all ordinary ones: SCHED_FIFO at the lowest priority, not inherited by
/// children.
///
/// # Errors
/// The process has neither CAP_SYS_NICE nor an RLIMIT_RTPRIO.
#[allow(unsafe_code, reason = "sched_setscheduler has no safe wrapper")]
pub fn before_others() -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: `param` outlives the call, which only reads it; 0 means this thread.
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

/// Gives this thread, and those it starts, the lowest priority for processors and disks: nice 19
/// and the idle I/O class (`ionice -c 3`). Best effort: a sandbox may forbid either.
pub fn after_others() {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    const IOPRIO_CLASS_IDLE: libc::c_int = 3;
    const IOPRIO_CLASS_SHIFT: libc::c_int = 13;
    // An increment, which the kernel limits: from the highest value, -20, to the lowest.
    let _ = rustix::process::nice(39);
    #[allow(unsafe_code, reason = "ioprio_set has no wrapper")]
    // SAFETY: the arguments are three integers, of which 0 means this thread; no memory is touched.
    unsafe {
        libc::syscall(
            libc::SYS_ioprio_set,
            IOPRIO_WHO_PROCESS,
            0,
            IOPRIO_CLASS_IDLE << IOPRIO_CLASS_SHIFT,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_others_is_the_lowest_priority_of_the_thread_and_its_children() {
        let child = std::thread::spawn(|| {
            after_others();
            let text = std::thread::spawn(|| std::fs::read_to_string("/proc/thread-self/stat"));
            text.join()
        });
        let stat = child
            .join()
            .expect("joined")
            .expect("joined")
            .expect("a stat");
        let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' '));
        // Nice is field 19 of /proc/PID/stat, and the process name is field 2 (proc(5)).
        let nice = fields.and_then(|mut f| f.nth(16)).expect("nice");
        assert_eq!(nice, "19");
    }
}
