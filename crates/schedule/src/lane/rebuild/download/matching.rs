//! Receives the sums of the remote file, finds its blocks in the basis file and copies them, and
//! reads the rest.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use sftp::blocks::StrongSum;
use sftp::{Reply, Request, StatusCode};

use super::blocks::FileBlockSums;
use super::{
    BlockSearchQueue, DeltaAbort, DeltaDownloadCommon, DeltaRebuild, LaneContext, RemoteFile,
    RequestPurpose,
};
use crate::delta::{BasisIndex, BasisRangeComparison, IN_PLACE, MatchedRange, SEGMENT};
use crate::lane::messages::refused;
use crate::{DiskReply, DiskRequest};

/// Number of copies that wait for or run on the disk threads, and the bytes of each.
const COPYING: usize = 8;
const COPIED: u64 = 8 << 20;

/// Stage in which sums are compared, and ranges are copied and read.
#[derive(Debug)]
pub(super) struct DeltaMatchStage {
    rebuild: DeltaRebuild,
    remote: RemoteFile,
    /// Block sums of the file.
    blocks: FileBlockSums,
    /// Ranges of the file without any known match, as first byte and first byte after the range.
    missing: BTreeMap<u64, u64>,
    /// Ranges of the basis file that did not match at their own offset.
    unused: VecDeque<(u64, u64)>,
    search: Option<BasisSearch>,
    /// Copies without a reply.
    copying: usize,
    /// Parts of answers to READs, by offset.
    arriving: BTreeMap<u64, Vec<Bytes>>,
    /// Bytes of the temporary whose sums were verified.
    checked: u64,
}

/// Search of the whole basis file for blocks of the new one.
#[derive(Debug)]
struct BasisSearch {
    queue: BlockSearchQueue,
    /// Strong sums to find, and their offset in the basis file once found.
    wanted: BTreeMap<StrongSum, Option<u64>>,
}

impl DeltaMatchStage {
    /// Starts rebuilding, with a handle that is known or predicted.
    pub(super) fn begin(
        job: &mut DeltaDownloadCommon,
        core: &mut LaneContext,
        rebuild: DeltaRebuild,
        remote: RemoteFile,
    ) -> Self {
        if let Some(handle) = remote.handle() {
            let handle = handle.as_bytes();
            let request = Request::Fstat { handle };
            job.requests.send(core, RequestPurpose::Fstat, &request);
        }
        core.stream(job.requests.job());
        Self {
            blocks: FileBlockSums::new(rebuild.size, rebuild.block),
            rebuild,
            remote,
            missing: BTreeMap::new(),
            unused: VecDeque::new(),
            search: None,
            copying: 0,
            arriving: BTreeMap::new(),
            checked: 0,
        }
    }

    /// Sends the next request: sum requests first, since their answers take longest; false if
    /// nothing can be sent now.
    pub(super) fn send_next(
        &mut self,
        job: &mut DeltaDownloadCommon,
        core: &mut LaneContext,
    ) -> bool {
        let Some(handle) = self.remote.handle().filter(|_| !self.remote.is_closing()) else {
            return false;
        };
        if self.rebuild.may_ask_sums() {
            let requests = &mut job.requests;
            self.rebuild
                .ask_next_sums(requests, core, handle.as_bytes());
            return true;
        }
        let Some((at, len)) = self
            .rebuild
            .next_literal(core.server().read_length().into())
        else {
            return false;
        };
        job.requests.count();
        let how = (core.packs(len), false);
        core.send_read(job.requests.job(), handle, (at, len as u32), len, how);
        true
    }

    /// Handles the sums of a segment.
    pub(super) fn on_sums(
        &mut self,
        job: &mut DeltaDownloadCommon,
        core: &mut LaneContext,
        (offset, len): (u64, u64),
        reply: &Reply,
    ) -> Option<DeltaAbort> {
        self.rebuild.sums_answered();
        let Reply::Sums(sums) = reply else {
            // The file has become shorter, or the server's answer is invalid.
            return Some(DeltaAbort::FullCopy);
        };
        if !self.blocks.keep(offset, len, sums) {
            return Some(DeltaAbort::FullCopy);
        }
        if offset >= self.rebuild.local {
            self.missing.insert(offset, offset + len);
            return None;
        }
        let requests = &mut job.requests;
        self.rebuild.compare(requests, core, offset, sums.clone());
        None
    }

    /// Handles the answer to a READ, or a part of it.
    pub(super) fn on_read(
        &mut self,
        job: &mut DeltaDownloadCommon,
        core: &mut LaneContext,
        (offset, len): (u64, u32),
        reply: Reply,
    ) -> Option<DeltaAbort> {
        match reply {
            Reply::Data { at, bytes, last } => {
                let got = u64::from(at) + bytes.len() as u64;
                if !bytes.is_empty() {
                    job.received(core, bytes.len() as u64);
                    self.arriving.entry(offset).or_default().push(bytes);
                }
                match last {
                    true => self.arrived(job, core, (offset, len), got),
                    false => None,
                }
            }
            Reply::Packed {
                len: unpacked,
                bytes,
            } => {
                if unpacked > 0 {
                    job.received(core, unpacked.into());
                    let request = DiskRequest::WritePacked {
                        job: job.requests.job(),
                        offset,
                        len: unpacked,
                        packed: bytes,
                    };
                    job.requests.ask_disk(core, request);
                }
                self.arrived(job, core, (offset, len), unpacked.into())
            }
            reply => read_failed(&reply),
        }
    }

    /// Handles the answer to a READ of `len` at `offset` that brought `got` bytes.
    fn arrived(
        &mut self,
        job: &mut DeltaDownloadCommon,
        core: &mut LaneContext,
        (offset, len): (u64, u32),
        got: u64,
    ) -> Option<DeltaAbort> {
        if let Some(pieces) = self.arriving.remove(&offset) {
            let request = DiskRequest::Write {
                job: job.requests.job(),
                offset,
                pieces,
            };
            job.requests.ask_disk(core, request);
        }
        if got == 0 {
            return Some(DeltaAbort::FullCopy);
        }
        if got < u64::from(len) {
            let end = offset + u64::from(len);
            self.rebuild.send_first(offset + got, end);
        }
        None
    }

    /// Handles a reply of the disk side.
    pub(super) fn on_disk(
        &mut self,
        job: &mut DeltaDownloadCommon,
        core: &mut LaneContext,
        reply: DiskReply,
    ) -> Option<DeltaAbort> {
        match reply {
            DiskReply::Compared {
                offset,
                len,
                compared,
                ..
            } => return self.on_compared(offset, len, compared),
            DiskReply::Searched {
                from, to, found, ..
            } => return self.on_searched((from, to), found),
            DiskReply::Copied { at, len, .. } => {
                self.copying = self.copying.saturating_sub(1);
                self.check(job, core, at, len);
            }
            DiskReply::Written { offset, len, .. } => self.check(job, core, offset, len),
            DiskReply::Checked { len, .. } => self.checked += len,
            _ => {}
        }
        None
    }

    /// Handles the comparison of a segment. Bytes that the sums claim beyond the end of the basis
    /// file count as missing.
    fn on_compared(
        &mut self,
        offset: u64,
        len: u64,
        compared: BasisRangeComparison,
    ) -> Option<DeltaAbort> {
        if !self.rebuild.compared(offset, len) {
            // The basis file has become shorter.
            return Some(DeltaAbort::FullCopy);
        }
        let end = self.rebuild.segment_end(offset);
        let behind = offset + len;
        let mut same = offset;
        for (from, to) in compared.differs {
            let len = from.min(end).saturating_sub(same);
            self.rebuild.copy(same, same, len);
            same = to;
            // A short difference between unchanged parts is new data: it is read while the rest is
            // hashed.
            let within = from > offset && to < behind.min(end);
            if within && to - from <= IN_PLACE {
                self.rebuild.send(from, to, false);
                continue;
            }
            self.unused.push_back((from, to));
            self.lack(from, to.min(end));
        }
        let len = behind.min(end).saturating_sub(same);
        self.rebuild.copy(same, same, len);
        self.lack(behind, end);
        None
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

    /// Starts all work that is possible now; true if the whole file is there and verified.
    pub(super) fn rebuild(
        &mut self,
        job: &mut DeltaDownloadCommon,
        core: &mut LaneContext,
    ) -> bool {
        let told = self.rebuild.has_compared_all();
        if told && self.search.is_none() {
            self.search = Some(self.search_for_missing());
        }
        let older = self.rebuild.local;
        if let Some(search) = &mut self.search {
            search.queue.run(&mut job.requests, core, older);
        }
        self.read_rest();
        self.run_copies(job, core);
        if self.rebuild.waiting().1 {
            core.stream(job.requests.job());
        }
        told && self.checked == self.rebuild.size
    }

    fn search_for_missing(&mut self) -> BasisSearch {
        let (older, size) = (self.rebuild.local, self.rebuild.size);
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
        let mut todo = VecDeque::new();
        if !wanted.is_empty() {
            // Parts of the basis file beyond the last segment of the file.
            let behind = size.div_ceil(SEGMENT) * SEGMENT;
            let starts = (behind..older).step_by(SEGMENT as usize);
            let behind = starts.map(|from| (from, older.min(from + SEGMENT)));
            let unused = std::mem::take(&mut self.unused);
            todo = BlockSearchQueue::ranges(unused.into_iter().chain(behind));
        }
        let sums = match todo.is_empty() {
            true => Vec::new(),
            false => self.blocks.all(),
        };
        let basis = BasisIndex::new(self.rebuild.key, self.rebuild.block, size, sums);
        let all = self.missing.iter().map(|(from, to)| to - from).sum();
        let mut search = BasisSearch {
            queue: BlockSearchQueue::new(basis, todo, all),
            wanted,
        };
        self.note_kept(&mut search);
        search
    }

    /// Records blocks that matched at their own offset and are wanted elsewhere as well.
    fn note_kept(&self, search: &mut BasisSearch) {
        if search.wanted.is_empty() {
            return;
        }
        let mut at = 0;
        let mut missing = self.missing.iter().peekable();
        while at < self.rebuild.size {
            let end = self.blocks.around(at).1;
            while missing.next_if(|(_, to)| **to <= at).is_some() {}
            let is_missing = missing.peek().is_some_and(|(from, _)| **from < end);
            if !is_missing
                && end <= self.rebuild.local
                && let Some(strong) = self.blocks.strong(at)
                && let Some(place) = search.wanted.get_mut(&strong)
            {
                place.get_or_insert(at);
            }
            at = end;
        }
    }

    /// Handles the result of a search of the basis file.
    fn on_searched(
        &mut self,
        (from, to): (u64, u64),
        found: Vec<MatchedRange>,
    ) -> Option<DeltaAbort> {
        let mut search = self.search.take()?;
        search.queue.searched();
        search.queue.saw(to - from);
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
                    search.queue.found(to - from);
                    self.rebuild.copy(place, from, to - from);
                }
                at = to.max(at + 1);
            }
        }
        let hopeless = search.queue.is_hopeless(self.rebuild.size);
        self.search = Some(search);
        hopeless.then_some(DeltaAbort::FullCopy)
    }

    /// After the last search, copies missing blocks from a known place or reads them.
    fn read_rest(&mut self) {
        let Some(search) = &mut self.search else {
            return;
        };
        if !search.queue.is_over() || self.missing.is_empty() {
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
                    Some(place) => self.rebuild.copy(place, at, end - at),
                    None => self.rebuild.send(at, end.min(to), true),
                }
                at = end.min(to);
            }
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

    fn run_copies(&mut self, job: &mut DeltaDownloadCommon, core: &mut LaneContext) {
        while self.copying < COPYING
            && let Some(copy) = self.rebuild.next_copy(COPIED)
        {
            self.copying += 1;
            let request = DiskRequest::CopyBasis {
                job: job.requests.job(),
                from: copy.basis,
                at: copy.at,
                len: copy.len,
            };
            job.requests.ask_disk(core, request);
        }
    }

    /// Records bytes of the temporary, and verifies segments that are complete.
    fn check(&mut self, job: &mut DeltaDownloadCommon, core: &mut LaneContext, at: u64, len: u64) {
        for segment in self.rebuild.fill(at, len) {
            let request = DiskRequest::CheckRebuilt {
                job: job.requests.job(),
                key: self.rebuild.key,
                block: self.rebuild.block,
                offset: segment,
                len: (self.rebuild.segment_end(segment) - segment) as usize,
                sums: self.blocks.of(segment),
            };
            job.requests.ask_disk(core, request);
        }
    }

    /// Closes the file and has the temporary renamed.
    pub(super) fn finish(
        mut self,
        job: &mut DeltaDownloadCommon,
        core: &mut LaneContext,
    ) -> RemoteFile {
        self.remote.close(&mut job.requests, core);
        let request = DiskRequest::FinishTarget {
            job: job.requests.job(),
            size: self.rebuild.size,
            attributes: job.options.kept(job.attrs.unwrap_or_default()),
            preserve: job.options.preserve,
            fsync: job.options.fsync,
            beyond: job.options.beyond.clone(),
        };
        job.requests.ask_disk(core, request);
        self.remote
    }

    pub(super) fn remote_mut(&mut self) -> &mut RemoteFile {
        &mut self.remote
    }

    pub(super) fn into_remote(self) -> RemoteFile {
        self.remote
    }
}

/// Returns why the job ends with an answer to a READ that has no data.
pub(super) fn read_failed(reply: &Reply) -> Option<DeltaAbort> {
    match reply {
        Reply::Data { .. } | Reply::Packed { .. } => None,
        Reply::Status(status) if status.code != StatusCode::EOF => {
            Some(DeltaAbort::Failed(refused("cannot read", status)))
        }
        // The file has become shorter.
        _ => Some(DeltaAbort::FullCopy),
    }
}
