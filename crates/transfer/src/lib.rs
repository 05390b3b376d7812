//! Connects sockets and files to the pure crates.

pub mod connect;
