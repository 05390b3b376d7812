//! The path itself, without a clock or a device.

use std::collections::VecDeque;
use std::time::Duration;

use crate::figures::Figures;
use crate::packet::{Frame, Pool};
use crate::path::{Direction, PathSpec};

/// Both directions of a path.
///
/// Time is counted from the start and never goes back. The caller reads a frame from a TUN device
/// into [`Emulator::memory`], tells its length with [`Frame::set_len`], and gives it to
/// [`Emulator::offer`]. Then [`Emulator::poll`] until there is nothing: each frame is written to
/// the device at the end of its direction, [`Frame::bytes`] from the same memory, which goes back
/// with [`Emulator::recycle`]. With nothing to read, the next poll is due at
/// [`Emulator::next_deadline`].
#[derive(Debug)]
pub struct Emulator {
    pool: Pool,
    figures: Figures,
    delay: Duration,
    under_way: VecDeque<(Duration, Direction, Frame)>,
}

impl Emulator {
    /// An idle path.
    pub fn new(path: &PathSpec) -> Self {
        Self {
            pool: Pool::new(),
            figures: Figures::default(),
            delay: path.rtt / 2,
            under_way: VecDeque::new(),
        }
    }

    /// Memory to read the next frame into, long enough for any.
    pub fn memory(&mut self) -> Frame {
        self.pool.take()
    }

    /// Takes back what [`Emulator::poll`] gave, or memory that was not used.
    pub fn recycle(&mut self, frame: Frame) {
        self.pool.give(frame);
    }

    /// A frame has arrived from the device at the beginning of `direction`.
    pub fn offer(&mut self, direction: Direction, now: Duration, frame: Frame) {
        let frame = self.pool.fit(frame);
        self.under_way
            .push_back((now + self.delay, direction, frame));
    }

    /// The next frame that is due, to be written to the device at the end of its direction.
    pub fn poll(&mut self, now: Duration) -> Option<(Direction, Frame)> {
        self.figures.covered = now;
        match self.under_way.front() {
            Some((at, _, _)) if *at <= now => self
                .under_way
                .pop_front()
                .map(|(_, direction, frame)| (direction, frame)),
            _ => None,
        }
    }

    /// When [`Emulator::poll`] has something next; `None` while nothing is under way.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.under_way.front().map(|(at, _, _)| *at)
    }

    /// What has crossed so far.
    pub fn figures(&self) -> &Figures {
        &self.figures
    }
}
