//! Parsers of the data before the payload of a connection: PROXY headers, and the requests of SOCKS
//! and HTTP clients. Pure functions of the bytes received so far; the caller limits their number
//! and the time that a client may take.

pub mod http;
pub mod permit;
pub mod proxy;
pub mod socks;

use crate::address::{RelayEndpoint, TargetSpec};

/// Result of parsing a PROXY header or a SOCKS or HTTP request from the bytes received so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeParseResult<T> {
    /// The message is incomplete.
    Incomplete,
    /// The complete message, and its length in bytes.
    Done(T, usize),
    /// The bytes are not such a message; the reason.
    Invalid(&'static str),
}

/// Returns the target for a host and port that a client has named.
pub(crate) fn named(host: crate::address::HostSpec, port: u16) -> TargetSpec {
    TargetSpec {
        place: RelayEndpoint::Tcp { host, port },
        words: Vec::new(),
    }
}
