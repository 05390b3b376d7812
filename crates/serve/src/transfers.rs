//! Lines of the log about files that were transferred.

use crate::answer::Session;

/// A line about a file: always told where so much of it was moved, else with -v. A line for each of
/// many small files would cost more than they do.
macro_rules! tell_transfer {
    ($session:expr, $path:expr, $sent:expr, $received:expr, $what:literal) => {{
        let (sent, received): (u64, u64) = ($sent, $received);
        if sent.saturating_add(received) >= $session.export.log_files {
            let path = String::from_utf8_lossy($path);
            tracing::info!(path = %path.escape_debug(), sent, received, $what);
        } else {
            let path = || String::from_utf8_lossy($path);
            tracing::debug!(path = %path().escape_debug(), sent, received, $what);
        }
    }};
}
pub(crate) use tell_transfer;

/// What was not closed was broken off.
impl Drop for Session<'_> {
    fn drop(&mut self) {
        for (path, sent, received) in self.handles.files() {
            tell_transfer!(self, path, sent, received, "left open");
        }
    }
}
