use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;

use bytes::BytesMut;

use crate::read_spare;

/// Large enough that one read takes all a socket has and slices are few; small enough that a
/// slice held for long keeps little memory.
const SEGMENT: usize = 1 << 20;
/// Less room than this left in a segment makes reads so short that the next one is better.
const LEAST_READ: usize = 64 << 10;
/// Segments kept while slices of them are in use, beyond which they are left to the allocator.
const KEPT: usize = 64;

/// Receive memory: bytes are read into a large segment and handed on as slices of it. A segment
/// is used again once its last slice is gone, since fresh memory costs a page fault for every
/// 4 KiB received.
#[derive(Debug, Default)]
pub struct Segments {
    current: BytesMut,
    used: VecDeque<BytesMut>,
    /// The current one is a segment, not the nothing there was at the start.
    filled: bool,
    /// Most that one read takes, where the rate is held down.
    limit: Option<usize>,
}

impl Segments {
    /// The unread bytes received so far; take from the front what is complete.
    pub fn received(&mut self) -> &mut BytesMut {
        &mut self.current
    }

    /// From now on one read takes at most `bytes`.
    pub fn set_limit(&mut self, bytes: Option<usize>) {
        self.limit = bytes;
    }

    /// What [`Segments::set_limit`] set.
    pub fn limit(&self) -> Option<usize> {
        self.limit
    }

    /// Reads once from `fd` behind the bytes that are there, with room for at least `wanted`
    /// in all; 0 is the end of the stream.
    pub fn read(&mut self, fd: impl AsFd, wanted: usize) -> io::Result<usize> {
        let missing = wanted.saturating_sub(self.current.len());
        if self.current.capacity() - self.current.len() < missing.max(LEAST_READ) {
            self.next(wanted);
        }
        if let Some(limit) = self.limit {
            // Copied once more, which costs nothing at a rate that somebody holds down.
            let mut part = vec![0; limit.max(1)];
            let n = rustix::io::read(fd, &mut part)?;
            self.current.extend_from_slice(&part[..n]);
            return Ok(n);
        }
        read_spare(fd, &mut self.current)
    }

    /// Gives back the memory that nothing unread is in.
    pub fn trim(&mut self) {
        self.used.clear();
        if self.current.is_empty() {
            self.current = BytesMut::new();
            self.filled = false;
        }
    }

    /// Goes on in another segment, taking along what is incomplete.
    fn next(&mut self, wanted: usize) {
        let capacity = SEGMENT.max(wanted + LEAST_READ);
        let free = self.used.iter_mut().position(|s| s.try_reclaim(capacity));
        let mut next = match free.and_then(|at| self.used.swap_remove_front(at)) {
            Some(free) => free,
            None => BytesMut::with_capacity(capacity),
        };
        next.extend_from_slice(&self.current);
        let mut used = std::mem::replace(&mut self.current, next);
        used.clear();
        if self.filled && self.used.len() < KEPT {
            self.used.push_back(used);
        }
        self.filled = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn bytes_stay_whole_over_segments_and_memory_is_used_again() -> io::Result<()> {
        let (receiver, mut sender) = io::pipe()?;
        let mut segments = Segments::default();
        let mut addresses = std::collections::BTreeSet::new();
        let pattern: Vec<u8> = (0..=250).cycle().take(251 * 40_000).collect();
        let mut seen = 0;
        for part in pattern.chunks(50_000) {
            sender.write_all(part)?;
            let mut left = part.len();
            while left > 0 {
                left -= segments.read(&receiver, 40_000)?;
            }
            while segments.received().len() >= 33_333 {
                let packet = segments.received().split_to(33_333).freeze();
                assert_eq!(packet, pattern[seen..seen + packet.len()]);
                addresses.insert(packet.as_ptr() as usize / SEGMENT);
                seen += packet.len();
            }
        }
        assert!(seen > pattern.len() - 33_333);
        assert!(addresses.len() <= 4, "{} segments", addresses.len());
        segments.trim();
        assert!(segments.used.is_empty() && segments.received().len() == pattern.len() - seen);
        segments.received().clear();
        segments.trim();
        assert_eq!(segments.received().capacity(), 0);
        sender.write_all(b"more")?;
        assert_eq!(segments.read(&receiver, 4)?, 4);
        assert_eq!(&segments.received()[..], b"more");
        Ok(())
    }
}
