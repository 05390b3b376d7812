use std::ops::Range;

use super::VNET_LEN;

/// The longest frame: a `virtio_net_hdr` and an IP packet of 65,535 bytes, or for IPv6 of as many
/// behind its header.
pub const MAX_FRAME: usize = VNET_LEN + 40 + 65_535;

/// The memory of one frame: `virtio_net_hdr` and IP packet, read from one TUN device and written
/// to the other from where it lies.
#[derive(Debug)]
pub struct Frame {
    memory: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Frame {
    /// An empty frame with room for `size` bytes.
    pub(super) fn with_room(size: usize) -> Self {
        Self {
            memory: vec![0; size].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }

    /// All of the memory, to read a frame into. [`Frame::set_len`] says how much came.
    pub fn room(&mut self) -> &mut [u8] {
        self.start = 0;
        self.end = 0;
        &mut self.memory
    }

    /// The first `len` bytes of the room are the frame now; never more than there is room.
    pub fn set_len(&mut self, len: usize) {
        self.start = 0;
        self.end = len.min(self.memory.len());
    }

    /// `virtio_net_hdr` and IP packet, as they are written to the device.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    /// The same, to change in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.end]
    }

    /// The IP packet; empty when the frame is too short to have one.
    pub fn packet(&self) -> &[u8] {
        self.bytes().get(VNET_LEN..).unwrap_or_default()
    }

    /// How many bytes the memory holds at most.
    pub(super) fn capacity(&self) -> usize {
        self.memory.len()
    }

    /// Makes the frame `head` and then the bytes that are now at `body`, in place: `head` is
    /// moved to just before them. Out of range, nothing changes.
    pub(super) fn narrow(&mut self, head: usize, body: Range<usize>) {
        let (from, to) = (self.start + body.start, self.start + body.end);
        if head <= body.start && body.start <= body.end && to <= self.end {
            self.memory
                .copy_within(self.start..self.start + head, from - head);
            self.start = from - head;
            self.end = to;
        }
    }
}
