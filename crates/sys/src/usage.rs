use std::mem::MaybeUninit;
use std::time::Duration;

/// Resources used by this process's children and their descendants that were waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChildrenUsage {
    /// Processor time, user and system.
    pub cpu: Duration,
    /// Peak resident memory of the largest of them, in bytes.
    pub peak_memory: u64,
}

/// Returns the total of all children since this process began (getrusage(2)).
#[allow(unsafe_code, reason = "getrusage has no safe wrapper in rustix")]
pub fn children_usage() -> ChildrenUsage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a `rusage` that getrusage may write; all zeroes are a valid one if
    // it does not.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |time: libc::timeval| {
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        let micros = u64::try_from(time.tv_usec).unwrap_or_default();
        Duration::from_secs(seconds) + Duration::from_micros(micros)
    };
    // Linux counts in 1024 bytes, macOS in bytes.
    let unit = if cfg!(target_vendor = "apple") {
        1
    } else {
        1024
    };
    ChildrenUsage {
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        peak_memory: u64::try_from(usage.ru_maxrss).unwrap_or_default() * unit,
    }
}
