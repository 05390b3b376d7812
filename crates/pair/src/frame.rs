//! Frames of the pair protocol and their encoding.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::PairError;

/// Maximum payload of a frame before compression, in bytes: one block of zstd, which gains little
/// from larger inputs.
pub const MOST_DATA: usize = 128 << 10;
/// Bytes that may be sent before the first limit from the peer relay has come.
pub const FIRST_CREDIT: u64 = 64 << 10;
/// Length of a session token in bytes.
pub const TOKEN: usize = 16;

const HELLO: u8 = 1;
const DATA: u8 = 2;
const ZDATA: u8 = 3;
const END: u8 = 4;
const ACK: u8 = 5;
const BLOCKED: u8 = 6;
const FULL: u8 = 7;
const BYE: u8 = 8;
const ABORT: u8 = 9;

/// Unit of the pair protocol, written whole to one stripe. Offsets count payload bytes of one
/// direction from the start of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StripeFrame {
    /// First frame of the connecting relay, sent by that relay only: the session of the stripe, and
    /// if it exists already.
    Hello {
        /// Random name of the session, which cannot be guessed.
        token: [u8; TOKEN],
        /// The stripe joins an existing session.
        joins: bool,
    },
    /// Payload of the connection.
    Data(DataFrame),
    /// The payload ends before this offset. The end itself counts as one byte.
    End(u64),
    /// All bytes before `received` have arrived, and none may be sent from `limit` on.
    Ack {
        /// First missing offset.
        received: u64,
        /// First offset that must not be sent yet.
        limit: u64,
    },
    /// More data is waiting than this limit allows.
    Blocked(u64),
    /// More data is waiting than all stripes accept.
    Full,
    /// Nothing more is sent on this stripe.
    Bye,
    /// The session ends before all data has been transferred.
    Abort(AbortReason),
}

/// Reason that a relay sends to its peer with the end of a session; the peer closes its leg with
/// the matching error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortReason {
    /// The connection behind the peer relay has failed.
    Broken,
    /// The session does not exist, or has ended.
    Unknown,
    /// The target of the connection cannot be reached.
    Unreachable,
    /// The peer relay violated the protocol.
    Protocol,
}

/// Payload of a connection with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFrame {
    /// Offset of the first byte in the connection.
    pub offset: u64,
    /// Length before compression: 1 to [`MOST_DATA`] bytes.
    pub len: u32,
    /// The payload is compressed (one frame of zstd).
    pub packed: bool,
    /// Payload as it is sent.
    pub bytes: Bytes,
}

impl DataFrame {
    /// Returns the first offset behind the payload.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.len))
    }
}

impl AbortReason {
    fn code(self) -> u8 {
        match self {
            Self::Broken => 1,
            Self::Unknown => 2,
            Self::Unreachable => 3,
            Self::Protocol => 4,
        }
    }

    fn of(code: u8) -> Option<Self> {
        let all = [
            Self::Broken,
            Self::Unknown,
            Self::Unreachable,
            Self::Protocol,
        ];
        all.into_iter().find(|why| why.code() == code)
    }
}

impl StripeFrame {
    /// Encodes the frame.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(match self {
            Self::Data(piece) => piece.bytes.len() + 20,
            _ => 20,
        });
        match self {
            Self::Hello { token, joins } => {
                out.push(HELLO);
                out.extend_from_slice(token);
                out.push(u8::from(*joins));
            }
            Self::Data(piece) => {
                out.push(if piece.packed { ZDATA } else { DATA });
                out.extend_from_slice(&piece.offset.to_be_bytes());
                out.extend_from_slice(&piece.len.to_be_bytes());
                if piece.packed {
                    out.extend_from_slice(&(piece.bytes.len() as u32).to_be_bytes());
                }
                out.extend_from_slice(&piece.bytes);
            }
            Self::End(offset) => number(&mut out, END, &[*offset]),
            Self::Ack { received, limit } => number(&mut out, ACK, &[*received, *limit]),
            Self::Blocked(limit) => number(&mut out, BLOCKED, &[*limit]),
            Self::Full => out.push(FULL),
            Self::Bye => out.push(BYE),
            Self::Abort(why) => out.extend_from_slice(&[ABORT, why.code()]),
        }
        out.into()
    }
}

fn number(out: &mut Vec<u8>, kind: u8, numbers: &[u64]) {
    out.push(kind);
    for number in numbers {
        out.extend_from_slice(&number.to_be_bytes());
    }
}

/// Decodes frames from a stripe. Holds at most one partial frame, and what was pushed after it.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    held: BytesMut,
}

impl FrameDecoder {
    /// Takes received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Returns the next complete frame.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a frame.
    pub fn poll(&mut self) -> Result<Option<StripeFrame>, PairError> {
        let Some(kind) = self.held.first().copied() else {
            // An idle stripe keeps no memory.
            self.held = BytesMut::new();
            return Ok(None);
        };
        let head = match kind {
            HELLO => 1 + TOKEN + 1,
            DATA => 1 + 8 + 4,
            ZDATA => 1 + 8 + 4 + 4,
            END | BLOCKED => 1 + 8,
            ACK => 1 + 8 + 8,
            FULL | BYE => 1,
            ABORT => 2,
            kind => return Err(PairError::UnknownFrame(kind)),
        };
        let Some(mut fields) = self.held.get(1..head) else {
            return Ok(None);
        };
        let frame = match kind {
            HELLO => {
                let mut token = [0; TOKEN];
                fields.copy_to_slice(&mut token);
                let joins = match fields.get_u8() {
                    0 => false,
                    1 => true,
                    _ => return Err(PairError::BadFrame),
                };
                StripeFrame::Hello { token, joins }
            }
            DATA | ZDATA => {
                let (offset, len) = (fields.get_u64(), fields.get_u32());
                let sent = match kind {
                    ZDATA => fields.get_u32(),
                    _ => len,
                };
                let possible = (1..=MOST_DATA as u32).contains(&len)
                    && (1..=len).contains(&sent)
                    && offset.checked_add(MOST_DATA as u64 + 1).is_some();
                if !possible {
                    return Err(PairError::BadFrame);
                }
                let whole = head + sent as usize;
                if self.held.len() < whole {
                    self.held.reserve(whole - self.held.len());
                    return Ok(None);
                }
                self.held.advance(head);
                return Ok(Some(StripeFrame::Data(DataFrame {
                    offset,
                    len,
                    packed: kind == ZDATA,
                    bytes: self.held.split_to(sent as usize).freeze(),
                })));
            }
            END => StripeFrame::End(fields.get_u64()),
            ACK => StripeFrame::Ack {
                received: fields.get_u64(),
                limit: fields.get_u64(),
            },
            BLOCKED => StripeFrame::Blocked(fields.get_u64()),
            FULL => StripeFrame::Full,
            BYE => StripeFrame::Bye,
            _ => StripeFrame::Abort(AbortReason::of(fields.get_u8()).ok_or(PairError::BadFrame)?),
        };
        self.held.advance(head);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<StripeFrame> {
        let piece = |packed| {
            StripeFrame::Data(DataFrame {
                offset: 7,
                len: 5,
                packed,
                bytes: Bytes::from_static(b"12345"),
            })
        };
        vec![
            StripeFrame::Hello {
                token: [9; TOKEN],
                joins: true,
            },
            piece(false),
            piece(true),
            StripeFrame::End(u64::MAX),
            StripeFrame::Ack {
                received: 1,
                limit: 2,
            },
            StripeFrame::Blocked(3),
            StripeFrame::Full,
            StripeFrame::Bye,
            StripeFrame::Abort(AbortReason::Unreachable),
        ]
    }

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let bytes: Vec<u8> = all().iter().flat_map(|f| f.encode().to_vec()).collect();
        for cut in [1, 2, 3, 7, 64] {
            let mut parser = FrameDecoder::default();
            let mut found = Vec::new();
            for part in bytes.chunks(cut) {
                parser.push(part);
                while let Some(frame) = parser.poll().unwrap() {
                    found.push(frame);
                }
            }
            assert_eq!(found, all(), "{cut}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_before_it_is_waited_for() {
        let long = (MOST_DATA as u32 + 1).to_be_bytes();
        let data = |offset: u64, len: [u8; 4]| [&[DATA][..], &offset.to_be_bytes(), &len].concat();
        for bytes in [
            vec![0],
            vec![200],
            vec![ABORT, 0],
            data(0, long),
            data(0, [0; 4]),
            data(u64::MAX, 1_u32.to_be_bytes()),
        ] {
            let mut parser = FrameDecoder::default();
            parser.push(&bytes);
            assert!(parser.poll().is_err(), "{bytes:?}");
        }
    }
}
