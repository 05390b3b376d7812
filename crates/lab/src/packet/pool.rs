use super::{MAX_FRAME, TunFrame};

/// Sizes of memory in bytes: an acknowledgement, an Ethernet packet, then steps of two to four up
/// to the longest super-packet, which limits the waste in queues.
const SIZES: [usize; 6] = [128, 2_048, 8_192, 16_384, 32_768, MAX_FRAME];

/// Bytes of each size that are kept for reuse; more are freed.
const KEPT: usize = 64 << 20;

/// Memory of frames for reuse, in six sizes with at most 64 MiB each.
#[derive(Debug, Default)]
pub struct FramePool {
    free: [Vec<TunFrame>; SIZES.len()],
}

impl FramePool {
    /// An empty pool.
    pub fn new() -> Self {
        Self::default()
    }

    /// Memory for reading a frame of any length.
    pub fn take(&mut self) -> TunFrame {
        self.take_for(MAX_FRAME)
    }

    /// Memory for a frame of `len` bytes, at most [`MAX_FRAME`].
    pub fn take_for(&mut self, len: usize) -> TunFrame {
        let class = class_of(len);
        match self.free[class].pop() {
            Some(frame) => frame,
            None => TunFrame::with_room(SIZES[class]),
        }
    }

    /// A frame with these bytes, cut at [`MAX_FRAME`].
    pub fn filled(&mut self, bytes: &[u8]) -> TunFrame {
        let mut frame = self.take_for(bytes.len());
        let room = frame.room();
        let len = bytes.len().min(room.len());
        room[..len].copy_from_slice(&bytes[..len]);
        frame.set_len(len);
        frame
    }

    /// Moves a frame to the smallest memory that holds it, so that a queue of acknowledgements does
    /// not take 64 KiB for each.
    pub fn fit(&mut self, frame: TunFrame) -> TunFrame {
        if SIZES[class_of(frame.bytes().len())] >= frame.capacity() {
            return frame;
        }
        let smaller = self.filled(frame.bytes());
        self.give(frame);
        smaller
    }

    /// Takes back the memory of a frame that has been written.
    pub fn give(&mut self, mut frame: TunFrame) {
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
