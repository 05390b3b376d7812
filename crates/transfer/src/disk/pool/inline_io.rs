//! Disk operations that the session's loop executes itself instead of a disk thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use schedule::{DiskReply, DiskRequest, JobId};

use super::DiskThreadPool;
use crate::disk::write_coalescer::WriteCoalescer;
use crate::disk::{DiskReplyReceiver, LocalTarget, local_fault};

/// The smallest write that is coalesced. A smaller one is the end of a small file, and the next
/// request waits for its answer.
const GATHERED_FROM: u64 = 64 << 10;

/// Writes to memory file systems that wait for adjacent data, by job.
#[derive(Default)]
pub(super) struct PendingWrites(RefCell<BTreeMap<JobId, JobWrites>>);

/// The waiting writes of a job and their target.
type JobWrites = (Option<Arc<LocalTarget>>, WriteCoalescer);

impl PendingWrites {
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

impl DiskThreadPool {
    /// Answers a read of data that are in memory, or a write to memory if no other processor is
    /// free; otherwise returns the request unchanged. A disk thread costs two context switches and
    /// the processor's caches: with one, an upload of 4 GiB on one connection took a tenth more
    /// processor time.
    ///
    /// If the result is `Ok(None)`, [`DiskThreadPool::poll_reply`] gives the reply after adjacent data
    /// arrived or [`DiskThreadPool::flush`] was called.
    #[expect(
        clippy::result_large_err,
        reason = "no error: the request comes back as it was"
    )]
    pub fn at_once(&self, request: DiskRequest) -> Result<Option<DiskReply>, DiskRequest> {
        match request {
            DiskRequest::Read {
                job,
                offset,
                len,
                mut block,
            } => {
                let source = self.shared.lock().source_of(job);
                match source.is_some_and(|source| source.read_at_once(offset, len, &mut block)) {
                    true => Ok(Some(DiskReply::Read { job, offset, block })),
                    false => Err(DiskRequest::Read {
                        job,
                        offset,
                        len,
                        block,
                    }),
                }
            }
            DiskRequest::Write {
                job,
                offset,
                pieces,
            } => {
                let target = self.shared.lock().target_of(job);
                let takes = |target: &Arc<LocalTarget>| target.takes_at_once() && !(self.spare)();
                match target.filter(takes) {
                    Some(target) => Ok(self.write_at_once(target, job, offset, pieces)),
                    None => Err(DiskRequest::Write {
                        job,
                        offset,
                        pieces,
                    }),
                }
            }
            request => Err(request),
        }
    }

    fn write_at_once(
        &self,
        target: Arc<LocalTarget>,
        job: JobId,
        offset: u64,
        pieces: Vec<Bytes>,
    ) -> Option<DiskReply> {
        let len: u64 = pieces.iter().map(|p| p.len() as u64).sum();
        let held = self.held.0.borrow_mut().remove(&job);
        if len < GATHERED_FROM && held.is_none() {
            return Some(match target.write(offset, pieces) {
                Ok(len) => DiskReply::Written { job, offset, len },
                Err(e) => {
                    let fault = local_fault(&e);
                    DiskReply::Failed { job, fault }
                }
            });
        }
        let new = || WriteCoalescer::new(target.piece());
        let mut gathered = held.map_or_else(new, |(_, gathered)| gathered);
        if let Err(pieces) = gathered.add(offset, pieces) {
            let all = gathered.take_all();
            self.write(&target, job, &mut gathered, all);
            // An empty coalescer accepts any offset.
            let _ = gathered.add(offset, pieces);
        }
        if let Some(whole) = gathered.take_whole() {
            self.write(&target, job, &mut gathered, whole);
        }
        if !gathered.is_empty() {
            let held = (Some(target), gathered);
            self.held.0.borrow_mut().insert(job, held);
        }
        None
    }

    /// Writes the waiting data of `job`, before another request of that job.
    pub(super) fn write_held(&self, job: JobId) {
        let held = self.held.0.borrow_mut().remove(&job);
        if let Some((Some(target), mut gathered)) = held {
            let all = gathered.take_all();
            self.write(&target, job, &mut gathered, all);
        }
    }

    /// Writes the waiting data of all jobs.
    pub(super) fn write_all_held(&self) {
        let jobs: Vec<JobId> = self.held.0.borrow().keys().copied().collect();
        jobs.into_iter().for_each(|job| self.write_held(job));
    }

    fn write(
        &self,
        target: &LocalTarget,
        job: JobId,
        gathered: &mut WriteCoalescer,
        (offset, pieces): (u64, Vec<Bytes>),
    ) {
        match target.write(offset, pieces) {
            Ok(_) => gathered.written(job).for_each(|r| self.shared.reply(r)),
            Err(e) => {
                let replies = gathered.answered(job, Some(local_fault(&e)));
                replies.for_each(|reply| self.shared.reply(reply));
            }
        }
    }
}
