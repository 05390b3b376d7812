//! Thread pool with an upper bound that starts threads on demand.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// One unit of work.
pub type ThreadWork = Box<dyn FnOnce() + Send>;

/// Idle time after which a thread ends.
pub(crate) const IDLE: Duration = Duration::from_secs(2);

/// Thread pool: threads start when there is work and end after two idle seconds.
#[derive(Debug)]
pub struct ThreadPool {
    shared: Arc<ThreadPoolShared>,
    name: &'static str,
    most: usize,
}

/// State that the pool and its threads share; `wake` announces new work.
#[derive(Debug, Default)]
struct ThreadPoolShared {
    state: Mutex<ThreadPoolState>,
    wake: Condvar,
}

/// Queued work, and the numbers of running threads and of those that wait for work.
#[derive(Default)]
struct ThreadPoolState {
    waiting: VecDeque<ThreadWork>,
    threads: usize,
    sleeping: usize,
}

impl std::fmt::Debug for ThreadPoolState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPoolState")
            .field("waiting", &self.waiting.len())
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl ThreadPool {
    /// Creates an empty pool of at most `most` threads with the name `name`.
    pub fn new(name: &'static str, most: usize) -> Self {
        Self {
            shared: Arc::default(),
            name,
            most,
        }
    }

    /// Queues `work` for one of the threads.
    ///
    /// # Errors
    /// Returns the work, not started, if `waiting` items are queued already or no thread can be
    /// started.
    pub fn give(&self, work: ThreadWork, waiting: usize) -> Result<(), ThreadWork> {
        let mut state = self.shared.lock();
        if state.waiting.len() >= waiting {
            return Err(work);
        }
        state.waiting.push_back(work);
        if state.sleeping >= state.waiting.len() {
            self.shared.wake.notify_one();
        } else if state.threads < self.most {
            let shared = Arc::clone(&self.shared);
            let named = thread::Builder::new().name(self.name.to_owned());
            if named.spawn(move || shared.serve()).is_ok() {
                state.threads += 1;
            } else if state.threads == 0 {
                // There is no thread to run it.
                return state.waiting.pop_back().map_or(Ok(()), Err);
            }
        }
        Ok(())
    }

    /// Returns the number of busy threads and of queued items.
    pub(crate) fn busy(&self) -> (usize, usize) {
        let state = self.shared.lock();
        (state.threads - state.sleeping, state.waiting.len())
    }

    /// Returns the number of threads.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.shared.lock().threads
    }
}

impl ThreadPoolShared {
    fn lock(&self) -> MutexGuard<'_, ThreadPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs queued work until the thread has been idle for [`IDLE`].
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.waiting.pop_front() {
                drop(state);
                // A panic is for the submitter to notice; the thread continues with the next item.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                state = self.lock();
                continue;
            }
            state.sleeping += 1;
            let waited = self.wake.wait_timeout(state, IDLE);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.sleeping -= 1;
            if timeout.timed_out() && state.waiting.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
