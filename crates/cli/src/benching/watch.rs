//! How far a measurement is, on a terminal.

use std::sync::Arc;

use crate::flags::high::World;
use crate::output::console::{BarState, Console};

/// Shows progress and the remaining time, where somebody looks.
pub(super) struct Watch {
    console: Arc<Console>,
    shows: bool,
}

impl Watch {
    pub(super) fn new(console: &Arc<Console>, world: &World, quiet: bool) -> Self {
        Self {
            console: Arc::clone(console),
            shows: world.stderr_is_terminal && !world.dumb && !quiet,
        }
    }

    /// `what` runs now; times in seconds.
    pub(super) fn now(&self, what: &str, used: f64, remaining: f64) {
        if self.shows {
            self.console.draw(&BarState {
                done: (used * 1000.0) as u64,
                total: ((used + remaining) * 1000.0) as u64,
                above: what.to_owned(),
                beside: format!("{used:.0} s, {remaining:.0} s left"),
            });
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.shows {
            self.console.clear();
        }
    }
}
