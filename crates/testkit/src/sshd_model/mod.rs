//! OpenSSH's sshd in memory: one connection of it, with an SFTP server behind its subsystem. It
//! checks what a client does, writes in the pieces sshd writes in, and misbehaves where a test
//! asks for it. Without I/O and without a clock.

mod auth;
mod channels;
mod config;
mod edits;
mod server;

pub use config::{SshdConfig, Way};
pub use edits::{Edit, Step, plain_packet};
pub use server::SshdModel;
