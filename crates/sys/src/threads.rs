//! Threads that carry out what they are given, as many as are needed up to a bound.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Something to do.
pub type Work = Box<dyn FnOnce() + Send>;

/// A thread that has had nothing to do for so long ends.
pub(crate) const IDLE: Duration = Duration::from_secs(2);

/// Threads that come when there is something to do and go when there has been nothing for two seconds.
#[derive(Debug)]
pub struct Threads {
    shared: Arc<Shared>,
    name: &'static str,
    most: usize,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    threads: usize,
    sleeping: usize,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("waiting", &self.waiting.len())
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl Threads {
    /// None yet, `most` at most, which are called `name`.
    pub fn new(name: &'static str, most: usize) -> Self {
        Self {
            shared: Arc::default(),
            name,
            most,
        }
    }

    /// Has `work` done by one of them, soon.
    ///
    /// # Errors
    /// So much waits already that `waiting` would wait, or there are no threads to be had: the work, which
    /// nobody has begun.
    pub fn give(&self, work: Work, waiting: usize) -> Result<(), Work> {
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
                // Nobody will come.
                return state.waiting.pop_back().map_or(Ok(()), Err);
            }
        }
        Ok(())
    }

    /// How many have something to do, and how much nobody has begun yet.
    pub(crate) fn busy(&self) -> (usize, usize) {
        let state = self.shared.lock();
        (state.threads - state.sleeping, state.waiting.len())
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.shared.lock().threads
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's life.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.waiting.pop_front() {
                drop(state);
                // What fails is for whoever gave it to notice; the thread goes on with the next.
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
