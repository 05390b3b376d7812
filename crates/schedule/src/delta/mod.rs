//! Finds the parts of a file that an older version, the *basis file*, already has. Pure: sums and
//! bytes in, ranges out.
//!
//! The basis file is known by its block sums ([`sftp::blocks`]). [`compare`] finds blocks at their
//! own offset, from the sums of that range only; [`BasisIndex::search`] searches the basis file for
//! the remaining bytes at any offset, as rsync does (docs/design/0009-delta.md).

mod search;

use std::collections::VecDeque;

use sftp::blocks::{BasisBlockChecksums, BlockSumKey, StrongSum, strong};

pub use self::search::{BasisIndex, MatchedRange};

/// Minimum file size in bytes: for smaller files a delta saves less than its extra round trip.
pub const LEAST: u64 = 1 << 20;
/// Number of bytes that are compared, searched or requested at once.
pub const SEGMENT: u64 = 8 << 20;
/// Number of sum requests in flight, enough for a server that hashes 2.5 GB/s over 200 ms.
pub(crate) const ASKED: usize = 64;
/// Maximum length in bytes of a difference between two unchanged blocks that is sent without
/// searching for it elsewhere.
pub(crate) const IN_PLACE: u64 = 1 << 20;
/// Number of searches that wait for or run on the disk threads.
pub(crate) const SEARCHING: usize = 8;
/// Number of searched bytes without notable matches after which a file that differs by more than
/// half is copied whole, over all lanes (a delta uses one).
const HOPELESS: u64 = 64 << 20;
/// Ratio of file sizes above which a delta is not tried.
const ALIKE: u64 = 4;
/// Maximum number of blocks of a file; 20 bytes of each are kept in memory.
const MOST_BLOCKS: u64 = 1 << 20;
const LEAST_BLOCK: u64 = 4 << 10;
const MOST_BLOCK: u64 = 1 << 20;

/// Returns the block size in bytes for a file of `size` bytes: a power of two near half its square
/// root. Sums and the data around each change then cost about the same for some dozens of changes.
/// `None` if there would be too many blocks.
pub fn block_len(size: u64) -> Option<u32> {
    let block = (size.isqrt() / 2).next_power_of_two();
    let least = size.div_ceil(MOST_BLOCKS).next_power_of_two();
    let block = block.max(least).max(LEAST_BLOCK);
    (block <= MOST_BLOCK).then_some(block as u32)
}

/// Returns true if files of these sizes in bytes may be versions of each other and are large enough
/// for a delta to pay.
pub fn may_be_forms(one: u64, other: u64) -> bool {
    one.min(other) >= LEAST && one / ALIKE <= other && other / ALIKE <= one
}

/// Queues a range to copy, merging it with the last one if adjacent.
pub(crate) fn queue_copy(copies: &mut VecDeque<MatchedRange>, next: MatchedRange) {
    if next.len == 0 {
        return;
    }
    match copies.back_mut() {
        Some(last) if last.basis + last.len == next.basis && last.at + last.len == next.at => {
            last.len += next.len;
        }
        _ => copies.push_back(next),
    }
}

/// Takes the next range to copy, of at most `most` bytes; the rest stays first in the queue.
pub(crate) fn next_copy(copies: &mut VecDeque<MatchedRange>, most: u64) -> Option<MatchedRange> {
    let whole = copies.pop_front()?;
    let next = MatchedRange {
        len: whole.len.min(most),
        ..whole
    };
    if next.len < whole.len {
        copies.push_front(MatchedRange {
            basis: whole.basis + next.len,
            at: whole.at + next.len,
            len: whole.len - next.len,
        });
    }
    Some(next)
}

/// Queues a range to search, merging adjacent ranges as long as the sum is at most one segment.
pub(crate) fn queue_search(todo: &mut VecDeque<(u64, u64)>, from: u64, to: u64) {
    match todo.back_mut() {
        Some((start, end)) if *end == from && to - *start <= SEGMENT => *end = to,
        _ => todo.push_back((from, to)),
    }
}

/// Returns true if a search that found `found` of `seen` bytes is to be given up; `all` is the
/// number of bytes that did not match at their own offset, in a file of `size` bytes.
pub(crate) fn is_hopeless(seen: u64, found: u64, all: u64, size: u64) -> bool {
    seen >= HOPELESS && found < seen / 8 && all > size / 2
}

/// Result of [`compare`]: a range of the new file beside the same range of the basis file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BasisRangeComparison {
    /// Sums of the blocks in the range.
    pub own: Vec<StrongSum>,
    /// Ranges that differ from the basis file, as first byte and first byte after the range; in
    /// order and not adjacent.
    pub differs: Vec<(u64, u64)>,
}

impl BasisRangeComparison {
    /// Appends the result of the following range.
    pub fn append(&mut self, mut behind: Self) {
        self.own.append(&mut behind.own);
        let mut differs = behind.differs.into_iter().peekable();
        if let (Some((_, end)), Some((from, to))) =
            (self.differs.last_mut(), differs.peek().copied())
            && *end == from
        {
            *end = to;
            differs.next();
        }
        self.differs.extend(differs);
    }
}

/// Compares the `bytes` at `offset`, which start with a block, with the sums `basis` of that range
/// in wire form, empty beyond the end of the basis file.
pub fn compare(
    key: &BlockSumKey,
    block: u32,
    offset: u64,
    bytes: &[u8],
    basis: &[u8],
) -> BasisRangeComparison {
    let mut found = BasisRangeComparison::default();
    let mut theirs = BasisBlockChecksums::read_all(basis);
    let mut at = offset;
    for bytes in bytes.chunks(block.max(1) as usize) {
        let own = strong(key, bytes);
        let to = at + bytes.len() as u64;
        if theirs.next().is_none_or(|their| their.strong != own) {
            match found.differs.last_mut() {
                Some((_, end)) if *end == at => *end = to,
                _ => found.differs.push((at, to)),
            }
        }
        found.own.push(own);
        at = to;
    }
    found
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
