use std::collections::VecDeque;

use sftp::RequestId;
use wire::{PacketPool, PayloadBlock};

use super::pooled_requests::BlockingRequestId;

/// Bytes before the data of a READ's answer: length, number, ID and length of the data.
pub(crate) const DATA_HEADER: usize = 4 + 1 + 4 + 4;

/// Answers to a client, as a piece of output.
pub enum AnswerChunk<'a> {
    /// Small answers, gathered.
    Bytes(&'a [u8]),
    /// One answer whose data are in the packets that will carry them.
    Block(PayloadBlock),
}

/// Queue of answers: small ones are gathered, and file data stay in packets of their own, where
/// they were read and will be encrypted.
pub(crate) struct AnswerQueue {
    gathered: Vec<u8>,
    /// Large answers, each with the number of bytes of `gathered` before it.
    apart: VecDeque<(usize, UnbufferedAnswer)>,
    /// Bytes of the answers in `apart`.
    in_apart: usize,
    pool: PacketPool,
    /// Payload bytes of a packet.
    slot: usize,
}

/// An answer that is too large for the buffer of small answers.
enum UnbufferedAnswer {
    Block(PayloadBlock),
    Bytes(Vec<u8>),
    /// Placeholder for an answer that comes later, with its estimated length.
    Awaited(BlockingRequestId, RequestId, usize),
}

impl UnbufferedAnswer {
    fn len(&self) -> usize {
        match self {
            Self::Block(block) => block.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Awaited(.., len) => *len,
        }
    }
}

impl AnswerQueue {
    pub(crate) fn new(pool: PacketPool, slot: usize) -> Self {
        Self {
            slot,
            gathered: Vec::new(),
            apart: VecDeque::new(),
            in_apart: 0,
            pool,
        }
    }

    /// Bytes of all answers.
    pub(crate) fn len(&self) -> usize {
        self.gathered.len() + self.in_apart
    }

    /// Buffer to which small answers are appended.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.gathered
    }

    /// Allocates a block with room for `len` bytes and a header.
    pub(crate) fn block(&self, len: usize) -> PayloadBlock {
        PayloadBlock::new(&self.pool, self.slot, DATA_HEADER, len)
    }

    /// Appends an answer that is a block.
    pub(crate) fn push(&mut self, block: PayloadBlock) {
        self.push_apart(UnbufferedAnswer::Block(block));
    }

    /// Reserves the next place for the answer to request `id`, which comes later and has about
    /// `len` bytes.
    pub(crate) fn await_one(&mut self, ticket: BlockingRequestId, id: RequestId, len: usize) {
        self.push_apart(UnbufferedAnswer::Awaited(ticket, id, len));
    }

    fn push_apart(&mut self, apart: UnbufferedAnswer) {
        self.in_apart += apart.len();
        self.apart.push_back((self.gathered.len(), apart));
    }

    /// Fills the place that was reserved for `ticket` with the answer that `make` builds: a block,
    /// or the bytes in the vector.
    pub(crate) fn settle(
        &mut self,
        ticket: BlockingRequestId,
        make: impl FnOnce(RequestId, &mut Vec<u8>) -> Option<PayloadBlock>,
    ) {
        let mut all = self.apart.iter_mut().map(|(_, apart)| apart);
        let found = all.find_map(|apart| match apart {
            UnbufferedAnswer::Awaited(awaited, id, _) if *awaited == ticket => Some((*id, apart)),
            _ => None,
        });
        let Some((id, apart)) = found else { return };
        let mut bytes = Vec::new();
        let settled = match make(id, &mut bytes) {
            Some(block) => UnbufferedAnswer::Block(block),
            None => UnbufferedAnswer::Bytes(bytes),
        };
        self.in_apart = self.in_apart + settled.len() - apart.len();
        *apart = settled;
    }

    /// Passes all answers to `to`, up to the first that is still awaited; stops at the first error.
    pub(crate) fn take<E>(
        &mut self,
        mut to: impl FnMut(AnswerChunk<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut from = 0;
        let upto = loop {
            let Some((upto, apart)) = self.apart.pop_front() else {
                break self.gathered.len();
            };
            if let apart @ UnbufferedAnswer::Awaited(..) = apart {
                self.apart.push_front((upto, apart));
                break upto;
            }
            if let Some(bytes) = self.gathered.get(from..upto).filter(|b| !b.is_empty()) {
                to(AnswerChunk::Bytes(bytes))?;
            }
            from = upto;
            self.in_apart -= apart.len();
            match apart {
                UnbufferedAnswer::Block(block) => to(AnswerChunk::Block(block))?,
                UnbufferedAnswer::Bytes(bytes) => to(AnswerChunk::Bytes(&bytes))?,
                UnbufferedAnswer::Awaited(..) => {}
            }
        };
        if let Some(bytes) = self.gathered.get(from..upto).filter(|b| !b.is_empty()) {
            to(AnswerChunk::Bytes(bytes))?;
        }
        self.gathered.drain(..upto);
        for (before, _) in &mut self.apart {
            *before -= upto;
        }
        Ok(())
    }
}
