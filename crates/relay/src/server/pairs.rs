//! Registry of pairs: an accepted stripe may belong to a connection of another worker.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pair::TOKEN;

use crate::worker::inbox::ConnectionHandle;

/// Registry of the whole process, so that a reload of relays keeps existing pairs.
static PAIRS: Mutex<BTreeMap<[u8; TOKEN], PairSlot>> = Mutex::new(BTreeMap::new());

/// A pair of relays: the connection to which its stripes belong, and the key that every stripe must
/// present.
#[derive(Clone, Debug)]
pub(crate) struct PairSlot {
    connection: ConnectionHandle,
    /// Key that every stripe must present.
    key: Vec<u8>,
}

impl PairSlot {
    pub(crate) fn new(connection: ConnectionHandle, key: Vec<u8>) -> Self {
        Self { connection, key }
    }

    /// The connection that further stripes join.
    pub(crate) fn connection(&self) -> &ConnectionHandle {
        &self.connection
    }
}

/// Registration of a pair that further stripes can join; removed on drop.
#[derive(Debug)]
pub(crate) struct PairRegistration([u8; TOKEN]);

impl PairRegistration {
    /// Registers a pair. Returns `None` if the token is in use.
    pub(crate) fn new(token: [u8; TOKEN], place: PairSlot) -> Option<Self> {
        let mut pairs = lock();
        if pairs.contains_key(&token) {
            return None;
        }
        pairs.insert(token, place);
        Some(Self(token))
    }
}

impl Drop for PairRegistration {
    fn drop(&mut self) {
        lock().remove(&self.0);
    }
}

/// Finds the pair with this token, if its peer relay has this key.
pub(crate) fn find(token: [u8; TOKEN], key: &[u8]) -> Option<PairSlot> {
    lock().get(&token).filter(|place| place.key == key).cloned()
}

fn lock() -> MutexGuard<'static, BTreeMap<[u8; TOKEN], PairSlot>> {
    PAIRS.lock().unwrap_or_else(PoisonError::into_inner)
}
