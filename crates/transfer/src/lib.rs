//! Connects sockets and files to the pure crates.

pub mod agent;
pub mod config;
pub mod escape;
pub mod identity;
pub mod known_hosts;
pub mod memory;
pub mod operand;
pub mod prompt;
