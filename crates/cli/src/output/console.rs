//! Standard error: text lines, and a progress display that gets out of their way.

use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};
use transfer::escape;

use crate::output::bar;

/// Columns of a terminal that tells none.
const COLUMNS: usize = 80;

/// Standard error, shared by everything that writes there.
pub(crate) struct Console {
    colors: bool,
    bar: Mutex<Bar>,
    // Where questions are asked, as it was found; one for a password switches echo off.
    terminal: Option<(File, Termios)>,
}

#[derive(Default)]
struct Bar {
    // The lines that are on the terminal.
    lines: Vec<String>,
    // How many askers keep the display away.
    held: usize,
    // The hosts that are being connected to, and since when.
    connecting: Vec<(String, Instant)>,
}

/// Keeps the display off the terminal while it lives: somebody asks a question there.
pub(crate) struct BarPause<'a>(&'a Console);

/// A host is being connected to while it lives.
pub(crate) struct Connecting<'a>(&'a Console);

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
        let mut state = self.lock();
        let lines = std::mem::take(&mut state.lines);
        erase(&lines);
        // Nobody is left to tell when standard error itself is gone.
        drop(io::stderr().write_all(bytes));
        write_lines(&lines);
        state.lines = lines;
    }

    /// Shows lines made for a number of columns in place of those that are shown, unless somebody
    /// holds the terminal.
    pub(crate) fn draw(&self, lines: impl FnOnce(usize) -> Vec<String>) {
        let mut state = self.lock();
        if state.held > 0 {
            return;
        }
        let lines = lines(columns());
        if lines != state.lines {
            erase(&state.lines);
            write_lines(&lines);
            state.lines = lines;
        }
    }

    /// The host that has been connected to for the longest time, and for how long.
    pub(crate) fn connecting_to(&self) -> Option<(String, Duration)> {
        let state = self.lock();
        let (host, since) = state.connecting.first()?;
        Some((host.clone(), since.elapsed()))
    }

    /// A host is being connected to until the value is dropped.
    pub(crate) fn connecting(&self, host: String) -> Connecting<'_> {
        self.lock().connecting.push((host, Instant::now()));
        Connecting(self)
    }

    /// Takes the display off the terminal.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Takes the display off the terminal until the value is dropped.
    pub(crate) fn hold(&self) -> BarPause<'_> {
        let mut state = self.lock();
        state.clear();
        state.held += 1;
        BarPause(self)
    }

    /// For the end in the middle of everything: the display goes, cursor and echo come back.
    pub(crate) fn restore(&self) {
        // A thread that holds the lock may be the one that hangs.
        if let Ok(mut state) = self.bar.try_lock() {
            state.clear();
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

impl Drop for BarPause<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.held = state.held.saturating_sub(1);
    }
}

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.connecting.pop();
        // The line of the host is not to stand there until something has come.
        state.clear();
    }
}

impl Bar {
    fn clear(&mut self) {
        erase(&std::mem::take(&mut self.lines));
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

fn erase(lines: &[String]) {
    let widths: Vec<usize> = lines.iter().map(|line| bar::width(line)).collect();
    let erase = bar::erase(&widths, columns());
    if !erase.is_empty() {
        drop(io::stderr().write_all(erase.as_bytes()));
    }
}

fn write_lines(lines: &[String]) {
    if !lines.is_empty() {
        drop(io::stderr().write_all(lines.join("\r\n").as_bytes()));
    }
}

/// Columns of the terminal as it is now, or fewer where the environment says so.
fn columns() -> usize {
    let window = tcgetwinsize(io::stderr()).ok();
    let window = window.map(|size| usize::from(size.ws_col));
    let told = env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok());
    let known = [window, told].into_iter().flatten().filter(|n| *n > 0);
    known.min().unwrap_or(COLUMNS)
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
