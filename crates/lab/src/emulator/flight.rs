use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use crate::packet::TunFrame;

/// Frame that has left the queue and has not arrived.
#[derive(Debug)]
pub(super) struct FrameInFlight {
    /// Arrival time in nanoseconds.
    pub(super) at: u64,
    /// Figures of the frame: segments, and their IP bytes.
    pub(super) packets: u64,
    pub(super) bytes: u64,
    /// Created by the path itself.
    pub(super) own: bool,
    pub(super) frame: TunFrame,
}

/// Frames in flight in one direction: ordered ones in a queue, the few that others may overtake in
/// a heap.
#[derive(Debug, Default)]
pub(super) struct InFlightQueue {
    ordered: VecDeque<FrameInFlight>,
    others: BinaryHeap<Reverse<OrderedFrame>>,
    number: u64,
}

impl InFlightQueue {
    /// Adds an ordered frame behind the others.
    pub(super) fn push(&mut self, mut flying: FrameInFlight) {
        if let Some(last) = self.ordered.back() {
            flying.at = flying.at.max(last.at);
        }
        self.ordered.push_back(flying);
    }

    /// Adds a frame that arrives at its own time.
    pub(super) fn push_apart(&mut self, flying: FrameInFlight) {
        self.number += 1;
        let number = self.number;
        self.others.push(Reverse(OrderedFrame { number, flying }));
    }

    /// Arrival time of the next frame.
    pub(super) fn next_at(&self) -> Option<u64> {
        let ordered = self.ordered.front().map(|flying| flying.at);
        let other = self.others.peek().map(|Reverse(next)| next.flying.at);
        ordered.into_iter().chain(other).min()
    }

    /// Removes the next frame, due or not.
    pub(super) fn pop(&mut self) -> Option<FrameInFlight> {
        let other = self.others.peek().map(|Reverse(next)| next.flying.at);
        match (self.ordered.front(), other) {
            (Some(first), Some(at)) if first.at > at => {}
            (None, _) => {}
            (Some(_), _) => return self.ordered.pop_front(),
        }
        self.others.pop().map(|Reverse(next)| next.flying)
    }
}

/// A heap entry, sorted by arrival time, then by order of insertion.
#[derive(Debug)]
struct OrderedFrame {
    number: u64,
    flying: FrameInFlight,
}

impl Ord for OrderedFrame {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |entry: &Self| (entry.flying.at, entry.number);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for OrderedFrame {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for OrderedFrame {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for OrderedFrame {}
