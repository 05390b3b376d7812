//! SSH without I/O: transport, authentication and channels.

pub mod cipher;
pub mod compress;
pub mod kex;
pub mod key;
