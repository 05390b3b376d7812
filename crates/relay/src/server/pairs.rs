//! Where the legs of pairs go: a leg that comes is of a connection that is elsewhere already.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pair::TOKEN;

use crate::worker::inbox::Inbox;

/// Of the whole process: an entrance that is set up anew still has its pairs.
static PAIRS: Mutex<BTreeMap<[u8; TOKEN], Place>> = Mutex::new(BTreeMap::new());

/// Where a pair is.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) slot: usize,
    pub(crate) serial: u64,
    /// The other half's, which all legs have to have.
    pub(crate) key: Vec<u8>,
}

/// A pair that can be joined; dropped with it.
#[derive(Debug)]
pub(crate) struct RegisteredPair([u8; TOKEN]);

impl RegisteredPair {
    /// None if there is one with this name.
    pub(crate) fn new(token: [u8; TOKEN], place: Place) -> Option<Self> {
        let mut pairs = lock();
        if pairs.contains_key(&token) {
            return None;
        }
        pairs.insert(token, place);
        Some(Self(token))
    }
}

impl Drop for RegisteredPair {
    fn drop(&mut self) {
        lock().remove(&self.0);
    }
}

/// Where the pair of this name is, for whoever has this key.
pub(crate) fn find(token: [u8; TOKEN], key: &[u8]) -> Option<Place> {
    lock().get(&token).filter(|place| place.key == key).cloned()
}

fn lock() -> MutexGuard<'static, BTreeMap<[u8; TOKEN], Place>> {
    PAIRS.lock().unwrap_or_else(PoisonError::into_inner)
}
