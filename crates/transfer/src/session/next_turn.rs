//! Decides when the loop takes its next turn.
//!
//! The loop blocks only after a quiet turn: one before which nothing arrived, and in which nothing
//! changed. Every step of a turn depends on the state and the time alone, so the next turn would be
//! quiet as well until something arrives or a deadline passes. The order of the steps in
//! [`super::core::SessionCore::turn`] therefore decides how soon work is done, never whether it is
//! done.
//!
//! Bug: before this rule each step reported for itself if another turn was needed, and one step did
//! not. A listing that was too long for a lane that predicts handles then waited for ever for the
//! lane that the next turn would have opened.

use std::time::{Duration, Instant};

/// While jobs are unfinished a turn is taken at least this often. It finds nothing to do unless a
/// wake-up was lost, which debug builds treat as an error.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Time of the loop's next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextTurnTime {
    /// At once.
    Now,
    /// As soon as something arrives, or at this time.
    At(Instant),
    /// As soon as something arrives.
    Input,
}

impl NextTurnTime {
    /// Longest time to block; `None` blocks without limit.
    pub(super) fn timeout(self, now: Instant) -> Option<Duration> {
        match self {
            Self::Now => Some(Duration::ZERO),
            Self::At(at) => Some(at.saturating_duration_since(now)),
            Self::Input => None,
        }
    }
}

/// Sum of the revisions of all components, and the number of other changes.
pub(super) type Revision = (u64, u64);

/// Findings of the last turn of the session's loop, which decide when the next one is.
#[derive(Debug, Default)]
pub(super) struct LoopDelayInputs {
    /// Input came from a connection, the disk or the handle.
    arrived: bool,
    /// The session itself wrote or changed something.
    stirred: bool,
    /// Revisions of all components after the last turn.
    revision: Revision,
    /// Time at which the heartbeat wakes the loop if no deadline comes first.
    heartbeat: Option<Instant>,
    /// Earliest deadline of all components.
    deadline: Option<Instant>,
    /// The turn was taken only because of the heartbeat.
    only_heartbeat: bool,
}

impl LoopDelayInputs {
    /// Notes a change that no component's revision counts.
    pub(super) fn stir(&mut self) {
        self.stirred = true;
    }

    /// Notes input from outside.
    pub(super) fn note_input(&mut self) {
        self.arrived = true;
    }

    /// Notes that the loop has waited; `arrived` means that a descriptor was reported ready.
    pub(super) fn woken(&mut self, now: Instant, arrived: bool) {
        let has_come = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let beat = has_come(self.heartbeat.take());
        self.only_heartbeat = beat && !arrived && !has_come(self.deadline.take());
        self.arrived |= arrived;
    }

    /// True if the turn that has just ended was quiet; `revision` is the sum of the components'
    /// revisions.
    fn was_quiet(&mut self, revision: Revision) -> bool {
        let revised = std::mem::replace(&mut self.revision, revision) != revision;
        let changed = std::mem::take(&mut self.stirred) || revised;
        let arrived = std::mem::take(&mut self.arrived);
        let lost = std::mem::take(&mut self.only_heartbeat) && changed && !arrived;
        if lost {
            tracing::warn!("internal error: the session had work but waited");
        }
        debug_assert!(
            !lost,
            "internal error: the session had work and nothing to wake it"
        );
        !changed && !arrived
    }

    /// Decides when the next turn is, after one that ended at `now`. `busy` means that jobs are
    /// unfinished, and `more` that a component holds output for another one.
    pub(super) fn next(&mut self, now: Instant, after: LoopTurnOutcome) -> NextTurnTime {
        let quiet = self.was_quiet(after.revision);
        if !quiet || after.more {
            return NextTurnTime::Now;
        }
        let beat = after.busy.then(|| now + HEARTBEAT);
        (self.heartbeat, self.deadline) = (beat, after.deadline);
        beat.into_iter()
            .chain(after.deadline)
            .min()
            .map_or(NextTurnTime::Input, NextTurnTime::At)
    }
}

/// State of the components after a turn of the session's loop, which decides when the next turn is
/// taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopTurnOutcome {
    pub revision: Revision,
    /// A component holds output for another one.
    pub more: bool,
    /// Jobs are unfinished.
    pub busy: bool,
    /// Earliest time at which a step is due even if nothing arrives.
    pub deadline: Option<Instant>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_quiet_only_when_nothing_arrived_and_nothing_changed() {
        let now = Instant::now();
        let mut turns = LoopDelayInputs::default();
        assert!(turns.was_quiet((0, 0)));
        assert!(!turns.was_quiet((1, 0)), "a component has changed");
        assert!(turns.was_quiet((1, 0)));
        turns.woken(now, true);
        assert!(!turns.was_quiet((1, 0)), "a descriptor was ready");
        turns.woken(now, false);
        assert!(turns.was_quiet((1, 0)), "a deadline that changed nothing");
        turns.stir();
        assert!(!turns.was_quiet((1, 0)));
        assert!(turns.was_quiet((1, 0)));
    }

    #[test]
    #[should_panic(expected = "nothing to wake it")]
    #[cfg(debug_assertions)]
    fn work_that_only_the_heartbeat_finds_is_an_error() {
        let now = Instant::now();
        let mut turns = LoopDelayInputs {
            heartbeat: Some(now),
            ..LoopDelayInputs::default()
        };
        turns.woken(now, false);
        turns.was_quiet((1, 0));
    }

    fn after(busy: bool, deadline: Option<Instant>) -> LoopTurnOutcome {
        LoopTurnOutcome {
            revision: (0, 0),
            more: false,
            busy,
            deadline,
        }
    }

    #[test]
    fn a_turn_that_changed_something_is_followed_at_once() {
        let now = Instant::now();
        let mut turns = LoopDelayInputs::default();
        turns.stir();
        assert_eq!(turns.next(now, after(false, None)), NextTurnTime::Now);
        assert_eq!(turns.next(now, after(false, None)), NextTurnTime::Input);
        let held = LoopTurnOutcome {
            more: true,
            ..after(false, None)
        };
        assert_eq!(turns.next(now, held), NextTurnTime::Now, "output is held");
    }

    #[test]
    fn a_change_that_leaves_the_sum_of_revisions_is_seen() {
        let now = Instant::now();
        let mut turns = LoopDelayInputs::default();
        turns.next(now, after(false, None));
        let removed = LoopTurnOutcome {
            revision: (0, 1),
            ..after(false, None)
        };
        assert_eq!(turns.next(now, removed), NextTurnTime::Now);
    }

    #[test]
    fn a_session_with_work_looks_every_second_or_at_its_deadline() {
        let now = Instant::now();
        let mut turns = LoopDelayInputs::default();
        assert_eq!(
            turns.next(now, after(true, None)),
            NextTurnTime::At(now + HEARTBEAT)
        );
        let soon = now + Duration::from_millis(20);
        assert_eq!(
            turns.next(now, after(true, Some(soon))),
            NextTurnTime::At(soon)
        );
        let late = now + Duration::from_secs(60);
        assert_eq!(
            turns.next(now, after(false, Some(late))),
            NextTurnTime::At(late)
        );
    }
}
