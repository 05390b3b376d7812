use std::time::Duration;

/// A process that was killed releases its locks when its memory is gone, which takes up to a
/// second where it had much mapped.
const LONGEST: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);
/// A wait that is shorter is not worth a line.
const TOLD_AFTER: Duration = Duration::from_millis(500);

/// How long to go on waiting for a lock.
#[derive(Debug, Default)]
pub(super) struct Patience {
    waited: Duration,
}

/// The next step of waiting.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wait {
    /// To wait before the lock is tried again.
    pub(super) pause: Duration,
    /// It is time to tell the user, once.
    pub(super) tell: bool,
}

impl Patience {
    /// The next step; `None` when the wait was long enough.
    pub(super) fn next(&mut self) -> Option<Wait> {
        let before = self.waited;
        if before >= LONGEST {
            return None;
        }
        self.waited += PAUSE;
        let tell = before < TOLD_AFTER && self.waited >= TOLD_AFTER;
        Some(Wait { pause: PAUSE, tell })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_waited_for_two_seconds_and_told_of_once() {
        let mut patience = Patience::default();
        let steps: Vec<Wait> = std::iter::from_fn(|| patience.next()).collect();
        let whole: Duration = steps.iter().map(|step| step.pause).sum();
        assert_eq!(whole, LONGEST);
        assert_eq!(steps.iter().filter(|step| step.tell).count(), 1);
        assert!(!steps[0].tell, "a short wait is silent");
        assert_eq!(patience.next(), None);
    }
}
