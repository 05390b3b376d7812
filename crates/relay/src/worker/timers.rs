//! When connections want to be looked at.

use std::collections::BTreeSet;
use std::time::Instant;

/// When connections want to be looked at, each at one time at most.
#[derive(Debug, Default)]
pub(crate) struct Timers(BTreeSet<(Instant, usize)>);

impl Timers {
    /// Has the connection in `slot` looked at then rather than at `old`.
    pub(crate) fn set(&mut self, slot: usize, old: Option<Instant>, new: Option<Instant>) {
        if let Some(old) = old {
            self.0.remove(&(old, slot));
        }
        if let Some(new) = new {
            self.0.insert((new, slot));
        }
    }

    /// When the first is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }

    /// One that is due.
    pub(crate) fn due(&mut self, now: Instant) -> Option<usize> {
        let first = *self.0.first()?;
        if first.0 > now {
            return None;
        }
        self.0.remove(&first);
        Some(first.1)
    }
}
