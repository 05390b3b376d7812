use std::collections::VecDeque;

use sftp::RequestId;
use wire::{Block, Pool};

use crate::blocking_pool::BlockingTicket;

/// Length, number, id and length of the data: what stands in front of what a READ answers.
pub(crate) const DATA_HEADER: usize = 4 + 1 + 4 + 4;

/// Some of the answers to a client.
pub enum Answer<'a> {
    /// Small ones.
    Bytes(&'a [u8]),
    /// One whose data lie in the packets that will carry them.
    Block(Block),
}

/// Answers in their order: small ones gathered, data of files in packets of their own, where they
/// were read to and where they are sealed.
pub(crate) struct Answers {
    gathered: Vec<u8>,
    /// Each with how much of `gathered` goes before it.
    apart: VecDeque<(usize, OversizeAnswer)>,
    /// Bytes in `apart`.
    in_apart: usize,
    pool: Pool,
    /// Payload bytes of a packet.
    slot: usize,
}

/// An answer that is not among the gathered ones.
enum OversizeAnswer {
    Block(Block),
    Bytes(Vec<u8>),
    /// It comes later, and is taken for so many bytes until then.
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

impl Answers {
    pub(crate) fn new(pool: Pool, slot: usize) -> Self {
        Self {
            slot,
            gathered: Vec::new(),
            apart: VecDeque::new(),
            in_apart: 0,
            pool,
        }
    }

    /// Bytes of all of them.
    pub(crate) fn len(&self) -> usize {
        self.gathered.len() + self.in_apart
    }

    /// Where small ones are appended.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.gathered
    }

    /// A block with room for `len` bytes and a header.
    pub(crate) fn block(&self, len: usize) -> Block {
        Block::new(&self.pool, self.slot, DATA_HEADER, len)
    }

    /// Appends one.
    pub(crate) fn push(&mut self, block: Block) {
        self.push_apart(OversizeAnswer::Block(block));
    }

    /// The next one is of the request with this number, and comes later; it has about so many bytes.
    pub(crate) fn await_one(&mut self, ticket: BlockingTicket, id: RequestId, len: usize) {
        self.push_apart(OversizeAnswer::Awaited(ticket, id, len));
    }

    fn push_apart(&mut self, apart: OversizeAnswer) {
        self.in_apart += apart.len();
        self.apart.push_back((self.gathered.len(), apart));
    }

    /// Puts the one that was awaited in its place, as `make` has it: a block, or what stands in the
    /// vector.
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

    /// Takes all of them out, up to one that is awaited; the first error ends it.
    pub(crate) fn take<E>(
        &mut self,
        mut to: impl FnMut(Answer<'_>) -> Result<(), E>,
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
                to(Answer::Bytes(bytes))?;
            }
            from = upto;
            self.in_apart -= apart.len();
            match apart {
                OversizeAnswer::Block(block) => to(Answer::Block(block))?,
                OversizeAnswer::Bytes(bytes) => to(Answer::Bytes(&bytes))?,
                OversizeAnswer::Awaited(..) => {}
            }
        };
        if let Some(bytes) = self.gathered.get(from..upto).filter(|b| !b.is_empty()) {
            to(Answer::Bytes(bytes))?;
        }
        self.gathered.drain(..upto);
        for (before, _) in &mut self.apart {
            *before -= upto;
        }
        Ok(())
    }
}
