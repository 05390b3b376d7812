//! Serves files to SFTP clients: version 3 of the protocol with OpenSSH's extensions.
//!
//! [`stdio`] speaks to one client over two byte streams, as sftp-server does behind sshd. What it
//! may touch is an [`Export`]: the whole file system, or what lies beneath a directory, where the
//! kernel resolves the paths (openat2(2)) so that no symlink, `..` or race leads out of it.

mod access;
mod accounts;
mod answer;
mod answer_names;
mod answer_paths;
mod attributes;
mod beneath;
mod error;
mod export;
mod handles;
mod longname;
mod set;
mod stream;

pub use access::Access;
pub use error::{ExportError, StreamError};
pub use export::Export;
pub use stream::stdio;
