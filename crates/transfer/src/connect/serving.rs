//! What the connections to one host tell each other of its far end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
const STOCK: u8 = 1;
const OURS: u8 = 2;

/// Which SFTP server lanes are opened to, once a connection has found out: a further one can ask for it in the flight
/// of its login.
#[derive(Clone, Debug, Default)]
pub struct Serving(Arc<AtomicU8>);

impl Serving {
    /// A longhaul, or the stock one.
    pub fn note(&self, ours: bool) {
        let what = if ours { OURS } else { STOCK };
        self.0.store(what, Ordering::Relaxed);
    }

    /// Whether it is a longhaul; `None` while nobody knows.
    pub fn is_ours(&self) -> Option<bool> {
        match self.0.load(Ordering::Relaxed) {
            UNKNOWN => None,
            what => Some(what == OURS),
        }
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
        first.note(false);
        assert_eq!(further.is_ours(), Some(false), "it has ended since");
    }
}
