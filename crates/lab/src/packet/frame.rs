use std::ops::Range;

use super::VNET_LEN;

/// Longest frame: a `virtio_net_hdr` and an IP packet, which has up to 65,535 bytes, or 65,535
/// after the header for IPv6.
pub const MAX_FRAME: usize = VNET_LEN + 40 + 65_535;

/// The memory of one frame, `virtio_net_hdr` and IP packet. It is read from one TUN device and
/// written to the other without copying.
#[derive(Debug)]
pub struct TunFrame {
    memory: Box<[u8]>,
    start: usize,
    end: usize,
}

impl TunFrame {
    /// An empty frame with room for `size` bytes.
    pub(super) fn with_room(size: usize) -> Self {
        Self {
            memory: vec![0; size].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }

    /// The whole memory, for reading a frame into. [`TunFrame::set_len`] then sets its length.
    pub fn room(&mut self) -> &mut [u8] {
        self.start = 0;
        self.end = 0;
        &mut self.memory
    }

    /// Makes the first `len` bytes of the memory the frame, at most all.
    pub fn set_len(&mut self, len: usize) {
        self.start = 0;
        self.end = len.min(self.memory.len());
    }

    /// `virtio_net_hdr` and IP packet, in the form for the device.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    /// `virtio_net_hdr` and IP packet, to be changed in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.end]
    }

    /// The IP packet; empty if the frame is too short.
    pub fn packet(&self) -> &[u8] {
        self.bytes().get(VNET_LEN..).unwrap_or_default()
    }

    /// Size of the memory in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.memory.len()
    }

    /// Reduces the frame in place to its first `head` bytes and the bytes at `body`; the head is
    /// moved directly before the body. Ranges outside the frame have no effect.
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
