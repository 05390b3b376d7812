//! Single socket options, most of them best effort: missing support is ignored.

use std::io;
use std::os::fd::AsFd;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd as _;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::UNPACED;

/// Limits the send rate to `rate` bytes per second (SO_MAX_PACING_RATE); the kernel then paces its
/// packets. Best effort.
pub(super) fn limit_pacing(socket: &Socket, rate: u64) {
    #[cfg(target_os = "linux")]
    {
        // The two largest values have meanings of their own (see `pace`).
        let rate = u32::try_from(rate).unwrap_or(u32::MAX).min(u32::MAX - 2);
        set_int(
            socket,
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            rate.cast_signed(),
        );
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, rate);
}

/// Makes connect(2) defer the SYN until there is data to send with it (tcp(7),
/// TCP_FASTOPEN_CONNECT). Only for the side that speaks first. Best effort.
pub fn connect_with_data(socket: impl AsFd) {
    #[cfg(target_os = "linux")]
    set_int(&socket, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, 1);
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

/// Makes the kernel pace a window over its round trip instead of sending bursts. CUBIC's slow start
/// takes the queue caused by a burst for a full path (HyStart, RFC 9406, ends it 16 ms above the
/// lowest round trip) and then grows linearly for twenty seconds instead of doubling. Any limit
/// enables pacing (socket(7), SO_MAX_PACING_RATE); the second largest unsigned int exceeds every
/// real rate, and the largest means no limit. Best effort.
pub(super) fn pace(socket: &impl AsFd) {
    #[cfg(target_os = "linux")]
    set_int(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, -2);
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

/// Checks on an unconnected socket that this process may set the congestion control `name`. The
/// list of permitted ones does not show what root may set.
///
/// # Errors
/// The system has no congestion control of that name, or does not permit it.
pub fn may_control_congestion(name: &str) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    try_congestion_control(&socket, name)
}

/// Sets the congestion control of a TCP socket, also of a connected one (tcp(7), TCP_CONGESTION).
/// Returns false if the system has none of that name or does not permit it.
pub fn set_congestion_control(socket: impl AsFd, name: &str) -> bool {
    try_congestion_control(socket, name).is_ok()
}

pub(super) fn try_congestion_control(socket: impl AsFd, name: &str) -> io::Result<()> {
    let socket = SockRef::from(&socket);
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    return socket.set_tcp_congestion(name.as_bytes());
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
    {
        let _ = (socket, name);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Replaces BBR with an unpaced congestion control for connections within one machine, which have
/// no path to measure and no queue to spare: BBR's timers take half of the cost of relaying there.
/// The option is set before connect, since a socket that was once paced stays so
/// (sk_pacing_status). Best effort.
pub(super) fn do_not_pace(socket: &Socket) {
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    if socket
        .tcp_congestion()
        .is_ok_and(|name| name.starts_with(b"bbr"))
    {
        let _ = try_congestion_control(socket, UNPACED);
    }
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
    let _ = socket;
}

/// Limits the unsent bytes in the send buffer (TCP_NOTSENT_LOWAT). Best effort: older kernels and
/// other systems do not support it.
pub(super) fn set_notsent_lowat(socket: &Socket, bytes: u32) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = socket.set_tcp_notsent_lowat(bytes);
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = (socket, bytes);
}

/// Initial receive window in bytes that [`open_receive_window`] prepares.
const RECEIVE: i32 = 1 << 20;

/// Enlarges the initial receive buffer. By default it is 128 KiB, half of which is window: a sender
/// in slow start fills that in its fourth round trip, and autotuning reacts a round trip late.
/// Setting SO_RCVLOWAT enlarges the buffer (tcp_set_rcvlowat) and keeps autotuning on, unlike
/// SO_RCVBUF; the low-water mark is reset at once. Best effort.
pub(super) fn open_receive_window(socket: &Socket) {
    #[cfg(target_os = "linux")]
    for mark in [RECEIVE, 1] {
        set_int(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, mark);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, RECEIVE);
}

/// Sets an integer option that has no safe wrapper. Best effort.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "setsockopt of options that no library wraps")]
pub(super) fn set_int(
    socket: &impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) {
    // SAFETY: the descriptor is open while it is borrowed; pointer and length are those of a local
    // integer, which the kernel only reads.
    unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        );
    }
}
