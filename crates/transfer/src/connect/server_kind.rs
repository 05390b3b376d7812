//! Shares between the connections to one host which SFTP server it runs.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The kind of SFTP server that lanes use, once a connection has found out. A further connection
/// can then request it in the flight of its login.
#[derive(Clone, Debug, Default)]
pub struct DetectedServerKind(Arc<DetectedServerKindState>);

#[derive(Debug, Default)]
struct DetectedServerKindState {
    ours: Mutex<Option<bool>>,
    noted: Condvar,
}

impl DetectedServerKind {
    /// Records a longhaul (true) or the stock server (false).
    pub fn note(&self, ours: bool) {
        *self.lock() = Some(ours);
        self.0.noted.notify_all();
    }

    /// Returns true for a longhaul; `None` while unknown.
    pub fn is_ours(&self) -> Option<bool> {
        *self.lock()
    }

    /// Waits until the kind is known, at most `longest`.
    pub fn wait(&self, longest: Duration) {
        let unknown = |ours: &mut Option<bool>| ours.is_none();
        // A timeout costs only a round trip.
        let _ = self
            .0
            .noted
            .wait_timeout_while(self.lock(), longest, unknown);
    }

    fn lock(&self) -> MutexGuard<'_, Option<bool>> {
        self.0.ours.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_has_found_out_another_knows() {
        let first = DetectedServerKind::default();
        let further = first.clone();
        assert_eq!(further.is_ours(), None);
        first.note(true);
        assert_eq!(further.is_ours(), Some(true));
        further.wait(Duration::from_secs(60));
        first.note(false);
        assert_eq!(further.is_ours(), Some(false), "it has ended since");
    }
}
