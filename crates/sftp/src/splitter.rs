use bytes::{Buf, Bytes};

use crate::{Error, ReceivedSliceQueue, Request};

/// Splits a stream of segments into messages and allocates for one message at a time.
///
/// A message that lies in one segment is returned as a slice of it. Others are gathered, except for
/// file data: a splitter made with [`MessageSplitter::streaming_data`] passes on the data of DATA
/// as it arrives, since a reply of 255 KiB spans eight channel packets, and joining them would cost
/// a pass over memory. For the same reason [`MessageSplitter::streaming_writes`] leaves the data of
/// a WRITE in its segments.
#[derive(Debug)]
pub struct MessageSplitter {
    bound: u32,
    streaming: StreamedMessageKind,
    partial: Vec<u8>,
    /// Data of a WRITE that is still arriving.
    data: ReceivedSliceQueue,
    state: SplitterState,
}

/// Kind of message that is returned in pieces instead of gathered. `Writes` permits a WRITE up to
/// `longest` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamedMessageKind {
    Nothing,
    Data,
    Writes { longest: u32 },
}

/// Position in the current message; `end`, `have` and `total` count bytes.
#[derive(Debug)]
enum SplitterState {
    Header,
    Message { end: usize },
    Write { end: usize, have: usize },
    Data { id: u32, total: u32, at: u32 },
}

/// Next piece of the byte stream from [`MessageSplitter::next`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageSplitterOutput {
    /// A whole message without its length.
    Message(Bytes),
    /// A WRITE in several pieces, from a splitter that streams WRITEs.
    Write {
        /// The message without its length and with empty data.
        head: Bytes,
        /// Data in order.
        data: Vec<Bytes>,
    },
    /// Part of the file data of a DATA message.
    Data {
        /// ID of the request.
        id: u32,
        /// Bytes of file data in the whole message.
        total: u32,
        /// Offset of these bytes in the message's data.
        at: u32,
        /// File data.
        bytes: Bytes,
    },
}

const WRITE: u8 = 6;
/// Length in bytes below which consecutive pieces of a WRITE are joined.
const SMALL: usize = 8 << 10;
const DATA: u8 = 103;
/// Bytes in front of the data of DATA: length, number, request ID and data length.
const DATA_HEADER: usize = 13;

impl MessageSplitter {
    /// Creates a splitter that gathers every message; a message above `bound` bytes is an error.
    pub fn new(bound: u32) -> Self {
        Self {
            bound,
            streaming: StreamedMessageKind::Nothing,
            partial: Vec::new(),
            data: ReceivedSliceQueue::new(SMALL, usize::MAX),
            state: SplitterState::Header,
        }
    }

    /// Creates a splitter that passes on the data of DATA as it arrives.
    pub fn streaming_data(bound: u32) -> Self {
        Self {
            streaming: StreamedMessageKind::Data,
            ..Self::new(bound)
        }
    }

    /// Creates a splitter that returns a WRITE in several pieces as [`MessageSplitterOutput::Write`]. A WRITE
    /// may have up to `writes` bytes, since it is not gathered.
    pub fn streaming_writes(bound: u32, writes: u32) -> Self {
        Self {
            streaming: StreamedMessageKind::Writes {
                longest: writes.max(bound),
            },
            ..Self::new(bound)
        }
    }

    /// Returns true if a message has begun and is not yet complete.
    pub fn is_within(&self) -> bool {
        !self.partial.is_empty() || !matches!(self.state, SplitterState::Header)
    }

    /// Returns the WRITE whose data is arriving, with empty data, and the number of data bytes
    /// still to come. `None` if part of the data has already arrived, or if more than the data
    /// follows in the message.
    pub fn arriving(&self) -> Option<(Request<'_>, usize)> {
        let SplitterState::Write { end, have } = self.state else {
            return None;
        };
        if self.write_head() != Some(self.partial.len()) || !self.data.is_empty() {
            return None;
        }
        let (front, said) = self.partial.split_last_chunk()?;
        let (front, offset) = front.split_last_chunk()?;
        let write = Request::Write {
            handle: front.get(13..)?,
            offset: u64::from_be_bytes(*offset),
            data: &[],
        };
        let all = end.checked_sub(self.partial.len())? == u32::from_be_bytes(*said) as usize;
        all.then_some((write, end - have))
    }

    /// Skips `n` bytes of the data reported by [`MessageSplitter::arriving`], which the caller read
    /// from the connection itself; the piece will have the bytes behind them.
    pub fn skip(&mut self, n: usize) {
        if let SplitterState::Write { end, have } = &mut self.state {
            *have = have.saturating_add(n).min(*end);
        }
    }

    /// Returns true if all data of the last WRITE was received or skipped, so that
    /// [`MessageSplitter::next`] returns it.
    pub fn is_at_end(&self) -> bool {
        matches!(self.state, SplitterState::Write { end, have } if end == have)
    }

    /// Returns the next piece from earlier leftovers and the front of `input`; `None` once `input`
    /// is consumed.
    ///
    /// # Errors
    /// A length exceeds its bound or contradicts its message.
    pub fn next(&mut self, input: &mut Bytes) -> Result<Option<MessageSplitterOutput>, Error> {
        loop {
            match self.state {
                SplitterState::Header => {
                    if !self.header(input)? {
                        return Ok(None);
                    }
                    if let SplitterState::Data { id, total: 0, .. } = self.state {
                        self.state = SplitterState::Header;
                        return Ok(Some(MessageSplitterOutput::Data {
                            id,
                            total: 0,
                            at: 0,
                            bytes: Bytes::new(),
                        }));
                    }
                }
                SplitterState::Message { end } => return Ok(self.message(end, input)),
                SplitterState::Write { end, have } => return self.write(end, have, input),
                SplitterState::Data { id, total, at } => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let left = total - at;
                    let take = input.len().min(left as usize);
                    let bytes = input.split_to(take);
                    // `take` is at most `left`, a u32.
                    let next = at + take as u32;
                    self.state = if next == total {
                        SplitterState::Header
                    } else {
                        SplitterState::Data {
                            id,
                            total,
                            at: next,
                        }
                    };
                    return Ok(Some(MessageSplitterOutput::Data {
                        id,
                        total,
                        at,
                        bytes,
                    }));
                }
            }
        }
    }

    /// Determines the kind of the next message; returns false if its header has not arrived.
    fn header(&mut self, input: &mut Bytes) -> Result<bool, Error> {
        let mut head = [0u8; DATA_HEADER];
        let have = {
            let both = self.partial.iter().chain(input.iter());
            head.iter_mut().zip(both).map(|(h, b)| *h = *b).count()
        };
        if have >= 4 {
            let length = be32(&head, 0);
            // The message number in the next byte decides the bound.
            let bound = match self.streaming {
                StreamedMessageKind::Writes { longest } if have == 4 || head[4] == WRITE => longest,
                _ => self.bound,
            };
            if length == 0 || length > bound {
                return Err(Error::Length { length, bound });
            }
        }
        let is_data = self.streaming == StreamedMessageKind::Data && head[4] == DATA && have > 4;
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
            self.state = SplitterState::Data {
                id: be32(&head, 5),
                total,
                at: 0,
            };
            return Ok(true);
        }
        let end = 4 + length as usize;
        let whole = self.partial.is_empty() && input.len() >= end;
        let streams = matches!(self.streaming, StreamedMessageKind::Writes { .. });
        self.state = match streams && head[4] == WRITE && !whole {
            true => SplitterState::Write {
                end,
                have: self.partial.len(),
            },
            false => SplitterState::Message { end },
        };
        Ok(true)
    }

    /// Continues a WRITE of which `have` bytes have arrived.
    fn write(
        &mut self,
        end: usize,
        mut have: usize,
        input: &mut Bytes,
    ) -> Result<Option<MessageSplitterOutput>, Error> {
        // The header is gathered; its length depends on that of the handle.
        while have == self.partial.len() && have < end {
            let wanted = match self.write_head() {
                Some(head) if have >= head => break,
                Some(head) => head.min(end),
                None => (9 + 4).min(end),
            };
            if input.is_empty() {
                self.state = SplitterState::Write { end, have };
                return Ok(None);
            }
            let take = input.len().min(wanted - have);
            self.partial.extend_from_slice(&input.split_to(take));
            have += take;
        }
        let take = input.len().min(end - have);
        if take > 0 {
            self.data.push(input.split_to(take));
            have += take;
        }
        if have < end {
            self.state = SplitterState::Write { end, have };
            return Ok(None);
        }
        self.state = SplitterState::Header;
        if self.write_head() != Some(self.partial.len()) {
            return Err(Error::DataLength);
        }
        let mut head = std::mem::take(&mut self.partial);
        let len = end - head.len();
        let said = head.last_chunk_mut().ok_or(Error::DataLength)?;
        let mut left = u32::from_be_bytes(std::mem::take(said)) as usize;
        if left > len {
            return Err(Error::DataLength);
        }
        let mut head = Bytes::from(head);
        head.advance(4);
        // Further bytes may follow the data: see `Request::decode`.
        let mut data = Vec::from(self.data.take());
        for piece in &mut data {
            piece.truncate(left);
            left -= piece.len();
        }
        Ok(Some(MessageSplitterOutput::Write { head, data }))
    }

    /// Returns the bytes of a WRITE in front of its data, the length included.
    fn write_head(&self) -> Option<usize> {
        let handle = self.partial.get(9..13)?.first_chunk()?;
        Some(13 + (u32::from_be_bytes(*handle) as usize).min(1 << 24) + 8 + 4)
    }

    fn message(&mut self, end: usize, input: &mut Bytes) -> Option<MessageSplitterOutput> {
        if self.partial.is_empty() && input.len() >= end {
            let mut message = input.split_to(end);
            message.advance(4);
            self.state = SplitterState::Header;
            return Some(MessageSplitterOutput::Message(message));
        }
        let take = input.len().min(end - self.partial.len());
        // The length is bounded, so one allocation fits; growing by doubling would copy the data
        // each time.
        self.partial.reserve_exact(end - self.partial.len());
        self.partial.extend_from_slice(&input.split_to(take));
        if self.partial.len() < end {
            return None;
        }
        let mut message = Bytes::from(std::mem::take(&mut self.partial));
        message.advance(4);
        self.state = SplitterState::Header;
        Some(MessageSplitterOutput::Message(message))
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

    /// Returns everything that a splitter finds in `bytes` cut into `step`s, with the data joined.
    fn split(mut splitter: MessageSplitter, bytes: &[u8], step: usize) -> Vec<(u32, Vec<u8>)> {
        let mut found: Vec<(u32, Vec<u8>)> = Vec::new();
        for chunk in bytes.chunks(step) {
            let mut input = Bytes::copy_from_slice(chunk);
            while let Some(piece) = splitter.next(&mut input).unwrap() {
                match piece {
                    MessageSplitterOutput::Message(m) => found.push((0, m.to_vec())),
                    MessageSplitterOutput::Write { head, data } => {
                        let (id, request) = Request::decode(&head).unwrap();
                        let Request::Write {
                            handle,
                            offset,
                            data: [],
                        } = request
                        else {
                            panic!("{request:?}");
                        };
                        let (data, mut whole) = (&data.concat(), Vec::new());
                        Request::Write {
                            handle,
                            offset,
                            data,
                        }
                        .encode(id, &mut whole);
                        found.push((0, whole[4..].to_vec()));
                    }
                    MessageSplitterOutput::Data {
                        id, at: 0, bytes, ..
                    } => found.push((id, bytes.to_vec())),
                    MessageSplitterOutput::Data { bytes, .. } => {
                        found.last_mut().unwrap().1.extend(bytes)
                    }
                }
            }
            assert!(input.is_empty());
        }
        found
    }

    #[test]
    fn fragments_of_any_size_give_the_same_messages() {
        let bytes = stream();
        let whole = split(MessageSplitter::streaming_data(1000), &bytes, bytes.len());
        assert_eq!(whole.len(), 4);
        assert_eq!(whole[1], (2, b"0123456789".to_vec()));
        assert_eq!(whole[2], (3, Vec::new()));
        for step in 1..bytes.len() {
            assert_eq!(
                split(MessageSplitter::streaming_data(1000), &bytes, step),
                whole
            );
            assert_eq!(split(MessageSplitter::new(1000), &bytes, step).len(), 4);
        }
    }

    #[test]
    fn a_write_is_the_same_in_pieces_of_any_size() {
        let mut bytes = Vec::new();
        for (n, len) in [(1, 0), (2, 1), (3, 10_000), (4, 3000)] {
            let data = (0..len).map(|i| (i % 251) as u8).collect::<Vec<u8>>();
            let (handle, data) = (&[7; 4], &data);
            Request::Write {
                handle,
                offset: 9,
                data,
            }
            .encode(RequestId(n), &mut bytes);
            Request::Close { handle }.encode(RequestId(n), &mut bytes);
        }
        let whole = split(MessageSplitter::new(20_000), &bytes, bytes.len());
        assert_eq!(whole.len(), 8);
        for step in [
            1,
            2,
            3,
            7,
            13,
            29,
            100,
            1000,
            2047,
            2048,
            5000,
            9999,
            bytes.len(),
        ] {
            let streamed = split(
                MessageSplitter::streaming_writes(1000, 20_000),
                &bytes,
                step,
            );
            assert_eq!(streamed, whole, "{step}");
        }
    }

    #[test]
    fn data_of_a_write_may_go_elsewhere() {
        let data: Vec<u8> = (0..200).collect();
        let handle = &[7; 4];
        let mut bytes = Vec::new();
        for n in [1, 2] {
            Request::Write {
                handle,
                offset: 9,
                data: &data,
            }
            .encode(RequestId(n), &mut bytes);
        }
        for (skipped, came) in [(200, 0), (1, 199), (199, 1), (120, 80)] {
            let mut splitter = MessageSplitter::streaming_writes(500, 1000);
            let mut input = Bytes::from(bytes.clone());
            for n in 0..29 {
                assert_eq!(splitter.arriving(), None, "after {n}");
                assert_eq!(splitter.next(&mut input.split_to(1)), Ok(None));
            }
            let write = Request::Write {
                handle,
                offset: 9,
                data: &[],
            };
            for n in 0..skipped {
                assert_eq!(splitter.arriving(), Some((write, 200 - n)));
                assert!(!splitter.is_at_end());
                splitter.skip(1);
            }
            assert_eq!(splitter.is_at_end(), came == 0);
            let _ = input.split_to(skipped);
            let found = splitter.next(&mut input);
            let Ok(Some(MessageSplitterOutput::Write { head, data: rest })) = found else {
                panic!("{found:?}");
            };
            assert_eq!(Request::decode(&head), Ok((RequestId(1), write)));
            assert_eq!(rest.concat(), data[skipped..]);
            assert_eq!(splitter.arriving(), None);
            let next = splitter.next(&mut input);
            assert!(matches!(next, Ok(Some(MessageSplitterOutput::Message(_)))));
        }
        // Part of the data has arrived already, or more than the data follows.
        let mut splitter = MessageSplitter::streaming_writes(500, 1000);
        assert_eq!(
            splitter.next(&mut Bytes::from(bytes[..30].to_vec())),
            Ok(None)
        );
        assert_eq!(splitter.arriving(), None);
        bytes[28] -= 1;
        let mut splitter = MessageSplitter::streaming_writes(500, 1000);
        assert_eq!(
            splitter.next(&mut Bytes::from(bytes[..29].to_vec())),
            Ok(None)
        );
        assert_eq!(splitter.arriving(), None);
    }

    /// The longer bound applies to WRITE alone, since other messages are gathered in memory.
    #[test]
    fn only_a_write_may_be_longer_than_other_messages() {
        for step in [1, 4, 5, 100, 5000] {
            let write = Request::Write {
                handle: &[7; 4],
                offset: 9,
                data: &[5; 3000],
            };
            let mut bytes = Vec::new();
            write.encode(RequestId(1), &mut bytes);
            let new = || MessageSplitter::streaming_writes(1000, 3100);
            assert_eq!(split(new(), &bytes, step).len(), 1, "{step}");
            for (kind, writes) in [(3, 3100), (6, 2999), (103, 3100)] {
                let mut bytes = bytes.clone();
                bytes[4] = kind;
                let mut splitter = MessageSplitter::streaming_writes(1000, writes);
                let refused = bytes.chunks(step).any(|part| {
                    let mut part = Bytes::copy_from_slice(part);
                    matches!(splitter.next(&mut part), Err(Error::Length { .. }))
                });
                assert!(refused, "{kind} {step}");
            }
        }
    }

    #[test]
    fn a_write_with_less_data_than_it_says_fails() {
        for wrong in [101, 1000, u32::MAX] {
            let mut bytes = Vec::new();
            let (handle, data) = (&[7; 4], &[0; 100]);
            Request::Write {
                handle,
                offset: 9,
                data,
            }
            .encode(RequestId(1), &mut bytes);
            bytes[25..29].copy_from_slice(&wrong.to_be_bytes());
            let mut splitter = MessageSplitter::streaming_writes(500, 1000);
            let mut first = Bytes::copy_from_slice(&bytes[..50]);
            assert_eq!(splitter.next(&mut first), Ok(None));
            let mut rest = Bytes::copy_from_slice(&bytes[50..]);
            assert_eq!(splitter.next(&mut rest), Err(Error::DataLength));
            // A handle longer than its message.
            bytes[9..13].copy_from_slice(&wrong.max(200).to_be_bytes());
            let mut splitter = MessageSplitter::streaming_writes(500, 1000);
            let mut first = Bytes::copy_from_slice(&bytes[..50]);
            assert_eq!(splitter.next(&mut first), Ok(None));
            let mut rest = Bytes::copy_from_slice(&bytes[50..]);
            assert!(splitter.next(&mut rest).is_err());
        }
    }

    #[test]
    fn what_lies_behind_the_data_of_a_write_is_left_out() {
        for said in [0_u32, 1, 20, 99, 100] {
            let mut bytes = Vec::new();
            let data: Vec<u8> = (0..100).collect();
            Request::Write {
                handle: &[7; 4],
                offset: 9,
                data: &data,
            }
            .encode(RequestId(1), &mut bytes);
            bytes[25..29].copy_from_slice(&said.to_be_bytes());
            for step in [1, 30, 50, 99] {
                let mut splitter = MessageSplitter::streaming_writes(500, 1000);
                let mut found = Vec::new();
                for chunk in bytes.chunks(step) {
                    let mut input = Bytes::copy_from_slice(chunk);
                    while let Some(piece) = splitter.next(&mut input).unwrap() {
                        found.push(piece);
                    }
                }
                let [MessageSplitterOutput::Write { data: pieces, .. }] = &found[..] else {
                    panic!("{found:?}");
                };
                assert_eq!(pieces.concat(), data[..said as usize]);
            }
        }
    }

    /// Returns a WRITE of 1 MiB.
    fn large_write() -> Vec<u8> {
        let mut bytes = Vec::new();
        Request::Write {
            handle: &[7; 4],
            offset: 9,
            data: &[5; 1 << 20],
        }
        .encode(RequestId(1), &mut bytes);
        bytes
    }

    /// Regression: with a slice of 8 KiB in each segment of 1.26 MiB, a WRITE of 1 MiB kept 147
    /// MiB.
    #[test]
    fn a_write_that_comes_in_little_pieces_does_not_keep_all_they_lay_in() {
        let bytes = large_write();
        let mut splitter = MessageSplitter::streaming_writes(1 << 18, (1 << 20) + 1024);
        let mut segments = Vec::new();
        for part in bytes[..bytes.len() - 1].chunks(8 << 10) {
            let segment = Bytes::from([part, &[0; 1 << 20]].concat());
            let mut part = segment.slice(..part.len());
            assert_eq!(splitter.next(&mut part), Ok(None));
            segments.push(segment);
        }
        let kept = segments.iter().filter(|segment| !segment.is_unique());
        assert!(kept.count() <= 6, "of {}", segments.len());
        let found = splitter.next(&mut Bytes::from_static(&[5]));
        let Ok(Some(MessageSplitterOutput::Write { data, .. })) = found else {
            panic!("{found:?}");
        };
        assert!(data.concat() == [5; 1 << 20]);
    }

    /// Packets of a full segment stay where they arrived.
    #[test]
    fn a_write_that_fills_segments_is_not_copied() {
        let bytes = large_write();
        for (packet, segment) in [
            (32 << 10, 700_000),
            (255 << 10, 900_000),
            (16 << 10, 800_000),
        ] {
            let mut splitter = MessageSplitter::streaming_writes(1 << 18, (1 << 20) + 1024);
            let (mut places, mut found) = (Vec::new(), None);
            for segment in bytes.chunks(segment) {
                let mut segment = Bytes::copy_from_slice(segment);
                while !segment.is_empty() {
                    let mut part = segment.split_to(segment.len().min(packet));
                    places.push(part.as_ptr_range().end);
                    found = splitter.next(&mut part).expect("a sound message");
                }
            }
            let Some(MessageSplitterOutput::Write { data, .. }) = found else {
                panic!("{found:?}");
            };
            let ends: Vec<_> = data.iter().map(|piece| piece.as_ptr_range().end).collect();
            assert_eq!(ends, places, "{packet}");
        }
    }

    #[test]
    fn an_announced_length_over_the_bound_fails_at_once() {
        let mut input = Bytes::from_static(&[0, 4, 0, 1]);
        assert_eq!(
            MessageSplitter::new(0x40000).next(&mut input),
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
            MessageSplitter::streaming_data(100).next(&mut input),
            Err(Error::DataLength)
        );
    }
}
