//! Copies by delta: unchanged parts of a file are taken from an older version at the receiving end,
//! and only the rest is sent (docs/design/0009-delta.md).

mod block_search_queue;
mod download;
mod upload;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use sftp::Request;
use sftp::blocks::{BlockSumKey, BlockSumKind};

use self::block_search_queue::BlockSearchQueue;
pub(super) use self::download::DeltaDownload;
pub(super) use self::upload::DeltaUpload;
use super::context::LaneContext;
use super::job_requests::JobRequests;
use super::request_purpose::RequestPurpose;
use crate::delta::{ASKED, MatchedRange, SEGMENT, next_copy, queue_copy};
use crate::{DiskRequest, JobFailure};

/// Rebuilding of a file beside its basis file, in either direction: the server sends the block sums
/// of its file, which the disk side compares with the local one. Ranges that match are copied, and
/// the others sent.
#[derive(Debug)]
struct DeltaRebuild {
    key: BlockSumKey,
    /// Block size in bytes.
    block: u32,
    /// Size in bytes of the file at this end, of the file at the server, and of the new one of
    /// both.
    local: u64,
    remote: u64,
    size: u64,
    /// First offset whose sums were not requested, and the number of requests without an answer.
    asked: u64,
    asking: usize,
    /// Comparisons without a result.
    comparing: usize,
    copies: VecDeque<MatchedRange>,
    literals: VecDeque<(u64, u64)>,
    /// Bytes of each segment that have been neither copied nor sent.
    left: BTreeMap<u64, u64>,
}

/// Outcome of a delta that ends before the file is rebuilt: the file is copied in full, or the job
/// fails.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DeltaAbort {
    /// A delta is impossible or does not pay: the file is to be copied plainly.
    FullCopy,
    Failed(JobFailure),
}

impl DeltaAbort {
    /// Adds a later reason: a failure counts more, and the first one stays.
    fn merge(&mut self, later: Self) {
        if *self == Self::FullCopy {
            *self = later;
        }
    }
}

impl DeltaRebuild {
    /// Creates the rebuilding of an upload: `local` is the size of the new file, `remote` that of
    /// the basis file.
    fn upload(key: BlockSumKey, block: u32, local: u64, remote: u64) -> Self {
        Self::new(key, block, (local, remote), local)
    }

    /// Creates the rebuilding of a download: `local` is the size of the basis file, `remote` that
    /// of the new one.
    fn download(key: BlockSumKey, block: u32, local: u64, remote: u64) -> Self {
        Self::new(key, block, (local, remote), remote)
    }

    fn new(key: BlockSumKey, block: u32, (local, remote): (u64, u64), size: u64) -> Self {
        Self {
            key,
            block,
            local,
            remote,
            size,
            asked: 0,
            asking: 0,
            comparing: 0,
            copies: VecDeque::new(),
            literals: VecDeque::new(),
            left: BTreeMap::new(),
        }
    }

    /// Returns true if sums of the server's file can be requested now.
    fn may_ask_sums(&self) -> bool {
        self.asked < self.remote && self.asking < ASKED
    }

    /// Requests the next sums of the server's file, which is open as `handle`.
    fn ask_next_sums(&mut self, requests: &mut JobRequests, core: &mut LaneContext, handle: &[u8]) {
        let offset = self.asked;
        let len = SEGMENT.min(self.remote - offset);
        self.asked += len;
        self.asking += 1;
        self.ask_sums(requests, core, handle, (offset, len), BlockSumKind::Rolling);
    }

    /// Requests the sums of a range of the server's file, or strong sums of the rebuilt file.
    fn ask_sums(
        &self,
        requests: &mut JobRequests,
        core: &mut LaneContext,
        handle: &[u8],
        (offset, len): (u64, u64),
        kind: BlockSumKind,
    ) {
        let request = Request::Hash {
            handle,
            offset,
            len: len as u32,
            block: self.block,
            kind: kind.name().as_bytes(),
            key: &self.key,
        };
        let what = RequestPurpose::Sums {
            offset,
            len,
            rebuilt: kind == BlockSumKind::Strong,
        };
        requests.send(core, what, &request);
    }

    /// Counts an answer to [`DeltaRebuild::ask_next_sums`].
    fn sums_answered(&mut self) {
        self.asking = self.asking.saturating_sub(1);
    }

    /// Returns true if an answer has as many sums as the range has blocks.
    fn is_whole(&self, sums: &Bytes, kind: BlockSumKind, len: u64) -> bool {
        let blocks = len.div_ceil(u64::from(self.block.max(1)));
        sums.len() as u64 == blocks * kind.bytes() as u64
    }

    /// Compares the local file with the server's sums of the segment at `offset`.
    fn compare(
        &mut self,
        requests: &mut JobRequests,
        core: &mut LaneContext,
        offset: u64,
        sums: Bytes,
    ) {
        self.comparing += 1;
        let request = DiskRequest::Compare {
            job: requests.job(),
            key: self.key,
            block: self.block,
            offset,
            len: self.local_len(offset) as usize,
            basis: sums,
        };
        requests.ask_disk(core, request);
    }

    fn local_len(&self, offset: u64) -> u64 {
        SEGMENT.min(self.local.saturating_sub(offset))
    }

    /// Counts the result of a comparison; false if the local file has become shorter.
    fn compared(&mut self, offset: u64, len: u64) -> bool {
        self.comparing = self.comparing.saturating_sub(1);
        len >= self.local_len(offset)
    }

    /// Returns true if all sums of the server's file were requested.
    fn has_asked_all(&self) -> bool {
        self.asked >= self.remote
    }

    /// Returns true if all sums are known and compared.
    fn has_compared_all(&self) -> bool {
        self.has_asked_all() && self.asking + self.comparing == 0
    }

    /// Queues the copy of a range of the basis file.
    fn copy(&mut self, basis: u64, at: u64, len: u64) {
        queue_copy(&mut self.copies, MatchedRange { basis, at, len });
    }

    /// Takes the next range to copy, of at most `most` bytes.
    fn next_copy(&mut self, most: u64) -> Option<MatchedRange> {
        next_copy(&mut self.copies, most)
    }

    /// Queues a range to send, merging it with the last one if adjacent and `merge`.
    fn send(&mut self, from: u64, to: u64, merge: bool) {
        match self.literals.back_mut() {
            Some((_, end)) if merge && *end == from => *end = to,
            _ => self.literals.push_back((from, to)),
        }
    }

    /// Queues a range to send before all others.
    fn send_first(&mut self, from: u64, to: u64) {
        self.literals.push_front((from, to));
    }

    /// Takes offset and length of the next range to send, of at most `most` bytes.
    fn next_literal(&mut self, most: u64) -> Option<(u64, u64)> {
        let (at, end) = self.literals.pop_front()?;
        let len = (end - at).min(most);
        if at + len < end {
            self.literals.push_front((at + len, end));
        }
        Some((at, len))
    }

    /// Returns true if ranges wait to be copied, and to be sent.
    fn waiting(&self) -> (bool, bool) {
        (!self.copies.is_empty(), !self.literals.is_empty())
    }

    /// Returns the end of the new file's segment at `offset`.
    fn segment_end(&self, offset: u64) -> u64 {
        self.size.min(offset.saturating_add(SEGMENT))
    }

    /// Records a range of the new file that was copied or sent; returns the segments that are
    /// complete with it.
    fn fill(&mut self, mut at: u64, len: u64) -> Vec<u64> {
        let end = at.saturating_add(len).min(self.size);
        let mut complete = Vec::new();
        while at < end {
            let segment = at / SEGMENT * SEGMENT;
            let whole = self.segment_end(segment);
            let to = end.min(whole);
            let left = self.left.entry(segment).or_insert(whole - segment);
            if *left > 0 {
                *left = left.saturating_sub(to - at);
                if *left == 0 {
                    complete.push(segment);
                }
            }
            at = to;
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_complete_once_all_of_it_came_in_any_order() {
        let size = 2 * SEGMENT + 5;
        let mut rebuild = DeltaRebuild::upload(BlockSumKey::default(), 4096, size, size);
        assert!(rebuild.fill(0, SEGMENT - 1).is_empty());
        assert!(rebuild.fill(SEGMENT, 10).is_empty());
        assert_eq!(rebuild.fill(SEGMENT - 1, 1), [0]);
        assert!(rebuild.fill(SEGMENT - 1, 1).is_empty(), "once");
        let rest = rebuild.fill(SEGMENT + 10, SEGMENT);
        assert_eq!(rest, [SEGMENT, 2 * SEGMENT], "up to the end of the file");
    }

    #[test]
    fn ranges_to_send_are_cut_and_merged() {
        let mut rebuild = DeltaRebuild::download(BlockSumKey::default(), 4096, 100, 100);
        rebuild.send(0, 10, true);
        rebuild.send(10, 25, true);
        rebuild.send(25, 30, false);
        rebuild.send_first(90, 95);
        let mut sent = Vec::new();
        while let Some(next) = rebuild.next_literal(20) {
            sent.push(next);
        }
        assert_eq!(sent, [(90, 5), (0, 20), (20, 5), (25, 5)]);
    }

    #[test]
    fn a_failure_counts_more_than_a_plain_copy() {
        let fault = |what: &str| DeltaAbort::Failed(JobFailure::new(what, true));
        let mut end = DeltaAbort::FullCopy;
        end.merge(fault("first"));
        end.merge(DeltaAbort::FullCopy);
        end.merge(fault("second"));
        assert_eq!(end, fault("first"));
    }
}
