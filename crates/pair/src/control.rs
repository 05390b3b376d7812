//! Control protocol between a relay and the peer relay that it has started over ssh, on that
//! process's standard streams; see docs/PROTOCOL.md, "A relay that is started over ssh".
//!
//! Stripes that cannot use a TCP connection of their own are carried here too, each under a number.
//! They have no flow control of their own: both relays always read what comes for a stripe.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::PairError;

/// Version of the control protocol.
pub const CONTROL: u32 = 1;
/// Marker line that the started relay prints first, followed by the version and a line feed.
const MARKER: &[u8] = b"\nlonghaul-half ";
/// Maximum output before the marker in bytes, such as a motd or output of shell startup files.
const MOST_NOISE: usize = 64 << 10;
/// Maximum bytes of a stripe in one message; short, so that stripes take turns on a slow path.
pub const MOST_CARRIED: usize = 16 << 10;
/// Maximum length of a message in bytes.
const LONGEST: usize = MOST_CARRIED + 16;
/// Maximum length of a text in a message in bytes.
const LONGEST_TEXT: usize = 1024;
/// Maximum number of keys in a message.
const MOST_KEYS: usize = 8;

/// Message of the control protocol, in either direction: the relay that starts the other configures
/// it and opens stripes, the started relay reports its key and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelayControlMessage {
    /// The started relay reports itself.
    Hello {
        /// Version of its software.
        software: String,
        /// Fingerprint of its key.
        key: String,
    },
    /// Configuration for the started relay; sent once.
    Configure(StartedRelayConfig),
    /// The started relay accepts stripes at this port of the address that the login went to; 0 if
    /// stripes can only be carried here.
    Listening(u16),
    /// The started relay cannot work; the reason.
    Failed(String),
    /// Keepalive. The started relay replies with the same message.
    Keepalive,
    /// Opens a stripe.
    OpenStripe(u32),
    /// Bytes of a stripe: 1 to [`MOST_CARRIED`].
    StripeData(u32, Bytes),
    /// A stripe is closed, in both directions.
    StripeClosed(u32),
}

/// Settings that the starting relay sends once to the relay that it has started over ssh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartedRelayConfig {
    /// Fingerprints of the keys from which it accepts stripes.
    pub allow: Vec<String>,
    /// Target, as an operand of `longhaul relay`.
    pub target: String,
    /// Fingerprint of the target if that is a peer relay; empty otherwise.
    pub target_key: String,
    /// Maximum buffer for each direction of a connection, in bytes.
    pub most: u64,
    /// Number of stripes to the target if that is a peer relay; 0 chooses it by measurement.
    pub stripes: u8,
    /// Permits zstd compression of data that waits for a full path.
    pub zstd: bool,
    /// Range of ports, inclusive, of which one is used to accept stripes; any port if not set.
    pub ports: Option<(u16, u16)>,
}

const HERE: u8 = 1;
const BEGIN: u8 = 2;
const LISTENS: u8 = 3;
const FAILED: u8 = 4;
const ALIVE: u8 = 5;
const OPEN: u8 = 6;
const CARRIED: u8 = 7;
const GONE: u8 = 8;

/// Returns the marker line that a started relay prints before anything else.
pub fn marker() -> Vec<u8> {
    [MARKER, CONTROL.to_string().as_bytes(), b"\n"].concat()
}

impl RelayControlMessage {
    /// Encodes the message. Texts that are too long are truncated.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(match self {
            Self::StripeData(_, bytes) => bytes.len() + 9,
            _ => 64,
        });
        // The length is written once it is known.
        out.put_slice(&[0; 5]);
        let kind = match self {
            Self::Hello { software, key } => {
                put_text(&mut out, software);
                put_text(&mut out, key);
                HERE
            }
            Self::Configure(begin) => {
                let keys = begin.allow.len().min(MOST_KEYS);
                out.put_u8(keys as u8);
                for key in begin.allow.iter().take(keys) {
                    put_text(&mut out, key);
                }
                put_text(&mut out, &begin.target);
                put_text(&mut out, &begin.target_key);
                out.put_u64(begin.most);
                out.put_u8(begin.stripes);
                out.put_u8(u8::from(begin.zstd));
                // The field is omitted if unset: older versions do not know it.
                if let Some((first, last)) = begin.ports {
                    out.put_u16(first);
                    out.put_u16(last);
                }
                BEGIN
            }
            Self::Listening(port) => {
                out.put_u16(*port);
                LISTENS
            }
            Self::Failed(why) => {
                put_text(&mut out, why);
                FAILED
            }
            Self::Keepalive => ALIVE,
            Self::OpenStripe(leg) => {
                out.put_u32(*leg);
                OPEN
            }
            Self::StripeData(leg, bytes) => {
                out.put_u32(*leg);
                out.put_slice(bytes);
                CARRIED
            }
            Self::StripeClosed(leg) => {
                out.put_u32(*leg);
                GONE
            }
        };
        let len = (out.len() - 5) as u32;
        if let Some(head) = out.get_mut(..5) {
            let (first, length) = head.split_at_mut(1);
            first.copy_from_slice(&[kind]);
            length.copy_from_slice(&len.to_be_bytes());
        }
        out.freeze()
    }

    fn decode(kind: u8, mut fields: Bytes) -> Option<Self> {
        let fields = &mut fields;
        let said = match kind {
            HERE => Self::Hello {
                software: text(fields)?,
                key: text(fields)?,
            },
            BEGIN => {
                let keys = usize::from(fields.try_get_u8().ok()?);
                if keys > MOST_KEYS {
                    return None;
                }
                Self::Configure(StartedRelayConfig {
                    allow: (0..keys).map(|_| text(fields)).collect::<Option<_>>()?,
                    target: text(fields)?,
                    target_key: text(fields)?,
                    most: fields.try_get_u64().ok()?,
                    stripes: fields.try_get_u8().ok()?,
                    zstd: match fields.try_get_u8().ok()? {
                        0 => false,
                        1 => true,
                        _ => return None,
                    },
                    ports: match fields.is_empty() {
                        true => None,
                        false => {
                            let ports = (fields.try_get_u16().ok()?, fields.try_get_u16().ok()?);
                            Some(Some(ports).filter(|(a, b)| 0 < *a && a <= b)?)
                        }
                    },
                })
            }
            LISTENS => Self::Listening(fields.try_get_u16().ok()?),
            FAILED => Self::Failed(text(fields)?),
            ALIVE => Self::Keepalive,
            OPEN => Self::OpenStripe(fields.try_get_u32().ok()?),
            CARRIED => {
                let leg = fields.try_get_u32().ok()?;
                let bytes = std::mem::take(fields);
                if bytes.is_empty() || bytes.len() > MOST_CARRIED {
                    return None;
                }
                Self::StripeData(leg, bytes)
            }
            GONE => Self::StripeClosed(fields.try_get_u32().ok()?),
            _ => return None,
        };
        fields.is_empty().then_some(said)
    }
}

fn put_text(out: &mut BytesMut, text: &str) {
    let mut len = text.len().min(LONGEST_TEXT);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    out.put_u16(len as u16);
    out.put_slice(text.get(..len).unwrap_or_default().as_bytes());
}

fn text(fields: &mut Bytes) -> Option<String> {
    let len = usize::from(fields.try_get_u16().ok()?);
    if len > LONGEST_TEXT || len > fields.len() {
        return None;
    }
    String::from_utf8(fields.split_to(len).to_vec()).ok()
}

/// Reason why no further message can be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlMessageError {
    /// No marker was found: the other side printed something else.
    NoMarker,
    /// The started relay speaks another version of the control protocol.
    Version(u32),
    /// The message is malformed.
    Invalid(PairError),
}

/// Decodes messages from a stream. Holds at most one partial message, and what was pushed after it.
#[derive(Debug)]
pub struct RelayControlDecoder {
    held: BytesMut,
    /// Bytes of noise so far; `None` if the marker has come, or none is expected.
    noise: Option<usize>,
}

impl RelayControlDecoder {
    /// Creates the decoder of a started relay, whose input has no noise before the messages.
    pub fn of_starter() -> Self {
        Self {
            held: BytesMut::new(),
            noise: None,
        }
    }

    /// Creates the decoder of the relay that has started the other one; skips output before the
    /// marker.
    pub fn of_half() -> Self {
        Self {
            // The marker is a line of its own, and may be the first line.
            held: BytesMut::from(&b"\n"[..]),
            noise: Some(0),
        }
    }

    /// Takes received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Returns the next complete message.
    ///
    /// # Errors
    /// Returns an error if the marker does not come, or if a message is malformed.
    pub fn poll(&mut self) -> Result<Option<RelayControlMessage>, ControlMessageError> {
        if self.noise.is_some() && !self.find_marker()? {
            return Ok(None);
        }
        let wrong = ControlMessageError::Invalid(PairError::BadFrame);
        let Some(mut head) = self.held.get(..5) else {
            return Ok(None);
        };
        let (kind, len) = (head.get_u8(), head.get_u32() as usize);
        if len > LONGEST {
            return Err(wrong);
        }
        if self.held.len() < 5 + len {
            return Ok(None);
        }
        self.held.advance(5);
        let fields = self.held.split_to(len).freeze();
        RelayControlMessage::decode(kind, fields)
            .map(Some)
            .ok_or(wrong)
    }

    /// Skips output in front of the marker; true once the marker was found.
    fn find_marker(&mut self) -> Result<bool, ControlMessageError> {
        let mut windows = self.held.windows(MARKER.len());
        let Some(at) = windows.position(|window| window == MARKER) else {
            // The end of the buffer may be the beginning of a marker.
            let noise = self.held.len().saturating_sub(MARKER.len() - 1);
            self.held.advance(noise);
            let before = self.noise.unwrap_or_default() + noise;
            self.noise = Some(before);
            return match before > MOST_NOISE {
                true => Err(ControlMessageError::NoMarker),
                false => Ok(false),
            };
        };
        self.held.advance(at);
        let rest = self.held.get(MARKER.len()..).unwrap_or_default();
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            // A version number has at most ten digits.
            return match rest.len() > 10 {
                true => Err(ControlMessageError::NoMarker),
                false => Ok(false),
            };
        };
        let number = rest.get(..end).unwrap_or_default();
        let number = std::str::from_utf8(number).ok();
        let version = number.and_then(|number| number.parse().ok());
        match version {
            Some(CONTROL) => {
                self.held.advance(MARKER.len() + end + 1);
                self.noise = None;
                Ok(true)
            }
            Some(other) => Err(ControlMessageError::Version(other)),
            None => Err(ControlMessageError::NoMarker),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<RelayControlMessage> {
        vec![
            RelayControlMessage::Hello {
                software: "0.1.0".to_owned(),
                key: "SHA256:x".to_owned(),
            },
            RelayControlMessage::Configure(StartedRelayConfig {
                allow: vec!["SHA256:a".to_owned(), "SHA256:b".to_owned()],
                target: "localhost:22".to_owned(),
                target_key: String::new(),
                most: 1 << 40,
                stripes: 8,
                zstd: true,
                ports: None,
            }),
            RelayControlMessage::Configure(StartedRelayConfig {
                ports: Some((4000, 4010)),
                ..StartedRelayConfig::default()
            }),
            RelayControlMessage::Listening(65_535),
            RelayControlMessage::Failed("why".to_owned()),
            RelayControlMessage::Keepalive,
            RelayControlMessage::OpenStripe(7),
            RelayControlMessage::StripeData(7, Bytes::from_static(&[1; MOST_CARRIED])),
            RelayControlMessage::StripeClosed(u32::MAX),
        ]
    }

    #[test]
    fn messages_come_out_as_they_went_in_behind_any_noise_however_they_are_cut() {
        let said: Vec<u8> = all().iter().flat_map(|c| c.encode().to_vec()).collect();
        for noise in ["", "Welcome!\n", "longhaul-half\nlonghaul-halfx", "\n\n"] {
            let bytes = [noise.as_bytes(), &marker(), &said].concat();
            for cut in [1, 2, 3, 64, 100_000] {
                let mut listener = RelayControlDecoder::of_half();
                let mut found = Vec::new();
                for part in bytes.chunks(cut) {
                    listener.push(part);
                    while let Some(control) = listener.poll().unwrap() {
                        found.push(control);
                    }
                }
                assert_eq!(found, all(), "{noise:?} {cut}");
            }
        }
    }

    #[test]
    fn what_is_no_half_of_ours_is_told_from_one() {
        let poll = |bytes: &[u8]| {
            let mut listener = RelayControlDecoder::of_half();
            listener.push(bytes);
            listener.poll()
        };
        assert_eq!(poll(b"motd\n"), Ok(None));
        assert_eq!(poll(&[b'x'; 70_000]), Err(ControlMessageError::NoMarker));
        assert_eq!(
            poll(b"longhaul-half 2\n"),
            Err(ControlMessageError::Version(2))
        );
        assert_eq!(poll(b"longhaul-half 1"), Ok(None));
        assert_eq!(
            poll(b"longhaul-half xxxxxxxxxxx"),
            Err(ControlMessageError::NoMarker)
        );
        let long = [&marker()[..], &[CARRIED, 0, 1, 0, 0]].concat();
        assert!(matches!(poll(&long), Err(ControlMessageError::Invalid(_))));
        let empty = [&marker()[..], &[CARRIED, 0, 0, 0, 4, 0, 0, 0, 1]].concat();
        assert!(matches!(poll(&empty), Err(ControlMessageError::Invalid(_))));
    }

    #[test]
    fn a_text_is_cut_between_letters() {
        let why = "\u{e4}".repeat(LONGEST_TEXT);
        let mut listener = RelayControlDecoder::of_starter();
        listener.push(&RelayControlMessage::Failed(why).encode());
        let Ok(Some(RelayControlMessage::Failed(why))) = listener.poll() else {
            panic!("it is whole")
        };
        assert_eq!(why.len(), LONGEST_TEXT);
    }
}
