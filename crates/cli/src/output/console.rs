//! Standard error: lines of text, and a progress display below them.

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};
use transfer::escape;

use crate::output::bar;

/// Assumed columns of a terminal that reports none.
const COLUMNS: usize = 80;

/// Standard error of the process. Lines, the progress display and prompts of all threads go through
/// it, so that they do not mix.
pub(crate) struct Console {
    colors: bool,
    bar: Mutex<ProgressDisplay>,
    // Held while the user is asked: several hosts may ask.
    asking: Mutex<()>,
    // The terminal for prompts with its initial settings; a password prompt switches echo off.
    terminal: Option<(File, Termios)>,
}

/// Lines below the text: the progress bar, or the hosts that are being connected to.
#[derive(Default)]
struct ProgressDisplay {
    // Lines of the display now on the terminal.
    lines: Vec<String>,
    // Number of holders that keep the display away.
    held: usize,
    // Hosts being connected to, by number.
    connecting: BTreeMap<u64, ConnectingHost>,
    next: u64,
}

/// Host that is being connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectingHost {
    pub(crate) host: String,
    /// Time of the start.
    pub(crate) since: Instant,
    /// Answer or step that the connection waits for, once that is known.
    pub(crate) awaited: Option<String>,
}

/// Keeps the display off the terminal during a prompt, until it is dropped.
pub(crate) struct ProgressDisplayPause<'a>(&'a Console);

/// Marks a host as being connected to, until it is dropped.
pub(crate) struct ConnectingIndicator<'a> {
    console: &'a Console,
    number: u64,
}

impl Console {
    pub(crate) fn new(colors: bool) -> Self {
        Self {
            colors,
            bar: Mutex::default(),
            asking: Mutex::default(),
            terminal: terminal(),
        }
    }

    /// Prints `error: ...`, in red with colors.
    pub(crate) fn error(&self, text: &str) {
        self.labelled("error", "31", text);
    }

    /// Prints `warning: ...`, in yellow with colors.
    pub(crate) fn warning(&self, text: &str) {
        self.labelled("warning", "33", text);
    }

    fn labelled(&self, label: &str, color: &str, text: &str) {
        self.line(&labelled(self.colors, label, color, text));
    }

    /// Prints a line of text above the display.
    pub(crate) fn line(&self, text: &str) {
        self.bytes(format!("{text}\n").as_bytes());
    }

    fn bytes(&self, bytes: &[u8]) {
        let mut state = self.lock();
        let lines = std::mem::take(&mut state.lines);
        erase(&lines);
        // A failure of standard error itself cannot be reported.
        drop(io::stderr().write_all(bytes));
        write_lines(&lines);
        state.lines = lines;
    }

    /// Replaces the display by lines made for the number of columns, unless it is held.
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

    /// The host that has been connecting for the longest time.
    pub(crate) fn connecting_to(&self) -> Option<ConnectingHost> {
        let state = self.lock();
        let (_, connecting) = state.connecting.first_key_value()?;
        Some(connecting.clone())
    }

    /// Notes what the connection to a host waits for, if it is being made.
    pub(crate) fn note_wait(&self, host: &str, awaited: &str) {
        let mut state = self.lock();
        for connecting in state.connecting.values_mut().filter(|c| c.host == host) {
            connecting.awaited = Some(awaited.to_owned());
        }
    }

    /// Marks a host as being connected to until the value is dropped.
    pub(crate) fn connecting(&self, host: String) -> ConnectingIndicator<'_> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        let connecting = ConnectingHost {
            host,
            since: Instant::now(),
            awaited: None,
        };
        state.connecting.insert(number, connecting);
        ConnectingIndicator {
            console: self,
            number,
        }
    }

    /// Removes the display from the terminal.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Removes the display from the terminal until the value is dropped.
    pub(crate) fn hold(&self) -> ProgressDisplayPause<'_> {
        let mut state = self.lock();
        state.clear();
        state.held += 1;
        ProgressDisplayPause(self)
    }

    /// Waits until no other question is on the terminal, and keeps others away until the value is
    /// dropped.
    pub(crate) fn ask(&self) -> MutexGuard<'_, ()> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restores the terminal before an abrupt exit: no display, cursor and echo on.
    pub(crate) fn restore(&self) {
        // Do not wait for the lock: its holder may be the thread that hangs.
        if let Ok(mut state) = self.bar.try_lock() {
            state.clear();
        }
        if let Some((terminal, found)) = &self.terminal
            // Setting the terminal from the background would stop the process.
            && tcgetpgrp(terminal) == Ok(getpgrp())
        {
            let _ = tcsetattr(terminal, OptionalActions::Now, found);
            drop((&mut &*terminal).write_all(b"\x1b[?25h"));
        }
    }

    fn lock(&self) -> MutexGuard<'_, ProgressDisplay> {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ProgressDisplayPause<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.held = state.held.saturating_sub(1);
    }
}

impl Drop for ConnectingIndicator<'_> {
    fn drop(&mut self) {
        let mut state = self.console.lock();
        state.connecting.remove(&self.number);
        // Remove the line about the host before the first progress replaces it.
        state.clear();
    }
}

impl ProgressDisplay {
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

/// Columns of the terminal now, or fewer if `COLUMNS` says so.
fn columns() -> usize {
    let window = tcgetwinsize(io::stderr()).ok();
    let window = window.map(|size| usize::from(size.ws_col));
    let told = env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok());
    let known = [window, told].into_iter().flatten().filter(|n| *n > 0);
    known.min().unwrap_or(COLUMNS)
}

/// Formats a labelled line. Text may come from a server, so control characters are escaped here
/// again in case a caller forgot.
fn labelled(colors: bool, label: &str, color: &str, text: &str) -> String {
    let text = for_user(&escape::text(text.as_bytes()).to_string());
    if colors {
        format!("\u{1b}[1;{color}m{label}:\u{1b}[0m {text}")
    } else {
        format!("{label}: {text}")
    }
}

/// Returns an error text as a user should read it: without the numbers of the system's errors, and
/// with what to do about a defect of longhaul, which the user cannot mend.
pub(crate) fn for_user(text: &str) -> String {
    let mut text = without_numbers(text);
    if text.contains("internal error: ") {
        text.push_str(
            "; this is a defect of longhaul: please report it with the command and what it prints \
             with -vvv",
        );
    }
    text
}

/// Removes the numbers that Rust adds to the system's error texts: ` (os error 98)`.
pub(crate) fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|b| b.is_ascii_digit()) => {
                plain.push_str(rest);
            }
            _ => {
                plain.push_str(" (os error ");
                plain.push_str(part);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_have_no_numbers() {
        let text = "a: Address already in use (os error 98): b (os error 2) c";
        assert_eq!(without_numbers(text), "a: Address already in use: b c");
        assert_eq!(without_numbers("x (os error y"), "x (os error y");
    }

    #[test]
    fn a_defect_of_longhaul_is_to_be_reported() {
        let text = for_user("host: internal error: the file is no longer open (os error 9)");
        assert!(text.starts_with("host: internal error: the file is no longer open; this is"));
        assert!(text.contains("please report it"), "{text}");
        let text = "host: the peer says that it had an internal error";
        assert_eq!(for_user(text), text);
    }

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
