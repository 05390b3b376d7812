//! Standard error: text lines, and a bar that gets out of their way.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use transfer::escape;

/// Ten times a second: steady for the eye, nothing for the processor.
const REDRAWS_PER_SECOND: u8 = 10;

/// Standard error, shared by everything that writes there.
pub(crate) struct Console {
    colors: bool,
    bar: Mutex<Bar>,
    // Where questions are asked, as it was found; one for a password switches echo off.
    terminal: Option<(File, Termios)>,
}

#[derive(Default)]
struct Bar {
    bar: Option<ProgressBar>,
    // How many askers keep the bar away.
    held: usize,
}

/// Keeps the bar off the terminal while it lives: somebody asks a question there.
pub(crate) struct Hold<'a>(&'a Console);

/// What the bar shows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct BarState {
    /// Bytes done.
    pub(crate) done: u64,
    /// Bytes in all, as far as known.
    pub(crate) total: u64,
    /// Above the bar: the current file.
    pub(crate) above: String,
    /// Beside it: counts, rate, remaining time.
    pub(crate) beside: String,
}

impl Console {
    pub(crate) fn new(colors: bool) -> Self {
        Self {
            colors,
            bar: Mutex::default(),
            terminal: terminal(),
        }
    }

    /// `error: ...` in red.
    pub(crate) fn error(&self, text: &str) {
        self.labelled("error", "31", text);
    }

    /// `warning: ...` in yellow.
    pub(crate) fn warning(&self, text: &str) {
        self.labelled("warning", "33", text);
    }

    fn labelled(&self, label: &str, color: &str, text: &str) {
        self.line(&labelled(self.colors, label, color, text));
    }

    /// A line of text.
    pub(crate) fn line(&self, text: &str) {
        self.bytes(format!("{text}\n").as_bytes());
    }

    fn bytes(&self, bytes: &[u8]) {
        let state = self.lock();
        // Nobody is left to tell when standard error itself is gone.
        let write = || drop(io::stderr().write_all(bytes));
        match &state.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Draws the bar, unless somebody holds it.
    pub(crate) fn draw(&self, shown: &BarState) {
        let mut state = self.lock();
        if state.held > 0 {
            return;
        }
        let bar = state.bar.get_or_insert_with(new_bar);
        bar.set_length(shown.total.max(shown.done).max(1));
        bar.set_position(shown.done);
        bar.set_message(shown.above.clone());
        bar.set_prefix(shown.beside.clone());
        bar.tick();
    }

    /// Takes the bar off the terminal.
    pub(crate) fn clear(&self) {
        if let Some(bar) = self.lock().bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Takes the bar off the terminal until the value is dropped.
    pub(crate) fn hold(&self) -> Hold<'_> {
        self.clear();
        self.lock().held += 1;
        Hold(self)
    }

    /// For the end in the middle of everything: the bar goes, cursor and echo come back.
    pub(crate) fn restore(&self) {
        // A thread that holds the lock may be the one that hangs.
        if let Ok(mut state) = self.bar.try_lock()
            && let Some(bar) = state.bar.take()
        {
            bar.finish_and_clear();
        }
        if let Some((terminal, found)) = &self.terminal
            // In the background, setting the terminal would stop the process instead.
            && tcgetpgrp(terminal) == Ok(getpgrp())
        {
            let _ = tcsetattr(terminal, OptionalActions::Now, found);
            drop((&mut &*terminal).write_all(b"\x1b[?25h"));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Bar> {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.held = state.held.saturating_sub(1);
    }
}

impl Write for &Console {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn terminal() -> Option<(File, Termios)> {
    let terminal = File::options().read(true).write(true).open("/dev/tty");
    let terminal = terminal.ok()?;
    let found = tcgetattr(&terminal).ok()?;
    Some((terminal, found))
}

fn new_bar() -> ProgressBar {
    let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND);
    let bar = ProgressBar::with_draw_target(None, target);
    // The template is a constant; were it wrong, indicatif's own style would do.
    match ProgressStyle::with_template("{wide_msg}\n{bar:20} {prefix}") {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

/// Texts may come from a server: whatever a terminal would obey is escaped here once more, for
/// whoever forgot.
fn labelled(colors: bool, label: &str, color: &str, text: &str) -> String {
    let text = escape::text(text.as_bytes());
    if colors {
        format!("\u{1b}[1;{color}m{label}:\u{1b}[0m {text}")
    } else {
        format!("{label}: {text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_from_a_server_cannot_drive_the_terminal() {
        assert_eq!(
            labelled(false, "error", "31", "a\u{1b}[2Jb"),
            "error: a\\x1b[2Jb"
        );
        assert_eq!(
            labelled(true, "error", "31", "a"),
            "\u{1b}[1;31merror:\u{1b}[0m a"
        );
    }
}
