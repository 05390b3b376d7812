//! An SFTP server in memory that behaves as OpenSSH's sftp-server does: strictly in order, with
//! its table of handles, its limits, extensions and error codes; and, where a test asks for it,
//! as other servers do, or as none should.

mod blocks;
mod faults;
mod fs;
mod handles;
mod link;
mod ours;
mod serve;
mod server;
mod witness;

pub use faults::{Act, Inject};
pub use fs::{Errno, Fs, Kind, Node};
pub use handles::HandleStyle;
pub use link::{Link, LinkOptions, Rng, epoch};
pub use server::{Personality, Restrictions, SftpModel};
pub use witness::Witness;
