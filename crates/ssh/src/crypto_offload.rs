//! Offload of sealing and opening to other threads. The position of each packet in the stream is
//! known beforehand, so packets can be processed in any order; the owner of a batch takes the
//! results in order and processes jobs that no helper has started. This module starts no threads:
//! the owner of the connection supplies idle ones.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// Unit of work for a helper; it may be dropped, since late help has no benefit.
pub type HelperWork = Box<dyn FnOnce() + Send>;

/// Access to threads that seal and open packets: one function asks if any is idle, the other gives
/// them work. The owner of the connection supplies both.
#[derive(Clone)]
pub struct CryptoHelpers {
    idle: Arc<dyn Fn() -> bool + Send + Sync>,
    run: Arc<dyn Fn(HelperWork) + Send + Sync>,
}

impl CryptoHelpers {
    /// Creates a helper. `idle` returns true if a thread is idle, and is called often; `run`
    /// executes work on another thread, soon or never.
    pub fn new(
        idle: impl Fn() -> bool + Send + Sync + 'static,
        run: impl Fn(HelperWork) + Send + Sync + 'static,
    ) -> Self {
        Self {
            idle: Arc::new(idle),
            run: Arc::new(run),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        (self.idle)()
    }

    pub(crate) fn help<J: OffloadJob>(
        &self,
        batch: &Arc<CryptoJobBatch<J>>,
        order: HelperJobOrder,
    ) {
        let batch = Arc::clone(batch);
        (self.run)(Box::new(move || batch.help(order)));
    }
}

impl fmt::Debug for CryptoHelpers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Helper").finish_non_exhaustive()
    }
}

/// Job that can run on any thread.
pub(crate) trait OffloadJob: Send + 'static {
    type Done: Send;

    fn carry_out(self) -> Self::Done;
}

/// Order in which a helper takes jobs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HelperJobOrder {
    /// First job first: the owner comes later.
    Fifo,
    /// Last job first: the owner starts at the same time with the first.
    Lifo,
}

/// Jobs in order, shared by the owner and its helpers.
pub(crate) struct CryptoJobBatch<J: OffloadJob> {
    places: Box<[Mutex<BatchSlot<J>>]>,
}

/// State of one job of a batch: pending, carried out, or taken by a thread.
enum BatchSlot<J: OffloadJob> {
    Pending(J),
    Done(J::Done),
    Taken,
}

impl<J: OffloadJob> CryptoJobBatch<J> {
    pub(crate) fn new(jobs: Vec<J>) -> Self {
        let places = jobs
            .into_iter()
            .map(|job| Mutex::new(BatchSlot::Pending(job)));
        Self {
            places: places.collect(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the result of job `at`, and runs it here if no helper has started it. `None` if it
    /// was taken before, or if the helper panicked.
    pub(crate) fn take(&self, at: usize) -> Option<J::Done> {
        let place = self.places.get(at)?;
        // A helper holds the lock while it runs the job, so this waits for it.
        let mut held = place.lock().unwrap_or_else(PoisonError::into_inner);
        let place = std::mem::replace(&mut *held, BatchSlot::Taken);
        drop(held);
        match place {
            BatchSlot::Pending(job) => Some(job.carry_out()),
            BatchSlot::Done(done) => Some(done),
            BatchSlot::Taken => None,
        }
    }

    /// Returns true if a helper is running job `at`, so that [`CryptoJobBatch::take`] would wait.
    pub(crate) fn is_busy(&self, at: usize) -> bool {
        let place = self.places.get(at);
        place.is_some_and(|place| matches!(place.try_lock(), Err(TryLockError::WouldBlock)))
    }

    /// Runs the last job that has not been started; returns false if there is none.
    pub(crate) fn do_last(&self) -> bool {
        self.places.iter().rev().any(Self::do_one)
    }

    fn help(&self, order: HelperJobOrder) {
        match order {
            HelperJobOrder::Fifo => self.places.iter().for_each(|place| {
                Self::do_one(place);
            }),
            HelperJobOrder::Lifo => self.places.iter().rev().for_each(|place| {
                Self::do_one(place);
            }),
        }
    }

    /// Runs the job in `place` unless it was started; returns true if it ran.
    fn do_one(place: &Mutex<BatchSlot<J>>) -> bool {
        let Ok(mut held) = place.try_lock() else {
            return false;
        };
        let (after, did) = match std::mem::replace(&mut *held, BatchSlot::Taken) {
            BatchSlot::Pending(job) => (BatchSlot::Done(job.carry_out()), true),
            other => (other, false),
        };
        *held = after;
        did
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Job whose result is the square of its number.
    struct Square(u64);

    impl OffloadJob for Square {
        type Done = u64;

        fn carry_out(self) -> u64 {
            assert_ne!(self.0, 13, "this one fails");
            self.0 * self.0
        }
    }

    #[test]
    fn a_batch_comes_out_in_order_whoever_does_it() {
        for order in [HelperJobOrder::Fifo, HelperJobOrder::Lifo] {
            for helped in 0..3 {
                let batch = CryptoJobBatch::new((20..120).map(Square).collect());
                let squares: Vec<_> = std::thread::scope(|scope| {
                    for _ in 0..helped {
                        scope.spawn(|| batch.help(order));
                    }
                    (0..batch.len()).map(|at| batch.take(at)).collect()
                });
                let expected: Vec<_> = (20..120).map(|n| Some(n * n)).collect();
                assert_eq!(squares, expected);
                assert_eq!((batch.take(0), batch.take(1000)), (None, None));
            }
        }
    }

    /// Regression: the owner waited for each job that a helper had just started and did nothing
    /// itself, so a slow cipher used one core.
    #[test]
    fn whoever_would_wait_does_the_last_job_instead() {
        let batch = CryptoJobBatch::new((2..6).map(Square).collect());
        let held = batch.places[0].lock().unwrap();
        assert!(batch.is_busy(0) && !batch.is_busy(1) && !batch.is_busy(9));
        assert!(batch.do_last() && batch.do_last() && batch.do_last());
        assert!(!batch.do_last(), "the first is another's");
        drop(held);
        assert!(!batch.is_busy(0));
        let all: Vec<_> = (0..4).map(|at| batch.take(at)).collect();
        assert_eq!(all, [Some(4), Some(9), Some(16), Some(25)]);
        assert!(!batch.do_last());
    }

    #[test]
    fn help_that_fails_is_noticed_and_no_result_is_made_up() {
        let batch = CryptoJobBatch::new(vec![Square(2), Square(13), Square(3)]);
        let failed = std::thread::scope(|scope| {
            scope
                .spawn(|| batch.help(HelperJobOrder::Fifo))
                .join()
                .is_err()
        });
        let all: Vec<_> = (0..3).map(|at| batch.take(at)).collect();
        assert_eq!((failed, all), (true, vec![Some(4), None, Some(9)]));
    }
}
