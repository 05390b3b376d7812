//! Receives the sums of the remote file, finds its blocks in the basis file and copies them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use sftp::Reply;
use sftp::blocks::StrongSum;

use super::{GetDelta, Stage};
use crate::DiskRequest;
use crate::delta::{
    BasisIndex, DeltaMatches, IN_PLACE, MatchedRange, SEARCHING, SEGMENT, is_hopeless, next_copy,
    queue_copy, queue_search,
};
use crate::lane::core::LaneContext;

/// Number of copies that wait for or run on the disk threads, and the bytes of each.
const COPYING: usize = 8;
const COPIED: u64 = 8 << 20;

/// Search of the whole basis file for blocks that did not match at their own offset.
#[derive(Debug)]
pub(super) struct Search {
    basis: Arc<BasisIndex>,
    todo: VecDeque<(u64, u64)>,
    running: usize,
    /// Strong sums to find, and their offset in the basis file once found.
    wanted: BTreeMap<StrongSum, Option<u64>>,
    /// Number of bytes that were missing, searched in the basis file, and found.
    all: u64,
    seen: u64,
    found: u64,
}

impl GetDelta {
    pub(super) fn on_sums(&mut self, core: &mut LaneContext, offset: u64, len: u64, reply: &Reply) {
        self.asking -= 1;
        if self.given_up() {
            return;
        }
        let Reply::Sums(sums) = reply else {
            // The file has become shorter, or the server's answer is invalid.
            self.plain = true;
            return;
        };
        if !self.blocks.keep(offset, len, sums) {
            self.plain = true;
            return;
        }
        self.left.insert(offset, len);
        let older = self.older.unwrap_or(0);
        if offset >= older {
            self.missing.insert(offset, offset + len);
            return;
        }
        self.compare(core, offset, sums.clone());
    }

    /// Compares the basis file with the sums of the segment at `offset`.
    fn compare(&mut self, core: &mut LaneContext, offset: u64, sums: Bytes) {
        let older = self.older.unwrap_or(0);
        self.comparing += 1;
        let request = DiskRequest::Compare {
            job: self.id,
            key: self.key,
            block: self.blocks.block,
            offset,
            len: SEGMENT.min(older - offset) as usize,
            basis: sums,
        };
        self.ask_disk(core, request);
    }

    /// Handles the comparison of a segment. Bytes that the sums claim beyond the end of the basis
    /// file count as missing.
    pub(super) fn on_compared(&mut self, offset: u64, len: u64, compared: DeltaMatches) {
        self.comparing -= 1;
        let older = self.older.unwrap_or(0);
        if len < SEGMENT.min(older - offset) {
            // The basis file has become shorter.
            self.plain = true;
            return;
        }
        let end = self.blocks.segment_end(offset);
        let behind = offset + len;
        let mut same = offset;
        for (from, to) in compared.differs {
            self.copy(same, same, from.min(end).saturating_sub(same));
            same = to;
            // A short difference between unchanged parts is new data: it is read while the rest is
            // hashed.
            let within = from > offset && to < behind.min(end);
            if within && to - from <= IN_PLACE {
                self.literals.push_back((from, to));
                continue;
            }
            self.unused.push_back((from, to));
            self.lack(from, to.min(end));
        }
        self.copy(same, same, behind.min(end).saturating_sub(same));
        self.lack(behind, end);
    }

    /// Records a range of the file that did not match at its own offset.
    fn lack(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        match self.missing.range_mut(..from).next_back() {
            Some((_, end)) if *end == from => *end = to,
            _ => {
                self.missing.insert(from, to);
            }
        }
    }

    fn copy(&mut self, basis: u64, at: u64, len: u64) {
        queue_copy(&mut self.copies, MatchedRange { basis, at, len });
    }

    /// Starts all work that is possible now.
    pub(super) fn rebuild(&mut self, core: &mut LaneContext) {
        let told = self.asked >= self.blocks.size && self.asking + self.comparing == 0;
        if told && self.search.is_none() {
            self.search = Some(self.search_for_missing());
        }
        self.run_searches(core);
        self.read_rest();
        self.run_copies(core);
        if !self.literals.is_empty() {
            core.stream(self.id);
        }
        let all = told && self.checked == self.blocks.size && self.left.is_empty();
        if all && self.stage == Stage::Rebuilding && !self.given_up() {
            self.finish(core);
        }
    }

    fn search_for_missing(&mut self) -> Search {
        let older = self.older.unwrap_or(0);
        let mut wanted = BTreeMap::new();
        for (from, to) in &self.missing {
            let mut at = self.blocks.around(*from).0;
            while at < *to {
                if let Some(strong) = self.blocks.strong(at) {
                    wanted.insert(strong, None);
                }
                at = self.blocks.around(at).1;
            }
        }
        let mut todo = VecDeque::<(u64, u64)>::new();
        if !wanted.is_empty() {
            for (from, to) in std::mem::take(&mut self.unused) {
                queue_search(&mut todo, from, to);
            }
            // Parts of the basis file beyond the last segment of the file.
            let mut from = self.blocks.size.div_ceil(SEGMENT) * SEGMENT;
            while from < older {
                queue_search(&mut todo, from, older.min(from + SEGMENT));
                from += SEGMENT;
            }
        }
        let sums = match todo.is_empty() {
            true => Vec::new(),
            false => self.blocks.all(),
        };
        let basis = BasisIndex::new(self.key, self.blocks.block, self.blocks.size, sums);
        let mut search = Search {
            basis: Arc::new(basis),
            todo,
            running: 0,
            wanted,
            all: self.missing.iter().map(|(from, to)| to - from).sum(),
            seen: 0,
            found: 0,
        };
        self.note_kept(&mut search);
        search
    }

    /// Records blocks that matched at their own offset and are wanted elsewhere as well.
    fn note_kept(&self, search: &mut Search) {
        if search.wanted.is_empty() {
            return;
        }
        let mut at = 0;
        let mut missing = self.missing.iter().peekable();
        while at < self.blocks.size {
            let end = self.blocks.around(at).1;
            while missing.next_if(|(_, to)| **to <= at).is_some() {}
            let is_missing = missing.peek().is_some_and(|(from, _)| **from < end);
            if !is_missing
                && end <= self.older.unwrap_or(0)
                && let Some(strong) = self.blocks.strong(at)
                && let Some(place) = search.wanted.get_mut(&strong)
            {
                place.get_or_insert(at);
            }
            at = end;
        }
    }

    fn run_searches(&mut self, core: &mut LaneContext) {
        while let Some(search) = &mut self.search
            && search.running < SEARCHING
            && let Some((from, to)) = search.todo.pop_front()
        {
            search.running += 1;
            let request = DiskRequest::Search {
                job: self.id,
                basis: Arc::clone(&search.basis),
                from,
                to,
                size: self.older.unwrap_or(0),
            };
            self.ask_disk(core, request);
        }
    }

    /// Handles the result of a search of the basis file.
    pub(super) fn on_searched(&mut self, (from, to): (u64, u64), found: Vec<MatchedRange>) {
        let Some(mut search) = self.search.take() else {
            return;
        };
        search.running -= 1;
        search.seen += to - from;
        for found in found {
            let mut at = found.basis;
            while at < found.basis + found.len {
                let (from, to) = self.blocks.around(at);
                let place = found.at + (from - found.basis);
                if let Some(strong) = self.blocks.strong(from)
                    && let Some(known) = search.wanted.get_mut(&strong)
                {
                    known.get_or_insert(place);
                }
                if self.take_missing(from, to) {
                    search.found += to - from;
                    self.copy(place, from, to - from);
                }
                at = to.max(at + 1);
            }
        }
        if is_hopeless(search.seen, search.found, search.all, self.blocks.size) {
            self.plain = true;
        }
        self.search = Some(search);
    }

    /// After the last search, copies missing blocks from a known place or reads them.
    fn read_rest(&mut self) {
        let Some(search) = &mut self.search else {
            return;
        };
        if search.running > 0 || !search.todo.is_empty() || self.missing.is_empty() {
            return;
        }
        let wanted = std::mem::take(&mut search.wanted);
        for (from, to) in std::mem::take(&mut self.missing) {
            let mut at = from;
            while at < to {
                let (begin, end) = self.blocks.around(at);
                let whole = begin == at && end <= to;
                let place = self.blocks.strong(begin).filter(|_| whole);
                match place.and_then(|strong| wanted.get(&strong).copied().flatten()) {
                    Some(place) => self.copy(place, at, end - at),
                    None => self.read(at, end.min(to)),
                }
                at = end.min(to);
            }
        }
    }

    fn read(&mut self, from: u64, to: u64) {
        match self.literals.back_mut() {
            Some((_, end)) if *end == from => *end = to,
            _ => self.literals.push_back((from, to)),
        }
    }

    /// Removes a block from the missing ranges; false if any byte of it is not missing.
    fn take_missing(&mut self, from: u64, to: u64) -> bool {
        let Some((start, end)) = self.missing.range(..=from).next_back() else {
            return false;
        };
        let (start, end) = (*start, *end);
        if end < to {
            return false;
        }
        self.missing.remove(&start);
        if start < from {
            self.missing.insert(start, from);
        }
        if to < end {
            self.missing.insert(to, end);
        }
        true
    }

    fn run_copies(&mut self, core: &mut LaneContext) {
        while self.copying < COPYING
            && let Some(copy) = next_copy(&mut self.copies, COPIED)
        {
            self.copying += 1;
            let request = DiskRequest::CopyOlder {
                job: self.id,
                from: copy.basis,
                at: copy.at,
                len: copy.len,
            };
            self.ask_disk(core, request);
        }
    }

    /// Records bytes of the temporary, and verifies segments that are complete.
    pub(super) fn is_there(&mut self, core: &mut LaneContext, mut at: u64, len: u64) {
        let end = at.saturating_add(len);
        while at < end && !self.given_up() {
            let segment = at / SEGMENT * SEGMENT;
            let to = end.min(segment + SEGMENT);
            let Some(left) = self.left.get_mut(&segment) else {
                return;
            };
            *left = left.saturating_sub(to - at);
            if *left == 0 {
                self.left.remove(&segment);
                let request = DiskRequest::CheckRebuilt {
                    job: self.id,
                    key: self.key,
                    block: self.blocks.block,
                    offset: segment,
                    len: (self.blocks.segment_end(segment) - segment) as usize,
                    sums: self.blocks.of(segment),
                };
                self.ask_disk(core, request);
            }
            at = to;
        }
    }
}
