//! UNIX sockets that listen at a path.

use std::fs;
use std::io;
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
        && UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    if stale {
        fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(backlog)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

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
