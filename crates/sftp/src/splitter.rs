use bytes::{Buf, Bytes};

use crate::Error;

/// Cuts a stream of segments into messages, allocating for one message at a time.
///
/// A message that lies in one segment is a slice of it. Others are gathered, except the data of
/// DATA, which a splitter made with [`Splitter::streaming_data`] hands on as it comes: an answer
/// of 255 KiB spans eight channel packets, and copying them together would be one pass over
/// memory for nothing.
#[derive(Debug)]
pub struct Splitter {
    bound: u32,
    streaming: bool,
    partial: Vec<u8>,
    state: State,
}

#[derive(Debug)]
enum State {
    Header,
    Message { end: usize },
    Data { id: u32, total: u32, at: u32 },
}

/// What a [`Splitter`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A whole message without its length.
    Message(Bytes),
    /// Some of the file data of a DATA message.
    Data {
        /// Of which request.
        id: u32,
        /// Bytes of file data in the whole message.
        total: u32,
        /// Where in the message's data these stand.
        at: u32,
        /// The data.
        bytes: Bytes,
    },
}

const DATA: u8 = 103;
/// Length, number, request id, length of the data.
const DATA_HEADER: usize = 13;

impl Splitter {
    /// Gathers every message; one announcing more than `bound` bytes is an error.
    pub fn new(bound: u32) -> Self {
        Self {
            bound,
            streaming: false,
            partial: Vec::new(),
            state: State::Header,
        }
    }

    /// Hands the data of DATA on as it comes.
    pub fn streaming_data(bound: u32) -> Self {
        Self {
            streaming: true,
            ..Self::new(bound)
        }
    }

    /// The next piece from what earlier calls left and the front of `input`; `None` once
    /// `input` is used up.
    pub fn next(&mut self, input: &mut Bytes) -> Result<Option<Piece>, Error> {
        loop {
            match self.state {
                State::Header => {
                    if !self.header(input)? {
                        return Ok(None);
                    }
                    if let State::Data { id, total: 0, .. } = self.state {
                        self.state = State::Header;
                        return Ok(Some(Piece::Data {
                            id,
                            total: 0,
                            at: 0,
                            bytes: Bytes::new(),
                        }));
                    }
                }
                State::Message { end } => return Ok(self.message(end, input)),
                State::Data { id, total, at } => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let left = total - at;
                    let take = input.len().min(left as usize);
                    let bytes = input.split_to(take);
                    // `take` is at most `left`, a u32.
                    let next = at + take as u32;
                    self.state = if next == total {
                        State::Header
                    } else {
                        State::Data {
                            id,
                            total,
                            at: next,
                        }
                    };
                    return Ok(Some(Piece::Data {
                        id,
                        total,
                        at,
                        bytes,
                    }));
                }
            }
        }
    }

    /// Decides what the next message is; false when its header has not arrived.
    fn header(&mut self, input: &mut Bytes) -> Result<bool, Error> {
        let mut head = [0u8; DATA_HEADER];
        let have = {
            let both = self.partial.iter().chain(input.iter());
            head.iter_mut().zip(both).map(|(h, b)| *h = *b).count()
        };
        if have >= 4 {
            let length = be32(&head, 0);
            if length == 0 || length > self.bound {
                return Err(Error::Length {
                    length,
                    bound: self.bound,
                });
            }
        }
        let is_data = self.streaming && head[4] == DATA && have > 4;
        if have < 5 || (is_data && have < DATA_HEADER) {
            self.partial.extend_from_slice(input);
            input.clear();
            return Ok(false);
        }
        let length = be32(&head, 0);
        if is_data {
            let total = be32(&head, 9);
            if length.checked_sub(9) != Some(total) {
                return Err(Error::DataLength);
            }
            input.advance(DATA_HEADER - self.partial.len());
            self.partial.clear();
            self.state = State::Data {
                id: be32(&head, 5),
                total,
                at: 0,
            };
        } else {
            self.state = State::Message {
                end: 4 + length as usize,
            };
        }
        Ok(true)
    }

    fn message(&mut self, end: usize, input: &mut Bytes) -> Option<Piece> {
        if self.partial.is_empty() && input.len() >= end {
            let mut message = input.split_to(end);
            message.advance(4);
            self.state = State::Header;
            return Some(Piece::Message(message));
        }
        let take = input.len().min(end - self.partial.len());
        // Its length is bounded: no growing by halves, each of which would copy what is there.
        self.partial.reserve_exact(end - self.partial.len());
        self.partial.extend_from_slice(&input.split_to(take));
        if self.partial.len() < end {
            return None;
        }
        let mut message = Bytes::from(std::mem::take(&mut self.partial));
        message.advance(4);
        self.state = State::Header;
        Some(Piece::Message(message))
    }
}

fn be32(bytes: &[u8; DATA_HEADER], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_be_bytes(four)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RequestId, Response, StatusCode, StatusText};

    fn stream() -> Vec<u8> {
        let mut out = Vec::new();
        Response::Handle { handle: b"h" }.encode(RequestId(1), &mut out);
        Response::Data {
            data: b"0123456789",
        }
        .encode(RequestId(2), &mut out);
        Response::Data { data: b"" }.encode(RequestId(3), &mut out);
        Response::Status {
            code: StatusCode::OK,
            text: StatusText::default(),
        }
        .encode(RequestId(4), &mut out);
        out
    }

    /// Everything a splitter says for `bytes` cut into `step`s: messages, and data put together.
    fn split(mut splitter: Splitter, bytes: &[u8], step: usize) -> Vec<(u32, Vec<u8>)> {
        let mut found: Vec<(u32, Vec<u8>)> = Vec::new();
        for chunk in bytes.chunks(step) {
            let mut input = Bytes::copy_from_slice(chunk);
            while let Some(piece) = splitter.next(&mut input).unwrap() {
                match piece {
                    Piece::Message(m) => found.push((0, m.to_vec())),
                    Piece::Data {
                        id, at: 0, bytes, ..
                    } => found.push((id, bytes.to_vec())),
                    Piece::Data { bytes, .. } => found.last_mut().unwrap().1.extend(bytes),
                }
            }
            assert!(input.is_empty());
        }
        found
    }

    #[test]
    fn fragments_of_any_size_give_the_same_messages() {
        let bytes = stream();
        let whole = split(Splitter::streaming_data(1000), &bytes, bytes.len());
        assert_eq!(whole.len(), 4);
        assert_eq!(whole[1], (2, b"0123456789".to_vec()));
        assert_eq!(whole[2], (3, Vec::new()));
        for step in 1..bytes.len() {
            assert_eq!(split(Splitter::streaming_data(1000), &bytes, step), whole);
            assert_eq!(split(Splitter::new(1000), &bytes, step).len(), 4);
        }
    }

    #[test]
    fn an_announced_length_over_the_bound_fails_at_once() {
        let mut input = Bytes::from_static(&[0, 4, 0, 1]);
        assert_eq!(
            Splitter::new(0x40000).next(&mut input),
            Err(Error::Length {
                length: 0x40001,
                bound: 0x40000
            })
        );
    }

    #[test]
    fn data_must_fill_its_message() {
        let mut bytes = Vec::new();
        Response::Data { data: b"abc" }.encode(RequestId(2), &mut bytes);
        bytes[12] = 2;
        let mut input = Bytes::from(bytes);
        assert_eq!(
            Splitter::streaming_data(100).next(&mut input),
            Err(Error::DataLength)
        );
    }
}
