//! Receives the sums of the basis file, has the server copy matching ranges, and sends the rest.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use sftp::blocks::{BlockSum, SumKind};
use sftp::{Reply, Request};
use wire::Block;

use super::{DeltaUpload, Search, Stage};
use crate::DiskRequest;
use crate::delta::{
    ASKED, BasisIndex, DeltaMatches, IN_PLACE, MatchedRange, SEARCHING, SEGMENT, is_hopeless,
    next_copy, queue_copy, queue_search,
};
use crate::lane::core::{LaneContext, RequestTag};

/// Number and size of copy-data requests in flight. A long one delays the answers behind it.
const COPYING: usize = 64;
const COPIED: u64 = 16 << 20;

impl DeltaUpload {
    /// Starts rebuilding, once both files are open or their OPENs were sent.
    pub(super) fn begin(&mut self, core: &mut LaneContext) {
        self.stage = Stage::Rebuilding;
        let old = self.old.map_or(0, |old| old.size);
        // Segments beyond the end of the basis file only need their own sums.
        let mut offset = old.div_ceil(SEGMENT) * SEGMENT;
        while offset < self.size() {
            self.compare(core, offset, Bytes::new());
            offset += SEGMENT;
        }
        core.stream(self.id);
    }

    /// Sends the next request: sum requests first, since their answers take longest, then copies.
    pub(super) fn send_next(&mut self, core: &mut LaneContext) -> bool {
        let old = self.old.map_or(0, |old| old.size);
        if let Some(of) = self.handles.sums.clone()
            && self.basis.asked < old
            && self.basis.in_flight < ASKED
        {
            let offset = self.basis.asked;
            let len = SEGMENT.min(old - offset);
            self.basis.asked += len;
            self.basis.in_flight += 1;
            self.ask_sums(core, SumKind::Rolling, of.as_bytes(), (offset, len));
            return true;
        }
        let (Some(from), Some(to)) = (&self.handles.old, &self.handles.new) else {
            return false;
        };
        let (from, to) = (from.clone(), to.clone());
        if self.moving < COPYING
            && let Some(copy) = next_copy(&mut self.copies, COPIED)
        {
            let len = copy.len;
            self.moving += 1;
            self.note_sent(copy.at, len);
            let request = Request::CopyData {
                from: from.as_bytes(),
                from_offset: copy.basis,
                len,
                to: to.as_bytes(),
                to_offset: copy.at,
            };
            self.send(core, RequestTag::Copied { len }, &request);
            return true;
        }
        let Some((at, end)) = self.literals.pop_front() else {
            // Sums of the basis file come first, since more work depends on them.
            return core.server.in_order && self.basis.asked >= old && self.ask_ready(core);
        };
        let len = (end - at).min(u64::from(core.server.write));
        if at + len < end {
            self.literals.push_front((at + len, end));
        }
        let block = core.block(to.as_bytes().len(), len as usize);
        core.reading += len;
        self.reads.insert(at, len);
        let request = DiskRequest::Read {
            job: self.id,
            offset: at,
            len: len as usize,
            block,
        };
        self.ask_disk(core, request);
        true
    }

    pub(super) fn ask_sums(
        &mut self,
        core: &mut LaneContext,
        kind: SumKind,
        handle: &[u8],
        (offset, len): (u64, u64),
    ) {
        let rebuilt = kind == SumKind::Strong;
        let request = Request::Hash {
            handle,
            offset,
            len: len as u32,
            block: self.block,
            kind: kind.name().as_bytes(),
            key: &self.key.clone(),
        };
        let what = RequestTag::Sums {
            offset,
            len,
            rebuilt,
        };
        self.send(core, what, &request);
    }

    /// Returns true if an answer has as many sums as the range has blocks.
    pub(super) fn is_whole(&self, sums: &Bytes, kind: SumKind, len: u64) -> bool {
        let blocks = len.div_ceil(u64::from(self.block.max(1)));
        sums.len() as u64 == blocks * kind.bytes() as u64
    }

    pub(super) fn on_sums(&mut self, core: &mut LaneContext, offset: u64, len: u64, reply: &Reply) {
        self.basis.in_flight -= 1;
        match reply {
            Reply::Sums(sums) if self.is_whole(sums, SumKind::Rolling, len) && !self.given_up() => {
                self.basis.sums.insert(offset, sums.clone());
                self.compare(core, offset, sums.clone());
            }
            // The basis file has become shorter, or the server's answer is invalid.
            _ => self.plain = true,
        }
    }

    fn compare(&mut self, core: &mut LaneContext, offset: u64, basis: Bytes) {
        if offset >= self.size() {
            return;
        }
        self.basis.comparing += 1;
        let request = DiskRequest::Compare {
            job: self.id,
            key: self.key,
            block: self.block,
            offset,
            len: SEGMENT.min(self.size() - offset) as usize,
            basis,
        };
        self.ask_disk(core, request);
    }

    pub(super) fn on_compared(&mut self, offset: u64, len: u64, compared: DeltaMatches) {
        self.basis.comparing -= 1;
        if len < SEGMENT.min(self.size() - offset) {
            // The source has become shorter.
            self.plain = true;
            return;
        }
        let mut same = offset;
        let end = offset + len;
        for (from, to) in compared.differs {
            self.copy(same, same, from - same);
            same = to;
            // A short difference between unchanged parts is new data: it is sent while the rest is
            // hashed.
            let within = from > offset && to < end;
            match within && to - from <= IN_PLACE {
                true => self.literals.push_back((from, to)),
                false => {
                    self.differs.insert(from, to);
                }
            }
        }
        self.copy(same, same, end - same);
        self.own.insert(offset, compared.own);
    }

    fn copy(&mut self, basis: u64, at: u64, len: u64) {
        queue_copy(&mut self.copies, MatchedRange { basis, at, len });
    }

    /// Starts all work that is possible now.
    pub(super) fn rebuild(&mut self, core: &mut LaneContext) {
        let old = self.old.map_or(0, |old| old.size);
        let known = self.basis.asked >= old && self.basis.in_flight + self.basis.comparing == 0;
        if known && self.search.is_none() {
            self.search = Some(self.search_for_differing(old));
        }
        self.run_searches(core);
        self.take_results();
        if !self.copies.is_empty() || !self.literals.is_empty() {
            core.stream(self.id);
        }
        if self.is_sent(core) {
            core.stream(self.id);
        }
    }

    /// Returns true if everything was sent or copied, so that only the check is left.
    pub(super) fn is_sent(&mut self, core: &LaneContext) -> bool {
        let found = self.search.as_ref().is_some_and(|s| s.order.is_empty());
        let sent = self.copies.is_empty() && self.literals.is_empty() && self.reads.is_empty();
        // A server that handles requests in order computes the sums after the earlier writes.
        let all = found && sent && (self.moving == 0 || core.server.in_order);
        if all && !self.given_up() {
            self.stage = Stage::Checking;
        }
        all
    }

    fn search_for_differing(&mut self, old: u64) -> Search {
        let sums = std::mem::take(&mut self.basis.sums);
        let sums = sums.values().flat_map(|sums| BlockSum::read_all(sums));
        let basis = BasisIndex::new(self.key, self.block, old, sums.collect());
        let (mut todo, mut all) = (VecDeque::<(u64, u64)>::new(), 0);
        for (from, to) in std::mem::take(&mut self.differs) {
            all += to - from;
            queue_search(&mut todo, from, to);
        }
        Search {
            basis: Arc::new(basis),
            order: todo.iter().map(|(from, _)| *from).collect(),
            todo,
            running: 0,
            results: std::collections::BTreeMap::new(),
            covered: 0,
            all,
            seen: 0,
            found: 0,
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
                size: self.size(),
            };
            self.ask_disk(core, request);
        }
    }

    pub(super) fn on_searched(&mut self, from: u64, to: u64, found: Vec<MatchedRange>) {
        if let Some(search) = &mut self.search {
            search.running -= 1;
            search.results.insert(from, (to, found));
        }
    }

    /// Queues copies of matches and sends the bytes between them; each byte once.
    fn take_results(&mut self) {
        let size = self.size();
        let Some(mut search) = self.search.take() else {
            return;
        };
        while let Some(first) = search.order.front()
            && let Some((to, found)) = search.results.remove(first)
        {
            let mut at = (*first).max(search.covered);
            search.seen += to - first;
            search.order.pop_front();
            for mut found in found {
                let skip = at.saturating_sub(found.at);
                if skip >= found.len {
                    continue;
                }
                found = MatchedRange {
                    basis: found.basis + skip,
                    at: found.at + skip,
                    len: found.len - skip,
                };
                if found.at > at {
                    self.literals.push_back((at, found.at));
                }
                self.copy(found.basis, found.at, found.len);
                search.found += found.len;
                at = found.at + found.len;
            }
            if at < to {
                self.literals.push_back((at, to));
                at = to;
            }
            search.covered = at;
        }
        if is_hopeless(search.seen, search.found, search.all, size) {
            self.plain = true;
        }
        self.search = Some(search);
    }

    pub(super) fn on_read(&mut self, core: &mut LaneContext, offset: u64, block: Block) {
        let Some(asked) = self.reads.remove(&offset) else {
            return;
        };
        core.reading = core.reading.saturating_sub(asked);
        if (block.len() as u64) < asked {
            // The source has become shorter.
            self.plain = true;
        }
        let Some(handle) = self.handles.new.clone().filter(|_| !self.given_up()) else {
            return;
        };
        self.moving += 1;
        self.pending += 1;
        self.note_sent(offset, block.len() as u64);
        core.send_write(self.id, &handle, offset, block);
        core.stream(self.id);
    }
}
