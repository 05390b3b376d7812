//! Errors by who is at fault.

use std::fmt;

use wire::WireError;

use crate::cipher::{OpenError, SealError};
use crate::kex::KexError;
use crate::key::KeyError;

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The peer broke the protocol.
    PeerMisbehaved(PeerMisbehaved),
    /// The peer follows the protocol, but has nothing in common with us.
    PeerIncompatible(PeerIncompatible),
    /// This side could not do its part.
    Local(Local),
    /// The peer said goodbye (RFC 4253 section 11.1).
    Disconnected {
        /// The reason code.
        reason: u32,
        /// Its words, escaped.
        description: String,
    },
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerMisbehaved {
    /// No line that starts with `SSH-`.
    NoIdentification,
    /// A packet that cannot be opened.
    BadPacket(OpenError),
    /// A packet without payload.
    EmptyPacket,
    /// A message whose fields do not fit.
    Malformed(WireError),
    /// zlib data that do not inflate within bounds.
    BadCompression(crate::compress::CompressError),
    /// A message that may not come now.
    Unexpected(u8),
    /// Strict KEX forbids this message here.
    StrictKex(u8),
    /// More than 2^32 packets before the first keys.
    SequenceWrapped,
    /// A packet of ours was not understood.
    Unimplemented(u32),
    /// The key exchange failed its checks.
    KeyExchange(KexError),
    /// The host key or its signature is wrong.
    HostKey(KeyError),
    /// Another host key in a later key exchange.
    HostKeyChanged,
    /// More than any honest peer sends.
    TooMany(&'static str),
    /// No sign of life.
    Silent,
    /// An answer to nothing.
    Unasked,
    /// A channel that is not there.
    UnknownChannel(u32),
    /// More data than the window allows.
    WindowExceeded,
    /// A window of 4 GiB or more.
    WindowOverflow,
    /// A data payload larger than we take.
    DataTooLong(usize),
    /// Data behind EOF.
    DataAfterEof,
    /// A maximum packet of 0.
    ZeroPacket,
    /// PK_OK for a key that was not offered.
    WrongKeyOk,
}

/// Nothing in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerIncompatible {
    /// Not SSH 2.
    ProtocolVersion(String),
    /// No common algorithm.
    NoCommon {
        /// Of what kind.
        what: &'static str,
        /// The peer's list.
        theirs: String,
    },
}

/// Our own fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// An empty list.
    NoAlgorithm(&'static str),
    /// A name we do not have.
    UnknownAlgorithm(&'static str, String),
    /// Sealing failed.
    Seal(SealError),
    /// Compression failed.
    Compression(crate::compress::CompressError),
    /// The key exchange failed on our side.
    KeyExchange,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
impl std::error::Error for Error {}

macro_rules! from { ($($t:ident),*) => { $(impl From<$t> for Error { fn from(e: $t) -> Self { Self::$t(e) } })* } }
from!(PeerMisbehaved, PeerIncompatible, Local);
impl From<WireError> for Error {
    fn from(e: WireError) -> Self {
        Self::PeerMisbehaved(PeerMisbehaved::Malformed(e))
    }
}

impl Error {
    pub(crate) fn disconnected(reason: u32, description: &[u8]) -> Self {
        Self::Disconnected {
            reason,
            description: escape(description),
        }
    }
}

pub(crate) fn escape(text: &[u8]) -> String {
    String::from_utf8_lossy(text)
        .chars()
        .take(500)
        .flat_map(char::escape_debug)
        .collect()
}
