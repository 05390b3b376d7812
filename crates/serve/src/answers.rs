use std::collections::VecDeque;

use wire::{Block, Pool};

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
    blocks: VecDeque<(usize, Block)>,
    /// Bytes in `blocks`.
    in_blocks: usize,
    pool: Pool,
    /// Payload bytes of a packet.
    slot: usize,
}

impl Answers {
    pub(crate) fn new(pool: Pool, slot: usize) -> Self {
        Self {
            slot,
            gathered: Vec::new(),
            blocks: VecDeque::new(),
            in_blocks: 0,
            pool,
        }
    }

    /// Bytes of all of them.
    pub(crate) fn len(&self) -> usize {
        self.gathered.len() + self.in_blocks
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
        self.in_blocks += block.len();
        self.blocks.push_back((self.gathered.len(), block));
    }

    /// Takes all of them out; the first error ends it.
    pub(crate) fn take<E>(
        &mut self,
        mut to: impl FnMut(Answer<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut from = 0;
        while let Some((upto, block)) = self.blocks.pop_front() {
            if let Some(bytes) = self.gathered.get(from..upto).filter(|b| !b.is_empty()) {
                to(Answer::Bytes(bytes))?;
            }
            from = upto;
            self.in_blocks -= block.len();
            to(Answer::Block(block))?;
        }
        if let Some(bytes) = self.gathered.get(from..).filter(|b| !b.is_empty()) {
            to(Answer::Bytes(bytes))?;
        }
        self.gathered.clear();
        Ok(())
    }
}
