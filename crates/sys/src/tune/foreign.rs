//! Addresses that are not this machine's, and who of several that listen is come to.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd as _;

#[cfg(target_os = "linux")]
use socket2::{Domain, Type};
use socket2::{SockRef, Socket};

/// Lets a socket have addresses that are not this machine's.
#[cfg(target_os = "linux")]
pub(super) fn make_transparent(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    let set = match address {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true),
        SocketAddr::V6(_) => socket.set_ip_transparent_v6(true),
    };
    set.map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => io::Error::new(
            e.kind(),
            "addresses of others may be used only with CAP_NET_ADMIN (IP_TRANSPARENT)",
        ),
        _ => e,
    })
}

#[cfg(not(target_os = "linux"))]
pub(super) fn make_transparent(_: &Socket, _: SocketAddr) -> io::Result<()> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "addresses of others can be used on Linux only",
    ))
}

/// Where a connection was to go that a rule of the kernel has redirected (SO_ORIGINAL_DST).
///
/// # Errors
/// No rule has, or the kernel keeps no account of connections.
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

/// Whether what we send can be marked (SO_MARK).
pub fn may_mark() -> bool {
    #[cfg(target_os = "linux")]
    {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None);
        socket.is_ok_and(|socket| socket.set_mark(1).is_ok())
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// Of the sockets that listen at one address (SO_REUSEPORT) has the `nth` be who newcomers come to,
/// in the order in which they began to listen (`socket` is any of them); the last one takes the place of one that is closed.
/// Where there is no `nth`, the kernel spreads them over all.
///
/// # Errors
/// The socket is none of such, or the system has no such choice.
pub fn steer_newcomers(socket: impl AsFd, nth: u32) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        // socket(7), SO_ATTACH_REUSEPORT_CBPF: what the program returns is which.
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
    // SAFETY: the descriptor is open while it is borrowed; the pointer and the length are those of
    // a local, which points to as many instructions as it says, and the kernel copies them and
    // writes nothing.
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
