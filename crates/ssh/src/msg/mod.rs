//! Messages.

mod auth;
mod channel;
mod transport;

pub use auth::*;
pub use channel::*;
pub use transport::*;

use crate::error::{Error, PeerMisbehaved};

/// Where the peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before the first NEWKEYS.
    KeyExchange,
    /// The same under strict KEX.
    StrictKeyExchange,
    /// Between KEXINIT and NEWKEYS of a later exchange.
    Rekey,
    /// Before authentication has succeeded.
    Auth,
    /// After it.
    Connection,
}
/// Whether it may come now.
pub fn legal(number: u8, phase: Phase, from: crate::Role) -> Result<(), Error> {
    let _ = from;
    let ok = match (phase, number) {
        // No message has this number (RFC 4250 section 4.1.2).
        (_, 0) => false,
        (_, 1) => true,
        (Phase::StrictKeyExchange, n) => (20..=49).contains(&n),
        (Phase::KeyExchange | Phase::Rekey, n) => n < 5 || n == 7 || (20..=49).contains(&n),
        (Phase::Auth, n) => n < 80 || n >= 192,
        (Phase::Connection, _) => true,
    };
    if ok {
        Ok(())
    } else {
        Err(PeerMisbehaved::Unexpected(number).into())
    }
}
