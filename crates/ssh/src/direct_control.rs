//! What a client and `longhaul serve --once` tell each other over the channel that has started it:
//! docs/PROTOCOL.md, "A server for one copy".
//!
//! Messages of the client come on the server's standard input, its own go to standard output,
//! behind a line that marks where what the login has said ends.

use std::fmt;

use wire::{Reader, WireError, message};
use zeroize::Zeroize as _;

use crate::key::{KeyError, PublicKey};

/// What both ends must speak alike.
pub const VERSION: u32 = 1;

/// The line behind which the server's messages begin.
const MARKER: &[u8] = b"\nlonghaul-serves-once\n";
/// What a login may say before that (a motd, what a shell's files print).
const MOST_NOISE: usize = 64 << 10;
/// The longest message.
const LONGEST: usize = 16 << 10;
/// Keys in one message: a copy has no more connections than this.
pub const MOST_KEYS: usize = 32;
/// The longest blob of a key; one of RSA with 16,384 bits has 2 KiB.
const LONGEST_KEY: usize = 4 << 10;
/// Of the server's version, so much is shown.
const LONGEST_SOFTWARE: usize = 40;

message! {
    /// The client's first message. Answered by [`Listening`] or [`Refused`].
    pub struct Begin<'a> = 1 {
        /// What the client speaks; what follows may differ where it is not [`VERSION`].
        pub version: u32,
        /// The first port that may be listened at, 0 for any ...
        pub first_port: u32,
        /// ... and the last.
        pub last_port: u32,
        /// Where packets are lost, the server's sockets may have a congestion control that bears it.
        pub bear_losses: bool,
        /// As [`write_keys`] has them.
        pub keys: &'a [u8],
    }
}

message! {
    /// More keys, at any time. Answered by [`Taken`].
    pub struct More<'a> = 2 {
        /// The client's, for the answer.
        pub number: u32,
        /// As [`write_keys`] has them.
        pub keys: &'a [u8],
    }
}

message! {
    /// Connections are waited for.
    pub struct Listening<'a> = 17 {
        /// What the server speaks.
        pub version: u32,
        /// Where.
        pub port: u32,
        /// The only name that is let in.
        pub user: &'a [u8],
        /// The blob of the key that proves that it is this server.
        pub host_key: &'a [u8],
        /// Its own version.
        pub software: &'a [u8],
    }
}

message! {
    /// There will be no connection. The server's last message.
    pub struct Refused<'a> = 18 {
        /// What the server speaks.
        pub version: u32,
        /// One sentence.
        pub why: &'a [u8],
    }
}

message! {
    /// The keys of a [`More`] are known from now on.
    pub struct Taken = 19 {
        /// That message's.
        pub number: u32,
    }
}

/// Why nothing comes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnceError {
    /// A message makes no sense.
    Message(WireError),
    /// No such message is to be sent there.
    Unexpected(u8),
    /// A message is longer than any.
    TooLong(usize),
    /// So much came, and no message of ours.
    Noise,
    /// A key cannot be used.
    Key(KeyError),
    /// There are too many keys, or too long ones.
    Keys,
    /// The other end speaks this.
    Version(u32),
    /// What is no port.
    Port(u32),
}

impl fmt::Display for OnceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(e) => write!(f, "a message makes no sense: {e}"),
            Self::Unexpected(number) => write!(f, "message {number} has no place there"),
            Self::TooLong(len) => write!(f, "a message of {len} bytes is longer than any"),
            Self::Noise => f.write_str("what came is nothing that longhaul serve --once says"),
            Self::Key(e) => write!(f, "a key for one login cannot be used: {e}"),
            Self::Keys => f.write_str("too many keys for one login, or too long ones"),
            Self::Version(theirs) => {
                let (older, newer) = match *theirs < VERSION {
                    true => ("the other end", "this one"),
                    false => ("this end", "the other one"),
                };
                write!(
                    f,
                    "version {VERSION} is spoken here and {theirs} there: {older} has to be \
                     upgraded to what {newer} is"
                )
            }
            Self::Port(port) => write!(f, "{port} is no port to connect to"),
        }
    }
}

impl std::error::Error for OnceError {}

impl From<WireError> for OnceError {
    fn from(e: WireError) -> Self {
        Self::Message(e)
    }
}

/// A message as it goes over the channel.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + message.len());
    wire::Field::write(&message, &mut out);
    out
}

/// What the server sends before its first message.
pub fn marker() -> &'static [u8] {
    MARKER
}

/// Takes messages out of what comes over the channel.
#[derive(Debug)]
pub struct Frames {
    received: Vec<u8>,
    /// The marker is still to come, after so many bytes of noise.
    noise: Option<usize>,
}

impl Frames {
    /// At the server: the client has nothing in front.
    pub fn of_client() -> Self {
        let received = Vec::new();
        let noise = None;
        Self { received, noise }
    }

    /// At the client.
    pub fn of_server() -> Self {
        Self {
            // The marker is a line of its own, and may be the first.
            received: b"\n".to_vec(),
            noise: Some(0),
        }
    }

    /// Takes in what came.
    ///
    /// # Errors
    /// It is more than what a login says, or than any message.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), OnceError> {
        self.received.extend_from_slice(bytes);
        if let Some(before) = self.noise {
            let found = self.received.windows(MARKER.len());
            let found = found.into_iter().position(|window| window == MARKER);
            let keep = match found {
                Some(at) => {
                    self.noise = None;
                    at + MARKER.len()
                }
                // The marker may have begun.
                None => self.received.len().saturating_sub(MARKER.len() - 1),
            };
            self.received.drain(..keep);
            if self.noise.is_some() {
                self.noise = Some(before + keep);
            }
            if before + keep > MOST_NOISE {
                return Err(OnceError::Noise);
            }
        }
        Ok(())
    }

    /// The next message, without its length, once it is there.
    ///
    /// # Errors
    /// It is longer than any.
    pub fn next_message(&mut self) -> Result<Option<Vec<u8>>, OnceError> {
        if self.noise.is_some() {
            return Ok(None);
        }
        let mut reader = Reader::new(&self.received);
        let Ok(len) = reader.u32() else {
            return Ok(None);
        };
        let len = len as usize;
        if len > LONGEST {
            return Err(OnceError::TooLong(len));
        }
        let Ok(message) = reader.take(len).map(<[u8]>::to_vec) else {
            return Ok(None);
        };
        self.received.drain(..4 + len);
        Ok(Some(message))
    }

    /// Nothing that came is left over.
    pub fn is_empty(&self) -> bool {
        self.received.is_empty()
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.received.zeroize();
    }
}

/// Public keys behind each other.
pub fn write_keys<'k>(blobs: impl IntoIterator<Item = &'k [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for blob in blobs {
        wire::Field::write(&blob, &mut out);
    }
    out
}

/// The same, read.
///
/// # Errors
/// They are too many or too long, or one is none that proves anything by itself.
pub fn read_keys(bytes: &[u8]) -> Result<Vec<PublicKey>, OnceError> {
    let mut reader = Reader::new(bytes);
    let mut keys = Vec::new();
    while reader.left() > 0 {
        let blob = reader.string()?;
        if keys.len() == MOST_KEYS || blob.len() > LONGEST_KEY {
            return Err(OnceError::Keys);
        }
        let key = PublicKey::from_blob(blob).map_err(OnceError::Key)?;
        if key.certificate().is_some() || !key.is_usable() {
            let key_type = key.key_type().to_owned();
            return Err(OnceError::Key(KeyError::Unsupported { key_type }));
        }
        keys.push(key);
    }
    Ok(keys)
}

/// What the client says.
#[derive(Clone, Debug)]
pub enum Asked {
    /// See [`Begin`].
    Begin {
        /// Ports that may be listened at; any, if there are none.
        ports: Option<(u16, u16)>,
        /// See [`Begin::bear_losses`].
        bear_losses: bool,
        /// One for each login.
        keys: Vec<PublicKey>,
    },
    /// See [`More`].
    More {
        /// For the answer.
        number: u32,
        /// One for each login.
        keys: Vec<PublicKey>,
    },
}

impl Asked {
    /// Reads a message of the client's.
    ///
    /// # Errors
    /// It makes no sense, or its version is another.
    pub fn decode(message: &[u8]) -> Result<Self, OnceError> {
        match message.first().copied() {
            Some(Begin::NUMBER) => {
                version(message)?;
                let begin = Begin::decode(message)?;
                Ok(Self::Begin {
                    ports: ports(begin.first_port, begin.last_port)?,
                    bear_losses: begin.bear_losses,
                    keys: read_keys(begin.keys)?,
                })
            }
            Some(More::NUMBER) => {
                let More { number, keys } = More::decode(message)?;
                let keys = read_keys(keys)?;
                Ok(Self::More { number, keys })
            }
            number => Err(OnceError::Unexpected(number.unwrap_or(0))),
        }
    }
}

/// What the server says.
#[derive(Clone, Debug)]
pub enum Answered {
    /// See [`Listening`].
    Listening {
        /// Not 0.
        port: u16,
        /// The only name that is let in.
        user: String,
        /// What must come again as the host key of each connection.
        host_key: PublicKey,
        /// Its own version, printable.
        software: String,
    },
    /// See [`Refused`]: why, not escaped.
    Refused(String),
    /// See [`Taken`].
    Taken(u32),
}

impl Answered {
    /// Reads a message of the server's.
    ///
    /// # Errors
    /// It makes no sense, or its version is another.
    pub fn decode(message: &[u8]) -> Result<Self, OnceError> {
        match message.first().copied() {
            Some(Listening::NUMBER) => {
                version(message)?;
                let told = Listening::decode(message)?;
                let port = u16::try_from(told.port).ok().filter(|port| *port > 0);
                let user = String::from_utf8(told.user.to_vec());
                let software = told.software.iter().take(LONGEST_SOFTWARE);
                let software = software.filter(|b| b.is_ascii_graphic());
                Ok(Self::Listening {
                    port: port.ok_or(OnceError::Port(told.port))?,
                    user: user.map_err(|_| OnceError::Unexpected(Listening::NUMBER))?,
                    host_key: PublicKey::from_blob(told.host_key).map_err(OnceError::Key)?,
                    software: software.map(|b| char::from(*b)).collect(),
                })
            }
            Some(Refused::NUMBER) => {
                version(message)?;
                let Refused { why, .. } = Refused::decode(message)?;
                Ok(Self::Refused(String::from_utf8_lossy(why).into_owned()))
            }
            Some(Taken::NUMBER) => Ok(Self::Taken(Taken::decode(message)?.number)),
            number => Err(OnceError::Unexpected(number.unwrap_or(0))),
        }
    }
}

/// What stands behind it is not read where it is another.
fn version(message: &[u8]) -> Result<(), OnceError> {
    let mut reader = Reader::new(message.get(1..).unwrap_or_default());
    match reader.u32()? {
        VERSION => Ok(()),
        theirs => Err(OnceError::Version(theirs)),
    }
}

fn ports(first: u32, last: u32) -> Result<Option<(u16, u16)>, OnceError> {
    if (first, last) == (0, 0) {
        return Ok(None);
    }
    let port = |port: u32| u16::try_from(port).ok().filter(|port| *port > 0);
    let range = port(first).zip(port(last)).filter(|(a, b)| a <= b);
    range.map(Some).ok_or(OnceError::Port(first))
}

#[cfg(test)]
mod tests;
