//! UNIX sockets at a path: listens there, or connects to a process of this user.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};

/// Listens at a path and replaces a stale socket there.
///
/// # Errors
/// Another process listens there, the path is not a socket, or this user may not create it.
pub fn listen_unix(path: &Path, backlog: i32) -> io::Result<Socket> {
    let is_socket = |meta: fs::Metadata| meta.file_type().is_socket();
    let stale = fs::symlink_metadata(path).is_ok_and(is_socket)
        && connect_now(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    if stale {
        fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(backlog)?;
    Ok(socket)
}

/// Connects to a process of this user or root that listens at a path. Does not wait for a process
/// that accepts no connections.
///
/// # Errors
/// Nobody listens there, the queue of connections is full, or the listener belongs to another user.
pub fn connect_own_unix(path: &Path) -> io::Result<UnixStream> {
    let stream = connect_now(path)?;
    match is_trusted(listener(&stream, path)?) {
        true => Ok(stream),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the listening process belongs to another user",
        )),
    }
}

/// Connects without waiting for room in the listener's queue.
fn connect_now(path: &Path) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // connect(2) blocks while the queue is full.
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)?;
    socket.set_nonblocking(false)?;
    Ok(UnixStream::from(OwnedFd::from(socket)))
}

/// User of the process that listens.
#[cfg(target_os = "linux")]
fn listener(stream: &UnixStream, _: &Path) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(stream)?.uid.as_raw())
}

/// Owner of the socket's file.
#[cfg(not(target_os = "linux"))]
fn listener(_: &UnixStream, path: &Path) -> io::Result<u32> {
    use std::os::unix::fs::MetadataExt as _;
    Ok(fs::symlink_metadata(path)?.uid())
}

fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: a socket that another user had put at the ControlPath, with a full queue, blocked a copy
    /// before it began, and one that answered was used in place of the user's own login.
    #[test]
    fn a_listener_that_accepts_nothing_is_not_waited_for() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("socket");
        assert!(connect_own_unix(&path).is_err());
        let listener = listen_unix(&path, 0)?;
        let mut queued = Vec::new();
        let full = loop {
            match connect_own_unix(&path) {
                Ok(stream) if queued.len() < 100 => queued.push(stream),
                other => break other.err(),
            }
        };
        assert_eq!(full.map(|e| e.kind()), Some(io::ErrorKind::WouldBlock));
        assert!(!queued.is_empty());
        assert!(listen_unix(&path, 0).is_err(), "it is not stale");
        drop(listener);
        assert!(connect_own_unix(&path).is_err());
        Ok(())
    }

    #[test]
    fn only_this_user_and_root_are_trusted() {
        let own = rustix::process::geteuid().as_raw();
        assert!(is_trusted(0) && is_trusted(own) && !is_trusted(own + 1));
    }

    #[test]
    fn what_nobody_listens_at_is_replaced_and_nothing_else() -> io::Result<()> {
        let folder = std::env::temp_dir().join(format!("listen-unix-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let path = folder.join("socket");
        let first = listen_unix(&path, 1)?;
        assert!(listen_unix(&path, 1).is_err());
        drop(first);
        drop(listen_unix(&path, 1)?);
        let file = folder.join("file");
        fs::write(&file, "kept")?;
        assert!(listen_unix(&file, 1).is_err());
        assert_eq!(fs::read(&file)?, b"kept");
        fs::remove_dir_all(folder)
    }
}
