//! Errors by who is at fault, each naming the check that failed.

use std::fmt;

use wire::WireError;

use crate::cipher::{OpenError, SealError};
use crate::compress::CompressError;
use crate::kex::KexError;
use crate::key::KeyError;
use crate::msg::{Number, Phase};
use crate::text::escape;

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
    BadCompression(CompressError),
    /// A message that the table of messages does not allow in this phase.
    OutOfPhase {
        /// Its number.
        number: u8,
        /// Where the peer was.
        phase: Phase,
    },
    /// A client's message from a server, or the other way round.
    WrongSide(u8),
    /// A message that the state within its phase does not allow, such as an answer to nothing.
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
    /// More requests for authentication that were refused than one connection may make.
    TooManyTries,
    /// No sign of life.
    Silent,
    /// A reply to a request that was not made.
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
    /// Another account than the first request's.
    OtherUser,
    /// No cipher or no MAC, where that was not agreed upon.
    NotRenounced,
}

impl fmt::Display for PeerMisbehaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoIdentification => f.write_str("the peer does not identify itself as SSH"),
            Self::BadPacket(e) => e.fmt(f),
            Self::EmptyPacket => f.write_str("the peer sent a packet without a message"),
            Self::Malformed(e) => write!(f, "the peer sent a malformed message: {e}"),
            Self::BadCompression(e) => e.fmt(f),
            Self::OutOfPhase { number, phase } => {
                write!(f, "the peer sent {} {phase}", Number(*number))
            }
            Self::WrongSide(number) => {
                write!(
                    f,
                    "the peer sent {}, which is ours to send",
                    Number(*number)
                )
            }
            Self::Unexpected(number) => {
                write!(
                    f,
                    "the peer sent {}, which nothing asked for",
                    Number(*number)
                )
            }
            Self::StrictKex(number) => write!(
                f,
                "the peer sent {} where strict key exchange forbids it",
                Number(*number)
            ),
            Self::SequenceWrapped => {
                f.write_str("the peer let sequence numbers wrap before the first keys")
            }
            Self::Unimplemented(sequence) => {
                write!(
                    f,
                    "the peer does not understand our packet number {sequence}"
                )
            }
            Self::KeyExchange(e) => write!(f, "the key exchange failed: {e}"),
            Self::HostKey(e) => write!(f, "the host key is not proven: {e}"),
            Self::HostKeyChanged => {
                f.write_str("the peer changed its host key within the connection")
            }
            Self::TooMany(what) => write!(f, "the peer sent too many {what}"),
            Self::TooManyTries => f.write_str("the peer sent too many authentication requests"),
            Self::Silent => f.write_str("the peer gives no sign of life"),
            Self::Unasked => f.write_str("the peer answered a request that was not made"),
            Self::UnknownChannel(id) => {
                write!(f, "the peer wrote to channel {id}, which is not open")
            }
            Self::WindowExceeded => f.write_str("the peer sent more data than the window allows"),
            Self::WindowOverflow => f.write_str("the peer opened a window beyond 4 GiB"),
            Self::DataTooLong(n) => {
                write!(
                    f,
                    "the peer sent {n} bytes of data in one packet, more than we take"
                )
            }
            Self::DataAfterEof => f.write_str("the peer sent data after their end"),
            Self::ZeroPacket => f.write_str("the peer opened a channel that takes no data"),
            Self::WrongKeyOk => f.write_str("the peer accepted a key that was not offered"),
            Self::NotRenounced => {
                f.write_str("the peer wants no cipher or no MAC, which both ends must be told")
            }
            Self::OtherUser => f.write_str("the peer tried another account on the same connection"),
        }
    }
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
        /// With all that this server could offer ([`crate::Connection::set_could_offer`]) there
        /// would be something of each kind.
        could_be: bool,
    },
}

impl fmt::Display for PeerIncompatible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProtocolVersion(ident) => {
                write!(
                    f,
                    "the peer does not speak SSH 2: {}",
                    escape(ident.as_bytes())
                )
            }
            Self::NoCommon { what, theirs, .. } => write!(
                f,
                "no {what} in common; the peer offers {}",
                escape(theirs.as_bytes())
            ),
        }
    }
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
    /// A thread that helped has failed.
    Helper,
    /// Compression failed.
    Compression(CompressError),
    /// The key exchange failed on our side.
    KeyExchange,
    /// What was handed over of a connection is not one.
    Handover,
    /// What a packet was to carry is not where it was, in a sentence.
    Outside(String),
}

impl fmt::Display for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAlgorithm(what) => write!(f, "no {what} is left to offer"),
            Self::UnknownAlgorithm(what, name) => {
                write!(f, "{} is not a {what} known here", escape(name.as_bytes()))
            }
            Self::Seal(e) => e.fmt(f),
            Self::Helper => f.write_str("a thread that helped with encryption has failed"),
            Self::Compression(e) => e.fmt(f),
            Self::KeyExchange => f.write_str("the cipher library failed in the key exchange"),
            Self::Handover => f.write_str("what was handed over is no connection"),
            Self::Outside(words) => f.write_str(words),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerMisbehaved(e) => e.fmt(f),
            Self::PeerIncompatible(e) => e.fmt(f),
            Self::Local(e) => e.fmt(f),
            Self::Disconnected {
                reason,
                description,
            } => {
                f.write_str("the peer disconnected: ")?;
                match (description.as_str(), reason_name(*reason)) {
                    ("", Some(name)) => f.write_str(name),
                    ("", None) => write!(f, "reason {reason}"),
                    (description, _) => f.write_str(description),
                }
            }
        }
    }
}

impl std::error::Error for Error {}

/// RFC 4253 section 11.1.
fn reason_name(reason: u32) -> Option<&'static str> {
    Some(match reason {
        1 => "host not allowed to connect",
        2 => "protocol error",
        3 => "key exchange failed",
        5 => "MAC error",
        6 => "compression error",
        7 => "service not available",
        8 => "protocol version not supported",
        9 => "host key not verifiable",
        10 => "connection lost",
        11 => "by application",
        12 => "too many connections",
        13 => "authentication cancelled by user",
        14 => "no more authentication methods available",
        15 => "illegal user name",
        _ => return None,
    })
}

macro_rules! from_fault {
    ($($fault:ident),*) => {$(
        impl From<$fault> for Error {
            fn from(e: $fault) -> Self {
                Self::$fault(e)
            }
        }
    )*};
}

from_fault!(PeerMisbehaved, PeerIncompatible, Local);

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

    /// Whether it is only that a packet was to carry what is not where it was.
    pub fn is_torn(&self) -> bool {
        matches!(self, Self::Local(Local::Outside(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_sentence_that_says_who_and_what() {
        let cases: [(Error, &str); 6] = [
            (
                PeerMisbehaved::OutOfPhase {
                    number: 52,
                    phase: Phase::Connection,
                }
                .into(),
                "the peer sent USERAUTH_SUCCESS after authentication has succeeded",
            ),
            (
                PeerMisbehaved::Unexpected(200).into(),
                "the peer sent message 200, which nothing asked for",
            ),
            (
                WireError::Trailing { left: 3 }.into(),
                "the peer sent a malformed message: 3 bytes after the last field",
            ),
            (
                Error::disconnected(2, b"Too many\x1b[2J failures"),
                "the peer disconnected: Too many\\x1b[2J failures",
            ),
            (
                Error::disconnected(12, b""),
                "the peer disconnected: too many connections",
            ),
            (
                Local::UnknownAlgorithm("cipher", "rot13".to_owned()).into(),
                "rot13 is not a cipher known here",
            ),
        ];
        for (error, text) in cases {
            assert_eq!(error.to_string(), text);
        }
    }
}
