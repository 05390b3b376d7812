//! Protocol of a pair of relays: one connection of a client is carried by several TCP connections
//! between the relays (docs/PROTOCOL.md, "Facing relays").
//!
//! Pure state machine without I/O: a [`StripedConnection`] is given received frames and the time,
//! and is asked for frames to send. [`StripedConnection::poll`] returns the next frame for the
//! stripe that can be written to, so that a slow stripe never holds data that a fast one could have
//! carried.

pub mod control;
mod frame;
mod growth;
mod incoming;
mod outgoing;
mod session;
mod squeeze;

use std::fmt;

pub use frame::{
    AbortReason, DataFrame, FIRST_CREDIT, FrameDecoder, MOST_DATA, StripeFrame, TOKEN,
};
pub use growth::{StripeController, StripeSample, StripeTrialResult};
pub use session::{StripedConnection, StripedConnectionConfig};

/// Number of a stripe within its session; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StripeId(pub u32);

/// Protocol violation of the peer relay; each one ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairError {
    /// A frame of an unknown type.
    UnknownFrame(u8),
    /// A frame with an invalid length or value.
    BadFrame,
    /// More data than the limit allows.
    BeyondCredit,
    /// A piece that overlaps others, or lies behind the end.
    Overlap,
    /// Compressed data that does not decompress to the announced length.
    BadZstd,
    /// An acknowledgement of data that was never sent.
    BadAck,
    /// A `Hello` frame that is not the first, or a frame on a stripe that was ended.
    Misplaced,
}

/// Remedy of a protocol error.
const ADVICE: &str = "run the same version of longhaul at both ends";

impl fmt::Display for PairError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Self::UnknownFrame(kind) => {
                return write!(
                    f,
                    "the peer relay sent a frame of the unknown type {kind}: {ADVICE}"
                );
            }
            Self::BadFrame => "the peer relay sent a malformed frame",
            Self::BeyondCredit => "the peer relay sent more data than it was granted",
            Self::Overlap => "the peer relay sent different bytes for the same offset",
            Self::BadZstd => "the peer relay sent bytes that cannot be decompressed",
            Self::BadAck => "the peer relay acknowledged data that was never sent",
            Self::Misplaced => "the peer relay sent an unexpected frame",
        };
        write!(f, "{what}: {ADVICE}")
    }
}

impl std::error::Error for PairError {}
