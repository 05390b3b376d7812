//! Files in flight, and the items that wait for one of them to leave its target.

use std::collections::{BTreeMap, VecDeque};

use super::file::{FileId, FileTask};
use super::tree::PendingItem;

/// Files that are being copied.
#[derive(Debug, Default)]
pub(super) struct ActiveFiles {
    /// Number of files begun so far.
    begun: u64,
    /// Boxed, because thousands are in flight and removing an entry moves its neighbours in the
    /// map.
    tasks: BTreeMap<FileId, Box<FileTask>>,
    /// Targets of the files in flight, with the items that must wait for one of them.
    places: BTreeMap<Vec<u8>, VecDeque<PendingItem>>,
    /// Bytes that relays may hold for the files in flight.
    relayed: u64,
}

impl ActiveFiles {
    /// Number of files begun so far.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// ID of the next file.
    pub(super) fn next_id(&self) -> FileId {
        FileId(self.begun + 1)
    }

    /// Takes an ID for a file that is not copied, such as a hard link.
    pub(super) fn take_id(&mut self) -> FileId {
        self.begun += 1;
        FileId(self.begun)
    }

    pub(super) fn begin(&mut self, task: FileTask) -> FileId {
        let id = self.take_id();
        self.tasks.insert(id, Box::new(task));
        id
    }

    pub(super) fn get(&self, id: &FileId) -> Option<&FileTask> {
        self.tasks.get(id).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, id: &FileId) -> Option<&mut FileTask> {
        self.tasks.get_mut(id).map(Box::as_mut)
    }

    pub(super) fn remove(&mut self, id: &FileId) -> Option<Box<FileTask>> {
        self.tasks.remove(id)
    }

    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Bytes that this run has moved of the files in flight.
    pub(super) fn moved(&self) -> u64 {
        self.tasks.values().map(|task| task.moved()).sum()
    }

    /// Bytes that relays may hold for the files in flight.
    pub(super) fn relayed(&self) -> u64 {
        self.relayed
    }

    pub(super) fn hold_for_relay(&mut self, bytes: u64) {
        self.relayed += bytes;
    }

    pub(super) fn release_from_relay(&mut self, bytes: u64) {
        self.relayed -= bytes;
    }

    /// Occupies the target of `item`. Returns the item, unless it has to wait for another file that
    /// is written there.
    pub(super) fn occupy(&mut self, item: PendingItem) -> Option<PendingItem> {
        if let Some(waiting) = self.places.get_mut(&item.target) {
            waiting.push_back(item);
            return None;
        }
        self.places.insert(item.target.clone(), VecDeque::new());
        Some(item)
    }

    /// Records that writing to `target` has ended. Returns the next item that waits for it, which
    /// now occupies it.
    pub(super) fn vacate(&mut self, target: &[u8]) -> Option<PendingItem> {
        let mut waiting = self.places.remove(target)?;
        let next = waiting.pop_front()?;
        self.places.insert(target.to_vec(), waiting);
        Some(next)
    }

    /// Drops the items that wait.
    pub(super) fn drop_waiting(&mut self) {
        self.places.clear();
    }
}
