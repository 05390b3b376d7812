use std::time::{Duration, Instant};

/// How long a command that was asked for something may say nothing.
const SILENT: Duration = Duration::from_secs(20);
/// Bytes a second that it makes sums of at least: where it is slower than that, the file is read
/// back as fast.
const SLOWEST: u64 = 4 << 20;

/// Whether a command that makes sums goes on: it may be waiting for something that never comes.
#[derive(Debug, Default)]
pub(super) struct Watch {
    until: Option<Instant>,
}

impl Watch {
    /// A sum of `len` bytes was asked for, which it can begin with `now` or later.
    pub(super) fn asked(&mut self, len: u64, now: bool) {
        if now {
            self.answered(Some(len));
        }
    }

    /// It has answered, and still owes a sum of `next` bytes.
    pub(super) fn answered(&mut self, next: Option<u64>) {
        let most = |len: u64| SILENT + Duration::from_secs(len / SLOWEST);
        self.until = next.map(|len| Instant::now() + most(len));
    }

    /// When it has to have answered.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    pub(super) fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}
