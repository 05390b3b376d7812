//! What of a file is there already, in another that is like it: its *basis*. Pure: sums and bytes
//! in, ranges out.
//!
//! The basis is known by the sums of its blocks ([`sftp::blocks`]). Blocks that stand where they
//! stood are found by [`compare`], which needs no more than the sums of the same range; what is
//! left is looked for everywhere by [`Basis::search`], as rsync does it
//! (docs/design/0009-delta.md).

mod search;

use std::collections::VecDeque;

use sftp::blocks::{BlockSum, Strong, SumKey, strong};

pub use self::search::{Basis, Found};

/// Smaller files are sent: what is saved is less than the round trip it takes to ask.
pub const LEAST: u64 = 1 << 20;
/// Bytes that are compared, searched or asked for at once.
pub const SEGMENT: u64 = 8 << 20;
/// Questions for sums in flight: a server that hashes 2.5 GB/s is kept busy over 200 ms.
pub(crate) const ASKED: usize = 64;
/// What differs between two blocks that stand where they stood is not looked for elsewhere where it
/// is no longer than this, in bytes.
pub(crate) const IN_PLACE: u64 = 1 << 20;
/// Searches that wait for the disk's threads, or run on them.
pub(crate) const SEARCHING: usize = 8;
/// After so many bytes in which hardly anything was found, of a file of which more than half
/// differs, it is copied whole: over all lanes, which this is not.
const HOPELESS: u64 = 64 << 20;
/// Files whose sizes differ by more are hardly forms of one.
const ALIKE: u64 = 4;
/// Blocks of a file that are kept in memory, 20 bytes of each.
const MOST_BLOCKS: u64 = 1 << 20;
const LEAST_BLOCK: u64 = 4 << 10;
const MOST_BLOCK: u64 = 1 << 20;

/// How long the blocks of a file of `size` are, in bytes: a power of two near half its root.
/// Sums and what is sent around each change cost the same then if there are some dozens of
/// changes. `None` where there would be too many.
pub fn block_len(size: u64) -> Option<u32> {
    let block = (size.isqrt() / 2).next_power_of_two();
    let least = size.div_ceil(MOST_BLOCKS).next_power_of_two();
    let block = block.max(least).max(LEAST_BLOCK);
    (block <= MOST_BLOCK).then_some(block as u32)
}

/// Whether two files of these sizes, in bytes, may be forms of one, and large enough for that to
/// pay.
pub fn may_be_forms(one: u64, other: u64) -> bool {
    one.min(other) >= LEAST && one / ALIKE <= other && other / ALIKE <= one
}

/// Another range that is to be copied: one that continues the last becomes one with it.
pub(crate) fn queue_copy(copies: &mut VecDeque<Found>, next: Found) {
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

/// The next range to copy, of at most `most` bytes; what is left of it is the next again.
pub(crate) fn next_copy(copies: &mut VecDeque<Found>, most: u64) -> Option<Found> {
    let whole = copies.pop_front()?;
    let next = Found {
        len: whole.len.min(most),
        ..whole
    };
    if next.len < whole.len {
        copies.push_front(Found {
            basis: whole.basis + next.len,
            at: whole.at + next.len,
            len: whole.len - next.len,
        });
    }
    Some(next)
}

/// Another range that is to be searched: those that touch become one of at most a segment more.
pub(crate) fn queue_search(todo: &mut VecDeque<(u64, u64)>, from: u64, to: u64) {
    match todo.back_mut() {
        Some((start, end)) if *end == from && to - *start <= SEGMENT => *end = to,
        _ => todo.push_back((from, to)),
    }
}

/// Whether a search that has found so much of what it has seen is given up: `all` bytes of the
/// `size` of the file were not found where they stood.
pub(crate) fn is_hopeless(seen: u64, found: u64, all: u64, size: u64) -> bool {
    seen >= HOPELESS && found < seen / 8 && all > size / 2
}

/// What [`compare`] found of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// What the range's blocks are known by.
    pub own: Vec<Strong>,
    /// What is not as in the basis: first bytes and those behind the last, in order, not touching.
    pub differs: Vec<(u64, u64)>,
}

impl Compared {
    /// Adds what was found of the range behind.
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

/// Compares the `bytes` at `offset`, which begin with a block, to what the basis has there: its
/// sums as they came, none where it has ended.
pub fn compare(key: &SumKey, block: u32, offset: u64, bytes: &[u8], basis: &[u8]) -> Compared {
    let mut found = Compared::default();
    let mut theirs = BlockSum::read_all(basis);
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
