//! Shows the progress of a measurement on a terminal.

use std::sync::Arc;

use crate::flags::high::Environment;
use crate::output::bar;
use crate::output::console::Console;

/// Shows progress and the remaining time if standard error is a terminal.
pub(super) struct BenchProgress {
    console: Arc<Console>,
    shows: bool,
}

impl BenchProgress {
    pub(super) fn new(console: &Arc<Console>, world: &Environment, quiet: bool) -> Self {
        Self {
            console: Arc::clone(console),
            shows: world.stderr_is_terminal && !world.dumb && !quiet,
        }
    }

    /// Shows that `what` runs now; times in seconds.
    pub(super) fn now(&self, what: &str, used: f64, remaining: f64) {
        if self.shows {
            self.console
                .draw(|columns| bar::of_time(what, used, remaining, columns));
        }
    }
}

impl Drop for BenchProgress {
    fn drop(&mut self) {
        if self.shows {
            self.console.clear();
        }
    }
}
