//! Single options, most of them best effort: a system that has not got one goes without.

use std::io;
use std::os::fd::AsFd;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd as _;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::UNPACED;

/// A limit below what the kernel would send makes it spread what it sends. Best effort.
pub(super) fn limit_pacing(socket: &Socket, rate: u64) {
    #[cfg(target_os = "linux")]
    {
        // Two of the largest have meanings of their own (see `pace`).
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

/// Has connect() send nothing until there is data to send with it (tcp(7), TCP_FASTOPEN_CONNECT):
/// only for whoever speaks first. Best effort.
pub fn connect_with_data(socket: impl AsFd) {
    #[cfg(target_os = "linux")]
    set_int(&socket, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, 1);
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

/// Has the kernel spread a window over its round trip instead of sending what the acknowledgements
/// of a burst allow as a burst: CUBIC's slow start takes the queue that a burst makes for a full
/// path (HyStart, RFC 9406, leaves it 16 ms above the lowest round trip) and grows for twenty
/// seconds more where it could have doubled. Any limit switches pacing on (socket(7),
/// SO_MAX_PACING_RATE); the largest but one of an unsigned int is beyond all that a connection
/// moves, and the largest is no limit. Best effort.
pub(super) fn pace(socket: &impl AsFd) {
    #[cfg(target_os = "linux")]
    set_int(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, -2);
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

/// Whether this process may give its sockets this congestion control, asked of a socket that
/// connects to nothing: what root may is in no list.
///
/// # Errors
/// The system has none of that name, or does not let us.
pub fn may_control_congestion(name: &str) -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    try_congestion_control(&socket, name)
}

/// Gives a TCP socket another congestion control; on a running connection too (tcp(7),
/// TCP_CONGESTION). False where the system has none of that name or does not let us.
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

/// Within a machine there is no path to be measured, and no queue to be spared: the timers of BBR, if
/// that is the system's own, are half of what relaying costs there. It is told before the connection
/// is there, since a socket that was paced once remains so (sk_pacing_status). Best effort.
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

/// Best effort: older kernels and other systems go without.
pub(super) fn set_notsent_lowat(socket: &Socket, bytes: u32) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = socket.set_tcp_notsent_lowat(bytes);
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = (socket, bytes);
}

/// What the receive buffer is good for from the beginning on.
const RECEIVE: i32 = 1 << 20;

/// The receive buffer begins with 128 KiB, half of which is a window: a sender in slow start is
/// through with that in its fourth round trip, and autotuning sees it a round trip late. A mark of
/// SO_RCVLOWAT makes the buffer large enough for it (tcp_set_rcvlowat) and leaves autotuning on,
/// as SO_RCVBUF does not; the mark itself is taken back at once. Best effort.
pub(super) fn open_receive_window(socket: &Socket) {
    #[cfg(target_os = "linux")]
    for mark in [RECEIVE, 1] {
        set_int(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, mark);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, RECEIVE);
}

/// Sets an option that has no safe wrapper. Best effort.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "setsockopt of options that no library wraps")]
pub(super) fn set_int(
    socket: &impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) {
    // SAFETY: the descriptor is open while it is borrowed, and the pointer and the length are
    // those of a local integer, which the kernel reads.
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
