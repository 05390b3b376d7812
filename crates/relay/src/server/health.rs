//! Which targets answer.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So long a target that has not answered is tried last.
const SHUNNED: Duration = Duration::from_secs(10);

/// When each target has failed last, if it has not answered since.
#[derive(Debug)]
pub(crate) struct Health(Mutex<Vec<Option<Instant>>>);

impl Health {
    pub(crate) fn new(targets: usize) -> Self {
        Self(Mutex::new(vec![None; targets]))
    }

    /// In which order targets are tried: as they were given, but those that failed a moment ago
    /// last.
    pub(crate) fn order(&self, now: Instant) -> VecDeque<usize> {
        let failed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shunned = |at: &Option<Instant>| at.is_some_and(|at| now < at + SHUNNED);
        let (later, first): (Vec<_>, Vec<_>) =
            failed.iter().enumerate().partition(|(_, at)| shunned(at));
        first
            .into_iter()
            .chain(later)
            .map(|(target, _)| target)
            .collect()
    }

    pub(crate) fn failed(&self, target: Option<usize>, now: Instant) {
        self.set(target, Some(now));
    }

    pub(crate) fn answered(&self, target: Option<usize>) {
        self.set(target, None);
    }

    fn set(&self, target: Option<usize>, at: Option<Instant>) {
        let mut failed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = target.and_then(|target| failed.get_mut(target)) {
            *place = at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_tried_last_for_a_while() {
        let (health, now) = (Health::new(3), Instant::now());
        assert_eq!(health.order(now), [0, 1, 2]);
        health.failed(Some(0), now);
        assert_eq!(health.order(now), [1, 2, 0]);
        health.failed(Some(1), now);
        health.answered(Some(0));
        assert_eq!(health.order(now), [0, 2, 1]);
        assert_eq!(health.order(now + SHUNNED), [0, 1, 2]);
    }
}
