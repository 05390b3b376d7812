//! The protocol between systemd and a service (sd_notify(3), sd_listen_fds(3)), without libsystemd.

use std::env;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::time::{ClockId, clock_gettime};

/// The single socket passed by systemd, if there is one.
///
/// # Errors
/// Another kind of socket was passed, or several.
pub(crate) fn only_listener() -> io::Result<Option<TcpListener>> {
    let mut sockets = listeners()?.into_iter();
    match (sockets.next(), sockets.next()) {
        (None, _) => Ok(None),
        (Some(only), None) => Ok(Some(only.into())),
        _ => Err(io::Error::other(
            "systemd passed several sockets, and only one can be served: leave one ListenStream= \
             in the .socket unit",
        )),
    }
}

/// All sockets passed by systemd.
///
/// # Errors
/// Another kind of socket was passed.
pub(crate) fn listeners() -> io::Result<Vec<OwnedFd>> {
    let sockets = sys::handed_on()?;
    for socket in &sockets {
        if !rustix::net::sockopt::socket_acceptconn(socket)? {
            return Err(io::Error::other(
                "the socket does not listen: set Accept=no in the .socket unit",
            ));
        }
    }
    Ok(sockets)
}

/// Notifies systemd, if it has asked for that.
pub(crate) fn notify(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let to = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = to.and_then(|to| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &to));
    if let Err(e) = sent {
        tracing::warn!("cannot notify systemd: {e}");
    }
}

/// Notifies systemd that a reload begins (Type=notify-reload).
pub(crate) fn reloading() {
    let now = clock_gettime(ClockId::Monotonic);
    let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}"));
}
