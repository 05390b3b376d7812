//! What two facing relays say to each other: one connection of a client's, carried by several
//! connections of theirs (docs/PROTOCOL.md, "Facing relays").
//!
//! Pure: a [`StripedConnection`] is given frames that came and asked for frames to send, with the time. What
//! a leg takes is whatever [`StripedConnection::poll`] has for the leg that can be written to, so that a slow
//! leg holds nothing that a fast one could have carried.

pub mod control;
mod frame;
mod growth;
mod incoming;
mod outgoing;
mod session;
mod squeeze;

use std::fmt;

pub use frame::{FIRST_CREDIT, Frame, MOST_DATA, Parser, Piece, TOKEN, Why};
pub use growth::{Found, StripeController, StripeSample};
pub use session::{Config, StripedConnection};

/// One of a session's legs; no number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LegId(pub u32);

/// What the other half did that it must not; each ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairError {
    /// A frame of no kind there is.
    UnknownFrame(u8),
    /// A frame with a length or a value that cannot be.
    BadFrame,
    /// More than it was let.
    BeyondCredit,
    /// Bytes where others were, or behind the end.
    Overlap,
    /// Bytes that do not inflate to what they were announced as.
    BadZstd,
    /// What was never sent is acknowledged.
    BadAck,
    /// A greeting in the middle.
    Misplaced,
}

impl fmt::Display for PairError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Self::UnknownFrame(kind) => {
                return write!(f, "the other half sent a frame of the unknown type {kind}");
            }
            Self::BadFrame => "the other half sent a frame that cannot be",
            Self::BeyondCredit => "the other half sent more than it was let",
            Self::Overlap => "the other half sent other bytes for the same place",
            Self::BadZstd => "the other half sent bytes that do not inflate",
            Self::BadAck => "the other half acknowledged what was never sent",
            Self::Misplaced => "the other half sent a frame out of its place",
        };
        f.write_str(what)
    }
}

impl std::error::Error for PairError {}
