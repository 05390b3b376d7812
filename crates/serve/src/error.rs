use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use sftp::StatusCode;
use ssh::PeerMisbehaved;

/// Why a directory cannot be served.
#[derive(Debug)]
pub enum ExportError {
    /// It cannot be opened.
    Open(PathBuf, io::Error),
    /// This kernel cannot keep clients beneath it.
    Kernel(PathBuf),
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(path, e) => write!(f, "{} cannot be served: {e}", path.display()),
            Self::Kernel(path) => write!(
                f,
                "{} cannot be served by itself: this kernel lacks openat2 (Linux 5.6), which keeps \
                 clients beneath it",
                path.display()
            ),
        }
    }
}

impl std::error::Error for ExportError {}

/// Why serving a client ended early.
#[derive(Debug)]
pub enum StreamError {
    /// The client does not speak SFTP.
    Protocol(sftp::Error),
    /// A message of its could not be read.
    Message(wire::WireError),
    /// Its first message was not INIT.
    NoInit,
    /// The stream from the client or to it broke.
    Io(io::Error),
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(e) => write!(f, "the client does not speak SFTP: {e}"),
            Self::Message(e) => write!(f, "a request of the client makes no sense: {e}"),
            Self::NoInit => f.write_str("the client does not speak SFTP: INIT comes first"),
            Self::Io(e) => write!(f, "the connection to the client broke: {e}"),
        }
    }
}

impl std::error::Error for StreamError {}

/// Why a server cannot listen.
#[derive(Debug)]
pub enum ListenError {
    /// The user of this process has no name, under which one could log in.
    Nameless,
    /// Nobody but root is here to read what strangers send.
    NoPreauthUser,
    /// The directory where strangers find nothing cannot be made.
    Empty(io::Error),
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nameless => f.write_str("the user of this process has no name to log in under"),
            Self::NoPreauthUser => f.write_str(
                "as root there must be an account longhaul-preauth, sshd or nobody, which reads \
                 what strangers send",
            ),
            Self::Empty(e) => write!(f, "the empty directory for strangers: {e}"),
        }
    }
}

impl std::error::Error for ListenError {}

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum ConnectionError {
    /// The client has closed it.
    Gone,
    /// The server ends, and nothing was under way.
    Stopped,
    /// Nobody has logged in in time.
    LoginTime,
    /// The account has as many connections as it may.
    Full,
    /// Nothing was under way for long.
    Idle,
    /// The client takes nothing of what it is sent.
    Slow,
    /// The process that logs the client in is gone without a word.
    Preauth,
    /// It has ended, and said why.
    Ended(String),
    /// The account's process was ended.
    Process,
    /// What is to be served cannot be.
    Export(ExportError),
    /// The client has nothing of some kind in common with what is offered.
    NothingInCommon {
        /// Its identification.
        client: Option<String>,
        /// Of which kind.
        what: &'static str,
        /// What it has of that.
        theirs: String,
        /// `--old-clients` would have offered something of each kind.
        old_clients: bool,
    },
    /// The client does not keep to the protocol, or has left in its words.
    Engine(ssh::Error),
    /// The socket broke.
    Io(io::Error),
}

/// What a client that is disconnected for its own fault is told as the reason
/// (SSH_DISCONNECT_PROTOCOL_ERROR), what one that there is nothing in common with
/// (SSH_DISCONNECT_KEY_EXCHANGE_FAILED), what one too many (SSH_DISCONNECT_TOO_MANY_CONNECTIONS), and what every
/// other (SSH_DISCONNECT_BY_APPLICATION).
const PROTOCOL_ERROR: u32 = 2;
const KEY_EXCHANGE_FAILED: u32 = 3;
const BY_APPLICATION: u32 = 11;
const TOO_MANY_CONNECTIONS: u32 = 12;

impl ConnectionError {
    /// The reason and the words that the client is told; `None` where it is not there any more.
    pub(crate) fn farewell(&self) -> Option<(u32, String)> {
        match self {
            Self::Gone | Self::Io(_) | Self::Engine(ssh::Error::Disconnected { .. }) => None,
            // As sshd has it: clients know the words.
            Self::Engine(ssh::Error::PeerMisbehaved(PeerMisbehaved::TooManyTries)) => Some((
                PROTOCOL_ERROR,
                "Too many authentication failures".to_owned(),
            )),
            Self::Engine(e) => Some((PROTOCOL_ERROR, e.to_string())),
            e @ Self::NothingInCommon { .. } => Some((KEY_EXCHANGE_FAILED, e.to_string())),
            e @ Self::Full => Some((TOO_MANY_CONNECTIONS, e.to_string())),
            e => Some((BY_APPLICATION, e.to_string())),
        }
    }

    /// Whether the client has left, of its own will and in good order.
    pub(crate) fn is_leave(&self) -> bool {
        matches!(
            self,
            Self::Gone
                | Self::Engine(ssh::Error::Disconnected {
                    reason: BY_APPLICATION,
                    ..
                })
        )
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the client has closed the connection"),
            Self::Stopped => f.write_str("this server ends"),
            Self::LoginTime => f.write_str("nobody has logged in in time"),
            Self::Full => {
                f.write_str("too many connections of this account, or of all accounts together")
            }
            Self::Idle => f.write_str("nothing was under way for long"),
            Self::Slow => f.write_str("the client takes nothing of what it has asked for"),
            Self::Preauth => {
                f.write_str("the process before the login was ended: it did what it may not do")
            }
            Self::Ended(why) => f.write_str(why),
            Self::Process => f.write_str("the account's process was ended"),
            Self::Export(e) => e.fmt(f),
            Self::NothingInCommon {
                client,
                what,
                theirs,
                old_clients,
            } => {
                let client = client.as_deref().unwrap_or("the client");
                write!(f, "{client} has no {what} that is offered here, ")?;
                match theirs.as_str() {
                    "" => f.write_str("and names none"),
                    theirs => write!(f, "only {}", first_of(theirs)),
                }?;
                match old_clients {
                    true => f.write_str(
                        "; longhaul serve --old-clients (old-clients = true) would let it in",
                    ),
                    false => Ok(()),
                }
            }
            Self::Engine(e) => e.fmt(f),
            Self::Io(e) => write!(f, "the connection broke: {e}"),
        }
    }
}

/// Characters of a client's list that are told.
const TOLD: usize = 512;

/// The first names of a list, which is printable (RFC 4251 section 5).
fn first_of(list: &str) -> Cow<'_, str> {
    if list.len() <= TOLD {
        return list.into();
    }
    let cut: String = list.chars().take(TOLD).collect();
    let whole = cut.rsplit_once(',').map_or(&*cut, |(names, _)| names);
    format!("{whole},...").into()
}

impl std::error::Error for ConnectionError {}

impl From<ssh::Error> for ConnectionError {
    fn from(e: ssh::Error) -> Self {
        Self::Engine(e)
    }
}

impl From<io::Error> for ConnectionError {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

/// Why a request failed, as STATUS has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) code: StatusCode,
    pub(crate) words: Cow<'static, str>,
    /// The disk has failed, or takes no more: not the client's doing.
    pub(crate) disk: Option<Errno>,
}

impl Refused {
    pub(crate) fn new(code: StatusCode, words: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            words: words.into(),
            disk: None,
        }
    }

    /// The request makes no sense: nothing was done.
    pub(crate) fn bad_message(words: &'static str) -> Self {
        Self::new(StatusCode::BAD_MESSAGE, words)
    }

    /// There is no more to read: each file and listing ends with it.
    pub(crate) fn end_of_file() -> Self {
        Self::new(StatusCode::EOF, "End of file")
    }
}

impl From<Errno> for Refused {
    /// The codes are those of sftp-server.c (errno_to_portable), which clients take for what they
    /// mean there.
    fn from(errno: Errno) -> Self {
        let code = match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::BADF | Errno::LOOP => StatusCode::NO_SUCH_FILE,
            Errno::PERM | Errno::ACCESS | Errno::FAULT => StatusCode::PERMISSION_DENIED,
            Errno::NAMETOOLONG | Errno::INVAL => StatusCode::BAD_MESSAGE,
            Errno::NOSYS => StatusCode::OP_UNSUPPORTED,
            _ => StatusCode::FAILURE,
        };
        let words = io::Error::from(errno).to_string();
        // What follows is the number, which says nothing to people.
        let words = words.split(" (os error").next().unwrap_or(&words);
        let of_disk = matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::IO);
        Self {
            disk: of_disk.then_some(errno),
            ..Self::new(code, words.to_owned())
        }
    }
}

impl From<io::Error> for Refused {
    fn from(e: io::Error) -> Self {
        match Errno::from_io_error(&e) {
            Some(errno) => errno.into(),
            None => Self::new(StatusCode::FAILURE, e.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_nothing_in_common_is_named_with_what_it_has_and_what_helps() {
        let told = |theirs: &str, old_clients| {
            let why = ConnectionError::NothingInCommon {
                client: Some("SSH-2.0-old".to_owned()),
                what: "cipher",
                theirs: theirs.to_owned(),
                old_clients,
            };
            why.farewell().expect("it is there")
        };
        assert_eq!(
            told("aes128-cbc,3des-cbc", false),
            (
                3,
                "SSH-2.0-old has no cipher that is offered here, only aes128-cbc,3des-cbc"
                    .to_owned()
            )
        );
        let words = told("a", true).1;
        assert!(
            words.ends_with("; longhaul serve --old-clients (old-clients = true) would let it in")
        );
        assert!(told("", false).1.ends_with(", and names none"));
        // Of the longest list there is.
        for list in ["name,".repeat(7000), "n".repeat(35_000), "é".repeat(9000)] {
            let words = told(&list, true).1;
            assert!(
                words.chars().count() < 700 && words.contains(",...; "),
                "{words}"
            );
        }
    }

    #[test]
    fn a_client_that_sends_too_many_of_something_reads_of_what() {
        let told = |why: PeerMisbehaved| ConnectionError::from(ssh::Error::from(why)).farewell();
        let tries = "Too many authentication failures".to_owned();
        assert_eq!(told(PeerMisbehaved::TooManyTries), Some((2, tries)));
        for what in [
            "pings without reading the answers",
            "requests without reading answers",
            "extensions",
        ] {
            let words = format!("the peer sent too many {what}");
            assert_eq!(told(PeerMisbehaved::TooMany(what)), Some((2, words)));
        }
    }
}
