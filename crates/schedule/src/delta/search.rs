use std::sync::OnceLock;

use sftp::blocks::{BasisBlockChecksums, BlockSumKey, RollingSum, strong};

/// Index of a basis file: its block sums.
#[derive(Debug)]
pub struct BasisIndex {
    key: BlockSumKey,
    block: usize,
    size: u64,
    sums: Vec<BasisBlockChecksums>,
    index: OnceLock<RollingSumIndex>,
}

/// A range of the file that the basis file has as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchedRange {
    /// Byte offset in the basis file.
    pub basis: u64,
    /// Byte offset in the file.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Index from rolling sums to blocks.
#[derive(Debug)]
struct RollingSumIndex {
    /// Bit filter that rejects most sums that no block has.
    filter: Vec<u64>,
    filter_shift: u32,
    /// Start of each bucket in `blocks`.
    starts: Vec<u32>,
    shift: u32,
    blocks: Vec<u32>,
}

/// Maximum number of candidate blocks per rolling sum. A peer may construct more; any one of them
/// is as good.
const CANDIDATES: usize = 16;
/// Number of bytes per miss at which a search ends. A miss is a matching rolling sum without a
/// matching block; frequent ones mean that nothing can be found, or that a peer has constructed the
/// sums to make the search slow. An honest search of 2^20 blocks has one miss in 4,096 bytes.
const BYTES_PER_MISS: usize = 512;
/// Number of misses that every search may have.
const MISSES: usize = 64;

impl BasisIndex {
    /// Creates the index of a basis file of `size` bytes, from the `sums` of its blocks of `block`
    /// bytes in order; the last block may be shorter.
    pub fn new(key: BlockSumKey, block: u32, size: u64, sums: Vec<BasisBlockChecksums>) -> Self {
        Self {
            key,
            block: block.max(1) as usize,
            size,
            sums,
            index: OnceLock::new(),
        }
    }

    /// Returns the number of bytes after a range that [`BasisIndex::search`] needs, if they exist.
    pub fn ahead(&self) -> usize {
        self.block - 1
    }

    /// Finds blocks of the basis file in `bytes`, which are at offset `at` of the file: blocks that
    /// start in the first `len` bytes and may end after them. `ends` means that the file ends with
    /// `bytes`.
    pub fn search(&self, at: u64, bytes: &[u8], len: usize, ends: bool) -> Vec<MatchedRange> {
        let index = self
            .index
            .get_or_init(|| RollingSumIndex::new(self.whole_blocks()));
        let mut search = BlockSearch {
            basis: self,
            index,
            at,
            bytes,
            found: Vec::new(),
            misses: 0,
        };
        search.run(len.min(bytes.len()));
        if ends {
            search.find_end(len);
        }
        search.found
    }

    /// Returns the block sums without a shorter last block.
    fn whole_blocks(&self) -> &[BasisBlockChecksums] {
        let whole = self.size / self.block as u64;
        let whole = usize::try_from(whole).unwrap_or(usize::MAX);
        self.sums.get(..whole).unwrap_or(&self.sums)
    }
}

/// Search for blocks of the basis file in `bytes`, which begin at offset `at` of the new file.
struct BlockSearch<'a> {
    basis: &'a BasisIndex,
    index: &'a RollingSumIndex,
    at: u64,
    bytes: &'a [u8],
    found: Vec<MatchedRange>,
    misses: usize,
}

impl BlockSearch<'_> {
    fn run(&mut self, len: usize) {
        let block = self.basis.block;
        let (mut from, mut next) = (0, None);
        while from < len
            && let Some(bytes) = self.bytes.get(from..from + block)
        {
            // A matching block is usually followed by its successor in the basis file.
            let follows = next.filter(|next| self.is(*next, bytes));
            match follows.or_else(|| self.slide(&mut from, len)) {
                Some(is) => {
                    self.push(is, from, block);
                    from += block;
                    next = Some(is + 1);
                }
                None => return,
            }
        }
    }

    /// Advances from `from` to the first block that the basis file has.
    fn slide(&mut self, from: &mut usize, len: usize) -> Option<usize> {
        let block = self.basis.block;
        let (first, coming) = self.bytes.get(*from..)?.split_at_checked(block)?;
        let mut window = RollingSum::new(first);
        if let Some(is) = self.look_up(window.sum(), *from) {
            return Some(is);
        }
        let bytes = self.bytes.get(*from..len)?;
        for (at, (leaves, comes)) in bytes.iter().zip(coming).enumerate() {
            window.slide(*leaves, *comes);
            if self.index.may_have(window.sum())
                && *from + at + 1 < len
                && let Some(is) = self.look_up(window.sum(), *from + at + 1)
            {
                *from += at + 1;
                return Some(is);
            }
            if self.misses > MISSES + self.bytes.len() / BYTES_PER_MISS {
                return None;
            }
        }
        None
    }

    fn look_up(&mut self, sum: u32, from: usize) -> Option<usize> {
        let sums = &self.basis.sums;
        let same = |block: &&u32| {
            let known = sums.get(**block as usize);
            known.is_some_and(|known| known.rolling == sum)
        };
        let mut candidates = self.index.bucket(sum).iter().filter(same).peekable();
        candidates.peek()?;
        let bytes = self.bytes.get(from..from + self.basis.block)?;
        let own = strong(&self.basis.key, bytes);
        let is = candidates
            .take(CANDIDATES)
            .find(|block| sums.get(**block as usize).is_some_and(|s| s.strong == own));
        self.misses += usize::from(is.is_none());
        is.map(|block| *block as usize)
    }

    /// Returns true if `bytes` are this full-length block.
    fn is(&self, block: usize, bytes: &[u8]) -> bool {
        let known = self.basis.whole_blocks().get(block);
        known.is_some_and(|known| known.strong == strong(&self.basis.key, bytes))
    }

    /// Looks for the basis file's short last block, which can match only at the end of the file.
    fn find_end(&mut self, len: usize) {
        let short = self.basis.size % self.basis.block as u64;
        let (Some(last), true) = (self.basis.sums.last(), short > 0) else {
            return;
        };
        let Some(from) = self.bytes.len().checked_sub(short as usize) else {
            return;
        };
        let covered = self
            .found
            .last()
            .map_or(0, |f| (f.at + f.len - self.at) as usize);
        let bytes = self.bytes.get(from..).unwrap_or_default();
        if from >= covered && from < len && strong(&self.basis.key, bytes) == last.strong {
            self.push(self.basis.sums.len() - 1, from, short as usize);
        }
    }

    fn push(&mut self, block: usize, from: usize, len: usize) {
        let found = MatchedRange {
            basis: block as u64 * self.basis.block as u64,
            at: self.at + from as u64,
            len: len as u64,
        };
        match self.found.last_mut() {
            Some(last)
                if last.at + last.len == found.at && last.basis + last.len == found.basis =>
            {
                last.len += found.len;
            }
            _ => self.found.push(found),
        }
    }
}

impl RollingSumIndex {
    /// Filter bits per block.
    const BITS: u32 = 4;

    fn new(blocks: &[BasisBlockChecksums]) -> Self {
        let bits = (usize::BITS - blocks.len().leading_zeros()).clamp(6, 24);
        let mut index = Self {
            filter: vec![0; 1 << (bits + Self::BITS - 6)],
            filter_shift: u32::BITS - bits - Self::BITS,
            starts: vec![0; (1 << bits) + 1],
            shift: u32::BITS - bits,
            blocks: vec![0; blocks.len()],
        };
        for block in blocks {
            let (word, bit) = index.filter_bit(block.rolling);
            index.filter[word] |= bit;
            let bucket = index.bucket_of(block.rolling);
            index.starts[bucket + 1] += 1;
        }
        let mut sum = 0;
        for start in &mut index.starts {
            sum += *start;
            *start = sum;
        }
        let mut next = index.starts.clone();
        for (at, block) in blocks.iter().enumerate() {
            let place = &mut next[index.bucket_of(block.rolling)];
            index.blocks[*place as usize] = at as u32;
            *place += 1;
        }
        index
    }

    fn may_have(&self, sum: u32) -> bool {
        let (word, bit) = self.filter_bit(sum);
        self.filter.get(word).is_some_and(|bits| bits & bit != 0)
    }

    fn bucket(&self, sum: u32) -> &[u32] {
        let bucket = self.bucket_of(sum);
        match self.starts.get(bucket..bucket + 2) {
            Some([from, to]) => self.blocks.get(*from as usize..*to as usize),
            _ => None,
        }
        .unwrap_or_default()
    }

    fn filter_bit(&self, sum: u32) -> (usize, u64) {
        let at = sum.wrapping_mul(0x85eb_ca6b) >> self.filter_shift;
        ((at / 64) as usize, 1 << (at % 64))
    }

    fn bucket_of(&self, sum: u32) -> usize {
        (sum.wrapping_mul(0xc2b2_ae35) >> self.shift) as usize
    }
}
