//! Help of other threads with sealing and opening. Each packet's place in the stream is known before
//! it is sealed or opened, so that both may be done in any order; whoever made a batch takes it out
//! in its own, and does itself what nobody has begun. No thread is made here: the owner of a
//! connection knows some that have nothing else to do.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// Something to do, which gains nothing by being done late: it may as well be dropped.
pub type Work = Box<dyn FnOnce() + Send>;

/// Whoever may help.
#[derive(Clone)]
pub struct Helper {
    idle: Arc<dyn Fn() -> bool + Send + Sync>,
    run: Arc<dyn Fn(Work) + Send + Sync>,
}

impl Helper {
    /// `idle` tells whether there is anybody with nothing else to do, and is asked often; `run` has
    /// work done on another thread, soon or never.
    pub fn new(
        idle: impl Fn() -> bool + Send + Sync + 'static,
        run: impl Fn(Work) + Send + Sync + 'static,
    ) -> Self {
        Self {
            idle: Arc::new(idle),
            run: Arc::new(run),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        (self.idle)()
    }

    pub(crate) fn help<J: Job>(&self, batch: &Arc<Batch<J>>, order: Order) {
        let batch = Arc::clone(batch);
        (self.run)(Box::new(move || batch.help(order)));
    }
}

impl fmt::Debug for Helper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Helper").finish_non_exhaustive()
    }
}

/// What can be done on any thread.
pub(crate) trait Job: Send + 'static {
    type Done: Send;

    fn carry_out(self) -> Self::Done;
}

/// Where help begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// The owner comes later.
    FirstFirst,
    /// The owner begins at the same time, at the other end.
    LastFirst,
}

/// Jobs in their order.
pub(crate) struct Batch<J: Job> {
    places: Box<[Mutex<Place<J>>]>,
}

enum Place<J: Job> {
    Waits(J),
    Done(J::Done),
    Taken,
}

impl<J: Job> Batch<J> {
    pub(crate) fn new(jobs: Vec<J>) -> Self {
        let places = jobs.into_iter().map(|job| Mutex::new(Place::Waits(job)));
        Self {
            places: places.collect(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// What came of job `at`, done here and now if nobody has begun it; `None` where it was taken
    /// before, or whoever did it has failed.
    pub(crate) fn take(&self, at: usize) -> Option<J::Done> {
        let place = self.places.get(at)?;
        // It is held while somebody helps, and this waits for them.
        let mut held = place.lock().unwrap_or_else(PoisonError::into_inner);
        let place = std::mem::replace(&mut *held, Place::Taken);
        drop(held);
        match place {
            Place::Waits(job) => Some(job.carry_out()),
            Place::Done(done) => Some(done),
            Place::Taken => None,
        }
    }

    /// Whether somebody is at job `at` now, for whom [`Batch::take`] would wait.
    pub(crate) fn is_busy(&self, at: usize) -> bool {
        let place = self.places.get(at);
        place.is_some_and(|place| matches!(place.try_lock(), Err(TryLockError::WouldBlock)))
    }

    /// Does the last job that nobody has begun; false where there is none.
    pub(crate) fn do_last(&self) -> bool {
        self.places.iter().rev().any(Self::do_one)
    }

    fn help(&self, order: Order) {
        match order {
            Order::FirstFirst => self.places.iter().for_each(|place| {
                Self::do_one(place);
            }),
            Order::LastFirst => self.places.iter().rev().for_each(|place| {
                Self::do_one(place);
            }),
        }
    }

    /// Does what is to be done there, if nobody has begun it; whether there was anything.
    fn do_one(place: &Mutex<Place<J>>) -> bool {
        let Ok(mut held) = place.try_lock() else {
            return false;
        };
        let (after, did) = match std::mem::replace(&mut *held, Place::Taken) {
            Place::Waits(job) => (Place::Done(job.carry_out()), true),
            other => (other, false),
        };
        *held = after;
        did
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Square(u64);

    impl Job for Square {
        type Done = u64;

        fn carry_out(self) -> u64 {
            assert_ne!(self.0, 13, "this one fails");
            self.0 * self.0
        }
    }

    #[test]
    fn a_batch_comes_out_in_order_whoever_does_it() {
        for order in [Order::FirstFirst, Order::LastFirst] {
            for helped in 0..3 {
                let batch = Batch::new((20..120).map(Square).collect());
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

    /// The owner waited for each job that a helper had just begun, and did nothing itself: a slow
    /// cipher used one core.
    #[test]
    fn whoever_would_wait_does_the_last_job_instead() {
        let batch = Batch::new((2..6).map(Square).collect());
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
        let batch = Batch::new(vec![Square(2), Square(13), Square(3)]);
        let failed = std::thread::scope(|scope| {
            scope
                .spawn(|| batch.help(Order::FirstFirst))
                .join()
                .is_err()
        });
        let all: Vec<_> = (0..3).map(|at| batch.take(at)).collect();
        assert_eq!((failed, all), (true, vec![Some(4), None, Some(9)]));
    }
}
