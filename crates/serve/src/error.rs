use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::PathBuf;

use ssh::PeerMisbehaved;

/// Reason why a directory cannot be served.
#[derive(Debug)]
pub enum ExportError {
    /// The directory cannot be opened.
    Open(PathBuf, io::Error),
    /// The kernel cannot confine paths to the directory.
    Kernel(PathBuf),
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(path, e) => write!(f, "cannot serve {}: {e}", path.display()),
            Self::Kernel(path) => write!(
                f,
                "cannot limit clients to {}: openat2(2) is missing: use Linux 5.6 or later, or let the \
                 container's seccomp profile allow it",
                path.display()
            ),
        }
    }
}

impl std::error::Error for ExportError {}

/// Reason why serving a client ended early.
#[derive(Debug)]
pub enum ServeError {
    /// The client does not speak SFTP.
    Protocol(sftp::Error),
    /// A message of the client cannot be parsed.
    Message(wire::WireError),
    /// The first message was not INIT.
    NoInit,
    /// Reading from or writing to the client failed.
    Io(io::Error),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(sftp::Error::Length { length, bound }) => write!(
                f,
                "the client does not speak SFTP: it announced a message of {length} bytes; the \
                 limit is {bound}"
            ),
            Self::Protocol(e) => write!(f, "the client does not speak SFTP: {e}"),
            Self::Message(e) => write!(f, "the client sent a malformed request: {e}"),
            Self::NoInit => {
                f.write_str("the client does not speak SFTP: its first message is not INIT")
            }
            Self::Io(e) => write!(f, "the connection to the client broke: {e}"),
        }
    }
}

impl std::error::Error for ServeError {}

/// Reason why an access policy cannot be set up, so that the server does not start.
#[derive(Debug)]
pub enum AccessPolicyError {
    /// The user of this process has no name to log in under.
    Nameless,
    /// No unprivileged account exists for preauth processes.
    NoPreauthUser,
    /// The empty root directory of preauth processes cannot be created.
    Empty(io::Error),
}

impl fmt::Display for AccessPolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nameless => f.write_str(
                "the user of this process has no account name: start the server as a user of \
                 /etc/passwd",
            ),
            Self::NoPreauthUser => f.write_str(
                "no unprivileged account for connections before the login: create an account \
                 longhaul-preauth, sshd or nobody",
            ),
            Self::Empty(e) => write!(
                f,
                "cannot prepare the empty directory in which connections are confined before the \
                 login: {e}"
            ),
        }
    }
}

impl std::error::Error for AccessPolicyError {}

/// Reason why a connection of the SSH server ended, for the log. Some reasons are also sent to the
/// client in a DISCONNECT (RFC 4253 section 11.1).
#[derive(Debug)]
pub(crate) enum ConnectionEndCause {
    /// The client closed the connection.
    Gone,
    /// The server is shutting down, and the connection was idle.
    Stopped,
    /// The login took too long.
    LoginTime,
    /// The account has as many connections as it may.
    Full,
    /// The connection was idle for too long.
    Idle,
    /// The client does not read the data that it is sent.
    Slow,
    /// The preauth process ended without a message.
    Preauth,
    /// The preauth process ended and gave a reason.
    Ended(String),
    /// The account process was killed.
    Process,
    /// The served tree cannot be opened.
    Export(ExportError),
    /// The client and the server have no common algorithm of some kind.
    NothingInCommon {
        /// Identification of the client.
        client: Option<String>,
        /// Kind of algorithm.
        what: &'static str,
        /// Algorithms of that kind that the client offers.
        theirs: String,
        /// `--old-clients` would have offered a common algorithm of each kind.
        old_clients: bool,
    },
    /// The client violated the protocol, or has disconnected with a message.
    Engine(ssh::Error),
    /// The socket failed.
    Io(io::Error),
}

/// Reason codes of DISCONNECT (RFC 4253 section 11.1): for a client's own fault, for a failed
/// negotiation, for too many connections, and for all other causes.
const PROTOCOL_ERROR: u32 = 2;
const KEY_EXCHANGE_FAILED: u32 = 3;
const BY_APPLICATION: u32 = 11;
const TOO_MANY_CONNECTIONS: u32 = 12;

impl ConnectionEndCause {
    /// Reason code and text for the client; `None` if it is already gone.
    pub(crate) fn farewell(&self) -> Option<(u32, String)> {
        match self {
            Self::Gone | Self::Io(_) | Self::Engine(ssh::Error::Disconnected { .. }) => None,
            // sshd's words, which clients recognise.
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

    /// True if the client left deliberately and in order.
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

impl fmt::Display for ConnectionEndCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the client closed the connection"),
            Self::Stopped => f.write_str("the server is shutting down"),
            Self::LoginTime => f.write_str("login timeout"),
            Self::Full => f.write_str(
                "too many connections of this account or of all accounts (options \
                 connections-per-user, connections)",
            ),
            Self::Idle => f.write_str("idle timeout"),
            Self::Slow => f.write_str("the client does not read its data (option slow-time)"),
            Self::Preauth => f.write_str(
                "the process that handles the connection before the login was killed: it made \
                 a system call that its sandbox forbids",
            ),
            Self::Ended(why) => f.write_str(why),
            Self::Process => f.write_str(
                "the process that serves the account ended unexpectedly: look in the kernel's log \
                 for a crash, a lack of memory or a forbidden system call",
            ),
            Self::Export(e) => e.fmt(f),
            Self::NothingInCommon {
                client,
                what,
                theirs,
                old_clients,
            } => {
                let client = client.as_deref().unwrap_or("the client");
                write!(f, "{client}: no {what} in common; it ")?;
                match theirs.as_str() {
                    "" => f.write_str("offers none"),
                    theirs => write!(f, "offers only {}", first_of(theirs)),
                }?;
                match old_clients {
                    true => f.write_str(
                        "; longhaul serve --old-clients (old-clients = true) would admit it",
                    ),
                    false => Ok(()),
                }
            }
            Self::Engine(e) => e.fmt(f),
            Self::Io(e) => write!(f, "the connection broke: {e}"),
        }
    }
}

/// Maximum characters of a client's list that are reported.
const TOLD: usize = 512;

/// Shortens a list, which is printable (RFC 4251 section 5), to its first names.
fn first_of(list: &str) -> Cow<'_, str> {
    if list.len() <= TOLD {
        return list.into();
    }
    let cut: String = list.chars().take(TOLD).collect();
    let whole = cut.rsplit_once(',').map_or(&*cut, |(names, _)| names);
    format!("{whole},...").into()
}

impl std::error::Error for ConnectionEndCause {}

impl From<ssh::Error> for ConnectionEndCause {
    fn from(e: ssh::Error) -> Self {
        Self::Engine(e)
    }
}

impl From<io::Error> for ConnectionEndCause {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_nothing_in_common_is_named_with_what_it_has_and_what_helps() {
        let told = |theirs: &str, old_clients| {
            let why = ConnectionEndCause::NothingInCommon {
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
                "SSH-2.0-old: no cipher in common; it offers only aes128-cbc,3des-cbc".to_owned()
            )
        );
        let words = told("a", true).1;
        assert!(
            words.ends_with("; longhaul serve --old-clients (old-clients = true) would admit it")
        );
        assert!(told("", false).1.ends_with("; it offers none"));
        // The longest possible list.
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
        let told = |why: PeerMisbehaved| ConnectionEndCause::from(ssh::Error::from(why)).farewell();
        let tries = "Too many authentication failures".to_owned();
        assert_eq!(told(PeerMisbehaved::TooManyTries), Some((2, tries)));
        for what in [
            "pings without reading the replies",
            "requests without reading the replies",
            "extensions",
        ] {
            let words = format!("the peer sent too many {what}");
            assert_eq!(told(PeerMisbehaved::TooMany(what)), Some((2, words)));
        }
    }
}
