//! What is set on a TCP socket, in one place for every part that opens one.
//!
//! Buffers are left alone: SO_SNDBUF and SO_RCVBUF switch the kernel's autotuning off.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// What to set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// DSCP, 0 to 63; 0 is best effort. Set once, before connect (a mark that changes in a running
    /// flow reorders it).
    pub dscp: u8,
    /// Ask the kernel to probe an idle connection (TCPKeepAlive).
    pub keepalive: bool,
}

/// Unsent bytes the kernel holds for us before it stops taking more. Below it the congestion
/// window is never starved (bytes in flight do not count), above it memory only waits, and what
/// is urgent waits behind it.
const NOTSENT_LOWAT: u32 = 1 << 20;

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
        socket.set_tcp_nodelay(true)?;
        if self.keepalive {
            socket.set_tcp_keepalive(&TcpKeepalive::new())?;
        }
        set_notsent_lowat(&socket);
        Ok(socket)
    }
}

/// Gives a TCP socket another congestion control; on a running connection too (tcp(7),
/// TCP_CONGESTION). False where the system has none of that name or does not let us.
pub fn set_congestion_control(socket: impl AsFd, name: &str) -> bool {
    let socket = SockRef::from(&socket);
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    return socket.set_tcp_congestion(name.as_bytes()).is_ok();
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
    {
        let _ = (socket, name);
        false
    }
}

/// Best effort: older kernels and other systems go without.
fn set_notsent_lowat(socket: &Socket) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = socket.set_tcp_notsent_lowat(NOTSENT_LOWAT);
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let _ = (socket, NOTSENT_LOWAT);
}
