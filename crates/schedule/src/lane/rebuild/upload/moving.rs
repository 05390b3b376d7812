//! Receives the sums of the basis file, has the server copy matching ranges, and sends the rest.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use sftp::blocks::{BasisBlockChecksums, BlockSumKind};
use sftp::{Reply, Request};
use wire::PayloadBlock;

use super::files::DeltaUploadFiles;
use super::verify::{DeltaVerifyStage, RebuildVerifier};
use super::{
    BlockSearchQueue, DeltaAbort, DeltaFileVersions, DeltaUploadContext, LaneContext,
    RequestPurpose,
};
use crate::delta::{BasisIndex, BasisRangeComparison, IN_PLACE, MatchedRange, SEGMENT};
use crate::lane::task::Misprediction;
use crate::{DiskReply, DiskRequest};

/// Number and size of copy-data requests in flight. A long one delays the answers behind it.
const COPYING: usize = 64;
const COPIED: u64 = 16 << 20;

/// Stage in which sums are compared, ranges copied and sent.
#[derive(Debug)]
pub(super) struct DeltaTransferStage {
    plan: DeltaFileVersions,
    files: DeltaUploadFiles,
    verify: RebuildVerifier,
    /// Sums of the basis file, by segment offset.
    sums: BTreeMap<u64, Bytes>,
    /// Ranges of the source that did not match at their own offset.
    differs: BTreeMap<u64, u64>,
    search: Option<SourceSearch>,
    /// Length of each read of the source without an answer, by offset.
    reads: BTreeMap<u64, u64>,
    /// WRITEs and copy-data requests without an answer.
    moving: usize,
}

/// Search of the source for ranges of the basis file.
#[derive(Debug)]
struct SourceSearch {
    queue: BlockSearchQueue,
    /// Results by start offset, handled in order, since a match may extend into the next range.
    results: BTreeMap<u64, (u64, Vec<MatchedRange>)>,
    order: VecDeque<u64>,
    /// Offset up to which everything is known.
    covered: u64,
}

impl DeltaTransferStage {
    /// Starts rebuilding, once both files are open or their OPENs were sent.
    pub(super) fn begin(
        job: &mut DeltaUploadContext,
        core: &mut LaneContext,
        mut plan: DeltaFileVersions,
        files: DeltaUploadFiles,
    ) -> Self {
        // Segments beyond the end of the basis file only need their own sums.
        let mut offset = plan.old.size.div_ceil(SEGMENT) * SEGMENT;
        while offset < plan.rebuild.size {
            let none = Bytes::new();
            plan.rebuild.compare(&mut job.requests, core, offset, none);
            offset += SEGMENT;
        }
        core.stream(job.requests.job());
        Self {
            plan,
            files,
            verify: RebuildVerifier::default(),
            sums: BTreeMap::new(),
            differs: BTreeMap::new(),
            search: None,
            reads: BTreeMap::new(),
            moving: 0,
        }
    }

    /// Sends the next request: sum requests first, since their answers take longest, then copies.
    pub(super) fn send_next(
        &mut self,
        job: &mut DeltaUploadContext,
        core: &mut LaneContext,
    ) -> bool {
        let rebuild = &mut self.plan.rebuild;
        if let Some(of) = self.files.sums()
            && rebuild.may_ask_sums()
        {
            rebuild.ask_next_sums(&mut job.requests, core, of.as_bytes());
            return true;
        }
        let Some((from, to)) = self.files.both() else {
            return false;
        };
        if self.moving < COPYING
            && let Some(copy) = rebuild.next_copy(COPIED)
        {
            let len = copy.len;
            self.moving += 1;
            self.verify.filled(rebuild.fill(copy.at, len));
            let request = Request::CopyData {
                from: from.as_bytes(),
                from_offset: copy.basis,
                len,
                to: to.as_bytes(),
                to_offset: copy.at,
            };
            job.requests
                .send(core, RequestPurpose::Copied { len }, &request);
            return true;
        }
        let Some((at, len)) = rebuild.next_literal(core.server().write_length().into()) else {
            // Sums of the basis file come first, since more work depends on them.
            let ready = core.in_order() && rebuild.has_asked_all();
            return ready && self.verify.ask_ready(job, core, rebuild, &self.files);
        };
        let block = core.block(to.as_bytes().len(), len as usize);
        core.begin_reading(len);
        self.reads.insert(at, len);
        let request = DiskRequest::Read {
            job: job.requests.job(),
            offset: at,
            len: len as usize,
            block,
        };
        job.requests.ask_disk(core, request);
        true
    }

    /// Handles the answer to a request.
    pub(super) fn on_reply(
        &mut self,
        job: &mut DeltaUploadContext,
        core: &mut LaneContext,
        what: RequestPurpose,
        reply: &Reply,
    ) -> Result<Option<DeltaAbort>, Misprediction> {
        Ok(match what {
            RequestPurpose::Sums {
                offset,
                len,
                rebuilt: true,
            } => self
                .verify
                .on_sums(&self.plan.rebuild, (offset, len), reply),
            RequestPurpose::Sums { offset, len, .. } => {
                self.on_sums(job, core, (offset, len), reply)
            }
            RequestPurpose::Write { .. } | RequestPurpose::Copied { .. } => {
                self.moving = self.moving.saturating_sub(1);
                None
            }
            _ => return self.files.on_reply(core, what, reply),
        })
    }

    fn on_sums(
        &mut self,
        job: &mut DeltaUploadContext,
        core: &mut LaneContext,
        (offset, len): (u64, u64),
        reply: &Reply,
    ) -> Option<DeltaAbort> {
        let rebuild = &mut self.plan.rebuild;
        rebuild.sums_answered();
        match reply {
            Reply::Sums(sums) if rebuild.is_whole(sums, BlockSumKind::Rolling, len) => {
                self.sums.insert(offset, sums.clone());
                if offset < rebuild.size {
                    rebuild.compare(&mut job.requests, core, offset, sums.clone());
                }
                None
            }
            // The basis file has become shorter, or the server's answer is invalid.
            _ => Some(DeltaAbort::FullCopy),
        }
    }

    /// Handles a reply of the disk side.
    pub(super) fn on_disk(
        &mut self,
        job: &mut DeltaUploadContext,
        core: &mut LaneContext,
        reply: DiskReply,
    ) -> Option<DeltaAbort> {
        match reply {
            DiskReply::Compared {
                offset,
                len,
                compared,
                ..
            } => self.on_compared(offset, len, compared),
            DiskReply::Searched {
                from, to, found, ..
            } => {
                if let Some(search) = &mut self.search {
                    search.queue.searched();
                    search.results.insert(from, (to, found));
                }
                None
            }
            DiskReply::Read { offset, block, .. } => self.on_read(job, core, offset, block),
            _ => None,
        }
    }

    fn on_compared(
        &mut self,
        offset: u64,
        len: u64,
        compared: BasisRangeComparison,
    ) -> Option<DeltaAbort> {
        let rebuild = &mut self.plan.rebuild;
        if !rebuild.compared(offset, len) {
            // The source has become shorter.
            return Some(DeltaAbort::FullCopy);
        }
        let mut same = offset;
        let end = offset + len;
        for (from, to) in compared.differs {
            rebuild.copy(same, same, from - same);
            same = to;
            // A short difference between unchanged parts is new data: it is sent while the rest is
            // hashed.
            let within = from > offset && to < end;
            match within && to - from <= IN_PLACE {
                true => rebuild.send(from, to, false),
                false => {
                    self.differs.insert(from, to);
                }
            }
        }
        rebuild.copy(same, same, end - same);
        self.verify.own(offset, compared.own);
        None
    }

    fn on_read(
        &mut self,
        job: &mut DeltaUploadContext,
        core: &mut LaneContext,
        offset: u64,
        block: PayloadBlock,
    ) -> Option<DeltaAbort> {
        let asked = self.reads.remove(&offset)?;
        core.end_reading(asked);
        let len = block.len() as u64;
        if len < asked {
            // The source has become shorter.
            return Some(DeltaAbort::FullCopy);
        }
        let handle = self.files.new_handle()?;
        self.moving += 1;
        job.requests.count();
        self.verify.filled(self.plan.rebuild.fill(offset, len));
        let id = job.requests.job();
        core.pipeline_mut().write(id, handle, offset, block, None);
        core.stream(id);
        None
    }

    /// Starts all work that is possible now.
    pub(super) fn rebuild(
        &mut self,
        job: &mut DeltaUploadContext,
        core: &mut LaneContext,
    ) -> Option<DeltaAbort> {
        if self.plan.rebuild.has_compared_all() && self.search.is_none() {
            self.search = Some(self.search_for_differing());
        }
        let size = self.plan.rebuild.size;
        if let Some(search) = &mut self.search {
            search.queue.run(&mut job.requests, core, size);
        }
        let end = self.take_results();
        let (copies, literals) = self.plan.rebuild.waiting();
        if copies || literals {
            core.stream(job.requests.job());
        }
        end
    }

    fn search_for_differing(&mut self) -> SourceSearch {
        let rebuild = &self.plan.rebuild;
        let sums = std::mem::take(&mut self.sums);
        let sums = sums
            .values()
            .flat_map(|sums| BasisBlockChecksums::read_all(sums));
        let basis = BasisIndex::new(rebuild.key, rebuild.block, rebuild.remote, sums.collect());
        let differs = std::mem::take(&mut self.differs);
        let all = differs.iter().map(|(from, to)| to - from).sum();
        let todo = BlockSearchQueue::ranges(differs);
        SourceSearch {
            order: todo.iter().map(|(from, _)| *from).collect(),
            queue: BlockSearchQueue::new(basis, todo, all),
            results: BTreeMap::new(),
            covered: 0,
        }
    }

    /// Queues copies of matches and sends the bytes between them; each byte once.
    fn take_results(&mut self) -> Option<DeltaAbort> {
        let rebuild = &mut self.plan.rebuild;
        let search = self.search.as_mut()?;
        while let Some(first) = search.order.front().copied()
            && let Some((to, found)) = search.results.remove(&first)
        {
            let mut at = first.max(search.covered);
            search.queue.saw(to - first);
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
                    rebuild.send(at, found.at, false);
                }
                rebuild.copy(found.basis, found.at, found.len);
                search.queue.found(found.len);
                at = found.at + found.len;
            }
            if at < to {
                rebuild.send(at, to, false);
                at = to;
            }
            search.covered = at;
        }
        search
            .queue
            .is_hopeless(rebuild.size)
            .then_some(DeltaAbort::FullCopy)
    }

    /// Returns true if everything was sent or copied, so that only the check is left.
    pub(super) fn is_sent(&self, core: &LaneContext) -> bool {
        let found = self.search.as_ref().is_some_and(|s| s.order.is_empty());
        let waiting = self.plan.rebuild.waiting();
        let sent = waiting == (false, false) && self.reads.is_empty();
        // A server that handles requests in order computes the sums after the earlier writes.
        found && sent && (self.moving == 0 || core.in_order())
    }

    /// Goes on to the check.
    pub(super) fn verify(self) -> DeltaVerifyStage {
        DeltaVerifyStage::new(self.plan, self.files, self.verify)
    }

    pub(super) fn files(&self) -> &DeltaUploadFiles {
        &self.files
    }

    /// Gives the job up: returns what must be cleaned up.
    pub(super) fn give_up(self) -> (DeltaUploadFiles, BTreeMap<u64, u64>) {
        (self.files, self.reads)
    }
}
