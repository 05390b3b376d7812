//! Requests that wait for a disk: they are carried out beside those behind them, several at once, and
//! are answered in their order all the same.
//!
//! What is in the page cache needs no thread and gets none.

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
use sftp::Request;
use sys::Threads;
use wire::Block;

use crate::answer::Answer;
use crate::files::changes_nothing;

/// So much waits for disks at once in this process: what one of them gains from more is little.
const MOST: usize = 8;
/// What may wait for those; whoever has more does it itself.
const WAITING: usize = 64;
/// A read that took so long has waited for a disk, ...
const SLOW: Duration = Duration::from_millis(1);
/// ... and one that took less than this has not, though it went aside.
const QUICK: Duration = Duration::from_micros(100);

/// So many long copies at once, whose threads are others: who waits for a disk does not wait for them.
const MOST_LONG: usize = 4;
/// What a client has asked for that has left goes on for so long at most.
pub(crate) const LAST: Duration = Duration::from_secs(10);

/// The number of a request that is carried out aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockingTicket(u64);

/// What came of one.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) ticket: BlockingTicket,
    pub(crate) outcome: Outcome,
    /// How long it took.
    lasted: Duration,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    /// So many bytes were read of the file with this handle, or why not.
    Read(Vec<u8>, Block, Result<usize, Errno>),
    /// That file is durable, or not.
    Synced(Vec<u8>, Result<(), Errno>),
    /// What the file with this handle was to get was copied, or not.
    Copied(Vec<u8>, Answer),
    /// Whoever carried it out is gone.
    Lost,
}

/// The requests of a session that are carried out aside.
#[derive(Debug)]
pub(crate) struct BlockingPool {
    sender: Sender<Arrived>,
    arrived: Receiver<Arrived>,
    /// Rung for each; without it somebody waits for them.
    bell: Option<Arc<OwnedFd>>,
    next: u64,
    /// How many are under way.
    under_way: usize,
    /// How many of them have arrived.
    here: Arc<AtomicUsize>,
    /// Nothing else is carried out before what is under way has ended.
    alone: bool,
    /// How long it may last once the client has left.
    until: Until,
    /// Heard of, and not looked at.
    news: VecDeque<Arrived>,
    /// The file system does not tell what is in memory, ...
    untold: bool,
    /// ... and the last read of it was slow.
    slow: bool,
}

/// When long requests of a client that has left end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Until(Arc<OnceLock<Instant>>);

impl Until {
    pub(crate) fn is_over(&self) -> bool {
        self.0.get().is_some_and(|until| Instant::now() >= *until)
    }
}

/// Nobody is there who would hear of it.
impl Drop for BlockingPool {
    fn drop(&mut self) {
        let _ = self.until.0.set(Instant::now());
    }
}

/// Where a read is to be carried out.
pub(crate) enum Found {
    /// It was, with so many bytes.
    Here(usize),
    /// It waits for a disk.
    Elsewhere,
}

impl BlockingPool {
    /// For who is told by a descriptor, which becomes readable, or waits.
    pub(crate) fn new(told: bool) -> Self {
        let (sender, arrived) = channel();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Self {
            sender,
            arrived,
            // Without a descriptor they are waited for.
            bell: told.then(|| eventfd(0, flags).ok().map(Arc::new)).flatten(),
            next: 0,
            under_way: 0,
            here: Arc::default(),
            alone: false,
            until: Until::default(),
            news: VecDeque::new(),
            untold: false,
            slow: false,
        }
    }

    /// The client has left: it is waited for what is under way from now on, which lasts no longer than
    /// [`LAST`].
    pub(crate) fn wait(&mut self) {
        self.bell = None;
        let _ = self.until.0.set(Instant::now() + LAST);
    }

    /// Whether somebody else has a turn while something is under way.
    pub(crate) fn is_told(&self) -> bool {
        self.bell.is_some()
    }

    /// How long what is asked for may last.
    pub(crate) fn until(&self) -> Until {
        self.until.clone()
    }

    /// Whether nothing is under way.
    pub(crate) fn is_free(&self) -> bool {
        self.under_way == 0
    }

    /// Whether `request` may be carried out now: what changes something waits for what was asked
    /// before.
    pub(crate) fn lets(&self, request: &Request<'_>) -> bool {
        self.is_free() || (!self.alone && changes_nothing(request))
    }

    /// Whether something has arrived and was not looked at.
    pub(crate) fn has_news(&self) -> bool {
        self.here.load(Ordering::Acquire) > 0
    }

    /// What becomes readable when something has arrived, while that can be.
    pub(crate) fn bell(&self) -> Option<BorrowedFd<'_>> {
        let bell = self.bell.as_ref().filter(|_| !self.is_free());
        bell.map(|bell| bell.as_fd())
    }

    /// Reads where that needs no disk, as far as can be told.
    pub(crate) fn try_read(
        &mut self,
        file: &File,
        slices: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> Result<Found, Errno> {
        if !self.untold {
            match read_in_memory(file, slices, offset) {
                Err(Errno::AGAIN) => return Ok(Found::Elsewhere),
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => self.untold = true,
                done => return done.map(Found::Here),
            }
        }
        if self.slow {
            return Ok(Found::Elsewhere);
        }
        let begun = Instant::now();
        let read = retry_on_intr(|| preadv(file, slices, offset))?;
        self.slow = begun.elapsed() >= SLOW;
        Ok(Found::Here(read))
    }

    /// Has `work` done by another thread, or by this one where none is to be had.
    pub(crate) fn begin(
        &mut self,
        work: impl FnOnce() -> Outcome + Send + 'static,
    ) -> BlockingTicket {
        self.give(threads(), work)
    }

    /// The same for what may take long; nothing behind it is carried out before it has ended.
    pub(crate) fn begin_long(
        &mut self,
        work: impl FnOnce() -> Outcome + Send + 'static,
    ) -> BlockingTicket {
        self.alone = true;
        self.give(long_threads(), work)
    }

    fn give(
        &mut self,
        threads: &Threads,
        work: impl FnOnce() -> Outcome + Send + 'static,
    ) -> BlockingTicket {
        let ticket = BlockingTicket(self.next);
        self.next += 1;
        self.under_way += 1;
        let promise = PendingAnswer {
            ticket,
            sender: self.sender.clone(),
            bell: self.bell.clone(),
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

    /// Hears of what has arrived; waits for all of it where nothing else tells.
    pub(crate) fn hear(&mut self) {
        if self.is_free() {
            return;
        }
        if let Some(bell) = &self.bell {
            let mut rung = [0; 8];
            // It is no news that there is none.
            let _ = rustix::io::read(bell, &mut rung);
        }
        while self.news.len() < self.under_way {
            let arrived = match self.bell {
                Some(_) => self.arrived.try_recv().ok(),
                None => self.arrived.recv().ok(),
            };
            let Some(arrived) = arrived else { break };
            self.here.fetch_sub(1, Ordering::AcqRel);
            self.news.push_back(arrived);
        }
    }

    /// The next of them.
    pub(crate) fn next(&mut self) -> Option<Arrived> {
        let arrived = self.news.pop_front()?;
        self.under_way -= 1;
        self.alone &= self.under_way > 0;
        if self.untold && matches!(arrived.outcome, Outcome::Read(..)) {
            self.slow = arrived.lasted >= QUICK;
        }
        Some(arrived)
    }
}

/// Tells what came of a request, whatever did.
struct PendingAnswer {
    ticket: BlockingTicket,
    sender: Sender<Arrived>,
    bell: Option<Arc<OwnedFd>>,
    here: Arc<AtomicUsize>,
    outcome: Option<Outcome>,
    begun: Instant,
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        let arrived = Arrived {
            ticket: self.ticket,
            outcome: self.outcome.take().unwrap_or(Outcome::Lost),
            lasted: self.begun.elapsed(),
        };
        self.here.fetch_add(1, Ordering::AcqRel);
        // Whoever asked may be gone.
        let _ = self.sender.send(arrived);
        if let Some(bell) = &self.bell {
            let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        }
    }
}

/// Those of this process.
fn threads() -> &'static Threads {
    static THREADS: OnceLock<Threads> = OnceLock::new();
    THREADS.get_or_init(|| Threads::new("disk", MOST))
}

/// Those for what takes long.
fn long_threads() -> &'static Threads {
    static THREADS: OnceLock<Threads> = OnceLock::new();
    THREADS.get_or_init(|| Threads::new("copy", MOST_LONG))
}

/// Reads what is in memory, all of it or up to the end of the file; otherwise `AGAIN`.
#[cfg(target_os = "linux")]
fn read_in_memory(
    file: &File,
    mut slices: &mut [IoSliceMut<'_>],
    offset: u64,
) -> Result<usize, Errno> {
    let mut done = 0;
    while !slices.is_empty() {
        let at = offset.saturating_add(done as u64);
        // At the end it is nothing, and behind what is in memory an error.
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
#[path = "blocking_pool_tests.rs"]
mod tests;
