//! Timers of a worker's connections.

use std::collections::BTreeSet;
use std::time::Instant;

/// Timers of connections, at most one for each.
#[derive(Debug, Default)]
pub(crate) struct ConnectionTimers(BTreeSet<(Instant, usize)>);

impl ConnectionTimers {
    /// Moves the timer of the connection in `slot` from `old` to `new`.
    pub(crate) fn set(&mut self, slot: usize, old: Option<Instant>, new: Option<Instant>) {
        if let Some(old) = old {
            self.0.remove(&(old, slot));
        }
        if let Some(new) = new {
            self.0.insert((new, slot));
        }
    }

    /// Returns the time of the first timer.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Removes a timer that is due, and returns its slot.
    pub(crate) fn due(&mut self, now: Instant) -> Option<usize> {
        let first = *self.0.first()?;
        if first.0 > now {
            return None;
        }
        self.0.remove(&first);
        Some(first.1)
    }
}
