use std::collections::BTreeMap;

use bytes::Bytes;
use sftp::blocks::{BlockSum, Strong};

use crate::delta::SEGMENT;

/// The blocks of a file, and the sums of them as they came: those of a segment each.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// Bytes of the file.
    pub(super) size: u64,
    /// Bytes of a block.
    pub(super) block: u32,
    sums: BTreeMap<u64, Bytes>,
}

impl Blocks {
    pub(super) fn new(size: u64, block: u32) -> Self {
        Self {
            size,
            block,
            sums: BTreeMap::new(),
        }
    }

    /// Where the segment that begins at `offset` ends.
    pub(super) fn segment_end(&self, offset: u64) -> u64 {
        self.size.min(offset.saturating_add(SEGMENT))
    }

    /// Keeps the sums of the `len` bytes at `offset`; false where they are too few or too many.
    pub(super) fn keep(&mut self, offset: u64, len: u64, sums: &Bytes) -> bool {
        let blocks = len.div_ceil(u64::from(self.block.max(1)));
        let whole = sums.len() as u64 == blocks * BlockSum::LEN as u64;
        if whole {
            self.sums.insert(offset, sums.clone());
        }
        whole
    }

    /// The sums of the segment at `offset`.
    pub(super) fn of(&self, offset: u64) -> Bytes {
        self.sums.get(&offset).cloned().unwrap_or_default()
    }

    pub(super) fn all(&self) -> Vec<BlockSum> {
        let sums = self.sums.values();
        sums.flat_map(|sums| BlockSum::read_all(sums)).collect()
    }

    /// Where the block that holds `at` begins and ends.
    pub(super) fn around(&self, at: u64) -> (u64, u64) {
        let block = u64::from(self.block.max(1));
        let from = at / block * block;
        (from, self.size.min(from.saturating_add(block)))
    }

    /// What the block that begins at `at` is known by.
    pub(super) fn strong(&self, at: u64) -> Option<Strong> {
        let segment = at / SEGMENT * SEGMENT;
        let nth = (at - segment) / u64::from(self.block.max(1));
        let from = usize::try_from(nth).ok()?.checked_mul(BlockSum::LEN)?;
        let sum = self.sums.get(&segment)?.get(from..from + BlockSum::LEN)?;
        BlockSum::read_all(sum).next().map(|sum| sum.strong)
    }
}
