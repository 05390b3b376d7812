//! Control protocol between a client and `longhaul serve --once`, over the channel that has started
//! it: docs/PROTOCOL.md, "A server for one copy".
//!
//! The client's messages arrive on the server's standard input; the server's go to standard output,
//! after a marker line that ends the output of the login.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use wire::{FieldReader, WireError, message};
use zeroize::Zeroize as _;

use crate::key::{KeyError, PublicKey};

/// Protocol version, which must be the same at both ends.
pub const VERSION: u32 = 1;

/// Marker line in front of the server's messages.
const MARKER: &[u8] = b"\nlonghaul-serves-once\n";
/// Maximum bytes of login output (a motd, shell start-up files) before the marker.
const MOST_NOISE: usize = 64 << 10;
/// Maximum length of a message in bytes.
const LONGEST: usize = 16 << 10;
/// Maximum number of keys in one message: a copy has no more connections.
pub const MOST_KEYS: usize = 32;
/// Maximum length of a key blob in bytes; an RSA key of 16,384 bits takes 2 KiB.
const LONGEST_KEY: usize = 4 << 10;
/// Maximum number of addresses in one message.
pub const MOST_ADDRESSES: usize = 16;
/// Maximum number of sources in one message.
pub const MOST_NAMES: usize = 256;
/// Length in bytes of a checksum in [`GrowingSource`].
pub const HASH: usize = 32;
/// Maximum number of checksums in [`GrowingSource`].
pub const MOST_BLOCKS: usize = 480;
/// Length in bytes of the token of [`DialRequest`].
pub const TOKEN: usize = 32;
/// Maximum characters of the server's version that are shown.
const LONGEST_SOFTWARE: usize = 40;

message! {
    /// First message of the client, answered by [`DirectListeningReply`] or [`DirectRefusedReply`].
    pub struct DirectStartRequest<'a> = 1 {
        /// The client's protocol version; if it is not [`VERSION`], the following fields may
        /// differ.
        pub version: u32,
        /// First port that the server may listen at; 0 for any.
        pub first_port: u32,
        /// Last port that the server may listen at; 0 for any.
        pub last_port: u32,
        /// True if the server's sockets may use a congestion control that tolerates losses.
        pub bear_losses: bool,
        /// Keys for one login each, as [`write_keys`] encodes them.
        pub keys: &'a [u8],
    }
}

message! {
    /// Further keys for one login each, sent at any time and answered by [`KeysAccepted`].
    pub struct MoreLoginKeysRequest<'a> = 2 {
        /// Number chosen by the client, which the answer repeats.
        pub number: u32,
        /// Keys for one login each, as [`write_keys`] encodes them.
        pub keys: &'a [u8],
    }
}

message! {
    /// Restriction to one copy between two hosts, sent before [`DirectStartRequest`]: another host reads
    /// these files, and nothing else. The server answers [`DirectStartRequest`] with [`ServerAddresses`]
    /// in front of [`DirectListeningReply`].
    pub struct RestrictSourcesRequest<'a> = 3 {
        /// Client's protocol version.
        pub version: u32,
        /// Directory that clients see as `/`, read-only; relative paths begin at the login
        /// directory.
        pub root: &'a [u8],
        /// Sources beneath the root, as [`write_list`] encodes them; the last component may be a
        /// pattern.
        pub names: &'a [u8],
        /// True if symlinks below the sources are followed.
        pub follow: bool,
    }
}

message! {
    /// Request to connect to the receiving host and to serve it over that connection, answered by
    /// [`DialReply`].
    pub struct DialRequest<'a> = 4 {
        /// Number chosen by the client, which the answer repeats.
        pub number: u32,
        /// Addresses with ports, as [`write_list`] encodes their text.
        pub addresses: &'a [u8],
        /// Bytes to send first, by which the receiving host recognizes the connection.
        pub token: &'a [u8],
    }
}

message! {
    /// Attributes and checksums of the only source, which is still being written, sent between
    /// [`RestrictSourcesRequest`] and [`DirectStartRequest`].
    pub struct GrowingSource<'a> = 5 {
        /// Size of the complete file in bytes.
        pub size: u64,
        /// Permissions of the complete file.
        pub mode: u32,
        /// Modification time of the complete file in seconds.
        pub mtime: u64,
        /// Bytes of a block.
        pub block: u64,
        /// BLAKE3 of each block, one after the other.
        pub hashes: &'a [u8],
    }
}

message! {
    /// Reply of a server that listens for direct connections.
    pub struct DirectListeningReply<'a> = 17 {
        /// The server's protocol version.
        pub version: u32,
        /// Port of the listener.
        pub port: u32,
        /// The only user name that may log in.
        pub user: &'a [u8],
        /// Blob of the host key by which the client recognizes this server.
        pub host_key: &'a [u8],
        /// The server's software version.
        pub software: &'a [u8],
    }
}

message! {
    /// Last message of a server that accepts no direct connection, with the reason.
    pub struct DirectRefusedReply<'a> = 18 {
        /// The server's protocol version.
        pub version: u32,
        /// Reason in one sentence.
        pub why: &'a [u8],
    }
}

message! {
    /// Confirmation that the keys of a [`MoreLoginKeysRequest`] are accepted from now on.
    pub struct KeysAccepted = 19 {
        /// Number from that [`MoreLoginKeysRequest`].
        pub number: u32,
    }
}

message! {
    /// Addresses of the server's machine, for a client on another host than the one whose login
    /// started the server.
    pub struct ServerAddresses<'a> = 20 {
        /// IP addresses, as [`write_list`] encodes their text.
        pub addresses: &'a [u8],
    }
}

message! {
    /// Server's answer to the [`DialRequest`] of this number, once connecting has succeeded or
    /// failed.
    pub struct DialReply<'a> = 21 {
        /// Number from the request.
        pub number: u32,
        /// Reason why no connection could be made; empty if one was made.
        pub why: &'a [u8],
    }
}

/// Reason why a message of the control protocol is not accepted, at either end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectControlError {
    /// A malformed message.
    Message(WireError),
    /// A message number that is not permitted here.
    Unexpected(u8),
    /// A message longer than the maximum, with its length in bytes.
    TooLong(usize),
    /// Too much output without the marker line.
    NoMarker,
    /// An unusable key.
    Key(KeyError),
    /// Too many keys, or a key that is too long.
    Keys,
    /// The peer's protocol version, which differs from ours.
    Version(u32),
    /// An invalid port number.
    Port(u32),
    /// A list that is too long, or an entry that is no address.
    List,
}

impl fmt::Display for DirectControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(e) => write!(f, "malformed control message: {e}"),
            Self::Unexpected(number) => write!(f, "unexpected control message {number}"),
            Self::TooLong(len) => write!(f, "control message of {len} bytes exceeds the limit"),
            Self::NoMarker => f.write_str(
                "longhaul serve --once did not start at the far end, where another program answers: \
                 look for a forced command, or start-up files that print",
            ),
            Self::Key(e) => write!(f, "cannot use a one-time key: {e}"),
            Self::Keys => f.write_str("too many or too long one-time keys"),
            Self::Version(theirs) => {
                let (older, newer) = match *theirs < VERSION {
                    true => ("the far end", "this one"),
                    false => ("this end", "the far end"),
                };
                write!(
                    f,
                    "this end speaks version {VERSION} of the control protocol, the far end \
                     version {theirs}: upgrade {older} to the version of {newer}"
                )
            }
            Self::Port(port) => write!(f, "{port} is not a valid port"),
            Self::List => f.write_str("invalid list of paths or addresses"),
        }
    }
}

impl std::error::Error for DirectControlError {}

impl From<WireError> for DirectControlError {
    fn from(e: WireError) -> Self {
        Self::Message(e)
    }
}

/// Returns a message with its length in front, as sent over the channel.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + message.len());
    wire::Field::write(&message, &mut out);
    out
}

/// Returns the marker line that the server sends before its first message.
pub fn marker() -> &'static [u8] {
    MARKER
}

/// Splitter for the messages of the channel.
#[derive(Debug)]
pub struct DirectMessageSplitter {
    received: Vec<u8>,
    /// Bytes discarded so far in search of the marker line; `None` once it was found or if there is
    /// none.
    noise: Option<usize>,
}

impl DirectMessageSplitter {
    /// Creates a splitter for a client's messages, which have no marker line.
    pub fn of_client() -> Self {
        let received = Vec::new();
        let noise = None;
        Self { received, noise }
    }

    /// Creates a splitter for a server's messages, which follow the marker line.
    pub fn of_server() -> Self {
        Self {
            // The marker starts with a newline, which lets it be the first line.
            received: b"\n".to_vec(),
            noise: Some(0),
        }
    }

    /// Processes received bytes.
    ///
    /// # Errors
    /// There is more login output than permitted before the marker line.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), DirectControlError> {
        self.received.extend_from_slice(bytes);
        if let Some(before) = self.noise {
            let found = self.received.windows(MARKER.len());
            let found = found.into_iter().position(|window| window == MARKER);
            let keep = match found {
                Some(at) => {
                    self.noise = None;
                    at + MARKER.len()
                }
                // The marker may have started.
                None => self.received.len().saturating_sub(MARKER.len() - 1),
            };
            self.received.drain(..keep);
            if self.noise.is_some() {
                self.noise = Some(before + keep);
            }
            if before + keep > MOST_NOISE {
                return Err(DirectControlError::NoMarker);
            }
        }
        Ok(())
    }

    /// Returns the next complete message without its length.
    ///
    /// # Errors
    /// The message exceeds the maximum length.
    pub fn next_message(&mut self) -> Result<Option<Vec<u8>>, DirectControlError> {
        if self.noise.is_some() {
            return Ok(None);
        }
        let mut reader = FieldReader::new(&self.received);
        let Ok(len) = reader.u32() else {
            return Ok(None);
        };
        let len = len as usize;
        if len > LONGEST {
            return Err(DirectControlError::TooLong(len));
        }
        let Ok(message) = reader.take(len).map(<[u8]>::to_vec) else {
            return Ok(None);
        };
        self.received.drain(..4 + len);
        Ok(Some(message))
    }

    /// Returns true if no received bytes are left over.
    pub fn is_empty(&self) -> bool {
        self.received.is_empty()
    }
}

impl Drop for DirectMessageSplitter {
    fn drop(&mut self) {
        self.received.zeroize();
    }
}

/// Encodes public keys as consecutive strings.
pub fn write_keys<'k>(blobs: impl IntoIterator<Item = &'k [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for blob in blobs {
        wire::Field::write(&blob, &mut out);
    }
    out
}

/// Decodes the output of [`write_keys`].
///
/// # Errors
/// There are too many keys, a key is too long, or one is a certificate or unusable.
pub fn read_keys(bytes: &[u8]) -> Result<Vec<PublicKey>, DirectControlError> {
    let mut reader = FieldReader::new(bytes);
    let mut keys = Vec::new();
    while reader.left() > 0 {
        let blob = reader.string()?;
        if keys.len() == MOST_KEYS || blob.len() > LONGEST_KEY {
            return Err(DirectControlError::Keys);
        }
        let key = PublicKey::from_blob(blob).map_err(DirectControlError::Key)?;
        if key.certificate().is_some() || !key.is_usable() {
            let key_type = key.key_type().to_owned();
            return Err(DirectControlError::Key(KeyError::Unsupported { key_type }));
        }
        keys.push(key);
    }
    Ok(keys)
}

/// Encodes byte strings one after the other.
pub fn write_list<'k>(entries: impl IntoIterator<Item = &'k [u8]>) -> Vec<u8> {
    write_keys(entries)
}

/// Decodes the output of [`write_list`].
///
/// # Errors
/// The list is malformed or has more than `most` entries.
pub fn read_list(bytes: &[u8], most: usize) -> Result<Vec<Vec<u8>>, DirectControlError> {
    let mut reader = FieldReader::new(bytes);
    let mut entries = Vec::new();
    while reader.left() > 0 {
        if entries.len() == most {
            return Err(DirectControlError::List);
        }
        entries.push(reader.string()?.to_vec());
    }
    Ok(entries)
}

fn parsed<T: FromStr>(bytes: &[u8]) -> Result<Vec<T>, DirectControlError> {
    let parse = |text: Vec<u8>| std::str::from_utf8(&text).ok()?.parse().ok();
    let entries = read_list(bytes, MOST_ADDRESSES)?.into_iter();
    entries
        .map(|text| parse(text).ok_or(DirectControlError::List))
        .collect()
}

/// Decoded [`GrowingSource`]: the attributes and block sums by which a host serves a file that it
/// is still receiving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrowingFileBlocks {
    /// Size of the complete file in bytes.
    pub size: u64,
    /// Permissions of the complete file.
    pub mode: u32,
    /// Modification time of the complete file in seconds.
    pub mtime: u64,
    /// Bytes of a block; the last one may be shorter.
    pub block: u64,
    /// BLAKE3 of each block.
    pub hashes: Vec<[u8; HASH]>,
}

impl GrowingFileBlocks {
    /// Encodes the message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let message = GrowingSource {
            size: self.size,
            mode: self.mode,
            mtime: self.mtime,
            block: self.block,
            hashes: &self.hashes.concat(),
        };
        message.to_bytes()
    }
}

/// Message of the client, decoded and checked by the server.
#[derive(Clone, Debug)]
pub enum DirectClientMessage {
    /// A [`DirectStartRequest`].
    Start {
        /// Ports that the server may listen at; `None` for any.
        ports: Option<(u16, u16)>,
        /// Value of [`DirectStartRequest::bear_losses`].
        bear_losses: bool,
        /// Keys for one login each.
        keys: Vec<PublicKey>,
    },
    /// A [`RestrictSourcesRequest`].
    Source {
        /// Directory that clients see as `/`.
        root: Vec<u8>,
        /// Sources beneath it.
        names: Vec<Vec<u8>>,
        /// Symlinks below the sources are followed.
        follow: bool,
    },
    /// A [`GrowingSource`].
    Growing(GrowingFileBlocks),
    /// A [`DialRequest`].
    Dial {
        /// Number to repeat in the answer.
        number: u32,
        /// Addresses to try.
        addresses: Vec<SocketAddr>,
        /// Bytes to send first.
        token: [u8; TOKEN],
    },
    /// A [`MoreLoginKeysRequest`].
    MoreKeys {
        /// Number to repeat in the answer.
        number: u32,
        /// Keys for one login each.
        keys: Vec<PublicKey>,
    },
}

impl DirectClientMessage {
    /// Decodes a message of the client.
    ///
    /// # Errors
    /// The message is malformed, or its version is not ours.
    pub fn decode(message: &[u8]) -> Result<Self, DirectControlError> {
        match message.first().copied() {
            Some(DirectStartRequest::NUMBER) => {
                version(message)?;
                let begin = DirectStartRequest::decode(message)?;
                Ok(Self::Start {
                    ports: ports(begin.first_port, begin.last_port)?,
                    bear_losses: begin.bear_losses,
                    keys: read_keys(begin.keys)?,
                })
            }
            Some(MoreLoginKeysRequest::NUMBER) => {
                let MoreLoginKeysRequest { number, keys } = MoreLoginKeysRequest::decode(message)?;
                let keys = read_keys(keys)?;
                Ok(Self::MoreKeys { number, keys })
            }
            Some(RestrictSourcesRequest::NUMBER) => {
                version(message)?;
                let source = RestrictSourcesRequest::decode(message)?;
                Ok(Self::Source {
                    root: source.root.to_vec(),
                    names: read_list(source.names, MOST_NAMES)?,
                    follow: source.follow,
                })
            }
            Some(GrowingSource::NUMBER) => {
                let growing = GrowingSource::decode(message)?;
                let (hashes, rest) = growing.hashes.as_chunks::<HASH>();
                if !rest.is_empty() || hashes.len() > MOST_BLOCKS {
                    return Err(DirectControlError::List);
                }
                Ok(Self::Growing(GrowingFileBlocks {
                    size: growing.size,
                    mode: growing.mode,
                    mtime: growing.mtime,
                    block: growing.block,
                    hashes: hashes.to_vec(),
                }))
            }
            Some(DialRequest::NUMBER) => {
                let dial = DialRequest::decode(message)?;
                Ok(Self::Dial {
                    number: dial.number,
                    addresses: parsed(dial.addresses)?,
                    token: dial
                        .token
                        .try_into()
                        .map_err(|_| DirectControlError::List)?,
                })
            }
            number => Err(DirectControlError::Unexpected(number.unwrap_or(0))),
        }
    }
}

/// Message of the server, decoded and checked by the client.
#[derive(Clone, Debug)]
pub enum DirectServerMessage {
    /// A [`DirectListeningReply`].
    Listening {
        /// Port of the listener, not 0.
        port: u16,
        /// The only user name that may log in.
        user: String,
        /// Key that must be the host key of each connection.
        host_key: PublicKey,
        /// Software version of the server, printable.
        software: String,
    },
    /// A [`DirectRefusedReply`] with its reason, not escaped.
    Refused(String),
    /// A [`KeysAccepted`] with its number.
    KeysAccepted(u32),
    /// An [`ServerAddresses`].
    Addresses(Vec<IpAddr>),
    /// A [`DialReply`]: its number and the reason of a failure, not escaped.
    Dialed(u32, Option<String>),
}

impl DirectServerMessage {
    /// Decodes a message of the server.
    ///
    /// # Errors
    /// The message is malformed, or its version is not ours.
    pub fn decode(message: &[u8]) -> Result<Self, DirectControlError> {
        match message.first().copied() {
            Some(DirectListeningReply::NUMBER) => {
                version(message)?;
                let told = DirectListeningReply::decode(message)?;
                let port = u16::try_from(told.port).ok().filter(|port| *port > 0);
                let user = String::from_utf8(told.user.to_vec());
                let software = told.software.iter().take(LONGEST_SOFTWARE);
                let software = software.filter(|b| b.is_ascii_graphic());
                Ok(Self::Listening {
                    port: port.ok_or(DirectControlError::Port(told.port))?,
                    user: user.map_err(|_| {
                        DirectControlError::Unexpected(DirectListeningReply::NUMBER)
                    })?,
                    host_key: PublicKey::from_blob(told.host_key)
                        .map_err(DirectControlError::Key)?,
                    software: software.map(|b| char::from(*b)).collect(),
                })
            }
            Some(DirectRefusedReply::NUMBER) => {
                version(message)?;
                let DirectRefusedReply { why, .. } = DirectRefusedReply::decode(message)?;
                Ok(Self::Refused(String::from_utf8_lossy(why).into_owned()))
            }
            Some(KeysAccepted::NUMBER) => {
                Ok(Self::KeysAccepted(KeysAccepted::decode(message)?.number))
            }
            Some(ServerAddresses::NUMBER) => {
                let ServerAddresses { addresses } = ServerAddresses::decode(message)?;
                Ok(Self::Addresses(parsed(addresses)?))
            }
            Some(DialReply::NUMBER) => {
                let DialReply { number, why } = DialReply::decode(message)?;
                let why = (!why.is_empty()).then(|| String::from_utf8_lossy(why).into_owned());
                Ok(Self::Dialed(number, why))
            }
            number => Err(DirectControlError::Unexpected(number.unwrap_or(0))),
        }
    }
}

/// Checks the version of a message before the fields behind it are decoded.
fn version(message: &[u8]) -> Result<(), DirectControlError> {
    let mut reader = FieldReader::new(message.get(1..).unwrap_or_default());
    match reader.u32()? {
        VERSION => Ok(()),
        theirs => Err(DirectControlError::Version(theirs)),
    }
}

fn ports(first: u32, last: u32) -> Result<Option<(u16, u16)>, DirectControlError> {
    if (first, last) == (0, 0) {
        return Ok(None);
    }
    let port = |port: u32| u16::try_from(port).ok().filter(|port| *port > 0);
    let range = port(first).zip(port(last)).filter(|(a, b)| a <= b);
    range.map(Some).ok_or(DirectControlError::Port(first))
}

#[cfg(test)]
mod tests;
