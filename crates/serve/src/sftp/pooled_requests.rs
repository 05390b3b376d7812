//! Runs requests that wait for a disk on a thread pool, several at once, and keeps their answers in
//! the order of the requests.
//!
//! Data in the page cache need no thread and get none.

use std::collections::VecDeque;
use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, ReadWriteFlags, preadv, preadv2, retry_on_intr};
use sftp::{OpenFlags, Request};
use sys::ThreadPool;
use wire::PayloadBlock;

use super::session::RequestResult;

/// Maximum number of threads for disk requests in this process; more threads gain little.
const MOST: usize = 8;
/// Maximum number of requests that wait for a thread; the caller carries out further ones itself.
const WAITING: usize = 64;
/// Shortest time of a read that counts as having waited for a disk.
const SLOW: Duration = Duration::from_millis(1);
/// Longest time of a read on the pool that counts as answered from the page cache.
const QUICK: Duration = Duration::from_micros(100);

/// Number of threads for long copies, which are separate so that disk requests do not wait for
/// them.
const MOST_LONG: usize = 4;
/// Number of threads that wait for other programs.
const MOST_WAITING: usize = 2;

/// Number of a request in the pool of threads for blocking calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockingRequestId(u64);

/// Result of a request that a thread of the pool has carried out, on its way back to the session.
#[derive(Debug)]
pub(crate) struct FinishedRequest {
    ticket: BlockingRequestId,
    outcome: BlockingOutcome,
    /// Time that the request took.
    lasted: Duration,
}

impl FinishedRequest {
    pub(super) fn into_parts(self) -> (BlockingRequestId, BlockingOutcome) {
        (self.ticket, self.outcome)
    }
}

/// Result of a request of the pool, by kind; errors become the request's STATUS.
#[derive(Debug)]
pub(crate) enum BlockingOutcome {
    /// Result of reading the file with this handle into the block: the number of bytes.
    Read(Vec<u8>, PayloadBlock, Result<usize, Errno>),
    /// Result of fsync(2) on the file with this handle.
    Synced(Vec<u8>, Result<(), Errno>),
    /// Result of copying to the file with this handle.
    Copied(Vec<u8>, RequestResult),
    /// The thread that worked on the request is gone.
    Lost,
}

/// Requests of one session that are in the pool.
#[derive(Debug)]
pub(crate) struct PooledRequests {
    sender: Sender<FinishedRequest>,
    arrived: Receiver<FinishedRequest>,
    /// Written for each finished request; without it the session waits for them.
    waker: Option<Arc<OwnedFd>>,
    next: u64,
    /// Number of requests in the pool.
    under_way: usize,
    /// Number of finished requests that are not yet received.
    here: Arc<AtomicUsize>,
    /// A long copy is running; nothing else is carried out before it has ended.
    alone: bool,
    /// Deadline for long copies once the client has disconnected.
    until: LongRequestDeadline,
    /// Results received and not yet processed.
    news: VecDeque<FinishedRequest>,
    /// The file system does not report whether data are in memory.
    untold: bool,
    /// The last read on such a file system was slow.
    slow: bool,
}

/// Deadline for long requests of a client that has left.
#[derive(Clone, Debug, Default)]
pub(crate) struct LongRequestDeadline(Arc<OnceLock<Instant>>);

impl LongRequestDeadline {
    pub(crate) fn is_over(&self) -> bool {
        self.0.get().is_some_and(|until| Instant::now() >= *until)
    }
}

/// Ends long requests when the session is dropped.
impl Drop for PooledRequests {
    fn drop(&mut self) {
        let _ = self.until.0.set(Instant::now());
    }
}

/// Outcome of an attempt to read without blocking.
pub(crate) enum ReadAttempt {
    /// The data were read, this many bytes.
    Done(usize),
    /// The read must wait for a disk.
    WouldBlock,
}

impl PooledRequests {
    /// Creates the pool; with `told`, a descriptor signals completions, otherwise the caller waits
    /// for them.
    pub(crate) fn new(told: bool) -> Self {
        let (sender, arrived) = channel();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Self {
            sender,
            arrived,
            // Without a descriptor, completions are waited for.
            waker: told.then(|| eventfd(0, flags).ok().map(Arc::new)).flatten(),
            next: 0,
            under_way: 0,
            here: Arc::default(),
            alone: false,
            until: LongRequestDeadline::default(),
            news: VecDeque::new(),
            untold: false,
            slow: false,
        }
    }

    /// Ends long requests now that the client has disconnected, and switches to waiting for the
    /// others. Returns true if a long copy was under way.
    pub(crate) fn leave(&mut self) -> bool {
        self.waker = None;
        let _ = self.until.0.set(Instant::now());
        self.alone
    }

    /// True if other work can go on while requests are in the pool.
    pub(crate) fn is_told(&self) -> bool {
        self.waker.is_some()
    }

    /// Deadline to be checked by long requests.
    pub(crate) fn until(&self) -> LongRequestDeadline {
        self.until.clone()
    }

    /// True if no request is in the pool.
    pub(crate) fn is_free(&self) -> bool {
        self.under_way == 0
    }

    /// True if `request` may be carried out now: a request that changes something waits for all
    /// earlier ones.
    pub(crate) fn lets(&self, request: &Request<'_>) -> bool {
        self.is_free() || (!self.alone && changes_nothing(request))
    }

    /// True if a request has finished and its result is not yet received.
    pub(crate) fn has_news(&self) -> bool {
        self.here.load(Ordering::Acquire) > 0
    }

    /// Descriptor that becomes readable when a request has finished, while one is in the pool.
    pub(crate) fn waker(&self) -> Option<BorrowedFd<'_>> {
        let waker = self.waker.as_ref().filter(|_| !self.is_free());
        waker.map(|waker| waker.as_fd())
    }

    /// Reads without blocking on a disk, as far as the kernel can tell.
    pub(crate) fn try_read(
        &mut self,
        file: &File,
        slices: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> Result<ReadAttempt, Errno> {
        if !self.untold {
            match read_in_memory(file, slices, offset) {
                Err(Errno::AGAIN) => return Ok(ReadAttempt::WouldBlock),
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => self.untold = true,
                done => return done.map(ReadAttempt::Done),
            }
        }
        if self.slow {
            return Ok(ReadAttempt::WouldBlock);
        }
        let begun = Instant::now();
        let read = retry_on_intr(|| preadv(file, slices, offset))?;
        self.slow = begun.elapsed() >= SLOW;
        Ok(ReadAttempt::Done(read))
    }

    /// Runs `work` on a pool thread, or on this thread if none is available.
    pub(crate) fn begin(
        &mut self,
        work: impl FnOnce() -> BlockingOutcome + Send + 'static,
    ) -> BlockingRequestId {
        self.give(threads(), work)
    }

    /// Runs `work` that waits for another program, apart from the requests that wait for a disk.
    /// The answers leave in the order of the requests, so that few threads do for any number of
    /// them.
    pub(crate) fn begin_waiting(
        &mut self,
        work: impl FnOnce() -> BlockingOutcome + Send + 'static,
    ) -> BlockingRequestId {
        self.give(waiting_threads(), work)
    }

    /// Runs long `work` on a thread for copies; no later request is carried out before it has
    /// ended.
    pub(crate) fn begin_long(
        &mut self,
        work: impl FnOnce() -> BlockingOutcome + Send + 'static,
    ) -> BlockingRequestId {
        self.alone = true;
        self.give(long_threads(), work)
    }

    fn give(
        &mut self,
        threads: &ThreadPool,
        work: impl FnOnce() -> BlockingOutcome + Send + 'static,
    ) -> BlockingRequestId {
        let ticket = BlockingRequestId(self.next);
        self.next += 1;
        self.under_way += 1;
        let promise = AnswerSendGuard {
            ticket,
            sender: self.sender.clone(),
            waker: self.waker.clone(),
            here: Arc::clone(&self.here),
            outcome: None,
            begun: Instant::now(),
        };
        let work = Box::new(move || {
            let mut promise = promise;
            promise.outcome = Some(work());
        });
        if let Err(work) = threads.give(work, WAITING) {
            work();
        }
        ticket
    }

    /// Receives finished requests; without a descriptor it waits for all of them.
    pub(crate) fn hear(&mut self) {
        if self.is_free() {
            return;
        }
        if let Some(waker) = &self.waker {
            let mut rung = [0; 8];
            // The descriptor may have no events.
            let _ = rustix::io::read(waker, &mut rung);
        }
        while self.news.len() < self.under_way {
            let arrived = match self.waker {
                Some(_) => self.arrived.try_recv().ok(),
                None => self.arrived.recv().ok(),
            };
            let Some(arrived) = arrived else { break };
            self.here.fetch_sub(1, Ordering::AcqRel);
            self.news.push_back(arrived);
        }
    }

    /// Returns the next finished request.
    pub(crate) fn next(&mut self) -> Option<FinishedRequest> {
        let arrived = self.news.pop_front()?;
        self.under_way -= 1;
        self.alone &= self.under_way > 0;
        if self.untold && matches!(arrived.outcome, BlockingOutcome::Read(..)) {
            self.slow = arrived.lasted >= QUICK;
        }
        Some(arrived)
    }
}

/// True if carrying out this request early cannot change the answer to any earlier request.
pub(super) fn changes_nothing(request: &Request<'_>) -> bool {
    use Request as R;
    match request {
        R::Open { flags, .. } => *flags == OpenFlags::READ,
        R::Read { .. }
        | R::Fstat { .. }
        | R::Stat { .. }
        | R::Lstat { .. }
        | R::Opendir { .. }
        | R::Readdir { .. }
        | R::Readlink { .. }
        | R::Realpath { .. } => true,
        _ => false,
    }
}

/// Sends the result of a request when dropped, even if the work panicked.
struct AnswerSendGuard {
    ticket: BlockingRequestId,
    sender: Sender<FinishedRequest>,
    waker: Option<Arc<OwnedFd>>,
    here: Arc<AtomicUsize>,
    outcome: Option<BlockingOutcome>,
    begun: Instant,
}

impl Drop for AnswerSendGuard {
    fn drop(&mut self) {
        let arrived = FinishedRequest {
            ticket: self.ticket,
            outcome: self.outcome.take().unwrap_or(BlockingOutcome::Lost),
            lasted: self.begun.elapsed(),
        };
        self.here.fetch_add(1, Ordering::AcqRel);
        // The session may be gone.
        let _ = self.sender.send(arrived);
        if let Some(waker) = &self.waker {
            let _ = rustix::io::write(waker, &1_u64.to_ne_bytes());
        }
    }
}

/// Threads for disk requests, shared by this process.
fn threads() -> &'static ThreadPool {
    static THREADS: OnceLock<ThreadPool> = OnceLock::new();
    THREADS.get_or_init(|| ThreadPool::new("disk", MOST))
}

/// Threads that wait for other programs, shared by this process.
fn waiting_threads() -> &'static ThreadPool {
    static THREADS: OnceLock<ThreadPool> = OnceLock::new();
    THREADS.get_or_init(|| ThreadPool::new("waiting", MOST_WAITING))
}

/// Threads for long copies, shared by this process.
fn long_threads() -> &'static ThreadPool {
    static THREADS: OnceLock<ThreadPool> = OnceLock::new();
    THREADS.get_or_init(|| ThreadPool::new("copy", MOST_LONG))
}

/// Reads if all bytes, up to the end of the file, are in memory; otherwise fails with `AGAIN`.
#[cfg(target_os = "linux")]
fn read_in_memory(
    file: &File,
    mut slices: &mut [IoSliceMut<'_>],
    offset: u64,
) -> Result<usize, Errno> {
    let mut done = 0;
    while !slices.is_empty() {
        let at = offset.saturating_add(done as u64);
        // Returns 0 at the end of the file, and AGAIN behind the cached part.
        match retry_on_intr(|| preadv2(file, slices, at, ReadWriteFlags::NOWAIT))? {
            0 => break,
            read => {
                done += read;
                IoSliceMut::advance_slices(&mut slices, read);
            }
        }
    }
    Ok(done)
}

#[cfg(not(target_os = "linux"))]
fn read_in_memory(_: &File, _: &mut [IoSliceMut<'_>], _: u64) -> Result<usize, Errno> {
    Err(Errno::OPNOTSUPP)
}

#[cfg(test)]
#[path = "pooled_requests_tests.rs"]
mod tests;
