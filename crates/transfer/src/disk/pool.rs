//! The threads that execute disk requests.

mod inline_io;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use schedule::{DiskReply, DiskRequest, JobId};
use sys::HelperThreads;

use self::inline_io::PendingWrites;
use super::execute::execute_on_files;
use super::write_coalescer::WriteCoalescer;
use super::{
    DiskReplyReceiver, HostToHostBuffer, LocalSource, LocalTarget, OpenDirectoryCache,
    ReadBackCheck, local_fault, packed,
};
use crate::sums::{ChecksumLedger, ChecksumPieceTicket};

/// Longest wait of a dropped pool for an operation that does not end, such as a write to a FIFO
/// without a reader. Temporaries are on regular file systems, where operations end.
const LONGEST_GOODBYE: Duration = Duration::from_secs(10);

/// The number of writes, of up to 256 KiB each, after which a thread is woken. Waking one for each
/// write cost a context switch and the caches of both processors.
const COMPANY: usize = 4;

/// Threads that execute [`DiskRequest`]s. Requests of one job run in order, except that its reads
/// run concurrently. Dropping the pool removes the temporaries of all unfinished targets.
pub struct DiskThreadPool {
    shared: Arc<DiskPoolShared>,
    held: PendingWrites,
    /// Returns true if a processor is idle.
    spare: fn() -> bool,
}

/// The state that threads and relays share.
///
/// A mutex and condition variables are used because a channel that spins before it sleeps takes the
/// processor from the server on a small machine: 7,000 sched_yield calls for 512 MiB.
pub(super) struct DiskPoolShared {
    state: Mutex<DiskPoolState>,
    /// Signalled when a job may have a request to run.
    work: Condvar,
    /// Signalled when a thread has ended.
    ended: Condvar,
    replies: Mutex<ReplyQueue>,
    tell: Box<dyn Fn() + Send + Sync>,
    /// Collects checksums of the transferred data if they are wanted.
    ledger: Option<Arc<ChecksumLedger>>,
    /// Resolves the directories of targets.
    directories: Arc<OpenDirectoryCache>,
}

#[derive(Default)]
pub(super) struct DiskPoolState {
    jobs: BTreeMap<JobId, JobSlot>,
    /// Jobs to check for work; a job may be listed once for each thread that may help.
    ready: VecDeque<JobId>,
    /// A lower bound of the number of idle threads; waking one when none is idle would be a wasted
    /// system call.
    idle: usize,
    /// Writes for which no thread was woken yet.
    held: usize,
    stopping: bool,
    threads: usize,
}

#[derive(Default)]
struct ReplyQueue {
    queue: VecDeque<DiskReply>,
    // The loop was notified of replies and has not fetched all of them.
    told: bool,
}

#[derive(Default)]
struct JobSlot {
    queue: VecDeque<DiskRequest>,
    /// The number of reads or writes that run now.
    side_by_side: usize,
    /// True while another operation runs, which excludes all others.
    alone: bool,
    file: Option<JobFile>,
    /// True if the job is over, so that its relay is dropped.
    released: bool,
}

#[derive(Clone)]
pub(super) enum JobFile {
    Source(Arc<LocalSource>),
    Target(Arc<LocalTarget>),
    Relay(Arc<HostToHostBuffer>),
    /// The relay of another job, for a part of its file.
    RelayPart(Arc<HostToHostBuffer>),
    Check(Arc<ReadBackCheck>),
}

/// Disk request that is about to run.
struct NextDiskRequest {
    request: DiskRequest,
    file: Option<JobFile>,
    /// The place in the checksum order of a read.
    ticket: Option<ChecksumPieceTicket>,
    /// The writes that were coalesced into this request.
    gathered: Option<WriteCoalescer>,
}

impl DiskThreadPool {
    /// Creates a pool of `threads` threads. `tell` is called from any thread when the first reply
    /// becomes available. The `ledger`, if any, gets the checksums of all files; `directories`
    /// resolves the targets.
    pub fn new(
        threads: usize,
        ledger: Option<Arc<ChecksumLedger>>,
        directories: Arc<OpenDirectoryCache>,
        tell: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(DiskPoolShared {
            state: Mutex::default(),
            work: Condvar::new(),
            ended: Condvar::new(),
            replies: Mutex::default(),
            tell: Box::new(tell),
            ledger,
            directories,
        });
        let pool = Self {
            shared,
            held: PendingWrites::default(),
            spare: || HelperThreads::shared().are_idle(),
        };
        for _ in 0..threads {
            let shared = Arc::clone(&pool.shared);
            std::thread::Builder::new()
                .name("disk".to_owned())
                .spawn(move || shared.work())?;
            pool.shared.lock().threads += 1;
        }
        Ok(pool)
    }

    /// Queues a request; [`DiskThreadPool::poll_reply`] returns its reply.
    ///
    /// A write may be delayed to be coalesced: call [`DiskThreadPool::flush`] before blocking.
    pub fn submit(&self, request: DiskRequest) {
        let job = request.job();
        self.write_held(job);
        let write = matches!(request, DiskRequest::Write { .. });
        let mut state = self.shared.lock();
        state.jobs.entry(job).or_default().queue.push_back(request);
        state.ready.push_back(job);
        if state.idle == 0 {
            return;
        }
        if write && state.held + 1 < COMPANY {
            state.held += 1;
            return;
        }
        state.held = 0;
        state.idle -= 1;
        drop(state);
        self.shared.work.notify_one();
    }

    /// True if delayed writes exist.
    pub fn holds(&self) -> bool {
        !self.held.is_empty() || self.shared.lock().held > 0
    }

    /// Starts all delayed writes.
    pub fn flush(&self) {
        self.write_all_held();
        let mut state = self.shared.lock();
        if std::mem::take(&mut state.held) == 0 || state.idle == 0 {
            return;
        }
        state.idle -= 1;
        drop(state);
        self.shared.work.notify_one();
    }

    /// Returns the next reply. Poll until `None` each time `tell` was called.
    pub fn poll_reply(&self) -> Option<DiskReply> {
        let mut replies = self.shared.replies();
        let reply = replies.queue.pop_front();
        replies.told = reply.is_some();
        reply
    }

    /// Makes `relay` the file of `job` until [`DiskThreadPool::release`]: data written to it by one job
    /// are read by another.
    pub fn bind(&self, job: JobId, relay: Arc<HostToHostBuffer>) {
        self.shared.lock().jobs.entry(job).or_default().file = Some(JobFile::Relay(relay));
    }

    /// Makes `check` the target of `job`, until [`DiskThreadPool::release`].
    pub(crate) fn bind_check(&self, job: JobId, check: Arc<ReadBackCheck>) {
        self.shared.lock().jobs.entry(job).or_default().file = Some(JobFile::Check(check));
    }

    /// Ends a job with a relay or a check.
    pub fn release(&self, job: JobId) {
        self.write_held(job);
        let mut state = self.shared.lock();
        if let Some(slot) = state.jobs.get_mut(&job) {
            slot.released = true;
            slot.file = None;
            if slot.is_idle() {
                state.jobs.remove(&job);
            }
        }
    }
}

impl DiskPoolState {
    /// Returns the next request of `job` that may run now.
    fn next(&mut self, job: JobId) -> Option<NextDiskRequest> {
        let slot = self.jobs.get_mut(&job)?;
        let shared = shares(slot.queue.front()?);
        // Concurrent writes to one file spin on its inode lock in the kernel, and checksums need
        // them in order: one thread does all of them.
        let front = slot.queue.front();
        let writes = front.is_some_and(|r| {
            matches!(
                r,
                DiskRequest::Write { .. }
                    | DiskRequest::WritePacked { .. }
                    | DiskRequest::Skip { .. }
            )
        });
        if slot.alone || ((!shared || writes) && slot.side_by_side > 0) {
            return None;
        }
        let mut request = slot.queue.pop_front()?;
        let gathered = match (&mut request, &slot.file) {
            (DiskRequest::Write { offset, pieces, .. }, Some(JobFile::Target(target)))
                if !slot.queue.is_empty() =>
            {
                let mut gathered = WriteCoalescer::new(target.piece());
                gathered.gather(*offset, pieces, &mut slot.queue);
                Some(gathered)
            }
            _ => None,
        };
        let file = if shared {
            slot.side_by_side += 1;
            slot.file.clone()
        } else {
            slot.alone = true;
            match &slot.file {
                // A relay replies before its request is over, and a part may join it at once.
                Some(relay @ JobFile::Relay(_)) => Some(relay.clone()),
                _ => slot.file.take(),
            }
        };
        // Tickets are issued in order, so that a thread can wait for the preceding one.
        let ticket = match (&request, &file) {
            (
                DiskRequest::Read { offset, len, .. } | DiskRequest::ReadPacked { offset, len, .. },
                Some(JobFile::Source(source)),
            ) => source.promise_sum(*offset, *len as u64),
            _ => None,
        };
        Some(NextDiskRequest {
            request,
            file,
            ticket,
            gathered,
        })
    }

    /// Returns the source of `job` if it has no pending requests.
    pub(super) fn source_of(&self, job: JobId) -> Option<Arc<LocalSource>> {
        let slot = self.jobs.get(&job)?;
        match &slot.file {
            Some(JobFile::Source(source)) if slot.queue.is_empty() && !slot.alone => {
                Some(Arc::clone(source))
            }
            _ => None,
        }
    }

    /// Returns the target of `job` if it has no pending requests and no running write.
    pub(super) fn target_of(&self, job: JobId) -> Option<Arc<LocalTarget>> {
        let slot = self.jobs.get(&job)?;
        let free = slot.queue.is_empty() && !slot.alone && slot.side_by_side == 0;
        match &slot.file {
            Some(JobFile::Target(target)) if free => Some(Arc::clone(target)),
            _ => None,
        }
    }
}

impl JobSlot {
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.side_by_side == 0 && !self.alone && self.file.is_none()
    }
}

impl Drop for DiskThreadPool {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stopping = true;
        self.shared.work.notify_all();
        let wait = self
            .shared
            .ended
            .wait_timeout_while(state, LONGEST_GOODBYE, |s| s.threads > 0);
        state = wait.unwrap_or_else(PoisonError::into_inner).0;
        // Dropped targets remove their temporaries.
        state.jobs.clear();
    }
}

impl DiskReplyReceiver for DiskPoolShared {
    fn reply(&self, reply: DiskReply) {
        let mut replies = self.replies();
        replies.queue.push_back(reply);
        let told = std::mem::replace(&mut replies.told, true);
        drop(replies);
        if !told {
            (self.tell)();
        }
    }
}

impl DiskPoolShared {
    pub(super) fn lock(&self) -> MutexGuard<'_, DiskPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replies(&self) -> MutexGuard<'_, ReplyQueue> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The body of a thread: runs requests until the pool is dropped.
    fn work(self: &Arc<Self>) {
        let mut state = self.lock();
        loop {
            if state.stopping {
                break;
            }
            let Some(job) = state.ready.pop_front() else {
                state.idle += 1;
                let wait = self.work.wait(state);
                state = wait.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            // Runs the job's requests that may run now, one after another.
            while let Some(mut next) = state.next(job) {
                drop(state);
                let shared = shares(&next.request);
                let gathered = next.gathered.take().filter(|all| !all.is_empty());
                let (reply, kept) = self.execute(next);
                let failed = matches!(reply, Some(DiskReply::Failed { .. }));
                let tell = || match (reply, gathered) {
                    (Some(DiskReply::Written { .. }), Some(mut all)) => {
                        all.answered(job, None).for_each(|r| self.reply(r));
                    }
                    (Some(DiskReply::Failed { fault, .. }), Some(mut all)) => {
                        all.answered(job, Some(fault)).for_each(|r| self.reply(r));
                    }
                    (reply, _) => reply.into_iter().for_each(|reply| self.reply(reply)),
                };
                if failed {
                    // The first failure has the reason; the job's further requests fail because of
                    // it, on any thread.
                    tell();
                    state = self.lock();
                    self.done(&mut state, job, shared, kept);
                } else {
                    // A part may join the file as soon as it is reported open, and a job that is
                    // reported finished is gone.
                    self.done(&mut self.lock(), job, shared, kept);
                    tell();
                    state = self.lock();
                }
            }
        }
        state.threads -= 1;
        drop(state);
        self.ended.notify_all();
    }

    fn done(&self, state: &mut DiskPoolState, job: JobId, shared: bool, kept: Option<JobFile>) {
        let Some(slot) = state.jobs.get_mut(&job) else {
            return;
        };
        if shared {
            slot.side_by_side -= 1;
        } else {
            slot.alone = false;
            slot.file = kept.filter(|_| !slot.released);
        }
        if slot.is_idle() {
            state.jobs.remove(&job);
            return;
        }
        // This thread continues with the next request; the others may help with the reads and
        // writes after it.
        let more = slot.queue.iter().take_while(|r| shares(r)).count();
        if !shared && more > 1 {
            state.ready.extend(std::iter::repeat_n(job, more - 1));
            state.idle = 0;
            self.work.notify_all();
        }
    }

    /// Executes `request`; returns the reply, unless a relay sends it later, and the file to keep
    /// for the job.
    fn execute(self: &Arc<Self>, next: NextDiskRequest) -> (Option<DiskReply>, Option<JobFile>) {
        let NextDiskRequest {
            request,
            file,
            ticket,
            ..
        } = next;
        let job = request.job();
        let request = match packed::unpacked(request) {
            Ok(request) => request,
            Err(e) => {
                if let Some(JobFile::Target(target)) = &file {
                    target.spoil();
                }
                let fault = schedule::JobFailure::new(e.to_string(), true);
                return (Some(DiskReply::Failed { job, fault }), None);
            }
        };
        if let Some(JobFile::Check(check)) = file {
            let reply = check.handle(request);
            return (Some(reply), Some(JobFile::Check(check)));
        }
        if let Some(JobFile::Relay(relay)) = file {
            relay.handle(request, &self.receiver());
            return (None, Some(JobFile::Relay(relay)));
        }
        if let Some(JobFile::RelayPart(relay)) = file {
            let ends = matches!(
                request,
                DiskRequest::CloseSource { .. }
                    | DiskRequest::Discard { .. }
                    | DiskRequest::Leave { .. }
            );
            // The relay ends with the job of the whole file.
            if ends {
                return (Some(DiskReply::Released { job }), None);
            }
            relay.handle(request, &self.receiver());
            return (None, Some(JobFile::RelayPart(relay)));
        }
        if let DiskRequest::Join { file, .. } = request {
            return match self.file_of(file) {
                Some(JobFile::Relay(relay)) => (
                    Some(DiskReply::Joined { job }),
                    Some(JobFile::RelayPart(relay)),
                ),
                Some(file) => (Some(DiskReply::Joined { job }), Some(file)),
                None => {
                    let fault = local_fault(&io::Error::other(
                        "internal error: the file is no longer open",
                    ));
                    (Some(DiskReply::Failed { job, fault }), None)
                }
            };
        }
        match execute_on_files(
            request,
            file,
            ticket,
            self.ledger.as_deref(),
            &self.directories,
        ) {
            Ok((reply, file)) => (Some(reply), file),
            Err(e) => {
                let fault = local_fault(&e);
                (Some(DiskReply::Failed { job, fault }), None)
            }
        }
    }

    /// Receives the replies that relays give later.
    fn receiver(self: &Arc<Self>) -> Arc<dyn DiskReplyReceiver> {
        Arc::clone(self) as Arc<dyn DiskReplyReceiver>
    }

    fn file_of(&self, job: JobId) -> Option<JobFile> {
        self.lock()
            .jobs
            .get(&job)
            .and_then(|slot| slot.file.clone())
    }
}

/// True if the request may run concurrently with others of its job. Parts may join while a target
/// is synced.
fn shares(request: &DiskRequest) -> bool {
    matches!(
        request,
        DiskRequest::Read { .. }
            | DiskRequest::AwaitSource { .. }
            | DiskRequest::Compare { .. }
            | DiskRequest::Search { .. }
            | DiskRequest::CopyBasis { .. }
            | DiskRequest::CheckRebuilt { .. }
            | DiskRequest::ReadPacked { .. }
            | DiskRequest::WritePacked { .. }
            | DiskRequest::Write { .. }
            | DiskRequest::Skip { .. }
            | DiskRequest::SyncTarget { .. }
    )
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
