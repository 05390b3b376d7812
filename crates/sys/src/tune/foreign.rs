//! Foreign addresses (IP_TRANSPARENT, SO_ORIGINAL_DST, SO_MARK) and the choice among listeners that
//! share an address.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd as _;

#[cfg(target_os = "linux")]
use socket2::{Domain, Type};
use socket2::{SockRef, Socket};

/// Permits a socket to use addresses that are not this machine's (IP_TRANSPARENT).
#[cfg(target_os = "linux")]
pub(super) fn make_transparent(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    let set = match address {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true),
        SocketAddr::V6(_) => socket.set_ip_transparent_v6(true),
    };
    set.map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => io::Error::new(
            e.kind(),
            "using the client's address needs CAP_NET_ADMIN (IP_TRANSPARENT)",
        ),
        _ => e,
    })
}

#[cfg(not(target_os = "linux"))]
pub(super) fn make_transparent(_: &Socket, _: SocketAddr) -> io::Result<()> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "using the client's address needs Linux",
    ))
}

/// Returns the original destination of a connection that a firewall rule redirected
/// (SO_ORIGINAL_DST).
///
/// # Errors
/// No rule redirected the connection, or the kernel has no connection tracking.
pub fn original_destination(socket: impl AsFd) -> io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    {
        let socket = SockRef::from(&socket);
        let local = socket.local_addr()?.as_socket();
        let to = match local {
            Some(SocketAddr::V6(_)) => socket.original_dst_v6(),
            _ => socket.original_dst_v4(),
        };
        to?.as_socket()
            .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = socket;
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Returns true if this process may set a firewall mark on its packets (SO_MARK).
pub fn may_mark() -> bool {
    #[cfg(target_os = "linux")]
    {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None);
        socket.is_ok_and(|socket| socket.set_mark(1).is_ok())
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// Directs new connections to the `nth` of the sockets that share one address (SO_REUSEPORT), in
/// the order in which they began to listen; `socket` is any of them. If one closes, the last takes
/// its index. Without an `nth` socket the kernel distributes connections over all.
///
/// # Errors
/// The socket does not share its address, or the system has no SO_ATTACH_REUSEPORT_CBPF.
pub fn steer_newcomers(socket: impl AsFd, nth: u32) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        // The program's return value is the index of the listener (socket(7),
        // SO_ATTACH_REUSEPORT_CBPF).
        let program = [libc::sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: nth,
        }];
        attach_choice(&socket, &program)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (socket, nth);
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "setsockopt of an option that no library wraps")]
fn attach_choice(socket: &impl AsFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the descriptor is open while it is borrowed; pointer and length are those of a local
    // that points to as many instructions as it claims, and the kernel copies them and writes
    // nothing.
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
