//! What is set on a TCP socket, in one place for every part that opens one.
//!
//! Buffers are left alone: SO_SNDBUF and SO_RCVBUF switch the kernel's autotuning off.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// What to set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// DSCP, 0 to 63; 0 is best effort. Set once, before connect (a mark that changes in a running
    /// flow reorders it).
    pub dscp: u8,
    /// Ask the kernel to probe an idle connection (TCPKeepAlive).
    pub keepalive: bool,
    /// The congestion control; the system's own if not set.
    pub congestion: Option<String>,
}

/// Unsent bytes the kernel holds for us before it stops taking more. Below it the congestion
/// window is never starved (bytes in flight do not count), above it memory only waits, and what
/// is urgent waits behind it.
const NOTSENT_LOWAT: u32 = 1 << 20;

/// From this round trip on a window is paced. Below it slow start is over in no time, and the
/// kernel's timers cost more than bursts do.
const LONG: Duration = Duration::from_millis(20);

impl Tuning {
    /// A TCP socket for connecting to `to`, marked and tuned, not yet connected.
    pub fn socket(&self, to: &SocketAddr) -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(*to), Type::STREAM, Some(Protocol::TCP))?;
        // RFC 2474: DSCP is the upper six bits of the TOS byte. A mark of 0 is the default, and
        // so needs no call that a sandbox might refuse.
        if self.dscp != 0 {
            let tos = u32::from(self.dscp) << 2;
            match to {
                SocketAddr::V4(_) => socket.set_tos_v4(tos)?,
                SocketAddr::V6(_) => socket.set_tclass_v6(tos)?,
            }
        }
        if let Some(name) = &self.congestion {
            try_congestion_control(&socket, name)?;
        }
        self.tune(&SockRef::from(&socket))?;
        Ok(socket)
    }

    fn tune(&self, socket: &Socket) -> io::Result<()> {
        socket.set_tcp_nodelay(true)?;
        if self.keepalive {
            socket.set_tcp_keepalive(&TcpKeepalive::new())?;
        }
        set_notsent_lowat(socket);
        open_receive_window(socket);
        Ok(())
    }

    /// The same for a connection that was accepted.
    ///
    /// # Errors
    /// The connection is gone already.
    pub fn accepted(&self, socket: impl AsFd) -> io::Result<()> {
        self.tune(&SockRef::from(&socket))?;
        self.connected(&socket);
        Ok(())
    }

    /// Sets again what connect() may have replaced: where a route names a congestion control
    /// (ip-route(8), congctl), a socket takes that one as it connects, whatever it was given.
    pub fn connected(&self, socket: impl AsFd) {
        if let Some(name) = &self.congestion {
            // A route that locks its own keeps it.
            let _ = try_congestion_control(&socket, name);
        }
        let long = crate::tcp_info(&socket).is_some_and(|tcp| tcp.rtt >= LONG);
        if long {
            pace(&socket);
        }
    }
}

/// Has the kernel spread a window over its round trip instead of sending what the acknowledgements
/// of a burst allow as a burst: CUBIC's slow start takes the queue that a burst makes for a full
/// path (HyStart, RFC 9406, leaves it 16 ms above the lowest round trip) and grows for twenty
/// seconds more where it could have doubled. Any limit switches pacing on (socket(7),
/// SO_MAX_PACING_RATE); the largest but one of an unsigned int is beyond all that a connection
/// moves, and the largest is no limit. Best effort.
fn pace(socket: &impl AsFd) {
    #[cfg(target_os = "linux")]
    set_int(socket, libc::SO_MAX_PACING_RATE, -2);
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

fn try_congestion_control(socket: impl AsFd, name: &str) -> io::Result<()> {
    let socket = SockRef::from(&socket);
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    return socket.set_tcp_congestion(name.as_bytes());
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
    {
        let _ = (socket, name);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Best effort: older kernels and other systems go without.
fn set_notsent_lowat(socket: &Socket) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = socket.set_tcp_notsent_lowat(NOTSENT_LOWAT);
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = (socket, NOTSENT_LOWAT);
}

/// What the receive buffer is good for from the beginning on.
const RECEIVE: i32 = 1 << 20;

/// The receive buffer begins with 128 KiB, half of which is a window: a sender in slow start is
/// through with that in its fourth round trip, and autotuning sees it a round trip late. A mark of
/// SO_RCVLOWAT makes the buffer large enough for it (tcp_set_rcvlowat) and leaves autotuning on,
/// as SO_RCVBUF does not; the mark itself is taken back at once. Best effort.
fn open_receive_window(socket: &Socket) {
    #[cfg(target_os = "linux")]
    for mark in [RECEIVE, 1] {
        set_int(socket, libc::SO_RCVLOWAT, mark);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, RECEIVE);
}

/// Sets an option of SOL_SOCKET that has no safe wrapper. Best effort.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "setsockopt of options that no library wraps")]
fn set_int(socket: &impl AsFd, option: libc::c_int, value: libc::c_int) {
    // SAFETY: the descriptor is open while it is borrowed, and the pointer and the length are
    // those of a local integer, which the kernel reads.
    unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        );
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_congestion_control_is_on_the_socket_before_it_connects() -> io::Result<()> {
        let tuning = Tuning {
            congestion: Some("reno".to_owned()),
            ..Tuning::default()
        };
        let socket = tuning.socket(&SocketAddr::from(([127, 0, 0, 1], 9)))?;
        let name = socket.tcp_congestion()?;
        assert_eq!(name.split(|b| *b == 0).next(), Some(&b"reno"[..]));
        Ok(())
    }

    #[test]
    fn the_receive_window_is_open_and_nobody_waits_for_it_to_fill() -> io::Result<()> {
        let plain = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        let tuned = Tuning::default().socket(&SocketAddr::from(([127, 0, 0, 1], 9)))?;
        let before = plain.recv_buffer_size()?;
        assert!(tuned.recv_buffer_size()? >= before.max(1 << 20));

        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let to = listener.local_addr()?;
        let tuned = Tuning::default().socket(&to)?;
        tuned.connect(&to.into())?;
        io::Write::write_all(&mut listener.accept()?.0, b"1")?;
        tuned.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut byte = [0];
        io::Read::read_exact(&mut &tuned, &mut byte)?;
        assert_eq!(byte, *b"1");
        Ok(())
    }

    #[test]
    fn what_the_kernel_lacks_is_refused() {
        assert!(may_control_congestion("reno").is_ok());
        for name in [
            "none-such",
            "",
            "a-name-that-is-longer-than-the-kernel-takes",
        ] {
            assert!(may_control_congestion(name).is_err(), "{name}");
        }
    }
}
