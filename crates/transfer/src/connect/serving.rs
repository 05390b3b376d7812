//! What the connections to one host tell each other of its far end.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Which SFTP server lanes are opened to, once a connection has found out: a further one can ask for it in the flight
/// of its login.
#[derive(Clone, Debug, Default)]
pub struct Serving(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    ours: Mutex<Option<bool>>,
    noted: Condvar,
}

impl Serving {
    /// A longhaul, or the stock one.
    pub fn note(&self, ours: bool) {
        *self.lock() = Some(ours);
        self.0.noted.notify_all();
    }

    /// Whether it is a longhaul; `None` while nobody knows.
    pub fn is_ours(&self) -> Option<bool> {
        *self.lock()
    }

    /// Waits until somebody knows, or for so long.
    pub fn wait(&self, longest: Duration) {
        let unknown = |ours: &mut Option<bool>| ours.is_none();
        // Not knowing costs a round trip and nothing else.
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
        let first = Serving::default();
        let further = first.clone();
        assert_eq!(further.is_ours(), None);
        first.note(true);
        assert_eq!(further.is_ours(), Some(true));
        further.wait(Duration::from_secs(60));
        first.note(false);
        assert_eq!(further.is_ours(), Some(false), "it has ended since");
    }
}
