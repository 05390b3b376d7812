use std::time::Duration;

/// Longest wait for a lock. A killed process releases its locks once its memory is freed, which
/// takes up to a second if it had mapped much.
pub(super) const LONGEST: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);
/// Wait after which a message tells the user about it.
const TOLD_AFTER: Duration = Duration::from_millis(500);

/// Limits the wait for a lock.
#[derive(Debug, Default)]
pub(super) struct LockWaitLimit {
    waited: Duration,
}

/// Next step of waiting for a lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LockWaitStep {
    /// Pause before the lock is tried again.
    pub pause: Duration,
    /// True once, when the message is due.
    pub tell: bool,
}

impl LockWaitLimit {
    /// Returns the next step, or `None` when the wait was long enough.
    pub(super) fn next(&mut self) -> Option<LockWaitStep> {
        let before = self.waited;
        if before >= LONGEST {
            return None;
        }
        self.waited += PAUSE;
        let tell = before < TOLD_AFTER && self.waited >= TOLD_AFTER;
        Some(LockWaitStep { pause: PAUSE, tell })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_waited_for_two_seconds_and_told_of_once() {
        let mut patience = LockWaitLimit::default();
        let steps: Vec<LockWaitStep> = std::iter::from_fn(|| patience.next()).collect();
        let whole: Duration = steps.iter().map(|step| step.pause).sum();
        assert_eq!(whole, LONGEST);
        assert_eq!(steps.iter().filter(|step| step.tell).count(), 1);
        assert!(!steps[0].tell, "a short wait is silent");
        assert_eq!(patience.next(), None);
    }
}
