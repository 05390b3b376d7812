//! XXH128 (XXH3 with its default secret and no seed) of a run, and of a whole file from runs in any
//! order.
//!
//! XXH3 adds the result of each block of 1 KiB to its state and scrambles the state after each
//! block. A block's result does not depend on earlier blocks. Therefore it is computed when the
//! block is transferred, and 64 bytes per early block are kept until the preceding blocks are
//! known: the sum of the whole file needs no second pass.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_128;

use super::Digest;

/// Bytes between two scramblings: (192 - 64) / 8 stripes of 64 bytes (xxhash.h,
/// XXH3_hashLong_internal_loop).
const BLOCK: usize = 1024;
const STRIPE: usize = 64;
/// The memory limit for early blocks: it covers 512 MiB of a file after a gap.
const MOST_EARLY: usize = 32 << 20;

const PRIME32: [u64; 3] = [0x9E37_79B1, 0x85EB_CA77, 0xC2B2_AE3D];
const PRIME64: [u64; 5] = [
    0x9E37_79B1_85EB_CA87,
    0xC2B2_AE3D_27D4_EB4F,
    0x1656_67B1_9E37_79F9,
    0x85EB_CA77_C2B2_AE63,
    0x27D4_EB2F_1656_67C5,
];

/// kSecret of xxhash.h.
#[rustfmt::skip]
const SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
];

type XxhLanes = [u64; 8];

/// Returns eight words of the secret, starting at byte `at`.
const fn secret(at: usize) -> XxhLanes {
    let mut lanes = [0; 8];
    let mut n = 0;
    while n < 64 {
        lanes[n / 8] |= (SECRET[at + n] as u64) << (8 * (n % 8));
        n += 1;
    }
    lanes
}

/// The key of each stripe of a block.
const KEYS: [XxhLanes; BLOCK / STRIPE] = {
    let mut keys = [[0; 8]; BLOCK / STRIPE];
    let mut n = 0;
    while n < keys.len() {
        keys[n] = secret(8 * n);
        n += 1;
    }
    keys
};
const SCRAMBLE: XxhLanes = secret(128);
const LAST_STRIPE: XxhLanes = secret(192 - 64 - 7);
const MERGE_LOW: XxhLanes = secret(11);
const MERGE_HIGH: XxhLanes = secret(192 - 64 - 11);

const BEGIN: XxhLanes = [
    PRIME32[2], PRIME64[0], PRIME64[1], PRIME64[2], PRIME64[3], PRIME32[1], PRIME64[4], PRIME32[0],
];

/// Adds a stripe: XXH3_accumulate_512.
#[inline(always)]
fn accumulate(to: &mut XxhLanes, stripe: &[u8; STRIPE], key: &XxhLanes) {
    let mut data = [0; 8];
    let (words, _) = stripe.as_chunks::<8>();
    for (value, word) in data.iter_mut().zip(words) {
        *value = u64::from_le_bytes(*word);
    }
    for n in 0..8 {
        let keyed = data[n] ^ key[n];
        let product = (keyed & 0xffff_ffff) * (keyed >> 32);
        to[n] = to[n].wrapping_add(data[n ^ 1]).wrapping_add(product);
    }
}

/// Returns the result of the whole stripes of a block or less.
fn given(block: &[u8]) -> XxhLanes {
    let mut sum = [0; 8];
    let (stripes, _) = block.as_chunks::<STRIPE>();
    for (stripe, key) in stripes.iter().zip(&KEYS) {
        accumulate(&mut sum, stripe, key);
    }
    sum
}

/// Adds a block's result and scrambles: XXH3_scrambleAcc.
fn fold(state: &mut XxhLanes, block: &XxhLanes) {
    for n in 0..8 {
        let sum = state[n].wrapping_add(block[n]);
        state[n] = ((sum ^ (sum >> 47)) ^ SCRAMBLE[n]).wrapping_mul(PRIME32[0]);
    }
}

fn merged(state: &XxhLanes, keys: &XxhLanes, begin: u64) -> u64 {
    let mut sum = begin;
    for n in 0..4 {
        let left = u128::from(state[2 * n] ^ keys[2 * n]);
        let product = left * u128::from(state[2 * n + 1] ^ keys[2 * n + 1]);
        sum = sum.wrapping_add(product as u64 ^ (product >> 64) as u64);
    }
    sum = (sum ^ (sum >> 37)).wrapping_mul(0x1656_6791_9E37_79F9);
    sum ^ (sum >> 32)
}

/// The end of the summed data, whose last bytes are processed differently from whole blocks.
#[derive(Clone, Debug)]
struct SumTail {
    /// The last 1 to 1,024 bytes; empty for empty data.
    last: Vec<u8>,
    /// The stripe before them, if it was seen.
    before: Option<[u8; STRIPE]>,
}

impl SumTail {
    /// Returns the digest of `len` bytes, of which the blocks before this end produced `state`.
    fn finish(&self, state: &XxhLanes, len: u64) -> Digest {
        if len <= BLOCK as u64 {
            return Digest::new(&xxh3_128(&self.last).to_be_bytes());
        }
        let mut state = *state;
        let whole = self.last.len().saturating_sub(1) / STRIPE * STRIPE;
        let sum = given(&self.last[..whole]);
        for n in 0..8 {
            state[n] = state[n].wrapping_add(sum[n]);
        }
        let mut stripe = [0; STRIPE];
        let here = self.last.len().min(STRIPE);
        let before = self.before.unwrap_or([0; STRIPE]);
        stripe[..STRIPE - here].copy_from_slice(&before[here..]);
        stripe[STRIPE - here..].copy_from_slice(&self.last[self.last.len() - here..]);
        accumulate(&mut state, &stripe, &LAST_STRIPE);
        let low = merged(&state, &MERGE_LOW, len.wrapping_mul(PRIME64[0]));
        let high = merged(&state, &MERGE_HIGH, !len.wrapping_mul(PRIME64[1]));
        let value = u128::from(high) << 64 | u128::from(low);
        Digest::new(&value.to_be_bytes())
    }
}

/// State of the XXH128 of one run of bytes.
pub(super) struct XxhState {
    state: XxhLanes,
    /// The state before the last block, which is processed differently if no data follow.
    earlier: XxhLanes,
    /// Bytes in whole blocks.
    done: u64,
    /// The last whole block.
    block: Vec<u8>,
    /// The bytes after the last whole block.
    tail: Vec<u8>,
    /// Block results that [`WholeFileXxh::take`] has not received yet.
    fresh: Vec<XxhLanes>,
    /// True if a [`WholeFileXxh`] receives the block results.
    of_whole: bool,
}

impl XxhState {
    /// Starts a run; with `of_whole`, block results are kept for a [`WholeFileXxh`].
    pub(super) fn new(of_whole: bool) -> Self {
        Self {
            state: BEGIN,
            earlier: BEGIN,
            done: 0,
            block: Vec::new(),
            tail: Vec::with_capacity(BLOCK),
            fresh: Vec::new(),
            of_whole,
        }
    }

    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        if !self.tail.is_empty() {
            let (head, rest) = bytes.split_at(bytes.len().min(BLOCK - self.tail.len()));
            self.tail.extend_from_slice(head);
            bytes = rest;
            if self.tail.len() < BLOCK {
                return;
            }
            let whole = std::mem::take(&mut self.tail);
            self.take(&whole);
            self.tail = std::mem::replace(&mut self.block, whole);
            self.tail.clear();
        }
        let (blocks, rest) = bytes.split_at(bytes.len() / BLOCK * BLOCK);
        blocks
            .chunks_exact(BLOCK)
            .for_each(|block| self.take(block));
        if let Some(last) = blocks.chunks_exact(BLOCK).next_back() {
            self.block.clear();
            self.block.extend_from_slice(last);
        }
        self.tail.extend_from_slice(rest);
    }

    fn take(&mut self, block: &[u8]) {
        let sum = given(block);
        self.earlier = self.state;
        fold(&mut self.state, &sum);
        if self.of_whole {
            self.fresh.push(sum);
        }
        self.done += BLOCK as u64;
    }

    fn end(&self) -> SumTail {
        match self.tail.is_empty() {
            true => SumTail {
                last: self.block.clone(),
                before: None,
            },
            false => SumTail {
                last: self.tail.clone(),
                before: self.block.last_chunk().copied(),
            },
        }
    }

    pub(super) fn finish(&self) -> Digest {
        let state = match self.tail.is_empty() {
            true => &self.earlier,
            false => &self.state,
        };
        self.end().finish(state, self.done + self.tail.len() as u64)
    }
}

/// The XXH checksum of a whole file, combined from runs in any order.
pub(super) struct WholeFileXxh {
    state: XxhLanes,
    /// The state before the last block, as in [`XxhState`].
    earlier: XxhLanes,
    /// The first byte that is not in `state`.
    next: u64,
    /// Block results that came early, as contiguous groups by offset.
    early: BTreeMap<u64, Vec<XxhLanes>>,
    held: usize,
    /// The end of the run that reaches farthest, and its offset.
    end: Option<(u64, SumTail)>,
    /// True if a run began within a block, or too many blocks were early.
    lost: bool,
}

impl Default for WholeFileXxh {
    fn default() -> Self {
        Self {
            state: BEGIN,
            earlier: BEGIN,
            next: 0,
            early: BTreeMap::new(),
            held: 0,
            end: None,
            lost: false,
        }
    }
}

impl WholeFileXxh {
    /// Takes the new block results of `run`, which began at `from`.
    pub(super) fn take(&mut self, from: u64, run: &mut XxhState) {
        let fresh = std::mem::take(&mut run.fresh);
        self.lost |= !from.is_multiple_of(BLOCK as u64);
        if fresh.is_empty() || self.lost {
            return;
        }
        let at = from + run.done - (fresh.len() * BLOCK) as u64;
        self.insert(at, fresh);
    }

    fn insert(&mut self, at: u64, blocks: Vec<XxhLanes>) {
        if at > self.next {
            self.held += blocks.len() * size_of::<XxhLanes>();
            let before = self.early.range_mut(..at).next_back();
            match before.filter(|(from, b)| **from + (b.len() * BLOCK) as u64 == at) {
                Some((_, before)) => before.extend(blocks),
                None => {
                    // Data that arrive twice are also compared separately (Seen::twice).
                    let has = self.early.entry(at).or_default();
                    if has.len() < blocks.len() {
                        *has = blocks;
                    }
                }
            }
            if self.held > MOST_EARLY {
                self.give_up();
            }
            return;
        }
        self.fold(at, &blocks);
        while let Some(entry) = self.early.first_entry().filter(|e| *e.key() <= self.next) {
            let (at, blocks) = entry.remove_entry();
            let held = blocks.len() * size_of::<XxhLanes>();
            self.held = self.held.saturating_sub(held);
            self.fold(at, &blocks);
        }
    }

    fn fold(&mut self, at: u64, blocks: &[XxhLanes]) {
        let had = ((self.next - at) / BLOCK as u64) as usize;
        for block in blocks.iter().skip(had) {
            self.earlier = self.state;
            fold(&mut self.state, block);
            self.next += BLOCK as u64;
        }
    }

    /// Takes the rest of `run`, which began at `from` and has ended.
    pub(super) fn end(&mut self, from: u64, run: &mut XxhState) {
        self.take(from, run);
        let to = from + run.done + run.tail.len() as u64;
        if !self.lost && self.end.as_ref().is_none_or(|(farthest, _)| to > *farthest) {
            self.end = Some((to, run.end()));
        }
    }

    /// Stops and frees memory; the sum is not wanted or not possible.
    pub(super) fn give_up(&mut self) {
        self.lost = true;
        self.early.clear();
    }

    /// Returns the digest of a file of `size` bytes if all of it has arrived.
    pub(super) fn finish(&self, size: u64) -> Option<Digest> {
        if size == 0 {
            return Some(Digest::new(&xxh3_128(b"").to_be_bytes()));
        }
        let (to, end) = self.end.as_ref().filter(|_| !self.lost)?;
        let len = end.last.len();
        let (state, whole) = match len == BLOCK {
            true => (&self.earlier, self.next == size),
            false => (&self.state, self.next + len as u64 == size),
        };
        // The last stripe may reach into the previous block, which another run had.
        let reaches = len < STRIPE && size > BLOCK as u64;
        let known = *to == size && whole && (!reaches || end.before.is_some());
        known.then(|| end.finish(state, size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n * n / 7 + n / 251) as u8).collect()
    }

    fn by_crate(bytes: &[u8]) -> Digest {
        Digest::new(&xxh3_128(bytes).to_be_bytes())
    }

    const LENGTHS: [usize; 16] = [
        0, 1, 63, 240, 241, 1023, 1024, 1025, 1087, 1088, 2047, 2048, 2049, 4096, 65_536, 300_001,
    ];

    #[test]
    fn a_run_has_the_sum_that_xxhash_makes_however_it_is_cut() {
        for len in LENGTHS {
            let data = bytes(len);
            for piece in [1, 7, 64, 1000, 1024, 1025, 4096, 1 << 20] {
                let mut run = XxhState::new(true);
                data.chunks(piece).for_each(|bytes| run.update(bytes));
                assert_eq!(run.finish(), by_crate(&data), "{len} bytes by {piece}");
            }
        }
    }

    /// Sums runs of `part` bytes, every third of them late, in pieces of uneven length.
    fn in_runs(data: &[u8], part: usize) -> Option<Digest> {
        let mut whole = WholeFileXxh::default();
        let runs: Vec<(usize, &[u8])> = data.chunks(part).enumerate().collect();
        let late = |(n, _): &&(usize, &[u8])| n % 3 == 1;
        let order = runs.iter().filter(|r| !late(r));
        for (n, run) in order.chain(runs.iter().filter(late).rev()) {
            let mut xxh = XxhState::new(true);
            for piece in run.chunks(5000) {
                xxh.update(piece);
                whole.take((n * part) as u64, &mut xxh);
            }
            assert_eq!(xxh.finish(), by_crate(run));
            whole.end((n * part) as u64, &mut xxh);
        }
        whole.finish(data.len() as u64)
    }

    #[test]
    fn runs_in_any_order_give_the_sum_of_the_whole() {
        for len in LENGTHS.into_iter().chain([258_048, 1_000_000]) {
            let data = bytes(len);
            for part in [1024, 4096, 7 * 1024, 258_048] {
                let made = in_runs(&data, part);
                // A last run shorter than a stripe has not seen the bytes before it.
                let unseen = len > part && (1..STRIPE).contains(&(len % part));
                let expected = (!unseen).then(|| by_crate(&data));
                assert_eq!(made, expected, "{len} bytes by {part}");
            }
        }
    }

    #[test]
    fn what_is_missing_crooked_or_too_early_makes_no_sum() {
        let data = bytes(10_240);
        let run = |whole: &mut WholeFileXxh, from: usize, to: usize| {
            let mut xxh = XxhState::new(true);
            xxh.update(&data[from..to]);
            whole.end(from as u64, &mut xxh);
        };
        let mut whole = WholeFileXxh::default();
        run(&mut whole, 0, 4096);
        run(&mut whole, 8192, 10_240);
        assert_eq!(whole.finish(10_240), None);
        run(&mut whole, 2048, 8192);
        run(&mut whole, 8192, 10_240);
        run(&mut whole, 1024, 3072);
        assert_eq!(whole.finish(10_240), Some(by_crate(&data)));
        assert_eq!(whole.finish(10_239), None);
        let mut whole = WholeFileXxh::default();
        run(&mut whole, 0, 5000);
        run(&mut whole, 5000, 10_240);
        assert_eq!(whole.finish(10_240), None);
        let mut whole = WholeFileXxh::default();
        let long = vec![[0; 8]; MOST_EARLY / 64 + 1];
        whole.insert(1024, long);
        assert!(whole.lost && whole.early.is_empty());
    }
}
