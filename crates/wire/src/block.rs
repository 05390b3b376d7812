use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{BorrowPolicy, ExternalPayloadSource, PacketBuf};

/// Payload of one message, stored in the packets that will carry it.
///
/// File data is read (`preadv`) straight into the packets, [`PayloadBlock::prepend`] puts the
/// message header in front once it is known, and each packet is sealed in place. The kernel thus
/// writes each byte of a file once, the cipher transforms it once, and the kernel sends it once.
#[derive(Debug, Default)]
pub struct PayloadBlock {
    packets: VecDeque<PacketBuf>,
    unmade: Option<DeferredPackets>,
}

/// Packets not yet allocated. A block allocates them once it knows how much data there is:
/// thousands of small files are read ahead of sending, and a file is known to be small only after
/// it is opened.
#[derive(Debug)]
struct DeferredPackets {
    pool: PacketPool,
    slot: usize,
    reserve: usize,
    room: usize,
}

impl PayloadBlock {
    /// Creates an empty block with room for `capacity` payload bytes and a header of up to
    /// `reserve` bytes in front, in packets of at most `slot` payload bytes from `pool`.
    ///
    /// `reserve` must be smaller than `slot`; `slot` is limited to the pool's slot size.
    pub fn new(pool: &PacketPool, slot: usize, reserve: usize, capacity: usize) -> Self {
        let unmade = DeferredPackets {
            pool: pool.clone(),
            slot: slot.clamp(reserve + 1, pool.slot().max(reserve + 1)),
            reserve,
            room: capacity,
        };
        Self {
            packets: VecDeque::new(),
            unmade: Some(unmade),
        }
    }

    /// Allocates packets for `n` more bytes, up to the room that is left, and at least one packet.
    fn make(&mut self, n: usize) {
        let Some(unmade) = &mut self.unmade else {
            return;
        };
        let mut left = n.min(unmade.room);
        unmade.room -= left;
        self.packets.reserve_exact(left.div_ceil(unmade.slot) + 1);
        while left > 0 || self.packets.is_empty() {
            let skip = std::mem::take(&mut unmade.reserve);
            let room = (unmade.slot - skip).min(left);
            self.packets.push_back(unmade.pool.packet(skip, room));
            left -= room;
        }
        if unmade.room == 0 {
            self.unmade = None;
        }
    }

    /// Returns the number of payload bytes.
    pub fn len(&self) -> usize {
        self.packets.iter().map(PacketBuf::len).sum()
    }

    /// Returns true if there is no payload.
    pub fn is_empty(&self) -> bool {
        self.packets.iter().all(PacketBuf::is_empty)
    }

    /// Returns the number of payload bytes that still fit.
    pub fn room(&self) -> usize {
        let unmade = self.unmade.as_ref().map_or(0, |unmade| unmade.room);
        unmade + self.made_room()
    }

    fn made_room(&self) -> usize {
        self.packets.iter().map(PacketBuf::room).sum()
    }

    /// Adds `n` payload bytes (at most the capacity given to [`PayloadBlock::new`]) and returns the
    /// slices to fill.
    pub fn grow(&mut self, n: usize) -> Vec<&mut [u8]> {
        let more = n.saturating_sub(self.made_room());
        if more > 0 {
            self.make(more);
        }
        let mut left = n;
        let mut slices = Vec::with_capacity(self.packets.len());
        for packet in &mut self.packets {
            let take = packet.room().min(left);
            if take > 0 {
                slices.push(packet.grow(take));
                left -= take;
            }
        }
        slices
    }

    /// Drops the payload behind the first `len` bytes, and the packets that held it.
    pub fn truncate(&mut self, len: usize) {
        self.make(0);
        self.unmade = None;
        let mut left = len;
        for packet in &mut self.packets {
            packet.truncate(left);
            left -= packet.len();
        }
        while self.packets.len() > 1 && self.packets.back().is_some_and(PacketBuf::is_empty) {
            self.packets.pop_back();
        }
    }

    /// Drops all payload and keeps the packets.
    pub fn clear(&mut self) {
        for packet in &mut self.packets {
            packet.truncate(0);
        }
    }

    /// Returns true if the block may borrow its payload: it is empty, and the pool's
    /// [`BorrowPolicy`] permits it.
    pub fn may_lie_outside(&self) -> bool {
        let unmade = self.unmade.as_ref();
        self.packets.is_empty()
            && unmade.is_some_and(|unmade| unmade.pool.borrow_policy() != BorrowPolicy::Never)
    }

    /// Makes the block borrow the `len` bytes at offset `at` of `lie` as its payload, at most as
    /// many as fit; they are not copied.
    pub fn lie_outside(&mut self, lie: &Arc<dyn ExternalPayloadSource>, mut at: usize, len: usize) {
        let Some(unmade) = self.unmade.take() else {
            return;
        };
        let mut left = len.min(unmade.room);
        let mut skip = unmade.reserve;
        while left > 0 {
            let n = (unmade.slot - skip).min(left);
            let mut packet = unmade.pool.packet(skip, unmade.pool.room_for_outlying(n));
            packet.lie_outside(Arc::clone(lie), at, n);
            self.packets.push_back(packet);
            at += n;
            left -= n;
            skip = 0;
        }
    }

    /// Returns true if some of the payload is borrowed.
    pub fn lies_outside(&self) -> bool {
        self.packets.iter().any(PacketBuf::lies_outside)
    }

    /// Appends a copy of as much of `bytes` as fits; returns the number of bytes.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        let mut from = 0;
        for slice in self.grow(bytes.len()) {
            slice.copy_from_slice(&bytes[from..from + slice.len()]);
            from += slice.len();
        }
        from
    }

    /// Puts `header` in front of the payload; it must fit into the reserve.
    pub fn prepend(&mut self, header: &[u8]) {
        if self.packets.is_empty() {
            self.make(0);
        }
        if let Some(first) = self.packets.front_mut() {
            first.prepend(header);
        }
    }

    /// Removes and returns the next packet to send.
    pub fn pop_front(&mut self) -> Option<PacketBuf> {
        self.packets.pop_front()
    }

    /// Iterates over the packets in order.
    pub fn packets(&self) -> impl Iterator<Item = &PacketBuf> {
        self.packets.iter()
    }

    /// Returns a copy of the payload in one piece, without borrowed bytes that are no longer
    /// available; for tests.
    pub fn to_vec(&self) -> Vec<u8> {
        let parts = self.packets.iter().flat_map(|packet| packet.parts(0, 0));
        parts
            .flat_map(|part| part.to_vec().unwrap_or_default())
            .collect()
    }
}

/// Memory pool for packets, reused when a [`PacketBuf`] is dropped.
///
/// Packet buffers are so large that `malloc` would map and fault them anew each time, which costs
/// more than sealing them.
#[derive(Clone, Debug)]
pub struct PacketPool {
    inner: Arc<PacketPoolInner>,
}

/// State of a pool that its clones share: packets have room for `slot` payload bytes, and the
/// memory of `keep` unused ones is kept.
#[derive(Debug)]
struct PacketPoolInner {
    slot: usize,
    keep: usize,
    free: Mutex<FreeBuffers>,
    /// A [`BorrowPolicy`] as an integer.
    borrow_policy: AtomicU8,
}

/// Free buffers, one list for each of [`SIZES`]; the last list has whole slots.
#[derive(Debug, Default)]
struct FreeBuffers([Vec<Vec<u8>>; SIZES.len() + 1]);

/// Buffer sizes below a whole slot, in bytes of payload. Thousands of small files are in flight at
/// once, and memory that is not in the pool has to be mapped and zeroed first. The sizes are round
/// numbers, as file sizes often are, plus a header; 32 KiB is the channel packet that every
/// implementation accepts.
const SIZES: [usize; 4] = [1 << 10 | 256, 4 << 10 | 256, 16 << 10 | 256, 32 << 10];

impl PacketPool {
    /// Creates a pool of packets with up to `slot` payload bytes. The pool keeps at most the memory
    /// of `keep` unused packets, and as much again for each smaller size.
    pub fn new(slot: usize, keep: usize) -> Self {
        Self {
            inner: Arc::new(PacketPoolInner {
                slot,
                keep,
                free: Mutex::default(),
                borrow_policy: AtomicU8::default(),
            }),
        }
    }

    /// Returns the largest number of payload bytes of a packet of this pool.
    pub fn slot(&self) -> usize {
        self.inner.slot
    }

    /// Sets how long packets of this pool may borrow their payload.
    pub fn set_borrow_policy(&self, borrow_policy: BorrowPolicy) {
        self.inner
            .borrow_policy
            .store(borrow_policy as u8, Ordering::Relaxed);
    }

    fn borrow_policy(&self) -> BorrowPolicy {
        BorrowPolicy::from_bits(self.inner.borrow_policy.load(Ordering::Relaxed))
    }

    /// Returns the memory in bytes that a packet needs to have `n` borrowed bytes sealed into it.
    pub(crate) fn room_for_outlying(&self, n: usize) -> usize {
        match self.borrow_policy() {
            BorrowPolicy::UntilSent => 0,
            BorrowPolicy::UntilSealed | BorrowPolicy::Never => n,
        }
    }

    /// Returns an empty packet with room for a header of `reserve` and a payload of `room` bytes.
    pub fn packet(&self, reserve: usize, room: usize) -> PacketBuf {
        let sizes = SIZES.iter().take_while(|size| **size < self.inner.slot);
        let nth = sizes.clone().position(|size| reserve + room <= *size);
        let (nth, size) = match nth {
            Some(nth) => (nth, SIZES[nth]),
            None => (SIZES.len(), self.inner.slot),
        };
        let memory = self.lock().0[nth].pop().unwrap_or_default();
        PacketBuf::new(memory, reserve, room, size, Some(self.clone()))
    }

    /// Frees the memory that is not in use.
    pub fn trim(&self) {
        *self.lock() = FreeBuffers::default();
    }

    pub(crate) fn give_back(&self, memory: Vec<u8>) {
        let (slot, keep) = (self.inner.slot, self.inner.keep);
        let whole = PacketBuf::memory_for(slot);
        let nth = match memory.len() < whole {
            true => SIZES
                .iter()
                .position(|size| memory.len() <= PacketBuf::memory_for(*size)),
            false => None,
        };
        let (nth, keep) = match nth {
            Some(nth) => (nth, keep * slot / SIZES[nth]),
            None => (SIZES.len(), keep),
        };
        let list = &mut self.lock().0[nth];
        if list.len() < keep {
            list.push(memory);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FreeBuffers> {
        self.inner
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[path = "block_tests.rs"]
mod tests;
