//! Queue of received slices that bounds the memory they keep alive.

use std::collections::VecDeque;
use std::ops::Deref;

use bytes::{Bytes, BytesMut};

/// Size in bytes of a receive segment (`sys::ReceiveBuffers`); a slice keeps its whole segment
/// allocated.
const SEGMENT: usize = (1 << 20) + (260 << 10);
/// Memory that slices may keep beyond twice their own bytes.
const MORE: usize = 3 * SEGMENT;

/// Queue of slices of receive segments, which keeps at most a small multiple of its bytes
/// allocated. Slices that would keep more are copied. That is the case for a client that sends
/// little among much other traffic; the data of a client that fills whole segments is never copied.
#[derive(Debug)]
pub struct ReceivedSliceQueue {
    pieces: VecDeque<Bytes>,
    /// Memory kept by each slice. Entries at the front may belong to slices that were already
    /// taken.
    costs: VecDeque<SliceMemory>,
    /// Sum over all slices.
    sum: SliceMemory,
    /// Address behind the last slice.
    end: usize,
    small: usize,
    longest: usize,
}

/// Memory that a slice keeps allocated, and its own bytes; zero for a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SliceMemory {
    kept: usize,
    bytes: usize,
}

impl ReceivedSliceQueue {
    /// Creates an empty queue. Two slices shorter than `small` are joined, and copies are joined up
    /// to `longest` bytes.
    pub fn new(small: usize, longest: usize) -> Self {
        Self {
            pieces: VecDeque::new(),
            costs: VecDeque::new(),
            sum: SliceMemory::default(),
            end: 0,
            small,
            longest,
        }
    }

    /// Appends a slice, copied if it would keep too much memory.
    pub fn push(&mut self, bytes: Bytes) {
        self.forget();
        let both_small = |last: &Bytes| last.len() < self.small && bytes.len() < self.small;
        if self.pieces.back().is_some_and(both_small) {
            self.join(&bytes);
            return;
        }
        let cost = self.cost(&bytes);
        let sum = self.sum.plus(cost);
        if sum.kept > 2 * sum.bytes + MORE {
            self.push_copied(&bytes);
            return;
        }
        self.end = end(&bytes);
        self.sum = sum;
        self.costs.push_back(cost);
        self.pieces.push_back(bytes);
    }

    /// Appends a copy of `bytes`, which keeps no segment.
    pub fn push_copied(&mut self, bytes: &[u8]) {
        self.forget();
        let fits = |last: &Bytes| last.len() + bytes.len() <= self.longest;
        let is_copy = self.costs.back() == Some(&SliceMemory::default());
        if is_copy && self.pieces.back().is_some_and(fits) {
            self.join(bytes);
            return;
        }
        self.costs.push_back(SliceMemory::default());
        self.pieces.push_back(Bytes::copy_from_slice(bytes));
    }

    /// Returns the queue for taking slices from its front.
    pub fn queue(&mut self) -> &mut VecDeque<Bytes> {
        &mut self.pieces
    }

    /// Removes and returns all slices.
    pub fn take(&mut self) -> VecDeque<Bytes> {
        let none = Self::new(self.small, self.longest);
        std::mem::replace(self, none).pieces
    }

    /// Joins `bytes` with the last slice.
    fn join(&mut self, bytes: &[u8]) {
        let Some(last) = self.pieces.back_mut() else {
            return;
        };
        let both = std::mem::take(last).try_into_mut();
        // A slice shares its memory with others, so it has to be copied.
        let mut both = both.unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        both.extend_from_slice(bytes);
        *last = both.freeze();
        if let Some(cost) = self.costs.back_mut() {
            self.sum = self.sum.minus(std::mem::take(cost));
        }
    }

    /// Returns the memory that `slice` would keep in addition. A slice closely behind the last one
    /// is in the same segment and costs only the distance between the two.
    fn cost(&self, slice: &Bytes) -> SliceMemory {
        let behind = end(slice).checked_sub(self.end);
        let near = behind.filter(|behind| *behind >= slice.len() && !self.costs.is_empty());
        SliceMemory {
            kept: near.map_or(SEGMENT, |behind| behind.min(SEGMENT)),
            bytes: slice.len(),
        }
    }

    /// Drops the costs of slices that were taken from the front.
    fn forget(&mut self) {
        while self.costs.len() > self.pieces.len() {
            let gone = self.costs.pop_front().unwrap_or_default();
            self.sum = self.sum.minus(gone);
        }
    }
}

impl Deref for ReceivedSliceQueue {
    type Target = VecDeque<Bytes>;

    fn deref(&self) -> &VecDeque<Bytes> {
        &self.pieces
    }
}

impl SliceMemory {
    fn plus(self, other: Self) -> Self {
        Self {
            kept: self.kept + other.kept,
            bytes: self.bytes + other.bytes,
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            kept: self.kept - other.kept,
            bytes: self.bytes - other.bytes,
        }
    }
}

fn end(bytes: &Bytes) -> usize {
    bytes.as_ptr() as usize + bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns slices of `len` bytes with `between` bytes behind each, in `segments` segments.
    fn received(segments: usize, len: usize, between: usize) -> Vec<Bytes> {
        let mut pieces = Vec::new();
        for n in 0..segments {
            let mut segment = BytesMut::from(&vec![n as u8; SEGMENT][..]);
            while segment.len() >= len + between {
                pieces.push(segment.split_to(len).freeze());
                let _ = segment.split_to(between);
            }
        }
        pieces
    }

    fn slices(pieces: &ReceivedSliceQueue) -> usize {
        let mut costs = pieces.costs.iter();
        costs
            .by_ref()
            .filter(|cost| **cost != SliceMemory::default())
            .count()
    }

    fn filled(small: usize, pieces: &[Bytes]) -> ReceivedSliceQueue {
        let mut all = ReceivedSliceQueue::new(small, 64 << 10);
        pieces.iter().for_each(|piece| all.push(piece.clone()));
        assert!(Vec::from(all.pieces.clone()).concat() == pieces.concat());
        all
    }

    #[test]
    fn whoever_fills_segments_has_nothing_copied() {
        for (len, between) in [
            (32 << 10, 52),
            (255 << 10, 52),
            (8 << 10, 52),
            (400_000, 0),
            // Other channels have their share of the connection.
            (32 << 10, 32 << 10),
        ] {
            let pieces = received(3, len, between);
            let all = filled(2 << 10, &pieces);
            assert_eq!(slices(&all), pieces.len(), "{len}");
            for (ours, theirs) in all.iter().zip(&pieces) {
                assert_eq!(ours.as_ptr(), theirs.as_ptr(), "{len}");
            }
        }
    }

    /// Regression: slices of 2 KiB, one in each segment, kept 500 times their size.
    #[test]
    fn what_keeps_far_more_than_it_has_is_copied() {
        for len in [2 << 10, 8 << 10, 32 << 10] {
            let pieces = received(100, len, SEGMENT - len);
            assert_eq!(pieces.len(), 100);
            let all = filled(2 << 10, &pieces);
            let kept = slices(&all) * SEGMENT;
            assert!(kept <= 2 * all.iter().map(Bytes::len).sum::<usize>() + MORE);
            assert!(slices(&all) >= 3, "the first ones are slices");
            let copies = (100 * len).div_ceil(64 << 10) + 1;
            assert!(
                all.len() <= slices(&all) + copies,
                "copies are put together"
            );
        }
    }

    #[test]
    fn what_was_taken_out_counts_no_more() {
        let pieces = received(100, 2 << 10, SEGMENT - (2 << 10));
        let mut all = ReceivedSliceQueue::new(1, 64 << 10);
        for piece in &pieces {
            all.push(piece.clone());
            assert_eq!(slices(&all), 1);
            assert_eq!(all.queue().pop_front().as_ref(), Some(piece));
        }
        all.push(pieces[0].clone());
        all.push_copied(b"more");
        all.push_copied(b" of it");
        assert_eq!(all.take()[1], b"more of it"[..]);
        assert!(all.is_empty());
        all.push(pieces[0].clone());
        assert_eq!((all.sum.kept, all.len()), (SEGMENT, 1));
    }

    #[test]
    fn small_ones_are_put_together() {
        let pieces = received(2, 1 << 10, SEGMENT / 8);
        let all = filled(2 << 10, &pieces);
        assert!(all.len() <= pieces.len() / 2);
        assert_eq!(slices(&all), 0);
    }
}
