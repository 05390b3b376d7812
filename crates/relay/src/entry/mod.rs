//! What is said in front of the bytes: PROXY headers, and the requests of SOCKS and HTTP clients.
//! Pure: bytes in, and what they mean; whoever calls bounds how many there are and how long it
//! takes.

pub mod http;
pub mod permit;
pub mod proxy;
pub mod socks;

use crate::address::{Place, Target};

/// What came of looking at the bytes that are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// It is not whole yet.
    More,
    /// It is whole, and so many bytes long.
    Done(T, usize),
    /// It is none: why.
    Wrong(&'static str),
}

/// A target that a client has named.
pub(crate) fn named(host: crate::address::Host, port: u16) -> Target {
    Target {
        place: Place::Tcp { host, port },
        words: Vec::new(),
    }
}
