//! What the kernel knows of a TCP connection.

use std::os::fd::AsFd;
use std::time::Duration;

/// The smoothed round trip of a connected TCP socket (tcp(7), TCP_INFO); `None` where the system
/// does not tell.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "getsockopt(TCP_INFO) has no safe wrapper")]
pub fn tcp_rtt(socket: impl AsFd) -> Option<Duration> {
    use std::os::fd::AsRawFd;
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the pointers are to locals that outlive the call, `len` is the size of what `info`
    // points to, and the descriptor is open while it is borrowed.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if done != 0 {
        return None;
    }
    // SAFETY: tcp_info holds integers only, for which all zeros is a value; the kernel wrote
    // `len` bytes over them.
    let info = unsafe { info.assume_init() };
    (info.tcpi_rtt > 0).then(|| Duration::from_micros(info.tcpi_rtt.into()))
}

/// Not on this system.
#[cfg(not(target_os = "linux"))]
pub fn tcp_rtt(_: impl AsFd) -> Option<Duration> {
    None
}
