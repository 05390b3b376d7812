//! A client of ssh-agent (draft-ietf-sshm-ssh-agent, OpenSSH's PROTOCOL.agent), which keeps the
//! private keys and signs with them.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use wire::{Field, FieldReader, RemainingBytes, WireError};

use crate::escape;

/// The maximum length of a message (OpenSSH's AGENT_MAX_LEN).
const MAX_MESSAGE: usize = 256 * 1024;
/// The maximum number of keys; OpenSSH refuses more too (authfd.c MAX_AGENT_IDENTITIES).
const MAX_KEYS: u32 = 2048;
/// The time limit for listing keys, which needs no user input.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit for a signature, which may wait for a touch, a PIN or a confirmation.
const SIGN_TIMEOUT: Duration = Duration::from_secs(300);

const FAILURE: u8 = 5;
const SUCCESS: u8 = 6;
const EXTENSION_FAILURE: u8 = 28;

wire::message! {
    /// SSH_AGENTC_REQUEST_IDENTITIES.
    pub struct RequestIdentities = 11 {}
}
wire::message! {
    /// SSH_AGENT_IDENTITIES_ANSWER: `keys` pairs of blob and comment follow.
    pub struct IdentitiesAnswer<'a> = 12 {
        /// The number of pairs.
        pub keys: u32,
        /// The pairs of key blob and comment.
        pub pairs: RemainingBytes<'a>,
    }
}
wire::message! {
    /// SSH_AGENTC_SIGN_REQUEST.
    pub struct SignRequest<'a> = 13 {
        /// The public key or certificate to sign with.
        pub blob: &'a [u8],
        /// The data to sign.
        pub data: &'a [u8],
        /// Signature flags: 2 requests rsa-sha2-256, 4 requests rsa-sha2-512.
        pub flags: u32,
    }
}
wire::message! {
    /// SSH_AGENT_SIGN_RESPONSE: the agent's signature, with its algorithm.
    pub struct AgentSignResponse<'a> = 14 {
        /// Algorithm and signature.
        pub signature: &'a [u8],
    }
}
wire::message! {
    /// SSH_AGENTC_EXTENSION with `session-bind@openssh.com`: binds the agent connection to one SSH
    /// connection, so that keys with destination constraints (ssh-add -h) can be used.
    pub struct AgentSessionBindRequest<'a> = 27 {
        /// The extension's name.
        pub name: &'a [u8],
        /// The server's host key.
        pub host_key: &'a [u8],
        /// The exchange hash of the first key exchange.
        pub session_id: &'a [u8],
        /// The server's signature over the session ID.
        pub signature: &'a [u8],
        /// True if the agent is forwarded, false if it authenticates this connection.
        pub forwarding: bool,
    }
}

/// The choice of an agent (IdentityAgent).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AgentChoice {
    /// The agent of SSH_AUTH_SOCK, if set.
    #[default]
    Environment,
    /// No agent is used.
    None,
    /// The agent at this socket.
    Path(PathBuf),
}

impl AgentChoice {
    /// Returns the socket's path; `None` without an agent.
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Environment => std::env::var_os("SSH_AUTH_SOCK")
                .filter(|s| !s.is_empty())
                .map(PathBuf::from),
            Self::None => None,
            Self::Path(path) => Some(path.clone()),
        }
    }

    /// Opens a raw connection for agent forwarding; `None` without an agent.
    pub fn open(&self) -> Result<Option<UnixStream>, AgentError> {
        let Some(path) = self.path() else {
            return Ok(None);
        };
        match UnixStream::connect(&path) {
            Ok(stream) => Ok(Some(stream)),
            Err(error) => Err(AgentError::new(&path, AgentErrorKind::Io(error))),
        }
    }
}

/// A key that the agent holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentKey {
    /// The public key or certificate, in SSH's encoding.
    pub blob: Vec<u8>,
    /// The comment; arbitrary bytes that must be escaped for display.
    pub comment: Vec<u8>,
}

/// A connection to an ssh-agent.
#[derive(Debug)]
pub struct Agent {
    stream: UnixStream,
    path: PathBuf,
}

/// The reason why the agent did not fulfil a request; the text names its socket.
#[derive(Debug)]
pub struct AgentError {
    path: PathBuf,
    why: AgentErrorKind,
}

#[derive(Debug)]
enum AgentErrorKind {
    Io(io::Error),
    TooLong(usize),
    Malformed(WireError),
    TooManyKeys(u32),
    Refused,
    Unexpected(u8),
    OtherAlgorithm(Vec<u8>),
}

impl Agent {
    /// Connects to the agent; `None` without an agent.
    pub fn connect(socket: &AgentChoice) -> Result<Option<Self>, AgentError> {
        let (Some(path), Some(stream)) = (socket.path(), socket.open()?) else {
            return Ok(None);
        };
        Ok(Some(Self { stream, path }))
    }

    /// Returns the underlying connection, for agent forwarding.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the keys that the agent holds, in its order.
    pub fn keys(&mut self) -> Result<Vec<AgentKey>, AgentError> {
        let reply = self.ask(&RequestIdentities {}.to_bytes(), LIST_TIMEOUT)?;
        if reply.first() == Some(&FAILURE) {
            return Err(self.error(AgentErrorKind::Refused));
        }
        let answer = IdentitiesAnswer::decode(&reply)
            .map_err(|e| self.error(AgentErrorKind::Malformed(e)))?;
        if answer.keys > MAX_KEYS {
            return Err(self.error(AgentErrorKind::TooManyKeys(answer.keys)));
        }
        let mut reader = FieldReader::new(answer.pairs.0);
        let read = |reader: &mut FieldReader<'_>| {
            let mut keys = Vec::new();
            for _ in 0..answer.keys {
                keys.push(AgentKey {
                    blob: reader.string()?.to_vec(),
                    comment: reader.string()?.to_vec(),
                });
            }
            Ok(keys)
        };
        let keys = read(&mut reader).and_then(|keys| reader.finish().map(|()| keys));
        keys.map_err(|e| self.error(AgentErrorKind::Malformed(e)))
    }

    /// Requests a signature of `data` with the key `blob` and the signature `algorithm`
    /// (`rsa-sha2-512-cert-v01@openssh.com` counts as `rsa-sha2-512`); returns the signature in
    /// SSH's encoding. May wait for minutes, since the user may have to touch or confirm.
    pub fn sign(
        &mut self,
        blob: &[u8],
        data: &[u8],
        algorithm: &str,
    ) -> Result<Vec<u8>, AgentError> {
        let algorithm = signature_algorithm(algorithm);
        let flags = match algorithm {
            "rsa-sha2-256" => 2,
            "rsa-sha2-512" => 4,
            _ => 0,
        };
        let request = SignRequest { blob, data, flags };
        let reply = self.ask(&request.to_bytes(), SIGN_TIMEOUT)?;
        match reply.first() {
            Some(&FAILURE) => Err(self.error(AgentErrorKind::Refused)),
            _ => {
                let response = AgentSignResponse::decode(&reply);
                let response = response.map_err(|e| self.error(AgentErrorKind::Malformed(e)))?;
                // An agent without support for RFC 8332 returns a SHA-1 signature.
                let made = FieldReader::new(response.signature).string();
                let made = made.map_err(|e| self.error(AgentErrorKind::Malformed(e)))?;
                if made != algorithm.as_bytes() {
                    return Err(self.error(AgentErrorKind::OtherAlgorithm(made.to_vec())));
                }
                Ok(response.signature.to_vec())
            }
        }
    }

    /// Binds the agent to an SSH connection (session-bind@openssh.com). `Ok(false)` if the agent
    /// does not know the extension, which OpenSSH ignores too.
    pub fn bind(
        &mut self,
        host_key: &[u8],
        session_id: &[u8],
        signature: &[u8],
        forwarding: bool,
    ) -> Result<bool, AgentError> {
        let request = AgentSessionBindRequest {
            name: b"session-bind@openssh.com",
            host_key,
            session_id,
            signature,
            forwarding,
        };
        let reply = self.ask(&request.to_bytes(), LIST_TIMEOUT)?;
        match reply.first() {
            Some(&SUCCESS) => Ok(true),
            Some(&(FAILURE | EXTENSION_FAILURE)) => Ok(false),
            Some(&other) => Err(self.error(AgentErrorKind::Unexpected(other))),
            None => Err(self.error(AgentErrorKind::TooLong(0))),
        }
    }

    fn ask(&mut self, message: &[u8], timeout: Duration) -> Result<Vec<u8>, AgentError> {
        self.exchange(message, timeout)
            .map_err(|why| self.error(why))
    }

    fn exchange(&mut self, message: &[u8], timeout: Duration) -> Result<Vec<u8>, AgentErrorKind> {
        if message.len() > MAX_MESSAGE {
            return Err(AgentErrorKind::TooLong(message.len()));
        }
        self.stream
            .set_write_timeout(Some(LIST_TIMEOUT))
            .map_err(AgentErrorKind::Io)?;
        self.stream
            .set_read_timeout(Some(timeout))
            .map_err(AgentErrorKind::Io)?;
        let mut framed = Vec::with_capacity(4 + message.len());
        message.write(&mut framed);
        self.stream.write_all(&framed).map_err(AgentErrorKind::Io)?;
        let mut length = [0; 4];
        self.stream
            .read_exact(&mut length)
            .map_err(AgentErrorKind::Io)?;
        let length = u32::from_be_bytes(length) as usize;
        if length == 0 || length > MAX_MESSAGE {
            return Err(AgentErrorKind::TooLong(length));
        }
        let mut reply = vec![0; length];
        self.stream
            .read_exact(&mut reply)
            .map_err(AgentErrorKind::Io)?;
        Ok(reply)
    }

    fn error(&self, why: AgentErrorKind) -> AgentError {
        AgentError::new(&self.path, why)
    }
}

/// Returns the signature's algorithm: the name of a certificate algorithm without its suffix.
pub fn signature_algorithm(algorithm: &str) -> &str {
    match algorithm {
        "sk-ssh-ed25519-cert-v01@openssh.com" => "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256-cert-v01@openssh.com" => "sk-ecdsa-sha2-nistp256@openssh.com",
        other => other.strip_suffix("-cert-v01@openssh.com").unwrap_or(other),
    }
}

impl AgentError {
    fn new(path: &Path, why: AgentErrorKind) -> Self {
        Self {
            path: path.to_owned(),
            why,
        }
    }

    /// True if the agent works and refused: the key is locked, not confirmed, or not permitted for
    /// this host.
    pub fn is_refusal(&self) -> bool {
        matches!(self.why, AgentErrorKind::Refused)
    }
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = escape::path(&self.path);
        match &self.why {
            AgentErrorKind::Io(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                write!(f, "ssh-agent {at}: the agent did not answer in time")
            }
            AgentErrorKind::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                write!(f, "ssh-agent {at}: the agent closed the connection")
            }
            AgentErrorKind::Io(e) => {
                write!(
                    f,
                    "ssh-agent {at}: cannot connect: {e}; check SSH_AUTH_SOCK"
                )
            }
            AgentErrorKind::TooLong(n) => write!(
                f,
                "ssh-agent {at}: the agent sent a message of {n} bytes; only 1 to {MAX_MESSAGE} \
                 are allowed"
            ),
            AgentErrorKind::Malformed(e) => write!(f, "ssh-agent {at}: malformed answer: {e}"),
            AgentErrorKind::TooManyKeys(n) => {
                write!(
                    f,
                    "ssh-agent {at}: the agent holds {n} keys; at most {MAX_KEYS} are supported: \
                     remove some with ssh-add -d"
                )
            }
            AgentErrorKind::Refused => write!(f, "ssh-agent {at}: the agent refused to sign"),
            AgentErrorKind::Unexpected(n) => write!(
                f,
                "ssh-agent {at}: the agent sent the unexpected message {n}"
            ),
            AgentErrorKind::OtherAlgorithm(name) => write!(
                f,
                "ssh-agent {at}: the agent signed with {}, which the server does not accept",
                escape::name(name)
            ),
        }
    }
}

impl std::error::Error for AgentError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.why {
            AgentErrorKind::Io(e) => Some(e),
            AgentErrorKind::Malformed(e) => Some(e),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
