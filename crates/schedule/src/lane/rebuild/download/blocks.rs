use std::collections::BTreeMap;

use bytes::Bytes;
use sftp::blocks::{BasisBlockChecksums, StrongSum};

use crate::delta::SEGMENT;

/// Block sums of a file in wire form, one entry per segment.
#[derive(Debug)]
pub(super) struct FileBlockSums {
    /// Size of the file in bytes.
    size: u64,
    /// Block size in bytes.
    block: u32,
    sums: BTreeMap<u64, Bytes>,
}

impl FileBlockSums {
    pub(super) fn new(size: u64, block: u32) -> Self {
        Self {
            size,
            block,
            sums: BTreeMap::new(),
        }
    }

    /// Stores the sums of the `len` bytes at `offset`; false if their number is wrong.
    pub(super) fn keep(&mut self, offset: u64, len: u64, sums: &Bytes) -> bool {
        let blocks = len.div_ceil(u64::from(self.block.max(1)));
        let whole = sums.len() as u64 == blocks * BasisBlockChecksums::LEN as u64;
        if whole {
            self.sums.insert(offset, sums.clone());
        }
        whole
    }

    /// Returns the sums of the segment at `offset`.
    pub(super) fn of(&self, offset: u64) -> Bytes {
        self.sums.get(&offset).cloned().unwrap_or_default()
    }

    pub(super) fn all(&self) -> Vec<BasisBlockChecksums> {
        let sums = self.sums.values();
        sums.flat_map(|sums| BasisBlockChecksums::read_all(sums))
            .collect()
    }

    /// Returns start and end of the block that contains `at`.
    pub(super) fn around(&self, at: u64) -> (u64, u64) {
        let block = u64::from(self.block.max(1));
        let from = at / block * block;
        (from, self.size.min(from.saturating_add(block)))
    }

    /// Returns the strong sum of the block that starts at `at`.
    pub(super) fn strong(&self, at: u64) -> Option<StrongSum> {
        let segment = at / SEGMENT * SEGMENT;
        let nth = (at - segment) / u64::from(self.block.max(1));
        let from = usize::try_from(nth)
            .ok()?
            .checked_mul(BasisBlockChecksums::LEN)?;
        let sum = self
            .sums
            .get(&segment)?
            .get(from..from + BasisBlockChecksums::LEN)?;
        BasisBlockChecksums::read_all(sum)
            .next()
            .map(|sum| sum.strong)
    }
}
