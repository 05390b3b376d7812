use super::{Frame, MAX_FRAME};

/// Sizes of memory: an acknowledgement, a packet of an Ethernet, and steps of two up to the
/// longest super-packet, so that what waits in a queue is at most about twice its bytes (apart
/// from the shortest).
const SIZES: [usize; 6] = [128, 2_048, 8_192, 16_384, 32_768, MAX_FRAME];

/// How much of each size is kept for later use, in bytes; beyond it memory is freed.
const KEPT: usize = 64 << 20;

/// Frames' memory, used again and again.
#[derive(Debug, Default)]
pub struct Pool {
    free: [Vec<Frame>; SIZES.len()],
}

impl Pool {
    /// An empty pool.
    pub fn new() -> Self {
        Self::default()
    }

    /// Memory for the longest frame, to be read into.
    pub fn take(&mut self) -> Frame {
        self.take_for(MAX_FRAME)
    }

    /// Memory for a frame of `len` bytes, at most [`MAX_FRAME`].
    pub fn take_for(&mut self, len: usize) -> Frame {
        let class = class_of(len);
        match self.free[class].pop() {
            Some(frame) => frame,
            None => Frame::with_room(SIZES[class]),
        }
    }

    /// A frame with these bytes; what is beyond [`MAX_FRAME`] is cut.
    pub fn filled(&mut self, bytes: &[u8]) -> Frame {
        let mut frame = self.take_for(bytes.len());
        let room = frame.room();
        let len = bytes.len().min(room.len());
        room[..len].copy_from_slice(&bytes[..len]);
        frame.set_len(len);
        frame
    }

    /// The same frame in the smallest memory that holds it, so that a queue of acknowledgements
    /// does not hold 64 KiB for each.
    pub fn fit(&mut self, frame: Frame) -> Frame {
        if SIZES[class_of(frame.bytes().len())] >= frame.capacity() {
            return frame;
        }
        let smaller = self.filled(frame.bytes());
        self.give(frame);
        smaller
    }

    /// Takes back the memory of a frame that has been written.
    pub fn give(&mut self, mut frame: Frame) {
        let class = class_of(frame.capacity());
        let kept = &mut self.free[class];
        if frame.capacity() == SIZES[class] && kept.len() < KEPT / SIZES[class] {
            frame.set_len(0);
            kept.push(frame);
        }
    }
}

fn class_of(len: usize) -> usize {
    SIZES
        .iter()
        .position(|size| len <= *size)
        .unwrap_or(SIZES.len() - 1)
}
