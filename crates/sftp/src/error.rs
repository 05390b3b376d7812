use std::fmt;

use wire::WireError;

/// Error that ends an SFTP session. Each is a fault of the remote server; the caller closes the
/// channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The first bytes were not SFTP, usually text that a shell's start-up file prints.
    NotSftp {
        /// Beginning of the received bytes, control characters escaped.
        text: String,
    },
    /// The server speaks a version other than 3.
    Version(u32),
    /// A message announces more bytes than allowed, or zero.
    Length {
        /// Announced length in bytes.
        length: u32,
        /// Allowed length in bytes.
        bound: u32,
    },
    /// A message is malformed.
    Malformed {
        /// Name of the message.
        message: &'static str,
        /// Reason.
        cause: WireError,
    },
    /// DATA whose string does not fill its message.
    DataLength,
    /// A reply to a request that was never sent or is already answered.
    UnknownId(u32),
    /// A reply of a kind that does not fit its request.
    WrongReply {
        /// Name of the request.
        request: &'static str,
        /// Message number of the reply.
        reply: u8,
    },
    /// More file data than the request asked for.
    TooMuchData {
        /// Bytes requested.
        asked: u32,
        /// Bytes received or announced.
        got: u32,
    },
    /// A handle longer than the 256 bytes that the protocol allows.
    LongHandle(usize),
    /// A request arrived before INIT, or INIT arrived twice (server side).
    OutOfOrder,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSftp { text } => write!(
                f,
                "the server sent text instead of SFTP: \"{text}\". Either the account may not \
                 use SFTP (a forced command, nologin, an expired password), or a start-up file \
                 of its shell (.bashrc, .profile) prints the text: let it print in interactive \
                 shells only"
            ),
            Self::Version(v) => write!(f, "the server speaks SFTP version {v}, not 3"),
            Self::Length { length, bound } => write!(
                f,
                "the server announced an SFTP message of {length} bytes; the limit is {bound}"
            ),
            Self::Malformed { message, cause } => {
                write!(f, "the server sent a malformed SFTP {message}: {cause}")
            }
            Self::DataLength => f.write_str("the server sent SFTP data of a wrong length"),
            Self::UnknownId(id) => {
                write!(
                    f,
                    "the server answered SFTP request {id}, which is not pending"
                )
            }
            Self::WrongReply { request, reply } => {
                write!(f, "the server answered {request} with SFTP message {reply}")
            }
            Self::TooMuchData { asked, got } => {
                write!(f, "the server sent {got} bytes, {asked} were requested")
            }
            Self::LongHandle(len) => write!(
                f,
                "the server sent an SFTP handle of {len} bytes, more than the protocol allows"
            ),
            Self::OutOfOrder => f.write_str(
                "an SFTP message arrived before the session was set up, or INIT arrived again",
            ),
        }
    }
}

impl std::error::Error for Error {}
