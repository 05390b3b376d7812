//! Messages between the machine that controls a copy between two hosts and the receiver.
//!
//! Each message is a length (four bytes, big-endian), a kind (one byte) and JSON, or bytes of the
//! control protocol of `longhaul serve --once`. The kinds are no SFTP requests, so that an SFTP
//! server that runs instead of longhaul (ForceCommand) ends at the first message. The receiver's
//! messages follow a marker line, which ends the output of the login.

use std::io::{self, Read, Write};
use std::net::IpAddr;

use schedule::CompressionMode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use ssh::direct_control::TOKEN;

use super::blocks::FileBlockHashes;
use crate::connect::{AlgorithmPreferences, SourceConnectionInfo};
use crate::copy::CopyOptions;
use crate::report::{CopyEvent, CopySummary, EscapedName, ProgressValues};

/// Version of this protocol, which must be the same at both ends.
pub(super) const VERSION: u32 = 1;
/// Marker line in front of the receiver's messages.
const MARKER: &[u8] = b"\nlonghaul-receives\n";
/// Maximum bytes of login output before the marker.
pub const MOST_NOISE: usize = 64 << 10;
/// Maximum length of a message in bytes.
const LONGEST: usize = 4 << 20;
/// Maximum length in bytes of a receiver's message about connections.
const LONGEST_CONTROL: usize = 64 << 10;
/// Maximum length in bytes of a receiver's event or progress: two names of 16 KiB below the operands,
/// in JSON, and a text.
const LONGEST_REPORT: usize = 256 << 10;

/// Everything that the receiver needs to know about a copy.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiverJob {
    /// Version of this protocol.
    pub version: u32,
    /// The source's host as the user wrote it.
    pub host: String,
    /// The host with all that distinguishes the sources from others, for the journal.
    pub identity: String,
    /// Source paths beneath the served root.
    pub sources: Vec<EscapedName>,
    /// Target path on the receiving host.
    pub target: EscapedName,
    /// Options of the copy.
    pub options: CopyOptions,
    /// Rate limit in bytes per second.
    pub limit: Option<u64>,
    /// Fixed number of connections.
    pub connections: Option<u32>,
    /// Fixed number of channels on each connection.
    pub channels: Option<u32>,
    /// Largest number of requests in flight on a channel.
    pub requests: Option<u64>,
    /// Largest READ in bytes.
    pub buffer: Option<u32>,
    /// Use of compression.
    pub pack: CompressionMode,
    /// The allowed algorithms.
    pub secured: AlgorithmPreferences,
    /// Checksums that the copy of the only source must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<FileBlockHashes>,
    /// Addresses of the source's host.
    pub source: Vec<IpAddr>,
    /// Addresses of the receiving host.
    pub here: Vec<IpAddr>,
    /// Bytes with which a connection of the source to the receiving host begins.
    pub token: [u8; TOKEN],
}

impl ReceiverJob {
    /// The version that [`ReceiverJob::version`] must have.
    pub const VERSION: u32 = VERSION;
}

/// Message to the receiver.
#[derive(Debug)]
pub(super) enum ReceiverCommand {
    Job(Box<ReceiverJob>),
    /// Output of the source.
    FromSource(Vec<u8>),
    /// The source has ended, for this reason.
    SourceEnded(String),
    Cancel,
    /// Instead of the job: what an interrupted run of it has left is removed.
    Discard(Box<ReceiverJob>),
}

/// Message that the receiving host of a copy between two hosts sends.
#[derive(Debug)]
pub(super) enum ReceiverMessage {
    /// Input for the source.
    ToSource(Vec<u8>),
    /// The first connection was made.
    Route(SourceConnectionInfo),
    /// No connection can be made, or the job is invalid; nothing was changed.
    NoRoute(String),
    Progress(ProgressValues),
    Event(Box<CopyEvent>),
    Done(Box<CopySummary>),
}

/// Reason why a message cannot be read, one clause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InvalidFrameError(pub(super) String);

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    // These types have no maps with other keys than strings and no failing implementations.
    serde_json::to_vec(value).unwrap_or_default()
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, InvalidFrameError> {
    serde_json::from_slice(bytes).map_err(|e| InvalidFrameError(e.to_string()))
}

impl ReceiverCommand {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Job(job) => framed(33, &json(job)),
            Self::FromSource(bytes) => framed(34, bytes),
            Self::SourceEnded(why) => framed(35, &json(why)),
            Self::Cancel => framed(36, b""),
            Self::Discard(job) => framed(37, &json(job)),
        }
    }

    pub(super) fn decode((kind, body): (u8, Vec<u8>)) -> Result<Self, InvalidFrameError> {
        match kind {
            33 => Ok(Self::Job(Box::new(parse(&body)?))),
            34 => Ok(Self::FromSource(body)),
            35 => Ok(Self::SourceEnded(parse(&body)?)),
            36 => Ok(Self::Cancel),
            37 => Ok(Self::Discard(Box::new(parse(&body)?))),
            _ => Err(InvalidFrameError(format!(
                "unknown message {kind}: use the same version of longhaul on all hosts"
            ))),
        }
    }
}

impl ReceiverMessage {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::ToSource(bytes) => framed(49, bytes),
            Self::Route(way) => framed(50, &json(way)),
            Self::NoRoute(why) => framed(51, &json(why)),
            Self::Progress(values) => framed(52, &json(values)),
            Self::Event(event) => framed(53, &json(event)),
            Self::Done(summary) => framed(54, &json(summary)),
        }
    }

    pub(super) fn decode((kind, body): (u8, Vec<u8>)) -> Result<Self, InvalidFrameError> {
        match kind {
            49 => Ok(Self::ToSource(body)),
            50 => Ok(Self::Route(parse(&body)?)),
            51 => Ok(Self::NoRoute(parse(&body)?)),
            52 => Ok(Self::Progress(parse(&body)?)),
            53 => Ok(Self::Event(Box::new(parse(&body)?))),
            54 => Ok(Self::Done(Box::new(parse(&body)?))),
            _ => Err(InvalidFrameError(format!(
                "unknown message {kind}: use the same version of longhaul on all hosts"
            ))),
        }
    }
}

fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len() + 1).unwrap_or(u32::MAX);
    let mut out = len.to_be_bytes().to_vec();
    out.push(kind);
    out.extend_from_slice(body);
    out
}

/// Writes the marker line.
pub(super) fn mark(out: &mut impl Write) -> io::Result<()> {
    out.write_all(MARKER)?;
    out.flush()
}

/// Reads the output of a login up to the marker line; the bytes before it if there is none.
pub(super) fn skip_login(input: &mut impl Read) -> Result<(), Vec<u8>> {
    // The marker starts with a newline, which lets it be the first line.
    let mut read = b"\n".to_vec();
    let mut byte = [0];
    while read.len() < MOST_NOISE {
        match input.read(&mut byte) {
            Ok(0) => break,
            Ok(_) => read.extend_from_slice(&byte),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        if read.ends_with(MARKER) {
            return Ok(());
        }
    }
    Err(read)
}

/// Reads the next message; `None` at the end.
pub(super) fn next(input: &mut impl Read) -> Result<Option<(u8, Vec<u8>)>, InvalidFrameError> {
    next_within(input, |_| LONGEST)
}

/// Reads the next message of a receiver, which may be hostile; `None` at the end.
pub(super) fn next_of_receiver(
    input: &mut impl Read,
) -> Result<Option<(u8, Vec<u8>)>, InvalidFrameError> {
    next_within(input, |kind| match kind {
        49..=51 => LONGEST_CONTROL,
        54 => LONGEST,
        _ => LONGEST_REPORT,
    })
}

fn next_within(
    input: &mut impl Read,
    longest: impl Fn(u8) -> usize,
) -> Result<Option<(u8, Vec<u8>)>, InvalidFrameError> {
    let mut len = [0; 4];
    if input.read_exact(&mut len).is_err() {
        return Ok(None);
    }
    let len = u32::from_be_bytes(len) as usize;
    let too_long = || {
        InvalidFrameError(format!(
            "a message with the invalid length of {len} bytes: the shell's start-up files may have \
             printed it; make them print nothing"
        ))
    };
    let body = len.checked_sub(1).filter(|len| *len <= LONGEST);
    let body = body.ok_or_else(too_long)?;
    let mut kind = [0];
    if input.read_exact(&mut kind).is_err() {
        return Ok(None);
    }
    if body > longest(kind[0]) {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    let read = input.take(body as u64).read_to_end(&mut bytes);
    Ok(read
        .is_ok_and(|read| read == body)
        .then_some((kind[0], bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written_behind_what_a_login_says() {
        let event = CopyEvent::Failed {
            id: None,
            path: EscapedName(vec![b'x', 0xff]),
            reason: "no space".to_owned(),
        };
        let summary = CopySummary {
            files: 7,
            outcome: crate::report::CopyOutcome::NoConnection("gone".to_owned()),
            ..CopySummary::default()
        };
        let mut bytes = b"Welcome!".to_vec();
        mark(&mut bytes).unwrap();
        bytes.extend(ReceiverMessage::Event(Box::new(event.clone())).to_bytes());
        bytes.extend(ReceiverMessage::Done(Box::new(summary.clone())).to_bytes());
        let mut input = bytes.as_slice();
        skip_login(&mut input).unwrap();
        let mut message = || ReceiverMessage::decode(next(&mut input).unwrap().unwrap()).unwrap();
        assert!(matches!(message(), ReceiverMessage::Event(read) if *read == event));
        assert!(matches!(message(), ReceiverMessage::Done(read) if *read == summary));
        assert_eq!(next(&mut input).unwrap(), None);
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_it_is_read() {
        for len in [0_u32, u32::MAX, LONGEST as u32 + 2] {
            assert!(next(&mut len.to_be_bytes().as_slice()).is_err(), "{len}");
        }
        // A message that ends early is the end.
        let cut = [0, 0, 0, 9, 1, 2];
        assert_eq!(next(&mut cut.as_slice()).unwrap(), None);
        let noise = vec![b'x'; MOST_NOISE + 1];
        assert!(skip_login(&mut noise.as_slice()).is_err());
    }

    /// Each of the messages that wait for the other end had 4 MiB.
    #[test]
    fn a_receiver_sends_short_reports_only() {
        let report = |kind, len| framed(kind, &vec![b' '; len]);
        let read = |bytes: Vec<u8>| next_of_receiver(&mut bytes.as_slice());
        assert!(read(report(53, LONGEST_REPORT)).is_ok());
        for kind in [49, 50, 51, 52, 53] {
            assert!(read(report(kind, LONGEST_REPORT + 1)).is_err(), "{kind}");
        }
    }

    #[test]
    fn an_option_that_the_receiver_does_not_know_is_an_error() {
        let options = serde_json::to_string(&CopyOptions::default()).unwrap();
        assert!(serde_json::from_str::<CopyOptions>(&options).is_ok());
        let newer = options.replacen('{', "{\"from_the_future\":true,", 1);
        assert!(serde_json::from_str::<CopyOptions>(&newer).is_err());
    }
}
