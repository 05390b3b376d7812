//! SFTP server in memory that behaves like OpenSSH's sftp-server: strictly in order, with its table
//! of handles, its limits, extensions and error codes. On request it behaves like other servers, or
//! misbehaves.

mod blocks;
mod faults;
mod fs;
mod handles;
mod link;
mod ours;
mod power;
mod serve;
mod server;
mod witness;

pub use faults::{Act, InjectedFault};
pub use fs::{Errno, Fs, Kind, Node};
pub use handles::HandleStyle;
pub use link::{Link, Rng, VirtualLinkOptions, epoch};
pub use server::{ModelServerRestrictions, SftpModel, SftpServerProfile};
pub use witness::Witness;
