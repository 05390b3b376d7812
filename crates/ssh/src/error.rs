//! Errors by the side at fault, each naming the check that failed.

use std::fmt;

use wire::{MissingPayloadError, WireError};

use crate::EndpointRole;
use crate::cipher::{PacketOpenError, PacketSealError};
use crate::compress::CompressError;
use crate::kex::KexError;
use crate::key::KeyError;
use crate::msg::{ConnectionPhase, MessageName};
use crate::text::escape;

/// Name of the other side in messages: "the peer", unless the role of this side is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerName(Option<EndpointRole>);

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            None => "the peer",
            Some(EndpointRole::Client) => "the client",
            Some(EndpointRole::Server) => "the server",
        })
    }
}

/// Message of an [`Error`] for the user of one side ([`Error::seen_by`]).
#[derive(Clone, Copy, Debug)]
pub struct SeenError<'a> {
    error: &'a Error,
    peer: PeerName,
}

impl fmt::Display for SeenError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.describe(self.peer, f)
    }
}

/// Reason why a connection cannot continue, by the side at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The peer violated the protocol.
    PeerMisbehaved(PeerMisbehaved),
    /// The peer follows the protocol, but has no algorithm or version in common with us.
    PeerIncompatible(PeerIncompatible),
    /// An error on this side.
    Local(Local),
    /// The peer sent DISCONNECT (RFC 4253 section 11.1).
    Disconnected {
        /// Reason code.
        reason: u32,
        /// The peer's description, escaped.
        description: String,
    },
}

/// Violation of the protocol by the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerMisbehaved {
    /// No identification line that starts with `SSH-`.
    NoIdentification,
    /// A packet that cannot be opened.
    BadPacket(PacketOpenError),
    /// A packet without payload.
    EmptyPacket,
    /// A malformed message.
    Malformed(WireError),
    /// zlib data that does not inflate within bounds.
    BadCompression(CompressError),
    /// A message that is not permitted in this phase.
    OutOfPhase {
        /// Message number.
        number: u8,
        /// Current phase.
        phase: ConnectionPhase,
    },
    /// A client's message from a server, or the reverse.
    WrongSide(u8),
    /// A message that the current state does not permit, such as a reply without a request.
    Unexpected(u8),
    /// A message that strict KEX forbids here.
    StrictKex(u8),
    /// More than 2^32 packets before the first keys.
    SequenceWrapped,
    /// UNIMPLEMENTED for a packet of ours, with its sequence number.
    Unimplemented(u32),
    /// A key exchange that failed its checks.
    KeyExchange(KexError),
    /// A host key or host key signature that is invalid.
    HostKey(KeyError),
    /// A different host key in a later key exchange.
    HostKeyChanged,
    /// More items than any honest peer sends.
    TooMany(&'static str),
    /// More refused authentication requests than permitted for one connection.
    TooManyTries,
    /// No answer to keepalives.
    Unresponsive,
    /// A reply without a request.
    Unsolicited,
    /// A message for a channel that does not exist.
    UnknownChannel(u32),
    /// More data than the window permits.
    WindowExceeded,
    /// A window above 2^32 - 1 bytes.
    WindowOverflow,
    /// A data payload larger than the maximum that we announced.
    DataTooLong(usize),
    /// Data after EOF.
    DataAfterEof,
    /// A maximum packet size of 0.
    ZeroPacket,
    /// PK_OK for a key that was not offered.
    WrongKeyOk,
    /// An account other than that of the first request.
    OtherUser,
    /// No cipher or no MAC without prior agreement.
    NotRenounced,
}

impl PeerMisbehaved {
    /// Writes the message, which calls the other side `peer`.
    pub(crate) fn describe(&self, peer: PeerName, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoIdentification => write!(
                f,
                "{peer} did not send an SSH version string: is this the port of an SSH server?",
            ),
            Self::BadPacket(e) => e.describe(peer, f),
            Self::EmptyPacket => write!(f, "{peer} sent an empty packet"),
            Self::Malformed(e) => write!(f, "{peer} sent a malformed message: {e}"),
            Self::BadCompression(e) => e.describe(peer, f),
            Self::OutOfPhase { number, phase } => {
                write!(f, "{peer} sent {} {phase}", MessageName(*number))
            }
            Self::WrongSide(number) => {
                write!(
                    f,
                    "{peer} sent {}, which only this machine may send",
                    MessageName(*number)
                )
            }
            Self::Unexpected(number) => {
                write!(f, "{peer} sent {} without a request", MessageName(*number))
            }
            Self::StrictKex(number) => write!(
                f,
                "{peer} sent {}, which strict key exchange forbids here",
                MessageName(*number)
            ),
            Self::SequenceWrapped => {
                write!(
                    f,
                    "{peer}'s sequence numbers wrapped before the first key exchange"
                )
            }
            Self::Unimplemented(sequence) => {
                write!(
                    f,
                    "{peer} does not support a message that this machine sent, packet \
                     {sequence} (SSH_MSG_UNIMPLEMENTED)"
                )
            }
            Self::KeyExchange(e) => f
                .write_str("the key exchange failed: ")
                .and_then(|()| e.describe(peer, f)),
            Self::HostKey(e) => write!(f, "host key signature verification failed: {e}"),
            Self::HostKeyChanged => write!(
                f,
                "{peer} showed another host key in the middle of the connection: check for a \
                     device that intercepts SSH",
            ),
            Self::TooMany(what) => write!(f, "{peer} sent too many {what}"),
            Self::TooManyTries => write!(f, "{peer} sent too many authentication requests"),
            Self::Unresponsive => write!(f, "{peer} stopped responding to keepalives"),
            Self::Unsolicited => write!(f, "{peer} answered a request that was not made"),
            Self::UnknownChannel(id) => {
                write!(f, "{peer} sent data for channel {id}, which is not open")
            }
            Self::WindowExceeded => write!(f, "{peer} sent more data than the window allows"),
            Self::WindowOverflow => write!(f, "{peer} granted a channel window of more than 4 GiB"),
            Self::DataTooLong(n) => {
                write!(
                    f,
                    "{peer} sent {n} bytes of data in one packet, more than the maximum \
                     packet size"
                )
            }
            Self::DataAfterEof => write!(f, "{peer} sent data after the end of file"),
            Self::ZeroPacket => {
                write!(f, "{peer} opened a channel with a maximum packet size of 0")
            }
            Self::WrongKeyOk => write!(f, "{peer} accepted a key that was not offered"),
            Self::NotRenounced => {
                write!(
                    f,
                    "{peer} negotiated no cipher or no MAC, which was not requested here"
                )
            }
            Self::OtherUser => write!(f, "{peer} changed the user name during authentication"),
        }
    }
}

impl fmt::Display for PeerMisbehaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(PeerName::default(), f)
    }
}

/// Lack of a common version or algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerIncompatible {
    /// The peer does not support SSH 2; its identification.
    ProtocolVersion(String),
    /// No common algorithm.
    NoCommon {
        /// Kind of algorithm.
        what: &'static str,
        /// The peer's name-list.
        theirs: String,
        /// True if everything that this server could offer ([`crate::Connection::set_could_offer`])
        /// would give a common algorithm of each kind.
        could_be: bool,
    },
}

impl PeerIncompatible {
    /// Writes the message, which calls the other side `peer`.
    pub(crate) fn describe(&self, peer: PeerName, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProtocolVersion(ident) => {
                write!(
                    f,
                    "{peer} does not speak SSH 2: {}",
                    escape(ident.as_bytes())
                )
            }
            Self::NoCommon { what, theirs, .. } => write!(
                f,
                "no {what} in common; {peer} offers: {}",
                escape(theirs.as_bytes())
            ),
        }
    }
}

impl fmt::Display for PeerIncompatible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(PeerName::default(), f)
    }
}

/// Error that the peer has not caused: in the settings, a library, a helper thread or the data to
/// send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// An empty list of algorithms of this kind.
    NoAlgorithm(&'static str),
    /// An unknown algorithm name, with its kind.
    UnknownAlgorithm(&'static str, String),
    /// Sealing failed.
    Seal(PacketSealError),
    /// A helper thread failed.
    Helper,
    /// Compression failed.
    Compression(CompressError),
    /// The key exchange failed in the cipher library.
    KeyExchange,
    /// The serialized connection is malformed.
    Handover,
    /// Borrowed payload is no longer available.
    ExternalPayload(MissingPayloadError),
}

impl Local {
    /// Writes the message, which calls the other side `peer`.
    pub(crate) fn describe(&self, peer: PeerName, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAlgorithm(what) => write!(
                f,
                "no {what} left to offer: the configuration excludes every one that longhaul \
                 supports"
            ),
            Self::UnknownAlgorithm(what, name) => {
                write!(f, "{} is not a supported {what}", escape(name.as_bytes()))
            }
            Self::Seal(e) => fmt::Display::fmt(e, f),
            Self::Helper => f.write_str("an encryption thread failed"),
            Self::Compression(e) => e.describe(peer, f),
            Self::KeyExchange => f.write_str("the cipher library failed in the key exchange"),
            Self::Handover => f.write_str(
                "internal error: the connection state from another longhaul process is malformed",
            ),
            Self::ExternalPayload(e) => fmt::Display::fmt(e, f),
        }
    }
}

impl fmt::Display for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(PeerName::default(), f)
    }
}

impl Error {
    /// Writes the message, which calls the other side `peer`.
    pub(crate) fn describe(&self, peer: PeerName, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerMisbehaved(e) => e.describe(peer, f),
            Self::PeerIncompatible(e) => e.describe(peer, f),
            Self::Local(e) => e.describe(peer, f),
            Self::Disconnected {
                reason,
                description,
            } => {
                write!(f, "{peer} disconnected: ")?;
                match (description.as_str(), reason_name(*reason)) {
                    ("", Some(name)) => f.write_str(name),
                    ("", None) => write!(f, "reason {reason}"),
                    (description, _) => f.write_str(description),
                }
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(PeerName::default(), f)
    }
}

impl std::error::Error for Error {}

/// Returns the meaning of a reason code (RFC 4253 section 11.1).
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

    /// Returns the message for the user of this side, which calls the other one the server or the
    /// client. `Display` calls it the peer.
    pub fn seen_by(&self, side: EndpointRole) -> SeenError<'_> {
        SeenError {
            error: self,
            peer: PeerName(Some(side.other())),
        }
    }

    /// Returns true if the only cause is borrowed payload that is no longer available.
    pub fn is_truncated(&self) -> bool {
        matches!(self, Self::Local(Local::ExternalPayload(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: a server's own words "the peer" were shown as "the server".
    #[test]
    fn the_words_of_the_other_side_were_rewritten_with_ours() {
        let error = Error::disconnected(11, b"the peer idled");
        for (side, text) in [
            (
                EndpointRole::Client,
                "the server disconnected: the peer idled",
            ),
            (
                EndpointRole::Server,
                "the client disconnected: the peer idled",
            ),
        ] {
            assert_eq!(error.seen_by(side).to_string(), text);
        }
        let packet = PacketOpenError::BadLength { packet_length: 9 };
        let error = Error::from(PeerMisbehaved::BadPacket(packet));
        assert_eq!(
            error.seen_by(EndpointRole::Client).to_string(),
            "the server sent a packet with bad length 9"
        );
        let error = Error::from(PeerMisbehaved::KeyExchange(KexError::BadPoint));
        assert_eq!(
            error.seen_by(EndpointRole::Client).to_string(),
            "the key exchange failed: the server's key exchange value is not a valid point"
        );
    }

    #[test]
    fn an_error_is_one_sentence_that_says_who_and_what() {
        let cases: [(Error, &str); 6] = [
            (
                PeerMisbehaved::OutOfPhase {
                    number: 52,
                    phase: ConnectionPhase::Connection,
                }
                .into(),
                "the peer sent USERAUTH_SUCCESS after authentication has succeeded",
            ),
            (
                PeerMisbehaved::Unexpected(200).into(),
                "the peer sent message 200 without a request",
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
                "rot13 is not a supported cipher",
            ),
        ];
        for (error, text) in cases {
            assert_eq!(error.to_string(), text);
        }
    }
}
