//! Model of OpenSSH's sshd in memory: one connection, with an SFTP server behind its subsystem. The
//! model checks the client, writes in the pieces in which sshd writes, and misbehaves on request.
//! No I/O and no clock.

mod auth;
mod channels;
mod config;
mod edits;
mod server;

pub use config::{SshdModelSettings, Way};
pub use edits::{Edit, Step, plain_packet};
pub use server::SshdModel;
