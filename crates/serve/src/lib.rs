//! Serves files to SFTP clients: version 3 of the protocol with OpenSSH's extensions.
//!
//! A [`Server`] speaks to one client, bytes in and bytes out. [`stdio`] runs one over two streams,
//! as sftp-server behind sshd, and [`listen`] adds an SSH server. An [`Export`] is the tree that
//! clients may use: the whole file system or one directory, in which case the kernel resolves paths
//! (openat2(2)) so that no symlink, `..` or race leads out of it.

mod access;
mod accounts;
mod answer;
mod answers;
mod attributes;
mod beneath;
mod blocking_pool;
mod copied;
mod count;
mod deferred_close;
mod direct_write;
mod drop_box;
mod durable;
mod error;
#[cfg(test)]
mod escape_tests;
mod export;
#[cfg(test)]
mod extensions_tests;
mod files;
mod group_sync;
mod handles;
mod hashes;
mod incoming;
mod io_error_log;
pub mod listen;
mod longname;
mod metadata;
mod names;
mod packed;
mod reply;
mod scp;
mod set;
mod stream;
mod temporary;
#[cfg(test)]
mod testing;
mod transfers;
mod tree;
mod whole_file;
mod words;

pub use access::Access;
pub use answer::TransferCounters;
pub use answers::AnswerChunk;
pub use error::{ExportError, ListenError, StreamError};
pub use export::Export;
pub use handles::Allowance;
pub use scp::{Scp, ScpCommand};
pub use stream::{Server, show_marker, stdio};
