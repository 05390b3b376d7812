//! Frames, as bytes.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::PairError;

/// Bytes of a connection that one frame carries at most, inflated: a block of zstd, above which it
/// finds little more.
pub const MOST_DATA: usize = 128 << 10;
/// What may be sent before the other half has said how much it takes.
pub const FIRST_CREDIT: u64 = 64 << 10;
/// Bytes of what names a session.
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

/// What is said on a leg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The first of the half that connects, and of it alone: the session that the leg is of, and
    /// whether that exists already.
    Hello {
        /// The name of the session, which nobody can guess.
        token: [u8; TOKEN],
        /// It exists already.
        joins: bool,
    },
    /// Bytes of the connection.
    Data(Piece),
    /// The bytes end in front of this offset. It counts for one byte.
    End(u64),
    /// All in front of `received` is there, and nothing may be sent from `limit` on.
    Ack {
        /// The first offset that is missing.
        received: u64,
        /// The first offset that is not to be sent.
        limit: u64,
    },
    /// There is more to send than this limit lets.
    Blocked(u64),
    /// There is more to send than all legs take.
    Full,
    /// Nothing more comes on this leg.
    Bye,
    /// The session is over, and what came is not all.
    Abort(Why),
}

/// Why a session is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// What is behind the other half has broken its connection.
    Broken,
    /// There is no such session, or no more.
    Unknown,
    /// Nobody answers where the connection should go.
    Unreachable,
    /// The protocol was broken.
    Protocol,
}

/// Bytes of a connection, with their place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Of the first.
    pub offset: u64,
    /// How many there are, inflated: 1 to [`MOST_DATA`].
    pub len: u32,
    /// They are deflated (one frame of zstd).
    pub packed: bool,
    /// As they are sent.
    pub bytes: Bytes,
}

impl Piece {
    /// The first offset behind it.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.len))
    }
}

impl Why {
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

impl Frame {
    /// Its bytes.
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

/// Makes frames of what comes on a leg. It holds one at most, and what was pushed behind it.
#[derive(Debug, Default)]
pub struct Parser {
    held: BytesMut,
}

impl Parser {
    /// Takes what came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The next frame, once it is whole.
    ///
    /// # Errors
    /// It is none.
    pub fn poll(&mut self) -> Result<Option<Frame>, PairError> {
        let Some(kind) = self.held.first().copied() else {
            // Memory of a leg on which nothing comes.
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
                Frame::Hello { token, joins }
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
                return Ok(Some(Frame::Data(Piece {
                    offset,
                    len,
                    packed: kind == ZDATA,
                    bytes: self.held.split_to(sent as usize).freeze(),
                })));
            }
            END => Frame::End(fields.get_u64()),
            ACK => Frame::Ack {
                received: fields.get_u64(),
                limit: fields.get_u64(),
            },
            BLOCKED => Frame::Blocked(fields.get_u64()),
            FULL => Frame::Full,
            BYE => Frame::Bye,
            _ => Frame::Abort(Why::of(fields.get_u8()).ok_or(PairError::BadFrame)?),
        };
        self.held.advance(head);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Frame> {
        let piece = |packed| {
            Frame::Data(Piece {
                offset: 7,
                len: 5,
                packed,
                bytes: Bytes::from_static(b"12345"),
            })
        };
        vec![
            Frame::Hello {
                token: [9; TOKEN],
                joins: true,
            },
            piece(false),
            piece(true),
            Frame::End(u64::MAX),
            Frame::Ack {
                received: 1,
                limit: 2,
            },
            Frame::Blocked(3),
            Frame::Full,
            Frame::Bye,
            Frame::Abort(Why::Unreachable),
        ]
    }

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let bytes: Vec<u8> = all().iter().flat_map(|f| f.encode().to_vec()).collect();
        for cut in [1, 2, 3, 7, 64] {
            let mut parser = Parser::default();
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
            let mut parser = Parser::default();
            parser.push(&bytes);
            assert!(parser.poll().is_err(), "{bytes:?}");
        }
    }
}
