use std::fmt;

use wire::WireError;

/// Why an SFTP session cannot go on. All are the far end's doing; the channel is to be closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// What came first was not SFTP, mostly text that a shell's start-up file prints.
    NotSftp {
        /// The beginning of what came, control characters escaped.
        text: String,
    },
    /// The server speaks another version than 3.
    Version(u32),
    /// A message announces more bytes than any message may have, or none.
    Length {
        /// Announced.
        length: u32,
        /// Allowed.
        bound: u32,
    },
    /// A message cannot be read.
    Malformed {
        /// Which message.
        message: &'static str,
        /// What is wrong.
        cause: WireError,
    },
    /// A DATA whose string does not fill its message.
    DataLength,
    /// A reply to a request that was never made or is answered already.
    UnknownId(u32),
    /// A reply that does not fit its request.
    WrongReply {
        /// What was asked.
        request: &'static str,
        /// The number of what came.
        reply: u8,
    },
    /// More file data than the READ asked for.
    TooMuchData {
        /// Bytes asked for.
        asked: u32,
        /// Bytes announced.
        got: u32,
    },
    /// A handle longer than the 256 bytes the protocol allows.
    LongHandle(usize),
    /// A request came before INIT, or INIT twice (server side).
    OutOfOrder,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSftp { text } => write!(
                f,
                "the server sent text where SFTP should begin: \"{text}\". Either the account may \
                 not use SFTP (a forced command, nologin, an expired password), or a start-up file \
                 of its shell prints it (.bashrc, .profile): let that print only in interactive \
                 shells"
            ),
            Self::Version(v) => write!(f, "the server speaks SFTP version {v}, not 3"),
            Self::Length { length, bound } => write!(
                f,
                "the server announces an SFTP message of {length} bytes where at most {bound} are allowed"
            ),
            Self::Malformed { message, cause } => {
                write!(f, "the server sent a malformed SFTP {message}: {cause}")
            }
            Self::DataLength => {
                f.write_str("the server sent SFTP data whose length contradicts its message")
            }
            Self::UnknownId(id) => {
                write!(
                    f,
                    "the server answered SFTP request {id}, which is not open"
                )
            }
            Self::WrongReply { request, reply } => {
                write!(f, "the server answered {request} with SFTP message {reply}")
            }
            Self::TooMuchData { asked, got } => {
                write!(
                    f,
                    "the server sent {got} bytes where {asked} were asked for"
                )
            }
            Self::LongHandle(len) => write!(f, "the server sent an SFTP handle of {len} bytes"),
            Self::OutOfOrder => f.write_str("an SFTP message came out of order around INIT"),
        }
    }
}

impl std::error::Error for Error {}
