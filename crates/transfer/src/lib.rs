//! Connects sockets and files to the pure crates: sessions over links, the local disk, directory
//! trees, and copies; also host configuration and user authentication.

pub mod agent;
pub mod bench;
pub mod bootstrap;
pub mod cancel;
pub mod config;
pub mod connect;
pub mod copy;
pub mod detour;
pub mod disk;
pub mod escape;
mod file_error;
pub mod host_to_host;
pub mod identity;
mod journal;
pub mod known_hosts;
pub mod memory;
mod name_probe;
pub mod operand;
pub mod pace;
mod private_dir;
pub mod probe;
pub mod prompt;
pub mod report;
pub mod sample;
pub mod session;
pub mod shards;
pub mod sums;
pub mod sync;
pub mod timeline;
pub mod walk;

pub use file_error::FileError;
pub use private_dir::{LonghaulDirKind, PrivateDir};
