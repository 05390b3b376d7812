//! Serves files to SFTP clients: version 3 of the protocol with OpenSSH's extensions.
//!
//! A [`SftpServer`] speaks to one client, bytes in and bytes out. [`stdio`] runs one over two
//! streams, as sftp-server behind sshd, and [`sshd`] adds an SSH server. An [`ExportedTree`] is the
//! tree that clients may use: the whole file system or one directory, in which case the kernel
//! resolves paths (openat2(2)) so that no symlink, `..` or race leads out of it.

mod access;
mod beneath;
mod error;
mod export;
mod growing;
mod held_roots;
mod scp;
mod sftp;
pub mod sshd;
#[cfg(test)]
mod testing;
mod words;

pub use crate::sftp::{
    AnswerChunk, OpenFileLimit, SftpServer, TransferCounters, show_marker, stdio,
};
pub use access::Access;
pub use error::{AccessPolicyError, ExportError, ServeError};
pub use export::ExportedTree;
pub use growing::GrowingFileSpec;
pub use scp::{ScpCommand, ScpCommandError, ScpServer};
