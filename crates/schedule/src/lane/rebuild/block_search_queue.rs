use std::collections::VecDeque;
use std::sync::Arc;

use super::{JobRequests, LaneContext};
use crate::DiskRequest;
use crate::delta::{BasisIndex, SEARCHING, is_hopeless, queue_search};

/// Search of a whole file for blocks that did not match at their own offset.
#[derive(Debug)]
pub(super) struct BlockSearchQueue {
    basis: Arc<BasisIndex>,
    todo: VecDeque<(u64, u64)>,
    running: usize,
    /// Number of bytes that did not match, that were searched, and that were found.
    all: u64,
    seen: u64,
    found: u64,
}

impl BlockSearchQueue {
    /// Creates a search of the ranges `todo` for blocks of `basis`, where `all` bytes are missing.
    pub(super) fn new(basis: BasisIndex, todo: VecDeque<(u64, u64)>, all: u64) -> Self {
        Self {
            basis: Arc::new(basis),
            todo,
            running: 0,
            all,
            seen: 0,
            found: 0,
        }
    }

    /// Returns the ranges to search, from ranges in order.
    pub(super) fn ranges(of: impl IntoIterator<Item = (u64, u64)>) -> VecDeque<(u64, u64)> {
        let mut todo = VecDeque::new();
        for (from, to) in of {
            queue_search(&mut todo, from, to);
        }
        todo
    }

    /// Starts as many searches as may run, of a local file of `size` bytes.
    pub(super) fn run(&mut self, requests: &mut JobRequests, core: &mut LaneContext, size: u64) {
        while self.running < SEARCHING
            && let Some((from, to)) = self.todo.pop_front()
        {
            self.running += 1;
            let request = DiskRequest::Search {
                job: requests.job(),
                basis: Arc::clone(&self.basis),
                from,
                to,
                size,
            };
            requests.ask_disk(core, request);
        }
    }

    /// Counts the result of a search.
    pub(super) fn searched(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    /// Counts `seen` searched bytes.
    pub(super) fn saw(&mut self, seen: u64) {
        self.seen += seen;
    }

    /// Counts `found` bytes.
    pub(super) fn found(&mut self, found: u64) {
        self.found += found;
    }

    /// Returns true if the search is to be given up, for a new file of `size` bytes.
    pub(super) fn is_hopeless(&self, size: u64) -> bool {
        is_hopeless(self.seen, self.found, self.all, size)
    }

    /// Returns true if everything was searched.
    pub(super) fn is_over(&self) -> bool {
        self.running == 0 && self.todo.is_empty()
    }
}
