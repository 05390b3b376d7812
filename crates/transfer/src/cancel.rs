//! A flag that ends a run, and that blocking waits can select on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded};

/// Requests the end of a run, which removes its temporaries at both ends and returns
/// [`crate::report::CopyOutcome::Interrupted`]. Clones share the flag.
#[derive(Clone, Debug)]
pub struct CancelToken {
    inner: Arc<CancelState>,
}

#[derive(Debug)]
struct CancelState {
    set: AtomicBool,
    // Dropped by `cancel`, which makes `closed` ready in every select.
    open: Mutex<Option<Sender<()>>>,
    closed: Receiver<()>,
}

impl Default for CancelToken {
    fn default() -> Self {
        let (open, closed) = bounded(0);
        Self {
            inner: Arc::new(CancelState {
                set: AtomicBool::new(false),
                open: Mutex::new(Some(open)),
                closed,
            }),
        }
    }
}

impl CancelToken {
    /// Ends the run. Not safe in a signal handler: call it from the thread that waits for signals.
    pub fn cancel(&self) {
        self.inner.set.store(true, Ordering::SeqCst);
        self.inner
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }

    /// True if [`CancelToken::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.inner.set.load(Ordering::SeqCst)
    }

    /// Returns a channel that becomes disconnected by [`CancelToken::cancel`], for use in a select.
    pub fn receiver(&self) -> &Receiver<()> {
        &self.inner.closed
    }
}
