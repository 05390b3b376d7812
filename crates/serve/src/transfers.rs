//! Lines of the log about files that were transferred.

use std::collections::VecDeque;

use tracing::info;

use crate::answer::Session;
use wire::escape::field;

/// A line about a file: always told where so much of it was moved, else with -v. A line for each of
/// many small files would cost more than they do.
macro_rules! tell_transfer {
    ($session:expr, $path:expr, $sent:expr, $received:expr, $what:literal) => {{
        let (sent, received): (u64, u64) = ($sent, $received);
        let path = wire::escape::field($path);
        if sent.saturating_add(received) >= $session.export.log_files {
            tracing::info!(%path, sent, received, $what);
        } else {
            tracing::debug!(%path, sent, received, $what);
        }
    }};
}
pub(crate) use tell_transfer;

/// Files whose lines have a name that they may not keep; most clients that give them another do so at
/// once.
const REMEMBERED: usize = 64;

/// The names of files that were put and have a line, the latest last.
#[derive(Debug, Default)]
pub(crate) struct Named(VecDeque<Vec<u8>>);

impl Named {
    fn add(&mut self, path: Vec<u8>) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        if !self.0.contains(&path) {
            self.0.push_back(path);
        }
    }

    /// Whether it is one of them, which it is no more.
    fn take(&mut self, path: &[u8]) -> bool {
        let at = self.0.iter().position(|named| named == path);
        at.and_then(|at| self.0.remove(at)).is_some()
    }
}

impl Session<'_> {
    /// A file was closed of which so many bytes were moved.
    pub(crate) fn tell_closed(&mut self, path: Vec<u8>, sent: u64, received: u64) {
        tell_transfer!(self, &path, sent, received, "closed");
        if received > 0 && received >= self.export.log_files {
            self.named.add(path);
        }
    }

    /// A file has another name: of one that came beside its name it is the one that counts.
    pub(crate) fn tell_renamed(&mut self, from: &[u8], to: &[u8]) {
        if self.named.take(from) {
            info!(path = %field(to), from = %field(from), "renamed");
        }
    }
}

/// What was not closed was broken off.
impl Drop for Session<'_> {
    fn drop(&mut self) {
        for (path, sent, received) in self.handles.files() {
            tell_transfer!(self, path, sent, received, "left open");
        }
    }
}
