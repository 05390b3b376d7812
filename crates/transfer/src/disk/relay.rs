//! Passes a file's data in memory from one session to another.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, Bytes};
use schedule::{
    ByteRanges, DiskReply, DiskRequest, JobFailure, JobFailureKind, JobId, ResumeData,
    SourceFileMeta, StoredTarget, UPLOAD_BEGINS,
};
use wire::PayloadBlock;

use crate::sums::FileChecksums;

/// Most bytes held between the hosts before answers to writes are delayed, which stops further reads
/// from the source: two bandwidth-delay products of a gigabit path around the world.
pub(crate) const MOST_HELD: u64 = 64 << 20;

/// Shortest run of zeros in bytes within a longer read that a receiver that keeps holes does not
/// write. Each run that is left out takes a request of its own.
const LEAST_HOLE: usize = 64 << 10;
/// Size in bytes of the blocks of a file that can be holes.
const HOLE_BLOCK: u64 = 4096;

const OTHER_FAILED: &str = "the copy failed at the other host";

/// Receives the replies that a [`HostToHostBuffer`] gives later.
pub(crate) trait DiskReplyReceiver: Send + Sync {
    /// Takes a reply.
    fn reply(&self, reply: DiskReply);
}

/// A memory buffer between two hosts: the target of a Get in one session and the source of a Put in
/// another. Bind it to both jobs ([`super::DiskThreadPool::bind`]).
pub struct HostToHostBuffer {
    state: Mutex<BufferState>,
    /// The checksums of the relayed data, if wanted.
    sums: Option<Arc<FileChecksums>>,
}

#[derive(Default)]
struct BufferState {
    meta: SourceFileMeta,
    /// Received and not yet read data, by offset, and the ranges that they make. A server may send
    /// single bytes.
    pieces: BTreeMap<u64, Bytes>,
    present: ByteRanges,
    held: u64,
    /// Bytes held from which on answers to further writes are delayed.
    limit: u64,
    /// Bytes of the writes whose answers are delayed.
    unanswered: u64,
    /// Delayed answers to writes, sent when there is room.
    withheld: VecDeque<(Arc<dyn DiskReplyReceiver>, DiskReply, u64)>,
    reads: Vec<PendingRead>,
    /// Bytes that the writer has passed on so far.
    arrived: u64,
    /// Data that the reader has taken, which are gone.
    taken: ByteRanges,
    /// Uploads that wait for [`UPLOAD_BEGINS`] bytes.
    awaiting: Vec<(Arc<dyn DiskReplyReceiver>, JobId)>,
    /// The file size, once the writer is done.
    end: Option<u64>,
    /// The fault with which the writer ended.
    broken: Option<JobFailure>,
    /// True if the reader ended.
    abandoned: bool,
    reader: ReaderStage,
    /// The reader leaves runs of zeros out, so that the file gets holes.
    sparse: bool,
}

/// Stage of the reader. The data that it has read are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReaderStage {
    #[default]
    Waiting,
    Reading,
    /// The reader has closed its source.
    Closed,
}

struct PendingRead {
    shared: Arc<dyn DiskReplyReceiver>,
    job: JobId,
    offset: u64,
    len: usize,
    block: PayloadBlock,
    open: bool,
}

impl HostToHostBuffer {
    /// Creates a relay for a file with these attributes.
    pub fn new(meta: SourceFileMeta) -> Arc<Self> {
        Self::bounded(meta, MOST_HELD, None)
    }

    /// Creates a relay that holds about `limit` bytes, and also computes checksums.
    pub(crate) fn bounded(
        meta: SourceFileMeta,
        limit: u64,
        sums: Option<Arc<FileChecksums>>,
    ) -> Arc<Self> {
        let state = BufferState {
            meta,
            limit,
            ..BufferState::default()
        };
        Arc::new(Self {
            state: Mutex::new(state),
            sums,
        })
    }

    /// Fails all pending and future reads because the source failed.
    pub fn break_off(&self, fault: JobFailure) {
        let mut state = self.lock();
        state.broken.get_or_insert(fault);
        state.settle();
    }

    /// Stops holding data because the target failed.
    pub fn abandon(&self) {
        self.lock().abandon();
    }

    /// Bytes that it holds, and bytes from which on it delays the answers to writes.
    #[cfg(test)]
    pub(crate) fn held(&self) -> (u64, u64) {
        let state = self.lock();
        (state.held, state.limit)
    }

    fn lock(&self) -> MutexGuard<'_, BufferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the data that `request` writes to the checksums.
    fn add_sums(&self, request: &DiskRequest) {
        let (offset, pieces) = match request {
            DiskRequest::Write { offset, pieces, .. } => (*offset, pieces),
            DiskRequest::StoreTarget { pieces, .. } => (0, pieces),
            _ => return,
        };
        if let Some(sums) = &self.sums {
            sums.add(offset, pieces.iter().map(AsRef::as_ref));
        }
    }

    /// Handles a request; the answer comes immediately or once data or room exist.
    pub(crate) fn handle(&self, request: DiskRequest, shared: &Arc<dyn DiskReplyReceiver>) {
        self.add_sums(&request);
        let mut state = self.lock();
        match request {
            request if state.begins_again(&request) => {
                let (job, fault) = (
                    request.job(),
                    JobFailure::data_are_gone(JobFailureKind::ReadAgain),
                );
                shared.reply(DiskReply::Failed { job, fault });
            }
            DiskRequest::OpenSource {
                job, first, sparse, ..
            } => {
                (state.sparse, state.reader) = (sparse, ReaderStage::Reading);
                let len = first.room();
                state.read(shared, job, 0, len, first, true);
            }
            DiskRequest::AwaitSource { job } => state.await_data(shared, job),
            // Relayed data are never compressed; the writer decompressed them.
            DiskRequest::Read {
                job,
                offset,
                len,
                block,
            }
            | DiskRequest::ReadPacked {
                job,
                offset,
                len,
                block,
            } => state.read(shared, job, offset, len, block, false),
            // Relayed files have no basis file and are never rebuilt.
            DiskRequest::Compare { job, .. }
            | DiskRequest::Search { job, .. }
            | DiskRequest::OpenBasis { job, .. }
            | DiskRequest::CopyBasis { job, .. }
            | DiskRequest::CheckRebuilt { job, .. }
            | DiskRequest::Skip { job, .. }
            | DiskRequest::WritePacked { job, .. } => {
                shared.reply(DiskReply::Released { job });
            }
            DiskRequest::CloseSource { job } => {
                state.reader = ReaderStage::Closed;
                state.abandon();
                shared.reply(DiskReply::Released { job });
            }
            DiskRequest::CreateTarget { job, keep, .. } => {
                shared.reply(created(job, keep.as_deref()))
            }
            DiskRequest::Join { job, .. } => shared.reply(DiskReply::Joined { job }),
            DiskRequest::Write {
                job,
                offset,
                pieces,
            } => {
                let len = pieces.iter().map(|p| p.len() as u64).sum();
                let written = DiskReply::Written { job, offset, len };
                state.write(shared, written, job, offset, pieces);
            }
            DiskRequest::StoreTarget { job, pieces, .. } => {
                state.end = Some(pieces.iter().map(|p| p.len() as u64).sum());
                state.write(shared, finished(job), job, 0, pieces);
            }
            DiskRequest::FinishTarget { job, size, .. } => {
                state.end = Some(size);
                state.settle();
                shared.reply(finished(job));
            }
            DiskRequest::SyncTarget { job } => shared.reply(DiskReply::Synced { job, mtime: 0 }),
            DiskRequest::Discard { job } | DiskRequest::Leave { job, .. } => {
                // The request may come from the reader or the writer; both end the relay.
                state.broken.get_or_insert_with(other_failed);
                state.abandon();
                state.settle();
                shared.reply(DiskReply::Released { job });
            }
        }
    }
}

/// Reply to the writer that begins, at the start of the file or behind what the reader's host has.
fn created(job: JobId, keep: Option<&ResumeData>) -> DiskReply {
    let continues = keep.is_some_and(|keep| keep.left.is_some());
    match continues {
        true => DiskReply::Adopted { job },
        // The reader takes the bytes in order.
        false => DiskReply::Created {
            job,
            seekable: false,
        },
    }
}

/// Reply to the writer that has written all data.
fn finished(job: JobId) -> DiskReply {
    let stored = StoredTarget::default();
    DiskReply::Finished { job, stored }
}

/// Fault at one host when the other one failed.
fn other_failed() -> JobFailure {
    JobFailure::new(OTHER_FAILED, true).of_kind(JobFailureKind::OtherHost)
}

impl BufferState {
    /// Stores bytes of `job`; the answer `done` is sent when there is room for more.
    fn write(
        &mut self,
        shared: &Arc<dyn DiskReplyReceiver>,
        done: DiskReply,
        job: JobId,
        offset: u64,
        pieces: Vec<Bytes>,
    ) {
        let mut at = offset;
        self.arrived += pieces.iter().map(|p| p.len() as u64).sum::<u64>();
        for piece in pieces {
            let len = piece.len() as u64;
            if len > 0 && !self.abandoned {
                self.pieces.insert(at, piece);
                self.present.insert(at, at + len);
                self.held += len;
            }
            at += len;
        }
        if self.abandoned {
            let fault = other_failed();
            shared.reply(DiskReply::Failed { job, fault });
        } else {
            let len = at - offset;
            self.unanswered += len;
            self.withheld.push_back((Arc::clone(shared), done, len));
        }
        self.settle();
    }

    fn read(
        &mut self,
        shared: &Arc<dyn DiskReplyReceiver>,
        job: JobId,
        offset: u64,
        len: usize,
        block: PayloadBlock,
        open: bool,
    ) {
        self.reads.push(PendingRead {
            shared: Arc::clone(shared),
            job,
            offset,
            len,
            block,
            open,
        });
        self.settle();
    }

    /// Answers once there are data for the upload `job`, or there will be none.
    fn await_data(&mut self, shared: &Arc<dyn DiskReplyReceiver>, job: JobId) {
        self.awaiting.push((Arc::clone(shared), job));
        self.settle();
    }

    /// True if the request is that of a reader that begins again, and would wait for ever.
    fn begins_again(&self, request: &DiskRequest) -> bool {
        let is_closed = self.reader == ReaderStage::Closed;
        match request {
            DiskRequest::OpenSource { .. } => self.reader != ReaderStage::Waiting,
            DiskRequest::AwaitSource { .. } => is_closed,
            DiskRequest::Read { offset, .. } | DiskRequest::ReadPacked { offset, .. } => {
                is_closed || self.taken.around(*offset).is_some()
            }
            _ => false,
        }
    }

    fn abandon(&mut self) {
        self.abandoned = true;
        self.pieces.clear();
        self.present = ByteRanges::default();
        self.held = 0;
        self.unanswered = 0;
        for (shared, reply, _) in self.withheld.drain(..) {
            shared.reply(reply);
        }
        self.settle();
    }

    /// Answers the reads whose data have arrived and the writes for which there is room.
    fn settle(&mut self) {
        self.answer_awaiting();
        // A reader that has ended still waits for the answers to its reads.
        let ended = || self.abandoned.then(other_failed);
        let fault = self.broken.clone().or_else(ended);
        let mut still = Vec::new();
        for read in std::mem::take(&mut self.reads) {
            if let Some(fault) = &fault {
                let (job, fault) = (read.job, fault.clone());
                read.shared.reply(DiskReply::Failed { job, fault });
            } else if let Some(len) = self.ready(read.offset, read.len) {
                self.answer(read, len);
            } else {
                still.push(read);
            }
        }
        self.reads = still;
        // A write counts once it is answered, so that the first one of a file always is: its upload
        // begins when data have arrived.
        while self.held.saturating_sub(self.unanswered) <= self.limit || self.reads_wait_for_more()
        {
            let Some((shared, reply, len)) = self.withheld.pop_front() else {
                break;
            };
            self.unanswered -= len;
            shared.reply(reply);
        }
    }

    /// Answers the uploads that wait for data, once there are some or none will come.
    fn answer_awaiting(&mut self) {
        let ready = self.arrived >= UPLOAD_BEGINS || self.end.is_some();
        if !ready && self.broken.is_none() && !self.abandoned {
            return;
        }
        for (shared, job) in self.awaiting.drain(..) {
            shared.reply(match &self.broken {
                Some(fault) => DiskReply::Failed {
                    job,
                    fault: fault.clone(),
                },
                None => DiskReply::SourceReady { job },
            });
        }
    }

    /// True if reads wait for data. Delaying answers then could deadlock: the missing data may be
    /// in a write that the writer has not sent yet.
    fn reads_wait_for_more(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Returns how many bytes a read at `offset` gets, or `None` if some have not arrived.
    fn ready(&self, offset: u64, len: usize) -> Option<usize> {
        let wanted = match self.end {
            Some(end) => (len as u64).min(end.saturating_sub(offset)),
            None => len as u64,
        };
        let is_there = self.present.contains(offset, offset + wanted);
        is_there.then(|| usize::try_from(wanted).ok())?
    }

    /// Answers a read of `len` bytes that have arrived. A read that keeps holes ends where a run of
    /// zeros begins, and a run at its start is answered as a hole.
    fn answer(&mut self, read: PendingRead, mut len: usize) {
        if let Some((from, zeros)) = self.zeros_in(&read, len) {
            if from == 0 {
                let (job, offset, len) = (read.job, read.offset, zeros as u64);
                self.drop_bytes(offset, zeros);
                read.shared.reply(DiskReply::Hole { job, offset, len });
                return;
            }
            len = from;
        }
        let PendingRead {
            shared,
            job,
            offset,
            mut block,
            open,
            len: asked,
        } = read;
        let mut at = offset;
        for mut slice in block.grow(len) {
            while !slice.is_empty() {
                let mut piece = self.take(at, slice.len());
                let n = piece.len();
                if n == 0 {
                    break;
                }
                piece.copy_to_slice(&mut slice[..n]);
                slice = &mut slice[n..];
                at += n as u64;
            }
        }
        // The reader takes a short block for the end of the file, so a block must not be short for
        // another reason.
        if at < offset + len as u64 {
            let what = "internal error: bytes between the two hosts were lost";
            let fault = JobFailure::new(what, false);
            shared.reply(DiskReply::Failed { job, fault });
            return;
        }
        let reply = if open {
            let meta = self.meta;
            let eof = len < asked;
            let first = block;
            DiskReply::Opened {
                job,
                meta,
                first,
                packed: None,
                eof,
            }
        } else {
            DiskReply::Read { job, offset, block }
        };
        shared.reply(reply);
    }

    /// Returns where the first run of zeros of a read of `len` bytes begins, and its length; `None`
    /// if there is none that the file can keep as a hole.
    fn zeros_in(&self, read: &PendingRead, len: usize) -> Option<(usize, usize)> {
        // Where a file of unknown size ends shows in a short read.
        let size = self.meta.attributes.size.filter(|_| !self.meta.stream)?;
        let ends_before = read.offset + len as u64 <= size;
        if !self.sparse || read.open || !ends_before || len == 0 {
            return None;
        }
        let least = LEAST_HOLE.min(len);
        let (mut at, mut from, mut zeros) = (0, 0, 0);
        while at < len {
            let block = HOLE_BLOCK - (read.offset + at as u64) % HOLE_BLOCK;
            let block = (len - at).min(block as usize);
            match self.is_zero(read.offset + at as u64, block) {
                true => zeros += block,
                false if zeros >= least => break,
                false => (from, zeros) = (at + block, 0),
            }
            at += block;
        }
        (zeros >= least).then_some((from, zeros))
    }

    /// True if the `len` bytes at `at` are there and all zero.
    fn is_zero(&self, at: u64, len: usize) -> bool {
        let (mut at, end) = (at, at + len as u64);
        while at < end {
            let Some((start, piece)) = self.pieces.range(..=at).next_back() else {
                return false;
            };
            let skip = usize::try_from(at - start).unwrap_or(usize::MAX);
            let rest = piece.get(skip..).unwrap_or_default();
            let n = rest.len().min((end - at) as usize);
            if n == 0 || rest[..n].iter().any(|byte| *byte != 0) {
                return false;
            }
            at += n as u64;
        }
        true
    }

    /// Drops `len` bytes at `at`.
    fn drop_bytes(&mut self, mut at: u64, len: usize) {
        let end = at + len as u64;
        while at < end {
            let n = self.take(at, (end - at) as usize).len();
            if n == 0 {
                return;
            }
            at += n as u64;
        }
    }

    /// Takes at most `most` bytes at `at`; returns none if there are none.
    fn take(&mut self, at: u64, most: usize) -> Bytes {
        let Some((&start, _)) = self.pieces.range(..=at).next_back() else {
            return Bytes::new();
        };
        let Some(mut piece) = self.pieces.remove(&start) else {
            return Bytes::new();
        };
        let skip = (at - start) as usize;
        if skip >= piece.len() {
            self.pieces.insert(start, piece);
            return Bytes::new();
        }
        if skip > 0 {
            self.pieces.insert(start, piece.split_to(skip));
        }
        let taken = piece.split_to(piece.len().min(most));
        if !piece.is_empty() {
            self.pieces.insert(at + taken.len() as u64, piece);
        }
        self.held = self.held.saturating_sub(taken.len() as u64);
        let end = at + taken.len() as u64;
        self.present.remove(at, end);
        self.taken.insert(at, end);
        taken
    }
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
