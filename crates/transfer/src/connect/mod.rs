//! From a host name to an authenticated connection.

mod tcp;

pub use tcp::{Dial, DialError, Family};
