use std::collections::VecDeque;

use sftp::RequestId;
use wire::{Block, Pool};

use super::blocking_pool::BlockingTicket;

/// Bytes before the data of a READ's answer: length, number, ID and length of the data.
pub(crate) const DATA_HEADER: usize = 4 + 1 + 4 + 4;

/// Answers to a client, as a piece of output.
pub enum AnswerChunk<'a> {
    /// Small answers, gathered.
    Bytes(&'a [u8]),
    /// One answer whose data are in the packets that will carry them.
    Block(Block),
}

/// Queue of answers: small ones are gathered, and file data stay in packets of their own, where
/// they were read and will be encrypted.
pub(crate) struct AnswerQueue {
    gathered: Vec<u8>,
    /// Large answers, each with the number of bytes of `gathered` before it.
    apart: VecDeque<(usize, OversizeAnswer)>,
    /// Bytes of the answers in `apart`.
    in_apart: usize,
    pool: Pool,
    /// Payload bytes of a packet.
    slot: usize,
}

/// An answer that is too large for the buffer of small answers.
enum OversizeAnswer {
    Block(Block),
    Bytes(Vec<u8>),
    /// Placeholder for an answer that comes later, with its estimated length.
    Awaited(BlockingTicket, RequestId, usize),
}

impl OversizeAnswer {
    fn len(&self) -> usize {
        match self {
            Self::Block(block) => block.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Awaited(.., len) => *len,
        }
    }
}

impl AnswerQueue {
    pub(crate) fn new(pool: Pool, slot: usize) -> Self {
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
    pub(crate) fn block(&self, len: usize) -> Block {
        Block::new(&self.pool, self.slot, DATA_HEADER, len)
    }

    /// Appends an answer that is a block.
    pub(crate) fn push(&mut self, block: Block) {
        self.push_apart(OversizeAnswer::Block(block));
    }

    /// Reserves the next place for the answer to request `id`, which comes later and has about
    /// `len` bytes.
    pub(crate) fn await_one(&mut self, ticket: BlockingTicket, id: RequestId, len: usize) {
        self.push_apart(OversizeAnswer::Awaited(ticket, id, len));
    }

    fn push_apart(&mut self, apart: OversizeAnswer) {
        self.in_apart += apart.len();
        self.apart.push_back((self.gathered.len(), apart));
    }

    /// Fills the place that was reserved for `ticket` with the answer that `make` builds: a block,
    /// or the bytes in the vector.
    pub(crate) fn settle(
        &mut self,
        ticket: BlockingTicket,
        make: impl FnOnce(RequestId, &mut Vec<u8>) -> Option<Block>,
    ) {
        let mut all = self.apart.iter_mut().map(|(_, apart)| apart);
        let found = all.find_map(|apart| match apart {
            OversizeAnswer::Awaited(awaited, id, _) if *awaited == ticket => Some((*id, apart)),
            _ => None,
        });
        let Some((id, apart)) = found else { return };
        let mut bytes = Vec::new();
        let settled = match make(id, &mut bytes) {
            Some(block) => OversizeAnswer::Block(block),
            None => OversizeAnswer::Bytes(bytes),
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
            if let apart @ OversizeAnswer::Awaited(..) = apart {
                self.apart.push_front((upto, apart));
                break upto;
            }
            if let Some(bytes) = self.gathered.get(from..upto).filter(|b| !b.is_empty()) {
                to(AnswerChunk::Bytes(bytes))?;
            }
            from = upto;
            self.in_apart -= apart.len();
            match apart {
                OversizeAnswer::Block(block) => to(AnswerChunk::Block(block))?,
                OversizeAnswer::Bytes(bytes) => to(AnswerChunk::Bytes(&bytes))?,
                OversizeAnswer::Awaited(..) => {}
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
